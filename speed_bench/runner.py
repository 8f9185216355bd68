"""Runs a plan: opens its lanes, warms them up, measures them in turn, stores every row.

    from ds4ref.speed_bench import Plan, run
    result = run(Plan.sweep("local", depths=(512, 1024), gen_tokens=16, reps=3))
    for row in result.lanes[0].summary():
        print(row["ctx_tokens"], row["gen_tps"])

A repetition is a whole sweep. Several lanes take turns row by row, A B, then B A, and so on, with the order swapped
from repetition to repetition (ABBA), so that slow changes of the machine affect all alike. A binary sweeps by itself,
so if a lane is a binary, whole sweeps take turns. Every row is stored as soon as it is measured.
"""

from __future__ import annotations

import calendar
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import duration
from ds4ref.errors import Cancelled, DataError
from ds4ref.runs import drift, warnings
from ds4ref.runs.columns import Sample, summaries
from ds4ref.runs.provenance import stamp
from ds4ref.targets import Cancellation

from .plan import MOST_REPS, Lane, Plan, kind_of
from .samples import seconds
from .source import Opening, Progress, Say, Source
from .sources import open_source

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

ANNOUNCED_FROM = 60.0
"""Duration of a repetition in seconds from which it is announced in advance."""


@dataclass
class MeasuredLane:
    """A lane with its results so far.

    facts     facts about the engine, the model and the machine
    samples   the measured rows of all repetitions
    run       number of its run in the store, None without a store
    """

    lane: Lane
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    run: int | None = None

    @property
    def name(self) -> str:
        """The name that distinguishes the lane from others."""
        return self.lane.name

    def summary(self) -> list[Sample]:
        """Return one row per depth or test, with repetitions combined (``columns``)."""
        return summaries(self.samples)


class Measurement:
    """One run of a plan: ``execute`` measures it; ``lanes`` hold all samples so far, also after an error.

    store      run store (None: none); ``label(lane)`` returns the label of a lane's run in it
    say        called with messages for the user, one line each
    progress   returns a context manager for a title; its value is called with (done, all)
    on_row     called with the lane after each new sample
    stopping   returns a context manager; its value returns whether the user wants to stop
    command    command line of the process, for the facts
    """

    def __init__(
        self,
        plan: Plan,
        store: Store | None = None,
        *,
        label: Callable[[Lane], str] = lambda lane: lane.name,
        say: Say = lambda message: None,
        progress: Callable[[str], Any] | None = None,
        on_row: Callable[[MeasuredLane], None] = lambda lane: None,
        stopping: Callable[[], AbstractContextManager[Cancellation]] = lambda: nullcontext(Cancellation()),
        command: Sequence[str] | None = None,
    ):
        self.plan, self.store, self.label, self.say = plan, store, label, say
        self.progress, self.on_row, self.stopping, self.command = progress, on_row, stopping, command
        self.lanes = [MeasuredLane(lane) for lane in plan.lanes]
        self.reps = plan.reps or (MOST_REPS if len(plan.lanes) > 1 else 0)
        """Number of repetitions to run; 0 while it is unknown."""
        self.status = "open"
        self._group = uuid.uuid4().hex[:12]
        self._before = 0.0  # seconds of an earlier part of this run

    @property
    def wanted(self) -> int:
        """Number of rows to measure, 0 while unknown."""
        return self.reps * self.plan.rows * len(self.lanes)

    @property
    def done(self) -> int:
        """Number of rows measured so far."""
        return sum(len(lane.samples) for lane in self.lanes)

    def execute(self) -> None:
        """Measure everything, and record the final status in the store.

        Raises Cancelled after Ctrl-C, and the errors of the sources.
        """
        with ExitStack() as stack:
            self.status = "failed"
            try:
                sources = self.open(stack)
                progress = stack.enter_context(self.progress("measuring")) if self.progress is not None else None
                cancel = stack.enter_context(self.stopping())
                for index, entry in self._measure(sources, progress, cancel):
                    self._keep(self.lanes[index], entry)
                for note in dict.fromkeys(note for source in sources for note in source.notes()):
                    self.say(note)
                self.status = "complete"
            except (Cancelled, KeyboardInterrupt, SystemExit):  # by Ctrl-C or a signal
                self.status = "stopped"
                raise
            finally:
                self._finish()

    def resume(self, first: int) -> None:
        """Continue run ``first`` of the store and the runs of other lanes that were measured in turn with it."""
        assert self.store is not None
        run = self.store.run(first)
        group = run.fact("arms", "group")
        runs = [other for other in self.store.runs(kind="bench") if group and other.fact("arms", "group") == group]
        known = {other.fact("arms", "options"): other for other in runs or [run]}
        for lane in self.lanes:
            if (other := known.get(lane.name if group else None)) is not None:
                lane.run, lane.facts, lane.samples = other.id, dict(other.facts), self.store.rows(other.id)
        if group:
            self._group = group
        begun = calendar.timegm(time.strptime(run.facts["created"], "%Y-%m-%dT%H:%M:%SZ"))
        self._before = max(0.0, time.time() - begun)

    def fail(self) -> None:
        """Record a complete run as failed, since its results could not be written: it can be resumed then."""
        self.status = "failed"
        self._finish()

    # --- before

    def open(self, stack: ExitStack) -> list[Source]:
        """Open and warm up the sources of all lanes, and collect their facts; the sources are closed with ``stack``."""
        opening = Opening(self.plan, stack, self.store, self.progress, self.say)
        sources = [open_source(opening, lane.lane) for lane in self.lanes]
        self._describe(opening, sources)
        return sources

    def _describe(self, opening: Opening, sources: Sequence[Source]) -> None:
        """Check the sources, warm them up, announce the duration, and collect the facts."""
        for source in sources:
            source.check(len(sources))
        say = getattr(sources[0], "buffers", None)
        if say is not None:
            self.say(say())
        if self.plan.warmup:
            warm = [source.warm_up() for source in sources]
            least = sum(speed.walk(*self._work()) for speed in warm if speed is not None)
            if least >= ANNOUNCED_FROM:
                self.say(f"one repetition ({self.plan.rows * len(sources)} rows) takes at least {duration(least)}, by "
                         "the speed of the warm-up; Ctrl-C keeps the rows measured")  # fmt: skip
        text = opening.prompt.facts()
        shared = {**text, **stamp(self.command)}
        for lane, source in zip(self.lanes, sources, strict=True):
            facts = source.facts()
            _require_same_setup(lane, {**facts, **shared})
            lane.facts = {**facts, **shared, **{k: v for k, v in lane.facts.items() if k in ("created", "command")}}
        self._record_group()

    def _work(self) -> tuple[int, int]:
        """Return the tokens of prefill and the steps of decode of one repetition of one lane."""
        if self.plan.probes:
            probes = self.plan.probes
            return sum(p.depth + p.prefill for p in probes), sum(p.decode for p in probes)
        return self.plan.deepest, self.plan.gen_tokens * self.plan.rows

    def _record_group(self) -> None:
        for index, lane in enumerate(self.lanes):
            lane.facts["walk"] = {**self.plan.facts(), "reps": self.reps or None}
            if kind_of(lane.lane.target) == "http" and self.plan.load is None:
                lane.facts["walk"]["streams"] = lane.lane.streams
            if len(self.lanes) > 1:
                lane.facts["arms"] = {"group": self._group, "arm": chr(ord("A") + index % 26), "options": lane.name}

    # --- meanwhile

    def _measure(
        self, sources: Sequence[Source], progress: Progress | None, cancel: Cancellation
    ) -> Iterator[tuple[int, Sample]]:
        """Yield (index of the lane, sample) as soon as it is measured."""
        start, rep = time.perf_counter() - self._before, 0
        while rep < (self.reps or self._affordable(rep)):
            measured = [sum(entry["rep"] == rep for entry in lane.samples) for lane in self.lanes]
            if rep and self.plan.delay and not all(measured):
                sleep_between(self.plan.delay, cancel)
            walks = []
            for number, (source, done) in enumerate(zip(sources, measured, strict=True)):
                walk_progress = None if progress is None else _WalkProgress(progress, rep * len(sources) + number, self)
                walks.append(source.walk(rep, done, start=start, progress=walk_progress, cancel=cancel))
            yield from self._turns(rep, walks, measured, all(source.pausable for source in sources))
            rep += 1

    def _affordable(self, done: int) -> int:
        """Return the number of repetitions that the budget allows, estimated from the first; 1 before it is done."""
        if not done:
            return 1
        one = sum(seconds(entry) for lane in self.lanes for entry in lane.samples if entry["rep"] == 0)
        fit = int(self.plan.budget / one) if one > 0 else MOST_REPS
        if fit < MOST_REPS:
            self.say(f"{max(fit, 1)} repetition(s): one takes {duration(one)}, --budget is "
                     f"{duration(self.plan.budget)} (-r N for more)")  # fmt: skip
        self.reps = max(1, min(MOST_REPS, fit))
        return self.reps

    def _turns(
        self, rep: int, walks: Sequence[Iterator[Sample]], measured: Sequence[int], pausable: bool
    ) -> Iterator[tuple[int, Sample]]:
        if not pausable:
            for index in turn_order(len(walks), rep):
                if measured[index] < self.plan.rows:
                    yield from ((index, entry) for entry in walks[index])
            return
        for row in range(self.plan.rows):
            for index in turn_order(len(walks), rep + row):
                if row >= measured[index]:
                    yield index, next(walks[index])

    def _keep(self, lane: MeasuredLane, entry: Sample) -> None:
        lane.samples.append(entry)
        if self.store is not None:
            if lane.run is None:
                lane.run = self.store.begin("bench", lane.facts, label=self.label(lane.lane))
            self.store.append(lane.run, [entry])
        self.on_row(lane)

    def _finish(self) -> None:
        if any(lane.facts for lane in self.lanes):
            self._record_group()
        for lane in self.lanes:
            if self.store is not None and lane.run is not None:
                self.store.finish(lane.run, self.status, lane.facts)

    # --- afterwards

    def notes(self) -> list[str]:
        """Return warnings about the samples, one line each."""
        return [
            f"{lane.name}: {note}" if lane.name else note
            for lane in self.lanes
            for note in (*drift.notes(lane.samples), *warnings.notes(lane.samples))
        ]


def run(plan: Plan, store: Store | None = None, **options: Any) -> Measurement:
    """Measure ``plan`` and return the measurement; ``options``: as for ``Measurement``."""
    measurement = Measurement(plan, store, **options)
    measurement.execute()
    return measurement


def _require_same_setup(lane: MeasuredLane, facts: dict[str, Any]) -> None:
    """Raise DataError if a resumed run was begun with another model, text, processor, numerics, steering, threads or
    workers of a cluster."""
    for name, keys in (("model", ("model", "sha256")), ("text", ("prompt_sha256",)), ("processor", ("machine", "cpu")),
                       ("numerics", ("numerics",)), ("steering", ("steering",)), ("cluster", ("cluster",)),
                       ("rounding of streams", ("streams",)),
                       ("number of threads", ("threads",))):  # fmt: skip
        old, new = lane.facts, facts
        for key in keys:
            old, new = (old or {}).get(key), (new or {}).get(key)  # type: ignore[assignment]
        if lane.samples and old != new:
            raise DataError(f"run {lane.run} cannot be resumed: it was measured with another {name}")


def turn_order(lanes: int, turn: int) -> list[int]:
    """Return the order in which lanes are measured: forwards in even turns, backwards in odd ones."""
    order = list(range(lanes))
    return order if turn % 2 == 0 else order[::-1]


class _WalkProgress:
    """Progress of one sweep as part of all, in units of that sweep."""

    def __init__(self, progress: Callable[[int, int], None], before: int, run: Measurement):
        self.progress, self.before, self.run = progress, before, run

    def __call__(self, done: int, of: int) -> None:
        walks = max((self.run.reps or 1) * len(self.run.lanes), self.before + 1)
        self.progress(self.before * of + done, of * walks)


def sleep_between(seconds: float, cancel: Callable[[], bool]) -> None:
    """Sleep for ``seconds``, ending early once ``cancel`` returns True."""
    end = time.monotonic() + seconds
    while not cancel() and (seconds_left := end - time.monotonic()) > 0:
        time.sleep(min(seconds_left, 0.1))
