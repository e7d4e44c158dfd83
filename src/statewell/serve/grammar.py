"""JSON that follows a schema, token by token, through llguidance: the only file that knows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import llguidance
import numpy as np
import torch
from torch import Tensor

from statewell.errors import RequestError, StatewellError
from statewell.text.tokenizer import Tokenizer

_SPACE = r"[ \n]{0,16}"  # bounded, since a small model is happy to indent for ever
DEEPEST = 32  # a schema's nesting
LONGEST = 64 * 2**10  # bytes of a schema
# Half of the library's own where a request could make it work for seconds; a mask takes a few milliseconds at most.
_LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, max_lexer_states=50_000, initial_lexer_fuel=500_000)


class _Words:
    """A tokenizer as llguidance asks for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self._tokenizer = tokenizer
        controls = set(tokenizer.controls.values())
        self.tokens = [_bytes_of(tokenizer, token, controls) for token in range(tokenizer.vocab)]
        self.special_token_ids = sorted(controls | {end})
        self.eos_token_id = end

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(errors="replace") if isinstance(text, bytes) else text)


class Grammars:
    """Makes constraints for one tokenizer. end: the token that follows a finished text."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.end = end
        self._words = llguidance.LLTokenizer(_Words(tokenizer, end), eos_token=[end])  # pyright: ignore[reportArgumentType]

    def constraint(self, schema: Mapping[str, object]) -> JsonConstraint:
        """For JSON that follows `schema`; {"type": "object"} for any object. May take half a second.

        Raises RequestError for a schema that is too deep or too long, or cannot be followed.
        """
        require_shallow(schema, "The schema")
        text = json.dumps(schema)
        if len(text) > LONGEST:
            raise RequestError(f"The schema is {len(text):,} bytes, {LONGEST:,} is the most.")
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": _SPACE})
        matcher = llguidance.LLMatcher(self._words, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise RequestError(f"The schema cannot be followed: {matcher.get_error().splitlines()[0][:200]}.")
        return JsonConstraint(matcher)


class JsonConstraint:
    """One conversation's place in a grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> Tensor:
        """Token ids [n] that may come now. Raises StatewellError where the grammar became too much to follow."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if self._matcher.is_error() or not len(ids):
            raise StatewellError("The schema became too much to follow; give a simpler one.")
        return torch.from_numpy(ids)

    def push(self, token: int) -> None:
        self._matcher.consume_token(token)

    def fork(self) -> JsonConstraint:
        return JsonConstraint(self._matcher.deep_copy())


def require_shallow(value: object, what: str) -> None:
    """Raise RequestError, beginning with `what`, for JSON that nests deeper than DEEPEST."""
    level: Sequence[object] = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise RequestError(f"{what} nests deeper than {DEEPEST} levels; make it flatter.")


def _inside(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _bytes_of(tokenizer: Tokenizer, token: int, controls: set[int]) -> bytes:
    """What a token writes; ids of no text get a marker that no grammar allows."""
    if token in controls:
        return b"\xff" + tokenizer.decode_bytes([token])
    try:
        return tokenizer.decode_bytes([token])
    except RequestError:  # a hole in the vocabulary
        return b""
