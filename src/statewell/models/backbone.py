"""The whole forward pass of all six: embed, thread the stream through the blocks, norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statewell.config.layers import ModelConfig
from statewell.config.memory import MemorySpec
from statewell.errors import LimitError, ShapeError
from statewell.kernels.product import product
from statewell.memory.base import Memory
from statewell.memory.model import ModelMemory
from statewell.memory.paged import PagedMemory
from statewell.memory.segments import Segments
from statewell.memory.store import DTYPE_NAMES, NothingKept, RowStore
from statewell.models.block import Block
from statewell.models.parts import Embedding, Linear, norm
from statewell.models.stream import Stream, site, start
from statewell.text.tokenizer import Tokenizer

RunBlock = Callable[[Block, Stream, Memory[Any], Segments], Stream]


def _run(block: Block, stream: Stream, memory: Memory[Any], segments: Segments) -> Stream:
    return block(stream, memory, segments)


def _recompute(block: Block, stream: Stream, memory: Memory[Any], segments: Segments) -> Stream:
    """Keep only the block's input and run it again in backward."""
    return checkpoint(block, stream, memory, segments, use_reentrant=False)


class LanguageModel(nn.Module):
    """ids [B, T] -> logits [B, T, vocab].

    config: what the model is. recompute: keep one stream per block in training and run blocks again in backward.
    `tokenizer` is set by whoever builds or loads the model.
    """

    def __init__(self, config: ModelConfig, recompute: bool = False) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.embedding = Embedding(config.vocab, config.width)
        self.positions = None if config.positions is None else Embedding(config.positions, config.width)
        self.blocks = nn.ModuleList(Block(config, index) for index in range(len(config.layers)))
        self.output_site = site(config.stream, config.width, config.norm.eps, closes=False)
        self.norm = norm(config.norm, config.width)
        self.head = None if config.tied else Linear(config.width, config.vocab)
        self._run_block: RunBlock = _recompute if recompute else _run

    def forward(self, ids: Tensor, memory: ModelMemory | None = None) -> Tensor:
        """Logits of every next token. With a memory, row b continues memory row b, and the memory has taken the ids in;
        without one nothing is kept. Raises ShapeError for ids that are no [B, T] of known tokens, LimitError past the
        context.
        """
        segments = self._segments(ids, memory)
        memories = self._no_memories() if memory is None else memory.layers
        hidden = self.hidden(ids.reshape(1, -1), memories, segments)
        return self.logits(hidden).view(*ids.shape, -1)

    def hidden(self, ids: Tensor, memories: Sequence[Memory[Any]], segments: Segments) -> Tensor:
        """ids [1, T] packed as `segments` -> the last norm's output, [1, T, D]."""
        embedded = self.embedding(ids, self.compute_dtype)
        if self.positions is not None:
            embedded = embedded + self.positions(segments.positions(ids.device), self.compute_dtype)
        stream: Any = start(self.config.stream, embedded)  # its kind and the sites' were chosen together
        for block, memory in zip(self.layers, memories, strict=True):
            stream = self._run_block(block, stream, memory, segments)
        return self.norm(stream.read(self.output_site))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] -> [..., vocab]."""
        if self.head is None:
            return product(hidden, self.embedding.weight.to(hidden.dtype))
        return self.head(hidden)

    def new_memory(self, rows: int, capacity: int | None = None) -> ModelMemory:
        """An empty memory of `rows` conversations; `capacity` tokens are reserved per row, or pages as it grows.

        Matrix states are at least fp32; caches have the activations' dtype. Raises LimitError for no rows, or a
        capacity
        past the model's context.
        """
        if rows < 1:
            raise LimitError(f"a memory of {rows} rows holds nothing; ask for at least 1.")
        limit = self.config.context
        if capacity is not None and limit is not None and capacity > limit:
            raise LimitError(
                f"a capacity of {capacity:,} tokens is past this model's limit of {limit:,}; ask for at most that."
            )
        device, mixers = self.embedding.weight.device, [block.mixer for block in self.layers]
        stores = [RowStore(spec, rows, device, capacity) for spec in self.memory_specs()]
        return ModelMemory([mixer.new_memory(store) for mixer, store in zip(mixers, stores, strict=True)])

    def new_paged_memory(self, rows: int) -> PagedMemory:
        """Room for `rows` conversations that come and go; dtypes as in `new_memory`. Raises LimitError for none."""
        if rows < 1:
            raise LimitError(f"a memory of {rows} rows holds nothing; ask for at least 1.")
        memory = PagedMemory(self.memory_specs(), rows, self.embedding.weight.device)
        mixers = [block.mixer for block in self.layers]
        memory.layers = tuple(m.new_memory(store) for m, store in zip(mixers, memory.stores, strict=True))
        return memory

    def memory_specs(self) -> list[MemorySpec]:
        """What each layer keeps of a row here: caches in the activations' dtype, states in at least fp32."""
        dtype = self.compute_dtype
        cache, state = DTYPE_NAMES[dtype], DTYPE_NAMES[torch.promote_types(dtype, torch.float32)]
        return [block.mixer.spec.memory(cache, state) for block in self.layers]

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return cast(list[Block], list(self.blocks))

    @property
    def compute_dtype(self) -> torch.dtype:
        """The activations' dtype: the weights', but at least fp32 on a CPU, where half-precision products can be 100x
        slower."""
        weight = self.embedding.weight
        return torch.promote_types(weight.dtype, torch.float32) if weight.device.type == "cpu" else weight.dtype

    def _no_memories(self) -> list[Memory[Any]]:
        return [block.mixer.new_memory(NothingKept()) for block in self.layers]

    def _segments(self, ids: Tensor, memory: ModelMemory | None) -> Segments:
        if ids.dim() != 2 or ids.numel() == 0:
            raise ShapeError(
                f"ids have shape {tuple(ids.shape)}; they must be [B, T] with at least one row and one token."
            )
        B, T = ids.shape
        lengths = (0,) * B if memory is None else tuple(memory.layers[0].lengths)
        if len(lengths) != B:
            raise ShapeError(
                f"{B} rows of ids do not match a memory of {len(lengths)} rows; give one row of ids per memory row."
            )
        longest, limit = max(lengths) + T, self.config.context
        if limit is not None and longest > limit:
            raise LimitError(
                f"{longest:,} tokens are past this model's limit of {limit:,}; use a shorter text or another model."
            )
        return Segments.equal(B, T, None if memory is None else tuple(range(B)), lengths)
