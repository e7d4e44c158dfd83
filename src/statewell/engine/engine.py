"""Many requests on one model at a time: they join and leave at any step, and each comes out as if it ran alone.

A step takes one token of every running conversation in, in one pass, and then at most `prefill_chunk` prompt tokens of
those that are still reading, in others: a long prompt holds the running ones up by one chunk. Single-threaded; whoever
calls `step` owns the engine. Start at `submit` and `step`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from statewell.config.engine import EngineConfig
from statewell.config.memory import MemorySpec
from statewell.engine.beams import BeamSearch
from statewell.engine.budget import Budget
from statewell.engine.choosing import Chooser, choose, logprobs
from statewell.engine.draft import guess
from statewell.engine.passes import Piece, run
from statewell.engine.request import FinishReason, Gauges, Logprobs, Request, TokenEvent
from statewell.engine.reuse import Reusable
from statewell.engine.schedule import Schedule
from statewell.engine.sequence import Choice, Running
from statewell.engine.telling import Telling
from statewell.errors import LimitError, RequestError, StatewellError
from statewell.memory.paged import Held
from statewell.models.backbone import LanguageModel


@dataclass
class Seconds:
    """Where time went since the engine was made. steps: all of it. passes: in the model. choosing: of tokens.

    What is left of `steps` is the engine's own: who runs, what is kept, what is told.
    """

    steps: float = 0.0
    passes: float = 0.0
    choosing: float = 0.0


class Engine:
    """Requests in, token events out.

    bytes_of: the bytes of token ids, to tell text that was tokenised anew from other text; None where ids are no text.
    Raises LimitError when the budget does not even hold the rows' fixed states.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: EngineConfig | None = None,
        bytes_of: Callable[[Sequence[int]], bytes] | None = None,
    ) -> None:
        self.model, self.config = model, config or EngineConfig()
        spec = MemorySpec(tensors=tuple(tensor for layer in model.memory_specs() for tensor in layer.tensors))
        self.memory = model.new_paged_memory(self.config.rows)
        self.budget = Budget(spec, self.config.rows, self.memory.page, self.config.memory_budget)
        self.reuse = Reusable(self.memory, self.budget, self.config.state_every, bytes_of)
        self._schedule = Schedule(self.memory, self.budget, self.reuse)
        self.seconds = Seconds()
        self._numbers = itertools.count()
        self._telling = Telling(self.memory, self._schedule, self.reuse)

    def submit(self, request: Request) -> int:
        """Queue a request; its number. Raises RequestError or LimitError for one that could never run."""
        vocab, limit = self.model.config.vocab, self.model.config.context
        named = [*request.prompt, *(token for token, _ in request.sampling.logit_bias)]
        wrong = next((token for token in named if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is not in this model's vocabulary, 0 to {vocab - 1}.")
        if limit is not None and len(request.prompt) > limit:
            raise LimitError(
                f"The prompt is {len(request.prompt):,} tokens; {self.model.config.name} holds at most {limit:,}: "
                f"shorten it by {len(request.prompt) - limit:,}."
            )
        # tokens past the model's limit are never made, so no memory is promised to them
        most = request.max_tokens if limit is None else min(request.max_tokens, limit - len(request.prompt) + 1)
        self.budget.check(replace(request, max_tokens=most))
        running = Running(next(self._numbers), request, most)
        self._schedule.add(running)
        return running.number

    def cancel(self, number: int) -> bool:
        """End a request now; its memory is free when this returns. False when it is not here (any more)."""
        for running in (*self._schedule.running, *self._schedule.waiting):
            if running.number == number:
                self._telling.end(running, "cancelled")
                return True
        return False

    def stop(self, number: int, place: int) -> bool:
        """End one choice, whose text turned out to be over, as a stop token would; False when it does not go on."""
        for running in (*self._schedule.running, *self._schedule.waiting):
            for choice in running.live:
                if running.number == number and choice.place == place and running.beams is None:
                    self._telling.tell(running, choice, None, None, "stop")
                    return True
        return False

    @property
    def busy(self) -> bool:
        """Whether there is anything to do, or to tell."""
        return bool(self._schedule.running or self._schedule.waiting or self._telling)

    def gauges(self) -> Gauges:
        """What is held now."""
        used, reserved = self.memory.used(), self.memory.bytes()
        aside = sum(running.set_aside for running in self._schedule.waiting)
        return Gauges(
            used={"slots": used.slots, "pages": used.pages, "held": used.held},
            reserved={"slots": reserved.slots, "pages": reserved.pages, "held": reserved.held},
            running=len(self._schedule.running),
            waiting=len(self._schedule.waiting) - aside,
            set_aside=aside,
            rows=self.memory.rows_in_use,
        )

    def step(self) -> list[TokenEvent]:
        """Take every running request on by a little; what became known, with what `cancel` left to tell."""
        began = time.perf_counter()
        self._schedule.admit()
        self._decode()
        self._prefill()
        events = self._telling.events()
        self.seconds.steps += time.perf_counter() - began
        return events

    def _decode(self) -> None:
        """One more token of every conversation that has read its prompt, and of guesses as many as turn out right."""
        single, drafted, beams = [], [], []
        for running in self._schedule.running:
            if running.prefilling:
                continue
            if running.beams is not None:
                beams.append(running)
                continue
            for choice in running.live:
                ahead = self._guess(running, choice)
                (drafted if ahead else single).append((running, choice, ahead))
        rows = [choice for _, choice, _ in single] + [choice for running in beams for choice in running.live]
        if rows:
            scores = self._run([Piece(_row(choice), choice.ids[-1:], 1) for choice in rows])
            chosen = self._choose(
                [row[0] for row in scores[: len(single)]], [choice.chooser for _, choice, _ in single]
            )
            for (running, choice, _), token, row in zip(single, chosen, scores, strict=False):
                self._telling.take(running, choice, token, row[0])
            at = len(single)
            for running in beams:
                count = len(running.live)
                self._advance_beams(running, scores[at : at + count])
                at += count
        for running, choice, ahead in drafted:
            self._verify(running, choice, ahead)

    def _prefill(self) -> None:
        """At most a chunk of prompt tokens, of whoever came first; states are kept where they are to be."""
        left = self.config.prefill_chunk
        while left > 0:
            pieces: list[tuple[Running, Piece]] = []
            for running in self._schedule.running:
                if running.prefilling and left > 0:
                    piece = self._next_piece(running, left)
                    pieces.append((running, piece))
                    left -= len(piece.ids)
            if not pieces:
                return
            scores = self._run([piece for _, piece in pieces])
            for (running, piece), rows in zip(pieces, scores, strict=True):
                self._settle_prompt(running, len(piece.ids), rows)

    def _next_piece(self, running: Running, left: int) -> Piece:
        prompt, read = running.request.prompt, running.read
        stop = self.reuse.next_stop(read)
        count = min(left, len(prompt) - read, left if stop is None else stop - read)
        wanted = count if running.request.echo else int(read + count == len(prompt))
        return Piece(_row(running.choices[0]), prompt[read : read + count], wanted)

    def _settle_prompt(self, running: Running, count: int, scores: Tensor) -> None:
        request, choice = running.request, running.choices[0]
        if request.echo:
            predicted = request.prompt[running.read + 1 : running.read + count + 1]
            top = request.logprobs or 0
            running.scored += [logprobs(row, token, top) for row, token in zip(scores, predicted, strict=False)]
        running.read += count
        at_stop = not running.prefilling or self.reuse.next_stop(running.read - 1) == running.read
        if at_stop:
            self.reuse.keep(request.owner, request.prompt[: running.read], _row(choice))
        if running.prefilling:
            return
        if request.max_tokens == 0:
            self._telling.tell(running, choice, None, None, "length")
        elif request.beams > 1:
            room = min(request.max_tokens, running.most)
            out: FinishReason = "length" if room == request.max_tokens else "context"
            running.beams = BeamSearch(request.beams, request.stop, room, out, choice.chooser)
            self._advance_beams(running, [scores[-1:]])
        else:
            self._fork_choices(running)
            tokens = self._choose([scores[-1]] * len(running.choices), [each.chooser for each in running.choices])
            for each, token in zip(running.live, tokens, strict=True):
                self._telling.take(running, each, token, scores[-1])

    def _fork_choices(self, running: Running) -> None:
        """Every choice after the first continues from the prompt's end with random numbers of its own."""
        request, first = running.request, running.choices[0]
        if request.choices == 1:
            return
        held = self.memory.hold(_row(first))
        for place in range(1, request.choices):
            sampling = replace(request.sampling, seed=(request.sampling.seed + place) % 2**63)
            constraint = None if first.chooser.constraint is None else first.chooser.constraint.fork()
            chooser = Chooser(sampling, first.chooser.prompt, constraint=constraint)
            running.choices.append(Choice(place, chooser, list(request.prompt), self.memory.open(held)))
        self.memory.drop(held)

    def _guess(self, running: Running, choice: Choice) -> list[int]:
        """Tokens guessed to follow, as many as there is room for."""
        room = running.most - len(choice.ids) + len(running.request.prompt) - 1
        most = min(running.request.draft, room)
        return guess(choice.ids, most) if most > 0 else []

    def _verify(self, running: Running, choice: Choice, ahead: list[int]) -> None:
        """Score guessed tokens in one pass, keep those that would have been chosen, and undo the others."""
        before = len(choice.ids)
        held = None if self.memory.cuts else self.memory.hold(_row(choice))
        (scores,) = self._run([Piece(_row(choice), [choice.ids[-1], *ahead], len(ahead) + 1)])
        for n, row in enumerate(scores):
            (token,) = self._choose([row], [choice.chooser])
            self._telling.take(running, choice, token, row, close=False)
            if choice.done or n == len(ahead) or token != ahead[n]:
                break
        self._undo(choice, held, before - 1, len(choice.ids) - 1)
        if choice.done:
            self._telling.close(running, choice)

    def _undo(self, choice: Choice, held: Held | None, start: int, length: int) -> None:
        """The row, which ran ahead from `start`, holds the first `length` of its tokens again; `held` is let go."""
        if held is None:
            self.memory.cut(_row(choice), length)
            return
        if self.memory.lengths[_row(choice)] != length:
            self.memory.close(_row(choice))
            choice.row = self.memory.open(held)
            self._run([Piece(choice.row, choice.ids[start:length], 0)])
        self.memory.drop(held)

    def _advance_beams(self, running: Running, scores: Sequence[Tensor]) -> None:
        """Give every beam its next token and memory; tell the best once none goes on."""
        search, request = running.beams, running.request
        assert search is not None
        parents = [running.live[place] for place in search.advance(scores)]
        # a beam that goes on twice is held aside for its second one, before any row is given up
        asides = {id(parent): self.memory.hold(_row(parent)) for parent in _repeated(parents)}
        for choice in running.live:
            if choice not in parents:
                self._schedule.close(choice)
        beams: list[Choice] = []
        for place, (parent, beam) in enumerate(zip(parents, search.beams, strict=True)):
            row = self.memory.open(asides[id(parent)]) if parent in parents[:place] else _row(parent)
            beams.append(Choice(place, parent.chooser, [*request.prompt, *beam.tokens], row))
        for aside in asides.values():
            self.memory.drop(aside)
        running.choices = beams
        if search.done:
            self._tell_beams(running, search)

    def _tell_beams(self, running: Running, search: BeamSearch) -> None:
        request = running.request
        best = search.best(request.choices)
        if not best:
            self._telling.end(
                running, "error", "No token was likelier than none at all; the model's scores are damaged."
            )
            return
        running.choices = [Choice(n, Chooser(request.sampling, frozenset()), []) for n in range(len(best))]
        for choice, ended in zip(running.choices, best, strict=True):
            last = len(ended.beam.tokens) - 1
            for n, (token, value) in enumerate(zip(ended.beam.tokens, ended.beam.each, strict=True)):
                said = Logprobs(value, ()) if request.logprobs is not None else None
                self._telling.tell(running, choice, token, said, ended.finish if n == last else None)

    def _run(self, pieces: Sequence[Piece]) -> list[Tensor]:
        pages = sum(self.memory.new_pages(piece.row, len(piece.ids)) for piece in pieces)
        self.reuse.make_room(pages * self.memory.page_bytes)
        began = time.perf_counter()
        scores = run(self.model, self.memory, pieces)
        self.seconds.passes += time.perf_counter() - began
        return scores

    def _choose(self, scores: Sequence[Tensor], choosers: Sequence[Chooser]) -> list[int | StatewellError]:
        began = time.perf_counter()
        chosen = choose(scores, choosers)
        self.seconds.choosing += time.perf_counter() - began
        return chosen


def _repeated(choices: Sequence[Choice]) -> list[Choice]:
    """Each that is there more than once, once."""
    return [choice for n, choice in enumerate(choices) if choices[:n].count(choice) == 1]


def _row(choice: Choice) -> int:
    assert choice.row is not None, "a conversation that runs has a row"
    return choice.row
