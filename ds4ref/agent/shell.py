"""Commands: a time limit, a group of processes that ends with them, bounded output, and no keys in the environment.

This is no sandbox. A command runs with the user's rights and can reach what the user can reach, the network and other
processes included; that is why it is asked for first (``permit``).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..cancellation import Cancellation

OUTPUT_BYTES, OUTPUT_LINES = 16 << 10, 200
"""What the model sees of a command's output, half from its beginning and half from its end."""
MAX_OUTPUT = 64 << 20
"""A command that says more than that is ended."""
GRACE, DRAIN = 1.0, 0.5
_NAP = 0.05

_SECRET_NAME = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASS(_|$)|PASSW|PASSPHRASE|_PWD$|CREDENTIAL|AUTH(?!OR(?!ITY))|COOKIE|PRIVATE|SIGNATURE"
    r"|(^|_)PAT(_|$)|DSN|CONNECTION_STRING|WEBHOOK",
    re.I,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@"  # name and password in an address
    r"|\b(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[a-z]_[A-Za-z0-9]{20,}|\bgithub_pat_|\bglpat-|\bxox[a-z]-|\bhf_[A-Za-z0-9]{20,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|-----BEGIN"
)
_RUNS_CODE = ("BASH_ENV", "ENV", "PROMPT_COMMAND")
_PLAIN = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def scrubbed(environ: Mapping[str, str], *secret: str) -> dict[str, str]:
    """An environment without what looks like a key, by its name or by its value, and without the variables named
    ``secret`` and whatever holds their values. Programs in it neither colour nor page their output, nor ask."""
    values = [environ[name] for name in secret if len(environ.get(name, "")) >= 4]
    kept = {
        name: value
        for name, value in environ.items()
        if not (name in secret or name in _RUNS_CODE or _SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
        and not any(hidden in value for hidden in values)
    }
    return kept | _PLAIN


@dataclass(frozen=True)
class Outcome:
    """How a command ended. ``status`` is 128 + the signal that killed it; ``why`` is "" if it ended by itself, else
    "timeout", "interrupt" or "output"."""

    status: int
    output: str
    total_bytes: int
    seconds: float
    why: str = ""


class _Output:
    """The beginning and the end of what was said."""

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self.half, self.total = limit // 2, 0
        self._head, self._tail = bytearray(), bytearray()
        self._lines = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._lines += data.count(b"\n")
        room = self.half - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(0, room) :]
        if len(self._tail) > 4 * self.half:
            del self._tail[: -self.half]

    def text(self, lines: int = OUTPUT_LINES) -> str:
        """All of it, or its two ends and between them a line that says what is missing."""
        tail = bytes(self._tail[-self.half :])
        if len(self._head) + len(tail) == self.total:
            said = _decoded(bytes(self._head) + tail).split("\n")
            if len(said) - (said[-1] == "") <= lines:
                return "\n".join(said)
            head_lines, tail_lines = said[: lines // 2], said[-(lines // 2) - (said[-1] == "") :]
        else:
            head_lines = _decoded(bytes(self._head)).split("\n")[: lines // 2]
            tail_lines = _decoded(tail).split("\n")[-(lines // 2) - tail.endswith(b"\n") :]
        head, rest = "\n".join(head_lines), "\n".join(tail_lines)
        left_out = max(0, self.total - len(f"{head}{rest}".encode()))
        gap = f"[... about {left_out} of {self.total} bytes left out; {self._lines} lines in all ...]"
        return f"{head}\n{gap}\n{rest}"


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


class Shell:
    """Runs commands in ``folder``, with ``environ``."""

    def __init__(self, folder: str, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic):
        self.folder, self.environ, self.clock = folder, dict(environ), clock
        self.program = shutil.which("bash") or "/bin/sh"

    def run(self, command: str, timeout: float, cancel: Cancellation) -> Outcome:
        """Run it to its end, for ``timeout`` seconds at most, or until ``cancel`` is pressed. Whatever it left running
        in its group of processes is ended with it. OSError if it cannot be started."""
        start, said, why = self.clock(), _Output(), ""
        reader, writer = os.pipe()
        try:
            try:
                process = subprocess.Popen(
                    [self.program, "-c", command],
                    cwd=self.folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=writer,
                    stderr=writer,
                    start_new_session=True,  # a group to kill, and no terminal to write to or read from
                )
            finally:
                os.close(writer)
            try:
                while process.poll() is None:
                    if cancel.requested:
                        why = "interrupt"
                    elif self.clock() - start >= timeout:
                        why = "timeout"
                    elif said.total > MAX_OUTPUT:
                        why = "output"
                    if why:
                        break
                    _take(reader, said, _NAP, process)
            finally:
                self._end(process)
            end = time.monotonic() + DRAIN
            while time.monotonic() < end and said.total <= MAX_OUTPUT and _take(reader, said, _NAP):
                pass  # what fled from the group may hold the pipe for ever
        finally:
            os.close(reader)
        code = process.returncode
        return Outcome(code if code >= 0 else 128 - code, said.text(), said.total, self.clock() - start, why)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """The whole group: asked first, then killed."""
        try:
            if process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        finally:  # also if the user does not wait for that
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _take(reader: int, said: _Output, patience: float, process: subprocess.Popen[bytes] | None = None) -> bool:
    """What there is to read, waiting a little for it; False at its end. Where that has come and ``process`` goes on, it
    is waited for instead."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if not poll.poll(1000 * patience):
        return True
    data = os.read(reader, 1 << 16)
    said.add(data)
    if not data and process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    return bool(data)
