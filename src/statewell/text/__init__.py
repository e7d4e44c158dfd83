"""Text to token ids and back. Start at `tokenizer.py`; nothing here knows of tensors or models."""

from statewell.text.tokenizer import ByteTokenizer, Tokenizer, tokenizer_from_json

__all__ = ["ByteTokenizer", "Tokenizer", "tokenizer_from_json"]
