"""`statewell plan` and `--help` as a user runs them: quick, without torch, one JSON document, one sentence for a
mistake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

RUN = [sys.executable, "-c", "from statewell.cli.main import run; run()"]


def statewell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *arguments], capture_output=True, text=True, check=False)


def test_json_of_k3_at_a_million_tokens_has_the_contracts_keys_and_figures():
    done = statewell("plan", "kimi-k3", "--context", "1Mi", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    plan = json.loads(done.stdout)
    assert plan["model"] == "kimi-k3"
    assert plan["parameters"]["total"] == 2_779_484_476_000
    assert plan["parameters"]["active"] == 104_189_612_640
    assert plan["weights"]["bytes"] == 1_559_965_606_912
    memory = plan["memory"]
    assert (memory["fixed_bytes"], memory["bytes_per_token"], memory["context"], memory["rows"]) == (
        449_372_160,
        27_648,
        2**20,
        1,
    )
    assert memory["used_bytes"] == memory["reserved_bytes"] == 29_440_401_408
    assert plan["beyond_model_limit"] is False
    assert plan["fits"] is None
    assert len(plan["layers"]) == 93
    assert set(plan["layers"][0]) == {"index", "mixer", "ffn", "fixed_bytes", "bytes_per_token"}


def test_the_text_says_how_many_times_larger_k3_is_than_gpt2_small():
    done = statewell("plan", "kimi_k3", "--device-memory", "2Ti")
    assert "22,336 x GPT-2 small" in done.stdout
    assert "fits: yes" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["plan", "kimi-k3", "--json"], ["--help"], ["plan", "--help"], ["train", "--help"]]
)
def test_plan_and_help_import_neither_torch_numpy_pydantic_nor_tokenizers(arguments):
    program = (
        "import sys\nfrom statewell.cli.main import run\n"
        f"sys.argv = ['statewell', *{arguments!r}]\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "kimi-k4"], "did you mean 'kimi-k3'"),
        (["plan", "gpt2", "--context", "lots"], "'lots' is not a count"),
        (["plan", "gpt2", "--cache-dtype", "fp9"], "is not a memory dtype"),
        (["plan", "gpt2", "--contxt", "3"], "--context"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_two(arguments, words):
    done = statewell(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    assert "Traceback" in statewell("plan", "kimi-k4", "--debug").stderr


def test_every_help_has_an_example():
    for verb in ("plan", "train", "compare", "generate", "doctor"):
        done = statewell(verb, "--help")
        assert done.returncode == 0
        assert f"Example: statewell {verb}" in done.stdout
