"""``ds4-bench experts``: rows of a hand-made recording, and what is no recording."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.residency.simulation import Routing
from ds4ref.speed_bench import cli


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """Experts 0, 1, 0, 2, 0 of one layer, of 1 MB each."""
    path = tmp_path / "r.npz"
    Routing(np.array([0, 1, 0, 2, 0], np.int16).reshape(5, 1, 1), np.array([0]), np.array([10**6]), 4).write(path)
    return str(path)


def test_hits_bytes_and_tokens_a_second(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experts", recording, "--cache", "2MB,4MB", "--disk", "100MB", "--compute", "2", "--json"]
    assert cli.main(command) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["cache_bytes"], row["order"]) for row in rows] == [
        (size, order) for size in (2_000_000, 4_000_000) for order in ("recent", "fading", "oracle")
    ]
    assert all(row["hit_rate"] == 0.4 and row["bytes_per_token"] == 600_000 for row in rows)
    assert all(row["tps"] == pytest.approx(1 / (0.006 + 0.002)) for row in rows)


def test_the_table(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experts", recording]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cache,", "GB", "order", "hits,", "%", "MB", "a", "token"] and len(lines) == 1 + 4 * 3
    assert lines[-1].split() == ["0.003", "oracle", "40.0", "0.6"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "one file of recorded routing is needed"),
        (["{r}", "--cache", "2 cups"], "expected a size such as 32GB or 512MiB"),
        (["{r}", "--cache", "0"], "a size such as 32GB"),
        (["{r}x"], "not recorded routing"),
    ],
)
def test_wrong_usage(recording: str, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experts", *(arg.format(r=recording) for arg in argv)]) in (1, 2)
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
