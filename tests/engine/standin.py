"""A model whose every answer is known: it says a script, byte by byte, whatever it is given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from statewell.errors import LimitError
from statewell.text import ByteTokenizer


@dataclass(frozen=True)
class StandInConfig:
    """The part of a model's config that generating asks for."""

    name: str = "stand-in"
    vocab: int = 256
    context: int | None = None


class StandInMemory:
    """Counts tokens and notes the sizes of the pieces they came in."""

    def __init__(self, rows: int) -> None:
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        self.ids: list[int] = []
        self.pieces: list[int] = []

    def used(self) -> int:
        return int(self.lengths.sum())

    def reserved(self) -> int:
        return 128

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"k": torch.zeros(64, dtype=torch.bfloat16)}


class StandIn(torch.nn.Module):
    """Says `script`, starting over at its end; with `even` every byte is as likely as any other."""

    def __init__(self, script: bytes, context: int | None = None, even: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config, self.tokenizer = StandInConfig(context=context), ByteTokenizer()
        self._script, self._even = script, even
        self.prompt_length: int | None = None
        self.memories: list[StandInMemory] = []
        self.modes: list[tuple[bool, bool]] = []

    def new_memory(self, rows: int, capacity: int | None = None) -> StandInMemory:
        self.memories.append(StandInMemory(rows))
        return self.memories[-1]

    def forward(self, ids: torch.Tensor, memory: StandInMemory) -> torch.Tensor:
        B, T = ids.shape
        self.modes.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        if self.config.context is not None and int(memory.lengths.max()) + T > self.config.context:
            raise LimitError("past the context")
        memory.lengths += T
        memory.ids += ids[0].tolist()
        memory.pieces.append(T)
        logits = torch.zeros(B, T, self.config.vocab)
        if not self._even:
            said = len(memory.ids) - (self.prompt_length if self.prompt_length is not None else len(memory.ids))
            logits[:, -1, self._script[said % len(self._script)]] = 50.0
        return logits
