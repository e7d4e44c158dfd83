"""The byte tokenizer as files that others read: a byte-level BPE of 256 symbols and no merges.

Id 0, the NUL that stands between documents, is the control token <|endoftext|> there: a NUL inside a text is dropped.
"""

from __future__ import annotations

import json

SEPARATOR = "<|endoftext|>"
_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized")
# GPT-2's printable stand-ins: these bytes stand for themselves, the others for the characters from 256 on, in order
_THEMSELVES = frozenset((*range(33, 127), *range(161, 173), *range(174, 256)))


def byte_tokenizer_files() -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json` in which every id but 0 is the byte it stands for."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": SEPARATOR, "special": True, **dict.fromkeys(_OPTIONS, False)}],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: number for number, symbol in enumerate(_symbols())},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SEPARATOR,
        "clean_up_tokenization_spaces": False,
    }
    documents = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    return {name: (json.dumps(one, indent=1) + "\n").encode() for name, one in documents.items()}


def _symbols() -> list[str]:
    others = iter(range(256, 512))
    symbols = [chr(byte if byte in _THEMSELVES else next(others)) for byte in range(256)]
    return [SEPARATOR, *symbols[1:]]
