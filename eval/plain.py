"""Show a run while it goes on: on the live screen, or as one line per finished sample, for logs, pipes and CI."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from ds4ref.console.common import Interrupt, Progress, is_tty

from .log import Sample, Writer
from .packs import Question
from .report import WORDS
from .runner import Event, Finished, Runner

PAUSE_S = 0.35
"""Seconds for which the screen shows a grade."""


def follow(
    make: Callable[[Callable[[Event], None]], Runner],
    questions: Sequence[Question],
    epochs: int,
    log: Writer,
    *,
    title: str,
    interrupt: Interrupt,
    screen: bool,
    out: IO[str],
    total: int,
    done: int = 0,
    pause_s: float = PAUSE_S,
) -> None:
    """Run the runner that ``make(listener)`` returns, shown on the live screen or else by lines on ``out``. The screen
    needs stdin, stdout and stderr to be terminals.

    total, done   number of samples of the run, and how many of them were done before; ``pause_s``: seconds for which
                  the screen shows each grade
    """
    if screen and all(map(is_tty, (sys.stdin, sys.stdout, sys.stderr))):
        from .tui import show

        show(make, questions, epochs, log, title=title, interrupt=interrupt, pause_s=pause_s)
        return
    with Progress("samples") as progress:
        runner = make(Plain({q.id: q for q in questions}, total, done, progress, out))
        with interrupt.does(runner.stop):
            runner.run()


class Plain:
    """Listener for the events of a runner, which prints every finished sample to ``out`` and progress to stderr."""

    def __init__(self, questions: Mapping[str, Question], total: int, done: int, progress: Progress, out: IO[str]):
        self.questions, self.total, self.done, self.progress, self.out = questions, total, done, progress, out
        self._lock = threading.Lock()
        progress(done, total)

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        with self._lock:
            if isinstance(event, Finished):
                self.done += 1
                self.progress.clear()
                print(line(event.sample, self.done, self.total), file=self.out, flush=True)
            self.progress(self.done, self.total)


def line(sample: Sample, number: int, total: int) -> str:
    """Format a sample as ``[12/93] maths-1f0c2a9e: right      given 204, expected 204 (812 tokens, 31.2 s)``."""
    if sample.grade is None:
        word = f"{sample.status}: {sample.error}" if sample.error else sample.status
    else:
        given = " ".join(sample.grade.given.split())[:24] or "-"
        word = f"{WORDS[sample.grade.outcome]:9}  given {given}, expected {sample.expected}"
    tokens = "" if sample.tokens is None else f"{sample.tokens} tokens, "
    epoch = f" epoch {sample.epoch}" if sample.epoch > 1 else ""
    thought = {"hard": ", thinking closed", "soft": ", thinking closed", "open": ", still thinking"}.get(
        sample.close, ""
    )
    return f"[{number}/{total}] {sample.id}{epoch}: {word} ({tokens}{sample.seconds:.1f} s{thought})"
