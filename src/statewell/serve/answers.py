"""Answers on their way from the engine to one client, whole or as server-sent events; ended when the client goes.

Start at `open_answers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statewell.engine.request import Request
from statewell.errors import StatewellError
from statewell.serve.failures import RefusedError, failure_of
from statewell.serve.reading import ChoiceReader, Part
from statewell.serve.service import Service, Stream

T = TypeVar("T")
CLIENT_GONE = 499  # nobody reads it; it is what access logs call this


@dataclass(frozen=True)
class Ask:
    """One prompt for the engine, and what reads each choice of its answer."""

    request: Request
    make_reader: Callable[[], ChoiceReader]


class Answers:
    """The answers to several prompts: pairs of a prompt's place and a part, as they come."""

    def __init__(self, service: Service, count: int) -> None:
        self._service = service
        self._parts: asyncio.Queue[tuple[int, Part]] = asyncio.Queue()
        self.streams = [Stream(place, self._parts) for place in range(count)]

    async def __aiter__(self) -> AsyncIterator[tuple[int, Part]]:
        """Raises RefusedError for an answer that could not be finished."""
        left = len(self.streams)
        while left:
            place, part = await self._parts.get()
            if part.error is not None:
                raise RefusedError(500, "failed", part.error)
            left -= part.last
            yield place, part

    def cancel(self) -> None:
        """Nothing more is wanted. Has to be called in the end in any case."""
        for stream in self.streams:
            self._service.cancel(stream)


async def open_answers(service: Service, asks: Sequence[Ask]) -> Answers:
    """Queue all of `asks`, or none. Raises RequestError or LimitError for an impossible one."""
    answers = Answers(service, len(asks))
    try:
        for ask, stream in zip(asks, answers.streams, strict=True):
            await service.submit(ask.request, ask.make_reader, stream)
    except BaseException:
        answers.cancel()
        raise
    return answers


async def whole(
    http: HttpRequest, answers: Answers, collect: Callable[[Answers], Coroutine[None, None, T]]
) -> T | Response:
    """What `collect` makes of the answers, or an empty response where the client has gone."""
    try:
        return await _until(collect(answers), _gone(http.receive))
    except _GoneError:
        return Response(status_code=CLIENT_GONE)
    finally:
        answers.cancel()


class EventStream(Response):
    """Server-sent events: every document of `documents` as one, then [DONE]; an error in its place ends them."""

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, documents: AsyncIterator[dict[str, object]]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answers, self._documents = answers, documents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with contextlib.suppress(_GoneError):
                await _until(self._send_all(send), _gone(receive))
        finally:
            self._answers.cancel()

    async def _send_all(self, send: Send) -> None:
        try:
            async for document in self._documents:
                await _send_event(send, json.dumps(document, ensure_ascii=False, separators=(",", ":")))
            await _send_event(send, "[DONE]")
        except StatewellError as error:
            await _send_event(send, json.dumps(failure_of(error).document()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _GoneError(Exception):
    """The client has closed the connection."""


async def _send_event(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _GoneError


async def _until(work: Coroutine[None, None, T], end: Awaitable[None]) -> T:
    """What `work` gives; whatever `end` raises, should that come first."""
    tasks = (asyncio.ensure_future(work), asyncio.ensure_future(end))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        await tasks[1]
        raise _GoneError
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
