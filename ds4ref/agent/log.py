"""The transcript of a session: one JSON object a line, appended as things happen, so that what was said before a crash
is there. Each has ``type`` (session, user, assistant, tool, end), and ``time`` in seconds since 1970."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..errors import DataError


class Log:
    """Appends to ``path``, readable by the user alone when new; without a path it writes nothing.

    DataError if it cannot be opened. A line that cannot be written ends the log, and ``failure`` says why: the work
    goes on, and its command ends with an error.
    """

    def __init__(self, path: str | None = None, clock: Callable[[], float] = time.time):
        self.path, self.clock, self.failure = path, clock, ""
        self._fd: int | None = None
        if path is not None:
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            except (OSError, ValueError) as error:
                raise DataError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from None

    def __call__(self, kind: str, **what: Any) -> None:
        """One line. What is empty is left out."""
        if self._fd is None:
            return
        entry = {"type": kind, "time": round(self.clock(), 3)} | {k: v for k, v in what.items() if v not in ("", None)}
        line = memoryview(json.dumps(entry).encode() + b"\n")
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            self.failure = f"cannot write {self.path}: {error.strerror or error}"
            self.close()

    def close(self) -> None:
        """The end of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
