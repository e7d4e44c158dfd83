"""Every initial value, in one file. Weights are drawn from a private generator: the global one is not touched.

Sources: GPT-2 (normal 0.02, residual projections over sqrt(2 L)); flash-linear-attention and transformers for A_log,
dt_bias
and convolutions; the K3 report for A_log = 0 and AttnRes queries = 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from statewell.config.mixers import KDASpec
from statewell.models.backbone import LanguageModel
from statewell.models.convolution import ShortConv
from statewell.models.ffn.experts import DenseExperts
from statewell.models.ffn.mlp import MLP, GatedMLP
from statewell.models.ffn.router import SigmoidRouter, SoftmaxRouter
from statewell.models.mixers.gated_delta import GatedDelta
from statewell.models.mixers.kda import KDA
from statewell.models.parts import Embedding, LayerNorm, Linear, OffsetRMSNorm, RMSNorm
from statewell.models.stream import AttnResSite

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4  # the initial step sizes whose inverse softplus dt_bias is


@torch.no_grad()
def initialise(model: LanguageModel, seed: int) -> None:
    """Set every parameter and buffer of `model` from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    std = model.config.init_std
    residual_std = std / math.sqrt(2 * len(model.layers))
    for module in model.modules():
        _set_values(module, std, generator)
    for block in model.layers:
        _normal(block.mixer.o_proj.weight, residual_std, generator)
        for inner in block.ffn.modules():
            if isinstance(inner, MLP | GatedMLP):
                _normal(inner.down_proj.weight, residual_std, generator)


def _set_values(module: nn.Module, std: float, generator: torch.Generator) -> None:
    match module:
        case Linear() | Embedding():
            _normal(module.weight, std, generator)
            if isinstance(module, Linear) and module.bias is not None:
                module.bias.zero_()
        case LayerNorm():
            module.weight.fill_(1)
            module.bias.zero_()
        case RMSNorm():
            module.weight.fill_(1)
        case OffsetRMSNorm():
            module.weight.zero_()
        case ShortConv():
            bound = module.weight.shape[1] ** -0.5
            _uniform(module.weight, -bound, bound, generator)
            if module.bias is not None:
                module.bias.zero_()
        case AttnResSite():
            module.norm_weight.fill_(1)
            module.query.zero_()
        case SigmoidRouter():
            _normal(module.weight, std, generator)
            module.correction_bias.zero_()
        case SoftmaxRouter():
            _normal(module.weight, std, generator)
        case DenseExperts():
            for weight in (module.w1, module.w3, module.w2):
                _normal(weight, std, generator)
        case GatedDelta():
            _uniform(module.A_log, 0.01, 16, generator)
            module.A_log.log_()
            _inverse_softplus_steps(module.dt_bias, generator)
        case KDA():
            _kda_decay(module.A_log, module.spec, generator)
            _inverse_softplus_steps(module.dt_bias, generator)
        case _:
            # a module without parameters of its own
            return


def _kda_decay(A_log: Tensor, spec: KDASpec, generator: torch.Generator) -> None:
    if spec.lower_bound is None:
        _uniform(A_log, 1, 16, generator)
        A_log.log_()
    else:
        A_log.zero_()


def _inverse_softplus_steps(dt_bias: Tensor, generator: torch.Generator) -> None:
    """dt_bias such that softplus(dt_bias) is log-uniform between DT_MIN and DT_MAX."""
    _uniform(dt_bias, math.log(DT_MIN), math.log(DT_MAX), generator)
    step = dt_bias.exp().clamp(min=DT_FLOOR)
    dt_bias.copy_(step + torch.log(-torch.expm1(-step)))


def _normal(tensor: Tensor, std: float, generator: torch.Generator) -> None:
    tensor.copy_(torch.empty(tensor.shape).normal_(0, std, generator=generator))


def _uniform(tensor: Tensor, low: float, high: float, generator: torch.Generator) -> None:
    tensor.copy_(torch.empty(tensor.shape).uniform_(low, high, generator=generator))
