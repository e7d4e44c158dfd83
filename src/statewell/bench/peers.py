"""Other people's implementations, called as theirs are: the only file of the package that imports transformers or fla,
and only inside functions.

A peer answers for the operations it has, under our names and with our arguments. Two are no other people's: `torch`,
the same written plainly, and `reference`, our own kernels in plain torch. Start at `open_peer`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from statewell.bench.operations import EPS, OPERATIONS
from statewell.bench.plain_gpt2 import PlainGPT2
from statewell.config.layers import ModelConfig
from statewell.config.mixers import AttentionSpec
from statewell.errors import MissingExtraError, RequestError, nearest
from statewell.kernels.registry import use

Many = Callable[..., Tensor]
Step = Callable[..., tuple[Tensor, object]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a peer can be timed at.

    many: by operation, its tensors [B, T, ...] in our order -> o. longest: tokens past which `many` is not asked, since
    it keeps a state of every token. steps: by operation, one token of [B, 1, ...] and `state` -> o and the new state.
    gpt2: a model of the same shape as ours, ids [B, T] -> logits.
    """

    name: str
    many: Mapping[str, Many] = field(default_factory=dict)
    longest: float = math.inf
    steps: Mapping[str, Step] = field(default_factory=dict)
    gpt2: Callable[[ModelConfig], nn.Module] | None = None


def open_peer(name: str) -> Peer:
    """The peer of that name. Raises RequestError for an unknown one, MissingExtraError for one not installed."""
    if name not in _OPENERS:
        raise RequestError(f"'{name}' is not a peer; {nearest(name, PEERS)}")
    return _OPENERS[name]()


def _transformers() -> Peer:
    """The torch paths of transformers, as its models call them on a CPU: chunkwise over many tokens, else recurrent."""
    try:
        from transformers.models.kimi_linear import modeling_kimi_linear as kimi
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen
    except ImportError as missing:
        raise _missing("transformers", missing) from missing
    chunk, kda_chunk = qwen.torch_chunk_gated_delta_rule, kimi.chunk_kimi_delta_attention
    recurrent, kda_recurrent = qwen.torch_recurrent_gated_delta_rule, kimi.recurrent_kimi_delta_attention

    def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        """It has no delta rule without a gate: its gated one that never fades."""
        return chunk(q, k, v, torch.zeros_like(beta), beta, output_final_state=True)[0]

    def delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return recurrent(q, k, v, torch.zeros_like(beta), beta, initial_state=state, output_final_state=True)

    return Peer(
        name="transformers",
        many={
            "delta": delta,
            "gated_delta": lambda *x: chunk(*x, output_final_state=True)[0],
            "kda": lambda *x: kda_chunk(*x, output_final_state=True)[0],
        },
        steps={
            "delta": delta_step,
            "gated_delta": lambda *x, state: recurrent(*x, initial_state=state, output_final_state=True),
            "kda": lambda *x, state: kda_recurrent(*x, initial_state=state, output_final_state=True),
        },
        gpt2=_transformers_gpt2,
    )


def _transformers_gpt2(config: ModelConfig) -> nn.Module:
    """Its GPT-2 of our shape, without dropout, its attention by torch."""
    from transformers import GPT2Config, GPT2LMHeadModel

    heads = _attention(config).heads
    theirs = GPT2Config(
        vocab_size=config.vocab,
        n_positions=config.context or 0,
        n_embd=config.width,
        n_layer=len(config.layers),
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _Logits(GPT2LMHeadModel(theirs))


class _Logits(nn.Module):
    """Only the logits of a model that answers with more."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits


def _torch() -> Peer:
    """The same in plain torch, as one would write it."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        # one query attends to all that is kept: nothing to mask
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1).transpose(1, 2)

    def short_conv(x: Tensor, weight: Tensor) -> Tensor:
        D, W = weight.shape
        return F.conv1d(F.pad(x.transpose(1, 2), (W - 1, 0)), weight[:, None], groups=D).transpose(1, 2)

    def gated_rms_norm(x: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, EPS) * torch.sigmoid(gate)

    return Peer(
        name="torch",
        many={
            "attention": attention,
            "short_conv": short_conv,
            "rms_norm": lambda x, weight: F.rms_norm(x, weight.shape, weight, EPS),
            "gated_rms_norm": gated_rms_norm,
            "attn_res": _plain_attn_res,
            "experts": _plain_experts,
        },
        gpt2=_plain_gpt2,
    )


def _plain_attn_res(norm_weight: Tensor, proj_weight: Tensor, *sources: Tensor) -> Tensor:
    """Each token's softmax mix of `sources` [T, D], scored by one query over their normed values."""
    stacked = torch.stack(sources)
    scores = F.rms_norm(stacked, norm_weight.shape, norm_weight, EPS) @ proj_weight
    return (scores.softmax(0)[..., None] * stacked).sum(0)


def _plain_experts(x: Tensor, index: Tensor, weight: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    """One expert after the other, each on its tokens."""
    y = x.new_zeros(x.shape[0], w2.shape[1])
    for expert in range(w1.shape[0]):
        token, place = torch.where(index == expert)
        hidden = F.silu(x[token] @ w1[expert].T) * (x[token] @ w3[expert].T)
        y = y.index_add(0, token, hidden @ w2[expert].T * weight[token, place, None])
    return y


def _attention(config: ModelConfig) -> AttentionSpec:
    mixer = config.layers[0].mixer
    if not isinstance(mixer, AttentionSpec):
        raise RequestError(f"{config.name} is no GPT-2; only that is written twice.")
    return mixer


def _plain_gpt2(config: ModelConfig) -> nn.Module:
    return PlainGPT2(
        vocab=config.vocab,
        width=config.width,
        depth=len(config.layers),
        heads=_attention(config).heads,
        context=config.context or 0,
    )


FLA_LONGEST = 512


def _fla_naive() -> Peer:
    """fla's functions of one token after the other, which its own kernels are tested against."""

    def naive(module: str, function: str) -> Callable[..., tuple[Tensor, Tensor]]:
        return getattr(import_module(f"fla.ops.{module}.naive"), function)

    try:
        # without a GPU fla says on import that its kernels cannot run; these are none of them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            linear = naive("linear_attn", "naive_recurrent_linear_attn")
            delta = naive("delta_rule", "delta_rule_recurrence")
            gated_delta = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
            kda = naive("kda", "naive_recurrent_kda")
    except ImportError as missing:
        raise _missing("fla-naive", missing) from missing

    def delta_rule(*x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Its heads come before its tokens."""
        o, new = delta(*(part.transpose(1, 2) for part in x), initial_state=state)
        return o.transpose(1, 2), new

    def gated_rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """It takes beta before g."""
        return gated_delta(q, k, v, beta, g, initial_state=state, output_final_state=True)

    def kda_rule(*x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return kda(*x, initial_state=state, output_final_state=True)

    return Peer(
        name="fla-naive",
        many={
            "linear": lambda *x: linear(*x, normalize=True)[0],
            "delta": lambda *x: delta_rule(*x)[0],
            "gated_delta": lambda *x: gated_rule(*x)[0],
            "kda": lambda *x: kda_rule(*x)[0],
        },
        longest=FLA_LONGEST,
        steps={"delta": delta_rule, "gated_delta": gated_rule, "kda": kda_rule},
    )


def _reference() -> Peer:
    """Our operations on the backend that says what they mean."""

    def many(run: Many) -> Many:
        def on_reference(*x: Tensor) -> Tensor:
            with use("reference"):
                return run(*x)

        return on_reference

    return Peer(name="reference", many={operation.name: many(operation.ours) for operation in OPERATIONS})


_OPENERS: Mapping[str, Callable[[], Peer]] = {
    "transformers": _transformers,
    "torch": _torch,
    "fla-naive": _fla_naive,
    "reference": _reference,
}
PEERS = tuple(_OPENERS)
PACKAGES = {"transformers": "transformers", "fla-naive": "fla-core"}  # where a peer's code comes from


def _missing(peer: str, error: ImportError) -> MissingExtraError:
    return MissingExtraError(
        f"the peer '{peer}' is not installed ({error}); add it with: pip install 'statewell[peers]'."
    )
