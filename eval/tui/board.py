"""What the screen knows: the state of every sample, the answers that are under way, the score.

Fed with the runner's events by one thread, ``apply``; no widget in here, and nothing that blocks.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..log import Sample
from ..packs import Question
from ..plan import Key
from ..runner import Abandoned, Event, Finished, Started, Streamed
from .pace import Pace
from .text import Transcript

if TYPE_CHECKING:  # SciPy takes a second; the screen comes first
    from ds4ref.runs.stats import Interval


class State(enum.StrEnum):
    """Of a sample. The value is what the screen says."""

    PEND = "PEND"
    FILL = "FILL"
    THINK = "THINK"
    ANS = "ANS"
    PASS = "PASS"
    FAIL = "FAIL"
    AMBIG = "AMBIG"
    MISS = "MISS"
    ERR = "ERR"
    STOP = "STOP"

    @property
    def running(self) -> bool:
        """Whether it is being answered."""
        return self in (State.FILL, State.THINK, State.ANS)

    @property
    def graded(self) -> bool:
        """Whether it counts."""
        return self in (State.PASS, State.FAIL, State.AMBIG, State.MISS)


_GRADES = {"right": State.PASS, "wrong": State.FAIL, "ambiguous": State.AMBIG, "missing": State.MISS}
MARKS = {State.PASS: "✓", State.FAIL: "✗", State.AMBIG: "?", State.MISS: "–", State.ERR: "!", State.STOP: "■"}
"""Of a sample among its question's epochs; ``·`` waits, ``»`` runs."""


def state_of(sample: Sample) -> State:
    """Of one that is over."""
    if sample.status == "failed":
        return State.ERR
    if sample.status == "stopped" or sample.grade is None:
        return State.STOP
    return _GRADES[sample.grade.outcome]


@dataclass(eq=False)
class Live:
    """An answer under way."""

    state: State = State.FILL
    transcript: Transcript = field(default_factory=Transcript)
    tokens: int = 0
    begun: float = 0.0  # seconds of running when it was sent


@dataclass(frozen=True)
class Changes:
    """What ``apply`` changed: questions (numbers from 0) whose state is another one, samples whose answers grew."""

    questions: frozenset[int] = frozenset()
    grew: frozenset[Key] = frozenset()


class Board:
    """All samples of ``questions`` times ``epochs``; ``samples`` are those that were there before."""

    def __init__(
        self, questions: Sequence[Question], epochs: int, samples: Mapping[Key, Sample], pace: Pace | None = None
    ):
        self.questions, self.epochs, self.pace = questions, epochs, pace or Pace()
        self.number = {q.id: i for i, q in enumerate(questions)}
        self.samples: dict[Key, Sample] = {}
        self.live: dict[Key, Live] = {}
        self.latest: Key | None = None  # the last one that was sent
        self.queued: set[Key] = set()  # wanted again by the user
        self.counts: Counter[State] = Counter({State.PEND: len(questions) * epochs})
        self.interval: Callable[[list[float]], Interval] | None = None
        self._right = [0] * len(questions)
        self._graded = [0] * len(questions)
        self._score: Interval | None = None
        for sample in samples.values():
            if self.knows(sample.key):
                self._keep(sample)

    def knows(self, key: Key) -> bool:
        """Whether it is one of the samples wanted here."""
        return key.question in self.number and 1 <= key.epoch <= self.epochs

    # --- what happens

    def apply(self, events: Iterable[Event]) -> Changes:
        """Take in what the runner said."""
        questions: set[int] = set()
        grew: set[Key] = set()
        for event in events:
            key = event.sample.key if isinstance(event, Finished) else event.key
            if not self.knows(key):
                continue
            match event:
                case Started():
                    self.queued.discard(key)
                    self.latest = key
                    self.live[key] = Live(begun=self.pace.seconds)
                case Streamed():
                    grew.add(key)
                    if not self._streamed(self.live.setdefault(key, Live(begun=self.pace.seconds)), event):
                        continue
                case Finished(sample):
                    live = self.live.pop(key, Live())
                    self.pace.counted(max(0, (sample.tokens or 0) - live.tokens))
                    if sample.status != "stopped":
                        self.pace.done()
                    self._keep(sample)
                case Abandoned():
                    self.live.pop(key, None)
            questions.add(self.number[key.question])
        return Changes(frozenset(questions), frozenset(grew))

    def _streamed(self, live: Live, event: Streamed) -> bool:
        """Whether its state is another one now."""
        live.transcript.add(event.text, event.thinking)
        self.pace.came(max(0, event.tokens - live.tokens))
        live.tokens = max(live.tokens, event.tokens)
        before = live.state
        if live.transcript.pieces:
            live.state = State.THINK if live.transcript.pieces[-1][0] else State.ANS
        elif event.thinking:
            live.state = State.THINK
        return live.state is not before

    def _keep(self, sample: Sample) -> None:
        old = self.samples.get(sample.key)
        i = self.number[sample.id]
        for there, change in ((old, -1), (sample, 1)):
            state = State.PEND if there is None else state_of(there)
            self.counts[state] += change
            self._right[i] += change * (state is State.PASS)
            self._graded[i] += change * state.graded
        self.samples[sample.key] = sample
        self._score = None

    # --- what there is

    def state(self, key: Key) -> State:
        """Of one sample."""
        if key in self.live:
            return self.live[key].state
        sample = self.samples.get(key)
        return State.PEND if sample is None else state_of(sample)

    def states(self, i: int) -> list[State]:
        """Of the epochs of question ``i``."""
        return [self.state(Key(epoch, self.questions[i].id)) for epoch in range(1, self.epochs + 1)]

    def epoch(self, i: int) -> int:
        """The one that is worth looking at: the one that runs, else the last one that is over, else the first."""
        states = self.states(i)
        running = [epoch for epoch, state in enumerate(states, 1) if state.running]
        over = [epoch for epoch, state in enumerate(states, 1) if state is not State.PEND]
        return running[0] if running else over[-1] if over else 1

    @property
    def graded(self) -> int:
        """Samples that count."""
        return sum(self._graded)

    @property
    def right(self) -> int:
        """Of those."""
        return sum(self._right)

    @property
    def total(self) -> int:
        """Samples wanted."""
        return len(self.questions) * self.epochs

    def score(self) -> Interval | None:
        """The share of right answers with its interval, epochs of a question averaged; None before there is one, or
        before ``interval`` is known."""
        if self.interval is None or not self.graded:
            return None
        if self._score is None:
            self._score = self.interval([right / n for right, n in zip(self._right, self._graded, strict=True) if n])
        return self._score
