"""A server from its start to its end: what it serves, its socket, and how it goes. Start at `serve`."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.errors import RequestError, StatewellError
from statewell.models.backbone import LanguageModel
from statewell.models.fingerprint import fingerprint
from statewell.serve.app import make_app
from statewell.serve.grammar import Grammars
from statewell.serve.limits import Limits
from statewell.serve.metrics import Metrics
from statewell.serve.recent import Recent
from statewell.serve.security import read_keys, require_safe_host
from statewell.serve.served import Served
from statewell.serve.service import Service
from statewell.serve.sessions import Sessions
from statewell.serve.words import Words
from statewell.text.templates import chat_template

DRAIN_S = 30


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """host, port: where to listen; port 0 takes a free one. names: hosts it answers to besides local ones. key_file:
    one API key on each line, None for none. sessions: the folder of saved ones. draft: tokens guessed ahead from
    repeated text. drain_s: for what still runs when it is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: Sequence[str] = ()
    key_file: Path | None = None
    sessions: Path
    draft: int = 0
    drain_s: int = DRAIN_S
    engine: EngineConfig = field(default_factory=EngineConfig)
    limits: Limits = field(default_factory=Limits)


def serve(model: LanguageModel, config: ServeConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let what runs finish. ready: called with the address once it listens.

    Raises RequestError for an address that cannot be had or is not safe, StatewellError when the engine broke.
    """
    keys = read_keys(config.key_file)
    require_safe_host(config.host, keys)
    served = make_served(model, config)
    app = make_app(served, keys, (config.host, *config.names))
    bound = listen(config)
    server = server_of(app, config)
    served.service.on_failure = lambda: setattr(server, "should_exit", True)
    host, port = bound.getsockname()[:2]
    # uvicorn raises the signals it took again when it is done: they end nothing then, so that the exit code is 0
    signal.signal(signal.SIGTERM, _already_done)
    signal.signal(signal.SIGINT, _already_done)
    asyncio.run(run(server, bound, config.limits, lambda: ready(f"http://{_in_url(host)}:{port}")))
    if served.service.broken:
        raise StatewellError("The engine broke; the log above says how. Start the server again.")


def server_of(app: ASGIApp, config: ServeConfig) -> uvicorn.Server:
    """uvicorn with this server's limits, for a socket that listens already."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=config.limits.connections,
            timeout_keep_alive=config.limits.idle_s,
            timeout_graceful_shutdown=config.drain_s,
            h11_max_incomplete_event_size=config.limits.header_bytes,
        )
    )


def make_served(model: LanguageModel, config: ServeConfig) -> Served:
    """Everything that routes need. Raises RequestError for a model without a tokenizer."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise RequestError(f"{model.config.name} has no tokenizer, so it cannot be served; put its files beside it.")
    metrics, template = Metrics(), chat_template(tokenizer)
    words = Words(tokenizer)
    engine = Engine(model, config.engine, words.joined)
    end = tokenizer.token_id(template.answer_end) if template.answer_end else _end(tokenizer.specials.ends)
    return Served(
        name=model.config.name,
        context=model.config.context,
        device=model.embedding.weight.device,
        tokenizer=tokenizer,
        template=template,
        grammars=Grammars(tokenizer, tokenizer.separator if end is None else end),
        words=words,
        service=Service(engine, metrics),
        metrics=metrics,
        sessions=Sessions(config.sessions, lambda: fingerprint(model), config.limits),
        recent=Recent(),
        limits=config.limits,
        began=int(time.time()),
        draft=config.draft,
    )


def _end(ends: frozenset[int]) -> int | None:
    return min(ends, default=None)


def listen(config: ServeConfig) -> socket.socket:
    """A socket for the address. Raises RequestError for one that cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        bound = socket.create_server((config.host, config.port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        raise RequestError(f"{config.host}:{config.port} cannot be listened on: {error}; try another --port.") from None
    return bound


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _already_done(_number: int, _frame: object) -> None:
    """The server has ended in order."""


async def run(server: uvicorn.Server, bound: socket.socket, limits: Limits, ready: Callable[[], None]) -> None:
    """Serve on `bound` until the server is told to end; `ready` is called once it answers."""
    watching = asyncio.create_task(_watch(server, limits, ready))
    try:
        await server.serve(sockets=[bound])
    finally:
        watching.cancel()


async def _watch(server: uvicorn.Server, limits: Limits, ready: Callable[[], None]) -> None:
    """Tell when the server listens, then close connections that take too long to ask; uvicorn waits for ever."""
    while not server.started:
        await asyncio.sleep(0.01)
    ready()
    seen: dict[H11Protocol, tuple[RequestResponseCycle | None, float]] = {}
    longest_s = max(limits.header_s, limits.idle_s)
    while True:
        await asyncio.sleep(1)
        now_s = time.monotonic()
        asking = [each for each in server.server_state.connections if isinstance(each, H11Protocol)]
        silent = {each: each.cycle for each in asking if each.cycle is None or each.cycle.response_complete}
        seen = {
            each: seen[each] if each in seen and seen[each][0] is cycle else (cycle, now_s)
            for each, cycle in silent.items()
        }
        for connection, (cycle, since_s) in seen.items():
            if now_s - since_s > (limits.header_s if cycle is None else longest_s):
                connection.transport.close()
