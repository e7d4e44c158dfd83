"""What requests are told, token by token, and what becomes of their memory when they end."""

from __future__ import annotations

from torch import Tensor

from statewell.engine.choosing import Chooser, logprobs
from statewell.engine.request import FinishReason, Logprobs, TokenEvent, Usage
from statewell.engine.reuse import Reusable
from statewell.engine.schedule import Schedule
from statewell.engine.sequence import Choice, Running
from statewell.errors import StatewellError
from statewell.memory.paged import PagedMemory


class Telling:
    """The events of a step so far; a choice that ends leaves its memory to be reused, a request its rows."""

    def __init__(self, memory: PagedMemory, schedule: Schedule, reuse: Reusable) -> None:
        self._memory, self._schedule, self._reuse = memory, schedule, reuse
        self._events: list[TokenEvent] = []

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self._events)

    def events(self) -> list[TokenEvent]:
        """What there is to tell, once."""
        events, self._events = self._events, []
        return events

    def take(
        self, running: Running, choice: Choice, token: int | StatewellError, scores: Tensor, close: bool = True
    ) -> None:
        """A choice's next token, or the error in its place."""
        if isinstance(token, StatewellError):
            self.tell(running, choice, None, None, "error", str(token), close)
            return
        request = running.request
        said = None if request.logprobs is None else logprobs(scores, token, request.logprobs)
        choice.ids.append(token)
        choice.chooser.take(token)
        count = len(choice.ids) - len(request.prompt)
        finish: FinishReason | None = None
        if token in request.stop:
            finish = "stop"
        elif count >= running.most:
            finish = "length" if count == request.max_tokens else "context"
        self.tell(running, choice, token, said, finish, None, close)

    def tell(
        self,
        running: Running,
        choice: Choice,
        token: int | None,
        said: Logprobs | None,
        finish: FinishReason | None,
        error: str | None = None,
        close: bool = True,
    ) -> None:
        """One event. close: whether the memory of a choice that ends with it is let go at once."""
        running.generated += token is not None
        choice.done = finish is not None
        over = choice.done and not running.live
        scored = None
        if running.request.echo and not running.told:
            scored = (None, *running.scored)
        running.told = True
        self._events.append(
            TokenEvent(
                request=running.number,
                choice=choice.place,
                token=token,
                logprobs=said,
                finish=finish,
                usage=self._usage(running) if over else None,
                prompt_logprobs=scored,
                error=error,
            )
        )
        if choice.done and close:
            self.close(running, choice)

    def _usage(self, running: Running) -> Usage:
        return Usage(prompt=len(running.request.prompt), reuse=running.reuse, generated=running.generated)

    def close(self, running: Running, choice: Choice) -> None:
        """A choice has ended: what it holds is kept for reuse, its row is free."""
        if choice.row is not None and running.beams is None:
            length = self._memory.lengths[choice.row]
            self._reuse.keep(running.request.owner, choice.ids[:length], choice.row)
        self._schedule.close(choice)
        if not running.live:
            self._schedule.leave(running)

    def end(self, running: Running, finish: FinishReason, error: str | None = None) -> None:
        """End all that is left of a request at once, keeping nothing."""
        for choice in running.live or [Choice(0, Chooser(running.request.sampling, frozenset()), [])]:
            self._schedule.close(choice)
            self.tell(running, choice, None, None, finish, error, close=False)
        self._schedule.leave(running)
