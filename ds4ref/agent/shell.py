"""Run shell commands with a time limit, limited output and no API keys in the environment. The processes that a command
leaves in its process group are killed when it ends.

This is not a sandbox. A command runs with the user's rights and can reach whatever the user can, including the network
and other processes; so the user is asked first (``permit``).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ..cancellation import Cancellation

OUTPUT_CHARS, OUTPUT_LINES = 16 << 10, 200
"""Maximum characters and lines of output shown to the model, half from the beginning and half from the end."""
MAX_OUTPUT = 64 << 20
"""Bytes of output beyond which a command is killed."""
GRACE, DRAIN = 1.0, 0.5
_NAP = 0.05

_SECRET_NAME = re.compile(
    r"KEY|TOKEN(?!IZ)|SECRET|PASS(_|$)|PASSW|PASSPHRASE|_PWD$|CREDENTIAL|AUTH(?!OR(?!ITY))|COOKIE|PRIVATE|SIGNATURE"
    r"|(^|_)PAT(_|$)|DSN|CONNECTION_STRING|WEBHOOK",
    re.I,
)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]*:[^/\s@]+@"  # name and password in a URL
    r"|\b(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\bgh[a-z]_[A-Za-z0-9]{20,}|\bgithub_pat_|\bglpat-|\bxox[a-z]-|\bhf_[A-Za-z0-9]{20,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}|-----BEGIN"
)
_RUNS_CODE = ("BASH_ENV", "ENV", "PROMPT_COMMAND")
_PLAIN = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def scrubbed(environ: Mapping[str, str], *secret: str) -> dict[str, str]:
    """Return the environment ``environ`` without variables whose name or value looks like that of a key or password.

    The variables named by ``secret``, and others with the same values, are removed, too. Further variables are set that
    tell programs to use no colours and no pager, and to ask no questions.
    """
    values = [environ[name] for name in secret if len(environ.get(name, "")) >= 4]
    kept = {
        name: value
        for name, value in environ.items()
        if not (name in secret or name in _RUNS_CODE or _SECRET_NAME.search(name) or _SECRET_VALUE.search(value))
        and not any(hidden in value for hidden in values)
    }
    return kept | _PLAIN


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    status    exit status; 128 + the number of the signal that killed it
    output    what it printed
    seconds   duration
    why       the reason if it was stopped, "" if it ended by itself
    """

    status: int
    output: str
    seconds: float
    why: str = ""


def shortened(output: bytes) -> str:
    """Return output as text. Of long output return the beginning and the end, and between them a line that says how
    much is missing."""
    text = output.decode("utf-8", "replace").replace("\0", "\ufffd")
    if len(text) <= OUTPUT_CHARS and text.count("\n") <= OUTPUT_LINES:
        return text
    half, lines = OUTPUT_CHARS // 2, OUTPUT_LINES // 2
    head = "\n".join(text[:half].split("\n")[:lines])
    tail = "\n".join(text[-half:].split("\n")[-lines - text.endswith("\n") :])
    missing = len(text) - len(head) - len(tail)
    return f"{head}\n[... {missing} of {len(text)} characters left out; {text.count(chr(10))} lines in all ...]\n{tail}"


class Shell:
    """Runs shell commands in ``folder`` with the environment ``environ``."""

    def __init__(self, folder: str, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic):
        self.folder, self.environ, self.clock = folder, dict(environ), clock
        self.program = shutil.which("bash") or "/bin/sh"

    def run(self, command: str, timeout: float, cancel: Cancellation) -> Ended:
        """Run a command for at most ``timeout`` seconds, or until ``cancel`` is pressed.

        Processes left in its process group are killed with it. Raises OSError if it cannot be started.
        """
        start, why = self.clock(), ""
        with ExitStack() as held, ExitStack() as group:
            process = held.enter_context(
                subprocess.Popen(
                    [self.program, "-c", command],
                    cwd=self.folder,
                    env=self.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # makes a process group that can be killed, without a terminal
                )
            )
            group.callback(_end, process)
            while not why:
                output = _collect(process, _NAP)
                if process.poll() is not None:
                    break
                if cancel.requested:
                    why = "interrupt"
                elif self.clock() - start >= timeout:
                    why = "timeout"
                elif len(output) > MAX_OUTPUT:
                    why = "output"
            group.close()
            output = _collect(process, DRAIN)  # processes that left the group may keep the pipe open for ever
        code = process.returncode
        return Ended(code if code >= 0 else 128 - code, shortened(output), self.clock() - start, why)


def _collect(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Wait at most ``seconds`` for the end of a process and of its output; return all output so far."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired as error:
        return error.output or b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the whole process group: first with SIGTERM, then with SIGKILL."""
    try:
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    finally:  # also if Ctrl-C interrupts the wait
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
