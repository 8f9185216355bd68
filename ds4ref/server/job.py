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
    """One of the prompts of a request.

    turn    what is asked for with this prompt
    prompt  the rendered prompt, empty for a prompt of token ids
    ids     its tokens
    choice  its number in the request, from 0
    last    whether it is the last one of the request
    """

    turn: Turn
    prompt: Rendered
    ids: list[int]
    choice: int = 0
    last: bool = True


@dataclass(eq=False)
class Job:
    """A turn (parsed request) submitted to the worker.

    parts       its prompts, answered one after the other
    listen      callback for the turn's events, called in the inference thread
    remember    called as ``remember(message, choice)`` with the finished answer to part number ``choice`` (from 0);
                returns it as the client will send it back in its history
    demanded    the constraint on the answer, None for none
    cancel      ends the answer when pressed, from any thread
    submitted, began, decoding, ended   when that stage began, in seconds of ``time.monotonic``; None before it
    start       which tokens of the present prompt were cached
    timing      tokens and seconds of prefill and decode
    finish      finish reason, "" before the end
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
        """The turn of the first part."""
        return self.parts[0].turn

    @property
    def ids(self) -> list[int]:
        """The tokens of the first prompt."""
        return self.parts[0].ids

    def tell(self, part: Part, event: Event) -> None:
        """Report an event of answering ``part`` to ``listen``; the final delta of any part but the last is wrapped in
        ``Answered``."""
        ended = isinstance(event, Delta) and event.finish and event.finish != Finish.CANCELLED
        self.listen(Answered(event) if ended and not part.last and isinstance(event, Delta) else event)
