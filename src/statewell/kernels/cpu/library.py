"""How a compiled function becomes an operator of torch: opaque to torch.compile, checked by opcheck.

An operator has no gradient of its own. Forward and backward are two of them, tied by a `torch.autograd.Function` in
the file of the operation: 14 us a call with gradients asked for, where `torch.library.custom_op` costs 40.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

NAMESPACE = "statewell"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def operator(schema: str, run: Callable, shapes: Callable) -> Callable:
    """The operator `schema` declares, computed by `run` on the processor.

    shapes: as `run`, but makes the results empty; torch.compile asks it instead.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, run, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default
