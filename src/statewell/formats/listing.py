"""Every tensor of a checkpoint and the file that holds it: one safetensors file, an index of several, or a folder.

`open_listing` reads headers only and lists what is wrong; `Listing.require_whole` refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

from statewell.errors import CheckpointError
from statewell.formats.safetensors import Header, TensorEntry, examine_header
from statewell.formats.strict_json import collection_paused, file_bytes, read_json, shown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class StoredTensor(NamedTuple):
    """A tensor and its file."""

    path: Path
    entry: TensorEntry


@dataclass(frozen=True)
class Listing:
    """What a checkpoint's files hold. path: as given. headers: one per file that is there.

    problems: what is wrong, one sentence each naming file, tensor, expected and found.
    """

    path: Path
    headers: tuple[Header, ...]
    problems: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(header.path for header in self.headers)

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """By name; of a name that two files hold, the first."""
        found: dict[str, StoredTensor] = {}
        with collection_paused():
            for header in self.headers:
                own = {name: StoredTensor(header.path, entry) for name, entry in header.entries.items()}
                found = own | found if found else own
        return found

    def require_whole(self) -> None:
        """Raise CheckpointError with the first problem, or when a file has changed its size since it was listed."""
        if self.problems:
            more = len(self.problems) - 1
            also = f" ({more:,} more: statewell inspect {self.path})" if more else ""
            raise CheckpointError(self.problems[0] + also)
        for header in self.headers:
            found = file_bytes(header.path)
            if found != header.file_bytes:
                raise CheckpointError(
                    f"{header.path} changed while it was used: {header.file_bytes:,} bytes expected, {found:,} found."
                )


def open_listing(path: Path) -> Listing:
    """The tensors of a safetensors file, of an index of several, or of a folder with either.

    Raises CheckpointError when there is nothing to list: no such path, no safetensors file, or pickles only.
    """
    if path.is_dir():
        return _folder(path)
    _refuse_pickle(path)
    file_bytes(path)
    if path.suffix == ".json":
        return _indexed(path, path)
    header = examine_header(path)
    return Listing(path, (header,), header.problems)


def _folder(folder: Path) -> Listing:
    # the order transformers looks in
    if (folder / SINGLE).is_file():
        header = examine_header(folder / SINGLE)
        return Listing(folder, (header,), header.problems)
    if (folder / INDEX).is_file():
        return _indexed(folder, folder / INDEX)
    files = sorted(file for file in folder.iterdir() if file.suffix == ".safetensors")
    if not files:
        for file in sorted(folder.iterdir()):
            _refuse_pickle(file)
        raise CheckpointError(f"{folder} holds no .safetensors file; give the folder of a checkpoint.")
    headers = tuple(examine_header(file) for file in files)
    problems = [problem for header in headers for problem in header.problems]
    if len(files) > 1:
        problems.append(
            f"{folder} holds {len(files)} safetensors files and no {INDEX}; get the index, or name one file."
        )
        problems += _in_two_files(headers)
    return Listing(folder, headers, tuple(problems))


def _refuse_pickle(path: Path) -> None:
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is opened; only safetensors are read here. "
            "Take the release's safetensors files (statewell fetch does), or convert it where you trust it."
        )


def _indexed(path: Path, index: Path) -> Listing:
    try:
        document = read_json(index)
        weight_map = _weight_map(index, document)
    except CheckpointError as error:
        return Listing(path, (), (str(error),))
    problems: list[str] = []
    by_file: dict[str, list[str]] = {}
    with collection_paused():
        for name, file in weight_map.items():
            by_file.setdefault(file, []).append(name)
    headers: list[Header] = []
    for file, names in by_file.items():
        if not _is_plain_name(file):
            problems.append(
                f"{index} puts tensor {shown(names[0])} into {shown(file)}; a .safetensors file beside it is expected."
            )
        elif not (index.parent / file).is_file():
            problems.append(
                f"{index.parent / file} is missing: {index.name} puts {len(names):,} tensors there, "
                f"first {shown(names[0])}."
            )
        else:
            headers.append(examine_header(index.parent / file))
            problems += headers[-1].problems
            problems += _disagreements(index, headers[-1], names)
    # files that agree with the index, which has each name once, share none
    if problems:
        problems += _in_two_files(headers)
    else:
        problems += _total_size(index, cast(Mapping[str, object], document), headers)
    return Listing(path, tuple(headers), tuple(problems))


def _weight_map(index: Path, document: object) -> dict[str, str]:
    found = cast(dict[str, object], document).get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{index} should hold a weight_map of tensor names to files; none found.")
    if set(map(type, cast(dict[str, object], found).values())) != {str}:
        name, file = next((n, f) for n, f in cast(dict[str, object], found).items() if not isinstance(f, str))
        raise CheckpointError(f"{index} should map tensor {shown(name)} to a file's name; {shown(repr(file))} found.")
    return cast(dict[str, str], found)


def _is_plain_name(file: str) -> bool:
    """Whether `file` can only lie beside the index: no folder, no way up, no absolute path."""
    return re.fullmatch(r"[\w.+-]+\.safetensors", file) is not None and not file.startswith(".")


def _disagreements(index: Path, header: Header, names: Iterable[str]) -> list[str]:
    """Names the index and the file's header do not share; a file with problems of its own has told them already."""
    if header.problems:
        return []
    wanted = set(names)
    if wanted == header.entries.keys():
        return []
    absent, extra = wanted - header.entries.keys(), header.entries.keys() - wanted
    return [
        *(f"{header.path}: tensor {shown(name)} is missing; {index.name} puts it there." for name in sorted(absent)),
        *(f"{header.path}: tensor {shown(name)} is here; {index.name} does not say so." for name in sorted(extra)),
    ]


def _in_two_files(headers: Iterable[Header]) -> list[str]:
    """Names that more than one file holds."""
    seen: dict[str, Path] = {}
    problems: list[str] = []
    for header in headers:
        twice = sorted(seen.keys() & header.entries.keys())
        problems += [
            f"{header.path}: tensor {shown(name)} is in {seen[name].name} too; one file is expected." for name in twice
        ]
        seen |= dict.fromkeys(header.entries, header.path)
    return problems


def _total_size(index: Path, document: Mapping[str, object], headers: Iterable[Header]) -> list[str]:
    metadata = document.get("metadata")
    stated = cast(dict[str, object], metadata).get("total_size") if isinstance(metadata, dict) else None
    if stated is None:
        return []
    found = sum(header.tensor_bytes for header in headers)
    # some writers put it down as 1.5e9
    if isinstance(stated, (int, float)) and not isinstance(stated, bool) and stated == found:
        return []
    return [
        f"{index}: total_size is {shown(str(stated))}, the tensors have {found:,} bytes; a part is another release's."
    ]
