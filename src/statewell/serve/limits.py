"""What one client may ask of a server, in one place. Limits of single fields stand with the fields, in `schemas.py`."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.config.checks import require_positive


@dataclass(frozen=True, kw_only=True)
class Limits:
    """body_bytes: of one request. requests: in flight at a time, waiting ones too. connections: open at a time.
    header_bytes: of a request's line and headers. header_s: from the first byte of a request, or from connecting, to
    the end of its headers; idle_s: between two requests of a connection; body_s: for a whole body; send_s: for a client
    to take each piece of the answer. sessions, session_bytes: saved by one key.
    """

    body_bytes: int = 4 * 2**20
    requests: int = 256
    connections: int = 1024
    header_bytes: int = 32 * 2**10
    header_s: float = 10
    idle_s: int = 30
    body_s: float = 30
    send_s: float = 60
    sessions: int = 256
    session_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        require_positive(self, "body_bytes", "requests", "connections", "header_bytes", "sessions", "session_bytes")
