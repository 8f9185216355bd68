"""A folder of checkpoints that several processes share: found by their keys, written whole, kept within a budget.

    NAME.kv                    a checkpoint (``kvc``)
    NAME.kv.bad                one that turned out to be damaged: the first to go when space is needed
    NAME.kv.tmp.PID.RANDOM     one that is being written, locked by whoever writes it; unlocked, it was left behind
    .lock                      locked while files appear, vanish or change names

Nothing is read but headers and sections until somebody asks for a session, and those are remembered until the folder
changes. Locks are advisory, belong to open files and vanish with their process; nobody waits for one longer than
``LOCK_SECONDS``. Whoever may not write in the folder still reads.
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

from . import kvc
from .kvc import Checkpoint, Damaged, Unknown

try:
    import fcntl
except ImportError:  # no advisory locks on this platform: renames still keep files whole
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("ds4-kv")

LOCK_SECONDS = 5.0
SETTLED_SECONDS = 2.0
"""A folder that changed so recently may change again without its time showing it."""

FOREIGN_SECONDS = 3600.0
"""Age from which the unfinished file of a program that takes no locks was left behind."""

YOUNG_SECONDS = 10.0
"""Age up to which a file that is no checkpoint may become one."""

HALF_LIFE = 6 * 3600.0
"""Seconds after which a hit counts half."""

NAME = re.compile(r"[0-9a-fA-F]{40}\.kv")
BAD = re.compile(r"[0-9a-fA-F]{40}\.kv\.bad")
TEMPORARY = re.compile(r"[0-9a-fA-F]{40}\.kv\.tmp\.[0-9]+(?P<ours>\.[0-9a-f]+)?")


Files = dict[str, os.stat_result]


@dataclass(frozen=True)
class Entry:
    """A checkpoint of the folder. What cannot be used has no ``checkpoint``, but a reason in ``why``.

    state   inode, size in bytes and time of the last change in ns: what tells one state of a file from another
    """

    name: str
    state: tuple[int, int, int]
    checkpoint: Checkpoint | None
    why: str = ""
    damaged: bool = False
    unread: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return self.state[1]

    @property
    def keys(self) -> list[tuple[int, str]]:
        """What a prompt must begin with: lengths with SHA-1 (40 digits) or SHA-256 (64)."""
        if self.checkpoint is None:
            return []
        own = self.checkpoint.header.text, self.name[:40].lower()
        return [own, *(self.checkpoint.integrity.keys if self.checkpoint.integrity else ())]

    def score(self, now: float) -> float:
        """What it is worth keeping for."""
        if self.checkpoint is None:
            return 0.0
        h = self.checkpoint.header
        return score(h.hits, h.tokens, self.size, h.used, h.created, now)

    @property
    def used(self) -> float:
        """When it was used, Unix seconds."""
        if self.checkpoint is None:
            return self.state[2] / 1e9
        return self.checkpoint.header.used or self.checkpoint.header.created


def score(hits: int, tokens: int, size: int, used: int, created: int, now: float) -> float:
    """Tokens a byte, times one more than the hits, half of which are forgotten every six hours."""
    since = used or created
    left = hits * 2.0 ** (-max(0.0, now - since) / HALF_LIFE) if since else 0.0
    return ((left if left >= 0.01 else 0.0) + 1) * tokens / size


def fits(size: int, budget: int) -> bool:
    """Whether a file of ``size`` bytes can be kept in ``budget``, a hundredth to spare."""
    return size + -(-size // 100) <= budget


class Directory:
    """The checkpoints under ``path``, in at most ``budget`` bytes. Safe to use from any thread, and beside others.

    clock   Unix seconds
    """

    def __init__(self, path: str | os.PathLike[str], budget: int = 4096 << 20, clock: Callable[[], float] = time.time):
        self.path, self.budget, self.clock = Path(path), budget, clock
        self._entries: dict[str, Entry] = {}
        self._keys: dict[int, dict[str, list[Entry]]] = {}
        self._damaged: dict[str, tuple[int, int]] = {}
        self._seen: tuple[int, float] | None = None
        self._guard = threading.RLock()
        self._depth = 0

    def open(self) -> None:
        """Make the folder if it is missing, remove what crashes left behind, delete down to the budget. OSError if
        there can be no such folder."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # one that cannot be written can still be read
            self.sweep()
            self.make_room()

    # --- looking

    def entries(self) -> list[Entry]:
        """All checkpoints as they are now, those that cannot be used among them."""
        with self._guard:
            self._scan()
            return list(self._entries.values())

    def known(self) -> list[Entry]:
        """The same; the files are looked at only if the folder changed, so their counts may be old."""
        with self._guard:
            self._refresh()
            return list(self._entries.values())

    def get(self, name: str) -> Entry | None:
        """The checkpoint of that name as it is now; None if there is none."""
        with self._guard:
            try:
                found = os.stat(self.path / name, follow_symlinks=False)
            except OSError:
                return None
            return self._look(name, found) if stat.S_ISREG(found.st_mode) else None

    def matching(self, text: bytes, usable: Callable[[Checkpoint], bool]) -> list[tuple[int, Entry]]:
        """Checkpoints that a prompt of ``text`` can go on from, with the length of the key that says so: longest keys
        first, then most tokens. The text is hashed once, however many there are."""
        with self._guard:
            self._refresh()
            sha1, sha256, at = hashlib.sha1(usedforsecurity=False), hashlib.sha256(), 0
            found = []
            for length in sorted(length for length in self._keys if length <= len(text)):
                sha1.update(text[at:length])
                sha256.update(text[at:length])
                at, keys = length, self._keys[length]
                for digest in (sha1.hexdigest(), sha256.hexdigest()):
                    found += [(length, entry) for entry in keys.get(digest, ()) if self._sound(entry)]
        ranked = [(n, e.checkpoint.header.tokens, e) for n, e in found if e.checkpoint and usable(e.checkpoint)]
        return [(n, entry) for n, _, entry in sorted(ranked, key=lambda one: one[:2], reverse=True)]

    def files(self) -> Files:
        """Every file of the folder; none if it cannot be read."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as items:
            for item in items:
                with contextlib.suppress(FileNotFoundError):
                    about = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        found[item.name] = about
        return found

    def _sound(self, entry: Entry) -> bool:
        """Whether it was not found damaged, for one that could not be put aside."""
        return self._damaged.get(entry.name) != entry.state[:2]

    def _refresh(self) -> None:
        try:
            changed = os.stat(self.path).st_mtime_ns
        except OSError:
            changed = -1
        unread = any(entry.unread for entry in self._entries.values())
        young = self._seen is None or self._seen[0] != changed or self._seen[1] - changed / 1e9 < SETTLED_SECONDS
        if young or unread:
            self._scan()
            self._put_aside()

    def _scan(self) -> Files:
        looked, changed = time.time(), -1
        with contextlib.suppress(OSError):
            changed = os.stat(self.path).st_mtime_ns
        files = self.files()
        looks = [self._look(name, about) for name, about in files.items() if NAME.fullmatch(name)]
        self._entries = {entry.name: entry for entry in looks if entry is not None}
        self._keys = {}
        for entry in self._entries.values():
            for length, digest in entry.keys:
                if length:  # every prompt begins with nothing
                    self._keys.setdefault(length, {}).setdefault(digest, []).append(entry)
        self._seen = changed, looked
        return files

    def _look(self, name: str, about: os.stat_result) -> Entry | None:
        """What is in a file, remembered while it stays as it is; None if it is gone."""
        state = about.st_ino, about.st_size, about.st_mtime_ns
        old = self._entries.get(name)
        if old is not None and old.state == state and not old.unread:
            return old
        try:
            with kvc.open_file(self.path / name) as file:
                return Entry(name, state, kvc.examine(file))
        except FileNotFoundError:
            return None
        except (Damaged, Unknown) as error:
            return Entry(name, state, None, str(error), isinstance(error, Damaged))
        except OSError as error:
            return Entry(name, state, None, error.strerror or str(error), unread=True)

    # --- locks

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else lets files appear, vanish or change names meanwhile. OSError if that cannot be had."""
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
        """What is written becomes the file ``name`` of ``size`` bytes when the block ends well, and nothing when it
        does not. OSError if that cannot be."""
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
            os.fsync(fd)
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
        """Names reach the disk."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def touch(self, name: str, hit: bool) -> None:
        """It was used just now. Only the counts are written, in place: what is cut off in the middle harms nothing
        else. Failing is no matter."""
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

    # --- what goes

    def quarantine(self, name: str, state: tuple[int, int], why: str) -> None:
        """It is damaged: nobody shall find it any more. ``state``: inode and size of the file that this was found out
        of."""
        log.warning("kv cache: %s is damaged: %s", name, why)
        self._damaged[name] = state
        with contextlib.suppress(OSError), self.locked():
            now = os.stat(self.path / name, follow_symlinks=False)
            if (now.st_ino, now.st_size) == state:  # else somebody has put a new one there
                os.replace(self.path / name, self.path / f"{name}.bad")

    def remove(self, name: str) -> None:
        """Delete a file. OSError if that cannot be, but not if it is gone already."""
        with self.locked():
            (self.path / name).unlink(missing_ok=True)

    def sweep(self) -> list[str]:
        """Remove what writers left behind, and put damaged checkpoints aside. The names of both; OSError if the folder
        cannot be written."""
        gone = []
        with self.locked():
            for name, about in self._scan().items():
                match = TEMPORARY.fullmatch(name)
                if match and self._left_behind(name, about, match["ours"] is not None):
                    (self.path / name).unlink(missing_ok=True)
                    gone.append(name)
            gone += self._put_aside()
        return gone

    def _put_aside(self) -> list[str]:
        """Damaged files that nobody is writing: whoever copies one here by hand does not rename it into its place."""
        damaged = [entry for entry in self._entries.values() if entry.damaged and self._sound(entry)]
        found = [entry for entry in damaged if time.time() - entry.state[2] / 1e9 > YOUNG_SECONDS]
        for entry in found:
            self.quarantine(entry.name, entry.state[:2], entry.why)
        return [entry.name for entry in found]

    def _left_behind(self, name: str, about: os.stat_result, ours: bool) -> bool:
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
        """Delete what is worth least until ``size`` more bytes fit. Every byte of the folder counts. First go damaged
        files, then those of unknown versions, then the rest by score, of equal ones the one not used for longest;
        ``protected`` stays unless it is too large by itself, ``replaced`` counts as gone. The names of what went;
        OSError if nothing may be written."""
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
        """Names and sizes of what may be deleted, worth least first."""
        now = self.clock()
        ranked: list[tuple[int, float, float, str, int]] = []
        for name, about in files.items():
            entry = self._entries.get(name)
            kept = name == protected and about.st_size <= self.budget
            if BAD.fullmatch(name):
                ranked.append((0, 0.0, about.st_mtime, name, about.st_size))
            elif entry is not None and not kept and name != replaced:
                order = 0 if entry.damaged else 1 if entry.checkpoint is None else 2
                ranked.append((order, entry.score(now), entry.used, name, entry.size))
        return [(name, size) for *_, name, size in sorted(ranked)]

    def expendable(self, unused_days: float | None = None, to_budget: bool = False) -> list[tuple[str, str]]:
        """What may go, and why: what was left behind and what is damaged; what was not used for so many days; and, if
        wanted, what does not fit the budget then. Deletes nothing."""
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
    """Writes to a descriptor, all that it is given or an OSError. Nothing is held back, so nothing fails later."""

    def __init__(self, fd: int):
        self._fd = fd

    def write(self, data: Any) -> int:
        """Bytes written: all of them."""
        view = memoryview(data)
        if not view.nbytes:
            return 0
        view = view.cast("B")
        at = 0
        while at < len(view):
            at += os.write(self._fd, view[at:])
        return at


def _lock(fd: int, seconds: float) -> bool:
    """Lock an open file for oneself, waiting so long at most. TimeoutError. False on a file system without locks, where
    one goes without: renames still keep files whole."""
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
