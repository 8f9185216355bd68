"""The database tables of the run store, and the checks on opening a file.

A store is an SQLite database in WAL mode with our application id and a schema version. Opening anything else raises a
one-line error: another program's database, a file of another format, a truncated file, a store written by a later
version of ds4ref. Stores of older versions are migrated in one transaction, by the process that opens the file first.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError

APPLICATION_ID = 0x64733472  # "ds4r"
MAGIC = b"SQLite format 3\0"
BUSY_SECONDS = 30.0

# Step i brings a database from version i to i + 1. Steps are never edited once released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            uid TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            created TEXT NOT NULL,
            label TEXT NOT NULL DEFAULT '',
            status TEXT NOT NULL,
            facts TEXT NOT NULL
        )""",
        """CREATE TABLE rows (
            run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (run, seq)
        ) WITHOUT ROWID""",
        """CREATE TABLE tags (
            run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
            tag TEXT NOT NULL,
            PRIMARY KEY (run, tag)
        ) WITHOUT ROWID""",
        "CREATE INDEX runs_by_kind ON runs (kind, id)",
    ),
    (
        """CREATE TABLE digests (
            path TEXT PRIMARY KEY,
            size INTEGER NOT NULL,
            mtime_ns INTEGER NOT NULL,
            sha256 TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE units (
            job TEXT NOT NULL,
            unit TEXT NOT NULL,
            run INTEGER REFERENCES runs(id) ON DELETE SET NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            error TEXT,
            result TEXT,
            PRIMARY KEY (job, unit)
        ) WITHOUT ROWID""",
    ),
)
VERSION = len(MIGRATIONS)


def connect(path: str | os.PathLike[str], create: bool = True) -> sqlite3.Connection:
    """Open the store at ``path``, migrated to ``VERSION``; raise a one-line DataError if the file is not a store."""
    path = Path(path)
    fresh = _inspect(path, create)
    with explained(path):
        db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            db.execute("PRAGMA foreign_keys = ON")
            if fresh or _version(db) < VERSION:
                _check_owner(db, path)
                _use_wal(db)
                _migrate(db)
            _check_owner(db, path)
            # Wait at each commit until it is on disk: a run may be hours of work.
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
    return db


@contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn SQLite's errors in the block into DataError, with one line that names the store at ``path``."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = f"another process kept it locked for {BUSY_SECONDS:g} s" if _is_busy(error) else str(error)
        raise DataError(f"run store {path}: {text}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # of a damaged file even SQLite's message may be none
        raise DataError(f"run store {path} is damaged: {error}; restore a copy or move it away") from error


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction, as the only writer; roll it back if the block raises an exception."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _inspect(path: Path, create: bool) -> bool:
    """Return whether a new database must be created at ``path``, because there is no file or an empty one.

    Raise DataError for a file that cannot be a store, and for a missing one unless ``create``.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size  # after the header: the file may be growing
    except FileNotFoundError:
        if not create:
            raise DataError(f"no run store at {path}: ds4-bench --store and ds4-report import make one") from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"run store {path}: cannot create its folder: {error.strerror}") from None
        return True
    except OSError as error:
        raise DataError(f"run store {path}: {error.strerror}") from None
    if not header:
        return True
    if not header.startswith(MAGIC) or len(header) < 100:
        raise DataError(f"{path} is not a run store: no SQLite database")
    page_size, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
    log = path.with_name(path.name + "-wal")
    # A short file is valid if SQLite's log beside it has the missing pages, which SQLite then checks itself.
    if size < (65536 if page_size == 1 else page_size) * pages and not (log.exists() and log.stat().st_size):
        raise DataError(f"run store {path} is damaged: cut short at {size} bytes")
    return False


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _check_owner(db: sqlite3.Connection, path: Path) -> None:
    """Raise DataError unless the database at ``path`` is a run store of a known version, or empty."""
    db.execute("BEGIN")  # read one consistent state of the file, although another process may be migrating it
    try:
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application, version = db.execute("PRAGMA application_id").fetchone()[0], _version(db)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    if application != APPLICATION_ID and not (empty and not application and not version):
        raise DataError(f"{path} is another program's database, not a run store")
    if version > VERSION:
        raise DataError(f"run store {path} has schema {version}, this ds4ref knows up to {VERSION}: update ds4ref")


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch the database to WAL mode, retrying while it is locked: this statement does not itself wait for a lock."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise DataError(f"no write-ahead log possible here (journal mode {mode}): choose a local disk")
        return


def _migrate(db: sqlite3.Connection) -> None:
    with transaction(db):
        for step in MIGRATIONS[_version(db) :]:  # read again under the lock: another process may have migrated
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
