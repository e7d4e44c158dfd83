"""What a family of checkpoints is: how its config.json is recognised, read and written. No weights here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from statewell.config.layers import ModelConfig
from statewell.config.load import Json
from statewell.formats.fields import Fields


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The ids a config.json gives a meaning to. bos, pad: or None. eos: any of them ends a text."""

    bos: int | None = None
    eos: tuple[int, ...] = ()
    pad: int | None = None


def token_ids(fields: Fields, vocab: int) -> TokenIds:
    """The bos, eos and pad ids. Raises CheckpointError for one outside the vocabulary."""
    bos, pad = (fields.ids(name, vocab) for name in ("bos_token_id", "pad_token_id"))
    return TokenIds(bos=bos[0] if bos else None, eos=fields.ids("eos_token_id", vocab), pad=pad[0] if pad else None)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One released layout.

    name: as `inspect` prints it. architectures: of the six, which ones it can hold. recognises: whether a config.json
    is of this family, from its fields alone. model_config: reads the fields into a config named after the family.
    config_json: the reverse; raises RequestError for a config the layout has no words for.
    model_config may leave fields unread: `families.describe` then refuses or lists them. token_ids: reads the ids,
    given the vocabulary's size.
    """

    name: str
    architectures: tuple[str, ...]
    recognises: Callable[[Mapping[str, Json]], bool]
    model_config: Callable[[Fields], ModelConfig]
    config_json: Callable[[ModelConfig], dict[str, Json]]
    token_ids: Callable[[Fields, int], TokenIds] = token_ids
