"""Runs a plan: opens its targets, warms them up, measures them in turn, stores every row.

    from ds4ref.speed_bench import Plan, run
    result = run(Plan.sweep("local", depths=(512, 1024), gen_tokens=16, reps=3))
    for row in result.targets[0].summary():
        print(row["ctx_tokens"], row["gen_tps"])

A repetition measures all depths, tests or levels of the plan once. Several targets take turns row by row: A B, then
B A, and so on, with the order swapped from repetition to repetition, so that slow changes of the machine affect all
alike. An external ds4-bench binary cannot be stopped between rows, so if a target is one, targets take turns with whole
repetitions. Every row is stored as soon as it is measured.
"""

from __future__ import annotations

import calendar
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import duration
from ds4ref.errors import Cancelled, DataError
from ds4ref.runs import drift, warnings
from ds4ref.runs.columns import Row, summaries
from ds4ref.runs.provenance import stamp
from ds4ref.targets import Cancellation

from .plan import MOST_REPS, BenchTarget, Plan
from .sources import EndpointSource, LocalSource, Opening, Say, Source
from .sweep import Progress

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


@dataclass
class MeasuredTarget:
    """A target with its results so far.

    planned the target as the plan describes it
    facts   metadata of its run: engine, model, machine, ...
    rows    the measured rows of all repetitions
    run     number of its run in the store, None without a store
    """

    planned: BenchTarget
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    run: int | None = None

    @property
    def name(self) -> str:
        """The name that distinguishes the target from the other ones, "" if it is the only one."""
        return self.planned.name

    def summary(self) -> list[Row]:
        """Return one row per depth or test, with repetitions combined (``columns``)."""
        return summaries(self.rows)


class Measurement:
    """One run of a plan: ``execute`` measures it; ``targets`` hold all rows so far, also after an error.

    store      run store that receives one run per target; None: do not store
    label      returns the label of a target's run in the store
    say        called with messages for the user, one line each
    progress   called with a title, returns a context manager; what it yields is called with (done, total)
    on_row     called with the target after each new row
    stopping   returns a context manager; what it yields is the Cancellation by which the user stops the run
    command    command line of the process, for the run's metadata
    """

    def __init__(
        self,
        plan: Plan,
        store: Store | None = None,
        *,
        label: Callable[[BenchTarget], str] = lambda target: target.name,
        say: Say = lambda message: None,
        progress: Callable[[str], Any] | None = None,
        on_row: Callable[[MeasuredTarget], None] = lambda target: None,
        stopping: Callable[[], AbstractContextManager[Cancellation]] = lambda: nullcontext(Cancellation()),
        command: Sequence[str] | None = None,
    ):
        self.plan, self.store, self.label, self.say = plan, store, label, say
        self.progress, self.on_row, self.stopping, self.command = progress, on_row, stopping, command
        self.targets = [MeasuredTarget(target) for target in plan.targets]
        self.reps = plan.reps or (MOST_REPS if len(plan.targets) > 1 else 0)
        """Number of repetitions to run; 0 while it is unknown."""
        self.only: set[int] | None = None
        """The repetitions to measure, from 0; None: all."""
        self.status = "open"
        self._group = uuid.uuid4().hex[:12]
        self._before = 0.0  # seconds of an earlier part of this run

    @property
    def wanted(self) -> int:
        """Number of rows to measure, 0 while unknown."""
        reps = self.reps if self.only is None else len(self.only)
        return reps * self.plan.rows * len(self.targets)

    @property
    def done(self) -> int:
        """Number of rows measured so far."""
        return sum(len(target.rows) for target in self.targets)

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
                for target, row in self._measure(sources, progress, cancel):
                    self._keep(target, row)
                self.status = "complete"
            except (Cancelled, KeyboardInterrupt, SystemExit):  # by Ctrl-C or a signal
                self.status = "stopped"
                raise
            finally:
                self._finish()

    def resume(self, first: int) -> None:
        """Load the rows of an earlier, unfinished run from the store, so that ``execute`` continues it.

        ``first`` is the run's number. The runs of targets that were measured in turn with it are continued as well.
        """
        assert self.store is not None
        run = self.store.run(first)
        group = run.fact("arms", "group")
        runs = [other for other in self.store.runs(kind="bench") if group and other.fact("arms", "group") == group]
        known = {other.fact("arms", "options"): other for other in runs or [run]}
        for target in self.targets:
            if (other := known.get(target.name if group else None)) is not None:
                target.run, target.facts, target.rows = other.id, dict(other.facts), self.store.rows(other.id)
        if group:
            self._group = group
        begun = calendar.timegm(time.strptime(run.facts["created"], "%Y-%m-%dT%H:%M:%SZ"))
        self._before = max(0.0, time.time() - begun)

    def fail(self) -> None:
        """Mark a complete run as failed, because its results could not be written; it can then be resumed."""
        self.status = "failed"
        self._finish()

    # --- before

    def open(self, stack: ExitStack) -> list[Source]:
        """Open all targets for measuring, warm them up, and collect their metadata.

        Return one source of rows per target; they are closed with ``stack``.
        """
        opening = Opening(self.plan, stack, self.store, self.progress, self.say)
        sources = [open_source(opening, target.planned) for target in self.targets]
        self._describe(opening, sources)
        return sources

    def _describe(self, opening: Opening, sources: Sequence[Source]) -> None:
        """Check that the sources fit into memory, warm them up, and collect their metadata."""
        buffers = [source.check(len(sources)) for source in sources]
        if buffers[0]:
            self.say(buffers[0])
        if self.plan.warmup:
            for source in sources:
                source.warm_up()
        text = opening.prompt.facts()
        shared = {**text, **stamp(self.command)}
        for target, source in zip(self.targets, sources, strict=True):
            require_same_setup(target, {**source.facts, **shared}, f"run {target.run} cannot be resumed: it was")
            begun: dict[str, Any] = {
                name: target.facts[name] for name in ("created", "command") if name in target.facts
            }
            target.facts = {**source.facts, **shared, **begun}
        self._record_group()

    def _record_group(self) -> None:
        for index, target in enumerate(self.targets):
            target.facts["walk"] = {**self.plan.facts(), "reps": self.reps or None}
            if target.planned.kind == "http" and self.plan.load is None:
                target.facts["walk"]["streams"] = target.planned.streams
            if len(self.targets) > 1:
                target.facts["arms"] = {"group": self._group, "arm": chr(ord("A") + index % 26), "options": target.name}

    # --- meanwhile

    def _measure(
        self, sources: Sequence[Source], progress: Progress | None, cancel: Cancellation
    ) -> Iterator[tuple[MeasuredTarget, Row]]:
        """Measure all repetitions, in turns; yield (target, row) as soon as a row is measured."""
        start, rep = time.perf_counter() - self._before, 0
        while rep < (self.reps or self._affordable(rep)):
            if self.only is not None and rep not in self.only:
                rep += 1
                continue
            done = [sum(row["rep"] == rep for row in target.rows) for target in self.targets]
            walks = []
            for number, (source, measured) in enumerate(zip(sources, done, strict=True)):
                part = None if progress is None else self._part(progress, rep * len(sources) + number)
                walks.append(source.walk(rep, measured, part, cancel))
            for index in turns(len(walks), self.plan.rows, rep, done, all(source.pausable for source in sources)):
                row = next(walks[index])
                yield self.targets[index], {**row, "rep": rep, "at": round(row["at"] - start, 6)}
            for walk, measured in zip(walks, done, strict=True):
                if measured < self.plan.rows:  # wait for a binary to end, since it may report a failure
                    deque(walk, maxlen=0)
            rep += 1

    def _part(self, progress: Progress, before: int) -> Progress:
        """Return a progress callback for one sweep that reports the progress over all; ``before`` of them are done."""

        def report(done: int, of: int) -> None:
            sweeps = max((self.reps or 1) * len(self.targets), before + 1)
            progress(before * of + done, of * sweeps)

        return report

    def _affordable(self, done: int) -> int:
        """Return the number of repetitions that the time budget allows, judging by the first.

        ``done`` repetitions are complete; before the first one is, the result is 1.
        """
        if not done:
            return 1
        one = sum(seconds(entry) for target in self.targets for entry in target.rows if entry["rep"] == 0)
        fit = int(self.plan.budget / one) if one > 0 else MOST_REPS
        if fit < MOST_REPS:
            self.say(f"{max(fit, 1)} repetition(s): one takes {duration(one)}, --budget is "
                     f"{duration(self.plan.budget)} (-r N for more)")  # fmt: skip
        self.reps = max(1, min(MOST_REPS, fit))
        return self.reps

    def _keep(self, target: MeasuredTarget, entry: Row) -> None:
        target.rows.append(entry)
        if self.store is not None:
            if target.run is None:
                target.run = self.store.begin("bench", target.facts, label=self.label(target.planned))
            self.store.append(target.run, [entry])
        self.on_row(target)

    def _finish(self) -> None:
        if any(target.facts for target in self.targets):
            self._record_group()
        for target in self.targets:
            if self.store is not None and target.run is not None:
                self.store.finish(target.run, self.status, target.facts)

    # --- afterwards

    def notes(self) -> list[str]:
        """Return notes on drift and warnings on the rows, one line each."""
        return [
            f"{target.name}: {note}" if target.name else note
            for target in self.targets
            for note in (*drift.notes(target.rows), *warnings.notes(target.rows))
        ]


def open_source(opening: Opening, planned: BenchTarget) -> Source:
    """Open one target of a plan for measuring."""
    if planned.kind == "command":
        from .binary import BinarySource

        return BinarySource.open(opening, planned)
    return (LocalSource if planned.kind == "local" else EndpointSource).open(opening, planned)


def run(plan: Plan, store: Store | None = None, **options: Any) -> Measurement:
    """Measure ``plan`` and return the measurement with its rows; ``options`` are those of ``Measurement``."""
    measurement = Measurement(plan, store, **options)
    measurement.execute()
    return measurement


def require_same_setup(target: MeasuredTarget, facts: dict[str, Any], says: str) -> None:
    """Raise DataError, beginning with ``says``, if the target's rows were measured with another setup.

    That is another model, text, processor, number of threads, or other settings that change results; ``facts`` is the
    metadata of the present setup.
    """
    for name, keys in (("model", ("model", "sha256")), ("text", ("prompt_sha256",)), ("processor", ("machine", "cpu")),
                       ("numerics", ("numerics",)), ("steering", ("steering",)), ("cluster", ("cluster",)),
                       ("rounding of streams", ("streams",)),
                       ("number of threads", ("threads",))):  # fmt: skip
        old, new = target.facts, facts
        for key in keys:
            old, new = (old or {}).get(key), (new or {}).get(key)  # type: ignore[assignment]
        if target.rows and old != new:
            raise DataError(f"{says} measured with another {name}")


def turns(targets: int, rows: int, rep: int, done: Sequence[int], pausable: bool = True) -> Iterator[int]:
    """Yield, for each row of repetition ``rep``, the index of the target to measure next.

    targets    number of targets
    rows       number of rows per target
    done       number of rows of each target that are already measured, and skipped
    pausable   whether targets can take turns after each row; if not, they do so after all rows

    The targets are in order in even turns and in reverse order in odd ones.
    """
    order = range(targets)
    if not pausable:
        for index in order if rep % 2 == 0 else reversed(order):
            yield from [index] * (rows - done[index])
        return
    for row in range(rows):
        for index in order if (rep + row) % 2 == 0 else reversed(order):
            if row >= done[index]:
                yield index


def seconds(row: Row) -> float:
    """Return the seconds spent on what a row measures, without preparation."""
    if row.get("seconds"):
        return float(row["seconds"])
    if row.get("e2e_ms"):
        return float(row["e2e_ms"]) / 1e3
    parts = ((row["prefill_tokens"], row["prefill_tps"]), (row["gen_tokens"], row["gen_tps"]))
    return sum(count / rate for count, rate in parts if rate)
