"""The folder an agent works in: paths must stay inside it, files are replaced atomically.

All links in a path are resolved, and the path is refused if it leads outside; then the file is opened without following
links. There is no protection against another program that replaces a folder between these two steps, against hard
links, and against file systems mounted inside.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from ..errors import UsageError
from ..files import flush_to_disk

MAX_FILE = 16 << 20
"""Maximum bytes of a file that is read or written."""
MAX_PATH = 4096
# Opening a pipe must not block; opening a terminal must not make it this process's controlling terminal.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class ToolError(Exception):
    """Raised if a tool call fails; the message is one line for the model."""


class File(NamedTuple):
    """A file's content and its permission bits."""

    data: bytes
    mode: int


def shown_name(name: str) -> str:
    """Return a file name as unambiguous text: unchanged if all characters are plain, else as a JSON string."""
    plain = name.isprintable() and name == name.strip() and not name.startswith('"')
    return name if plain and name else json.dumps(name)


class Workspace:
    """The folder ``root``, in which an agent works; raises UsageError if it is not usable.

    Methods other than ``resolve`` expect paths that it returned (``real``).
    """

    def __init__(self, root: str):
        try:
            self.root = os.path.realpath(root, strict=True)
            os.scandir(self.root).close()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot work in {shown_name(root)}: {why}") from None
        if self.root.split("/")[1] in ("", "proc", "sys"):
            raise UsageError(f"{self.root} is no folder to work in: everything below it may be read and changed")

    def resolve(self, path: str) -> str:
        """Return ``path`` with all links resolved; its last part need not exist.

        Raises ToolError if it leads outside the folder, even to a file that does not exist; OSError if a folder in it
        is missing.
        """
        try:
            size = len(os.fsencode(path))
        except UnicodeEncodeError:
            size = 0
        if not 0 < size <= MAX_PATH or "\0" in path:
            raise ToolError(f"{shown_name(path[:80])} is not a path")
        whole = os.path.join(self.root, path)
        self._check_inside(os.path.realpath(whole), path)
        # Only strict resolution is exact: the other one leaves links unresolved after a loop of links.
        try:
            real = os.path.realpath(whole, strict=True)
        except FileNotFoundError:
            folder, name = os.path.split(whole)
            real = os.path.join(os.path.realpath(folder, strict=True), name)
            if os.path.lexists(real):  # a dangling link
                raise
        self._check_inside(real, path)
        return real

    def _check_inside(self, real: str, path: str) -> None:
        if real != self.root and not real.startswith(f"{self.root}/"):
            raise ToolError(f"{shown_name(path)} is outside the workspace {shown_name(self.root)}; use paths inside it")

    def shown(self, real: str) -> str:
        """Return a resolved path relative to the root, as unambiguous text."""
        return shown_name(os.path.relpath(real, self.root))

    def read(self, real: str) -> File:
        """Return the content of a regular file; raises ToolError for anything else, and beyond 16 MiB."""
        fd = os.open(real, _READ)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                what = "a folder; list shows what is in it" if stat.S_ISDIR(mode) else "not a regular file"
                raise ToolError(f"{self.shown(real)} is {what}")
            with open(fd, "rb", closefd=False) as stream:
                data = stream.read(MAX_FILE + 1)
        finally:
            os.close(fd)
        if len(data) > MAX_FILE:
            raise ToolError(f"{self.shown(real)} is larger than {MAX_FILE >> 20} MiB")
        return File(data, mode & 0o777)

    def find(self, real: str) -> File | None:
        """Return the content of a regular file, None if it does not exist; raises ToolError as ``read`` does."""
        try:
            return self.read(real)
        except FileNotFoundError:
            return None

    def check_writable(self, real: str, before: File | None) -> None:
        """Raise ToolError if the file is inside ``.git`` or has no write permission; ``before``: the file as read, None
        if new."""
        if ".git" in os.path.relpath(real, self.root).lower().split("/"):
            raise ToolError(f"{self.shown(real)} is git's own; use git to change it")
        if before is not None and not (before.mode & 0o222 and os.access(real, os.W_OK)):
            raise ToolError(f"{self.shown(real)} is read-only")

    def replace(self, real: str, data: bytes, before: File | None) -> None:
        """Replace a file's content atomically by ``data``: write a temporary file, sync, rename; permission bits stay.

        ``before`` is the file as read, None for a new one; raises ToolError, with nothing changed, if the file differs
        from it by now.
        """
        if len(data) > MAX_FILE:
            raise ToolError(f"{self.shown(real)} would become larger than {MAX_FILE >> 20} MiB")
        temporary = os.path.join(os.path.dirname(real), f".ds4-{secrets.token_hex(8)}")
        fd = os.open(temporary, _CREATE, 0o666 if before is None else 0o600)
        try:
            with open(fd, "wb") as stream:
                stream.write(data)
                stream.flush()
                if before is not None:
                    os.fchmod(fd, before.mode)
                flush_to_disk(fd)
            if self.find(real) != before:
                raise ToolError(f"{self.shown(real)} changed while it was edited; read it again before editing")
            os.rename(temporary, real)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def files(self, real: str) -> Iterator[str]:
        """Yield every file below the folder ``real`` sorted by name, or ``real`` itself if it is a file.

        Skips links and ``.git``.
        """
        if not os.path.isdir(real):
            yield real
        for folder, folders, names in os.walk(real):
            folders[:] = sorted(name for name in folders if name != ".git")
            yield from (os.path.join(folder, name) for name in sorted(names))
