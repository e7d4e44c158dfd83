"""The special ids of a tokenizer: as its files name them, as a model's config numbers them, as a run kept them.

Every id is held against the vocabulary before it is used. Start at `declared`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from statewell.errors import CheckpointError
from statewell.text.files import TokenizerFiles, parse_object
from statewell.text.tokenizer import Specials

# What the end of a text is called where no file says: GPT-2's folder, for one, names none.
END_NAMES = ("<|endoftext|>", "</s>", "[EOS]", "<eos>")
CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"


def named_tokens(files: TokenizerFiles) -> dict[str, str]:
    """What the files call their bos, eos, pad and unk tokens; tokenizer_config.json is asked first."""
    names: dict[str, str] = {}
    for file in (MAP, CONFIG):
        for part in ("bos", "eos", "pad", "unk"):
            entry = _document(files, file).get(f"{part}_token")
            if isinstance(entry, dict):
                entry = entry.get("content")
            if entry is not None and not isinstance(entry, str):
                raise CheckpointError(f"{files.path(file)}: {part}_token is no string; use another copy.")
            if entry is not None:
                names[part] = entry
    return names


def declared(files: TokenizerFiles, find: Callable[[str], int | None], opening: tuple[int, ...]) -> Specials:
    """The special ids as the files name them.

    find: the id of a token's name. opening: what the tokenizer's own rules put before a prompt; add_bos_token in
    tokenizer_config.json overrules them. Raises CheckpointError for a name that is no token, or when none is named that
    can stand between documents.
    """
    ids: dict[str, int] = {}
    for part, name in named_tokens(files).items():
        number = find(name)
        if number is None and part != "unk":
            raise CheckpointError(f"{files.path(CONFIG)}: {part}_token {name!r} is not in the vocabulary; correct it.")
        if number is not None:
            ids[part] = number
    if "eos" not in ids and (known := [name for name in END_NAMES if find(name) is not None]):
        ids["eos"] = cast(int, find(known[0]))
    separator = ids.get("eos", ids.get("bos"))
    if separator is None:
        raise CheckpointError(
            f"{files.path(CONFIG)} names no eos_token, and something must stand between documents; name one there."
        )
    add_bos = _document(files, CONFIG).get("add_bos_token")
    if isinstance(add_bos, bool):
        opening = (ids["bos"],) if add_bos and "bos" in ids else ()
    return Specials(
        separator=separator,
        opening=opening,
        ends=frozenset([ids["eos"]] if "eos" in ids else []),
        pad=ids.get("pad"),
    )


def config_ends(document: Mapping[str, object], path: str) -> frozenset[int]:
    """The ids at which a config.json or generation_config.json ends generation.

    Raises CheckpointError for a special id outside the config's own vocab_size.
    """
    text = document.get("text_config")
    layers = [document, *([cast(Mapping[str, object], text)] if isinstance(text, dict) else [])]
    size = next((layer["vocab_size"] for layer in layers if "vocab_size" in layer), None)
    if size is not None and (type(size) is not int or size < 1):
        raise CheckpointError(f"{path}: vocab_size is {size!r}, it must be a positive whole number; correct it.")
    ends: frozenset[int] = frozenset()
    for layer in layers:
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            ids = layer.get(key)
            ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
            for number in ids:
                if type(number) is not int or number < 0 or (size is not None and number >= cast(int, size)):
                    limit = "must not be negative" if size is None else f"ids go from 0 to {cast(int, size) - 1:,}"
                    raise CheckpointError(f"{path}: {key} is {number!r}, {limit}; correct it.")
            if key == "eos_token_id":
                ends |= frozenset(cast(list[int], ids))
    return ends


def require_fit(vocab: int, config: Mapping[str, object], where: str) -> None:
    """Raise CheckpointError when a tokenizer of `vocab` ids is larger than the vocab_size in `config`."""
    text = config.get("text_config")
    size = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    if isinstance(size, int) and vocab > size:
        raise CheckpointError(
            f"{where}: the tokenizer has ids up to {vocab - 1:,} and the model's vocab_size is {size:,}; "
            "the two are not of one model."
        )


def specials_from_json(document: object, vocab: int, where: str) -> Specials:
    """What `TokenizerFiles.to_json` wrote of the special ids. Raises CheckpointError for ids out of range."""
    fields = cast(dict[str, object], document) if isinstance(document, dict) else {}
    separator, pad = fields.get("separator"), fields.get("pad")
    opening, ends = fields.get("opening"), fields.get("ends")
    lists = [each for each in (opening, ends) if isinstance(each, list)]
    ids = [separator, *([] if pad is None else [pad]), *(item for each in lists for item in each)]
    if len(lists) < 2 or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise CheckpointError(f"{where}: the tokenizer's special ids are not ids in [0, {vocab:,}); use another copy.")
    return Specials(
        separator=cast(int, separator),
        opening=tuple(cast(list[int], opening)),
        ends=frozenset(cast(list[int], ends)),
        pad=cast(int | None, pad),
    )


def _document(files: TokenizerFiles, name: str) -> dict[str, object]:
    return parse_object(files.contents[name], files.path(name)) if name in files.contents else {}
