"""The transcript of a session: one JSON object per line, each written to the file as soon as it exists, so that a crash
loses nothing.

Each object has ``type`` (session, user, assistant, tool, end), and ``time`` in seconds since 1970.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ..errors import DataError


class Log:
    """The transcript file ``path``: appends to it, or creates it readable by the user alone. Without a path nothing is
    written.

    Raises DataError if the file cannot be opened or written.
    """

    def __init__(self, path: str | None = None):
        self.path = path
        self._append("")

    def __call__(self, kind: str, **members: Any) -> None:
        """Append one object of type ``kind``; members with empty values are left out."""
        entry = {"type": kind, "time": round(time.time(), 3)}
        entry |= {name: value for name, value in members.items() if value not in ("", None)}
        self._append(json.dumps(entry) + "\n")

    def _append(self, line: str) -> None:
        if self.path is None:
            return
        try:
            with open(self.path, "a", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
                stream.write(line)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot write {self.path}: {getattr(error, 'strerror', None) or error}") from None
