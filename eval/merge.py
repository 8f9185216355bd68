"""``ds4-eval merge``: join the logs of the shards of a run (``--shard``) into one, as if it had run in one place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from ds4ref.console.tool import folder_of_shards
from ds4ref.files import atomic_write
from ds4ref.runs import shards

from .log import VOLATILE, Log, LogHeader, read
from .options import PROG
from .plan import Key

TOOL, LOG = "eval", "run.jsonl"


def plan_of(header: LogHeader) -> dict[str, object]:
    """Return what must be equal in all shards of a run."""
    target = {name: value for name, value in header.target.items() if name not in VOLATILE}
    return {"pack": header.pack, "settings": asdict(header.plan), "epochs": header.epochs, "target": target}


def unit(key: Key) -> str:
    """Return the name of a sample among the units of a run."""
    return f"{key.epoch}/{key.question}"


def merge_command(argv: Sequence[str]) -> int:
    """Run ``ds4-eval merge OUT``; return the exit code."""
    args = folder_of_shards(PROG, argv, "Join the logs of all shards of a run into one log, and print its report.",
                            "--output", metavar="LOG", help="the log (FOLDER/run.jsonl)")  # fmt: skip
    if args is None:
        return 0
    path = Path(args.output or Path(args.folder, LOG))
    log = merged(args.folder, path)
    from .report import report
    from .scores import summary

    print(json.dumps({"log": str(path), **summary(log)}) if args.json else f"{report(log, 120)}\nlog: {path}")
    return 0


def merged(out: str, path: Path) -> Log:
    """Write the log of all shards below ``out`` to ``path``, its samples in the order of the run, and return it."""
    folders = shards.read(out, TOOL)
    logs = [read(folder.path / LOG) for folder in folders]
    samples = {unit(sample.key): sample for log in logs for sample in log.samples}
    log = Log(str(path), logs[0].header, shards.in_order(folders, samples))
    with atomic_write(path) as file:
        for entry in (log.header, *log.samples):
            file.write(msgspec.json.encode(entry) + b"\n")
    return log
