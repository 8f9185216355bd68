"""A command on a pseudo-terminal of its own, for tests that type and look."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class Terminal:
    """``command`` in ``cwd``; ``out``: all that was written, ``seen``: of that what nobody has looked for.

    settings   those of the terminal before

    stdout   where its stdout goes instead of the terminal
    more     variables of its environment
    """

    def __init__(self, command: Sequence[Any], cwd: Path = ROOT, stdout: Any = None, **more: str):
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings, self.out, self.seen = termios.tcgetattr(self.slave), "", ""
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command, cwd=cwd, env={**kept, "PYTHONPATH": str(ROOT), **more}, stdin=self.slave, stderr=self.slave,
            stdout=self.slave if stdout is None else stdout, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def read(self, seconds: float = 0.1) -> bool:
        """Read what comes within a time; return whether something came."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        part = os.read(self.master, 65536).decode("utf-8", "replace")
        self.out, self.seen = self.out + part, self.seen + part
        return True

    def until(self, *patterns: str) -> str:
        """Read until the patterns have come, one after the other; return what led to the last one, with it."""
        text, end = "", time.monotonic() + 300
        for pattern in patterns:
            while (match := re.search(pattern, self.seen)) is None:
                assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
                self.read()
            text, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return text

    def types(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def ends(self) -> tuple[int, str]:
        """Wait for its end; return the exit code, and its stdout if that went elsewhere."""
        while self.process.poll() is None and self.process.stdout is None:
            self.read()
        said, _ = self.process.communicate(timeout=120)
        while self.read():
            pass
        return self.process.returncode, said.decode() if said else ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for number in (self.master, self.slave):
            try:
                os.close(number)
            except OSError:  # a test closed it
                pass
