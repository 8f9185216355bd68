"""A folder of session checkpoints that several processes may share: files are found by key, written atomically, and
evicted to keep to a limit in bytes.

    NAME.kv                    a checkpoint (``kvc``)
    NAME.kv.bad                a checkpoint that a reader found to be damaged: deleted first when space is needed
    NAME.kv.tmp.PID.RANDOM     a checkpoint being written, locked by its writer; without a lock it is abandoned
    .lock                      locked while files are added, deleted or renamed

To find a checkpoint only headers and integrity sections are read; they are cached until the folder changes. Locks are
advisory, belong to open files and end with their process; waiting for one is limited to ``LOCK_SECONDS``. A process
without write permission can still read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import flush_to_disk
from . import kvc
from .kvc import Checkpoint, Damaged, Unknown

try:
    import fcntl
except ImportError:  # no advisory locks here; files are complete even so, being renamed when finished
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("ds4-kv")

LOCK_SECONDS = 5.0
SETTLED_SECONDS = 2.0
"""Seconds after a change of the folder within which a second change may not alter its modification time again."""

FOREIGN_SECONDS = 3600.0
"""Age in seconds above which an unfinished file that no process has locked counts as abandoned."""

HALF_LIFE = 6 * 3600.0
"""Seconds without use after which a hit counts half in the eviction score."""

NAME = re.compile(r"[0-9a-fA-F]{40}\.kv")
BAD = re.compile(r"[0-9a-fA-F]{40}\.kv\.bad")
TEMPORARY = re.compile(r"[0-9a-fA-F]{40}\.kv\.tmp\.[0-9]+(?P<ours>\.[0-9a-f]+)?")


Files = dict[str, os.stat_result]


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint file of the folder; an unusable file has no ``checkpoint`` but a reason in ``why``.

    state     inode, size in bytes and time of the last change in ns, which change whenever the file does
    damaged   whether the bytes are not those that were written
    unread    whether the file could not be read
    """

    name: str
    state: tuple[int, int, int]
    checkpoint: Checkpoint | None
    why: str = ""
    damaged: bool = False
    unread: bool = False

    @property
    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self.state[1]

    @property
    def keys(self) -> list[tuple[int, str]]:
        """Return (length in bytes, digest) of each key text; the checkpoint can serve prompts that begin with one of
        them.

        Digests are SHA-1 (40 digits) or SHA-256 (64 digits), in hexadecimal.
        """
        if self.checkpoint is None:
            return []
        own = self.checkpoint.header.text, self.name[:40].lower()
        return [own, *(self.checkpoint.integrity.keys if self.checkpoint.integrity else ())]

    def score(self, now: float) -> float:
        """Return the eviction score at Unix time ``now``; the lowest score is evicted first."""
        if self.checkpoint is None:
            return 0.0
        h = self.checkpoint.header
        return score(h.hits, h.tokens, self.size, h.used, h.created, now)

    @property
    def used(self) -> float:
        """Return the time of the last use (or else of creation) in Unix seconds."""
        if self.checkpoint is None:
            return self.state[2] / 1e9
        return self.checkpoint.header.used or self.checkpoint.header.created


def score(hits: int, tokens: int, size: int, used: int, created: int, now: float) -> float:
    """Return the eviction score: tokens per byte times (1 + hits), with hits halved for every six hours without use.

    used, created, now: Unix seconds; if ``used`` is 0 (unknown), ``created`` counts as the last use.
    """
    since = used or created
    hits_now = hits * 2.0 ** (-max(0.0, now - since) / HALF_LIFE) if since else 0.0
    return ((hits_now if hits_now >= 0.01 else 0.0) + 1) * tokens / size


def fits(size: int, budget: int) -> bool:
    """Return whether a file of ``size`` bytes fits into ``budget`` bytes with at least 1% to spare."""
    return size + -(-size // 100) <= budget


class Directory:
    """The folder ``path`` of checkpoints, which take at most ``budget`` bytes in all; safe for several threads and
    processes.

    clock   function that returns the time in Unix seconds
    """

    def __init__(self, path: str | os.PathLike[str], budget: int = 4096 << 20, clock: Callable[[], float] = time.time):
        self.path, self.budget, self.clock = Path(path), budget, clock
        self._entries: dict[str, StoredCheckpoint] = {}
        self._keys: dict[int, dict[str, list[StoredCheckpoint]]] = {}
        self._damaged: dict[str, tuple[int, int]] = {}
        self._scanned: tuple[int, float] | None = None
        self._guard = threading.RLock()
        self._depth = 0

    def open(self) -> None:
        """Create the folder, remove abandoned files and evict down to the budget; raise OSError if it cannot be
        created."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # a folder that cannot be written can still be read
            self.sweep()
            self.make_room()

    # --- looking

    def entries(self) -> list[StoredCheckpoint]:
        """Return all checkpoints with metadata read anew, unusable ones included."""
        with self._guard:
            self._scan()
            return list(self._entries.values())

    def known(self) -> list[StoredCheckpoint]:
        """Return all checkpoints with cached metadata; files are read again only if the folder changed, so hit counts
        may be stale."""
        with self._guard:
            self._refresh()
            return list(self._entries.values())

    def get(self, name: str) -> StoredCheckpoint | None:
        """Return the checkpoint ``name`` with metadata read anew, or None if it does not exist."""
        with self._guard:
            try:
                status = os.stat(self.path / name, follow_symlinks=False)
            except OSError:
                return None
            return self._look(name, status) if stat.S_ISREG(status.st_mode) else None

    def matching(self, text: bytes, usable: Callable[[Checkpoint], bool]) -> list[tuple[int, StoredCheckpoint]]:
        """Return (key length in bytes, checkpoint) for all checkpoints that ``usable`` accepts and whose key is a
        prefix of ``text``.

        They are sorted by key length, longest first, then by number of tokens, most first. The text is hashed once,
        however many checkpoints there are.
        """
        with self._guard:
            self._refresh()
            sha1, sha256, at = hashlib.sha1(usedforsecurity=False), hashlib.sha256(), 0
            matches = []
            for length in sorted(length for length in self._keys if length <= len(text)):
                sha1.update(text[at:length])
                sha256.update(text[at:length])
                at, keys = length, self._keys[length]
                for digest in (sha1.hexdigest(), sha256.hexdigest()):
                    matches += [(length, entry) for entry in keys.get(digest, ()) if self._sound(entry)]
        ranked = [(n, e.checkpoint.header.tokens, e) for n, e in matches if e.checkpoint and usable(e.checkpoint)]
        return [(n, entry) for n, _, entry in sorted(ranked, key=lambda one: one[:2], reverse=True)]

    def files(self) -> Files:
        """Return the file status (``os.stat_result``) of every regular file by name; empty if the folder is
        unreadable."""
        statuses = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):
                    about = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        statuses[item.name] = about
        return statuses

    def _sound(self, entry: StoredCheckpoint) -> bool:
        """Return whether the file is not known to be damaged; needed for a damaged file that could not be renamed."""
        return self._damaged.get(entry.name) != entry.state[:2]

    def _refresh(self) -> None:
        """Read the folder again if it changed, or changed so recently that a second change could go unnoticed."""
        try:
            changed = os.stat(self.path).st_mtime_ns
        except OSError:
            changed = -1
        unread = any(entry.unread for entry in self._entries.values())
        young = (
            self._scanned is None or self._scanned[0] != changed or self._scanned[1] - changed / 1e9 < SETTLED_SECONDS
        )
        if young or unread:
            self._scan()

    def _scan(self) -> Files:
        """Read the metadata of all checkpoints and sort their keys by length; return the status of all files."""
        looked, changed = time.time(), -1
        with contextlib.suppress(OSError):
            changed = os.stat(self.path).st_mtime_ns
        files = self.files()
        looks = [self._look(name, about) for name, about in files.items() if NAME.fullmatch(name)]
        self._entries = {entry.name: entry for entry in looks if entry is not None}
        self._keys = {}
        for entry in self._entries.values():
            for length, digest in entry.keys:
                if length:  # an empty key would match every prompt
                    self._keys.setdefault(length, {}).setdefault(digest, []).append(entry)
        self._scanned = changed, looked
        return files

    def _look(self, name: str, about: os.stat_result) -> StoredCheckpoint | None:
        """Return the entry of the file ``name`` with the status ``about``, cached while the file is unchanged; None if
        it is gone."""
        state = about.st_ino, about.st_size, about.st_mtime_ns
        old = self._entries.get(name)
        if old is not None and old.state == state and not old.unread:
            return old
        try:
            with kvc.open_file(self.path / name) as file:
                return StoredCheckpoint(name, state, kvc.examine(file))
        except FileNotFoundError:
            return None
        except (Damaged, Unknown) as error:
            return StoredCheckpoint(name, state, None, str(error), isinstance(error, Damaged))
        except OSError as error:
            return StoredCheckpoint(name, state, None, error.strerror or str(error), unread=True)

    # --- locks

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that no other process adds, deletes or renames files.

        Raise OSError if the lock cannot be acquired.
        """
        with self._guard:
            if self._depth:
                yield
                return
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _lock(fd, LOCK_SECONDS)
                self._depth += 1
                yield
            finally:
                self._depth = 0
                os.close(fd)

    # --- writing

    @contextlib.contextmanager
    def writing(self, name: str, size: int) -> Iterator[Output]:
        """Context manager: write the file ``name`` of ``size`` bytes through the yielded ``Output``.

        The file is renamed into place when the block succeeds, and deleted when it fails. Raise OSError if it cannot be
        written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.make_room(size, replaced=name)
        with self.locked():
            temporary = self.path / f"{name}.tmp.{os.getpid()}.{secrets.token_hex(4)}"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _lock(fd, 0)
            except BaseException:
                os.close(fd)
                temporary.unlink(missing_ok=True)
                raise
        try:
            yield Output(fd)
            flush_to_disk(fd)
            with self.locked():
                os.replace(temporary, self.path / name)
                self._sync()
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        with contextlib.suppress(OSError):
            self.make_room(protected=name)

    def _sync(self) -> None:
        """Flush the folder's entries to disk."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            flush_to_disk(fd)
        finally:
            os.close(fd)

    def touch(self, name: str, hit: bool) -> None:
        """Record the time of a use (and, if ``hit``, count a hit) in the file's header, in place; failures are
        ignored."""
        with contextlib.suppress(OSError, struct.error):
            fd = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
            try:
                _lock(fd, 0)
                if hit:
                    (hits,) = struct.unpack("<I", os.pread(fd, 4, kvc.HITS_AT))
                    os.pwrite(fd, struct.pack("<I", min(hits + 1, 2**32 - 1)), kvc.HITS_AT)
                os.pwrite(fd, struct.pack("<Q", int(self.clock())), kvc.USED_AT)
            finally:
                os.close(fd)

    # --- deleting

    def quarantine(self, name: str, state: tuple[int, int], why: str) -> None:
        """Rename a damaged checkpoint to NAME.bad, unless it has been replaced since.

        state: inode and size in bytes of the file in which damage was detected. why: what the damage is, for the log.
        """
        log.warning("kv cache: %s is damaged: %s", name, why)
        self._damaged[name] = state
        with contextlib.suppress(OSError), self.locked():
            now = os.stat(self.path / name, follow_symlinks=False)
            if (now.st_ino, now.st_size) == state:  # else another process has replaced it
                os.replace(self.path / name, self.path / f"{name}.bad")

    def remove(self, name: str) -> None:
        """Delete a checkpoint, if it exists; raise OSError if that fails."""
        with self.locked():
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> list[str]:
        """Remove abandoned temporary files; return their names. Raise OSError if the folder cannot be written."""
        with self.locked():
            gone = [name for name, why in self.expendable() if why == "left behind"]
            for name in gone:
                (self.path / name).unlink(missing_ok=True)
        return gone

    def _left_behind(self, name: str, about: os.stat_result, ours: bool) -> bool:
        """Return whether an unfinished file is abandoned. ``ours``: ds4ref wrote it, so its writer would hold a
        lock."""
        old = time.time() - about.st_mtime > FOREIGN_SECONDS
        if not ours:
            return old
        try:
            fd = os.open(self.path / name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return _lock(fd, 0) or old
        except TimeoutError:
            return False
        finally:
            os.close(fd)

    def make_room(self, size: int = 0, protected: str = "", replaced: str = "") -> list[str]:
        """Evict files until ``size`` more bytes fit into the budget; return the evicted names.

        Damaged files go first, then unknown versions, then the lowest score, then the least recently used. The file
        ``protected`` is kept unless it alone exceeds the budget; the file ``replaced`` counts as already deleted. Raise
        OSError if the folder is read-only.
        """
        gone: list[str] = []
        with self.locked():
            files = self._scan()
            total = size + sum(about.st_size for name, about in files.items() if name != replaced)
            if total > self.budget and self.sweep():
                files = self._scan()
                total = size + sum(about.st_size for name, about in files.items() if name != replaced)
            for name, nbytes in self._ranked(files, protected, replaced):
                if total <= self.budget:
                    break
                try:
                    (self.path / name).unlink(missing_ok=True)
                except OSError as error:
                    log.warning("kv cache: cannot delete %s: %s", name, error.strerror)
                    break
                log.info("kv cache: evicted %s, %d bytes", name, nbytes)
                total -= nbytes
                gone.append(name)
        return gone

    def _ranked(self, files: Files, protected: str = "", replaced: str = "") -> list[tuple[str, int]]:
        """Return names and sizes of the files that may be deleted, lowest value first; parameters as for
        ``make_room``."""
        now = self.clock()
        ranked: list[tuple[int, float, float, str, int]] = []
        for name, about in files.items():
            entry = self._entries.get(name)
            is_protected = name == protected and about.st_size <= self.budget
            if BAD.fullmatch(name):
                ranked.append((0, 0.0, about.st_mtime, name, about.st_size))
            elif entry is not None and not is_protected and name != replaced:
                order = 0 if entry.damaged else 1 if entry.checkpoint is None else 2
                ranked.append((order, entry.score(now), entry.used, name, entry.size))
        return [(name, size) for *_, name, size in sorted(ranked)]

    def expendable(self, unused_days: float | None = None, to_budget: bool = False) -> list[tuple[str, str]]:
        """Return (name, reason) for each file that a cleanup would delete, without deleting any.

        These are abandoned and damaged files, checkpoints unused for ``unused_days``, and with ``to_budget`` further
        checkpoints until the rest fits into the budget.
        """
        with self._guard:
            files, gone = self._scan(), dict[str, str]()
            for name, about in files.items():
                match, entry = TEMPORARY.fullmatch(name), self._entries.get(name)
                if match and self._left_behind(name, about, match["ours"] is not None):
                    gone[name] = "left behind"
                elif BAD.fullmatch(name) or (entry is not None and entry.damaged):
                    gone[name] = "damaged"
                elif entry is not None and unused_days is not None and self.clock() - entry.used > 86400 * unused_days:
                    gone[name] = "unused"
            total = sum(about.st_size for name, about in files.items() if name not in gone)
            for name, size in self._ranked(files) if to_budget else ():
                if total > self.budget and name not in gone:
                    gone[name], total = "no room", total - size
        return list(gone.items())


class Output:
    """An unbuffered writer to an open file descriptor; a write either writes all bytes or raises OSError."""

    def __init__(self, fd: int):
        self._fd = fd

    def write(self, data: Any) -> int:
        """Write all of ``data`` and return its size in bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        at = 0
        while at < len(view):
            at += os.write(self._fd, view[at:])
        return at


def _lock(fd: int, seconds: float) -> bool:
    """Lock an open file, waiting at most ``seconds``; raise TimeoutError if another process still holds the lock then.

    Return False on a file system without locks; files are complete even there, since they are renamed when finished.
    """
    if fcntl is None:
        return False
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError("another process holds the lock") from None
            time.sleep(0.01)
        except OSError:
            return False
