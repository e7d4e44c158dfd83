"""From token ids to text that can be shown at once.

Owns two questions: is this character complete, and could this text be the beginning of a stop string? What is
unsure is held back until the next tokens, or `finish`, settle it, so nothing shown is ever taken back. How
ids become bytes is the tokenizer's business, how tokens are chosen is the sampler's. Start at
`TextStream.push`; `UntilStop` does the same for what is text already.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from statewell.errors import RequestError


class TextStream:
    """Text of one growing sequence of tokens, in pieces that never split a character or show a stop string.

    The pieces joined are the same however the bytes were cut into tokens: they are the whole text, ended
    before the place where a stop string first begins. Bytes that are no UTF-8 become U+FFFD, without waiting
    for more.
    """

    def __init__(self, decode_bytes: Callable[[Sequence[int]], bytes], stop: Sequence[str] = ()) -> None:
        """`decode_bytes` turns token ids into bytes; RequestError when a stop string is empty."""
        self._decode_bytes = decode_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._until = UntilStop(stop)

    @property
    def stopped(self) -> bool:
        """True once a stop string has been seen; from then on no text comes out."""
        return self._until.stopped

    def push(self, ids: Sequence[int]) -> str:
        """Take tokens in; return the text that is now certain, which may be ''."""
        return self._until.push(self._utf8.decode(self._decode_bytes(ids)))

    def finish(self) -> str:
        """The sequence has ended: return what was held back; an incomplete character comes out as U+FFFD."""
        return self._until.push(self._utf8.decode(b"", final=True)) + self._until.finish()


class UntilStop:
    """Growing text, shown as far as no stop string can begin in it."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """Raises RequestError when a stop string is empty."""
        if "" in stop:
            raise RequestError("A stop string is empty, it must hold at least one character; leave it out instead.")
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True once a stop string has been seen; from then on no text comes out."""
        return self._stopped

    def push(self, text: str) -> str:
        """Take text in; return what is now certain, which may be ''."""
        return self._settle(text)

    def finish(self) -> str:
        """The text has ended: return what was held back."""
        return self._settle("", final=True)

    def _settle(self, text: str, final: bool = False) -> str:
        if self._stopped:
            return ""
        held = self._held + text
        found = min((at for at in map(held.find, self._stop) if at >= 0), default=len(held))
        unsure = len(held) if final else self._first_beginning(held)
        cut = min(found, unsure)
        # A stop string that has ended but may prove to lie inside an earlier, longer one is not settled yet.
        self._stopped = found < len(held) and found <= unsure
        self._held = "" if self._stopped else held[cut:]
        return held[:cut]

    def _first_beginning(self, text: str) -> int:
        """Where the longest ending of `text` that is an unfinished stop string starts, or len(text)."""
        # `text[at:]` shorter than the stop string: a finished one is found by `find`, not held here.
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(s.startswith(text[at:]) for s in self._stop):
                return at
        return len(text)
