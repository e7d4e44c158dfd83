"""A config.json read field by field, so that no field goes unseen: one that would change the model is refused by its
name, one that changes nothing is listed.

Every family reads through `Fields`. Aliases are given as further names: a file may use either, and both if they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, TypeVar, cast

from statewell.config.load import Json
from statewell.errors import CheckpointError

T = TypeVar("T")

HIGHEST = 2**31 - 1  # of any size: two of them multiplied still fit in 64 bits
MOST_LAYERS = 10_000

# What Hugging Face configs carry and no released forward pass of ours depends on.
HARMLESS = frozenset(
    (
        *("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache"),
        *("task_specific_params", "return_dict", "return_dict_in_generate", "output_scores", "problem_type"),
        *("id2label", "label2id", "finetuning_task", "tokenizer_class", "prefix", "begin_suppress_tokens"),
        *("suppress_tokens", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "max_length"),
        *("min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty"),
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences", "chunk_size_feed_forward"),
        *("remove_invalid_values", "exponential_decay_length_penalty", "decoder_start_token_id", "sep_token_id"),
    )
)


class Fields:
    """One JSON object of a config.json. `path` names it in errors (`config.json`, `config.json: text_config`)."""

    def __init__(self, document: Mapping[str, Json], path: str) -> None:
        self.path = path
        self._document = document
        self._read: set[str] = set()
        self._harmless: set[str] = set()
        self._sections: dict[str, Fields] = {}

    def whole(self, *names: str, default: int | None = None, lowest: int = 1, highest: int = HIGHEST) -> int:
        """A whole number within its limits; required where there is no default."""
        value = self._value(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            self.refuse(names[0], f"is {short(value)}; it must be a whole number of {lowest:,} to {highest:,}")
        return value

    def optional_whole(self, *names: str) -> int | None:
        """A whole number of at least 1, or None where the field is null or absent."""
        return None if self._value(names, None, required=False) is None else self.whole(*names)

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number; required where there is no default."""
        value = self._value(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            self.refuse(names[0], f"is {short(value)}; it must be a number")
        return float(value)

    def optional_number(self, *names: str) -> float | None:
        """A finite number, or None where the field is null or absent."""
        return None if self._value(names, None, required=False) is None else self.number(*names)

    def flag(self, *names: str, default: bool | None = None) -> bool:
        """True or false; required where there is no default."""
        value = self._value(names, default)
        if not isinstance(value, bool):
            self.refuse(names[0], f"is {short(value)}; it must be true or false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """A string; required where there is no default."""
        value = self._value(names, default)
        if not isinstance(value, str):
            self.refuse(names[0], f"is {short(value)}; it must be a string")
        return value

    def optional_list(self, kind: type[T], *names: str) -> list[T] | None:
        """A list of whole numbers (kind int) or of strings (kind str), or None where the field is null or absent."""
        value = self._value(names, None, required=False)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, kind) for item in value):
            self.refuse(names[0], f"is not a list of {kind.__name__}")
        return cast("list[T]", value)

    def ids(self, name: str, vocab: int) -> tuple[int, ...]:
        """Token ids: a number, a list of them, or nothing. -1, which older tools wrote for none, is nothing."""
        value = self._value((name,), None, required=False)
        values = value if isinstance(value, list) else [] if value is None or value == -1 else [value]
        for item in values:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab:
                self.refuse(name, f"is {short(item)}; an id of this vocabulary is 0 to {vocab - 1:,}")
        return cast("tuple[int, ...]", tuple(values))

    def section(self, name: str) -> Fields:
        """An object inside this one; what it leaves unread is refused or listed with this one's."""
        value = self._value((name,), None)
        if not isinstance(value, dict):
            self.refuse(name, "is not an object")
        if name not in self._sections:
            self._sections[name] = Fields(value, f"{self.path}: {name}")
        return self._sections[name]

    def only(self, name: str, *offered: Json, why: str) -> None:
        """Refuse any value but those offered (or an absent field, or null); `why` ends the sentence of the refusal."""
        value = self._value((name,), None, required=False)
        if value is not None and not any(type(value) is type(one) and value == one for one in offered):
            self.refuse(name, f"is {short(value)}; {why}")

    def holds(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._document.get(name) is not None

    def harmless(self, *names: str) -> None:
        """Fields that change nothing here: listed, not refused."""
        self._harmless.update(names)

    def unread(self) -> tuple[str, ...]:
        """The fields that changed nothing, sorted. Raises CheckpointError for one that might: an unknown field that is
        not null, false or empty."""
        listed: list[str] = []
        for name, value in self._document.items():
            if name in self._read:
                continue
            if value and name not in HARMLESS | self._harmless and not name.startswith("_"):
                self.refuse(name, f"is {short(value)}, which statewell does not know; remove it if it changes nothing")
            listed.append(name)
        inner = [f"{key}.{name}" for key, section in self._sections.items() for name in section.unread()]
        return (*sorted(listed), *inner)

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise CheckpointError about one field."""
        raise CheckpointError(f"{self.path}: {name} {what}.")

    def _value(self, names: tuple[str, ...], default: Json, required: bool = True) -> Json:
        self._read.update(names)
        found = {name: self._document[name] for name in names if self._document.get(name) is not None}
        if not found:
            if default is None and required:
                self.refuse(names[0], "is missing; the model cannot be built without it")
            return default
        first, *others = found
        for other in others:
            if found[other] != found[first]:
                self.refuse(other, f"is {short(found[other])} and {first} is {short(found[first])}; they must agree")
        return found[first]


def short(value: Json) -> str:
    """A value as a message may show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
