"""Divide a run among machines: each does its share of the units in a folder of its own, and the folders are merged.

    shard = parse("auto")                      I/N, or read from Slurm's or Kubernetes' environment
    with work(out, shard, "eval", plan, units) as folder:
        ...                                    do folder.mine, with files in folder.path
        folder.finish()
    merged = read(out, "eval")                 all folders, checked: one plan, none missing, none foreign

A unit is what a tool resumes by: a sample of eval, a case of vectors, a repetition of bench, a target of doctor. Unit
number k belongs to shard k modulo N, so that hard units in a row are spread. OUT/shard-I-of-N/shard.json has the plan
and the units; a shard that is repeated continues in its folder, and one that is finished changes nothing.
"""

from __future__ import annotations

import json
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import atomic_write, locked

SCHEMA, FILE = "ds4-shard-v1", "shard.json"
MOST = 100_000
SLURM, KUBERNETES = "SLURM_ARRAY_TASK_", "JOB_COMPLETION_INDEX"


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` (from 1) of ``count``."""

    number: int
    count: int

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"shard-{self.number}-of-{self.count}"

    def mine(self, units: Sequence[Any]) -> list[Any]:
        """Return this shard's units, in order."""
        return list(units[self.number - 1 :: self.count])


def parse(text: str, env: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard that a flag's value names; ArgumentTypeError if it names none.

    "I/N"; or "auto": from Slurm's array (SLURM_ARRAY_TASK_ID, _COUNT, _MIN, _STEP); or "auto/N": also from Kubernetes'
    JOB_COMPLETION_INDEX, which comes without a number of completions.
    """
    first, _, count = text.partition("/")
    if first == "auto":
        return _from_environment(count, env)
    if not re.fullmatch(r"[0-9]{1,6}/[0-9]{1,6}", text):
        raise ArgumentTypeError("expected I/N (3/8: the third of eight shards), auto or auto/N")
    return _checked(int(first), int(count))


def _from_environment(count: str, env: Mapping[str, str]) -> Shard:
    try:
        if SLURM + "ID" in env:
            low, step = int(env.get(SLURM + "MIN", "0")), int(env.get(SLURM + "STEP", "1"))
            return _checked((int(env[SLURM + "ID"]) - low) // step + 1, int(count or env[SLURM + "COUNT"]))
        if KUBERNETES in env:
            return _checked(int(env[KUBERNETES]) + 1, int(count))
    except (KeyError, ValueError, ZeroDivisionError):
        raise ArgumentTypeError("the environment has no number of shards: use auto/N") from None
    raise ArgumentTypeError(f"neither {SLURM}ID nor {KUBERNETES} is set: use I/N")


def _checked(number: int, count: int) -> Shard:
    if not 1 <= number <= count <= MOST:
        raise ArgumentTypeError(f"there is no shard {number} of {count}: they are numbered from 1")
    return Shard(number, count)


@dataclass
class ShardFolder:
    """The folder of a shard.

    path   the folder
    entry  contents of its shard.json
    """

    path: Path
    entry: dict[str, Any]

    @property
    def done(self) -> bool:
        """Return whether the shard is finished."""
        return bool(self.entry["done"])

    @property
    def mine(self) -> list[str]:
        """Return the names of the shard's units."""
        return Shard(self.entry["shard"], self.entry["of"]).mine(self.entry["units"])

    def finish(self) -> None:
        """Mark the shard as finished."""
        if not self.done:
            self.entry["done"] = True
            self._save()

    def _save(self) -> None:
        with atomic_write(self.path / FILE) as file:
            file.write((json.dumps(self.entry, indent=1) + "\n").encode())


def folder_of(out: str | os.PathLike[str], shard: Shard) -> Path:
    """Return the folder of a shard below ``out``."""
    return Path(out, shard.name)


@contextmanager
def work(
    out: str | os.PathLike[str], shard: Shard, tool: str, plan: Mapping[str, Any], units: Sequence[str]
) -> Iterator[ShardFolder]:
    """Context manager: the shard's folder below ``out``, locked, new or as an earlier attempt left it.

    tool   what the run is: "eval", "bench", "capture", "doctor"
    plan   what must be equal in all shards: model, settings, questions; of types of JSON
    units  names of the units of the whole run, in order

    DataError if the folder belongs to another run, or another process works in it.
    """
    path = folder_of(out, shard)
    entry = {"schema": SCHEMA, "tool": tool, "shard": shard.number, "of": shard.count,
             "plan": json.loads(json.dumps(plan, default=str)), "units": list(units), "done": False}  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    with locked(path / "lock", f"{path}: another process works on this shard"):
        folder = ShardFolder(path, entry)
        if (path / FILE).exists():
            earlier = _load(path / FILE)
            if differing := _differing(earlier, entry):
                raise DataError(f"{path} belongs to another run (other {differing}): choose another folder")
            folder.entry = earlier
        else:
            folder._save()
        yield folder


def read(out: str | os.PathLike[str], tool: str) -> list[ShardFolder]:
    """Return the folders of all shards of a run, in order.

    DataError if ``out`` has none, if one is missing or unfinished, or if they are not of one run.
    """
    files = sorted(Path(out).glob(f"shard-*-of-*/{FILE}"))
    folders = sorted((ShardFolder(file.parent, _load(file)) for file in files), key=lambda f: int(f.entry["shard"]))
    if not folders:
        raise DataError(f"{out} has no shards: they are folders named shard-I-of-N with {FILE}")
    first = folders[0]
    for folder in folders:
        if folder.entry["tool"] != tool:
            raise DataError(f"{folder.path} is a shard of {folder.entry['tool']}, not of {tool}")
        if differing := _differing(first.entry, {**folder.entry, "shard": first.entry["shard"]}):
            raise DataError(f"{folder.path} is not of the same run as {first.path}: other {differing}")
        if folder.path.name != Shard(folder.entry["shard"], folder.entry["of"]).name:
            raise DataError(f"{folder.path} holds shard {folder.entry['shard']} of {folder.entry['of']}")
    present = {folder.entry["shard"] for folder in folders}
    missing = [str(number) for number in range(1, first.entry["of"] + 1) if number not in present]
    missing += [f"{folder.entry['shard']} (unfinished)" for folder in folders if not folder.done]
    if missing:
        raise DataError(f"{out}: shards missing of {first.entry['of']}: {', '.join(missing)}; run them again")
    return folders


def in_order(folders: Sequence[ShardFolder], parts: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a run, given by unit, in its order; DataError if one is missing."""
    units = folders[0].entry["units"]
    if missing := [name for name in units if name not in parts]:
        raise DataError(f"{folders[0].path.parent}: {len(missing)} of {len(units)} results are missing, {missing[0]} "
                        "first; run the shards again")  # fmt: skip
    return [parts[name] for name in units]


def _load(file: Path) -> dict[str, Any]:
    try:
        entry = json.loads(file.read_bytes())
        if entry["schema"] == SCHEMA and {"tool", "shard", "of", "plan", "units", "done"} <= entry.keys():
            return dict(entry)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{file} is damaged, or of another version: remove its folder and run the shard again")


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return the names of what differs between two shards of one run, "" if nothing does."""
    names = [key for key in ("tool", "of", "shard") if a[key] != b[key]]
    keys = sorted(a["plan"].keys() | b["plan"].keys())
    names += [key for key in keys if a["plan"].get(key) != b["plan"].get(key)]
    return ", ".join([*names, *(["units"] if a["units"] != b["units"] else [])])
