"""POST /v1/chat/completions: answer in a conversation, with reasoning and tool calls where the format has them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import APIRouter, Request
from fastapi.responses import Response

from statewell.engine.request import Usage
from statewell.serve import shapes
from statewell.serve.answers import Answers, Ask, EventStream, open_answers, whole
from statewell.serve.documented import EVENTS, FAILURES
from statewell.serve.prompts import chat_ask, message_of
from statewell.serve.reading import Part, Said
from statewell.serve.recent import Answer
from statewell.serve.schemas import ChatRequest
from statewell.serve.security import owner_of
from statewell.serve.served import Served


@dataclass
class _Choice:
    """What one choice has said so far."""

    content: str = ""
    reasoning: str = ""
    calls: list[shapes.CallReply] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    begun: bool = False
    finish: str = "stop"


class Writer:
    """Writes the answer to one request."""

    def __init__(self, served: Served, body: ChatRequest, ask: Ask) -> None:
        self._served, self._body, self._ask = served, body, ask
        self._id, self._created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self._choices = [_Choice() for _ in range(body.n or 1)]
        self._usage: list[Usage] = []

    async def collect(self, answers: Answers) -> shapes.ChatCompletion:
        """The whole answer."""
        async for _, part in answers:
            self._take(part)
        self._keep(answers)
        return shapes.ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._served.name,
            choices=[self._written(index, choice) for index, choice in enumerate(self._choices)],
            usage=shapes.usage(self._usage),
        )

    async def documents(self, answers: Answers) -> AsyncIterator[dict[str, object]]:
        """The answer in pieces, then its usage where it was asked for."""
        async for _, part in answers:
            choice = self._choices[part.choice]
            first = not choice.begun
            place = len(choice.calls)
            calls = self._take(part)
            delta: dict[str, object] = {"role": "assistant", "content": ""} if first else {}
            delta |= {"content": part.content} if part.content else {}
            delta |= {"reasoning_content": part.reasoning} if part.reasoning else {}
            if calls:
                delta["tool_calls"] = [{"index": place + at} | call.model_dump() for at, call in enumerate(calls)]
            logprobs = self._served.words.chat(part.said).model_dump() if self._body.logprobs else None
            if delta or part.finish is not None or (logprobs and part.said):
                yield self._chunk(
                    [{"index": part.choice, "delta": delta, "logprobs": logprobs, "finish_reason": part.finish}], None
                )
        self._keep(answers)
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield self._chunk([], shapes.usage(self._usage).model_dump())

    def _chunk(self, choices: list[dict[str, object]], usage: dict[str, object] | None) -> dict[str, object]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
            "usage": usage,
        }

    def _take(self, part: Part) -> list[shapes.CallReply]:
        """Take a part in; the calls it brought."""
        choice = self._choices[part.choice]
        calls = [
            shapes.CallReply(
                # an id that a format does not give is made up, since clients answer by it
                id=call.id or f"call_{secrets.token_hex(8)}",
                function=shapes.CalledFunction(name=call.name, arguments=call.arguments),
            )
            for call in part.calls
        ]
        choice.begun = True
        choice.content += part.content
        choice.reasoning += part.reasoning
        choice.calls += calls
        choice.said += part.said
        choice.finish = part.finish or choice.finish
        self._usage += [] if part.usage is None else [part.usage]
        return calls

    def _written(self, index: int, choice: _Choice) -> shapes.ChatChoice:
        message = shapes.ChatReply(
            content=None if choice.calls and not choice.content else choice.content,
            reasoning_content=choice.reasoning or None,
            tool_calls=choice.calls or None,
        )
        logprobs = self._served.words.chat(choice.said) if self._body.logprobs else None
        return shapes.ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=choice.finish)

    def _keep(self, answers: Answers) -> None:
        """Remember the first choice, so that its memory can be saved."""
        reply = self._written(0, self._choices[0]).message.model_dump(exclude_none=True)
        messages = [*(message_of(message) for message in self._body.messages), reply]
        self._served.recent.keep(self._id, Answer(self._ask.request.owner, answers.streams[0].ids, messages))


def router(served: Served) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", response_model=shapes.ChatCompletion, responses=EVENTS | FAILURES)
    async def chat(http: Request, body: ChatRequest) -> Response | shapes.ChatCompletion:
        """Answer in a conversation; server-sent events with `stream`."""
        served.require_model(body.model)
        ask = await chat_ask(served, body, owner_of(http.scope))
        writer = Writer(served, body, ask)
        answers = await open_answers(served.service, [ask])
        if body.stream:
            return EventStream(answers, writer.documents(answers))
        return await whole(http, answers, writer.collect)

    return routes
