"""One conversation with one model: what was said, in words and in tokens, with its memory kept from turn to turn.

Every turn is the whole conversation in the model's chat format, given to an engine that holds the memory of what it has
read: texts keep the tokens they were said in, so that the next turn begins with the same ones. A `Talk` is a value;
going on makes a new one, so a fork costs nothing until it says something else. Start at `Conversation.ask`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from safetensors import SafetensorError

from statewell.config.engine import EngineConfig
from statewell.engine.engine import Engine
from statewell.engine.request import FinishReason, Request, TokenEvent, Usage
from statewell.engine.sampling import LARGEST_SEED, Sampling
from statewell.engine.text_stream import UntilStop
from statewell.errors import CheckpointError, RequestError
from statewell.formats.strict_json import parse_json
from statewell.memory.snapshot import load_snapshot, save_snapshot
from statewell.models.backbone import LanguageModel
from statewell.models.fingerprint import fingerprint
from statewell.text.chat import Chat, Message, chat_from_json, texts_said
from statewell.text.reply import Content, Reasoning, ReplyPiece, ReplyReader
from statewell.text.templates import chat_template

OWNER = ""


@dataclass(frozen=True)
class Talk:
    """What was said so far. ids: the last prompt and its answer, as the model took them in and gave them."""

    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How an answer ended. finish: "interrupted" where `interrupt` ended it. seconds: all, and to the first token.

    error: one sentence, where finish is "error".
    """

    finish: FinishReason | str
    usage: Usage
    seconds: float
    first_token_s: float | None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """sampling: of the first answer; each later one has the next seed. max_tokens: of an answer. stop: texts that end
    one. system: said before everything. engine: how much memory it may take.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    system: str = ""
    engine: EngineConfig = field(default_factory=lambda: EngineConfig(rows=1))


class Conversation:
    """A conversation on an engine of its own.

    Raises RequestError for a model without a tokenizer, LimitError when the budget does not hold one conversation.
    """

    def __init__(self, model: LanguageModel, settings: ChatSettings | None = None) -> None:
        if model.tokenizer is None:
            raise RequestError(f"{model.config.name} has no tokenizer, so its tokens are no text; use Engine instead.")
        self._tokenizer, self._settings = model.tokenizer, settings or ChatSettings()
        self._template = chat_template(model.tokenizer)
        self.engine = Engine(model, self._settings.engine, model.tokenizer.decode_bytes)
        self.talk = self._beginning()
        self._turns, self._interrupted = 0, False
        UntilStop(self._settings.stop)  # an empty one is refused before anything is said

    @property
    def template_name(self) -> str:
        """What people call the model's chat format."""
        return self._template.name

    @cached_property
    def fingerprint(self) -> str:
        """The model's; all weights are read for it, once."""
        return fingerprint(self.engine.model)

    def restart(self) -> None:
        """Begin a new conversation; the memory of this one stays until its room is needed."""
        self.talk = self._beginning()

    def interrupt(self) -> None:
        """End the answer that is being given, before its next token; what was said of it stays said."""
        self._interrupted = True

    def ask(self, text: str) -> Iterator[ReplyPiece | Turn]:
        """Say `text`; the answer in pieces as they become certain, then how it ended.

        What can be refused is refused by this call, and nothing was said then: RequestError for what the format cannot
        say, LimitError for a conversation past the model's limit or the budget.
        """
        chat = Chat(messages=(*self.talk.messages, Message(role="user", parts=(text,))))
        known = texts_said(self._tokenizer, self.talk.ids)
        seed = (self._settings.sampling.seed + self._turns) % (LARGEST_SEED + 1)
        request = Request(
            prompt=tuple(self._template.ids(chat, known)) or (self._tokenizer.separator,),
            max_tokens=self._settings.max_tokens,
            sampling=replace(self._settings.sampling, seed=seed),
            stop=self._tokenizer.specials.ends,
            owner=OWNER,
        )
        number = self.engine.submit(request)
        self._turns, self._interrupted = self._turns + 1, False
        answer = _Answer(self._template.reader(chat), (*self._template.stop, *self._settings.stop))
        return self._answered(number, request, chat, answer)

    def save(self, path: Path) -> int:
        """Write what was said and its memory into `path`, whole or not at all; the tokens in it.

        Raises RequestError where nothing was said, or its memory was let go; CheckpointError for a disk that is full.
        """
        snapshot = self.engine.reuse.snapshot(OWNER, self.talk.ids) if self.talk.ids else None
        if snapshot is None:
            why = "its memory was let go to make room; say something first" if self.talk.ids else "nothing was said yet"
            raise RequestError(f"There is nothing to save: {why}.")
        (length,) = snapshot.lengths
        notes = {
            "ids": json.dumps(self.talk.ids[:length]),
            "unread": json.dumps(self.talk.ids[length:]),
            "messages": json.dumps([_to_json(message) for message in self.talk.messages]),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            save_snapshot(path, snapshot, self.fingerprint, notes)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} could not be written ({error}); nothing was saved.") from None
        return length

    def load(self, path: Path) -> int:
        """Go on with the conversation in `path`; the tokens it holds.

        Raises CheckpointError, changing nothing, for one that is damaged or another model's; LimitError without room.
        """
        saved = load_snapshot(path, self.fingerprint)
        vocab, where = self.engine.model.config.vocab, str(path)
        taken, unread = (_ids_of(saved.notes, name, vocab, where) for name in ("ids", "unread"))
        if saved.snapshot.lengths != (len(taken),):
            raise CheckpointError(
                f"{path} names {len(taken)} tokens and holds {saved.snapshot.lengths}; it is damaged."
            )
        messages = _messages_of(saved.notes, where)
        self.engine.reuse.take_in(OWNER, taken, saved.snapshot)
        self.talk = Talk(messages, taken + unread)
        return len(taken)

    def _beginning(self) -> Talk:
        system = self._settings.system
        return Talk((Message(role="system", parts=(system,)),) if system else ())

    def _answered(self, number: int, request: Request, chat: Chat, answer: _Answer) -> Iterator[ReplyPiece | Turn]:
        began, first, cut = time.perf_counter(), None, False
        try:
            while True:
                for event in self.engine.step():
                    if event.request != number:
                        continue  # of an answer that nobody began to read
                    if first is None and event.token is not None:
                        first = time.perf_counter() - began
                    yield from answer.read(event)
                    if event.usage is not None:
                        if event.error is None:
                            said = Message(role="assistant", parts=(answer.content,), reasoning=answer.reasoning)
                            self.talk = Talk((*chat.messages, said), (*request.prompt, *answer.ids))
                        yield Turn(
                            finish="interrupted" if cut else event.finish or "stop",
                            usage=event.usage,
                            seconds=time.perf_counter() - began,
                            first_token_s=first,
                            error=event.error,
                        )
                        return
                if answer.over or self._interrupted:
                    cut = self._end(number) and not answer.over
        finally:
            self.engine.cancel(number)  # whoever asked has left in the middle; nothing where it is over

    def _end(self, number: int) -> bool:
        """End the answer, its memory kept; before its first step there is none. False where it is over already."""
        return self.engine.stop(number, 0) or self.engine.cancel(number)


class _Answer:
    """Reads one answer. content, reasoning: so far. ids: every token of it."""

    def __init__(self, reader: ReplyReader, stop: tuple[str, ...]) -> None:
        self._reader, self._until = reader, UntilStop(stop)
        self.content = self.reasoning = ""
        self.ids: list[int] = []

    @property
    def over(self) -> bool:
        """The text has ended, whatever tokens still come."""
        return self._until.stopped or self._reader.done

    def read(self, event: TokenEvent) -> Iterator[ReplyPiece]:
        """Take the next event in; what is now certain."""
        pieces: list[ReplyPiece] = []
        if event.token is not None:
            self.ids.append(event.token)
            if not self.over and event.finish != "stop":
                pieces += self._reader.push([event.token])
        if event.finish is not None:
            pieces += self._reader.finish()
        for piece in pieces:
            if isinstance(piece, Content):
                piece = Content(self._until.push(piece.text))
                self.content += piece.text
            elif isinstance(piece, Reasoning):
                self.reasoning += piece.text
            yield piece
        if event.finish is not None:
            rest = self._until.finish()
            self.content += rest
            yield Content(rest)


def _ids_of(notes: Mapping[str, str], name: str, vocab: int, where: str) -> tuple[int, ...]:
    ids = parse_json(notes.get(name, "[]").encode(), f"{where}: {name}")
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab for token in ids):
        raise CheckpointError(f"{where}: {name} should be token ids of this model; the file is damaged.")
    return tuple(cast(list[int], ids))


def _messages_of(notes: Mapping[str, str], where: str) -> tuple[Message, ...]:
    messages = parse_json(notes.get("messages", "null").encode(), f"{where}: messages")
    if messages is None:
        raise CheckpointError(f"{where} holds no conversation; it was saved from a text.")
    try:
        return chat_from_json({"messages": messages}).messages
    except RequestError as error:
        raise CheckpointError(f"{where} holds messages that are none: {error}") from None


def _to_json(message: Message) -> dict[str, str]:
    reasoning = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return {"role": message.role, "content": message.content, **reasoning}
