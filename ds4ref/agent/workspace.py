"""The folder an agent works in, and nothing outside it.

Paths come from a model. Each is walked part by part from an open descriptor of the root: the kernel is never asked to
follow a link or to go up, so that nothing renamed or relinked meanwhile leads outside. Links are read and walked by the
same rules; one that stays inside works. Files are opened without following links, and only regular ones.

What it cannot know: a hard link, or another file system mounted inside, is part of the folder.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import UsageError

MAX_FILE = 16 << 20
"""Bytes of the largest file that is read, edited or written."""
MAX_PATH, MAX_LINKS, MAX_DEPTH = 4096, 40, 24
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not block, a terminal must not become ours.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_ROOT = ("/proc", "/sys")
_GIT = ".git"


class ToolError(Exception):
    """What a call answers in place of a result; the text is for the model."""


class FileError(ToolError):
    """The system's own refusal."""


@dataclass(frozen=True)
class Place:
    """Where a path leads: ``name``, no link, in the open folder ``folder``; "." is that folder itself.

    ``path`` is the way there from the root, links resolved: one file, one path.
    """

    folder: int
    name: str
    path: str

    @property
    def shown(self) -> str:
        """The path, fit for a line of text."""
        return shown_name(self.path or ".")


@dataclass(frozen=True)
class File:
    """What was in a file, and its mode and owner."""

    data: bytes
    info: os.stat_result


def shown_name(name: str) -> str:
    """A file name that cannot pretend to be anything else: as it is if it is plain, else as a JSON string, in which the
    model can give it back."""
    plain = name.isprintable() and name == name.strip() and not name.startswith('"')
    return name if plain and name else json.dumps(name)


class Workspace:
    """The folder ``root``; UsageError if it cannot be one. Close it, or use it as a context manager."""

    def __init__(self, root: str):
        try:
            self.root = os.path.realpath(root, strict=True)
            if self.root == "/" or any(self.root == bad or self.root.startswith(f"{bad}/") for bad in _NO_ROOT):
                raise UsageError(f"{self.root} is no folder to work in: everything below it may be read and changed")
            self._fd = os.open(self.root, _FOLDER)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"cannot work in {shown_name(root)}: {why}") from None
        self._prefixes = (self.root, os.path.abspath(root))

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the root."""
        os.close(self._fd)

    # --- paths

    @contextmanager
    def place(self, path: str) -> Iterator[Place]:
        """Where ``path`` leads. Its last part may be missing. ToolError for a way that leads outside, FileError for
        every OSError in the block."""
        folders = [os.dup(self._fd)]
        try:
            yield self._walk(path, folders)
        except OSError as error:
            raise FileError(f"{shown_name(path)}: {error.strerror or error}") from None
        finally:
            for fd in folders:
                os.close(fd)

    def _walk(self, path: str, folders: list[int]) -> Place:
        rest, links = deque(self._parts(path)), 0
        names: list[str] = []
        while rest:
            part = rest.popleft()
            if part == "..":
                if not names:
                    raise self._outside(path)
                os.close(folders.pop())
                names.pop()
                continue
            try:
                is_link = stat.S_ISLNK(os.lstat(part, dir_fd=folders[-1]).st_mode)
            except FileNotFoundError:
                if rest:
                    raise
                is_link = False
            if is_link:
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(part, dir_fd=folders[-1])
                if target.startswith("/"):
                    while names:
                        os.close(folders.pop())
                        names.pop()
                rest.extendleft(reversed(self._parts(target, path)))
            elif rest:
                folders.append(os.open(part, _FOLDER, dir_fd=folders[-1]))
                names.append(part)
            else:
                return Place(folders[-1], part, "/".join([*names, part]))
        return Place(folders[-1], ".", "/".join(names))

    def _parts(self, path: str, asked: str | None = None) -> list[str]:
        """The parts of a path; of an absolute one those behind the root. ``asked`` is the path that a link stood in."""
        asked = path if asked is None else asked
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError:
            size = 0
        if not size or size > MAX_PATH or "\0" in path:
            raise ToolError(f"{shown_name(asked[:80])} is not a path")
        if path.startswith("/"):
            path = "/" + path.lstrip("/")
            inside = next((p for p in self._prefixes if path == p or path.startswith(f"{p}/")), None)
            if inside is None:
                raise self._outside(asked)
            path = path[len(inside) :]
        return [part for part in path.split("/") if part not in ("", ".")]

    def _outside(self, path: str) -> ToolError:
        return ToolError(f"{shown_name(path)} is outside the workspace {shown_name(self.root)}; use paths inside it")

    # --- files

    def read(self, place: Place) -> File:
        """The whole of a regular file. ToolError for anything else, and for more than 16 MiB."""
        check_regular(os.lstat(place.name, dir_fd=place.folder), place)  # to open a device may do things already
        fd = os.open(place.name, _FILE, dir_fd=place.folder)
        try:
            info = os.fstat(fd)
            check_regular(info, place)
            data = bytearray()
            while len(data) <= MAX_FILE and (part := os.read(fd, 1 << 20)):
                data += part
        finally:
            os.close(fd)
        if len(data) > MAX_FILE:
            raise ToolError(f"{place.shown} is larger than {MAX_FILE >> 20} MiB")
        return File(bytes(data), info)

    def find(self, place: Place) -> File | None:
        """The same, None if there is no such file."""
        try:
            return self.read(place)
        except FileNotFoundError:
            return None

    def replace(self, place: Place, data: bytes, before: File | None) -> None:
        """``data`` as the file's whole content, at once or not at all: written beside it, synced, renamed. Permission
        bits stay, and the owner where that is possible.

        ``before`` is what was read, None for a file that must not exist yet: where that is not what is there now,
        nothing is written (ToolError).
        """
        check_writable(place, before)
        if len(data) > MAX_FILE:
            raise ToolError(f"{place.shown} would become larger than {MAX_FILE >> 20} MiB")
        temporary = f".ds4-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o666 if before is None else 0o600, dir_fd=place.folder)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if before is not None:
                    with suppress(PermissionError):
                        os.fchown(fd, before.info.st_uid, before.info.st_gid)
                    os.fchmod(fd, before.info.st_mode & 0o777)
                os.fsync(fd)
            finally:
                os.close(fd)
            if before is None:
                self._create(temporary, place)
            else:
                if not self._is_still(place, before):
                    raise ToolError(f"{place.shown} changed while it was edited; read it again before editing")
                os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=place.folder)
        with suppress(OSError):  # not every file system syncs folders, and the file is there
            os.fsync(place.folder)

    def _create(self, temporary: str, place: Place) -> None:
        """``temporary`` under its name, unless that has been taken meanwhile."""
        try:
            os.link(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
        except FileExistsError:
            raise ToolError(f"{place.shown} was made by somebody else meanwhile; read it before editing") from None
        except OSError:  # a file system without hard links
            if self.find(place) is not None:
                raise ToolError(f"{place.shown} was made by somebody else meanwhile; read it before editing") from None
            os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)

    def _is_still(self, place: Place, before: File) -> bool:
        """Compared by content: clocks of file systems are too coarse to tell two changes of one moment apart."""
        try:
            now = self.read(place)
        except (OSError, ToolError):
            return False
        same = (now.info.st_dev, now.info.st_ino) == (before.info.st_dev, before.info.st_ino)
        return same and now.data == before.data

    # --- folders

    def entries(self, place: Place) -> list[tuple[str, os.stat_result | None]]:
        """Name and status (None if it cannot be told) of what is in a folder; links are not followed."""
        fd = os.open(place.name, _FOLDER, dir_fd=place.folder)
        try:
            return sorted(_entries(fd))
        finally:
            os.close(fd)

    def files(self, place: Place) -> Generator[Place]:
        """Every regular file below a folder, by name, or the file itself. Links are not followed, ``.git`` is not
        entered, and nothing deeper than 24 folders; what cannot be read is passed over. A place is good until the next
        one is asked for."""
        if stat.S_ISDIR(os.lstat(place.name, dir_fd=place.folder).st_mode):
            yield from self._below(place, 0)
        else:
            yield place

    def _below(self, folder: Place, depth: int) -> Iterator[Place]:
        try:
            fd = os.open(folder.name, _FOLDER, dir_fd=folder.folder)
        except OSError:
            if depth:
                return
            raise
        try:
            for name, info in sorted(_entries(fd)):
                place = Place(fd, name, f"{folder.path}/{name}" if folder.path else name)
                if info is None:
                    continue
                if stat.S_ISREG(info.st_mode):
                    yield place
                elif stat.S_ISDIR(info.st_mode) and name != _GIT and depth < MAX_DEPTH:
                    yield from self._below(place, depth + 1)
        finally:
            os.close(fd)


def _entries(fd: int) -> Iterator[tuple[str, os.stat_result | None]]:
    with os.scandir(fd) as found:
        for entry in found:
            info = None
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
            yield entry.name, info


def check_regular(info: os.stat_result, place: Place) -> None:
    """ToolError unless it is a regular file."""
    if stat.S_ISDIR(info.st_mode):
        raise ToolError(f"{place.shown} is a folder; list shows what is in it")
    if not stat.S_ISREG(info.st_mode):
        raise ToolError(f"{place.shown} is not a regular file")


def check_text(data: bytes, place: Place) -> None:
    """ToolError for a binary file."""
    at = data.find(b"\0")
    if at >= 0:
        raise ToolError(f"{place.shown} is a binary file (NUL at byte {at} of {len(data)})")


def check_writable(place: Place, before: File | None) -> None:
    """ToolError for what may be read and not changed: files marked so, and git's own, which say what git runs."""
    if any(part.lower() == _GIT for part in place.path.split("/")):
        raise ToolError(f"{place.shown} is git's own; use git to change it")
    if place.name == ".":
        raise ToolError(f"{place.shown} is a folder; list shows what is in it")
    marked = before is not None and not before.info.st_mode & 0o222
    if marked or (before is not None and not os.access(place.name, os.W_OK, dir_fd=place.folder)):
        raise ToolError(f"{place.shown} is read-only")
