"""Runs of the quantizer that are killed, stopped, out of disk, at odds with each other, and gone on with."""

from __future__ import annotations

import errno
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
from ds4ref.errors import DataError, ModelFileError
from ds4ref.weights import open_source
from ds4ref.weights.quantize import part
from ds4ref.weights.quantize.imatrix import Imatrix, TensorImportance, write_imatrix
from ds4ref.weights.quantize.part import PartFile
from ds4ref.weights.quantize.plan import Choices, make_plan
from ds4ref.weights.quantize.run import run
from ds4ref.weights.writer import GGUFWriter, TensorSpec

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
    """A command without its output, what it reads, and the bytes of a run that nothing stopped."""

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
        "splice": ["splice", "--base", str(quantized), "--donor", donor, "--layers", "0-1"],
    }
    found = {}
    for name, argv in commands.items():
        count = 0
        real = PartFile.write

        def counted(self, rows, data, real=real):
            nonlocal count
            count += 1
            real(self, rows, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PartFile, "write", counted)
            assert main([*argv, "-o", str(folder / f"made-{name}.gguf")]) == 0
        found[name] = Way(argv, (folder / f"made-{name}.gguf").read_bytes(), count)
    assert found["gguf"].wanted == quantized.read_bytes() != found["importance"].wanted
    return found


def gone_on(way: Way, out: Path, capsys) -> None:
    """The same command again: it goes on, and gives the bytes of a run that nothing stopped."""
    capsys.readouterr()
    assert main([*way.argv, "-o", str(out)]) == 0
    assert "resuming at tensor" in capsys.readouterr().err
    assert out.read_bytes() == way.wanted
    assert [path.name for path in out.parent.iterdir()] == [out.name]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "share", "number"),
    [("gguf", 0.05, signal.SIGKILL), ("gguf", 0.6, signal.SIGKILL), ("gguf", 0.8, signal.SIGTERM),
     ("gguf", 0.4, signal.SIGINT), ("importance", 0.5, signal.SIGKILL), ("published", 0.3, signal.SIGKILL),
     ("published", 0.9, signal.SIGINT), ("splice", 0.5, signal.SIGKILL), ("splice", 0.95, signal.SIGTERM)],
)  # fmt: skip
def test_a_killed_run_goes_on_and_gives_the_same_bytes(ways, tmp_path, capsys, name, share, number):
    way, out = ways[name], tmp_path / "q.gguf"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    stop = str(max(1, int(share * way.writes)))
    done = subprocess.run([sys.executable, "-c", KILLED, stop, str(int(number)), *way.argv, "-o", str(out)],
                          env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number], done.stderr
    assert not out.exists() and (tmp_path / "q.gguf.part").exists()
    gone_on(way, out, capsys)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 0.97])
@pytest.mark.parametrize("name", ["gguf", "importance", "published", "splice"])
def test_a_full_disk_in_the_midst_of_every_kind_of_run(ways, tmp_path, monkeypatch, capsys, name, share):
    """From some write on the disk is full, as long as the run lasts; then there is room again."""
    way, out, count, real = ways[name], tmp_path / "q.gguf", itertools.count(), os.pwrite

    def full(fd, data, offset):
        if next(count) > max(1, int(share * way.writes)):  # the first one is the directory
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(part, "SYNC_SECONDS", 0)
        patch.setattr(os, "pwrite", full)
        assert main([*way.argv, "-o", str(out)]) == 1
    err = capsys.readouterr().err.splitlines()
    assert "No space left on device" in err[-1] and "run again to go on" in err[-1] and not out.exists()
    gone_on(way, out, capsys)


@pytest.mark.parametrize("name", ["gguf", "importance", "published", "splice"])
def test_a_folder_that_cannot_be_written(ways, tmp_path, monkeypatch, capsys, name):
    """As on a file system that is mounted for reading: whoever asks for a file to write gets EROFS."""
    way, real = ways[name], os.open

    def refused(path, flags, *more, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and os.fspath(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refused)
    assert main([*way.argv, "-o", str(tmp_path / "q.gguf")]) == 1
    err = capsys.readouterr().err
    assert "Read-only file system" in err.splitlines()[-1] and not list(tmp_path.iterdir())


def test_a_part_of_another_plan_is_not_gone_on_with(unquantized, quantized, tmp_path, capsys):
    """Begun anew over a longer part, the file is the same as without one, down to the padding between tensors."""
    out = tmp_path / "q.gguf"
    (tmp_path / "q.gguf.part").write_bytes(b"x" * (quantized.stat().st_size + 1000))
    (tmp_path / "q.gguf.part.json").write_text(json.dumps({"plan": "other", "tensor": 0, "row": 5}))
    command = [str(unquantized), "-o", str(out), "--recipe", "q2"]
    assert main(command) == 1
    assert "belongs to another run" in capsys.readouterr().err
    assert main([*command, "--restart"]) == 0 and out.read_bytes() == quantized.read_bytes()


def test_a_source_that_changed_since_is_another_plan(tmp_path):
    """The same name and size, written again: to go on would join halves of two models."""
    with GGUFWriter(tmp_path / "f.gguf", METADATA, SPECS[1:2]) as out:
        out.write(SPECS[1].name, np.ones(DIM, np.float32))
    with open_source(tmp_path / "f.gguf") as source:
        plan = make_plan(source, Choices("q8"))
        before = plan.digest([tmp_path / "f.gguf"])
        assert plan.digest([tmp_path / "f.gguf"]) == before
        os.utime(tmp_path / "f.gguf", ns=(1, 1))
        assert plan.digest([tmp_path / "f.gguf"]) != before


@pytest.mark.parametrize(
    "journal", ["", "[]", "{}", "[" * 100000, '{"plan": 1}', '{"plan": "P", "tensor": -1, "row": 0}',
                '{"plan": "P", "tensor": 0, "row": 10000000}', '{"plan": "P", "tensor": 99, "row": 0}',
                '{"plan": "P", "tensor": true, "row": 0}', '{"plan": "P", "tensor": 3, "row": 0}']
)  # fmt: skip
def test_a_damaged_journal_is_one_line(tmp_path, journal):
    (tmp_path / "o.gguf.part").write_bytes(b"short")
    (tmp_path / "o.gguf.part.json").write_text(journal)
    with pytest.raises(DataError, match="--restart"):
        PartFile(tmp_path / "o.gguf", METADATA, SPECS, 32, "P")


@pytest.mark.parametrize(("whole", "row"), [(0, 3), (1, 0), (2, 7)])
def test_rows_written_before_a_stop_stay(tmp_path, whole, row):
    """Stopped within a tensor or between two: what was written is not written again, and not lost."""
    specs = [SPECS[1], SPECS[0], SPECS[2]]
    if not whole:
        specs = specs[1:]
    data = [np.arange(1, spec.nbytes // 2 + 1).astype("<u2").tobytes() for spec in specs]
    rows = [spec.elements // DIM for spec in specs]
    about = tmp_path / "o.gguf", METADATA, specs, 32, "P"
    with pytest.raises(KeyboardInterrupt), PartFile(*about) as first:
        for at in range(whole):
            first.write(rows[at], data[at])
        if row:
            first.write(row, data[whole][: row * specs[whole].nbytes // rows[whole]])
        raise KeyboardInterrupt
    with PartFile(*about) as second:
        assert (second.tensor, second.row, second.resumed) == (whole, row, True)
        second.write(rows[whole] - row, data[whole][row * specs[whole].nbytes // rows[whole] :])
        for at in range(whole + 1, len(specs)):
            second.write(rows[at], data[at])
    for spec, raw in zip(specs, data, strict=True):
        assert tensor(tmp_path / "o.gguf", spec.name)[1].tobytes() == raw


@pytest.mark.parametrize(
    ("place", "missing", "says"), [((1, 3), 0, None), ((1, 3), 1, "shorter"), ((1, 0), 1, "shorter")]
)
def test_a_part_has_every_byte_that_its_journal_counts(tmp_path, place, missing, says):
    """A part cut by a file system that lost its end: going on would leave a hole of zeros in a tensor."""
    specs, row = [SPECS[1], SPECS[0]], place[1]
    with pytest.raises(KeyboardInterrupt), PartFile(tmp_path / "o.gguf", METADATA, specs, 32, "P") as first:
        first.write(1, bytes(specs[0].nbytes))
        first.write(row, bytes(4 * DIM * row))
        raise KeyboardInterrupt
    about = tmp_path / "o.gguf", METADATA, specs, 32, "P"
    os.truncate(tmp_path / "o.gguf.part", (tmp_path / "o.gguf.part").stat().st_size - missing)
    if says is None:
        with pytest.raises(KeyboardInterrupt), PartFile(*about) as second:
            assert (second.tensor, second.row) == place
            raise KeyboardInterrupt
    else:
        with pytest.raises(DataError, match=says):
            PartFile(*about)


@pytest.mark.parametrize("rows", [1, 7, 39, 40, 45])
@pytest.mark.parametrize("again", [False, True])
def test_a_kill_before_the_first_sync_loses_nothing(tmp_path, rows, again):
    """Unless the system was started again since: then the bytes may never have reached the disk."""
    specs = [SPECS[0], TensorSpec("other.weight", "Q8_0", (64, 9))]
    about = tmp_path / "o.gguf", METADATA, specs, 32, "P"
    (tmp_path / "o.gguf").write_bytes(b"an older model")
    killed = PartFile(*about)
    for row in range(rows):
        killed.write(1, bytes([row + 1]) * (4 * DIM if row < 40 else 68))
    killed._release()  # as the system does: no sync, no journal
    os.truncate(tmp_path / "o.gguf.part", (tmp_path / "o.gguf.part").stat().st_size + 3)  # in the midst of a write
    with pytest.MonkeyPatch.context() as patch:
        if again:
            patch.setattr(part, "system_start", lambda: "another")
        second = PartFile(*about)
        done = 0 if again else rows
        assert (second.tensor, second.row) == divmod(done, 40) and second.resumed is not again
        for row in range(done, 49):
            second.write(1, bytes([row + 1]) * (4 * DIM if row < 40 else 68))
        assert (tmp_path / "o.gguf").read_bytes() == b"an older model"
        second.finish()
    got = [tensor(tmp_path / "o.gguf", spec.name)[1].reshape(spec.dims[1], -1) for spec in specs]
    assert [row[0] for rows in got for row in rows] == list(range(1, 50))
    assert all((row == row[0]).all() for rows in got for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["o.gguf"]


def test_a_journal_is_there_from_the_beginning(ways, tmp_path, capsys):
    """Killed long before the first sync of a run: the same command goes on with what was written."""
    way, out = ways["gguf"], tmp_path / "q.gguf"
    script = KILLED.replace("part.SYNC_SECONDS = 0", "part.SYNC_SECONDS = 1e9")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    stop = str(way.writes // 2)
    done = subprocess.run([sys.executable, "-c", script, stop, str(int(signal.SIGKILL)), *way.argv, "-o", str(out)],
                          env=env, cwd=ROOT, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == -9 and not out.exists()
    gone_on(way, out, capsys)


def test_progress_counts_what_an_earlier_run_wrote(unquantized, tmp_path):
    """Gone on with in the middle of a tensor: the bar goes on there, and ends at the whole, not before it."""
    seen, left = [], 7

    def stop():
        nonlocal left
        left -= 1
        if not left:
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
    with pytest.raises(DataError, match="another process"):
        first = PartFile(tmp_path / "o.gguf", METADATA, SPECS[:2], 32, "P")
        try:
            PartFile(tmp_path / "o.gguf", METADATA, SPECS[:2], 32, "P")
        finally:
            first.__exit__(KeyboardInterrupt, None, None)


@pytest.mark.parametrize("call", range(12))
def test_a_full_disk_leaves_nothing_under_the_name_and_is_gone_on_from(
    unquantized, quantized, tmp_path, monkeypatch, call
):
    """The Nth write fails as on a full disk; then there is room again."""
    out, numbers, real = tmp_path / "q.gguf", itertools.count(), os.pwrite

    def full(fd, data, offset):
        if next(numbers) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(part, "SYNC_SECONDS", 0)
    with open_source(unquantized) as source:
        plan = make_plan(source, Choices("q2"))
        about = (out, plan.metadata, [item.spec for item in plan.items], plan.alignment, plan.digest([unquantized]))
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(ModelFileError, match="No space left on device"), PartFile(*about) as going:
            run(plan, source, going)
        assert not out.exists()
        monkeypatch.setattr(os, "pwrite", real)
        with PartFile(*about) as going:
            run(plan, source, going)
    assert out.read_bytes() == quantized.read_bytes()


def test_targets_that_cannot_be_written(unquantized, quantized, tmp_path, capsys):
    before = quantized.read_bytes()
    for target, says in (
        (tmp_path / "none" / "o.gguf", "no folder"),
        ("/proc/o.gguf", "cannot write"),
        (quantized, "already exists"),
        (unquantized, "also an input file"),
        (tmp_path, "directory"),
    ):
        assert main([str(unquantized), "-o", str(target), "--recipe", "q2"]) != 0
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1, err
    assert quantized.read_bytes() == before
    (tmp_path / "l.gguf.part").symlink_to(tmp_path / "elsewhere")
    assert main([str(unquantized), "-o", str(tmp_path / "l.gguf"), "--recipe", "q2"]) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_groups_of_a_plan_begin_with_the_most_bytes(unquantized):
    with open_source(unquantized) as source:
        plan = make_plan(source, Choices(families={"up": "Q8_0"}))
    experts, output = 2 * DIM * FF * EXPERTS, DIM * 40
    groups = {row[:3]: row[3:] for row in plan.groups()}
    assert groups["up", "F16 -> Q8_0", 2] == (experts * 2, experts // 32 * 34)
    assert groups["output", "BF16", 1] == (output * 2,) * 2 and groups["table", "I64", 2] == (2 * 80 * 8,) * 2
    results = [row[4] for row in plan.groups()]
    assert results == sorted(results, reverse=True) and sum(results) == plan.nbytes
    assert sum(before for before, _ in groups.values()) == plan.source_nbytes
