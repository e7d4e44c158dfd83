"""Which chat format a model speaks: its tokenizer's markers tell, never a name or a template that came along."""

from __future__ import annotations

from statewell.text import kimi_chat, xtml
from statewell.text.chat import ChatTemplate
from statewell.text.plain_chat import PlainTemplate
from statewell.text.tokenizer import Tokenizer


def chat_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Kimi K3's format or Kimi Linear's where the tokenizer has every marker of it, else the plain one."""
    if all(marker in tokenizer.controls for marker in xtml.MARKERS):
        return xtml.XTMLTemplate(tokenizer)
    if all(marker in tokenizer.controls for marker in kimi_chat.MARKERS):
        return kimi_chat.KimiTemplate(tokenizer)
    return PlainTemplate(tokenizer)
