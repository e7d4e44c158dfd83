"""How a released file's tensors become a model's, and back: declarations, run in both directions.

A family lists rules over full names. A rule takes its sources from the file and gives its targets to the model; `write`
is the reverse. `coverage.resolve` proves, before a weight is read, that nothing is left over on either side.

Reading makes views where it can: the file is mapped, and what stays a view is never copied. A target that is many
tensors of the file side by side is given as an iterator, so that they are copied one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from statewell.kernels import ops
from statewell.plan.weights import MXFP4_GROUP

Pieces = Tensor | Iterator[Tensor]
Shape = tuple[int, ...]


class Form(Protocol):
    """One tensor's change of shape between file and model, both ways, as views."""

    def read(self, stored: Tensor) -> Tensor:
        """The file's tensor as the model has it."""
        ...

    def write(self, ours: Tensor) -> Tensor:
        """The model's tensor as the file has it."""
        ...

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        """Every shape the file may have for a tensor that is `ours` in the model; the first is what `write` makes."""
        ...


class AsIs:
    """The same in both."""

    def read(self, stored: Tensor) -> Tensor:
        return stored

    def write(self, ours: Tensor) -> Tensor:
        return ours

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        return (ours,)


class Transposed:
    """[in, out] in the file, [out, in] in the model: GPT-2's Conv1D. A transposed view, not a copy."""

    def read(self, stored: Tensor) -> Tensor:
        return stored.T

    def write(self, ours: Tensor) -> Tensor:
        return ours.T

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        return (ours[::-1],)


@dataclass(frozen=True)
class Unsqueezed:
    """The file has one more dimension, of size 1, at `dim`."""

    dim: int

    def read(self, stored: Tensor) -> Tensor:
        return stored.squeeze(self.dim)

    def write(self, ours: Tensor) -> Tensor:
        return ours.unsqueeze(self.dim)

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        return ((*ours[: self.dim], 1, *ours[self.dim :]),)


@dataclass(frozen=True)
class Vector:
    """A vector that the file may hold in other shapes: `write` makes the first of `shapes`, zeros after the values."""

    shapes: tuple[Shape, ...]
    entries: int

    def read(self, stored: Tensor) -> Tensor:
        return stored.flatten()[: self.entries]

    def write(self, ours: Tensor) -> Tensor:
        room = math.prod(self.shapes[0]) - len(ours)
        return torch.cat((ours, ours.new_zeros(room))).view(self.shapes[0]) if room else ours.view(self.shapes[0])

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        return self.shapes


@dataclass(frozen=True)
class Padded:
    """The file has `stored` entries along `dim`, zeros after the model's `entries`."""

    dim: int
    entries: int
    stored: int

    def read(self, stored: Tensor) -> Tensor:
        return stored.narrow(self.dim, 0, self.entries)

    def write(self, ours: Tensor) -> Tensor:
        shape = list(ours.shape)
        shape[self.dim] = self.stored - self.entries
        return torch.cat((ours, ours.new_zeros(shape)), dim=self.dim)

    def stored_shapes(self, ours: Shape) -> tuple[Shape, ...]:
        return ((*ours[: self.dim], self.stored, *ours[self.dim + 1 :]),)


class Rule(Protocol):
    """Sources in the file, targets in the model, and the way between them."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names in the file."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Names in the model."""
        ...

    @property
    def packed(self) -> bool:
        """Whether the sources are bytes (U8) instead of numbers."""
        ...

    def stored_shapes(self, ours: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
        """For each source, every shape it may have where the targets have the shapes `ours`."""
        ...

    def read(self, stored: Sequence[Tensor]) -> tuple[Pieces, ...]:
        """The targets, from the sources."""
        ...

    def write(self, ours: Sequence[Tensor]) -> Iterable[Tensor]:
        """The sources, from the targets."""
        ...


@dataclass(frozen=True)
class Rename:
    """One tensor under another name, in another form."""

    source: str
    target: str
    form: Form = field(default_factory=AsIs)
    packed: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def stored_shapes(self, ours: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
        yield self.form.stored_shapes(ours[0])

    def read(self, stored: Sequence[Tensor]) -> tuple[Pieces, ...]:
        return (self.form.read(stored[0]),)

    def write(self, ours: Sequence[Tensor]) -> Iterable[Tensor]:
        return (self.form.write(ours[0]),)


@dataclass(frozen=True)
class Split:
    """One tensor of the file whose rows are several of the model's: `groups` times, `sizes[i]` rows of target i.

    groups 1: the targets lie one after another, and each is a view. More: the file is ordered by head, and within a
    head by target.
    """

    source: str
    targets: tuple[str, ...]
    sizes: tuple[int, ...]
    groups: int = 1
    packed: bool = False
    form: Form = field(default_factory=AsIs)  # of each part

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    def stored_shapes(self, ours: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
        yield ((self.groups * sum(self.sizes), *self.form.stored_shapes(ours[0])[0][1:]),)

    def read(self, stored: Sequence[Tensor]) -> tuple[Pieces, ...]:
        parts = stored[0].unflatten(0, (self.groups, -1)).split(self.sizes, dim=1)
        return tuple(self.form.read(part.flatten(0, 1)) for part in parts)

    def write(self, ours: Sequence[Tensor]) -> Iterable[Tensor]:
        parts = [self.form.write(tensor).unflatten(0, (self.groups, -1)) for tensor in ours]
        return (torch.cat(parts, dim=1).flatten(0, 1),)


@dataclass(frozen=True)
class Stack:
    """`count` tensors of the file, each named by its number in `source` ("...experts.{}.w1.weight"), side by side."""

    source: str
    count: int
    target: str
    packed: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self.source.format(index) for index in range(self.count))

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def stored_shapes(self, ours: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
        yield from [(ours[0][1:],)] * self.count

    def read(self, stored: Sequence[Tensor]) -> tuple[Pieces, ...]:
        return (iter(stored),)

    def write(self, ours: Sequence[Tensor]) -> Iterable[Tensor]:
        return ours[0].unbind(0)


@dataclass(frozen=True)
class Dequantised:
    """As Stack, of matrices in MXFP4: `{source}.weight_packed` and `{source}.weight_scale` of every number.

    Read in bf16, which holds every such number exactly; the model may have them in a wider dtype.
    """

    source: str
    count: int
    target: str
    packed: bool = True

    @property
    def sources(self) -> tuple[str, ...]:
        names = [self.source.format(index) for index in range(self.count)]
        return (*(f"{name}.weight_packed" for name in names), *(f"{name}.weight_scale" for name in names))

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.target,)

    def stored_shapes(self, ours: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
        _, rows, width = ours[0]
        yield from [((rows, -(-width // 2)),)] * self.count
        yield from [((rows, -(-width // MXFP4_GROUP)),)] * self.count

    def read(self, stored: Sequence[Tensor]) -> tuple[Pieces, ...]:
        pairs = zip(stored[: self.count], stored[self.count :], strict=True)
        return ((ops.mxfp4_dequantise(packed, scale, torch.bfloat16) for packed, scale in pairs),)

    def write(self, ours: Sequence[Tensor]) -> Iterable[Tensor]:
        pairs = [ops.mxfp4_quantise(matrix) for matrix in ours[0]]
        return (*(packed for packed, _ in pairs), *(scale for _, scale in pairs))


@dataclass(frozen=True)
class Either:
    """Ways to hold the same tensors; a file uses one of them whole. The first that fits the model is written."""

    options: tuple[tuple[Rule, ...], ...]


@dataclass(frozen=True)
class Ignore:
    """Tensors of the file that no model needs: `pattern` matches their whole names."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Repeat:
    """A second copy that a file may hold of the tensor `original` (a tied head): it must be equal, and is not kept.

    written: whether an export has it, for readers that do not tie.
    """

    source: str
    original: str
    written: bool = False


Entry = Rule | Either | Ignore | Repeat
