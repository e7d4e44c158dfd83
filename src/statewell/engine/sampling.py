"""How the next token is to be chosen: values and their limits. No torch here, since `--help` shows them.

`sampler.py` does the choosing, in the order repetition, presence and frequency penalty, bias, temperature, top_k,
top_p, min_p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from statewell.errors import RequestError

LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; by default from the whole distribution, a little sharpened."""

    # 0 takes the most likely token; 1 is the model's own distribution; any finite value >= 0.
    temperature: float = 0.8
    # Keep the k most likely tokens (>= 1); None keeps all.
    top_k: int | None = None
    # Keep the fewest tokens whose probabilities reach this sum, in (0, 1]; 1 keeps all.
    top_p: float = 1.0
    # Keep tokens at least this fraction as likely as the most likely one, in [0, 1); 0 keeps all.
    min_p: float = 0.0
    # The same seed gives the same text; 0 to 2^63 - 1.
    seed: int = 0
    # Divides the score of a token that the prompt or the text holds, where positive, and multiplies it otherwise
    # (arXiv:1909.05858); above 0, 1 changes nothing.
    repetition_penalty: float = 1.0
    # Taken off the score of every token that was generated before, once, and once per time; -2 to 2.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # Added to the scores of these token ids, -100 to 100.
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def as_is(self) -> bool:
        """Whether scores are taken as the model gives them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty, self.logit_bias) == (
            1,
            0,
            0,
            (),
        )

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise RequestError(
                f"temperature is {self.temperature}, it must be 0 or more and finite; "
                "0 takes the most likely token, 1 is the model's own distribution."
            )
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(f"top_k is {self.top_k}, it must be 1 or more; leave it out to keep all tokens.")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}, it must be above 0 and at most 1; 1 keeps all tokens.")
        if not 0 <= self.min_p < 1:
            raise RequestError(f"min_p is {self.min_p}, it must be 0 or more and below 1; 0 keeps all tokens.")
        if not 0 < self.repetition_penalty < math.inf:
            raise RequestError(
                f"repetition_penalty is {self.repetition_penalty}, it must be above 0; 1 changes nothing."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise RequestError(f"{name} is {getattr(self, name)}, it must be from -2 to 2; 0 changes nothing.")
        for token, bias in self.logit_bias:
            if not -100 <= bias <= 100:
                raise RequestError(f"The logit bias of token {token} is {bias}, it must be from -100 to 100.")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise RequestError(f"seed is {self.seed}, it must be a whole number from 0 to {LARGEST_SEED}.")
