"""Reads and writes runs, their rows and their tags.

A run has a kind (one of ``KINDS``), metadata called facts (a JSON object: command, machine, model, ...) and rows (JSON
objects in order, the results). ``Store.add`` writes a complete run in one transaction. A long run may instead
``begin``, ``append`` rows as they arrive and ``finish``; until then its status is "open", and rows already appended
survive a crash.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ...environment import data_dir
from ...errors import DataError, UsageError
from .schema import connect, explained, transaction

KINDS = ("bench", "vectors", "eval", "doctor", "peaks")
STATUSES = ("open", "complete", "stopped", "failed")
_COLUMNS = """id, uid, kind, created, label, status, facts,
    (SELECT json_group_array(tag) FROM (SELECT tag FROM tags WHERE run = id ORDER BY tag)),
    (SELECT count(*) FROM rows WHERE run = id)"""
_TAG = re.compile(r"[^\s,@#:]{1,80}")


def default_path() -> Path:
    """Return the path of this user's store, which may not exist yet."""
    return data_dir() / "runs.sqlite"


@dataclass(frozen=True)
class Run:
    """A run in the store, without its rows.

    id       number in this store
    uid      globally unique id, hexadecimal
    created  UTC time
    label    name given by the user, "" if none
    status   "open", "complete", "stopped" or "failed"
    facts    metadata: command, commit, machine, versions, engine, model (``provenance``)
    rows     number of rows
    """

    id: int
    uid: str
    kind: str
    created: str
    label: str
    status: str
    facts: dict[str, Any]
    tags: tuple[str, ...] = ()
    rows: int = 0

    @property
    def name(self) -> str:
        """Return the name of the run in tables and plots."""
        return self.label or f"run {self.id}"

    def fact(self, *keys: str) -> Any:
        """Return a value of the metadata by its path of keys, such as ``fact("model", "sha256")``; None if missing."""
        value: Any = self.facts
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


@dataclass(frozen=True)
class Measured:
    """A run with its rows."""

    run: Run
    rows: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Return the run's name, as shown to users."""
        return self.run.name


class Store:
    """An open store. Use it only from the thread that opened it; every process must open its own."""

    def __init__(self, path: Path, db: sqlite3.Connection):
        self.path, self._db = path, db

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None, create: bool = True) -> Store:
        """Open the store at ``path`` (default: the user's own); raise DataError if the file is not a store."""
        where = Path(path) if path is not None else default_path()
        return cls(where, connect(where, create))

    # --- writing

    def add(
        self,
        kind: str,
        facts: Mapping[str, Any],
        rows: Iterable[Mapping[str, Any]] = (),
        *,
        label: str = "",
        status: str = "complete",
        tags: Sequence[str] = (),
    ) -> int:
        """Add a run with its rows and tags in one transaction, and return its id."""
        with self._writing():
            run = self._insert(kind, facts, label, status)
            self._append(run, rows)
            self._tag(run, tags)
        return run

    def begin(self, kind: str, facts: Mapping[str, Any], *, label: str = "", tags: Sequence[str] = ()) -> int:
        """Start an empty run, to be filled by ``append``, and return its id."""
        return self.add(kind, facts, label=label, status="open", tags=tags)

    def append(self, run: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a run; they are on disk when this method returns."""
        with self._writing():
            self._need(run)
            self._append(run, rows)

    def finish(self, run: int, status: str = "complete", facts: Mapping[str, Any] | None = None) -> None:
        """End a run started by ``begin``; ``facts``, if given, replaces its metadata."""
        with self._writing():
            self._set(run, "status", _one_of(STATUSES, "status", status))
            if facts is not None:
                self._set(run, "facts", _dump(facts))

    def replace(self, run: int, facts: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], status: str) -> None:
        """Replace metadata, rows and status of a run that has continued outside the store, in a log that has grown.

        Its id, label and tags stay.
        """
        with self._writing():
            self._set(run, "status", _one_of(STATUSES, "status", status))
            self._set(run, "facts", _dump(facts))
            self._db.execute("DELETE FROM rows WHERE run = ?", (run,))
            self._append(run, rows)

    def rename(self, run: int, label: str) -> None:
        """Change the label of a run."""
        with self._writing():
            self._set(run, "label", _text(label))

    def tag(self, run: int, *tags: str) -> None:
        """Add tags to a run, which keeps its other tags."""
        with self._writing():
            self._need(run)
            self._tag(run, tags)

    def untag(self, run: int, *tags: str) -> None:
        """Remove tags from a run; raise DataError if it lacks one."""
        with self._writing():
            for tag in tags:
                done = self._db.execute("DELETE FROM tags WHERE run = ? AND tag = ?", (run, tag))
                if not done.rowcount:
                    raise DataError(f"run {run} has no tag {tag!r}")

    def remove(self, *runs: int) -> None:
        """Delete runs with their rows and tags; if one does not exist, delete none and raise DataError."""
        with self._writing():
            for run in runs:
                self._need(run)
                self._db.execute("DELETE FROM runs WHERE id = ?", (run,))

    # --- reading

    def runs(self, kind: str | None = None, tag: str | None = None, limit: int | None = None) -> list[Run]:
        """Return the runs, newest first; optionally only those of one kind or with a tag, and at most ``limit``."""
        conditions = {
            "kind = ?": None if kind is None else _one_of(KINDS, "kind of run", kind),
            "id IN (SELECT run FROM tags WHERE tag = ?)": tag,
        }
        known = {condition: value for condition, value in conditions.items() if value is not None}
        clause = " AND ".join(known) or "true"
        return self._select(clause, *known.values(), limit=-1 if limit is None else limit)

    def run(self, number: int) -> Run:
        """Return the run with this id; raise DataError if there is none."""
        runs = self._select("id = ?", number)
        if not runs:
            raise DataError(f"run store {self.path} has no run {number}")
        return runs[0]

    def find(self, name: str) -> Run:
        """Return the run that a user means by ``name``; raise DataError if there is none.

        A name may be an id, a tag, a label, the beginning of a uid (6 or more digits), ``latest`` or ``latest:KIND``.
        If several runs have the tag or label, the newest is returned.
        """
        if re.fullmatch(r"[0-9]{1,18}", name):
            return self.run(int(name))
        word, _, kind = name.partition(":")
        if word in ("latest", "last"):
            if newest := self.runs(kind=kind or None, limit=1):
                return newest[0]
            raise DataError(f"run store {self.path} holds no {kind + ' ' if kind else ''}run")
        conditions = ["id IN (SELECT run FROM tags WHERE tag = ?)", "label = ?"]
        if re.fullmatch(r"[0-9a-f]{6,32}", name):
            conditions.append("uid LIKE ? || '%'")
        for condition in conditions:
            if runs := self._select(condition, name, limit=1):
                return runs[0]
        raise DataError(f"run store {self.path} has no run, tag or label {name!r}; ds4-report list shows them")

    def rows(self, run: int) -> list[dict[str, Any]]:
        """Return the rows of a run in order."""
        self.run(run)
        with explained(self.path):
            lines = self._db.execute("SELECT data FROM rows WHERE run = ? ORDER BY seq", (run,)).fetchall()
        return [_load(line[0], self.path) for line in lines]

    def check(self) -> None:
        """Read the whole store to verify it; raise DataError naming the first damage."""
        with explained(self.path):
            verdict = self._db.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if verdict != "ok":
                raise DataError(f"run store {self.path} is damaged: {verdict}")
        for run in self.runs():
            self.rows(run.id)

    # --- files

    def sha256(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> str:
        """Return the SHA-256 of a file or folder, from the store's cache if the file has not changed.

        ``progress`` is called with (bytes read, bytes in all).
        """
        from .digests import cached_sha256

        with explained(self.path):
            return cached_sha256(self._db, path, progress)

    def show(self, run: int) -> str:
        """Return the command that shows a run to the user; it has an option with the store's path if it needs one."""
        own = self.path.resolve() == default_path().resolve()
        return f"ds4-report show {run}" + ("" if own else f" --store {shlex.quote(str(self.path))}")

    def close(self) -> None:
        """Close the database file."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- inside

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run the block in one transaction, committed at the end or rolled back on an exception."""
        with explained(self.path), transaction(self._db):
            yield

    def _insert(self, kind: str, facts: Mapping[str, Any], label: str, status: str) -> int:
        uid = uuid.uuid4().hex
        created = str(facts.get("created") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        done = self._db.execute(
            "INSERT INTO runs (uid, kind, created, label, status, facts) VALUES (?, ?, ?, ?, ?, ?)",
            (
                uid,
                _one_of(KINDS, "kind of run", kind),
                created,
                _text(label),
                _one_of(STATUSES, "status", status),
                _dump(facts),
            ),  # fmt: skip
        )
        if done.lastrowid is None:
            raise DataError(f"run store {self.path} gave the new run no number")
        return done.lastrowid

    def _append(self, run: int, rows: Iterable[Mapping[str, Any]]) -> None:
        start = self._db.execute("SELECT coalesce(max(seq) + 1, 0) FROM rows WHERE run = ?", (run,)).fetchone()[0]
        lines = [(run, seq, _dump(row)) for seq, row in enumerate(rows, start)]
        self._db.executemany("INSERT INTO rows (run, seq, data) VALUES (?, ?, ?)", lines)

    def _set(self, run: int, column: str, value: str) -> None:
        self._need(run)
        self._db.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (value, run))

    def _tag(self, run: int, tags: Sequence[str]) -> None:
        for tag in tags:
            if not _TAG.fullmatch(tag) or tag.isdecimal() or tag in ("latest", "last"):
                raise UsageError(f"{tag!r} cannot be a tag: words without spaces, commas, colons, not only digits")
            self._db.execute("INSERT OR IGNORE INTO tags (run, tag) VALUES (?, ?)", (run, tag))

    def _need(self, run: int) -> None:
        if self._db.execute("SELECT 1 FROM runs WHERE id = ?", (run,)).fetchone() is None:
            raise DataError(f"run store {self.path} has no run {run}")

    def _select(self, condition: str, *values: Any, limit: int = -1) -> list[Run]:
        """Return the runs that meet an SQL condition with the parameters ``values``, newest first.

        There are at most ``limit`` of them; a negative one is no limit.
        """
        sql = f"SELECT {_COLUMNS} FROM runs WHERE {condition} ORDER BY id DESC LIMIT {limit:d}"
        with explained(self.path):
            lines = self._db.execute(sql, values).fetchall()
        for line in lines:
            if not all(isinstance(cell, str) for cell in line[1:-1]):
                raise DataError(f"run store {self.path} is damaged: run {line[0]} has a value that is not text")
        return [
            Run(number, uid, kind, created, label, status, _load(facts, self.path), tuple(json.loads(tags)), count)
            for number, uid, kind, created, label, status, facts, tags, count in lines
        ]


def _one_of(names: Sequence[str], what: str, name: str) -> str:
    if name not in names:
        raise UsageError(f"unknown {what} {name!r}: choose from {', '.join(names)}")
    return name


def _text(text: str) -> str:
    """Replace lone surrogates, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode()


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def plain(value: Any) -> Any:
    """Return ``value`` in types that JSON can express: NaN and infinity become None, NumPy scalars numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"run store {path} is damaged: an entry is no JSON object")
    return value
