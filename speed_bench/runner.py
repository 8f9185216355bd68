"""One run: lanes opened, warmed up, measured in turn, kept row by row.

    from speed_bench import Plan, run
    result = run(Plan.sweep("local", depths=(512, 1024), gen_tokens=16, reps=3))
    for row in result.lanes[0].summary():
        print(row["ctx_tokens"], row["gen_tps"])

A repetition is a whole walk. Several lanes take turns row by row, A B, then B A, and so on, with the order swapped
from repetition to repetition (ABBA), so that whatever the machine does slowly happens to all alike; a binary walks by
itself, so where one takes part, whole walks take turns. Every row is in the store as soon as it is measured.
"""

from __future__ import annotations

import calendar
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref.errors import Cancelled, DataError
from ds4ref.runs.provenance import stamp
from ds4ref.targets import Cancellation

from .columns import Sample, summaries
from .plan import Lane, Plan, kind_of
from .repetitions import Repetitions, duration
from .samples import notes
from .sources import Opening, Progress, Say, Source, open_source

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

SHOWN_FROM = 60.0
"""Seconds from which on it is said how long a walk will take at least."""


@dataclass
class MeasuredLane:
    """What a lane gave: its samples, the facts about it, its run in the store."""

    lane: Lane
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    run: int | None = None

    @property
    def name(self) -> str:
        """What tells it from the other lanes."""
        return self.lane.name

    def summary(self) -> list[Sample]:
        """A row for each depth or test: medians over the repetitions (``columns``)."""
        return summaries(self.samples)


class Measurement:
    """Everything of one run; ``execute`` does it, and ``lanes`` hold what was measured, whatever happens meanwhile.

    store      where it is kept (None: nowhere), labelled by ``label``
    say        told what a user should know, a line at a time
    progress   makes a context manager from a word, that takes (done, of)
    on_row     told the lane after each new sample
    stopping   makes a context manager, in whose block what it gives says whether the user wants to stop
    command    of the process, for the facts
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
        self.repetitions = Repetitions(plan, say)
        self.status = "open"
        self._group = uuid.uuid4().hex[:12]
        self._before = 0.0  # seconds of an earlier part of this run

    @property
    def reps(self) -> int:
        """Repetitions there are to be, as far as it is known now; each lane has so many samples of a place then."""
        return self.repetitions.fixed or 0

    @property
    def wanted(self) -> int:
        """Rows there are to be; 0 while that is unknown."""
        return self.reps * self.plan.rows * len(self.lanes)

    @property
    def done(self) -> int:
        """Rows there are."""
        return sum(len(lane.samples) for lane in self.lanes)

    def execute(self) -> None:
        """Measure. Cancelled after a wish to stop, errors as sources raise them; the store knows how it ended."""
        with ExitStack() as stack:
            self.status = "failed"
            try:
                sources = self.open(stack)
                shown = stack.enter_context(self.progress("measuring")) if self.progress is not None else None
                cancel = stack.enter_context(self.stopping())
                for index, entry in self._measure(sources, shown, cancel):
                    self._keep(self.lanes[index], entry)
                for note in dict.fromkeys(note for source in sources for note in source.notes()):
                    self.say(note)
                self.status = "complete"
            except (Cancelled, KeyboardInterrupt):
                self.status = "stopped"
                raise
            finally:
                self._finish()

    def resume(self, first: int) -> None:
        """Go on with run ``first`` of the store, and those that were measured in turn with it. DataError if that
        cannot be."""
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

    # --- before

    def open(self, stack: ExitStack) -> list[Source]:
        """Sources of the lanes, warm and described; what they hold is released with ``stack``."""
        opening = Opening(self.plan, stack, self.store, self.progress, self.say)
        sources = [open_source(opening, lane.lane) for lane in self.lanes]
        self._describe(opening, sources)
        return sources

    def _describe(self, opening: Opening, sources: Sequence[Source]) -> None:
        """Refuse what cannot work, warm up, say how long it will take; then the text, and the facts."""
        for source in sources:
            source.check(len(sources))
        say = getattr(sources[0], "buffers", None)
        if say is not None:
            self.say(say())
        if self.plan.warmup:
            warm = [source.warm_up() for source in sources]
            least = sum(found.walk(*self._work()) for found in warm if found is not None)
            if least >= SHOWN_FROM:
                self.say(f"one repetition ({self.plan.rows * len(sources)} rows) takes at least {duration(least)}, by "
                         "the speed of the warm-up; Ctrl-C keeps what is measured")  # fmt: skip
        text = opening.walked.facts()
        shared = {**text, **stamp(self.command)}
        for lane, source in zip(self.lanes, sources, strict=True):
            facts = source.facts()
            _refuse_others(lane, {**facts, **shared})
            lane.facts = {**facts, **shared, **{k: v for k, v in lane.facts.items() if k in ("created", "command")}}
        self._tie()

    def _work(self) -> tuple[int, int]:
        """Tokens of prefill and steps of decode of one repetition of one lane."""
        if self.plan.probes:
            probes = self.plan.probes
            return sum(p.depth + p.prefill for p in probes), sum(p.decode for p in probes)
        return self.plan.deepest, self.plan.gen_tokens * self.plan.rows

    def _tie(self) -> None:
        for index, lane in enumerate(self.lanes):
            lane.facts["walk"] = {**self.plan.facts(), "reps": self.reps or None}
            if kind_of(lane.lane.target) == "http" and self.plan.load is None:
                lane.facts["walk"]["streams"] = lane.lane.streams
            if len(self.lanes) > 1:
                lane.facts["arms"] = {"group": self._group, "arm": chr(ord("A") + index % 26), "options": lane.name}

    # --- meanwhile

    def _measure(
        self, sources: Sequence[Source], shown: Progress | None, cancel: Cancellation
    ) -> Iterator[tuple[int, Sample]]:
        """(lane, sample) as soon as it is measured."""
        start, rep = time.perf_counter() - self._before, 0
        while rep < self.repetitions.wanted([lane.samples for lane in self.lanes]):
            have = [sum(entry["rep"] == rep for entry in lane.samples) for lane in self.lanes]
            if rep and self.plan.delay and not all(have):
                rest(self.plan.delay, cancel)
            walks = []
            for number, (source, done) in enumerate(zip(sources, have, strict=True)):
                told = None if shown is None else _Share(shown, rep * len(sources) + number, self)
                walks.append(source.walk(rep, done, start=start, progress=told, cancel=cancel))
            yield from self._turns(rep, walks, have, all(source.pausable for source in sources))
            rep += 1

    def _turns(
        self, rep: int, walks: Sequence[Iterator[Sample]], have: Sequence[int], pausable: bool
    ) -> Iterator[tuple[int, Sample]]:
        if not pausable:
            for index in turn_order(len(walks), rep):
                if have[index] < self.plan.rows:
                    yield from ((index, entry) for entry in walks[index])
            return
        for row in range(self.plan.rows):
            for index in turn_order(len(walks), rep + row):
                if row >= have[index]:
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
            self._tie()
        for lane in self.lanes:
            if self.store is not None and lane.run is not None:
                self.store.finish(lane.run, self.status, lane.facts)

    # --- afterwards

    def notes(self) -> list[str]:
        """What a reader of the samples should know, a line each."""
        return [f"{lane.name}: {note}" if lane.name else note for lane in self.lanes for note in notes(lane.samples)]


def run(plan: Plan, store: Store | None = None, **options: Any) -> Measurement:
    """Measure ``plan`` and return what was found; ``options`` as ``Measurement``."""
    found = Measurement(plan, store, **options)
    found.execute()
    return found


def _refuse_others(lane: MeasuredLane, facts: dict[str, Any]) -> None:
    """DataError if a run that goes on was begun with something else."""
    for what, keys in (("model", ("model", "sha256")), ("text", ("prompt_sha256",)), ("processor", ("machine", "cpu")),
                       ("numerics", ("numerics",)), ("number of threads", ("threads",))):  # fmt: skip
        old, new = lane.facts, facts
        for key in keys:
            old, new = (old or {}).get(key), (new or {}).get(key)  # type: ignore[assignment]
        if lane.samples and old != new:
            raise DataError(f"run {lane.run} cannot be resumed: it was measured with another {what}")


def turn_order(lanes: int, turn: int) -> list[int]:
    """Forwards in even turns, backwards in odd ones."""
    order = list(range(lanes))
    return order if turn % 2 == 0 else order[::-1]


class _Share:
    """Progress of one walk as part of all, in the units of the walk."""

    def __init__(self, progress: Callable[[int, int], None], before: int, run: Measurement):
        self.progress, self.before, self.run = progress, before, run

    def __call__(self, done: int, of: int) -> None:
        walks = max((self.run.reps or 1) * len(self.run.lanes), self.before + 1)
        self.progress(self.before * of + done, of * walks)


def rest(seconds: float, cancel: Callable[[], bool]) -> None:
    """Sleep, unless the user wants to stop."""
    end = time.monotonic() + seconds
    while not cancel() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
