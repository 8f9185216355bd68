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


def test_a_machine_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "sysctl_number", lambda name: None)
    assert environment.cache_bytes(tmp_path) is None
    numbers = {"hw.l3cachesize": 0, "hw.perflevel0.l2cachesize": 12582912}
    monkeypatch.setattr(environment, "sysctl_number", numbers.get)
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
    assert [limit for limit, _ in environment._cgroups(tmp_path / "fs")] == wanted
    monkeypatch.setattr(environment, "_cgroups", lambda: [(limit, 0) for limit in wanted])
    assert environment.memory_bytes() == min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *wanted])


def test_memory_that_is_left_to_a_control_group(monkeypatch, tmp_path):
    (tmp_path / "self").write_text("4:memory:/a\n0::/b\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    v1, v2 = tmp_path / "fs" / "memory" / "a", tmp_path / "fs" / "b"
    for folder, limit, stat in ((v1, "memory.limit_in_bytes", "total_rss 700"), (v2, "memory.max", "anon 100")):
        folder.mkdir(parents=True)
        (folder / limit).write_text("5000000\n")
        (folder / "memory.stat").write_text(f"cache 9000000\nrss 5\n{stat}000\nfile 12\n")
    paths = {"/proc/self/cgroup": tmp_path / "self", "/proc/meminfo": tmp_path / "meminfo"}
    monkeypatch.setattr(environment, "Path", lambda path: paths.get(path) or Path(path))
    assert sorted(environment._cgroups(tmp_path / "fs")) == [(5000000, 100000), (5000000, 700000)]
    monkeypatch.setattr(environment, "_cgroups", lambda: [(5000000, 700000), (9 << 30, 0)])
    assert environment.available_bytes() == 4300000, "files do not count: they give way"
    monkeypatch.setattr(environment, "_cgroups", lambda root=None: [])
    assert environment.available_bytes() == 8000 * 1024
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\n")
    assert environment.available_bytes() == environment.memory_bytes()


def test_threads_waits_are_read_where_they_are_counted(tmp_path):
    assert (
        environment.threads_waited(str(tmp_path / "absent")) is None
        and environment.threads_waited(str(tmp_path)) is None
    )
    for name, text in (("7", "5000 3000000000 9"), ("8", "1 2 3"), ("9", "not counted")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert environment.threads_waited(str(tmp_path)) == pytest.approx({"7": 3.0, "8": 2e-9})


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["0x41:0xd87", "0x41:0xd85", "0x41:0xd87", "0x41:0xd85"], "Cortex-A725 + Cortex-X925"),
        (["0x41:0xd4f"] * 2, "Neoverse-V2"),
        (["0x61:0x022"], "AArch64 core 0x61:0x022"),
    ],
)
def test_cores_of_aarch64_are_named_by_their_numbers(parts, name, tmp_path):
    """Linux tells implementer and part there, for each core, and no name."""
    blocks = (part.split(":") for part in parts)
    lines = [
        f"processor\t: {i}\nBogoMIPS\t: 2000.00\nCPU implementer\t: {maker}\nCPU part\t: {part}\n"
        for i, (maker, part) in enumerate(blocks)
    ]
    (tmp_path / "cpuinfo").write_text("\n".join(lines))
    assert environment.cpu_name(tmp_path / "cpuinfo") == name
