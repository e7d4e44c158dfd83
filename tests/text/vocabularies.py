"""Small tokenizer folders of every format, made here; the text they were merged on is this file's own kind of prose."""

from __future__ import annotations

import base64
import json
from pathlib import Path

KIMI_NAMES = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>", 17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
K3_NAMES = {
    0: "[BOS]", 1: "[EOS]", 2: "<|end_of_msg|>", 3: "<|open|>", 4: "<|close|>", 5: "<|sep|>", 6: "[start_header_id]",
    7: "[end_header_id]", 9: "[EOT]", 18: "<|media_begin|>", 254: "[UNK]", 255: "[PAD]",
}  # fmt: skip
WORDS = ("the", "message", "role", "user", "assistant", "and", "in", "er", "hello", "world", "é", "汉", "字")


def write(folder: Path, **documents: object) -> Path:
    """Files named by keyword, `__` for the dot: JSON for an object, bytes and text as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        path = folder / name.replace("__", ".")
        if isinstance(document, bytes):
            path.write_bytes(document)
        else:
            path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return folder


def letters() -> dict[int, str]:
    """GPT-2's letter for each byte, as its encoder defines it."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    found = {byte: chr(byte) for byte in visible}
    for byte in range(256):
        if byte not in found:
            found[byte] = chr(256 + len(found) - len(visible))
    return found


def grown(first: list[str], words: list[list[str]]) -> tuple[list[str], list[tuple[str, str]]]:
    """A vocabulary from `first` that spells every word by pairs, and the pairs."""
    vocabulary, merges = list(first), []
    for word in words:
        left = word[0]
        for right in word[1:]:
            if left + right not in vocabulary:
                vocabulary.append(left + right)
                merges.append((left, right))
            left += right
    return vocabulary, merges


def added(number: int, content: str, special: bool = True) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **flags}


def byte_bpe() -> tuple[dict[str, int], list[tuple[str, str]]]:
    table = letters()
    words = [[table[b] for b in text.encode()] for word in WORDS for text in (word, " " + word)]
    vocabulary, merges = grown(list(table.values()), words)
    return {token: number for number, token in enumerate([*vocabulary, "<|endoftext|>"])}, merges


def gpt2(folder: Path) -> Path:
    """vocab.json and merges.txt, and a tokenizer_config.json that names nothing, as GPT-2's folder has."""
    vocab, merges = byte_bpe()
    lines = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    config = {"vocab_size": len(vocab), "bos_token_id": len(vocab) - 1, "eos_token_id": len(vocab) - 1}
    return write(
        folder, vocab__json=vocab, merges__txt=lines, tokenizer_config__json={"model_max_length": 1024},
        config__json=config,
    )  # fmt: skip


def byte_document() -> dict[str, object]:
    vocab, merges = byte_bpe()
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = len(vocab) - 1
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "added_tokens": [added(end, "<|endoftext|>"), added(end + 1, "<think>", special=False),
                         added(end + 2, "    ", special=False), added(end + 3, "<|im_start|>")],
        "post_processor": level, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": [list(m) for m in merges]},
    }  # fmt: skip


def byte_level(folder: Path) -> Path:
    """A tokenizer.json with added tokens of all sorts: special, marked by brackets only, and plain spaces."""
    return write(folder, tokenizer__json=byte_document(), tokenizer_config__json={"eos_token": "<|endoftext|>"})


def sentencepiece_document() -> dict[str, object]:
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    first += sorted(set("▁" + "".join(WORDS)))
    vocabulary, merges = grown(first, [list("▁" + word) for word in WORDS])
    template = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "added_tokens": [added(number, first[number]) for number in range(3)],
        "post_processor": {"type": "TemplateProcessing", "single": template, "pair": template,
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "vocab": {token: number for number, token in enumerate(vocabulary)},
                  "merges": [list(pair) for pair in merges]},
    }  # fmt: skip


def sentencepiece(folder: Path) -> Path:
    """A tokenizer.json like Llama's and Mistral's, which the fla models use: ▁ for space, bytes for the unknown."""
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    return write(folder, tokenizer__json=sentencepiece_document(), tokenizer_config__json=config)


def ranks() -> list[bytes]:
    found = [bytes([byte]) for byte in range(256)]
    for word in WORDS:
        for text in (word.encode(), b" " + word.encode()):
            for end in range(2, len(text) + 1):
                if text[:end] not in found:
                    found.append(text[:end])
    return found


def tiktoken_lines(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def kimi(folder: Path, names: dict[int, str] = KIMI_NAMES) -> Path:
    """tiktoken.model with its reserved ids named as Kimi Linear names them, or as K3 does."""
    tokens = ranks()
    first = len(tokens)
    decoder = {str(first + at): {"content": name, "special": True} for at, name in names.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
              "unk_token": "[UNK]", "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
              "chat_template": "{{ raise_exception('never run') }}"}  # fmt: skip
    model = {"vocab_size": first + 256, "eos_token_id": first + 2, "pad_token_id": first + 255}
    return write(folder, tiktoken__model=tiktoken_lines(tokens), tokenizer_config__json=config, config__json=model)


def kimi_k3(folder: Path) -> Path:
    return kimi(folder, K3_NAMES)


FORMATS = {"gpt2": gpt2, "byte_level": byte_level, "sentencepiece": sentencepiece, "kimi": kimi, "kimi_k3": kimi_k3}
