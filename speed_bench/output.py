"""What becomes of the samples of a run: files, standard output, the run store.

A run has one lane or several: arms, values of a list, targets, numbers of streams. Every lane has its own samples,
facts, CSV and run in the store.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ds4ref.cli.common import atomic_output, say
from ds4ref.errors import DataError
from ds4ref.runs.drift import notes as drift_notes

from .formats import render
from .results import HEADER, format_row
from .samples import Sample, summaries

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

PROG = "ds4-bench"


@dataclass
class Lane:
    """One of the things measured. ``name`` is empty if there is only one; ``suffix`` tells its CSV from the others'."""

    name: str
    suffix: str
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    run: int | None = None


def lanes_of(names: Sequence[str], suffixes: Sequence[str] = ()) -> list[Lane]:
    """A lane for every name; without ``suffixes`` the names become parts of file names."""
    made = suffixes or [re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") for name in names]
    unique = made if len(set(made)) == len(made) else [f"{i + 1}-{part}" for i, part in enumerate(made)]
    return [Lane(name, part) for name, part in zip(names, unique, strict=True)]


class Output:
    """Where the samples of ``lanes`` go, as the command line says."""

    def __init__(self, args: Namespace, lanes: Sequence[Lane]):
        self.args, self.lanes = args, list(lanes)
        self.show: dict[int, str] = {}  # the command for every run that was kept

    def csv(self, lane: Lane) -> str:
        """The name of a lane's CSV."""
        path = Path(self.args.csv)
        return str(path) if len(self.lanes) < 2 else str(path.with_name(f"{path.stem}-{lane.suffix}{path.suffix}"))

    def write_csv(self, lane: Lane) -> None:
        """All of a lane's summaries, the file whole or not at all."""
        with atomic_output(self.csv(lane)) as out:
            lines = [HEADER, *map(format_row, summaries(lane.samples))]
            out.write(("\n".join(lines) + "\n").encode())

    def keep(self, store: Store | None, status: str) -> None:
        """Runs into the store, one a lane, tied together by their group."""
        group = uuid.uuid4().hex[:12]
        for index, lane in enumerate(self.lanes):
            if len(self.lanes) > 1:
                lane.facts["arms"] = {"group": group, "arm": chr(ord("A") + index % 26), "options": lane.name}
            if store is not None and lane.samples:
                lane.run = store.add("bench", lane.facts, lane.samples, label=self.label(lane), status=status)
                self.show[lane.run] = store.show(lane.run)

    def label(self, lane: Lane) -> str:
        """What the run is called."""
        label = self.args.label or (Path(self.args.csv).stem if self.args.csv else "")
        return f"{label}: {lane.name}" if label and lane.name else label or lane.name

    def conclude(self) -> None:
        """Everything that is written at the end: tables, files, one line of JSON."""
        args, first = self.args, self.lanes[0]
        pairs = [(lane.samples, lane.facts) for lane in self.lanes]
        if args.output is not None:
            sys.stdout.write(render(args.output, pairs))
        elif args.csv is None and args.reps > 1:
            sys.stdout.write(render("csv", pairs[:1]))
        for lane in self.lanes:
            for note in drift_notes(lane.samples):
                say(PROG, f"{lane.name}: {note}" if lane.name else note)
        runs = [lane.run for lane in self.lanes if lane.run is not None]
        if args.csv is None:
            for number in runs:
                say(PROG, f"kept as run {number}; {self.show[number]}")
            return
        files = self._files()
        from .table import print_table

        for lane in self.lanes:
            print_table(summaries(lane.samples), lane.facts, self.label(lane))
        for kind, names in files.items():
            print(f"{kind:6} {names}")
        if runs:
            print(f"{'runs':6} {'; '.join(self.show[number] for number in runs)}")
        rows = sum(len(summaries(lane.samples)) for lane in self.lanes)
        print(json.dumps({"rows": rows, "files": files, "runs": runs, **first.facts}))

    def _files(self) -> dict[str, str]:
        """The files beside the CSV, and the plot."""
        args = self.args
        files = {"csv": ", ".join(map(self.csv, self.lanes))}
        described = []
        for lane in self.lanes:
            path = Path(self.csv(lane))
            if path.exists() and not path.is_file():
                continue
            if args.reps > 1 or len(self.lanes) > 1:
                self.write_csv(lane)
            described.append(str(path.with_suffix(".json")))
            # Times of single steps stay in the store: here they would outweigh everything else.
            samples = [{k: v for k, v in entry.items() if k != "steps_s"} for entry in lane.samples]
            content = {"columns": HEADER.split(","), **lane.facts, "samples": samples}
            with atomic_output(described[-1]) as out:
                out.write(json.dumps(content, indent=1).encode() + b"\n")
        if described:
            files["facts"] = ", ".join(described)
        if args.plot and len(summaries(self.lanes[0].samples)) < 2:
            say(PROG, "one row makes no curve: nothing plotted")
        elif args.plot:
            from .plot import plot

            files["plot"] = ", ".join(str(path) for path in plot([self.csv(lane) for lane in self.lanes], args.plot))
        return files


@contextmanager
def csv_stream(path: str | None, stdout: bool) -> Iterator[IO[str] | None]:
    """Where the CSV goes: a file, standard output, or nowhere."""
    if path is None:
        yield sys.stdout if stdout else None
        return
    try:
        file = open(path, "w", newline="", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    with file:
        yield file
