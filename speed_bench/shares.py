"""A run on several machines: ``--shard I/N`` measures a share of the repetitions, ``ds4-bench merge`` joins them.

A shard's folder has rows.jsonl, one row a line as soon as it is measured, and facts.json, the metadata of its targets.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds4ref.console.tool import folder_of_shards
from ds4ref.errors import DataError, UsageError
from ds4ref.files import atomic_write, flush_to_disk
from ds4ref.runs import shards

from .options import PROG, build_parser, read_plan
from .output import Output
from .plan import Plan
from .runner import MeasuredTarget, Measurement, require_same_setup

TOOL = "bench"


class Share:
    """The share of a run that one shard measures; ``folder``: its folder, which keeps the rows."""

    def __init__(self, folder: shards.ShardFolder, measurement: Measurement):
        self.folder, self.measurement = folder, measurement
        self.file = folder.path / "rows.jsonl"
        for row, index in self.rows(self.file):
            measurement.targets[index].rows.append(row)
        if (facts := _facts(folder.path)) is not None:
            for target, known in zip(measurement.targets, facts, strict=True):
                target.facts = known
        measurement.only = {int(name) for name in folder.mine}

    @staticmethod
    def rows(file: Path) -> list[tuple[dict[str, Any], int]]:
        """Return (row, index of its target) of a shard's rows; a line that was cut off is left out, and removed."""
        data = file.read_bytes() if file.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            with atomic_write(file) as out:
                out.write(whole)
        lines = [json.loads(line) for line in whole.splitlines()]
        return [(line["row"], line["target"]) for line in lines]

    def keep(self, target: MeasuredTarget) -> None:
        """Append the target's newest row to the file, and flush it to disk."""
        targets = self.measurement.targets
        if not (self.folder.path / "facts.json").exists():
            with atomic_write(self.folder.path / "facts.json") as out:
                out.write(json.dumps([each.facts for each in targets], default=str).encode())
        with open(self.file, "ab") as out:
            line = {"target": targets.index(target), "row": target.rows[-1]}
            out.write(json.dumps(line, default=float).encode() + b"\n")
            out.flush()
            flush_to_disk(out.fileno())


def units_of(plan: Plan) -> list[str]:
    """Return the units of a run, its repetitions; UsageError if their number is not given."""
    if plan.reps is None:
        raise UsageError("--shard needs -r N: the repetitions are divided among the shards")
    return [str(rep) for rep in range(plan.reps)]


def plan_of(plan: Plan) -> dict[str, Any]:
    """Return what must be equal in all shards of a run; that their machines are, is checked when they are merged."""
    return {"plan": plan.facts(), "targets": [asdict(target) for target in plan.targets]}


def merge(argv: Sequence[str]) -> int:
    """Run ``ds4-bench merge OUT``; return the exit code."""
    args = folder_of_shards(PROG, argv, "Join the rows of all shards of a run (--shard), and print and write them as "
                            "the run would have.", "--csv")  # fmt: skip
    if args is None:
        return 0
    folders = shards.read(args.folder, TOOL)
    command = json.loads((folders[0].path / "command.json").read_bytes())
    other = {"csv": args.csv, "json": args.json, "no_store": True}
    unset = dict.fromkeys(("output", "store", "shard", "shard_folder"))
    options = Namespace(**{**vars(build_parser().parse(command)), **unset, **other, "plot": []})
    measurement = merged(read_plan(options), folders)
    output = Output(options, measurement.plan.targets)
    output.begin(measurement)
    for target in measurement.targets:
        output.row(target)
    output.conclude()
    return 0


def merged(plan: Plan, folders: Sequence[shards.ShardFolder]) -> Measurement:
    """Return the measurement with the rows of all shards, in the order of the run; DataError if one is missing, or if
    the shards were measured with different models, texts or processors."""
    measurement = Measurement(plan)
    for folder in folders:
        facts = _facts(folder.path) or []
        for row, index in Share.rows(folder.path / "rows.jsonl"):
            measurement.targets[index].rows.append(row)
        for target, known in zip(measurement.targets, facts, strict=False):
            if target.facts:
                require_same_setup(target, known, f"{folder.path} and {folders[0].path} cannot be merged: they were")
            target.facts = target.facts or known
    for target in measurement.targets:
        target.rows.sort(key=lambda row: row["rep"])
        if len(target.rows) != measurement.wanted // len(measurement.targets):
            raise DataError(f"{len(target.rows)} rows of {measurement.wanted // len(measurement.targets)} are there; "
                            "run the shards again")  # fmt: skip
    measurement.status = "complete"
    return measurement


def _facts(path: Path) -> list[dict[str, Any]] | None:
    file = path / "facts.json"
    return json.loads(file.read_bytes()) if file.exists() else None
