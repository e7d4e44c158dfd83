"""A release's safetensors, config and tokenizer files, downloaded: the only module that uses the network.

`plan_fetch` asks what there is and how large it is; `download` gets it. A file is written beside its place under the
name of its content, so that an interrupted download goes on where it was and never joins two versions; it takes its
place once its size, and for large files its SHA-256, are right. `huggingface_hub` does the asking.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from statewell.checkpoints.search import REPOSITORIES, VARIABLE
from statewell.errors import MissingExtraError, RequestError, StatewellError
from statewell.formats.files import write_atomically
from statewell.formats.strict_json import read_json, shown

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoSibling

Answer = TypeVar("Answer")

RECORD = ".fetched.json"
_NAMES = frozenset(
    (
        *("config.json", "generation_config.json", "model.safetensors.index.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("vocab.json", "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.jinja", "chat_template.json"),
    )
)
_WEIGHTS = re.compile(r"[\w.+-]+\.safetensors")
_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)
_TRIES = 5  # that bring at least one byte each


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a release. identity: of its content, changes with it. sha256: of its bytes, where it is known."""

    name: str
    bytes: int
    identity: str
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class FetchPlan:
    """What a fetch would bring. commit: that the revision stands for. folder: where to. missing: not there yet.

    bytes_to_load: of the files and parts of files that are not there yet.
    """

    repository: str
    commit: str
    folder: Path
    files: tuple[RemoteFile, ...]
    missing: tuple[RemoteFile, ...]
    bytes_to_load: int

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)


def is_wanted(name: str) -> bool:
    """Whether a release's file is one of those to fetch: weights, config, tokenizer; nothing in a folder, no code."""
    return name in _NAMES or (_WEIGHTS.fullmatch(name) is not None and not name.startswith("."))


def plan_fetch(asked: str, out: Path | None = None, endpoint: str | None = None) -> FetchPlan:
    """What REPO[@REV], or a released preset's name, would bring, and where to.

    out: the folder; by default the first of STATEWELL_MODELS joined by the repository's name, else the name here.
    endpoint: of the hub; by default huggingface_hub's own. Raises RequestError for what is not there, MissingExtraError
    without the extra.
    """
    repository, _, revision = asked.partition("@")
    repository = REPOSITORIES[repository][0] if repository in REPOSITORIES else repository
    if _REPOSITORY.fullmatch(repository) is None or "--" in repository or ".." in repository:
        raise RequestError(f"'{shown(asked)}' is no repository; give OWNER/NAME, OWNER/NAME@REVISION or a preset.")
    api = _api(endpoint)
    info = _ask(lambda: api.model_info(repository, revision=revision or None, files_metadata=True), asked)
    if re.fullmatch(r"[0-9a-f]{40,64}", info.sha or "") is None:
        raise StatewellError(f"{asked}: the server names no commit; nothing can be pinned to it.")
    files = [_remote(file) for file in info.siblings or () if is_wanted(file.rfilename)]
    if not any(file.name.endswith(".safetensors") for file in files):
        raise RequestError(f"{repository} has no safetensors files; others can run code and are not fetched.")
    folder = out or _default_folder(repository)
    held = _record(folder)
    missing = [
        file for file in files if held.get(file.name) != file.identity or _size(folder / file.name) != file.bytes
    ]
    return FetchPlan(
        repository=repository,
        commit=info.sha or "",
        folder=folder,
        files=tuple(files),
        missing=tuple(missing),
        bytes_to_load=sum(file.bytes - _size(_part(folder, file)) for file in missing),
    )


def _remote(file: RepoSibling) -> RemoteFile:
    sha256 = file.lfs.sha256 if file.lfs else None
    identity = sha256 or file.blob_id
    if file.size is None or file.size < 0 or identity is None:
        raise StatewellError(f"the server says no size of {shown(file.rfilename)}; nothing was downloaded.")
    return RemoteFile(name=file.rfilename, bytes=file.size, identity=identity, sha256=sha256)


def download(plan: FetchPlan, progress: Callable[[int], None], endpoint: str | None = None) -> None:
    """Get what is missing, smallest first; `progress` is told the bytes as they come.

    Raises StatewellError when the connection or the disk fails, or what came is not what was announced; what is whole
    by then stays, and the same call goes on.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(plan.folder).free
    if plan.bytes_to_load > free:
        raise StatewellError(f"{plan.folder} has {free:,} bytes free, {plan.bytes_to_load:,} are needed; use --out.")
    for file in sorted(plan.missing, key=lambda file: file.bytes):
        part = _part(plan.folder, file)
        _fill(plan, file, part, progress, endpoint)
        _check(file, part)
        os.replace(part, plan.folder / file.name)
        record = _record(plan.folder) | {file.name: file.identity}
        write_atomically(plan.folder / RECORD, json.dumps(record, indent=1, sort_keys=True).encode())


def _fill(plan: FetchPlan, file: RemoteFile, part: Path, progress: Callable[[int], None], endpoint: str | None) -> None:
    """Append to `part` until it has all the file's bytes."""
    for _ in range(_TRIES):
        before = _size(part)
        if before > file.bytes:
            part.unlink()
            before = 0
        with open(part, "ab") as opened:
            if before < file.bytes:
                _ask(lambda: _stream(plan, file, opened, progress, endpoint), f"{plan.repository}: {file.name}")
        if _size(part) >= file.bytes:
            return
        if _size(part) == before:
            break
    raise StatewellError(
        f"{file.name} of {plan.repository} stopped at {_size(part):,} of {file.bytes:,} bytes; "
        "fetch again to go on from there."
    )


def _stream(
    plan: FetchPlan, file: RemoteFile, opened: BinaryIO, progress: Callable[[int], None], endpoint: str | None
) -> None:
    """Append what one response brings; a connection that ends early is seen by the size."""
    from httpx2 import TransportError
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    begin = opened.tell()
    url = hf_hub_url(plan.repository, file.name, revision=plan.commit, endpoint=endpoint)
    # identity: a range of a compressed answer would not be one of the file
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        hf_raise_for_status(response)
        if begin and response.status_code != 206:  # the server starts again from the first byte
            opened.truncate(0)
            progress(-begin)
            begin = 0
        room = file.bytes - begin
        chunks = response.iter_bytes()
        while room >= 0:
            try:
                chunk = next(chunks, None)
            except TransportError:  # broken off: what came is kept, and asked for no more
                return
            if chunk is None:
                return
            opened.write(chunk[:room])
            progress(min(len(chunk), room))
            room -= len(chunk)
    raise StatewellError(f"{file.name} of {plan.repository} is longer than the {file.bytes:,} bytes announced.")


def _check(file: RemoteFile, part: Path) -> None:
    if file.sha256 is None:
        return
    with open(part, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != file.sha256:
        part.unlink()
        raise StatewellError(f"{file.name} came with SHA-256 {found}, {file.sha256} expected; fetch it again.")


def _api(endpoint: str | None) -> HfApi:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtraError(
            "fetch needs huggingface_hub; install it with: pip install 'statewell[fetch]'"
        ) from None
    return HfApi(endpoint=endpoint)


def _ask(question: Callable[[], Answer], what: str) -> Answer:
    """The answer, with what a server or a connection can do wrong told as our own errors."""
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return question()
    except GatedRepoError:
        raise RequestError(f"{what} asks for its terms to be accepted first; do so on its page and log in.") from None
    except RevisionNotFoundError:
        raise RequestError(f"{what}: there is no such revision.") from None
    except RepositoryNotFoundError:
        raise RequestError(f"{what}: there is no such repository, or it is private; check the name.") from None
    except (HfHubHTTPError, HTTPError, InvalidURL) as error:
        raise StatewellError(f"{what} could not be reached ({shown(str(error))}); fetch again to go on.") from None


def _default_folder(repository: str) -> Path:
    named = os.environ.get(VARIABLE, "").split(os.pathsep)[0]
    return Path(named) / repository if named else Path(repository.rsplit("/", 1)[-1])


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / f".{file.name}.{hashlib.sha256(file.identity.encode()).hexdigest()[:16]}.part"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _record(folder: Path) -> dict[str, str]:
    """Which content each file of the folder has."""
    path = folder / RECORD
    found = read_json(path) if path.is_file() else {}
    return {str(name): str(identity) for name, identity in found.items()} if isinstance(found, dict) else {}
