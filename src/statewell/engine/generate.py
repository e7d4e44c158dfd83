"""One prompt in, a stream of tokens out: the short loop around a model, its memory, a sampler and text.

Text is met only here, at the edge: the model takes ids, the sampler takes logits, `TextStream` makes text.
Batches, scheduling and shared prefixes are no part of it. Start at `generate`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from statewell.engine.sampler import generator_of, sample
from statewell.engine.sampling import Sampling
from statewell.engine.text_stream import TextStream
from statewell.errors import LimitError, RequestError
from statewell.memory.store import DTYPE_NAMES

if TYPE_CHECKING:
    from statewell.memory.model import ModelMemory
    from statewell.models.backbone import LanguageModel
    from statewell.text import Tokenizer

# A prompt goes in by pieces of this many tokens, so that logits and activations stay bounded whatever its
# length.
PIECE = 512


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What a finished generation took.

    tokens: generated ones. tokens_per_s: passes of one token each after the prompt, over their time; None
    when there was none. prefill_tokens_per_s: the prompt's tokens over its time. used_bytes, reserved_bytes:
    of the memory at the end. dtypes: of the memory's tensors, as in "fp32".
    """

    tokens: int
    prompt_tokens: int
    tokens_per_s: float | None
    prefill_tokens_per_s: float
    used_bytes: int
    reserved_bytes: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One generated token.

    text: what became certain with it, often '' (a character or a possible stop string is unfinished).
    finish_reason, on the last event only: "length" (max_tokens reached), "stop" (a stop string began, or the token is
    one of the tokenizer's ends; the text of either is left out) or "context" (the model's own limit). statistics: on
    the last event only.
    """

    text: str
    token: int
    finish_reason: str | None = None
    statistics: Statistics | None = None


def generate(
    model: LanguageModel,
    prompt: str | Sequence[int],
    *,
    max_tokens: int = 64,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    memory: ModelMemory | None = None,
) -> Iterator[TokenEvent]:
    """Continue `prompt`, one event for each new token.

    Args:
        prompt: text, or token ids. Text into an empty memory starts with what the tokenizer opens a prompt with,
            if anything. An empty one starts from its separator between documents, one NUL byte for the models made
            here.
        max_tokens: at most this many new tokens, at least 1.
        sampling: how tokens are chosen; None is `Sampling()`.
        stop: text ends before the place where any of these first begins.
        memory: of one row, continued and changed; None starts an empty one. It takes in the prompt and every
            new token but the last, so a continuation starts with that one.

    Everything that can be refused is refused by this call, before the memory changes: RequestError for values
    out of range, LimitError when the prompt does not fit the model's context.
    """
    if max_tokens < 1:
        raise RequestError(f"max_tokens is {max_tokens}, it must be 1 or more.")
    if model.tokenizer is None:
        raise RequestError(
            f"{model.config.name} has no tokenizer, so its tokens are no text; call model(ids, memory) instead."
        )
    stream = TextStream(model.tokenizer.decode_bytes, (stop,) if isinstance(stop, str) else stop)
    ids = _prompt_ids(model.tokenizer, model.config.vocab, prompt, memory)
    room = _room(model, ids, memory)
    # A memory of the caller's must not come to hold inference tensors: later passes in autograd could not
    # write them.
    guard = torch.inference_mode if memory is None else torch.no_grad
    if memory is None:
        with guard():
            memory = model.new_memory(rows=1)
    passes = _Passes(model=model, memory=memory, guard=guard)
    ends = model.tokenizer.specials.ends
    return _events(passes, ids, stream, sampling or Sampling(), max_tokens=max_tokens, room=room, ends=ends)


@dataclass
class _Pace:
    """Tokens taken in and the time it took."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(kw_only=True)
class _Passes:
    """The model's passes over one memory, timed without what the reader of the events does in between."""

    model: LanguageModel
    memory: ModelMemory
    guard: type[torch.inference_mode] | type[torch.no_grad]
    prefill: _Pace = field(default_factory=_Pace)
    decode: _Pace = field(default_factory=_Pace)

    def take(self, ids: Sequence[int], pace: _Pace) -> torch.Tensor:
        """Take `ids` in by pieces, counted in `pace`; the logits [vocab] after the last one, on the CPU."""
        began = time.perf_counter()
        device = next(self.model.parameters()).device
        # Not around the generator's yields, where the mode would leak into the caller's code.
        with self.guard():
            row = torch.tensor([list(ids)], dtype=torch.int64, device=device)  # [1, T]
            logits = [self.model(piece, self.memory)[0, -1] for piece in row.split(PIECE, dim=1)][-1].cpu()
        pace.tokens += len(ids)
        pace.seconds += time.perf_counter() - began
        return logits

    def statistics(self, tokens: int) -> Statistics:
        """The figures so far, for `tokens` generated ones."""
        return Statistics(
            tokens=tokens,
            prompt_tokens=self.prefill.tokens,
            tokens_per_s=self.decode.per_s if self.decode.tokens else None,
            prefill_tokens_per_s=self.prefill.per_s,
            used_bytes=self.memory.used(),
            reserved_bytes=self.memory.reserved(),
            dtypes=tuple(sorted({DTYPE_NAMES[tensor.dtype] for tensor in self.memory.tensors().values()})),
        )


def _events(
    passes: _Passes,
    ids: Sequence[int],
    stream: TextStream,
    sampling: Sampling,
    *,
    max_tokens: int,
    room: int | None,
    ends: frozenset[int],
) -> Iterator[TokenEvent]:
    generator = generator_of(sampling)
    logits = passes.take(ids, passes.prefill)
    for count in range(1, max_tokens + 1):
        token = sample(logits, sampling, generator)
        ended = token in ends
        text = "" if ended else stream.push([token])
        reason = "stop" if ended else _finish_reason(stream, count, max_tokens, room)
        if reason is not None:
            text += stream.finish()
            # Held text may turn out to be a stop string only now that nothing can follow it.
            reason = "stop" if stream.stopped else reason
            yield TokenEvent(text=text, token=token, finish_reason=reason, statistics=passes.statistics(count))
            return
        yield TokenEvent(text=text, token=token)
        logits = passes.take([token], passes.decode)


def _finish_reason(stream: TextStream, count: int, max_tokens: int, room: int | None) -> str | None:
    if stream.stopped:
        return "stop"
    if count == max_tokens:
        return "length"
    # The last of `count` tokens has not been taken in yet: with `room` for count - 1 there is no place for
    # it.
    return "context" if room is not None and count > room else None


def _prompt_ids(tokenizer: Tokenizer, vocab: int, prompt: str | Sequence[int], memory: ModelMemory | None) -> list[int]:
    if len(prompt) == 0:
        if memory is not None and int(memory.lengths.max()) > 0:
            raise RequestError("The prompt is empty but the memory is not; continue with the last token it gave.")
        return [tokenizer.separator]
    if isinstance(prompt, str):
        begins = memory is None or int(memory.lengths.max()) == 0
        return [*(tokenizer.specials.opening if begins else ()), *tokenizer.encode(prompt)]
    wrong = [token for token in prompt if not 0 <= token < vocab]
    if wrong:
        raise RequestError(f"Token id {wrong[0]} of the prompt is not in this model's vocabulary, 0 to {vocab - 1}.")
    return list(prompt)


def _room(model: LanguageModel, ids: Sequence[int], memory: ModelMemory | None) -> int | None:
    """How many tokens the context holds after the prompt, None without a limit."""
    if memory is not None and len(memory.lengths) != 1:
        raise RequestError(f"The memory has {len(memory.lengths)} rows; generate continues exactly one.")
    if model.config.context is None:
        return None
    held = 0 if memory is None else int(memory.lengths[0])
    room = model.config.context - held - len(ids)
    if room < 0:
        before = f" after the {held:,} already in memory" if held else ""
        raise LimitError(
            f"The prompt is {len(ids):,} tokens{before}; {model.config.name} holds at most "
            f"{model.config.context:,}: shorten it by {-room:,} tokens, or use a model without a limit."
        )
    return room
