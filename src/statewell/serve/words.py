"""Single tokens written out, as log-probabilities name them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from statewell.engine.request import Logprobs
from statewell.errors import RequestError
from statewell.serve.reading import Said
from statewell.serve.shapes import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob
from statewell.text.tokenizer import Tokenizer

LEAST = -9999.0  # stands for minus infinity, which JSON has not


class Words:
    """Writes tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def bytes_of(self, token: int) -> bytes:
        """What a token writes; nothing where the model has ids that the tokenizer has not."""
        try:
            return self._tokenizer.decode_bytes([token])
        except RequestError:
            return b""

    def joined(self, tokens: Sequence[int]) -> bytes:
        """What tokens write one after the other."""
        return b"".join(self.bytes_of(token) for token in tokens)

    def name(self, token: int) -> str:
        """Its text; where that is no whole character, its bytes in the form OpenAI's API has for them."""
        raw = self.bytes_of(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def chat(self, said: Sequence[Said]) -> ChatLogprobs:
        """Of a piece of a reply."""
        return ChatLogprobs(
            content=[
                TokenLogprob(
                    **self._top(one.token, one.logprobs.token).model_dump(),
                    top_logprobs=[self._top(token, value) for token, value in one.logprobs.top],
                )
                for one in said
                if one.logprobs is not None
            ]
        )

    def _top(self, token: int, value: float) -> TopLogprob:
        return TopLogprob(token=self.name(token), logprob=max(value, LEAST), bytes=list(self.bytes_of(token)))

    def text(self, said: Sequence[tuple[int, Logprobs | None]], offsets: Offsets) -> TextLogprobs:
        """Of a piece of a continuation; tokens that nothing predicted have none."""
        counted = any(values is not None and values.top for _, values in said)
        return TextLogprobs(
            tokens=[self.name(token) for token, _ in said],
            token_logprobs=[None if values is None else max(values.token, LEAST) for _, values in said],
            top_logprobs=[self._tops(token, values) for token, values in said] if counted else None,
            text_offset=[offsets.take(self.bytes_of(token)) for token, _ in said],
        )

    def _tops(self, token: int, values: Logprobs | None) -> dict[str, float] | None:
        if values is None:
            return None
        tops = {self.name(other): max(value, LEAST) for other, value in values.top}
        # the one that was chosen is always among them
        return tops | {self.name(token): max(values.token, LEAST)}


class Offsets:
    """Where each token's text begins, in characters."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def take(self, raw: bytes) -> int:
        """The place of the next token, which writes `raw`."""
        at = self._characters
        self._characters += len(self._utf8.decode(raw))
        return at
