"""The state of the run that the screen draws: samples, answers in progress, score, speed. Nothing here draws or
waits."""

from __future__ import annotations

import enum
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..log import Sample
from ..packs import Question
from ..plan import Key
from ..runner import Abandoned, Event, Finished, Started, Streamed
from .text import split_thinking

if TYPE_CHECKING:  # importing SciPy takes a second; the screen comes first
    from ds4ref.runs.stats import Interval


WINDOW = 3.0
"""Seconds over which the current speed is measured."""


class State(enum.StrEnum):
    """State of a sample; the value is the word that the screen shows."""

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


RUNNING = frozenset({State.FILL, State.THINK, State.ANS})
_GRADES = {"right": State.PASS, "wrong": State.FAIL, "ambiguous": State.AMBIG, "missing": State.MISS}
GRADED = frozenset(_GRADES.values())


def state_of(sample: Sample) -> State:
    """Return the state of a finished sample."""
    if sample.status == "failed":
        return State.ERR
    return State.STOP if sample.grade is None else _GRADES[sample.grade.outcome]


@dataclass(eq=False)
class Live:
    """An answer in progress.

    started    time on the run's clock, in seconds, at which the sample was sent
    state      FILL, THINK or ANS
    tokens     number of tokens so far
    reasoning  thinking so far
    output     answer so far
    """

    started: float = 0.0
    state: State = State.FILL
    tokens: int = 0
    reasoning: str = ""
    output: str = ""

    def parts(self) -> list[tuple[bool, str]]:
        """Return the answer so far as a list of (is_thought, text)."""
        return split_thinking(self.reasoning, self.output)


class Pace:
    """Speed, elapsed time and time left, on a clock that stops while the run is paused or idle.

    ``tick`` must be called at every redraw; ``going`` says whether the time until the next call counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._last = clock, clock()
        self.going = False
        self.seconds = 0.0  # total time in which the run was going
        self.tokens = 0
        self.samples = 0  # number of finished samples
        self._history: deque[tuple[float, int]] = deque([(0.0, 0)])  # (seconds, tokens)

    def tick(self) -> None:
        """Add the time since the last call, if the run was going."""
        now = self._clock()
        if self.going:
            self.seconds += now - self._last
        self._last = now
        while len(self._history) > 1 and self._history[1][0] <= self.seconds - WINDOW:
            self._history.popleft()

    def add(self, tokens: int, streamed: bool = True) -> None:
        """Add generated tokens. Tokens that were reported only at the end of an answer (``streamed`` false) count for
        the mean, but not for the current speed."""
        self.tokens += tokens
        if streamed:
            self._history.append((self.seconds, self.tokens))
        else:
            self._history = deque((at, total + tokens) for at, total in self._history)

    @property
    def speed(self) -> float | None:
        """Return the tokens per second within ``WINDOW``; None while unknown."""
        begun, before = self._history[0]
        span = self.seconds - begun
        return (self.tokens - before) / span if self.tokens and span >= 0.5 else None

    @property
    def mean(self) -> float | None:
        """Return the tokens per second of the whole run, prefill included; None while unknown."""
        return self.tokens / self.seconds if self.tokens and self.seconds >= 0.5 else None

    def seconds_left(self, samples: int) -> float | None:
        """Estimate the seconds for ``samples`` more samples; None before one has finished."""
        return samples * self.seconds / self.samples if self.samples else None


class Board:
    """State of all samples of ``questions`` times ``epochs``, starting with the ``samples`` of an earlier run."""

    def __init__(
        self, questions: Sequence[Question], epochs: int, samples: Mapping[Key, Sample], pace: Pace | None = None
    ):
        self.questions, self.epochs, self.pace = questions, epochs, pace or Pace()
        self.number = {q.id: i for i, q in enumerate(questions)}
        self.samples = {key: sample for key, sample in samples.items() if self.knows(key)}
        self.live: dict[Key, Live] = {}
        self.latest: Key | None = None  # the sample that was sent last

    def knows(self, key: Key) -> bool:
        """Return whether ``key`` is a sample of this run."""
        return key.question in self.number and 1 <= key.epoch <= self.epochs

    def apply(self, events: Iterable[Event]) -> set[int]:
        """Update the state by the runner's events; return the indexes of the questions whose state changed."""
        changed: set[int] = set()
        grown: set[Key] = set()
        for event in events:
            key = event.sample.key if isinstance(event, Finished) else event.key
            if not self.knows(key):
                continue
            match event:
                case Started():
                    self.latest = key
                    self.live[key] = Live(self.pace.seconds)
                case Streamed():
                    self._stream(key, event)
                    grown.add(key)
                    continue
                case Finished(sample):
                    live = self.live.pop(key, Live())
                    self.pace.add(max(0, (sample.tokens or 0) - live.tokens), streamed=False)
                    self.pace.samples += sample.status != "stopped"
                    self.samples[key] = sample
                case Abandoned():
                    self.live.pop(key, None)
            changed.add(self.number[key.question])
        for key in grown & self.live.keys():
            live = self.live[key]
            parts = live.parts()
            state = (State.THINK if parts[-1][0] else State.ANS) if parts else live.state
            if state is not live.state:
                live.state = state
                changed.add(self.number[key.question])
        return changed

    def _stream(self, key: Key, event: Streamed) -> None:
        live = self.live.setdefault(key, Live(self.pace.seconds))
        if event.thinking:
            live.reasoning += event.text
        else:
            live.output += event.text
        self.pace.add(max(0, event.tokens - live.tokens))
        live.tokens = max(live.tokens, event.tokens)

    def state(self, key: Key) -> State:
        """Return the state of one sample."""
        if key in self.live:
            return self.live[key].state
        sample = self.samples.get(key)
        return State.PEND if sample is None else state_of(sample)

    def states(self, i: int) -> list[State]:
        """Return the states of all epochs of question ``i``."""
        return [self.state(Key(epoch, self.questions[i].id)) for epoch in range(1, self.epochs + 1)]

    def key(self, i: int) -> Key:
        """Return the sample of question ``i`` to show: the running one, else the last finished, else the first."""
        states = self.states(i)
        running = [epoch for epoch, state in enumerate(states, 1) if state in RUNNING]
        finished = [epoch for epoch, state in enumerate(states, 1) if state is not State.PEND]
        return Key(running[0] if running else finished[-1] if finished else 1, self.questions[i].id)

    def counts(self) -> Counter[State]:
        """Return the number of finished samples in each state."""
        return Counter(map(state_of, self.samples.values()))

    @property
    def total(self) -> int:
        """Return the number of samples of the run."""
        return len(self.questions) * self.epochs

    def score(self, interval: Callable[[list[float]], Interval]) -> Interval | None:
        """Return the share of right answers with its interval, with the epochs of a question averaged; None before the
        first grade.

        interval: function that computes it from the averages of the questions.
        """
        grades: dict[str, list[bool]] = {}
        for sample in self.samples.values():
            if state_of(sample) in GRADED:
                grades.setdefault(sample.id, []).append(sample.right)
        return interval([sum(right) / len(right) for right in grades.values()]) if grades else None
