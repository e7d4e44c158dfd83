"""How the next token is to be chosen: values and their limits. No torch here, since `--help` shows them.

`sampler.py` does the choosing, in the order temperature -> top_k -> top_p -> min_p.
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
        if not 0 <= self.seed <= LARGEST_SEED:
            raise RequestError(f"seed is {self.seed}, it must be a whole number from 0 to {LARGEST_SEED}.")
