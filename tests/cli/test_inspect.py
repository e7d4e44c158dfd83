"""`statewell inspect` as a person and as a script sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from statewell.cli.main import app
from tests.formats.files_fixture import described, write_file

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "statewell" / "shipped" / "kimi_k3-nano"


def test_the_document_has_the_keys_scripts_use():
    done = CliRunner().invoke(app, ["inspect", str(SHIPPED), "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert {"family", "layers", "tensors", "parameters", "dtypes", "bytes", "problems"} <= document.keys()
    assert document["problems"] == []
    assert document["dtypes"].keys() == {"BF16", "F32"}


def test_the_text_names_problems_without_failing(tmp_path):
    path = write_file(tmp_path / "model.safetensors", {str(i): [] for i in range(30)}, 0)
    done = CliRunner().invoke(app, ["inspect", str(path.parent)])
    assert done.exit_code == 0
    assert done.stdout.count("  problem: ") == 20
    assert "11 more problems" in done.stdout
    write_file(path, {"a": described("U8", [3], 0, 3)}, 3)
    assert "3 B" in CliRunner().invoke(app, ["inspect", str(path)]).stdout


def test_a_hostile_files_names_do_not_steer_the_terminal(tmp_path):
    write_file(tmp_path / "model.safetensors", {"\x1b[2J": described("U8", [1], 0, 1)}, 0)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "\\u001b[2J": 1}')
    done = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert "\x1b" not in done.stdout
    assert "\\x1b" in done.stdout


def test_inspect_imports_neither_torch_nor_numpy():
    program = (
        "import sys\nfrom statewell.cli.main import run\n"
        f"sys.argv = ['statewell', 'inspect', {str(SHIPPED)!r}]\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "sys.exit(str({'torch', 'numpy'} & set(sys.modules)) if {'torch', 'numpy'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_path_that_holds_nothing_is_one_sentence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "from statewell.cli.main import run; run()", "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "holds no .safetensors file" in done.stderr
    assert "Traceback" not in done.stderr
