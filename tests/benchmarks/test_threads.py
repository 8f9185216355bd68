"""How threads wait, and what is predicted of more of them, on made-up times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import threads
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu.recording import Timeline
from tests.kernels.test_cpu_ops import matrix, normal


def structure(*rows: tuple[int, bool, int, float]) -> threads.Structure:
    """Of (phase, tail, pieces, bytes) a step, each step a group of its own."""
    phases, tails, shares, sizes = (np.array(column) for column in zip(*rows, strict=True))
    return threads.Structure(np.flatnonzero(~tails), phases, tails, shares, sizes)


def test_the_structure_of_a_recording() -> None:
    recording, w = CPU(2).record(), matrix("Q8_0", 512, 2048)
    x, ids = normal(1, 1, 2048), np.array([[1, 0]], np.int32)
    stack = matrix("Q8_0", 96, 512, experts=3)
    y = recording.linear(x, w, "a8")
    recording.seal(recording.expert_linear(y, ids, stack, "a8"))
    shape = threads.structure(recording)
    assert recording.tasks == ["pack_inputs", "group_pairs", "linear_rows", "pack_inputs", "expert_linear_rows"]
    assert shape.tails.tolist() == [False, False, False, True, False]
    assert shape.phases.tolist() == [0, 0, 1, 1, 2] and shape.heads.tolist() == [0, 1, 2, 4]
    assert shape.bytes.tolist() == [0, 0, 512 * w.row_bytes, 0, 2 * 96 * stack.row_bytes]
    assert shape.shares[[0, 3]].tolist() == [1, 1] and shape.shares[2] > 2


def test_how_long_threads_wait() -> None:
    """Two phases and a tail that thread 1 runs for 10: thread 0 leaves them at 50 and 100, thread 1 at 60 and 90."""
    shape = structure((0, False, 4, 0), (0, True, 1, 0), (1, False, 4, 0))
    times = Timeline(np.array([0, 60, 70]), np.array([50, 70, 100]), np.array([1, 0, 3]), np.array([0, 1, 0]))
    trace = np.array([[[1, 50], [0, 0], [70, 100]], [[5, 60], [0, 0], [70, 90]]])
    result = threads.waiting(times, trace, shape)
    assert result.uneven == pytest.approx((10 + 10) / 99)
    assert result.waiting == pytest.approx((20 + 0 + 10) / 2 / 99)


def test_a_late_thread_is_not_waited_for() -> None:
    """It leaves the first group when that is long finished."""
    shape = structure((0, False, 4, 0), (1, False, 4, 0))
    times = Timeline(np.array([1, 50]), np.array([50, 101]), np.array([1, 2]), np.array([0, 0]))
    trace = np.array([[[1, 50], [50, 101]], [[80, 81], [81, 101]]])
    result = threads.waiting(times, trace, shape)
    assert result.uneven == 0 and result.waiting == 0
    trace[1, 0] = 0  # or never comes by
    assert threads.waiting(times, trace, shape) == result


def test_a_token_of_more_threads() -> None:
    shape = structure((0, False, 100, 8e6), (0, True, 1, 0), (1, False, 8, 0))
    seconds, machine = np.array([8e-3, 1e-4, 8e-4]), threads.Machine(2.0, 1.0, 0.5)
    four = threads.predicted(seconds, shape, 4, machine)
    assert four["weights_ms"] == pytest.approx(4)  # 8 MB at 2 GB/s, more than 8 ms / 4
    assert four["small_ms"] == pytest.approx(0.2) and four["tails_ms"] == pytest.approx(0.1)
    assert four["barriers_ms"] == pytest.approx(2 * 3e-3) and four["ms"] == pytest.approx(4.306)
    one, five, many = (threads.predicted(seconds, shape, n, machine) for n in (1, 5, 64))
    assert one["weights_ms"] == pytest.approx(8) and one["small_ms"] == pytest.approx(0.8)
    assert five["small_ms"] == pytest.approx(0.2)  # eight pieces: two rounds, as of four threads
    assert many["small_ms"] == pytest.approx(0.1) and many["tails_ms"] == four["tails_ms"]


def test_a_job_of_barriers_has_as_many_phases() -> None:
    recording = threads.barriers(3, 10)
    assert (recording.timeline().waits != 0).sum() == recording.length == 10
    recording.replay()


def test_huge_pages_of_a_file_that_is_not_mapped(tmp_path: Path) -> None:
    pages = threads.huge_pages(str(tmp_path / "none"))
    assert pages in (None, {"resident_kb": 0, "huge_kb": 0})


def test_the_whole_on_the_embedded_sizes(nano_path: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "threads.json"
    arguments = ["-m", nano_path, "--threads", "1", "2", "--at", "40", "--tokens", "2", "--rounds", "2"]
    assert threads.main([*arguments, "--predict", "32", "-o", str(out)]) == 0
    assert "predicted for 32 threads" in capsys.readouterr().out
    document = json.loads(out.read_text())
    assert [row["threads"] for row in document["rows"]] == [1, 2]
    assert all(0 <= share <= 1 for share in document["rows"][1]["waiting"] + document["rows"][1]["uneven"])
    assert document["huge_pages"] is None or document["huge_pages"]["resident_kb"] > 0
