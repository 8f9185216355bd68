"""A turn submitted to the worker: its prompts as tokens, its cancellation, and its times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..cancellation import Cancellation
from ..generate import Timing
from ..targets.answer import Delta, Finish
from ..text.chat import Message
from ..text.rendered import Rendered
from .turn import Answered, Event, Turn

if TYPE_CHECKING:
    from .constrain import Guide
    from .sequences import Start


@dataclass(frozen=True)
class Part:
    """A prompt of a turn, rendered and as tokens; ``last``: no other one follows."""

    turn: Turn
    prompt: Rendered
    ids: list[int]
    choice: int = 0
    last: bool = True


@dataclass(eq=False)
class Job:
    """A turn submitted to the worker.

    parts       its prompts, answered one after the other
    listen      callback for the turn's events, called in the inference thread
    remember    returns the finished answer to a part as the client will send it back in its history; ``choice``: the
                number of the part from 0
    demanded    the constraint on the answer, None for none
    submitted, began, decoding, ended   seconds of ``time.monotonic``; None before that stage
    """

    parts: list[Part]
    listen: Callable[[Event], None]
    remember: Callable[..., Message] = lambda message, choice: message
    demanded: Guide | None = None
    cancel: Cancellation = field(default_factory=Cancellation)
    submitted: float = 0.0
    began: float | None = None
    decoding: float | None = None
    ended: float | None = None
    start: Start | None = None
    timing: Timing = field(default_factory=Timing)
    finish: str = ""

    @property
    def turn(self) -> Turn:
        """The turn, which is that of the first part."""
        return self.parts[0].turn

    @property
    def ids(self) -> list[int]:
        """The tokens of the first prompt."""
        return self.parts[0].ids

    def tell(self, part: Part, event: Event) -> None:
        """Report an event of answering ``part``; the end of all answers but the last is ``Answered``."""
        ended = isinstance(event, Delta) and event.finish and event.finish != Finish.CANCELLED
        self.listen(Answered(event) if ended and not part.last and isinstance(event, Delta) else event)
