"""``ds4-server`` as a process of its own, and what it holds of the machine."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]


class Held(NamedTuple):
    """What a process holds: resident bytes, open files, threads."""

    memory: int
    files: int
    threads: int


class Process:
    """A server of its own, and where it is. ``command`` is what runs instead of the command's module."""

    def __init__(self, model: str, *argv: str, env: dict[str, str] | None = None, command: tuple[str, ...] = ()):
        line = [sys.executable, *(command or ("-m", "ds4ref.cli.server")), "-m", model, "--port", "0", "-t", "1", *argv]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            line, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths, **(env or {})}
        )
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        assert self.ready.wait(120), self.lines
        found = re.search(r"listening on (http://\S+?)(?=[\"\s]|$)", " ".join(self.lines))
        assert found, self.lines
        self.url = found[1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if "listening on" in line:
                self.ready.set()
        self.ready.set()

    def ends(self) -> int:
        """Its exit code."""
        code = self.process.wait(60)
        self.reader.join()
        return code

    def connect(self) -> socket.socket:
        """A socket that is connected to it."""
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname, parts.port), timeout=60)

    @property
    def held(self) -> Held:
        """What it holds now."""
        here = Path(f"/proc/{self.process.pid}")
        if not os.path.exists("/proc/self/statm"):
            pytest.skip("this system does not tell what another process holds")
        pages = int((here / "statm").read_text().split()[1])
        counts = (len(os.listdir(here / part)) for part in ("fd", "task"))
        return Held(pages * os.sysconf("SC_PAGESIZE"), *counts)

    def settled(self, files: int, seconds: float = 60.0) -> Held:
        """The same, once no more than so many files are open."""
        end = time.monotonic() + seconds
        while (held := self.held).files > files:
            assert time.monotonic() < end, f"{held.files} files are open, {files} were"
            time.sleep(0.02)
        return held


@contextmanager
def process(model: str, *argv: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    """One that is killed if it has not ended."""
    made = Process(model, *argv, env=env)
    try:
        yield made
    finally:
        made.process.kill()
        made.ends()
        assert made.process.stderr is not None
        made.process.stderr.close()
