"""Our server as a process of its own, as a user starts it, on the embedded model.

    with Own(folder) as own: own.url

The process is ``ds4-server`` itself, or ``scripted``, which is the same but for who picks the tokens. What it says goes
to a file; at the end it gets a signal, has to answer it with exit code 0, and may not have complained of anything.
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

from ...errors import Ds4Error
from .results import Check, Client

PLAIN, SCRIPTED = "ds4ref.cli.server", "ds4ref.server.smoke.scripted"
FORM = {"--form-tokens": 128, "--form-thinking": 16}
"""Random weights end nothing by themselves: what is demanded of them is brought to a good end after so many tokens."""
START_SECONDS = 180.0
"""The first start of a version compiles kernels."""
END_SECONDS = 60.0
_READY = re.compile(r"listening on (http://\S+)")


class Own:
    """One of our servers. ``ctx``: its context; ``threads``: as for ``ds4-server``."""

    def __init__(self, folder: Path, *, scripted: bool = False, ctx: int, threads: int | None = None):
        self.name = "ds4-server" + (" (scripted words)" if scripted else "")
        self.log = folder / f"server-{'scripted' if scripted else 'plain'}.log"
        model = ["--port", "0", "--ctx", str(ctx), "--log-format", "json", *_embedded()]
        command = [sys.executable, "-m", SCRIPTED if scripted else PLAIN, *model]
        command += [word for name, count in FORM.items() for word in (name, str(count))]
        command += [] if threads is None else ["--threads", str(threads)]
        self._out = open(self.log, "wb")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._out)
        self.url = ""
        self.end: Client | None = None

    def __enter__(self) -> Own:
        deadline = time.monotonic() + START_SECONDS
        while not self.url:
            found = [_READY.search(str(line.get("message"))) for line in self.lines()]
            self.url = next((match[1] for match in found if match), "")
            if not self.url and (self.process.poll() is not None or time.monotonic() > deadline):
                self._kill()
                raise Ds4Error(f"the server did not start: {self.said()}")
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
        """What it logged so far."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                found.append({"level": "text", "message": line})
        return found

    def said(self) -> str:
        """Its last line."""
        lines = self.lines()
        return str(lines[-1].get("message")) if lines else "nothing"

    def _ended(self, code: str) -> Check:
        expected = "SIGTERM ends it with exit code 0"
        return Check("server.ends", "end", "ok" if code == "0" else "fail", True, expected, "" if code == "0" else code)

    def _quiet(self) -> Check:
        """What a bug would leave behind: an error, a traceback, or anything that is no line of the log."""
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


def _embedded() -> list[str]:
    """The embedded model by its file: one of the folder in which we happen to be is not it."""
    from ...nano import embedded_path

    return ["--model", os.fspath(embedded_path())]
