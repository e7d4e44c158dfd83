"""The engine and the one thread that may touch it; requests come from the event loop and their text goes back there.

Whatever the loop asks for is done between two steps, in the order asked: a cancel always comes after its submit.
Start at `Service.submit`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from statewell.engine.engine import Engine
from statewell.engine.request import Request, TokenEvent
from statewell.errors import StatewellError
from statewell.serve.metrics import Metrics
from statewell.serve.reading import ChoiceReader, Part

T = TypeVar("T")
BROKEN = "The engine has stopped; the server has to be started again."
log = logging.getLogger("statewell.serve")


class Stream:
    """One answer on its way to the event loop. ids: once it is over, the prompt and the first choice's tokens.

    place: which of several it is. parts: where its parts go.
    """

    def __init__(self, place: int, parts: asyncio.Queue[tuple[int, Part]]) -> None:
        self._place, self._parts = place, parts
        self.ids: tuple[int, ...] = ()
        self.gone = False
        self.number: int | None = None

    def put(self, part: Part) -> None:
        """In the event loop only."""
        self._parts.put_nowait((self._place, part))


@dataclass(eq=False)
class _Live:
    """A request in the engine. readers: one for each choice, made as choices begin to speak."""

    stream: Stream
    make_reader: Callable[[], ChoiceReader]
    prompt: tuple[int, ...]
    began_s: float
    readers: dict[int, ChoiceReader] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)

    def reader(self, choice: int) -> ChoiceReader:
        if choice not in self.readers:
            self.readers[choice] = self.make_reader()
        return self.readers[choice]


class Service:
    """Runs an engine. on_failure: called in the event loop should the engine itself break, which ends all requests."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[int, _Live] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.broken = False
        self.on_failure: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to work, for the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End what still runs and wait for the thread."""
        if self._thread is not None:
            self._commands.put(self._close)
            await asyncio.to_thread(self._thread.join)

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread is not None and not self._closed and not self.broken

    async def call(self, work: Callable[[Engine], T]) -> T:
        """What `work` gives, done by the engine's thread between two steps; its errors come out here."""
        if not self.ready:
            raise StatewellError(BROKEN)
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            if self.broken:
                future.set_exception(StatewellError(BROKEN))
                return
            try:
                future.set_result(work(self._engine))
            except Exception as error:  # it is the caller's, in whose task it comes out
                future.set_exception(error)

        self._commands.put(run)
        return await asyncio.wrap_future(future)

    async def submit(self, request: Request, make_reader: Callable[[], ChoiceReader], stream: Stream) -> None:
        """Queue a request whose answer comes in `stream`. Raises RequestError or LimitError for an impossible one.

        Whoever calls this calls `cancel` with the same stream in the end, whatever happened in between.
        """
        began_s = time.perf_counter()

        def submit(engine: Engine) -> None:
            if not stream.gone:
                stream.number = engine.submit(request)
                self._live[stream.number] = _Live(stream, make_reader, request.prompt, began_s)

        await self.call(submit)

    def cancel(self, stream: Stream) -> None:
        """The answer is wanted no more: its memory is free within one step. Nothing happens where it is over."""
        stream.gone = True
        self._commands.put(lambda: self._cancel(stream))

    def _cancel(self, stream: Stream) -> None:
        if stream.number is not None and self._live.pop(stream.number, None) is not None and not self.broken:
            self._engine.cancel(stream.number)
            self._metrics.ended("cancelled")

    def _close(self) -> None:
        for number in list(self._live):
            if not self.broken:
                self._engine.cancel(number)
        self._fail_all("The server is shutting down.")
        self._closed = True

    def _work(self) -> None:
        while not self._closed:
            if self.broken or not self._engine.busy:
                self._commands.get()()
            while not self._commands.empty():
                self._commands.get()()
            if self._engine.busy and not self.broken and not self._closed:
                self._step()

    def _step(self) -> None:
        try:
            self._tell([part for event in self._engine.step() for part in self._read(event)])
        except Exception:
            # nothing can be promised of an engine that broke in the middle of a step
            log.exception("the engine broke; every request ends")
            self.broken = True
            self._fail_all(BROKEN)
            self._in_loop(lambda: self.on_failure())

    def _read(self, event: TokenEvent) -> list[tuple[Stream, Part]]:
        """What an event says, as text; and what follows from the text for the engine."""
        live = self._live.get(event.request)
        if live is None:
            return []
        self._metrics.took(event, self._seconds(live, event))
        try:
            reader = live.reader(event.choice)
            part = reader.read(event)
            if reader.over and event.finish is None:
                self._engine.stop(event.request, event.choice)
        except StatewellError as error:
            self._engine.cancel(event.request)
            part = Part(choice=event.choice, error=str(error), last=True)
        if part.last:
            del self._live[event.request]
            live.stream.ids = (*live.prompt, *live.reader(0).ids)
            self._metrics.ended(part.finish or "error")
        return [(live.stream, part)]

    def _seconds(self, live: _Live, event: TokenEvent) -> tuple[float, bool] | None:
        """Seconds that a token took, and whether it was its choice's first; None where no token came."""
        if event.token is None:
            return None
        now_s = time.perf_counter()
        before_s = live.last_s.get(event.choice)
        live.last_s[event.choice] = now_s
        return (now_s - live.began_s, True) if before_s is None else (now_s - before_s, False)

    def _fail_all(self, sentence: str) -> None:
        parts = [(live.stream, Part(choice=0, error=sentence, last=True)) for live in self._live.values()]
        self._live.clear()
        self._tell(parts)

    def _tell(self, parts: list[tuple[Stream, Part]]) -> None:
        if parts:
            self._in_loop(lambda: [stream.put(part) for stream, part in parts])

    def _in_loop(self, work: Callable[[], object]) -> None:
        assert self._loop is not None, "started by `start`"
        self._loop.call_soon_threadsafe(work)
