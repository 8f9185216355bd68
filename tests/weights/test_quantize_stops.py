"""Runs of the quantizer that are killed, stopped, out of disk, at odds with each other, and resumed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ds4ref.cli.quantize import main
from ds4ref.errors import DataError
from ds4ref.weights import open_source
from ds4ref.weights.quantize.imatrix import Imatrix, TensorImportance, write_imatrix
from ds4ref.weights.quantize.part import PartFile
from ds4ref.weights.quantize.plan import Choices, make_plan
from ds4ref.weights.quantize.run import run
from ds4ref.weights.writer import write_gguf

from .checkpointfile import write_small
from .quantized import DIM, EXPERTS, FF, METADATA, ROOT, SPECS, tensor

KILLED = """
import os, signal, sys
from ds4ref.weights.quantize import part
from ds4ref.cli.quantize import main
part.SYNC_SECONDS = 0
import ds4ref.cli.quantize
ds4ref.cli.quantize._refuse_unreadable = lambda *_: None  # the input is no whole model
count, write = 0, part.PartFile.write
def counted(self, rows, data):
    global count
    write(self, rows, data)
    count += 1
    if count == int(sys.argv[1]):
        os.kill(os.getpid(), int(sys.argv[2]))
part.PartFile.write = counted
sys.exit(main(sys.argv[3:]))
"""


@dataclass
class Way:
    """A command without its output, the bytes of a run that nothing stopped, and how many times it writes."""

    argv: list[str]
    wanted: bytes
    writes: int


@pytest.fixture(scope="module")
def ways(unquantized, quantized, tmp_path_factory) -> dict[str, Way]:
    """Every kind of run: from a GGUF, with importance, from a folder of safetensors, and a splice."""
    folder = tmp_path_factory.mktemp("ways")
    rng = np.random.default_rng(5)
    cols = {"gate": DIM, "up": DIM, "down": FF}
    entries = {
        f"blk.{layer}.ffn_{part}_exps.weight": TensorImportance(
            rng.random((EXPERTS, n), np.float32) + 0.1, np.ones(EXPERTS)
        )
        for layer in range(2)
        for part, n in cols.items()
    }
    write_imatrix(folder / "i.gguf", Imatrix(entries))
    published = str(write_small(folder / "published", shard_bytes=1 << 19))
    donor = str(folder / "donor.gguf")
    assert main([str(unquantized), "-o", donor, "--recipe", "q4"]) == 0
    rest = ["--recipe", "q2", "--memory", "0.01", "--threads", "1"]
    commands = {
        "gguf": [str(unquantized), *rest],
        "importance": [str(unquantized), *rest, "--imatrix", str(folder / "i.gguf")],
        "published": [published, *rest],
        "splice": [str(quantized), "--donor", donor, "--layers", "0-1"],
    }
    found = {}
    for name, argv in commands.items():
        count, real = itertools.count(), PartFile.write

        def counted(self, rows, data, real=real, count=count):
            next(count)
            real(self, rows, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartFile, "write", counted)
            assert main([*argv, "-o", str(folder / f"made-{name}.gguf")]) == 0
        found[name] = Way(argv, (folder / f"made-{name}.gguf").read_bytes(), next(count))
    assert found["gguf"].wanted == quantized.read_bytes() != found["importance"].wanted
    return found


def resumed(way: Way, out: Path, capsys) -> None:
    """The same command again resumes, and gives the bytes of a run that nothing stopped."""
    capsys.readouterr()
    assert main([*way.argv, "-o", str(out)]) == 0
    assert "resuming at tensor" in capsys.readouterr().err
    assert out.read_bytes() == way.wanted
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "share", "number"),
    [("gguf", 0.05, signal.SIGKILL), ("gguf", 0.8, signal.SIGTERM), ("importance", 0.5, signal.SIGKILL),
     ("published", 0.3, signal.SIGKILL), ("published", 0.9, signal.SIGINT), ("splice", 0.95, signal.SIGTERM)],
)  # fmt: skip
def test_a_killed_run_resumes_and_gives_the_same_bytes(ways, tmp_path, capsys, name, share, number):
    way, out = ways[name], tmp_path / "q.gguf"
    stop = str(max(1, int(share * way.writes)))
    done = subprocess.run([sys.executable, "-c", KILLED, stop, str(int(number)), *way.argv, "-o", str(out)],
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number], done.stderr
    assert not out.exists() and (tmp_path / "q.gguf.part").exists()
    resumed(way, out, capsys)


def test_a_part_of_another_plan_is_not_resumed(unquantized, quantized, tmp_path, capsys):
    """Begun anew over a longer part, the file is the same as without one, down to the padding between tensors."""
    out = tmp_path / "q.gguf"
    (tmp_path / "q.gguf.part").write_bytes(b"x" * (quantized.stat().st_size + 1000))
    (tmp_path / "q.gguf.part.json").write_text(json.dumps({"plan": "other", "tensor": 0, "row": 5}))
    command = [str(unquantized), "-o", str(out), "--recipe", "q2"]
    assert main(command) == 1
    assert "belongs to another run" in capsys.readouterr().err
    assert main([*command, "--restart"]) == 0 and out.read_bytes() == quantized.read_bytes()


def test_a_source_that_changed_since_is_another_plan(tmp_path):
    """The same name and size, written again: to resume would join halves of two models."""
    with write_gguf(tmp_path / "f.gguf", METADATA, SPECS[1:2]) as out:
        out.write(SPECS[1].name, np.ones(DIM, np.float32))
    with open_source(tmp_path / "f.gguf") as source:
        plan = make_plan(source, Choices("q8"))
        before = plan.digest([tmp_path / "f.gguf"])
        assert plan.digest([tmp_path / "f.gguf"]) == before
        os.utime(tmp_path / "f.gguf", ns=(1, 1))
        assert plan.digest([tmp_path / "f.gguf"]) != before


@pytest.mark.parametrize(
    "journal", ["", "[]", "[" * 100000, '{"plan": "P", "tensor": -1, "row": 0}',
                '{"plan": "P", "tensor": 0, "row": 10000000}', '{"plan": "P", "tensor": 99, "row": 0}',
                '{"plan": "P", "tensor": true, "row": 0}', '{"plan": "P", "tensor": 3, "row": 0}']
)  # fmt: skip
def test_a_damaged_journal_is_one_line(tmp_path, journal):
    (tmp_path / "o.gguf.part").write_bytes(b"short")
    (tmp_path / "o.gguf.part.json").write_text(journal)
    with pytest.raises(DataError, match="--restart"):
        PartFile(tmp_path / "o.gguf", METADATA, SPECS, 32, "P")


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize(("whole", "row"), [(0, 3), (1, 0), (2, 7)])
def test_rows_written_before_a_stop_stay(tmp_path, whole, row, missing):
    """Stopped within a tensor or between two: what was written is not written again. A part that is shorter than its
    journal says, as a file system that lost its end leaves it, is refused: resuming would leave a hole of zeros."""
    specs = [SPECS[1], SPECS[0], SPECS[2]]
    data = [np.arange(1, spec.nbytes // 2 + 1).astype("<u2").tobytes() for spec in specs]
    rows = [spec.elements // DIM for spec in specs]
    about = tmp_path / "o.gguf", METADATA, specs, 32, "P"
    row = min(row, rows[whole] - 1)
    with pytest.raises(KeyboardInterrupt), PartFile(*about) as first:
        for at in range(whole):
            first.write(rows[at], data[at])
        if row:
            first.write(row, data[whole][: row * specs[whole].nbytes // rows[whole]])
        raise KeyboardInterrupt
    if missing and (whole or row):
        os.truncate(tmp_path / "o.gguf.part", (tmp_path / "o.gguf.part").stat().st_size - 1)
        with pytest.raises(DataError, match="shorter"):
            PartFile(*about)
        return
    with PartFile(*about) as second:
        assert (second.tensor, second.row, second.resumed) == (whole, row, bool(whole or row))
        second.write(rows[whole] - row, data[whole][row * specs[whole].nbytes // rows[whole] :])
        for at in range(whole + 1, len(specs)):
            second.write(rows[at], data[at])
    for spec, raw in zip(specs, data, strict=True):
        assert tensor(tmp_path / "o.gguf", spec.name)[1].tobytes() == raw


def test_progress_counts_what_an_earlier_run_wrote(unquantized, tmp_path):
    """Resumed in the middle of a tensor: the bar goes on there, and ends at the whole, not before it."""
    seen, left = [], itertools.count()

    def stop():
        if next(left) == 6:
            raise KeyboardInterrupt

    with open_source(unquantized) as source:
        plan = make_plan(source, Choices("q2"))
        about = (tmp_path / "q.gguf", plan.metadata, [item.spec for item in plan.items], plan.alignment, "P")
        how = {"memory": 1 << 20, "progress": lambda done, total: seen.append((done, total))}
        with pytest.raises(KeyboardInterrupt), PartFile(*about) as going:
            run(plan, source, going, **how, cancelled=stop)
        first, seen[:] = seen[-1][0], []
        with PartFile(*about) as going:
            assert going.row > 0
            run(plan, source, going, **how)
    assert seen[-1] == (plan.nbytes, plan.nbytes) and first < seen[0][0] < plan.nbytes


def test_two_runs_at_once_are_refused(tmp_path):
    first = PartFile(tmp_path / "o.gguf", METADATA, SPECS[:2], 32, "P")
    with pytest.raises(DataError, match="another process"):
        PartFile(tmp_path / "o.gguf", METADATA, SPECS[:2], 32, "P")
    first.__exit__(KeyboardInterrupt, None, None)
