"""Who runs, by bytes and rows: the highest priority first, then whoever came first; nobody is passed over for size.

A request starts when what it may come to need at its longest is there, so that nothing that runs can ever run out. One
of higher priority may set others aside: their memory stays, their rows go, and they go on later from where they were.
"""

from __future__ import annotations

from statewell.engine.budget import Budget
from statewell.engine.choosing import Chooser
from statewell.engine.reuse import Reusable
from statewell.engine.sequence import Choice, Running
from statewell.memory.paged import PagedMemory


class Schedule:
    """Waiting and running requests of one memory."""

    def __init__(self, memory: PagedMemory, budget: Budget, reuse: Reusable) -> None:
        self._memory, self._budget, self._reuse = memory, budget, reuse
        self.waiting: list[Running] = []
        self.running: list[Running] = []

    def add(self, running: Running) -> None:
        """Queue a request."""
        self.waiting.append(running)

    def admit(self) -> None:
        """Start or resume whoever is next, as long as there is room."""
        self.waiting.sort(key=lambda running: (-running.request.priority, running.number))
        while self.waiting:
            head = self.waiting[0]
            if not self._fits(head) and not self._make_way(head):
                return
            self.waiting.pop(0)
            self.running.append(head)
            if head.set_aside:
                self._resume(head)
            else:
                self._start(head)

    def leave(self, running: Running) -> None:
        """The request is over: its rows and its memory are free."""
        for choice in running.choices:
            self.close(choice)
        for requests in (self.running, self.waiting):
            if running in requests:
                requests.remove(running)

    def close(self, choice: Choice) -> None:
        """Let go of the memory of one choice."""
        if choice.row is not None:
            self._memory.close(choice.row)
        if choice.aside is not None:
            self._memory.drop(choice.aside)
        choice.row = choice.aside = None

    def _committed(self) -> int:
        """Bytes promised to whoever runs, and held by whoever was set aside."""
        aside = (choice.aside for running in self.waiting for choice in running.choices)
        held = [part for part in aside if part is not None]
        pages = len({page for part in held for page in part.pages}) * self._memory.page_bytes
        promised = sum(self._budget.needs(running.request) for running in self.running)
        return promised + pages + sum(part.state_bytes for part in held)

    def _fits(self, head: Running) -> bool:
        rows = sum(running.request.rows for running in self.running)
        own = sum(
            choice.aside.state_bytes + len(choice.aside.pages) * self._memory.page_bytes
            for choice in head.choices
            if choice.aside is not None
        )
        enough_rows = rows + head.request.rows <= self._budget.rows
        return enough_rows and self._budget.allows(self._committed() - own, self._budget.needs(head.request))

    def _make_way(self, head: Running) -> bool:
        """Set lower ones aside, lowest and latest first, until `head` fits; False, and all as before, if it cannot."""
        lower = [running for running in self.running if running.request.priority < head.request.priority]
        lower.sort(key=lambda running: (running.request.priority, -running.number))
        moved: list[Running] = []
        for running in lower:
            self._set_aside(running)
            moved.append(running)
            if self._fits(head):
                return True
        for running in reversed(moved):
            self.waiting.remove(running)
            self.running.append(running)
            self._resume(running)
        return False

    def _set_aside(self, running: Running) -> None:
        self._reuse.make_room(len(running.live) * self._budget.spec.fixed_bytes)
        for choice in running.live:
            if choice.row is not None:
                choice.aside = self._memory.hold(choice.row)
                self._memory.close(choice.row)
                choice.row = None
        self.running.remove(running)
        self.waiting.append(running)

    def _resume(self, running: Running) -> None:
        for choice in running.live:
            if choice.aside is not None:
                choice.row = self._memory.open(choice.aside)
                self._memory.drop(choice.aside)
                choice.aside = None

    def _start(self, running: Running) -> None:
        request = running.request
        row, running.reuse = self._reuse.begin(request)
        running.read = running.reuse.tokens
        constraint = None if request.constraint is None else request.constraint.fork()
        chooser = Chooser(request.sampling, frozenset(request.prompt), constraint=constraint)
        running.choices.append(Choice(0, chooser, list(request.prompt), row))
