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

.PHONY: install demo test check fuzz lint clean
install: .venv/bin/python
	$(call install,)

demo: install
	$(BIN)/statewell compare --quick

install-test: .venv/bin/python
	$(call install,[test])

test: install-test
	$(BIN)/python -m pytest -m 'not slow and not gpu'

check: install-test
	$(BIN)/python -m pytest -m 'not gpu'

# Longer than `make check` does it: each target for FUZZ_SECONDS.
FUZZ_SECONDS ?= 120
fuzz: .venv/bin/python
	$(call install,[test$(comma)fuzz])
	$(BIN)/python -m tests.fuzz.run --runs 10000000 --seconds $(FUZZ_SECONDS)

lint: .venv/bin/python
	$(call install,[test$(comma)lint])
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

comma := ,

clean:
	rm -rf .venv build
