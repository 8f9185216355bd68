"""Runs ds4-server as a process, with the embedded model of random weights.

    with Own(folder) as own: own.url

The process is ``ds4-server``, or the same with scripted answers (``ds4ref.cli.scripted``). Its log goes to a file. On
SIGTERM it must exit with code 0, and its log must have no errors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import Ds4Error
from .results import Check, Client

PLAIN, SCRIPTED = "ds4ref.cli.server", "ds4ref.cli.scripted"
THINKING = 16
"""Maximum number of reasoning tokens before an answer in a demanded format; random weights would never stop."""
START_SECONDS = 180.0
"""Seconds to wait for the server to start; the first start of a version compiles kernels."""
END_SECONDS = 60.0
_READY = re.compile(r"listening on (http://\S+)")


class Own:
    """Context manager of one server process.

    folder    where its log is written
    scripted  whether its answers are scripted
    ctx       context length in tokens
    end       after it was stopped, the report's row on how it ended
    """

    def __init__(self, folder: Path, *, scripted: bool = False, ctx: int):
        self.name = "ds4-server" + (" (scripted words)" if scripted else "")
        self.log = folder / f"server-{'scripted' if scripted else 'plain'}.log"
        model = ["--port", "0", "--ctx", str(ctx), "--log-format", "json", *_random()]
        command = [sys.executable, "-m", SCRIPTED if scripted else PLAIN, *model]
        command += ["--form-thinking", str(THINKING)]
        self._out = open(self.log, "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._out)
        self.url = ""
        self.end: Client | None = None

    def __enter__(self) -> Own:
        deadline = time.monotonic() + START_SECONDS
        while not self.url:
            matches = [_READY.search(str(line.get("message"))) for line in self.lines()]
            self.url = next((match[1] for match in matches if match), "")
            if not self.url and (self.process.poll() is not None or time.monotonic() > deadline):
                self._kill()
                raise Ds4Error(f"the server did not start: {self.last_line()}")
            time.sleep(0.02)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = str(self.process.wait(END_SECONDS))
        except subprocess.TimeoutExpired:
            code = f"nothing for {END_SECONDS:.0f} s"
        self._kill()
        self.end = Client(self.name, "ours", [self._ended(code), self._quiet()])

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the server's JSON log so far."""
        lines = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                lines.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                lines.append({"level": "text", "message": line})
        return lines

    def last_line(self) -> str:
        """Return the message of the last line in the server's log."""
        lines = self.lines()
        return str(lines[-1].get("message")) if lines else "nothing"

    def _ended(self, code: str) -> Check:
        expected = "SIGTERM ends it with exit code 0"
        return Check("server.ends", "end", "ok" if code == "0" else "fail", True, expected, "" if code == "0" else code)

    def _quiet(self) -> Check:
        """Check the log for errors and tracebacks."""
        bad = [line for line in self.lines() if line.get("level") == "error" or "traceback" in line]
        bad += [line for line in self.lines() if "Traceback" in str(line.get("message"))]
        expected = "no error and no traceback in its log"
        got = str(bad[0].get("message"))[:160] if bad else ""
        return Check("server.log", "end", "fail" if bad else "ok", True, expected, got)

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._out.close()


def _random() -> list[str]:
    """Return the options that select the model of random weights by its file.

    Whatever it is asked, it reasons and goes on writing, which the checks need.
    """
    from ..nano import random_path

    return ["--model", os.fspath(random_path())]
