"""From what a client asked to what the engine takes: ids, settings, stops and grammars. Start at `choosing_of`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace

from statewell.engine.constraint import Constraint
from statewell.engine.request import Request
from statewell.engine.sampling import LARGEST_SEED, Sampling
from statewell.serve.answers import Ask
from statewell.serve.failures import RefusedError
from statewell.serve.grammar import require_shallow
from statewell.serve.reading import ChatReader, TextReader
from statewell.serve.schemas import (
    ChatMessage,
    ChatRequest,
    Choosing,
    CompletionRequest,
    NamedTool,
    PlainFormat,
    SchemaFormat,
)
from statewell.serve.served import Served
from statewell.text.chat import NOTHING_SAID, Chat, chat_from_json, texts_said

MOST_CHOICES = 128  # of all prompts of a request together
COMPLETION_TOKENS, CHAT_TOKENS = 16, 1024


def sampling_of(body: Choosing) -> Sampling:
    """What the body says; what it leaves open is OpenAI's, a seed at random."""
    given = {
        name: value
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        if (value := getattr(body, name)) is not None
    }
    seed = secrets.randbelow(LARGEST_SEED) if body.seed is None else body.seed
    bias = tuple((int(token), float(value)) for token, value in (body.logit_bias or {}).items())
    return replace(Sampling(temperature=1), **given, seed=seed, logit_bias=bias)


async def constraint_of(served: Served, form: PlainFormat | SchemaFormat | None) -> Constraint | None:
    """What the text has to follow. Raises RequestError for a schema that cannot be followed."""
    if form is None or form.type == "text":
        return None
    schema = form.json_schema.schema_ if isinstance(form, SchemaFormat) else {"type": "object"}
    return await asyncio.to_thread(served.grammars.constraint, schema)


def stop_ids(served: Served, constraint: Constraint | None) -> frozenset[int]:
    """Tokens that end a text."""
    return served.tokenizer.specials.ends | (frozenset() if constraint is None else {served.grammars.end})


async def completion_asks(served: Served, body: CompletionRequest, owner: str) -> list[Ask]:
    """One for each prompt. Raises RequestError for what cannot be asked."""
    prompts = _prompts(served, body)
    choices = body.n or 1
    if len(prompts) * choices > MOST_CHOICES:
        message = f"{len(prompts)} prompts of {choices} choices were asked for; {MOST_CHOICES} choices are the most."
        raise RefusedError(400, "invalid_value", message, "n")
    constraint = await constraint_of(served, body.response_format)
    count = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    stops = body.stops
    decode_bytes = served.words.joined
    first = Request(
        prompt=(served.tokenizer.separator,),
        max_tokens=count,
        sampling=sampling_of(body),
        choices=choices,
        beams=body.beams or 1,
        stop=stop_ids(served, constraint),
        logprobs=body.logprobs,
        # a prompt that is only shown again need not be scored, unless nothing else is asked for
        echo=bool(body.echo) and (body.logprobs is not None or count == 0),
        owner=owner,
        draft=0 if (body.beams or 1) > 1 else served.draft,
        constraint=constraint,
    )
    return [Ask(replace(first, prompt=ids), lambda: TextReader(decode_bytes, stops)) for ids in prompts]


def _prompts(served: Served, body: CompletionRequest) -> list[tuple[int, ...]]:
    """Ids of every prompt; an empty one is where documents begin."""
    given = body.prompt
    several = given if isinstance(given, list) and isinstance(given[0], (str, list)) else [given]
    return [text_ids(served, each) if isinstance(each, str) else tuple(each) for each in several]  # pyright: ignore


def text_ids(served: Served, text: str) -> tuple[int, ...]:
    """Ids of a prompt, as the tokenizer opens one."""
    tokenizer = served.tokenizer
    return (*tokenizer.specials.opening, *tokenizer.encode(text)) or (tokenizer.separator,)


async def chat_ask(served: Served, body: ChatRequest, owner: str) -> Ask:
    """Raises RequestError for what the model's format cannot say, or nobody can do."""
    constraint = await constraint_of(served, body.response_format)
    if constraint is not None and body.tools and body.tool_choice != "none":
        raise RefusedError(400, "invalid_value", "Tools and a response_format were given; leave one out.", "tools")
    if body.top_logprobs is not None and not body.logprobs:
        raise RefusedError(400, "invalid_value", "top_logprobs needs logprobs to be true.", "top_logprobs")
    chat = chat_of(served, body, constraint is None)
    before = served.recent.before(owner, [message_of(each) for each in body.messages])
    said = NOTHING_SAID if before is None else texts_said(served.tokenizer, before.ids)
    template, stops = served.template, (*served.template.stop, *body.stops)
    request = Request(
        prompt=tuple(template.ids(chat, said)) or (served.tokenizer.separator,),
        max_tokens=body.max_completion_tokens or body.max_tokens or CHAT_TOKENS,
        sampling=sampling_of(body),
        choices=body.n or 1,
        beams=body.beams or 1,
        stop=stop_ids(served, constraint),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        owner=owner,
        draft=0 if (body.beams or 1) > 1 else served.draft,
        constraint=constraint,
    )
    return Ask(request, lambda: ChatReader(template.reader(chat), stops))


def chat_of(served: Served, body: ChatRequest, free: bool) -> Chat:
    """The conversation. free: the answer follows no grammar; one that does has no place for reasoning."""
    tools, choice = [tool.model_dump() for tool in body.tools or ()], body.tool_choice
    require_shallow(tools, "tools")
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
        if not tools:
            message = f"tool_choice names {choice.function.name!r}, which is none of the tools."
            raise RefusedError(400, "invalid_value", message, "tool_choice")
        choice = "required"
    effort = body.reasoning_effort
    form = body.response_format if served.template.tells_form else None
    return chat_from_json(
        {
            "messages": [message_of(each) for each in body.messages],
            "tools": tools,
            "tool_choice": choice,
            "response_format": None if form is None else form.model_dump(by_alias=True, exclude_none=True),
            "thinking": free and effort not in ("none", "minimal"),
            "thinking_effort": None if effort in ("none", "minimal") else effort,
        }
    )


def message_of(message: ChatMessage) -> Mapping[str, object]:
    """As `chat_from_json` reads it; a developer is a system by another name."""
    fields = message.model_dump(exclude_none=True, exclude={"refusal", "annotations"})
    return fields | {"role": "system" if message.role == "developer" else message.role}
