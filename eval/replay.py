"""``ds4-eval --replay LOG``: show a finished run again as if its questions were being asked now. Nothing is asked or
written.

Answers appear one after the other in the order in which they were finished, word by word over the time that they took,
divided by ``speed``. Grades are those of the log.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

from ds4ref.cancellation import Cancellation
from ds4ref.console.common import Interrupt
from ds4ref.console.tables import stdout_width
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Ability, Delta, Request, Target

from .log import Log, Sample, Writer
from .options import ENDINGS, PROG
from .packs import Question
from .plain import PAUSE_S, follow
from .plan import Key, chosen
from .report import report
from .runner import Event, Finished, Runner, Streamed
from .view import opened

LEAST_NAP = 0.01
"""Waits shorter than so many seconds are added up before sleeping, so that fast replays are not slowed down by many
short sleeps."""
SLOWEST, FASTEST = 0.01, 10000.0


class Recorded(Target):
    """The target of a replay, which answers no requests; ``guided``: whether the thinking of the recorded run could be
    ended early."""

    kind, name = "replay", "replay"

    def __init__(self, guided: bool):
        self.abilities = frozenset({Ability.GUIDE}) if guided else frozenset()

    def stream(self, request: Request) -> Iterator[Delta]:
        """Raise TargetError: a replay must not ask anything."""
        raise TargetError("a replay sends no requests")


class Replay(Runner):
    """A runner that takes its answers from ``log`` instead of asking; ``speed`` may be changed at any time."""

    replays = True

    def __init__(self, log: Log, speed: float = 1.0, listen: Callable[[Event], None] = lambda event: None):
        self.recorded = {sample.key: sample for sample in log.samples}
        played = Writer(Path(log.path), io.BytesIO(), log.header, {})
        target = Recorded(log.header.target.get("kind") == "local")
        super().__init__(target, played, list(self.recorded), settings=log.header.plan,
                         questions=log.header.questions, listen=listen)  # fmt: skip
        self._clock_lock = threading.Lock()
        self._speed, self._since, self._before = speed, time.monotonic(), 0.0

    @property
    def speed(self) -> float:
        """How many times as fast as the recorded run the replay is."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        now = self.clock()
        with self._clock_lock:
            self._before, self._since = now, time.monotonic()
            self._speed = min(FASTEST, max(SLOWEST, speed))

    def clock(self) -> float:
        """Return how many seconds of the recorded run have been played."""
        with self._clock_lock:
            return self._before + (time.monotonic() - self._since) * self._speed

    def _answer(self, key: Key, cancel: Cancellation) -> Sample | None:
        sample = self.recorded.get(key)
        return sample if sample is not None and self._play(sample, cancel) else None

    def _keep(self, sample: Sample) -> bool:
        self.log.samples[sample.key] = sample
        self.listen(Finished(sample))
        return True

    def _play(self, sample: Sample, cancel: Cancellation) -> bool:
        """Report the words of an answer at their times; return whether it was played to its end, False if cancelled."""
        pieces = [(True, piece) for piece in _pieces(sample.reasoning)]
        pieces += [(False, piece) for piece in _pieces(sample.output)]
        first = min(sample.seconds, sample.ttft or 0.0)
        gap = (sample.seconds - first) / max(1, len(pieces) - 1)
        total, due = len(pieces) if sample.tokens is None else sample.tokens, first
        for at, (thinking, text) in enumerate(pieces, 1):
            due = self._wait(due, cancel)
            if cancel():
                return False
            played = first + gap * (at - 1)
            self._streamed(Streamed(sample.key, text, thinking, total * at // len(pieces), played))
            due += gap if at < len(pieces) or at == 1 else 0.0
        self._wait(due if pieces else sample.seconds, cancel, last=True)
        return not cancel()

    def _wait(self, due: float, cancel: Cancellation, last: bool = False) -> float:
        """Wait for ``due`` seconds of the recorded run, unless that is too short to sleep (with ``last`` in any case);
        return the seconds still to wait."""
        nap = due / self._speed
        if nap < LEAST_NAP and not last:
            return due
        cancel.wait(nap)
        return 0.0


def _pieces(text: str) -> list[str]:
    """Split a text into words, each with the white space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def asked(log: Log) -> list[Question]:
    """Return the questions that the run was to ask: those that its options selected, and all that have a sample."""
    chosen_by = log.header.facts.get("selection") or {}
    wanted = chosen(log.header.questions, chosen_by.get("only"))[: chosen_by.get("limit")]
    ids = {q.id for q in wanted} | {sample.id for sample in log.samples}
    return [q for q in log.header.questions if q.id in ids]


# --------------------------------------------------------------------------------------------------- the command


def replay(args: Namespace) -> int:
    """Play the log, then print its report; return the exit code."""
    if args.resume is not None or args.output is not None or args.json:
        raise UsageError("--replay only shows a log: --resume, --output and --json do not apply")
    log = opened(args.replay, PROG)
    if not log.samples:
        raise DataError(f"{log.path}: no samples yet")
    speed, questions = args.speed or 1.0, asked(log)
    epochs = max([log.header.epochs, *(sample.epoch for sample in log.samples)])
    title = f"{log.header.pack.get('pack')} on {log.header.target.get('name')}, {Path(log.path).name}"

    def make(listen: Callable[[Event], None]) -> Replay:
        return Replay(log, speed, listen)

    with Interrupt(*ENDINGS) as interrupt:
        follow(make, questions, epochs, make(lambda event: None).log, title=title, interrupt=interrupt,
               screen=not args.plain, out=sys.stdout, total=len(log.samples), pause_s=PAUSE_S / speed)  # fmt: skip
    print(report(log, stdout_width(120)))
    return interrupt.exit_code
