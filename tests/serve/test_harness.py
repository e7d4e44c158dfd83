"""lm-evaluation-harness, offline, on a task of this file: what it scores over HTTP is what the model says itself."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.serve.live import Live
from tests.text.vocabularies import letters, write

MODEL = "gated_deltanet:nano"
TASK = """
task: statewell_tiny
dataset_path: json
dataset_kwargs:
  data_files: {{test: {rows}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: choices
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install 'lm-eval[api]'"
)


def byte_tokenizer(folder: Path) -> Path:
    """The tokenizer of our small models as a Hugging Face folder: each byte is its own id."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    names = letters()
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "vocab": {names[byte]: byte for byte in range(256)}, "merges": []},
    }  # fmt: skip
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": names[0]}
    return write(folder, tokenizer__json=document, tokenizer_config__json=config)


def rows(count: int) -> list[dict[str, object]]:
    """Questions whose answer is any of three texts, as far as a model without training can tell."""
    chance = random.Random(5)

    def text(longest: int) -> str:
        return "".join(chance.choice("abcdefgh") for _ in range(chance.randint(3, longest)))

    return [{"question": text(12), "choices": [text(3) for _ in range(3)], "answer": 0} for _ in range(count)]


def test_the_harness_scores_over_http_what_the_model_says_itself(server: Live, model, tmp_path):
    questions = rows(24)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, questions)))
    (tmp_path / "tiny.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    tokenizer = byte_tokenizer(tmp_path / "tokenizer")
    address = f"base_url={server.url}/v1/completions"
    settings = f"model={MODEL},{address},tokenizer={tokenizer},tokenizer_backend=huggingface,max_length=512"
    words = ["--model", "local-completions", "--model_args", settings, "--tasks", "statewell_tiny"]
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *words, "--include_path", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
    )
    found = re.search(r"\|acc\s*\|[^|]*\|\s*([0-9.]+)\|", done.stdout)
    assert found is not None, done.stderr[-2000:]
    best = [max(range(3), key=lambda place: likelihood(model, row["question"], row["choices"][place])) for row in questions]  # fmt: skip  # noqa: E501
    share = sum(place == 0 for place in best) / len(best)
    assert 0 < share < 1
    assert float(found[1]) == pytest.approx(share, abs=1e-3)


def likelihood(model, question: str, answer: str) -> float:
    ids = list((question + answer).encode())
    with torch.no_grad():
        scores = model(torch.tensor([ids]))[0].double().log_softmax(-1)
    return sum(float(scores[n - 1, ids[n]]) for n in range(len(question), len(ids)))
