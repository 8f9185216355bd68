"""Stages on workers of a real Dask cluster, of processes: same bits, another file, dead, hanging and late workers."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.cli.ds4 import main
from ds4ref.engine import Engine
from ds4ref.engine_options import ClusterSettings
from ds4ref.errors import ClusterError, DataError, UsageError
from ds4ref.nano.diagnostic41 import diagnostic41_path
from ds4ref.session.session import Session

from .test_split import CTX, ids_of, story

distributed = pytest.importorskip("distributed", reason="extra 'fanout' is not installed")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and killed as on Linux"),
]
BY_STAGES = {1: "0-5@0", 2: "0-2@1,3-5@0", 3: "0@4,1-3@2,4-5@0", 5: "0@0,1@1,2@2,3-4@3,5@4"}
PATIENCE = 6.0


class Started:
    """A scheduler and worker processes of one thread each, named 0 to 4; without nannies: only we restart them."""

    def __init__(self, cluster: Any):
        self.scheduler = str(cluster.scheduler_address)
        self._cluster = cluster
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for number in range(5):
            self.start(str(number))
        self.wait()

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler, "--name", name, "--no-nanny"]
        self.running[name] = subprocess.Popen(
            [*command, "--nthreads", "1", "--memory-limit", "0", "--no-dashboard"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Wait until the scheduler knows all five."""
        self._cluster.wait_for_workers(5, timeout=300)

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    with distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster:
        here = Started(cluster)
        yield here
        here.close()


@pytest.fixture
def workers(started: Started) -> str:
    """The scheduler's address."""
    return started.scheduler


def clustered(path: str, workers: str, stages: int | None, mode: str = "ds4", **more: Any) -> Engine:
    layers = None if stages is None else BY_STAGES[stages]
    settings = ClusterSettings(workers, layers, patience=more.pop("patience", PATIENCE), **more)
    return Engine.open(path, numerics=mode, threads=1, cluster=settings)


@pytest.mark.parametrize(
    ("mode", "stages"), [("ds4", 1), ("ds4", 2), ("ds4", 3), ("ds4", 5), ("qat", 3), ("exact", 5), ("exact", 2)]
)
def test_same_bits_as_one_machine(nano_path: str, workers: str, mode: str, stages: int) -> None:
    with Engine.open(nano_path, numerics=mode, threads=1) as engine, clustered(nano_path, workers, stages, mode) as far:
        ids = ids_of(engine, 320)
        for number, (wanted, got) in enumerate(
            zip(story(engine.session(CTX), ids), story(far.session(CTX), ids), strict=True)
        ):
            np.testing.assert_array_equal(got, wanted, err_msg=f"step {number}")


def test_v41_where_parts_can_make_the_rows_that_they_read(workers: str) -> None:
    """A context that is sent as a saved session, and continued."""
    path = diagnostic41_path()
    said: list[str] = []
    with Engine.open(path, numerics="qat", threads=1) as engine:
        with clustered(path, workers, None, "qat", tell=said.append) as far:
            here, there, file = engine.session(CTX), far.session(CTX), io.BytesIO()
            ids = ids_of(engine, 150)
            here.sync(ids[:140])
            here.save(file)
            there.load(io.BytesIO(file.getvalue()))
            for token in ids[140:]:
                np.testing.assert_array_equal(there.eval(token), here.eval(token))
            starts = [layers.start for layers in far.model.link().layers]
            assert len(starts) == 5 and any(map(engine.shape.needs, starts))
        assert len(said) == 1
        with pytest.raises(UsageError, match="can begin not at layer 8, but at 7"):
            Engine.open(path, cluster=ClusterSettings(workers, "0-7@0,8@1"))
        with pytest.raises(UsageError, match="^numerics ds4 is not known for deepseek41"):
            Engine.open(path, numerics="ds4", cluster=workers)


def test_a_layout_by_bytes(nano_path: str, workers: str) -> None:
    said: list[str] = []
    with Engine.open(nano_path, numerics="qat", threads=1) as engine:
        with clustered(nano_path, workers, None, "qat", tell=said.append) as far:
            ids = ids_of(engine, 20)
            np.testing.assert_array_equal(far.logits(ids), engine.logits(ids))
            assert sum(map(len, far.model.link().layers)) == 6 and len(far.model.link().layers) == 5
    assert said[0].startswith("0 has layers 0-") and len(said) == 1


def test_the_command(nano_path: str, workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.json").write_text("[1, 2, 3, 4, 5]")
    common = ["-m", nano_path, "--token-ids", str(tmp_path / "ids.json"), "--threads", "1", "-n", "4"]
    far = ["--cluster", workers, "--layers", BY_STAGES[2]]
    for name, more in (("here", []), ("there", far)):
        assert main([*common, *more, "--dump-logprobs", str(tmp_path / f"{name}.json")]) == 0
    assert "cluster: 1 has layers 0-2 (" in capsys.readouterr().err
    here, there = (json.loads((tmp_path / f"{name}.json").read_text())["steps"] for name in ("here", "there"))
    assert there == here and len(here) == 4
    for more, line in (
        (["--layers", "0-5@0"], "ds4: --layers needs --cluster"),
        ([*far, "--draft", "lookup"], "ds4: speculative decoding is not supported on a cluster"),
        (["--cluster", workers, "--layers", "0-4@0"], "end at 4, the model's last is 5"),
    ):
        assert main([*common, *more, "--dump-logprobs", str(tmp_path / "x.json")]) == 2
        assert line in capsys.readouterr().err


def test_workers_that_cannot_be_used(nano_path: str, workers: str, tmp_path: Path) -> None:
    path = str(tmp_path / "model.gguf")
    shutil.copy(nano_path, path)
    with Engine.open(path, numerics="qat", threads=1) as engine:
        info = engine.source.tensors["blk.4.ffn_down_exps.weight"]
    changed = bytearray(Path(path).read_bytes())
    changed[info.offset] ^= 1
    with clustered(path, workers, 2, "qat") as far:
        session = far.session(40)
        session.sync([1, 2, 3])
        wanted = session.logits
        replaced = tmp_path / "other"
        replaced.write_bytes(changed)
        os.replace(replaced, path)  # the coordinator's map stays the old file's
        far.model.disconnect()
        with pytest.raises(ClusterError, match=r"worker 0 at .* \(layers 3-5\) has another file"):
            session.append(4)
        shutil.copy(nano_path, path)
        session.append(4)
        session.rewind(3)
        np.testing.assert_array_equal(session.logits, wanted)
        os.unlink(path)
        far.model.disconnect()
        with pytest.raises(Exception, match=r"worker 1 at .*cannot open: No such file") as error:
            session.append(5)
        assert "\n" not in str(error.value)
    settings = ClusterSettings(workers, "0-2@a,3-5@0", patience=0.2)
    with pytest.raises(ClusterError, match=r"worker a is not there \(there are: 0, 1, 2, 3, 4\)"):
        Engine.open(nano_path, cluster=settings)
    with pytest.raises(DataError, match="no Dask scheduler answers"):
        Engine.open(nano_path, cluster="tcp://127.0.0.1:9")


@pytest.mark.parametrize("how", ["killed", "stopped", "stopped and late"])
@pytest.mark.parametrize("when", ["decode", "prefill"])
def test_a_worker_that_is_lost(nano_path: str, started: Started, how: str, when: str) -> None:
    """One line that names it; the session goes on when it is back, to the bit; what it says late is not heard."""
    far = clustered(nano_path, started.scheduler, 2)
    with Engine.open(nano_path, numerics="ds4", threads=1) as engine, far:
        ids = ids_of(engine, 330)
        here, there = engine.session(CTX), far.session(CTX)
        for session in (here, there):
            session.sync(ids[:40])
        snapshot = there.snapshot()
        worker = started.running["0"]

        def step(session: Session) -> np.ndarray:
            if when == "prefill":
                session.sync(ids[:300], chunk=50)
                return session.logits
            return session.eval(ids[40])

        worker.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        begun = time.monotonic()
        lost = rf"worker 0 at tcp://\S+ \(layers 3-5\) (is gone: [\w ]+|has not answered for {PATIENCE:g} s)$"
        with pytest.raises(ClusterError, match=lost):
            step(there)
        assert time.monotonic() - begun < 10 * PATIENCE
        if how == "stopped and late":
            worker.send_signal(signal.SIGCONT)
        else:
            worker.kill()
            worker.wait()
            with pytest.raises(ClusterError, match=r"worker 0 is not there \(there are: 1, 2, 3, 4\)$"):
                step(there)
            started.start("0")
            started.wait()
        for rest in reversed(range(20)):
            try:
                got = step(there)
                break
            except ClusterError:  # on a busy machine a worker that goes on may take longer than our patience
                if not rest:
                    raise
        np.testing.assert_array_equal(got, step(here))
        there.restore(snapshot)
        np.testing.assert_array_equal(there.eval(7), _from(engine, [*ids[:40]], 7))


def _from(engine: Engine, ids: list[int], token: int) -> np.ndarray:
    session = engine.session(CTX)
    session.sync(ids)
    return session.eval(token)
