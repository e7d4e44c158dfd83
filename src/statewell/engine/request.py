"""What the engine is asked for and what it answers: token ids and numbers, no text, no tensors. Start at `Request`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from statewell.engine.constraint import Constraint
from statewell.engine.sampling import Sampling
from statewell.errors import RequestError

FinishReason = Literal["stop", "length", "context", "cancelled", "error"]
MOST_CHOICES = 128
MOST_LOGPROBS = 20


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt and how to continue it.

    prompt: token ids, at least one. max_tokens: new ones per choice; 0 only scores the prompt. sampling: how tokens are
    chosen. choices: continuations of the one prompt, each with its own random numbers (seed + its place). beams: more
    than 1 searches for the `choices` likeliest continuations with that many beams instead of sampling. stop: token ids
    that end a choice. logprobs: so many alternatives with each token, None for no log-probabilities at all. echo: the
    prompt's own log-probabilities too. owner: who may reuse what this leaves behind. priority: higher goes first, and
    may set lower ones aside. draft: at most so many tokens guessed ahead from repeated text, 0 for none.
    constraint: what the text must follow, at its beginning; each choice goes on from a fork of it. Beams take none.
    Raises RequestError for values that cannot be.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 64
    sampling: Sampling = field(default_factory=Sampling)
    choices: int = 1
    beams: int = 1
    stop: frozenset[int] = frozenset()
    logprobs: int | None = None
    echo: bool = False
    owner: str = ""
    priority: int = 0
    draft: int = 0
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("The prompt holds no token; give at least one, such as the tokenizer's separator.")
        if self.max_tokens < 0 or (self.max_tokens == 0 and not self.echo):
            raise RequestError(f"max_tokens is {self.max_tokens}; give 1 or more, or 0 to score the prompt alone.")
        for name, value, most in (("choices", self.choices, MOST_CHOICES), ("beams", self.beams, MOST_CHOICES)):
            if not 1 <= value <= most:
                raise RequestError(f"{name} is {value}, it must be from 1 to {most}.")
        if self.beams > 1 and self.choices > self.beams:
            raise RequestError(f"{self.choices} choices of {self.beams} beams were asked for; ask for as many beams.")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise RequestError(f"logprobs is {self.logprobs}, it must be from 0 to {MOST_LOGPROBS}.")
        if self.beams > 1 and self.constraint is not None:
            raise RequestError(f"{self.beams} beams under a constraint were asked for; ask for 1, or leave it out.")
        if self.draft < 0:
            raise RequestError(f"draft is {self.draft}, it must be 0 or more.")

    @property
    def rows(self) -> int:
        """Conversations it runs at a time."""
        return max(self.choices, self.beams)

    @property
    def longest(self) -> int:
        """Tokens each of them holds at most."""
        return len(self.prompt) + self.max_tokens


@dataclass(frozen=True)
class Logprobs:
    """A token's natural log-probability under the model itself, and the likeliest ones with theirs, best first."""

    token: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """How much of a prompt was in memory already.

    tokens: so many were not read again. missed: why not more, None when all but the last was: "nothing held" (no
    earlier text of this owner begins so), "diverged at token N", "retokenised" (the same text in other tokens),
    "evicted" (it was let go to make room), "no state at token N" (states are kept at some tokens only; N is how far
    the text agreed).
    """

    tokens: int
    missed: str | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of a request: of its prompt, of those reused, and new ones of all choices."""

    prompt: int
    reuse: Reuse
    generated: int


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One new token of one choice of a request, or the end of one without a token.

    token: None where the choice ended before it. finish: on a choice's last event. usage: on a request's last event.
    prompt_logprobs: on a request's first event when `echo` was asked for; None for its first token, which nothing
    predicts. error: one plain sentence, where finish is "error".
    """

    request: int
    choice: int
    token: int | None
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """What the engine holds now.

    used, reserved: bytes of memory by kind (slots, pages, held). running, waiting, set_aside: requests. rows: in use.
    """

    used: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    set_aside: int = 0
    rows: int = 0
