"""Workers killed, stopped, stopped and late, replaced and given another file, at random moments of random work.

    python -m tests.cluster.chaos [--rounds 100] [--seed 0]

Each round does one thing to one of three workers while a session works on them, and compares every result with that of
one machine. Printed are, by kind, the rounds, the errors that a user saw, and the longest time until the session went
on.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.engine_options import ClusterSettings
from ds4ref.errors import ClusterError
from ds4ref.nano import random_path
from ds4ref.session.session import Session

KINDS = "killed", "stopped", "late", "another file"
PATIENCE = 5.0
LONGEST = 240.0
"""Seconds after which a round counts as hanging."""
STEPS = 14


def spoil(path: Path, offset: int) -> None:
    """Replace the file by one that differs at ``offset``; maps of the old one keep their bytes."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    other = path.with_suffix(".other")
    other.write_bytes(data)
    os.replace(other, path)


class Processes:
    """Workers by name, without Dask's nanny: who died is started again here."""

    def __init__(self, scheduler: str, names: list[str]):
        self.scheduler = scheduler
        self.running: dict[str, subprocess.Popen] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        command = "-m", "distributed.cli.dask_worker", self.scheduler, "--no-nanny", "--no-dashboard", "--name", name
        self.running[name] = subprocess.Popen(
            [sys.executable, *command, "--nthreads", "1", "--memory-limit", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def revive(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                self.start(name)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


class Trouble:
    """What is done to a worker, and undone."""

    def __init__(self, kind: str, workers: Processes, name: str, path: Path, good: Path, offset: int):
        self.kind, self.workers, self.path, self.good, self.offset = kind, workers, path, good, offset
        self.process = workers.running[name]

    def strike(self) -> None:
        if self.kind == "another file":
            spoil(self.path, self.offset)
        self.process.send_signal(signal.SIGSTOP if self.kind in ("stopped", "late") else signal.SIGKILL)

    def mend(self) -> None:
        """Undo it, or let the operating system do away with the worker, for another one to be started."""
        if self.kind == "another file":
            copy = self.path.with_suffix(".good")
            shutil.copy(self.good, copy)
            os.replace(copy, self.path)
        if self.kind in ("stopped", "late"):
            self.process.send_signal(signal.SIGCONT if self.kind == "late" else signal.SIGKILL)


def work(session: Session, rng: random.Random, vocab: int):
    """Yield steps of a session: each may be tried again, and returns what is compared."""
    ids = [rng.randrange(vocab) for _ in range(rng.randrange(20, 120))]
    yield lambda: session.sync(ids, chunk=16) or session.logits
    kept = []
    yield lambda: kept.append(session.snapshot())
    for _ in range(STEPS):
        token, kind = rng.randrange(vocab), rng.random()
        if kind < 0.75:  # a token that was appended before its logits were lost is not appended again
            pos = session.pos
            yield lambda token=token, pos=pos: session.pos > pos or session.append(token) or None
            yield lambda: session.logits
        elif kind < 0.85:
            yield lambda: session.restore(kept[-1]) or session.logits
        else:
            more = [*session.tokens, *(rng.randrange(vocab) for _ in range(30))]
            yield lambda more=more: session.sync(more, chunk=16) or session.logits


def one_round(far: Engine, here: Engine, rng: random.Random, trouble: Trouble) -> tuple[list[str], float]:
    """Return the errors of a round and the longest time of a step; raise AssertionError for wrong logits."""
    seed, errors, longest = rng.random(), [], 0.0
    strike_at, delay = rng.randrange(STEPS), rng.random() * 0.05
    sessions = far.session(700), here.session(700)
    pairs = zip(*(work(one, random.Random(seed), here.shape.vocab) for one in sessions), strict=True)
    for number, (theirs, ours) in enumerate(pairs):
        if number == strike_at:
            timer = threading.Timer(delay, trouble.strike)
            timer.start()
        begun, mended = time.monotonic(), False
        while True:
            try:
                got = theirs()
                break
            except ClusterError as error:
                errors.append(str(error))
                assert "\n" not in errors[-1] and "worker" in errors[-1], errors[-1]
                if not mended and (trouble.kind != "another file" or "another file" in errors[-1]):
                    trouble.mend()
                    mended = True
                time.sleep(0.2)
                trouble.workers.revive()
            assert time.monotonic() - begun < LONGEST, f"a step hangs: {errors}"
        longest = max(longest, time.monotonic() - begun)
        wanted = ours()
        assert (got is None) == (wanted is None) and (got is None or np.array_equal(got, wanted)), "wrong logits"
        assert sessions[0].tokens == sessions[1].tokens
    timer.join()
    return errors, longest


def main(rounds: int, seed: int) -> int:
    """Run the rounds, print the table, and return the number of rounds that went wrong."""
    import distributed

    rng, wrong = random.Random(seed), 0
    seen: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        good, path = Path(random_path()), Path(folder) / "model.gguf"
        shutil.copy(good, path)
        with (
            distributed.LocalCluster(
                n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
            Engine.open(good, numerics="ds4", threads=1) as here,
        ):  # fmt: skip
            workers = Processes(cluster.scheduler_address, ["0", "1", "2"])
            client.wait_for_workers(3, timeout=120)
            settings = ClusterSettings(cluster.scheduler_address, "0-1@0,2-3@1,4-5@2", patience=PATIENCE)
            with Engine.open(path, numerics="ds4", threads=1, cluster=settings) as far:
                for number in range(rounds):
                    kind = KINDS[number % len(KINDS)]
                    workers.revive()
                    client.wait_for_workers(3, timeout=120)
                    worker = rng.randrange(3)
                    layer = 2 * worker
                    offset = here.source.tensors[f"blk.{layer}.ffn_up_exps.weight"].offset
                    trouble = Trouble(kind, workers, str(worker), path, good, offset)
                    try:
                        errors, longest = one_round(far, here, rng, trouble)
                        seen[kind].append((len(errors), longest))
                        print(f"{number}: {kind}: {longest:.1f} s: {'; '.join(errors)}", flush=True)
                    except Exception as error:
                        wrong += 1
                        print(f"{number}: {kind}: WRONG: {type(error).__name__}: {error}", flush=True)
                    trouble.mend()  # no error may have told of it
                workers.end()
    for kind, rows in seen.items():
        most = max(longest for _, longest in rows)
        print(f"{kind}: {len(rows)} rounds, {sum(n for n, _ in rows)} errors, longest step {most:.1f} s")
    print(f"{wrong} of {rounds} rounds went wrong")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(1 if main(arguments.rounds, arguments.seed) else 0)
