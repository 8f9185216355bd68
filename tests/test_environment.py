"""What the machine says of itself, from made-up system files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ds4ref import environment


@pytest.fixture
def cores(tmp_path, monkeypatch):
    """A machine of four cores: two share each of two third-level caches, the second level is everyone's own."""
    for core in range(4):
        for index, (level, size, shared) in enumerate(((1, "32K", str(core)), (2, "1M", str(core)),
                                                       (3, "32768K", "0-1" if core < 2 else "2-3"))):  # fmt: skip
            folder = tmp_path / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{value}\n")

    def use(*allowed):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed), raising=False)
        return environment.cache_bytes(tmp_path)

    return use


def test_the_last_level_cache_of_the_cores_in_use(cores):
    assert cores(0) == cores(0, 1) == cores(2, 3) == 32 << 20
    assert cores(0, 1, 2, 3) == cores(1, 2) == 64 << 20


def test_without_a_third_level_the_second_is_the_last(cores, tmp_path):
    for core in range(4):
        (tmp_path / f"cpu{core}" / "cache" / "index2" / "size").write_text("what\n")
    assert cores(0) == 1 << 20 and cores(0, 1, 2) == 3 << 20


def test_a_machine_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_sysctl", lambda name: "")
    assert environment.cache_bytes(tmp_path) is None
    said = {"hw.l3cachesize": "0", "hw.perflevel0.l2cachesize": "12582912"}
    monkeypatch.setattr(environment, "_sysctl", lambda name: said.get(name, ""))
    assert environment.cache_bytes(tmp_path) == 12 << 20


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/user/me\n", {"user/me/memory.max": "max", "user/memory.max": "3000"}, [3000]),
        (
            "0::/user/me\n",
            {"user/me/memory.max": "500", "user/memory.max": "3000", "memory.max": "9000"},
            [500, 3000, 9000],
        ),
        ("4:memory:/job\n1:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "700", "cpu/job/memory.max": "1"}, [700]),
        ("0::/\n", {"memory.max": "80"}, [80]),
        ("1:cpu,cpuacct:/\n", {"memory.max": "80"}, []),
    ],
)
def test_memory_limits_of_the_groups_around(groups, limits, wanted, tmp_path, monkeypatch):
    """Version 2 (an empty name) and version 1 (memory): a container gets no more than its own share."""
    (tmp_path / "self").write_text(groups)
    for name, text in limits.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    paths = {"/proc/self/cgroup": tmp_path / "self"}
    monkeypatch.setattr(environment, "Path", lambda path: paths.get(path) or Path(path))
    assert environment._cgroup_limits(tmp_path / "fs") == wanted
    monkeypatch.setattr(environment, "_cgroup_limits", lambda: wanted)
    assert environment.memory_bytes() == min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *wanted])


def test_cores_are_named_as_ranges():
    assert environment.ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8" and environment.ranges([3]) == "3"
    assert environment.ranges([0, 2, 4]) == "0,2,4" and environment.ranges([]) == ""


def test_a_host_is_told_apart_without_its_name(monkeypatch):
    names = iter(["alpha", "beta", "alpha"])
    monkeypatch.setattr(environment.platform, "node", lambda: next(names))
    first, second, third = (environment.host() for _ in range(3))
    assert first == third != second and "alpha" not in first and len(first) == 12
