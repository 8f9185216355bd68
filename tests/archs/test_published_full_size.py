"""DeepSeek V4 Flash as a folder of the published size, 160 GB in 46 shards, made of holes: opened in place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.archs.deepseek4.published import EXPERT_NAMES, MTP_NAMES
from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.archs.deepseek4.tensors import MTP, expected_tensors, mtp_slots
from ds4ref.kernels.formats import FORMATS
from ds4ref.nano import checkpoint
from ds4ref.nano.recipe import slice_shape
from ds4ref.weights.safetensors_writer import PlannedTensor, write_folder, write_json
from tests.system import need_mapped

SCRIPT = """
import json, sys, time
import numpy
from ds4ref.engine import Engine
def anonymous():  # kB of memory that is no file's; not what the parent left
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))
began, cpu = time.perf_counter(), time.process_time()
with Engine.open(sys.argv[1], threads=2) as engine:
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    opened = anonymous()
    if sys.argv[2] == "eval":
        session = engine.session(16)
        session.sync([1, 2])
        assert numpy.isfinite(session.eval(3)).all()
    stacks = [layer.ffn_down_exps.data for layer in engine.model.weights.layers]
    print(json.dumps({
        "seconds": seconds, "cpu": cpu, "opened": opened, "after": anonymous(),
        "tensors": len(engine.source.checkpoint.tensors), "files": len(engine.source.checkpoint.files),
        "size": engine.source.size, "made": engine.source.made_bytes,
        "in_place": sum(type(stack).__name__ == "ApartRows" for stack in stacks),
    }))
"""


def planned(shape: ModelShape) -> Iterator[PlannedTensor]:
    """Every tensor of the folder as a hole, with the block for multi-token prediction."""
    infos = {
        spec.name: SimpleNamespace(name=spec.name, shape=spec.dims[::-1], fmt=FORMATS[spec.fmt])
        for spec in expected_tensors(shape, "q4")
    }
    source = SimpleNamespace(tensors=infos)
    plans = list(checkpoint.plans(source, shape))
    for slot in mtp_slots(shape):
        ours = slot.name.removeprefix(MTP)
        theirs = [MTP_NAMES[ours]] if ours in MTP_NAMES else []
        dims = slot.dims[::-1]
        if ours in EXPERT_NAMES:
            theirs, dims = [f"ffn.experts.{e}.{EXPERT_NAMES[ours]}.weight" for e in range(shape.n_experts)], dims[1:]
        for name in theirs:
            info = SimpleNamespace(name=f"blk.0.{ours}", shape=dims, fmt=FORMATS["F32"])
            if ours in EXPERT_NAMES:
                plans += checkpoint._scaled(MTP + name.removesuffix(".weight"), dims, "I8", lambda: None)
            else:
                plans += checkpoint._plain(source, info, MTP + name)
    return (plan._replace(make=None) for plan in plans)


def write(folder: Path, shape: ModelShape, shard_bytes: int) -> None:
    folder.mkdir()
    try:
        write_folder(folder, list(planned(shape)), shard_bytes)
    except Exception as error:
        pytest.skip(f"this file system takes no sparse files of this size: {error}")
    write_json(folder / "config.json", checkpoint.config(shape))
    need_mapped(*folder.glob("*.safetensors"))


def opened(folder: Path, what: str) -> dict:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), what],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        timeout=300,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def occupied(folder: Path) -> int:
    return sum(path.stat().st_blocks for path in folder.iterdir()) * 512


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: own memory is unknown")
def test_a_slice_with_real_dimensions_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    """Four layers of 8 experts, 1.4 GB, decoded: of zeros, so that a token reads them all."""
    write(tmp_path / "slice", slice_shape(4, 8, 4096), 128 << 20)
    result = opened(tmp_path / "slice", "eval")
    assert result["files"] > 5 and result["in_place"] == 4
    assert result["made"] == 3 * 4096 * 6 * 4  # the routing tables, whose integers are wider in the files
    assert result["after"] < 300 << 10 < result["size"] >> 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: own memory is unknown")
def test_the_whole_folder_opens_in_seconds(tmp_path: Path) -> None:
    """And decodes, with advice for experts, as a file larger than memory does."""
    write(tmp_path / "flash", FLASH, 3_520_000_000)
    assert occupied(tmp_path / "flash") < 64 << 20
    result = opened(tmp_path / "flash", "eval")
    print(result)
    assert result["tensors"] > 69_000 and result["files"] == 46 and result["size"] > 158e9
    assert result["in_place"] == 43 and result["made"] == 3 * FLASH.vocab * 6 * 4
    assert result["cpu"] < 5  # seconds of this process: another one's do not count
    assert result["opened"] < 512 << 10 and result["after"] < 1 << 20
    assert occupied(tmp_path / "flash") < 64 << 20
