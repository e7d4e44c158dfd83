"""What answers look like: OpenAI's objects, and how much of a prompt was reused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from statewell.engine.request import Usage as EngineUsage


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorDetail(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Shape):
    error: ErrorDetail


class PromptDetails(Shape):
    cached_tokens: int


class Reuse(Shape):
    """reused: tokens of the prompt that were in memory. missed: why not more, None where all were."""

    reused: int
    missed: str | None


class Usage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    statewell: Reuse


class TopLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Shape):
    """Of every token the model chose, those of reasoning and calls among them."""

    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Shape):
    name: str
    arguments: str


class CallReply(Shape):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatReply(Shape):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[CallReply] | None = None
    refusal: None = None


class ChatChoice(Shape):
    index: int
    message: ChatReply
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Shape):
    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: str


class Completion(Shape):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class ModelCard(Shape):
    """context: tokens it can hold, None without a limit."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["statewell"] = "statewell"
    context: int | None


class ModelList(Shape):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(Shape):
    tokens: list[int]
    count: int
    max_model_len: int | None


class Detokenized(Shape):
    prompt: str


class Health(Shape):
    status: Literal["ok", "stopping", "broken"]


class SessionCard(Shape):
    """tokens: that its memory has taken in. usable: by the model that is served."""

    name: str
    object: Literal["session"] = "session"
    tokens: int
    bytes: int
    created: int
    usable: bool


class Session(SessionCard):
    """text: of its tokens. messages: of a chat, with the answer it was saved after."""

    text: str
    messages: list[dict[str, object]] | None


class SessionList(Shape):
    object: Literal["list"] = "list"
    data: list[SessionCard]


class Deleted(Shape):
    name: str
    object: Literal["session"] = "session"
    deleted: bool = True


def usage(each: Sequence[EngineUsage]) -> Usage:
    """Of all prompts of a request together."""
    prompt, generated = sum(one.prompt for one in each), sum(one.generated for one in each)
    reused = sum(one.reuse.tokens for one in each)
    missed = list(dict.fromkeys(one.reuse.missed for one in each if one.reuse.missed is not None))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=generated,
        total_tokens=prompt + generated,
        prompt_tokens_details=PromptDetails(cached_tokens=reused),
        statewell=Reuse(reused=reused, missed="; ".join(missed) or None),
    )
