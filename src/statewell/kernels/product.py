"""The product of tokens and a weight, where torch's own choice is slow: a few tokens, as decoding has them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# oneDNN's product takes 20 us more to begin, so weights below this are left to torch's own. From here on, with 16
# tokens and two threads, it takes 0.36 (GPT-2's head) to 0.8 of the time; with one token torch's own is the best.
LEAST_WEIGHTS, LEAST_TOKENS = 2**19, 2
_HAS_ONEDNN = torch.backends.mkldnn.is_available()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., D] times weight [out, D], plus bias [out]: [..., out], all in one dtype. Sums are in that dtype.

    Which code runs depends on whether gradients are asked for, on the dtype, and on the numbers of tokens and weights.
    """
    if _for_onednn(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def _for_onednn(x: Tensor, weight: Tensor) -> bool:
    if not _HAS_ONEDNN or x.dtype is not torch.float32 or x.device.type != "cpu":
        return False
    if weight.numel() < LEAST_WEIGHTS or x.numel() < LEAST_TOKENS * weight.shape[1]:
        return False
    # it has no gradient, and a tracer makes its own choice
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()
