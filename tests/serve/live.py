"""A server in this process: on a socket of its own, or called directly as the application it is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp

from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import Gauges, Request
from statewell.models import LanguageModel
from statewell.serve.app import make_app
from statewell.serve.run import ServeConfig, listen, make_served, run, server_of
from statewell.serve.security import Keys
from statewell.serve.served import Served
from statewell.serve.service import Service
from tests.engine.alone import Turns


@dataclass
class Live:
    """A running server."""

    url: str
    served: Served
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop

    def call(self, work):
        """What `work` gives in the engine's thread."""
        return asyncio.run_coroutine_threadsafe(self.served.service.call(work), self.loop).result(30)

    def gauges(self) -> Gauges:
        return self.call(lambda engine: engine.gauges())

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


def config_in(folder: Path, **changes) -> ServeConfig:
    return replace(ServeConfig(sessions=folder, port=0, engine=EngineConfig(memory_budget=2**28, rows=4)), **changes)


@contextlib.contextmanager
def live(model: LanguageModel, config: ServeConfig, keys: Keys | None = None, wrap=lambda served: served) -> Iterator:
    """A server on a free port of 127.0.0.1 while the context lasts."""
    served = wrap(make_served(model, config))
    server, bound = server_of(make_app(served, keys), config), listen(config)
    ready, loops = threading.Event(), []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await run(server, bound, config.limits, ready.set)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(60)
        yield Live(f"http://127.0.0.1:{bound.getsockname()[1]}", served, server, loops[0])
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


class Scripted:
    """A service whose model says what a script says: `says` holds the ids of one reply."""

    def __init__(self, service: Service, says: Sequence[int]) -> None:
        self._service, self._says = service, says

    async def submit(self, request: Request, make_reader, stream) -> None:
        script = Turns([(token,) for token in self._says])
        await self._service.submit(replace(request, constraint=script), make_reader, stream)

    def __getattr__(self, name: str):
        return getattr(self._service, name)


@contextlib.asynccontextmanager
async def started(served: Served) -> AsyncIterator[ASGIApp]:
    """The application of `served` in the running event loop, without sockets."""
    served.service.start()
    try:
        yield make_app(served)
    finally:
        await served.service.close()


class Caller:
    """One HTTP client of an ASGI application, which may leave when it has seen enough.

    leaves_after: pieces of the answer it waits for, None to stay. `left` ends the wait of the application. stuck: it
    takes the first piece and then nothing, without leaving.
    """

    def __init__(self, body: object, leaves_after: int | None = None, stuck: bool = False) -> None:
        self._stuck, path = stuck, "/v1/completions"
        self._body, self._leaves_after, self._path = json.dumps(body).encode(), leaves_after, path
        self._sent = False
        self.left = asyncio.Event()
        self.status: int | None = None
        self.pieces: list[bytes] = []

    async def ask(self, app: ASGIApp) -> None:
        """Ask, and read until the end or until it leaves."""
        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
        ]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": self._path, "raw_path": self._path.encode(), "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        }  # fmt: skip
        if self._leaves_after == 0:
            self.left.set()
        await app(scope, self._receive, self._send)

    async def _receive(self):
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.pieces.append(message["body"])
        if self._stuck:
            await self.left.wait()
        if self._leaves_after is not None and len(self.pieces) >= self._leaves_after:
            self.left.set()


def empty(engine: Engine) -> Gauges:
    """What is held once everything kept for reuse is let go."""
    engine.reuse.clear()
    return engine.gauges()
