"""Writes the rows of a run to standard output, files, plots and tables.

An existing CSV is replaced only after a complete run, together with the JSON beside it. Until then, and if the run is
stopped or fails, rows are in ``NAME.partial.csv`` (medians of the repetitions so far) and in the run store.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ds4ref.console.common import atomic_output, is_tty, say
from ds4ref.environment import is_aarch64
from ds4ref.errors import DataError
from ds4ref.runs.columns import HEADER, Sample, csv_text, format_row, place, summary

from .formats import render
from .plan import Lane, OutputOptions
from .runner import MeasuredLane, Measurement

PROG = "ds4-bench"
INVITATION = (
    "no speed of this kind of processor has been measured yet; in a checkout of ds4ref, "
    "`python -m benchmarks.cpu --quick` measures them: please paste its table into an issue"
)
"""Asked of users of AArch64 processors on a terminal, as there are no figures."""


class Output:
    """Writes the results of one run where its output options say."""

    def __init__(self, places: OutputOptions, lanes: Sequence[Lane], arms: bool = False):
        self.places, self.several = places, len(lanes) > 1
        parts = [re.sub(r"^target [A-Z]", lambda match: match[0][-1].lower(), lane.name) for lane in lanes]
        names = ["a", "b"] if arms else [re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts]
        unique = names if len(set(names)) == len(names) else [f"{i + 1}-{part}" for i, part in enumerate(names)]
        self.suffixes = {lane.name: part for lane, part in zip(lanes, unique, strict=True)}
        self.run: Measurement | None = None
        self._sink: IO[str] | None = None
        self._written: set[tuple[int, str]] = set()
        self._headed = False

    def label(self, lane: Lane) -> str:
        """Return the label under which a lane's run is stored."""
        label = self.places.label or (Path(self.places.csv).stem if self.places.csv else "")
        return f"{label}: {lane.name}" if label and lane.name else label or lane.name

    # --- meanwhile

    def begin(self, run: Measurement) -> None:
        """Open the stream that gets each row at once: stdout if there is no other output, or a CSV on a device."""
        self.run = run
        places = self.places
        if places.csv is not None and _is_device(places.csv):
            try:
                self._sink = open(places.csv, "w", encoding="utf-8")
            except OSError as error:
                raise DataError(f"cannot write {places.csv}: {error.strerror}") from None
        elif places.csv is None and not places.form and not places.json and not self.several and not is_tty(sys.stdout):
            self._sink = sys.stdout

    def row(self, lane: MeasuredLane) -> None:
        """Write the lane's last sample to the partial CSV, and to the stream once its depth has all repetitions."""
        assert self.run is not None
        if lane is self.run.lanes[0]:
            self._emit(lane, least=self.run.reps or sys.maxsize)
        if self.places.csv is not None and not _is_device(self.places.csv):
            self._write_partial(lane)

    def _write_partial(self, lane: MeasuredLane) -> None:
        with atomic_output(str(self._partial(lane))) as out:
            out.write(csv_text(lane.samples).encode())

    def _emit(self, lane: MeasuredLane, least: int) -> None:
        if not self._headed and lane.samples:
            self._line(HEADER)
            self._headed = True
        groups: dict[tuple[int, str], list[Sample]] = {}
        for entry in lane.samples if self._sink is not None else ():
            groups.setdefault(place(entry), []).append(entry)
        for at, group in groups.items():
            if len(group) >= least and at not in self._written:
                self._written.add(at)
                self._line(format_row(summary(group)))

    def _line(self, text: str) -> None:
        if self._sink is not None:
            self._sink.write(text + "\n")
            self._sink.flush()

    # --- at the end

    def stopped(self) -> None:
        """Keep the partial results after a failure or Ctrl-C, as far as they can be written; print where they are."""
        run = self.run
        if run is None:
            return
        if run.status == "complete":
            run.fail()
        with suppress(OSError):
            self._emit(run.lanes[0], least=1)
        measured = [lane for lane in run.lanes if lane.samples]
        if not measured:
            return
        files = []
        for lane in measured if self.places.csv is not None and not _is_device(self.places.csv) else ():
            with suppress(DataError):  # the disk is full: what was kept elsewhere is
                self._write_partial(lane)
                self._write_facts(lane, self._partial(lane).with_suffix(".json"), run.status)
                files.append(str(self._partial(lane)))
        runs = [lane.run for lane in measured if lane.run is not None]
        where = [f"in {', '.join(files)}"] if files else []
        where += (
            [f"as run {', '.join(map(str, runs))}; {PROG} --resume {runs[0]}{self._store()} continues"] if runs else []
        )
        verb = "stopped" if run.status == "stopped" else "failed"
        of = f" of {run.wanted}" if run.reps else ""
        places_text = f" {', '.join(where)}" if where else ""
        say(PROG, f"{verb}; {run.done}{of} rows were measured and saved{places_text}")

    def conclude(self) -> None:
        """Write a finished run's output files; print its tables and warnings."""
        run, places = self.run, self.places
        assert run is not None
        files = self._files(run)
        document, sentences = verdict(run)
        if places.form is not None:
            sys.stdout.write(render(places.form, run.lanes))
        elif places.json:
            print(json.dumps(self._document(run, files, document)))
        elif self._sink is not sys.stdout:
            self._tables(run)
            print("".join(f"{sentence}\n" for sentence in sentences), end="")
            for kind, names in files.items():
                print(f"{kind:6} {', '.join(names)}")
        for note in run.notes():
            say(PROG, note)
        if self._sink is sys.stdout or places.form is not None:
            for sentence in sentences:
                say(PROG, sentence)
        for lane in run.lanes:
            if lane.run is not None and run.store is not None and not places.json:
                say(PROG, f"saved as run {lane.run}; {run.store.show(lane.run)}")
        local = any(lane.facts.get("backend") == "cpu" for lane in run.lanes)
        if local and is_aarch64() and is_tty(sys.stderr):
            say(PROG, INVITATION)
        sys.stdout.flush()

    def _tables(self, run: Measurement) -> None:
        from .table import print_table

        streams = {lane.lane.streams for lane in run.lanes}
        if len(streams) > 1 and len({lane.lane.target for lane in run.lanes}) == 1:
            entries = [entry for lane in run.lanes for entry in lane.summary()]
            print_table(entries, run.lanes[0].facts, self.places.label)
            return
        for lane in run.lanes:
            print_table(lane.summary(), lane.facts, self.label(lane.lane))

    def _document(self, run: Measurement, files: dict[str, list[str]], verdict: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON document: facts common to all lanes, and each lane with its own."""
        described = [lane.facts for lane in run.lanes]
        shared = {k: v for k, v in described[0].items() if all(k in facts and facts[k] == v for facts in described)}
        lanes = [
            {
                "name": lane.name, "run": lane.run, "rows": lane.summary(),
                **{k: v for k, v in facts.items() if k not in shared},
            }
            for lane, facts in zip(run.lanes, described, strict=True)
        ]  # fmt: skip
        document = {**shared, "files": files, "lanes": lanes, "notes": run.notes()}
        return document | ({"verdict": verdict} if verdict else {})

    def _files(self, run: Measurement) -> dict[str, list[str]]:
        """Write the CSVs with their JSON and the plots; return the paths by kind."""
        places = self.places
        if places.csv is None or _is_device(places.csv):
            return {}
        files: dict[str, list[str]] = {"csv": [], "facts": []}
        for lane in run.lanes:
            path = self._path(lane)
            with atomic_output(str(path)) as out:
                out.write(csv_text(lane.samples).encode())
            self._write_facts(lane, path.with_suffix(".json"), run.status)
            for rest in (self._partial(lane), self._partial(lane).with_suffix(".json")):
                rest.unlink(missing_ok=True)
            files["csv"].append(str(path))
            files["facts"].append(str(path.with_suffix(".json")))
        if places.plots:
            files["plot"] = self._plot(run, files["csv"])
        return {kind: names for kind, names in files.items() if names}

    def _plot(self, run: Measurement, csvs: Sequence[str]) -> list[str]:
        levels = run.plan.load is not None or len({lane.lane.streams for lane in run.lanes}) > 1
        if not levels and len(run.lanes[0].summary()) < 2:
            say(PROG, "nothing plotted: one row makes no curve")
            return []
        if levels:
            from .loadplot import plot_load as draw
        else:
            from .plot import plot as draw
        return [str(path) for path in draw(csvs, self.places.plots)]

    def _write_facts(self, lane: MeasuredLane, path: Path, status: str) -> None:
        # times of single steps are only in the store, as they would dominate the file; here are their percentiles
        samples = []
        for entry in lane.samples:
            percentiles = {name: value for name, value in summary([entry]).items() if name.endswith("_ms")}
            samples.append({k: v for k, v in (percentiles | entry).items() if not isinstance(v, (list, tuple))})
        content = {"columns": HEADER.split(","), "status": status, **lane.facts, "samples": samples}
        with atomic_output(str(path)) as out:
            out.write(json.dumps(content, indent=1).encode() + b"\n")

    def _path(self, lane: MeasuredLane) -> Path:
        path = Path(self.places.csv or "")
        return path.with_name(f"{path.stem}-{self.suffixes[lane.name]}{path.suffix}") if self.several else path

    def _partial(self, lane: MeasuredLane) -> Path:
        path = self._path(lane)
        return path.with_name(f"{path.stem}.partial{path.suffix or '.csv'}")

    def _store(self) -> str:
        return f" --store {shlex.quote(self.places.store)}" if self.places.store is not None else ""


def verdict(run: Measurement) -> tuple[dict[str, Any], list[str]]:
    """Compare two lanes that were measured in turn: as a JSON document, and as sentences; empty for other runs."""
    if len(run.lanes) != 2:
        return {}, []
    from ds4ref.runs.compare import LIMITS, finite, speeds

    a, b = run.lanes
    limits, found = LIMITS["bench"], speeds(a.samples, b.samples, True, names=(a.name, b.name)).findings
    document = {"a": a.name, "b": b.name, "confidence": limits.confidence, "margin_percent": limits.margin}
    metrics = {
        f.metric: {
            "verdict": f.verdict, "estimate_percent": finite(f.interval.estimate),
            "low_percent": finite(f.interval.low), "high_percent": finite(f.interval.high),
            "rounds": f.interval.n, "detectable_percent": finite(f.interval.detectable),
            "method": f.interval.method,
        }
        for f in found
    }  # fmt: skip
    return (document | metrics if metrics else {}), [f.sentence(a.name, b.name) for f in found]


def _is_device(path: str) -> bool:
    """Return whether the path is not a regular file and cannot be replaced atomically: a terminal, a pipe."""
    return os.path.exists(path) and not os.path.isfile(path)
