"""How many threads the machine is good for: affinity, kinds of cores, quotas of control groups; on made-up systems."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.kernels import system
from ds4ref.kernels.system import available_cores

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


def capacities(*values: int) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{core}/cpu_capacity": f"{value}\n" for core, value in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "cores"),
    [
        ((718, 718, 718, 718, 1017, 1017, 1020, 1024), 4),  # as on GB10: equal cores, different clocks
        ((1007, 1024, 1024, 1017, 1010, 1024, 1024, 1024), 8),  # Grace: one kind
        ((1024,) * 8, 8),
        ((446, 446, 446, 446, 871, 871, 871, 1024), 4),  # a telephone's: the fastest alone would be too few
        ((819, 820, 1024, 1, 1, 1, 1, 1), 2),  # FAST itself
        ((800, 799, 1000, 1, 1, 1, 1, 1), 2),  # exactly
        ((400, 1024), 8),  # what some cores do not tell says nothing
    ],
)
def test_efficiency_cores_are_left_out(tmp_path: Path, values: tuple[int, ...], cores: int):
    assert available_cores(tree(tmp_path, capacities(*values))) == cores


def test_a_quota_caps_performance_cores(tmp_path: Path):
    group = {f"{GROUPS}/a/cpu.max": "300000 100000\n", "proc/self/cgroup": "0::/a\n"}
    assert available_cores(tree(tmp_path, capacities(*[700] * 4, *[1024] * 4) | group)) == 3


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[int, int]]]:
    """A C library with macOS's two functions, called as the real one is; returns the calls for a quality of service."""

    def make(values: dict[str, bytes]) -> list[tuple[int, int]]:
        sizes = ctypes.POINTER(ctypes.c_size_t)

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, sizes, ctypes.c_void_p, ctypes.c_size_t)
        def sysctlbyname(name, old, size, new, new_size):
            value = values.get(name.decode())
            if value is None or new or new_size or (old and size[0] < len(value)):
                return -1
            if old:
                ctypes.memmove(old, value, len(value))
            size[0] = len(value)
            return 0

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_int)
        def pthread_set_qos_class_self_np(kind, priority):
            classes.append((kind, priority))
            return 0

        classes: list[tuple[int, int]] = []
        functions = {"sysctlbyname": sysctlbyname, "pthread_set_qos_class_self_np": pthread_set_qos_class_self_np}
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(system, "_libc", lambda: SimpleNamespace(**functions))
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 12)
        return classes

    return make


def test_a_macs_threads_are_its_performance_cores(tmp_path: Path, mac):
    mac({"hw.perflevel0.physicalcpu": (8).to_bytes(4, sys.byteorder)})
    assert available_cores(tmp_path) == 8 and system.usable_cores() == 12


def test_sysctl_reads_texts_and_numbers_of_both_sizes(mac):
    mac({"a": b"Apple M1\0", "b": (7).to_bytes(8, sys.byteorder), "c": (-1 & 0xFFFFFFFF).to_bytes(4, sys.byteorder)})
    assert system.sysctl("a") == b"Apple M1\0" and system.sysctl("d") == b"" and system.sysctl_number("d") is None
    assert (system.sysctl_number("b"), system.sysctl_number("c")) == (7, 0xFFFFFFFF)


def test_workers_ask_for_performance_cores(mac):
    """Every worker for itself; the calling thread belongs to somebody else."""
    from ds4ref.kernels.cpu.workers import Workers

    pool = Workers(4)
    pool.load()
    classes = mac({})
    pool._start()
    pool.close()
    assert classes == [(0x21, 0)] * 3
