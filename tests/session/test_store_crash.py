"""Processes that die while they save, or share a folder: nothing wrong is ever read, and no space is lost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4ref.session import kvc
from ds4ref.session.store import Store

from .fake_kv import FakeModel, FakeSession, store

ROOT = Path(__file__).resolve().parents[2]
LARGE = FakeModel(fixed=6 << 20)
BUDGET = 64 << 20


class Saver:
    """A process that saves one checkpoint after the other, and says when it begins with one."""

    def __init__(self, path: Path, seed: int):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.session.fake_kv", str(path), str(seed)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE)
        self.fd = self.process.stdout.fileno()  # type: ignore[union-attr]
        self.said = b""

    def until(self, count: int) -> None:
        """Wait until it has begun to save so many."""
        end = time.monotonic() + 60
        while self.said.count(b"saving") < count:
            assert select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0], "it says nothing"
            data = os.read(self.fd, 65536)
            assert data, f"it ended: {self.said!r}"
            self.said += data

    def kill(self) -> None:
        """At once, and all that it said."""
        self.process.send_signal(signal.SIGKILL)
        self.said += self.process.communicate(timeout=60)[0]


@pytest.fixture
def savers() -> Iterator[list[Saver]]:
    """Processes that end with the test."""
    started: list[Saver] = []
    yield started
    for saver in started:
        if saver.process.poll() is None:
            saver.kill()


def check(path: Path) -> Store:
    """Every checkpoint is whole, and brings a session to what its tokens make; nothing but checkpoints takes space."""
    kept = store(path, budget=BUDGET)
    names = {name for name in os.listdir(path) if name != ".lock"}
    assert all(len(name) == 43 and name.endswith(".kv") for name in names), names
    for name in names:
        with kvc.open_file(path / name) as file:
            text = kvc.read_through(file, name).text(file)
        session = FakeSession(model=LARGE)
        assert kept.load(session, text + b"!") == (len(text), "disk-text")  # type: ignore[arg-type]
        assert session.right and bytes(session.tokens) == text
    assert sum(about.st_size for about in kept.directory.files().values()) <= BUDGET
    return kept


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


@pytest.mark.thorough
def test_two_processes_on_one_folder(tmp_path: Path, savers: list[Saver]) -> None:
    """Both save, load, and evict what the other one saved, while this one reads; nobody ever reads anything wrong."""
    savers += [Saver(tmp_path, 1), Saver(tmp_path, 2)]
    kept = store(tmp_path, budget=BUDGET)
    for count in (4, 8, 12):
        for saver in savers:
            saver.until(count)
        for entry in kept.directory.entries():
            if entry.checkpoint is None:
                continue
            try:
                with kvc.open_file(tmp_path / entry.name) as file:
                    text = kvc.read_through(file, entry.name).text(file)
            except FileNotFoundError:
                continue  # evicted meanwhile
            session = FakeSession(model=LARGE)
            found = kept.load(session, text + b"!")  # type: ignore[arg-type]
            assert session.right and (found is None or bytes(session.tokens) == text)
    for saver in savers:
        saver.kill()
        assert b"wrong" not in saver.said
    assert not any(name.endswith(".bad") for name in os.listdir(tmp_path))
    check(tmp_path)
