"""The kernels without Python: the C++ program of tests/native, built by the compiler that is here, and its vectors."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.native import write_vectors
from tests.tolerances import LIMITS, relative_rms

ROOT = Path(__file__).parents[2]
CMAKE = shutil.which("cmake", path=os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ.get("PATH", "")]))
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)

# A kernel of every family of stored cases, and what it gives.
FAMILIES = {
    "attend": ("attend_one", "o"),
    "conv": ("conv_forward", "y"),
    "conv_step": ("conv_step", "final"),
    "delta": ("delta_forward", "final"),
    "depth": ("depth_backward", "d_query"),
    "experts": ("expert_combine", "mixed"),
    "gate": ("gate_backward", "d_z"),
    "linear": ("normaliser_backward", "d_k"),
    "norm": ("norm_backward", "d_x"),
    "products": ("mxfp4_products", "y"),
    "route": ("route_forward", "weight"),
    "situ": ("situ_forward", "out"),
    "step": ("delta_step", "final"),
    "swiglu": ("swiglu_backward", "d_up"),
    "unpack": ("mxfp4_unpack", "w"),
}


def test_the_stored_vectors_are_what_the_reference_gives_under_the_limits_of_the_table():
    stored, made = load_file(write_vectors.PATH), write_vectors.vectors()
    assert stored.keys() == made.keys()
    for name, expected in made.items():
        if expected.dtype == torch.float64 and not name.startswith("limits/"):
            assert relative_rms(stored[name], expected) <= LIMITS["operation", torch.float64], name
        elif not (name.startswith("limits/") or torch.allclose(stored[name], expected)):
            pytest.fail(f"{name} differs; run python -m tests.native.write_vectors")
    for what in ("operation", "gradient"):
        assert stored[f"limits/all/{what}"].item() == LIMITS[what, torch.float32]


def test_every_family_of_stored_vectors_is_named_here():
    assert {name.split("/")[0] for name in load_file(write_vectors.PATH)} == {*FAMILIES, "limits"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the kernels as they are shipped."""
    if CMAKE is None or COMPILER is None:
        pytest.skip("the kernels' program cannot be built: it needs cmake and a C++17 compiler (g++ or clang++)")
    build = tmp_path_factory.mktemp("program")
    configure = [CMAKE, "-S", str(ROOT), "-B", str(build), "-DSTATEWELL_PROGRAM=ON", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    for command in (configure, [CMAKE, "--build", str(build), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "check_kernels"


def check(program: Path, vectors: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, vectors], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_every_kernel_passes_on_every_instruction_set_and_the_pool_keeps_its_word(program):
    done = check(program, write_vectors.PATH)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
    assert done.stdout.count("passed  pool") == 6


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kernel", "name"), [(family, *what) for family, what in FAMILIES.items()])
def test_a_result_that_is_off_is_told_by_its_kernel(program, tmp_path, family, kernel, name):
    vectors = load_file(write_vectors.PATH)
    spoiled = next(key for key in vectors if key.startswith(f"{family}/") and key.endswith(f"/{name}"))
    vectors[spoiled] = vectors[spoiled] * (1 + 1e-4)
    save_file(vectors, tmp_path / "spoiled.safetensors")
    done = check(program, tmp_path / "spoiled.safetensors")
    assert done.returncode == 1
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")] == [kernel]


@pytest.mark.slow
def test_a_file_that_ends_early_is_refused(program, tmp_path):
    whole = write_vectors.PATH.read_bytes()
    for size in (0, 4, 1000, len(whole) - 8):
        (tmp_path / "cut.safetensors").write_bytes(whole[:size])
        done = check(program, tmp_path / "cut.safetensors")
        assert done.returncode == 2
        assert "cannot check" in done.stderr
