"""One request on its way through the engine: its conversations, what they have read and what they have yet to read."""

from __future__ import annotations

from dataclasses import dataclass, field

from statewell.engine.beams import BeamSearch
from statewell.engine.choosing import Chooser
from statewell.engine.request import Logprobs, Request, Reuse
from statewell.memory.paged import Held


@dataclass(eq=False)
class Choice:
    """One continuation. row: of the memory, None while it has none. ids: prompt and new tokens; the row has taken in
    all but the last ones. told: new tokens that were given out. aside: its memory while the request is set aside.
    """

    place: int
    chooser: Chooser
    ids: list[int]
    row: int | None = None
    aside: Held | None = None
    done: bool = False


@dataclass(eq=False)
class Running:
    """A request that has rows, or is waiting for them.

    most: new tokens per choice, of max_tokens those that the model's limit allows. choices: the first alone reads the
    prompt; the others begin where it ends. read: prompt tokens taken in. scored: the prompt's own log-probabilities so
    far, when they were asked for. told: whether its first event was given out.
    """

    number: int
    request: Request
    most: int
    choices: list[Choice] = field(default_factory=list)
    reuse: Reuse = field(default_factory=lambda: Reuse(tokens=0, missed=None))
    read: int = 0
    scored: list[Logprobs | None] = field(default_factory=list)
    generated: int = 0
    beams: BeamSearch | None = None
    told: bool = False

    @property
    def prefilling(self) -> bool:
        """Whether prompt tokens are left to read."""
        return self.read < len(self.request.prompt)

    @property
    def live(self) -> list[Choice]:
        """Choices that go on."""
        return [choice for choice in self.choices if not choice.done]

    @property
    def set_aside(self) -> bool:
        """Whether its memory is kept without rows."""
        return any(choice.aside is not None for choice in self.choices)
