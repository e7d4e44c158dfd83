"""The header of a safetensors file: every tensor's name, dtype, shape and bytes, checked against the file itself.

The file: 8 bytes little-endian header length, that many bytes of JSON, then the tensors' bytes end to end.
`read_header` accepts what is whole; `examine_header` lists what is wrong with the rest. No tensor is read.
Source: the format's README (huggingface/safetensors, "Format"), whose limit of 100 MB for a header is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import cast

from statewell.errors import CheckpointError
from statewell.formats.plain_header import read_plain
from statewell.formats.strict_json import collection_paused, file_bytes, parse_json, read_start, shown
from statewell.formats.tensor_entry import DTYPE_BITS, LARGEST_SIZE, MOST_DIMENSIONS, TensorEntry

__all__ = ["LONGEST_HEADER", "Header", "TensorEntry", "examine_header", "read_header", "read_tensor"]

LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Header:
    """What a file says it holds. entries: by name, in the header's order. file_bytes: its size as the header was
    read.

    problems: what is wrong, one sentence each; tensors with a problem of their own are not in `entries`.
    """

    path: Path
    entries: dict[str, TensorEntry]
    metadata: dict[str, str]
    file_bytes: int
    problems: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """Of all tensors of a whole file: they lie end to end up to its end."""
        return self.file_bytes - min(map(itemgetter(3), self.entries.values()), default=self.file_bytes)


def read_header(path: Path) -> Header:
    """The header of a whole file. Raises CheckpointError with the first problem otherwise."""
    header = examine_header(path)
    if header.problems:
        raise CheckpointError(header.problems[0])
    return header


def examine_header(path: Path) -> Header:
    """The header of any file, with what is wrong in `problems`. Raises CheckpointError only when `path` is no file."""
    size = file_bytes(path)
    try:
        length = _header_length(path, size)
        raw = read_start(path, 8, length, LONGEST_HEADER)
        with collection_paused():
            plain = read_plain(raw, 8 + length, size)
            if plain is not None:
                return Header(path, *plain, size)
            document = parse_json(raw, f"the header of {path}")
            return _examine(path, document, 8 + length, size)
    except CheckpointError as error:
        return Header(path, {}, {}, size, (str(error),))


def read_tensor(path: Path, entry: TensorEntry) -> bytearray:
    """A tensor's bytes. Raises CheckpointError when the file has been shortened since its header was read."""
    found = file_bytes(path)
    if entry.end > found:
        raise CheckpointError(
            f"{path} was shortened: tensor {shown(entry.name)} ends at byte {entry.end:,}, the file has {found:,}."
        )
    raw = bytearray(entry.nbytes)
    with open(path, "rb", buffering=0) as opened:
        opened.seek(entry.begin)
        held = memoryview(raw)
        while held and (count := opened.readinto(held)):
            held = held[count:]
    if held:
        raise CheckpointError(f"{path} was shortened: tensor {shown(entry.name)} lacks its last {len(held):,} bytes.")
    return raw


def _header_length(path: Path, size: int) -> int:
    if size < 8:
        raise CheckpointError(f"{path} is cut short: a safetensors file has at least 8 bytes, {size} found.")
    length = int.from_bytes(read_start(path, 0, 8, 8), "little")
    if length > size - 8:
        raise CheckpointError(
            f"{path} is cut short or no safetensors file: its header should have {length:,} bytes, "
            f"{size - 8:,} follow its length."
        )
    if length > LONGEST_HEADER:
        raise CheckpointError(f"{path} has a header of {length:,} bytes; the format allows {LONGEST_HEADER:,}.")
    return length


def _examine(path: Path, document: object, data_begin: int, size: int) -> Header:
    if not isinstance(document, dict):
        raise CheckpointError(f"the header of {path} is a {type(document).__name__}; an object of tensors is expected.")
    fields = cast(dict[str, object], document)
    problems: list[str] = []
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in cast(dict[str, object], metadata).values()
    ):
        problems.append(f"{path}: __metadata__ should map names to text; found another value.")
        metadata = {}
    entries: dict[str, TensorEntry] = {}
    for name, described in fields.items():
        try:
            entries[name] = _entry(name, described, data_begin, size)
        except CheckpointError as error:
            problems.append(f"{path}: tensor {shown(name)} {error}")
    if not problems:
        problems += _gaps(path, entries, data_begin, size)
    return Header(path, entries, cast(dict[str, str], metadata), size, tuple(problems))


def _entry(name: str, described: object, data_begin: int, size: int) -> TensorEntry:
    """The entry, checked by itself. Raises CheckpointError whose sentence goes on after the tensor's name."""
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise CheckpointError("has a name that is not Unicode text; half of a surrogate pair found.")
    expected = {"dtype", "shape", "data_offsets"}
    if not isinstance(described, dict) or set(cast(dict[str, object], described)) != expected:
        raise CheckpointError("should be described by dtype, shape and data_offsets, and nothing else.")
    fields = cast(Mapping[str, object], described)
    dtype, shape, offsets = fields["dtype"], _integers(fields["shape"]), _integers(fields["data_offsets"])
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"has dtype {shown(str(dtype))}; known are {', '.join(DTYPE_BITS)}.")
    if shape is None or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(f"should have a shape of at most {MOST_DIMENSIONS} whole numbers from 0 to 2^63 - 1.")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError("should have two data_offsets, none negative, the second not below the first.")
    begin, end = offsets[0] + data_begin, offsets[1] + data_begin
    if end > size:
        raise CheckpointError(
            f"ends at byte {end:,}, the file has {size:,}: it is cut short by {end - size:,} bytes, "
            "or its header is wrong."
        )
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (end - begin):
        whole = f"{bits // 8:,}" if bits % 8 == 0 else f"{bits / 8:,}"
        raise CheckpointError(f"needs {whole} bytes for {dtype} {list(shape)}, {end - begin:,} found.")
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _integers(value: object) -> list[int] | None:
    # type() and not isinstance: true is no size
    if isinstance(value, list) and all(
        type(item) is int and 0 <= item <= LARGEST_SIZE for item in cast(list[object], value)
    ):
        return cast(list[int], value)
    return None


def _gaps(path: Path, entries: Mapping[str, TensorEntry], data_begin: int, size: int) -> list[str]:
    """Bytes that belong to two tensors or to none."""
    problems: list[str] = []
    at, before = data_begin, "the header"
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        where = f"{path}: tensor {shown(entry.name)} begins at byte {entry.begin:,}"
        if entry.begin < at:
            problems.append(f"{where}, inside {before}, which ends at {at:,}.")
        elif entry.begin > at:
            problems.append(f"{where}, {at:,} expected after {before}: {entry.begin - at:,} bytes belong to no tensor.")
        if entry.end >= at:
            at, before = entry.end, shown(entry.name)
    if at < size:
        problems.append(f"{path} has {size - at:,} bytes after {before}: it should end at {at:,}, {size:,} found.")
    return problems
