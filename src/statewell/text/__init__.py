"""Text to token ids and back, and conversations to token ids and back. Nothing here knows of tensors or models.

Start at `tokenizer.py` for what a tokenizer offers, at `load.py` for files, at `chat.py` for conversations.
"""

from statewell.text.load import load_tokenizer, tokenizer_from_json
from statewell.text.tokenizer import ByteTokenizer, Specials, Tokenizer

__all__ = ["ByteTokenizer", "Specials", "Tokenizer", "load_tokenizer", "tokenizer_from_json"]
