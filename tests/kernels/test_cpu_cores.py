"""How many threads the machine is good for: affinity, and what control groups grant, read from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4ref.kernels.cpu.library import available_cores

GROUPS = "sys/fs/cgroup"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("limits", "cores"),
    [
        ({"a/b": "200000 100000"}, 2),
        ({"a/b": "150000 100000"}, 2),  # rounded up: half a core's time would be lost otherwise
        ({"a/b": "1000 100000"}, 1),
        ({"a/b": "1600000 100000"}, 8),  # more than the mask
        ({"a/b": "max 100000", "a": "300000 100000"}, 3),  # a group around ours has the limit
        ({"a/b": "400000 100000", "a": "300000 100000"}, 3),
        ({".": "50000 25000"}, 2),  # inside a container: its own group is mounted as the root
        ({"a/b": "max 100000"}, 8),
        ({"a/c": "100000 100000"}, 8),  # a neighbour's
        ({"a/b": "nonsense"}, 8),
        ({}, 8),
    ],
)
def test_version_2(tmp_path: Path, limits: dict[str, str], cores: int):
    files = {f"{GROUPS}/{group}/cpu.max": text + "\n" for group, text in limits.items()}
    assert available_cores(tree(tmp_path, files | {"proc/self/cgroup": "0::/a/b\n"})) == cores


@pytest.mark.parametrize(("quota", "cores"), [("250000", 3), ("-1", 8), ("900000", 8)])
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1(tmp_path: Path, quota: str, cores: int, mount: str):
    lines = f"5:memory:/a\n3:{mount}:/a/b\n2:cpuset:/\n0::/\n"
    folder = f"{GROUPS}/{mount}/a/b"
    files = {f"{folder}/cpu.cfs_quota_us": quota + "\n", f"{folder}/cpu.cfs_period_us": "100000\n"}
    assert available_cores(tree(tmp_path, files | {"proc/self/cgroup": lines})) == cores


def test_where_there_are_no_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert available_cores(tmp_path) == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert available_cores(tmp_path) == 5
