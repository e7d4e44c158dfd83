"""Text to token ids and back, and conversations to token ids and back. Nothing here knows of tensors or models.

Start at `tokenizer.py` for what a tokenizer offers, at `load.py` for files, at `chat.py` for conversations.
"""

from statewell.text.chat import Chat, ChatTemplate, Message, chat_from_json
from statewell.text.load import load_tokenizer, tokenizer_from_json
from statewell.text.reply import ToolCall
from statewell.text.templates import chat_template
from statewell.text.tokenizer import ByteTokenizer, Specials, Tokenizer

__all__ = [
    "ByteTokenizer",
    "Chat",
    "ChatTemplate",
    "Message",
    "Specials",
    "Tokenizer",
    "ToolCall",
    "chat_from_json",
    "chat_template",
    "load_tokenizer",
    "tokenizer_from_json",
]
