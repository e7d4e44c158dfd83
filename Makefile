# `make demo` and `make test` need Python 3.11 or newer with its venv module; they install everything else into .venv.
PYTHON ?= python3
TORCH_INDEX ?=
BIN := .venv/bin

# The venv sees the system's packages only where torch is already importable there, so that it is kept.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "statewell needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then $(PYTHON) -m venv --system-site-packages .venv; else $(PYTHON) -m venv .venv; fi

# The C++ kernels are required where a compiler is, and left out where none is.
export STATEWELL_NATIVE ?= $(if $(shell command -v c++ || command -v g++ || command -v clang++),1,0)

# $(1): extras. What builds the kernels stays in .venv: in an environment of its own every install would compile them
# again. The constraint on torch is dropped where one is importable; TORCH_INDEX is asked for torch alone.
define install
	@set -e; keep="-c constraints/torch.txt"; \
	if $(BIN)/python -c 'import torch' 2>/dev/null; then keep=""; \
	elif [ -n "$(TORCH_INDEX)" ]; then $(BIN)/python -m pip install --disable-pip-version-check -q --index-url "$(TORCH_INDEX)" -c constraints/torch.txt torch; fi; \
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/packages.txt scikit-build-core nanobind cmake ninja; \
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/packages.txt $$keep --no-build-isolation -e '.$(1)'
endef

.PHONY: install demo test check fuzz sanitize neon lint clean
install: .venv/bin/python
	$(call install,)

demo: install
	$(BIN)/statewell compare --quick

install-test: .venv/bin/python
	$(call install,[test])

# Tests take one thread each, so several run at a time.
PARALLEL := -n auto --maxprocesses 4
test: install-test
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not gpu'

check: install-test $(if $(filter 1,$(STATEWELL_NATIVE)),sanitize)
	$(BIN)/python -m pytest -m 'not gpu'

# Longer than `make check` does it: each target for FUZZ_SECONDS.
FUZZ_SECONDS ?= 120
fuzz: .venv/bin/python
	$(call install,[test$(comma)fuzz])
	$(BIN)/python -m tests.fuzz.run --runs 10000000 --seconds $(FUZZ_SECONDS)

# The program that checks the kernels without Python (tests/native). $(1): its folder in build/, $(2): options of cmake.
CMAKE := $(or $(shell command -v cmake),$(BIN)/cmake)
VECTORS := tests/golden/native/kernels.safetensors
define program
@$(CMAKE) -S . -B build/$(1) -DSTATEWELL_PROGRAM=ON $(2) >build/$(1).log || { cat build/$(1).log; exit 1; }
@$(CMAKE) --build build/$(1) --parallel $(shell nproc 2>/dev/null || echo 2) >build/$(1).log || { cat build/$(1).log; exit 1; }
endef

$(BIN)/cmake: .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/packages.txt cmake

# Stops at the first address or undefined behaviour that the sanitizers refuse, on every instruction set.
sanitize: $(CMAKE)
	@mkdir -p build
	$(call program,sanitize,-DSTATEWELL_SANITIZE=address$(comma)undefined -DSTATEWELL_OPTIMISE=-O1)
	build/sanitize/check_kernels $(VECTORS)

# Compiled for 64-bit ARM and run by an emulator, which cannot start a thread in a forked child.
neon: $(CMAKE)
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { echo "make neon needs a compiler for 64-bit ARM and an emulator; on Debian: apt install g++-aarch64-linux-gnu qemu-user" >&2; exit 2; }
	@mkdir -p build
	$(call program,neon,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/neon/check_kernels $(VECTORS) --no-fork

lint: .venv/bin/python
	$(call install,[test$(comma)lint])
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

comma := ,

clean:
	rm -rf .venv build
