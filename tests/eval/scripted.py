"""A target that says what a script says, when it says so; questions for it; and a log to put its samples into."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ds4ref.eval.log import LogHeader, Writer, header_of
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.plan import Settings
from ds4ref.targets import Ability, Delta, Finish, Request, Target, Usage

Step = Delta | float | threading.Event | Exception
"""A piece; seconds of silence; silence until somebody sets it; the end by an error."""
Script = Callable[[Request], Iterable[Step]]


class Scripted(Target):
    """Streams what ``script`` yields for a request; cancelled at any step."""

    kind, name = "scripted", "scripted"

    def __init__(self, script: Script, *abilities: Ability):
        self.script = script
        self.abilities = frozenset({Ability.CHAT, Ability.STREAM, Ability.SAMPLING, Ability.SEED, *abilities})
        self.asked: list[Request] = []

    def stream(self, request: Request) -> Iterator[Delta]:
        self.asked.append(request)
        start, tokens = time.perf_counter(), 0
        for step in self.script(request):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, threading.Event):
                while not step.wait(0.005) and not _cancelled(request):
                    pass
            elif isinstance(step, Delta):
                tokens += step.brings
                yield Delta(step.text, reasoning=step.reasoning, time=time.perf_counter() - start)
            elif request.cancel is None:
                time.sleep(step)
            else:
                request.cancel.wait(step)
            if _cancelled(request):
                break
        finish = Finish.CANCELLED if _cancelled(request) else Finish.STOP
        yield Delta(finish=finish, usage=Usage(40, tokens), time=time.perf_counter() - start)


def _cancelled(request: Request) -> bool:
    return request.cancel is not None and request.cancel()


def said(reasoning: str = "", text: str = "", seconds: float = 0.0) -> Iterator[Step]:
    """Word by word, so many seconds apart."""
    for words, thought in ((reasoning, True), (text, False)):
        for word in words.splitlines(keepends=True) if seconds == 0 else _words(words):
            if seconds:
                yield seconds
            yield Delta(reasoning=word) if thought else Delta(word)


def _words(text: str) -> list[str]:
    return [word for word in text.replace(" ", " \0").replace("\n", "\n\0").split("\0") if word]


def integer(i: int, source: str = "maths", question: str = "") -> Question:
    """A question whose answer is ``i``."""
    return Question(
        f"{source}-{i:04}", source, "numbers", "hard", "integer", question or f"Which number is {i}?", (), str(i),
        explanation=f"It is {i}.",
    )  # fmt: skip


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
    header: LogHeader = header_of(pack, settings or Settings(tokens=2000), epochs, {"kind": "scripted"}, {})
    return Writer.create(path, header)
