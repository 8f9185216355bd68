"""Processes that die while they save, or share a folder: nothing wrong is ever read, and no space is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ds4ref.session import kvc

from .fake_kv import FakeSession, store

ROOT = Path(__file__).resolve().parents[2]


STEPS = """
import os, signal, sys
from pathlib import Path
from tests.session.fake_kv import FakeSession, store

def child(folder, left):
    kept = store(folder)

    def counted(really):
        def call(*args, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*args, **options)
        return call

    for name in ("open", "write", "fsync", "replace", "close"):
        setattr(os, name, counted(getattr(os, name)))
    os._exit(not kept.save(FakeSession(sys.argv[2].encode()), (), "cold"))

for steps in range(1000):
    pid = os.fork() or child(Path(sys.argv[1]) / str(steps), steps)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status)
    if status != -signal.SIGKILL:
        break
"""


def test_killed_at_every_step(tmp_path: Path) -> None:
    """The process vanishes before each call to the system in turn: what a power cut between two of them leaves."""
    text = "once upon a time"
    command = [sys.executable, "-c", STEPS, str(tmp_path), text]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=300)
    *killed, last = map(int, done.stdout.split())
    assert last == 0 and set(killed) == {-signal.SIGKILL} and len(killed) > len(text)
    there = []
    for steps in range(len(killed) + 1):
        folder = tmp_path / str(steps)
        kept = store(folder)
        names = {name for name in os.listdir(folder) if name != ".lock"}
        assert names <= {kvc.key_name(text.encode())}
        session = FakeSession()
        assert (kept.load(session, text.encode()) is not None) == bool(names) and session.right  # type: ignore[arg-type]
        there.append(bool(names))
    assert there == sorted(there) and there.count(False) > len(text)
