"""A turn submitted to the worker: its prompt as tokens, its cancellation, and its times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from ..cancellation import Cancellation
from ..generate import Timing
from ..targets.answer import Delta, Finish
from ..text.chat import Message
from ..text.rendered import Rendered
from .turn import Answered, Event, Turn

if TYPE_CHECKING:
    from .constrain import Guide
    from .timelines import Start


@dataclass(eq=False)
class Job:
    """A turn submitted to the worker.

    listen      callback for the turn's events, called in the inference thread
    remember    returns the finished answer as the client will send it back in its history; of a request with several
                answers it is also told ``choice``, the number of the answer from 0
    more        further prompts of the same request, each with its turn and token ids
    demanded    the constraint on the answer, None for none
    submitted, began, decoding, ended   seconds of ``time.monotonic``; None before that stage
    """

    number: int
    turn: Turn
    prompt: Rendered
    ids: list[int]
    listen: Callable[[Event], None]
    remember: Callable[..., Message] = lambda message: message
    more: tuple[tuple[Turn, Rendered, list[int]], ...] = ()
    demanded: Guide | None = None
    cancel: Cancellation = field(default_factory=Cancellation)
    submitted: float = 0.0
    began: float | None = None
    decoding: float | None = None
    ended: float | None = None
    start: Start | None = None
    timing: Timing = field(default_factory=Timing)
    finish: str = ""

    def per_prompt(self) -> Iterator[Job]:
        """Yield a job for each prompt of the request.

        The last delta of every prompt but the last is reported as ``Answered``.
        """

        def listen(event: Event) -> None:
            ended = isinstance(event, Delta) and event.finish and event.finish != Finish.CANCELLED
            self.listen(Answered(event) if ended and isinstance(event, Delta) else event)

        turns = ((self.turn, self.prompt, self.ids), *self.more)
        for number, (turn, prompt, ids) in enumerate(turns, 1):
            if len(turns) == 1:
                yield self
                return
            part = replace(
                self, turn=turn, prompt=prompt, ids=ids, listen=self.listen if number == len(turns) else listen,
                remember=partial(self.remember, choice=number - 1),
                demanded=None if self.demanded is None else self.demanded.fresh(),
            )  # fmt: skip
            yield part
            if part.finish == Finish.CANCELLED:
                return
