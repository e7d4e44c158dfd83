"""Tokens guessed ahead from the text itself: what followed the last few tokens when they stood there before.

Source: prompt lookup decoding, A. Saxena 2023. A guess only saves passes, it never changes a token: every guessed token
is scored by the model and kept only where it is what would have been chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2  # tokens that have to recur
SEARCHED = 4096  # back from the end


def guess(ids: Sequence[int], most: int) -> list[int]:
    """At most `most` tokens to follow `ids`, after the longest recurring ending; the latest place wins."""
    recent = list(ids[-SEARCHED:])
    for length in range(LONGEST, SHORTEST - 1, -1):
        if len(recent) <= length:
            continue
        ending = recent[-length:]
        for start in range(len(recent) - length - 1, -1, -1):
            if recent[start : start + length] == ending:
                return recent[start + length : start + length + most]
    return []
