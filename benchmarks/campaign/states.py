"""Random sequences of what can be done: any order must give what a fresh run gives.

Each machine is one of hypothesis: sessions of a model (bit for bit what their tokens make, tests/session), a disk cache
that is damaged, removed and opened anew, answers that are computed together and left, a log that breaks off and is
resumed. ``counted`` runs one until it has done so many steps; a failure is shrunk to its shortest sequence.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from .kinds import plain_line

WORDS = st.lists(st.sampled_from([b"once ", b"upon ", b"a ", b"time "]), min_size=3, max_size=8).map(b"".join)


class DiskCache(RuleBasedStateMachine):
    """Sessions on disk: what is loaded was saved, is right, and begins the text."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.saved: set[bytes] = set()
        self.open_again()

    @rule()
    def open_again(self) -> None:
        from tests.session.fake_kv import store

        self.kept = store(Path(self.folder.name), 4000)

    @rule(text=WORDS, others=st.lists(WORDS.map(lambda text: b"said " + text), max_size=2))
    def save(self, text: bytes, others: list[bytes]) -> None:
        from tests.session.fake_kv import FakeSession
        from tests.session.storing import loaded

        if self.kept.save(FakeSession(text), (text, *others), "cold"):  # type: ignore[arg-type]
            self.saved.add(text)
            assert loaded(self.kept, text + b"!") == text

    @rule(text=WORDS)
    def load(self, text: bytes) -> None:
        from tests.session.storing import loaded

        assert loaded(self.kept, text) in {None, *self.saved}

    @rule(which=st.integers(0, 9), at=st.integers(0, 10**4), what=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, which: int, at: int, what: str) -> None:
        files = sorted(Path(self.folder.name).glob("*.kv"))
        if not files:
            return
        path = files[which % len(files)]
        data = bytearray(path.read_bytes())
        at %= max(1, len(data))
        if what == "remove" or not data:
            path.unlink()
        else:
            data[at : at + 1 if what == "flip" else None] = bytes([data[at] ^ 0x10]) if what == "flip" else b""
            path.write_bytes(data)

    @invariant()
    def nothing_else_is_there(self) -> None:
        files = [path for path in Path(self.folder.name).iterdir() if path.name != ".lock"] if self.saved else []
        assert {path.suffix for path in files} <= {".kv", ".bad"}
        assert sum(path.stat().st_size for path in files) < 3 * 4000

    def teardown(self) -> None:
        self.folder.cleanup()


class EvalLog(RuleBasedStateMachine):
    """A log that breaks off inside its last line and is resumed holds every whole line, the last one of each key."""

    @initialize()
    def begin(self) -> None:
        from ds4ref.eval import log as logs
        from tests.eval.test_log import header

        self.folder = tempfile.TemporaryDirectory()
        self.path, self.lines = Path(self.folder.name, "run.jsonl"), list[Any]()
        self.log = logs.Writer.create(self.path, header())
        self.start = self.path.stat().st_size

    @rule(which=st.integers(0, 3), failed=st.booleans(), text=st.text(max_size=5))
    def add(self, which: int, failed: bool, text: str) -> None:
        from tests.eval.test_log import sample

        entry = sample(which, "failed", error=text) if failed else sample(which)
        self.log.add(entry)
        self.lines.append(entry)

    @rule(cut=st.integers(0, 400))
    def break_off_and_resume(self, cut: int) -> None:
        from ds4ref.eval import log as logs
        from tests.eval.test_log import header

        self.log.close()
        data = self.path.read_bytes()
        length = max(self.start, len(data) - cut)
        self.path.write_bytes(data[:length])
        self.lines = self.lines[: data[self.start : length].count(b"\n")]
        self.log = logs.Writer.resume(self.path, header())

    @invariant()
    def every_whole_line_counts(self) -> None:
        from ds4ref.eval import log as logs

        expected: dict[Any, Any] = {}
        for entry in self.lines:
            expected.pop(entry.key, None)
            expected[entry.key] = entry
        assert logs.read(self.path).samples == list(expected.values()) == list(self.log.samples.values())

    def teardown(self) -> None:
        self.log.close()
        self.folder.cleanup()


class Answers(RuleBasedStateMachine):
    """Answers that are computed together, cached and left: each says what it says alone."""

    engine: Any
    alone: dict[int, list[int]]

    @staticmethod
    def turn(which: int) -> Any:
        from tests.server.test_streams import turn

        text = " ".join(["One", "Two", "Three"][: 1 + which % 3]) * (1 + 4 * (which % 2))
        return turn(text, n=2 + which, seed=None if which % 3 else which, client="xy"[which % 2])

    def worker_of(self) -> Any:
        from ds4ref.server.worker import Worker

        return Worker(self.engine, ctx=1024, streams=3)

    @initialize()
    def begin(self) -> None:
        self.worker, self.asked = self.worker_of(), list[tuple[int, Any]]()

    @rule(which=st.integers(0, 5))
    def ask(self, which: int) -> None:
        from tests.server.scripted import Asked

        if which not in self.alone:
            fresh = self.worker_of()
            self.alone[which] = Asked(fresh, self.turn(which)).wait().tokens
            fresh.shut_down()
        self.asked.append((which, Asked(self.worker, self.turn(which))))

    @rule(at=st.integers(0, 5), leaves=st.booleans())
    def end(self, at: int, leaves: bool) -> None:
        if not self.asked:
            return
        which, asked = self.asked.pop(at % len(self.asked))
        if leaves:
            self.worker.abandon(asked.job)
        if not (leaves and asked.job.ended):  # one that leaves the queue is told nothing more
            asked.wait()
        tokens = asked.tokens
        assert tokens == self.alone[which][: len(tokens)] and (leaves or len(tokens) == len(self.alone[which]))

    def teardown(self) -> None:
        while self.asked:
            self.end(0, False)
        self.worker.shut_down()


def machines() -> dict[str, Callable[[], type[RuleBasedStateMachine]]]:
    """Return what makes each machine, by name."""

    def sessions(numerics: str) -> Callable[[], type[RuleBasedStateMachine]]:
        def make() -> type[RuleBasedStateMachine]:
            from ds4ref.engine import Engine
            from ds4ref.nano import random_path
            from tests.session.test_sequences import machine

            return machine(Engine.open(random_path(), numerics=numerics, threads=1))

        return make

    def answers() -> type[RuleBasedStateMachine]:
        from ds4ref.engine import Engine
        from ds4ref.nano import random_path

        return type("Together", (Answers,), {"engine": Engine.open(random_path(), threads=1), "alone": {}})

    return {"sessions": sessions("exact"), "sessions ds4": sessions("ds4"), "disk cache": lambda: DiskCache,
            "eval log": lambda: EvalLog, "answers": answers}  # fmt: skip


def counted(name: str, steps: int, seconds: float, seed: int, shrink: bool = True) -> tuple[int, dict[str, int], str]:
    """Run a machine for ``steps`` steps or ``seconds``; return the steps done, failures by kind, and the last one."""
    kind, done, failures, last = machines()[name](), 0, dict[str, int](), ""

    class Counting(kind):  # type: ignore[misc, valid-type]
        @invariant()
        def count(self) -> None:
            nonlocal done
            done += 1

    length = 12 if name == "answers" else 50
    how = settings(max_examples=10, stateful_step_count=length, deadline=None, database=None, derandomize=False,
                   suppress_health_check=list(HealthCheck), print_blob=False,
                   phases=(Phase.generate, *((Phase.shrink,) if shrink else ())))  # fmt: skip
    end = time.monotonic() + seconds
    while done < steps and time.monotonic() < end:
        seed += 1
        try:
            run_state_machine_as_test(hypothesis.seed(seed)(Counting), settings=how)
        except Exception as error:
            found = plain_line(error) or f"{type(error).__name__}: {str(error)[:100]}"
            failures[found] = failures.get(found, 0) + 1
            last = "".join(traceback.format_exception(error)) + "\n".join(getattr(error, "__notes__", []))
    return done, failures, last
