"""Train the nano models that ship inside the package, store them in bf16 and write their cards.

    python benchmarks/ship_nano.py [ARCH ...] --work FOLDER

The text is the running interpreter's own standard library. Constants of the gates and everything one-dimensional stay
fp32. A run that was interrupted goes on; one that is finished is only stored again.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from pathlib import Path

import torch

from statewell.architectures import ARCHITECTURES, preset
from statewell.checkpoints.load import load
from statewell.checkpoints.native import save_model
from statewell.checkpoints.search import SHIPPED
from statewell.config.load_run import load_train_config
from statewell.config.run import TrainConfig
from statewell.plan.weights import active, total
from statewell.text.tokenizer import ByteTokenizer
from statewell.train.corpus import Corpus, open_corpus
from statewell.train.evaluate import evaluate
from statewell.train.run import train

RECIPE = Path(__file__).parent / "recipes" / "nano.toml"


def ship(architecture: str, recipe: TrainConfig, work: Path) -> None:
    """Train one model (or take the finished run in `work`) and store it in the package."""
    run = work / architecture
    train(preset(architecture, "nano"), recipe, run, (), run.exists(), print_event)
    model = load(run)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.ndim >= 2:
            tensor.data = tensor.data.to(torch.bfloat16)
        assert torch.isfinite(tensor).all(), name
    folder = SHIPPED / f"{architecture}-nano"
    save_model(folder, model)
    corpus = open_corpus((), ByteTokenizer())
    measured = evaluate(load(folder), corpus.held_out, recipe.length, recipe.final_eval_tokens)
    (folder / "README.md").write_text(card(architecture, recipe, corpus, measured.bits_per_byte))


def print_event(event: object) -> None:
    """Evaluations and saves, a line each."""
    if type(event).__name__ != "StepEvent":
        print(event, flush=True)


def card(architecture: str, recipe: TrainConfig, corpus: Corpus, bits_per_byte: float) -> str:
    """The model card."""
    config = preset(architecture, "nano")
    tokens = recipe.total_steps * recipe.tokens_per_step
    settings = ", ".join(f"{name} {value}" for name, value in asdict(recipe).items() if value is not None)
    return f"""# {architecture}:nano

A language model of {total(config):,} parameters ({active(config):,} active) over bytes, for trying the architecture
out: `statewell generate {architecture}:nano "def "`. It writes text that looks like Python and means nothing.

- **Trained on** the source of Python {platform.python_version()}'s standard library (PSF licence), {tokens:,} bytes
  drawn from {corpus.train.tokens / 2**20:.1f} MiB; files held out by content hash.
- **Held out**: {bits_per_byte:.4f} bits per byte, from empty memory, windows of {recipe.length}, as stored here.
- **Recipe**: `benchmarks/recipes/nano.toml` through `benchmarks/ship_nano.py`: {settings}.
- **Stored** in bf16; gates' constants, norms and biases in fp32. Multiplied in fp32 on a CPU.
- **Licence** Apache-2.0. No personal data was sought or removed; names in the library's sources may reappear.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    recipe = load_train_config(TrainConfig(), file=RECIPE)
    for architecture in asked.architectures:
        ship(architecture, recipe, asked.work)


if __name__ == "__main__":
    main()
