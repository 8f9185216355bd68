"""Files that fail: for one work, every call of the system fails, is cut short, delayed or the last, one after another;
or the clock jumps there.

    python -m benchmarks.campaign.faults NAME FOLDER KILLS SEED      with the layer of faults.c loaded

Each try is a fork of a process that has everything imported. Afterwards what is there is read, the work is done again
on a sound disk, and no file may be left that a clean run does not leave. Last, two and eight processes do it at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .kinds import plain_line
from .works import WORKS, State, Work

MODES = {"no space": 1, "I/O error": 2, "full from here on": 3, "short write": 4, "delay": 5, "kill": 6}
MODES |= {"clock back a day": 7, "clock ahead a year": 8}
MOST, SECONDS = 500, 10.0
SOURCE = Path(__file__).with_name("faults.c")


def layer(folder: Path) -> Path:
    """Compile the file layer into ``folder``; raise RuntimeError where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        raise RuntimeError("the attack on files needs Linux and a C compiler")
    made = folder / f"faults-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
    if not made.exists():
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


class Tries:
    """All tries of one work, and what went wrong, by kind."""

    def __init__(self, name: str, folder: Path):
        os.environ["CAMPAIGN_WORK"] = str(folder)
        self.name, self.work, self.folder = name, WORKS[name](), folder
        self.layer = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None
        self.counts: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        clean = self._new()
        self.before = self.work.look(clean)
        started = time.monotonic()
        assert self._forked(clean, 0, 0)[0] == "done"
        self.seconds = time.monotonic() - started
        self.after = self.work.look(clean)
        self.files = {_stem(path) for path in clean.rglob("*")}
        assert self.after != self.before

    def _new(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        self.work.begin(folder)
        return folder

    def _forked(self, folder: Path, how: int, at: int, kill_after: float | None = None) -> tuple[str, int]:
        """Do the work in a fork with one fault; return how it ended ("done", "refused", "killed" or what is wrong), and
        the number of calls."""
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(read)
            reply = _attempt(self.work, folder, self.layer, how, at)
            os.write(write, json.dumps(reply).encode())
            os._exit(0)
        os.close(write)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        return tuple(json.loads(text)) if text else ("killed", 0)

    def _wrong(self, kind: str, where: str) -> None:
        self.kinds[kind] += 1
        self.examples.setdefault(kind, where)

    def try_one(self, mode: str, at: int, kill_after: float | None = None) -> int:
        """Try one fault at one call; return how many calls there were (0 if the process was killed)."""
        folder = self._new()
        started = time.monotonic()
        outcome, calls = self._forked(folder, MODES[mode], at, kill_after)
        where = f"{mode} at call {at}" if kill_after is None else "killed at any time"
        self.counts["tries"] += 1
        if time.monotonic() - started > SECONDS:
            self._wrong(f"takes more than {SECONDS:g} s", where)
        self.counts["kills"] += outcome == "killed"
        if outcome not in ("done", "refused", "killed"):
            self._wrong(outcome, where)
        try:
            state = self.work.look(folder)
            if outcome == "done" and state != self.after:
                self._wrong("reported done, but is not there", where)
            elif not (state == self.before or _begins(self.before, state, self.after)):
                self._wrong("neither the state before nor after", where)
            again, _ = self._forked(folder, 0, 0)
            if again != "done" and not (again == "refused" and state == self.after):
                self._wrong(f"cannot be done again: {again}", where)
            final = self.work.look(folder)
            wanted = state + self.after[len(self.before) :] if self.work.adds else self.after
            if final != wanted:
                self._wrong("another result after it was done again", where)
            if stray := {_stem(path) for path in folder.rglob("*")} - self.files:
                self._wrong("leaves a file beside the result", f"{where}: {sorted(stray)[0]}")
        except Exception as error:
            self._wrong(f"unreadable afterwards: {type(error).__name__} {plain_line(error)} {str(error)[:80]}", where)
        shutil.rmtree(folder)
        return calls or MOST if outcome == "killed" else calls

    def every(self) -> None:
        """Try every fault at every call until the work needs no more of them."""
        for mode in MODES:
            for at in range(1, MOST + 1):
                if at > self.try_one(mode, at):
                    break
            self.counts[f"calls: {mode}"] = at

    def drawn(self, kills: int, seed: int) -> None:
        """Kill the work at so many times drawn at random, also between two calls."""
        rng = random.Random(seed)
        for _ in range(kills):
            self.try_one("kill", 0, rng.uniform(0, self.seconds))

    def together(self, processes: int) -> None:
        """Do the work in several processes at once, in a folder that is empty but for the state before."""
        folder = self._new()
        pids = []
        for _ in range(processes):
            if (pid := os.fork()) == 0:
                outcome, _calls = _attempt(self.work, folder, None, 0, 0)
                os._exit({"done": 0, "refused": 1}.get(outcome, 2))
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        self.counts["tries"] += processes
        where = f"{processes} processes at once"
        if 2 in codes or not codes.count(0):
            self._wrong(f"ends in {sorted(set(codes))}", where)
        try:
            state = self.work.look(folder)
            added = self.after[len(self.before) :]
            if state != (self.before + added * codes.count(0) if self.work.adds else self.after):
                self._wrong("another result", where)
        except Exception as error:
            self._wrong(f"unreadable afterwards: {type(error).__name__} {str(error)[:80]}", where)
        shutil.rmtree(folder)


def _attempt(work: Work, folder: Path, layer: Any, how: int, at: int) -> tuple[str, int]:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    if layer is not None:
        layer.faults_arm(os.fsencode(folder), how, ctypes.c_long(at))
    try:
        outcome = "refused" if work.act(folder) is False else "done"
    except OSError as error:
        named = error.filename is not None and str(folder) in os.fsdecode(error.filename)
        outcome = "refused" if named else f"OSError that names no file: {plain_line(error)}"
    except Exception as error:
        outcome = plain_line(error, *([str(folder)] if work.names else [])) or "refused"
    calls = 0 if layer is None else layer.faults_count()
    if layer is not None:
        layer.faults_arm(b"", 0, ctypes.c_long(0))
    return outcome, calls


def _begins(before: State, state: State, after: State) -> bool:
    return len(state) >= len(before) and after[: len(state)] == state


def _stem(path: Path) -> str:
    """Return a file's name; "" for those of locks and SQLite, and for folders of compilers, which go after a week."""
    return "" if path.name.endswith(("-wal", "-shm", "lock")) or "/.build-" in str(path) else path.name


def main(name: str, folder: Path, kills: int, seed: int) -> None:
    """Try all faults of one work, and print the result as JSON."""
    logging.disable(logging.CRITICAL)
    tries = Tries(name, folder)
    tries.every()
    tries.drawn(kills, seed)
    for processes in (2, 8):
        tries.together(processes)
    print(json.dumps({**tries.counts, "kinds": tries.kinds, "examples": tries.examples}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
