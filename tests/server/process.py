"""``ds4-server`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Process:
    """A server of its own, and where it is; its log is in ``folder``."""

    def __init__(self, folder: str, model: str, *argv: str):
        line = [sys.executable, "-m", "ds4ref.cli.server", "-m", model, "--port", "0", "-t", "1", *argv]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.log = Path(folder, "log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                line, stderr=log, env={**os.environ, "PYTHONPATH": paths},
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup has the tests ignore it
            )  # fmt: skip
        end = time.monotonic() + 120
        while not (found := re.search(r"listening on (http://\S+?)(?=[\"\s]|$)", self.log.read_text())):
            assert self.process.poll() is None and time.monotonic() < end, self.lines
            time.sleep(0.02)
        self.url = found[1]

    @property
    def lines(self) -> list[str]:
        """What it has logged."""
        return self.log.read_text().splitlines()

    def ends(self) -> int:
        """Its exit code."""
        return self.process.wait(60)


@contextmanager
def process(model: str, *argv: str) -> Iterator[Process]:
    """One that is killed if it has not ended."""
    with tempfile.TemporaryDirectory() as folder:
        made = Process(folder, model, *argv)
        try:
            yield made
        finally:
            made.process.kill()
            made.ends()
