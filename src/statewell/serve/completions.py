"""POST /v1/completions: go on with texts; with `echo` and `logprobs` also a way to score them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from fastapi.responses import Response

from statewell.engine.request import Logprobs, Usage
from statewell.serve import shapes
from statewell.serve.answers import Answers, Ask, EventStream, open_answers, whole
from statewell.serve.documented import EVENTS, FAILURES
from statewell.serve.prompts import completion_asks
from statewell.serve.reading import Part
from statewell.serve.recent import Answer
from statewell.serve.schemas import CompletionRequest
from statewell.serve.security import owner_of
from statewell.serve.served import Served
from statewell.serve.words import Offsets


@dataclass(frozen=True)
class _Head:
    """What every document of one answer says."""

    id: str
    model: str
    created: int


@dataclass
class _Choice:
    """What one choice has said so far."""

    index: int
    text: str = ""
    said: list[tuple[int, Logprobs | None]] = field(default_factory=list)
    offsets: Offsets = field(default_factory=Offsets)
    begun: bool = False
    finish: str = "stop"


class Writer:
    """Writes the answer to one request. Choices are numbered through: those of the first prompt first."""

    def __init__(self, served: Served, body: CompletionRequest, asks: list[Ask]) -> None:
        self._served, self._body, self._asks = served, body, asks
        self._head = _Head(f"cmpl-{secrets.token_hex(12)}", served.name, int(time.time()))
        self._width = body.n or 1
        self._choices = [_Choice(index) for index in range(self._width * len(asks))]
        self._echoes: dict[int, tuple[Logprobs | None, ...]] = {}
        self._usages: list[Usage] = []

    async def collect(self, answers: Answers) -> shapes.Completion:
        """The whole answer."""
        async for place, part in answers:
            self._take(place, part)
        self._keep(answers)
        choices = [self._written(choice, choice.text, choice.said, choice.finish) for choice in self._choices]
        return shapes.Completion(**vars(self._head), choices=choices, usage=shapes.usage(self._usages))

    async def documents(self, answers: Answers) -> AsyncIterator[dict[str, object]]:
        """The answer in pieces, then its usage where it was asked for."""
        async for place, part in answers:
            choice, text, said = self._take(place, part)
            if text or said or part.finish is not None:
                written = self._written(choice, text, said, part.finish or "")
                document: dict[str, object] = written.model_dump()
                yield self._chunk([document | {"finish_reason": part.finish}], None)
        self._keep(answers)
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield self._chunk([], shapes.usage(self._usages).model_dump())

    def _chunk(self, choices: list[dict[str, object]], usage: dict[str, object] | None) -> dict[str, object]:
        return {**vars(self._head), "object": "text_completion", "choices": choices, "usage": usage}

    def _take(self, place: int, part: Part) -> tuple[_Choice, str, list[tuple[int, Logprobs | None]]]:
        """Take a part in; the choice it belongs to, and what is new of its text and of its tokens."""
        choice = self._choices[place * self._width + part.choice]
        said = [(one.token, one.logprobs) for one in part.said]
        text = part.content
        if part.echoed is not None:
            self._echoes[place] = part.echoed
        if not choice.begun and self._body.echo:
            prompt = self._asks[place].request.prompt
            text = self._served.tokenizer.decode(prompt) + text
            if self._body.logprobs is not None:
                said = [*zip(prompt, self._echoes[place], strict=True), *said]
        choice.begun = True
        choice.text += text
        choice.said += said
        choice.finish = part.finish or choice.finish
        self._usages += [] if part.usage is None else [part.usage]
        return choice, text, said

    def _written(
        self, choice: _Choice, text: str, said: list[tuple[int, Logprobs | None]], finish: str
    ) -> shapes.TextChoice:
        logprobs = None if self._body.logprobs is None else self._served.words.text(said, choice.offsets)
        return shapes.TextChoice(text=text, index=choice.index, logprobs=logprobs, finish_reason=finish)

    def _keep(self, answers: Answers) -> None:
        request = self._asks[0].request
        self._served.recent.keep(self._head.id, Answer(request.owner, answers.streams[0].ids, None))


def router(served: Served) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", response_model=shapes.Completion, responses=EVENTS | FAILURES)
    async def complete(http: Request, body: CompletionRequest) -> Response | shapes.Completion:
        """Go on with a text, or several; server-sent events with `stream`."""
        served.require_model(body.model)
        asks = await completion_asks(served, body, owner_of(http.scope))
        writer = Writer(served, body, asks)
        answers = await open_answers(served.service, asks)
        if body.stream:
            return EventStream(answers, writer.documents(answers))
        return await whole(http, answers, writer.collect)

    return routes
