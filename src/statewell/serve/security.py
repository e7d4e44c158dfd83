"""What stands before every route: who may ask, from where, how much and how long. Nothing here knows of models.

Start at `Gate`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statewell.errors import RequestError
from statewell.serve.failures import Failure
from statewell.serve.limits import Limits
from statewell.serve.metrics import Metrics

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
SHORTEST_KEY = 16
OPEN_PATHS = frozenset({"/health"})  # a supervisor asks it without a key
_OWNER = "statewell.owner"


@dataclass(frozen=True)
class Keys:
    """API keys, kept as digests. None at all: everyone may ask, and an Authorization header says nothing."""

    digests: tuple[bytes, ...] = ()

    def owner(self, authorization: str | None) -> str | None:
        """Whose key the header holds, as a name that is not the key; None for nobody's. Takes the same time for any."""
        if not self.digests:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self.digests]
        return digest.hex() if scheme.lower() == "bearer" and any(matches) else None


def read_keys(path: Path | None) -> Keys:
    """One key on each line of a file. Raises RequestError when it cannot be read, holds none or one too short."""
    if path is None:
        return Keys()
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"The key file {path} cannot be read: {error}.") from None
    if not lines:
        raise RequestError(f"The key file {path} holds no key; put one on each line.")
    if short := [line for line in lines if len(line) < SHORTEST_KEY or not line.isascii()]:
        raise RequestError(
            f"{path} holds a key of {len(short[0])} characters; keys are ASCII and {SHORTEST_KEY} or more."
        )
    return Keys(tuple(hashlib.sha256(line.encode()).digest() for line in lines))


def require_safe_host(host: str, keys: Keys) -> None:
    """Raise RequestError for an address that others can reach where no key is set."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local and not keys.digests:
        raise RequestError(f"{host} can be reached from other machines; give --api-key-file, or leave --host out.")


def owner_of(scope: Scope) -> str:
    """Who asks, as the gate found; '' where there are no keys."""
    return scope[_OWNER]


class Gate:
    """An ASGI application around another. names: hosts it answers to besides the local ones."""

    def __init__(self, app: ASGIApp, keys: Keys, names: Iterable[str], limits: Limits, metrics: Metrics) -> None:
        self._app, self._keys, self._limits, self._metrics = app, keys, limits, metrics
        self._names = LOCAL_NAMES | {_bare(name) for name in names}
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here; uvicorn is told so too
        counted = self._counted(send)
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(counted, refusal)
            return
        self._inside += 1
        try:
            body = await self._body(headers, receive)
            if isinstance(body, Failure):
                await _refuse(counted, body)
            else:
                with contextlib.suppress(TimeoutError):  # the client took nothing for long: the connection is closed
                    await self._app(scope, _replayed(body, receive), counted)
        finally:
            self._inside -= 1

    def _refusal(self, scope: Scope, headers: Headers) -> Failure | None:
        """Why the request goes no further, as far as its headers tell; notes who asks."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _bare(hosts[0]) not in self._names:
            return _failure(403, "host_refused", "The Host header names another server; allow it with --allow-host.")
        for origin in headers.getlist("origin"):
            if _origin_name(origin) not in self._names:
                return _failure(403, "origin_refused", "Pages of other sites may not ask here.")
        owner = self._keys.owner(headers.get("authorization"))
        if owner is None and scope["path"] not in OPEN_PATHS:
            return _failure(401, "invalid_api_key", "A valid API key is needed: Authorization: Bearer KEY.")
        scope[_OWNER] = owner or ""
        if self._inside >= self._limits.requests and scope["path"] not in OPEN_PATHS:
            return _failure(503, "busy", f"{self._inside} requests are here already, the most; try again later.")
        return None

    async def _body(self, headers: Headers, receive: Receive) -> bytes | Failure:
        """All of the request's body, or why it is refused."""
        length, most = headers.get("content-length", "0"), self._limits.body_bytes
        if length == "0" and "transfer-encoding" not in headers:
            return b""
        kind, _, parameters = headers.get("content-type", "").lower().partition(";")
        if kind.strip() != "application/json" or parameters.strip() not in ("", "charset=utf-8"):
            return _failure(415, "not_json", "A body has to be JSON in UTF-8, with Content-Type: application/json.")
        if headers.get("content-encoding", "identity") != "identity":
            return _failure(415, "not_json", "A body may not be compressed.")
        if not length.isdigit() or int(length) > most:
            return _failure(413, "too_large", f"The body is {length} bytes, {most:,} is the most.")
        read = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while (message := await receive())["type"] == "http.request":
                    read += message.get("body", b"")
                    if len(read) > most:
                        return _failure(413, "too_large", f"The body is more than {most:,} bytes, the most.")
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            return _failure(408, "too_slow", f"The body took more than {self._limits.body_s:g} seconds.")
        return _json_text(bytes(read))

    def _counted(self, send: Send) -> Send:
        """`send` that counts errors and waits for a slow client only so long."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._metrics.refused(message["status"])
            async with asyncio.timeout(self._limits.send_s):
                await send(message)

        return counted


def _json_text(body: bytes) -> bytes | Failure:
    """The body, unless it is no UTF-8: JSON's other encodings are not guessed."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _failure(400, "invalid_json", f"The body is not UTF-8: byte {error.start}.")
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` that gives the body that was read, then what really comes."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _failure(status: int, code: str, message: str) -> Failure:
    return Failure(status=status, code=code, message=message)


async def _refuse(send: Send, failure: Failure) -> None:
    raw = json.dumps(failure.document()).encode()
    headers: Sequence[tuple[bytes, bytes]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        # what was not read of the request is in the way of the next one
        (b"connection", b"close"),
        *([(b"www-authenticate", b"Bearer")] if failure.status == 401 else []),
        *([(b"retry-after", b"1")] if failure.status == 503 else []),
    ]
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


def _bare(host: str) -> str:
    """A host without its port and without an IPv6 address's brackets, in small letters."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _origin_name(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
        return parts.hostname if parts.scheme in ("http", "https") else None
    except ValueError:
        return None
