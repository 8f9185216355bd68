"""``ds4-eval merge``: join the logs of the shards of a run (``--shard``) into one, as if it had run in one place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import DataError, UsageError
from ds4ref.files import atomic_write
from ds4ref.runs import shards

from .log import VOLATILE, Log, LogHeader, read
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
    flags = parser("ds4-eval", "Join the logs of all shards of a run into one log, and print its report.",
                   "merge OUT [-o LOG] [--json]", "merge out -o run.jsonl")  # fmt: skip
    flags.add_argument("folder", nargs="*", metavar="OUT", help="the folder given to -o with --shard")
    add(flags, "--output", metavar="LOG", help="the log (OUT/run.jsonl)")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.folder) != 1:
        raise UsageError("merge needs one folder: the one given to -o with --shard")
    path = Path(args.output or Path(args.folder[0], LOG))
    log = merged(args.folder[0], path)
    from .report import report
    from .scores import summary

    print(json.dumps({"log": str(path), **summary(log)}) if args.json else f"{report(log, 120)}\nlog: {path}")
    return 0


def merged(out: str, path: Path) -> Log:
    """Write the log of all shards below ``out`` to ``path``, its samples in the order of the run, and return it."""
    folders = shards.read(out, TOOL)
    logs = [read(folder.path / LOG) for folder in folders]
    samples = {unit(sample.key): sample for log in logs for sample in log.samples}
    units = folders[0].entry["units"]
    if missing := [name for name in units if name not in samples]:
        raise DataError(f"{out}: {len(missing)} samples are missing, {missing[0]} first; run the shards again")
    log = Log(str(path), logs[0].header, [samples[name] for name in units])
    with atomic_write(path) as file:
        for entry in (log.header, *log.samples):
            file.write(msgspec.json.encode(entry) + b"\n")
    return log
