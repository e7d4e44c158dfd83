"""statewell: the six memories of language models, trained, run, measured and accounted for to the byte.

Names are loaded on first use, so that `import statewell` and `statewell plan` need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# Eager, because the subpackage `plan` would otherwise take the function's name once anything imports it.
from statewell.plan import plan

if TYPE_CHECKING:
    from statewell import errors
    from statewell.checkpoints.load import load
    from statewell.engine.generate import generate
    from statewell.engine.sampling import Sampling
    from statewell.kernels import ops
    from statewell.models import build

__version__ = "0.1.0"

# public name -> (module, attribute in it, or None for the module itself)
_PUBLIC = {
    "build": ("statewell.models", "build"),
    "load": ("statewell.checkpoints.load", "load"),
    "generate": ("statewell.engine.generate", "generate"),
    "Sampling": ("statewell.engine.sampling", "Sampling"),
    "ops": ("statewell.kernels.ops", None),
    "errors": ("statewell.errors", None),
}

__all__ = ["Sampling", "__version__", "build", "errors", "generate", "load", "ops", "plan"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'statewell' has no attribute '{name}'")
    module, attribute = _PUBLIC[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)
