"""Writes the rows of a run to standard output, files, plots and tables.

An existing CSV is replaced only after a complete run, together with its JSON file (same name, metadata of the run).
Until then, and if the run is stopped or fails, rows are in ``NAME.partial.csv`` (medians of the repetitions so far)
and in the run store.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ds4ref.console.common import atomic_output, is_tty, say
from ds4ref.errors import DataError
from ds4ref.runs.columns import HEADER, csv_text, format_row, grouped, summary

from .formats import render
from .plan import BenchTarget
from .runner import MeasuredTarget, Measurement

PROG = "ds4-bench"


class Output:
    """Writes the results of one run to the files and in the formats that the command line asks for (``options``)."""

    def __init__(self, options: Namespace, targets: Sequence[BenchTarget]):
        self.options, self.several = options, len(targets) > 1
        parts = [re.sub(r"^target [A-Z]", lambda match: match[0][-1].lower(), target.name) for target in targets]
        names = [re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts]
        unique = names if len(set(names)) == len(names) else [f"{i + 1}-{part}" for i, part in enumerate(names)]
        self.suffixes = {target.name: part for target, part in zip(targets, unique, strict=True)}
        self.file = None if options.csv is None or _is_device(options.csv) else Path(options.csv)
        self.run: Measurement | None = None
        self._sink: IO[str] | None = None
        self._written: set[tuple[int, str]] = set()
        self._headed = False

    def label(self, target: BenchTarget) -> str:
        """Return the label under which a target's run is stored."""
        label = self.options.label or (Path(self.options.csv).stem if self.options.csv else "")
        return f"{label}: {target.name}" if label and target.name else label or target.name

    # --- meanwhile

    def begin(self, run: Measurement) -> None:
        """Open the output, if there is one, to which each row is written as soon as it is complete.

        It is a CSV that is not a regular file, or stdout if no other output was asked for and it is not a terminal.
        """
        self.run = run
        csv = self.options.csv
        if csv is not None and self.file is None:
            try:
                self._sink = open(csv, "w", encoding="utf-8")
            except OSError as error:
                raise DataError(f"cannot write {csv}: {error.strerror}") from None
        elif not (csv or self.options.output or self.options.json or self.several or is_tty(sys.stdout)):
            self._sink = sys.stdout

    def row(self, target: MeasuredTarget) -> None:
        """Write the target's new row to the partial CSV, and to the open output once its depth has all repetitions."""
        assert self.run is not None
        if target is self.run.targets[0]:
            self._emit(target, least=self.run.reps or sys.maxsize)
        if self.file is not None:
            self._write_csv(target, self._partial(target))

    def _write_csv(self, target: MeasuredTarget, path: Path) -> None:
        """Replace a CSV, and remove the JSON of the one before it: a crash must not leave it beside other rows."""
        with atomic_output(str(path)) as out:
            out.write(csv_text(target.rows).encode())
            out.flush()
            path.with_suffix(".json").unlink(missing_ok=True)

    def _write(self, target: MeasuredTarget, path: Path, status: str) -> None:
        """Replace a CSV and its JSON; on a full disk both stay as they are."""
        with self._facts(target, path.with_suffix(".json"), status):
            self._write_csv(target, path)

    def _emit(self, target: MeasuredTarget, least: int) -> None:
        if not self._headed and target.rows:
            self._line(HEADER)
            self._headed = True
        for at, group in grouped(target.rows).items():
            if len(group) >= least and at not in self._written:
                self._written.add(at)
                self._line(format_row(summary(group)))

    def _line(self, text: str) -> None:
        if self._sink is not None:
            self._sink.write(text + "\n")
            self._sink.flush()

    # --- at the end

    def stopped(self) -> None:
        """After a failure or Ctrl-C, save the partial results as far as possible, and print where they are."""
        run = self.run
        if run is None:
            return
        if run.status == "complete":
            run.fail()
        with suppress(OSError):
            self._emit(run.targets[0], least=1)
        measured = [target for target in run.targets if target.rows]
        if not measured:
            return
        files = []
        for target in measured if self.file is not None else ():
            with suppress(DataError):  # for example, the disk is full: report what was saved elsewhere
                self._write(target, self._partial(target), run.status)
                files.append(str(self._partial(target)))
        runs = [target.run for target in measured if target.run is not None]
        where = [f"in {', '.join(files)}"] if files else []
        if runs:
            store = "" if self.options.store is None else f" --store {shlex.quote(self.options.store)}"
            where.append(f"as run {', '.join(map(str, runs))}; {PROG} --resume {runs[0]}{store} continues")
        verb = "stopped" if run.status == "stopped" else "failed"
        of = f" of {run.wanted}" if run.reps else ""
        saved = f"and saved {', '.join(where)}" if where else "but not saved"
        say(PROG, f"{verb}; {run.done}{of} rows were measured {saved}")

    def conclude(self) -> None:
        """Write a finished run's output files; print its tables and warnings."""
        run, options = self.run, self.options
        assert run is not None
        files = self._files(run)
        document, sentences = verdict(run)
        if options.output is not None:
            sys.stdout.write(render(options.output, run.targets))
        elif options.json:
            print(json.dumps(self._document(run, files, document)))
        elif self._sink is not sys.stdout:
            self._tables(run)
            print("".join(f"{sentence}\n" for sentence in sentences), end="")
            for kind, names in files.items():
                print(f"{kind:6} {', '.join(names)}")
        for note in run.notes():
            say(PROG, note)
        if self._sink is sys.stdout or options.output is not None:
            for sentence in sentences:
                say(PROG, sentence)
        for target in run.targets:
            if target.run is not None and run.store is not None and not options.json:
                say(PROG, f"saved as run {target.run}; {run.store.show(target.run)}")
        sys.stdout.flush()

    def _tables(self, run: Measurement) -> None:
        from .table import table

        if len({target.planned.streams for target in run.targets}) > 1:
            if len({target.planned.spec for target in run.targets}) == 1:
                entries = [entry for target in run.targets for entry in target.summary()]
                print(table(entries, run.targets[0].facts, self.options.label or ""))
                return
        for target in run.targets:
            print(table(target.summary(), target.facts, self.label(target.planned)))

    def _document(self, run: Measurement, files: dict[str, list[str]], verdict: dict[str, Any]) -> dict[str, Any]:
        """Return the document for ``--json``: metadata common to all targets, then each target with its rows."""
        described = [target.facts for target in run.targets]
        shared = {k: v for k, v in described[0].items() if all(k in facts and facts[k] == v for facts in described)}
        targets = [
            {
                "name": target.name, "run": target.run, "rows": target.summary(),
                **{k: v for k, v in facts.items() if k not in shared},
            }
            for target, facts in zip(run.targets, described, strict=True)
        ]  # fmt: skip
        document = {**shared, "files": files, "targets": targets, "notes": run.notes()}
        return document | ({"verdict": verdict} if verdict else {})

    def _files(self, run: Measurement) -> dict[str, list[str]]:
        """Write the CSV files, the JSON files with their metadata, and plots; return the paths by kind of file."""
        if self.file is None:
            return {}
        files: dict[str, list[str]] = {"csv": [], "facts": []}
        for target in run.targets:
            path = self._path(target)
            self._write(target, path, run.status)
            for rest in (self._partial(target), self._partial(target).with_suffix(".json")):
                rest.unlink(missing_ok=True)
            files["csv"].append(str(path))
            files["facts"].append(str(path.with_suffix(".json")))
        if self.options.plot:
            files["plot"] = self._plot(run, files["csv"])
        return {kind: names for kind, names in files.items() if names}

    def _plot(self, run: Measurement, csvs: Sequence[str]) -> list[str]:
        levels = run.plan.load is not None or len({target.planned.streams for target in run.targets}) > 1
        if not levels and len(run.targets[0].summary()) < 2:
            say(PROG, "nothing plotted: one row makes no curve")
            return []
        from .plot import plot

        return [str(path) for path in plot(csvs, self.options.plot, load=levels)]

    @contextmanager
    def _facts(self, target: MeasuredTarget, path: Path, status: str) -> Iterator[None]:
        """Write the JSON with the metadata of a run, which appears when the block ends."""
        # instead of the times of single steps, which would dominate the file, write their percentiles
        samples = []
        for entry in target.rows:
            percentiles = {name: value for name, value in summary([entry]).items() if name.endswith("_ms")}
            samples.append({k: v for k, v in (percentiles | entry).items() if not isinstance(v, (list, tuple))})
        content = {"columns": HEADER.split(","), "status": status, **target.facts, "samples": samples}
        with atomic_output(str(path)) as out:
            out.write(json.dumps(content, indent=1).encode() + b"\n")
            out.flush()
            yield

    def _path(self, target: MeasuredTarget) -> Path:
        assert self.file is not None
        suffix = f"-{self.suffixes[target.name]}" if self.several else ""
        return self.file.with_name(f"{self.file.stem}{suffix}{self.file.suffix}")

    def _partial(self, target: MeasuredTarget) -> Path:
        path = self._path(target)
        return path.with_name(f"{path.stem}.partial{path.suffix or '.csv'}")


def verdict(run: Measurement) -> tuple[dict[str, Any], list[str]]:
    """Compare the speeds of two targets that were measured in turn; return a JSON object, and sentences for the user.

    Both are empty if the run does not have two targets.
    """
    if len(run.targets) != 2:
        return {}, []
    from ds4ref.runs.speeds import speeds
    from ds4ref.runs.statements import LIMITS, finite

    a, b = run.targets
    limits, findings = LIMITS["bench"], speeds(a.rows, b.rows, True, names=(a.name, b.name)).findings
    document = {"a": a.name, "b": b.name, "confidence": limits.confidence, "margin_percent": limits.margin}
    metrics = {
        f.metric: {
            "verdict": f.verdict, "estimate_percent": finite(f.interval.estimate),
            "low_percent": finite(f.interval.low), "high_percent": finite(f.interval.high),
            "rounds": f.interval.n, "detectable_percent": finite(f.interval.detectable),
            "method": f.interval.method,
        }
        for f in findings
    }  # fmt: skip
    return (document | metrics if metrics else {}), [f.sentence(a.name, b.name) for f in findings]


def _is_device(path: str) -> bool:
    """Return whether the path is a terminal, a pipe or the like, which cannot be replaced by a complete file."""
    return os.path.exists(path) and not os.path.isfile(path)
