"""Where weights are looked for: a path, the package's shipped models, the folders of STATEWELL_MODELS (colon-separated)
and the Hugging Face cache. Nothing is downloaded here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from statewell import architectures
from statewell.errors import RequestError
from statewell.formats.families import CONFIG

SHIPPED = Path(__file__).resolve().parent.parent / "shipped"
VARIABLE = "STATEWELL_MODELS"
# preset -> where it was released; the first is what `fetch` would ask for
REPOSITORIES = {
    "gpt2": ("openai-community/gpt2", "gpt2"),
    "gpt2-medium": ("openai-community/gpt2-medium", "gpt2-medium"),
    "gpt2-large": ("openai-community/gpt2-large", "gpt2-large"),
    "gpt2-xl": ("openai-community/gpt2-xl", "gpt2-xl"),
    "kimi-linear-48b-a3b": ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "moonshotai/Kimi-Linear-48B-A3B-Base"),
    "kimi-k3": ("moonshotai/Kimi-K3",),
}


@dataclass(frozen=True)
class Found:
    """A model's folder. preset: the released preset it was asked for as, whose config it must have, or None."""

    folder: Path
    preset: str | None = None


def find(model: str | Path) -> Found:
    """The folder that holds the weights of `model`: a path, a released preset's name, or ARCH:nano.

    Raises RequestError for a name without weights here, saying where was looked and how to get them.
    """
    path = Path(model)
    # a folder that only shares a preset's name does not hide the preset
    if isinstance(model, Path) or "/" in model or (path / CONFIG).is_file():
        if not path.is_dir():
            raise RequestError(f"{path} is not a folder; give the folder of a saved model, a run or a checkpoint.")
        return Found(path)
    config = architectures.resolve(model)
    if config.name in architectures.RELEASED:
        return Found(_released(config.name), config.name)
    folder = SHIPPED / config.name.replace(":", "-")
    if not folder.is_dir():
        raise RequestError(
            f"'{model}' has no trained weights here: ARCH:nano ships trained, and a run folder loads. "
            f"Train one with: statewell train --arch {config.architecture} --size tiny"
        )
    return Found(folder)


def search_path() -> tuple[Path, ...]:
    """The folders in which presets are looked for, in order."""
    named = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return (*named, Path(os.environ.get("HF_HUB_CACHE") or home / "hub"))


def _released(name: str) -> Path:
    for root in search_path():
        for folder in _candidates(root, name):
            if (folder / CONFIG).is_file():
                return folder
    looked = ", ".join(str(root) for root in search_path())
    raise RequestError(
        f"'{name}' has no weights here; looked in {looked}. Give the path of its folder, or set {VARIABLE} to a folder "
        f"that holds it as {name} (it was released as {REPOSITORIES[name][0]})."
    )


def _candidates(root: Path, name: str) -> Iterator[Path]:
    """The preset's folder under `root`, by its name or in the layout of the Hugging Face cache."""
    yield root / name
    for repository in REPOSITORIES[name]:
        yield root / repository
        cache = root / f"models--{repository.replace('/', '--')}"
        current = cache / "refs" / "main"
        if current.is_file():
            yield cache / "snapshots" / current.read_text(encoding="utf-8").strip()
        yield from sorted((cache / "snapshots").glob("*"))
