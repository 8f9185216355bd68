"""A target that says what a script says, when it says so; questions for it; and a log to put its samples into."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ds4ref.eval.log import Writer, header_of
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.plan import Settings
from ds4ref.targets import Ability, Delta, Finish, Request, Target, Usage

Step = Delta | threading.Event | Exception
"""A piece; silence until somebody sets it; the end by an error."""


class Scripted(Target):
    """Streams what ``script`` yields for a request; cancelled at any step."""

    kind, name = "scripted", "scripted"

    def __init__(self, script: Callable[[Request], Iterable[Step]], *abilities: Ability):
        self.script = script
        self.abilities = frozenset({Ability.CHAT, Ability.STREAM, *abilities})
        self.asked: list[Request] = []
        self.finish: Callable[[Request], Finish] = lambda request: Finish.STOP

    def stream(self, request: Request) -> Iterator[Delta]:
        self.asked.append(request)
        cancelled = request.cancel or (lambda: False)
        start, tokens = time.perf_counter(), 0
        for step in self.script(request):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, threading.Event):
                while not step.wait(0.005) and not cancelled():
                    pass
            else:
                tokens += step.brings
                yield Delta(step.text, reasoning=step.reasoning, time=time.perf_counter() - start)
            if cancelled():
                break
        finish = Finish.CANCELLED if cancelled() else self.finish(request)
        yield Delta(finish=finish, usage=Usage(40, tokens), time=time.perf_counter() - start)


def integer(i: int) -> Question:
    """A question whose answer is ``i``."""
    asked = f"Which number is {i}?"
    return Question(f"maths-{i:04}", "maths", "numbers", "hard", "integer", asked, (), str(i), f"It is {i}.")


def choice(i: int, answer: str = "C") -> Question:
    """One with four choices."""
    choices = tuple(f"choice {letter} of {i}" for letter in "one two three four".split())
    return Question(
        f"science-{i:04}", "science", "physics", "hard", "choice", f"Which choice of {i}?", choices, answer,
        "Because of this.", distractors=("forgot a sign", "", "", "off by one"),
    )  # fmt: skip


def log_of(path: Path, questions: Iterable[Question], settings: Settings | None = None, epochs: int = 1) -> Writer:
    """An empty log."""
    pack = Pack(Header("scripted", 1), tuple(questions))
    return Writer.create(path, header_of(pack, settings or Settings(tokens=2000), epochs, {"kind": "scripted"}, {}))
