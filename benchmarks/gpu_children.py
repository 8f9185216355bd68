"""Processes that do the parts of ``gpu_check``: started, read line by line, and killed with all that they started.

A GPU's context does not outlive a wrong access, and a kernel that never ends cannot be called back. So each part is a
process (``gpu_part``) that leads a session and a process group of its own. It writes messages, one line of JSON each,
into a pipe that nothing else writes to:

    {"row": ...}      a figure of the table (``report.Row``)
    {"detail": ...}   further data, for the file
    {"facts": ...}    about the device
    {"ended": ...}    how it ended: "done", "cut short: ...", "failed: ..."

``follow`` adds the last one where the process did not get to it. This module loads nothing that touches a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .report import Row

ROOT = Path(__file__).resolve().parents[1]
Message = dict[str, Any]

LEAVING = 5.0
"""Seconds for a process to end after its last message, and to be gone once it was killed."""
OWN_SHARE = 0.95
"""Share of its time that a part plans with: what it cuts short itself needs no killing."""
PAUSE = 0.05
"""Seconds between two looks at the pipes."""
LONGEST = 200
"""Number of characters shown of a line that is no message."""


class Child:
    """One running part.

    name      of the part
    work      what it does, as MODULE:FUNCTION
    seconds   after which it is killed
    spent     seconds from start to end, so far
    ended     its last word: how it ended; None before
    """

    def __init__(self, name: str, work: str, seconds: float, options: Sequence[str] = ()):
        self.name, self.work, self.seconds = name, work, seconds
        self.ended: str | None = None
        self._start, self._told = time.monotonic(), 0.0
        self._left: float | None = None
        self._unread, self._wrong = b"", ""
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        command = [sys.executable, "-m", "benchmarks.gpu_part", work, "--rows", str(writer)]
        command += ["--seconds", str(OWN_SHARE * seconds), *options]
        named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        path = os.pathsep.join([str(ROOT), *map(os.path.abspath, named)])  # also from another folder, as of tests
        try:
            self.process = subprocess.Popen(
                command, env=os.environ | {"PYTHONPATH": path}, pass_fds=(writer,), start_new_session=True,
                stdin=subprocess.PIPE, stdout=2,
            )  # fmt: skip
        except BaseException:
            os.close(self.reader)
            raise
        finally:
            os.close(writer)

    @property
    def spent(self) -> float:
        return (time.monotonic() if self._left is None else self._left) - self._start

    def messages(self) -> Iterator[Message]:
        """Yield the messages that have come, without waiting for more."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.reader, 1 << 16):
                self._unread += block
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            try:
                yield understood(line)
            except (ValueError, TypeError):
                self._wrong = self._wrong or said(line)

    def over(self) -> bool:
        """Return whether nothing more is to be expected: it has ended, or its time is up."""
        # Without collecting its status: until then its number, and that of its group, is nobody else's.
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        return self.spent > self.seconds or (self.ended is not None and self.spent > self._told + LEAVING)

    def take(self, message: Message) -> None:
        """Remember how it ended, if the message says so."""
        if "ended" in message:
            self.ended, self._told = message["ended"], self.spent

    def kill(self) -> None:
        """Kill its whole group, also what is left of one whose leader has ended."""
        if self._left is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LEAVING)
        self._left = time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def outcome(self, late: bool) -> str:
        """Return how it ended, once it is killed; ``late``: whether its time was up before."""
        status = self.process.returncode
        if self.ended is not None:
            state = self.ended
        elif status is None:
            state = f"not through after {self.seconds:.0f} s, and cannot be killed"
        elif late:
            state = f"killed: not through after {self.seconds:.0f} s"
        elif status < 0:
            state = f"died: {signal.Signals(-status).name}"
        else:
            state = f"died: exit code {status} before its end"
        if wrong := self._wrong or said(self._unread):
            well = self.ended is not None and not state.startswith("failed")
            state = f"{'failed' if well else state}: wrote {wrong} where a message was due"
        return state

    def close(self) -> None:
        """Kill it and close the pipe."""
        self.kill()
        os.close(self.reader)


def understood(line: bytes) -> Message:
    """Return the message in a line; raise ValueError or TypeError if there is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or len(message) != 1 or not message.keys() <= {"row", "detail", "facts", "ended"}:
        raise ValueError("no message")
    if "row" in message:
        as_row(message["row"])
    if "facts" in message:
        dict(message["facts"])
    return message


def as_row(values: dict[str, Any]) -> Row:
    """Return the row of a message; raise ValueError or TypeError if it is none."""
    numbers = ("value", "bar", "stretch", "low", "high")  # NaN and infinities, which JSON lacks, come as their names
    read: dict[str, Any] = {name: value for name, value in values.items() if name != "met"}
    read |= {name: float(read[name]) for name in numbers if read.get(name) is not None}
    return Row(**read)


def said(line: bytes) -> str:
    """Return a line as text that can be shown, "" if it is empty."""
    return repr(line.decode(errors="replace")[:LONGEST]) if line else ""


def follow(children: Sequence[Child], tell: Callable[[Child, Message], None]) -> None:
    """Read the messages of all children, each given to ``tell`` at once, until all have ended; leave none running.

    The last message of each is {"ended": state}. An exception, KeyboardInterrupt included, kills them all.
    """
    running = list(children)
    try:
        while running:
            time.sleep(PAUSE)
            for child in list(running):
                over = child.over()  # asked before reading: all that it wrote is there then
                late = over and child.spent > child.seconds
                if over:
                    child.kill()
                    running.remove(child)
                for message in child.messages():
                    child.take(message)
                    if "ended" not in message:
                        tell(child, message)
                if over:
                    tell(child, {"ended": child.outcome(late)})
    finally:
        for child in children:
            child.close()
