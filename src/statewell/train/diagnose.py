"""Where a run stopped being finite: the first layer in the order of computation whose numbers are not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


@torch.no_grad()
def first_layer_not_finite(model: nn.Module, ids: torch.Tensor) -> str | None:
    """The module, by its path, that first gives out a number that is not finite when `model` reads `ids`, or
    None.

    Modules are asked in the order in which they finish, so the answer is the innermost one. One more forward
    pass.
    """
    found: list[str] = []

    def watch(name: str):
        def look(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            if not found and not all(torch.isfinite(t).all() for t in _tensors(output)):
                found.append(name)

        return look

    hooks = [m.register_forward_hook(watch(name)) for name, m in model.named_modules() if name]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def last_gradient_not_finite(model: nn.Module) -> str | None:
    """The parameter nearest the output whose gradient is not finite, or None: backward met it first."""
    wrong = [n for n, p in model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all()]
    return wrong[-1] if wrong else None


def first_parameter_not_finite(model: nn.Module) -> str | None:
    """The first parameter that holds a number that is not finite, or None."""
    return next((name for name, p in model.named_parameters() if not torch.isfinite(p).all()), None)


def _tensors(output: object) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors(item)
