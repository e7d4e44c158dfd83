"""What one server serves, given to every route."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from statewell.serve.failures import RefusedError
from statewell.serve.grammar import Grammars
from statewell.serve.limits import Limits
from statewell.serve.metrics import Metrics
from statewell.serve.recent import Recent
from statewell.serve.service import Service
from statewell.serve.sessions import Sessions
from statewell.serve.words import Words
from statewell.text.chat import ChatTemplate
from statewell.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Served:
    """name: the model's, as clients call it. context: tokens it can hold, None without a limit. draft: tokens guessed
    ahead. began: Unix time.
    """

    name: str
    context: int | None
    device: torch.device
    tokenizer: Tokenizer
    template: ChatTemplate
    grammars: Grammars
    words: Words
    service: Service
    metrics: Metrics
    sessions: Sessions
    recent: Recent
    limits: Limits
    began: int
    draft: int = 0

    def require_model(self, name: str | None) -> None:
        """Raises RefusedError for another model than this one; `-` and `_` are the same."""
        if name is not None and name.replace("-", "_") != self.name.replace("-", "_"):
            raise RefusedError(404, "model_not_found", f"There is no model {name!r} here, only {self.name}.", "model")
