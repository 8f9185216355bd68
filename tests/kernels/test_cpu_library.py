"""The compiled kernels: built once, found again, never stale, safe when two processes want them at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ds4ref.kernels.cpu import library
from ds4ref.kernels.cpu.tasktable import Task

ROOT = Path(__file__).resolve().parents[2]
USE = (
    "import numpy as np, sys; from ds4ref.kernels.cpu import CPU; cpu = CPU();"
    "print(cpu.round_f16(np.float32([1.0001]))[0], 'numba' in sys.modules)"
)


def start(cache: Path | None = None, use: str = USE, **environment: str) -> subprocess.Popen:
    env = dict(os.environ, **environment)
    if cache is not None:
        env["DS4_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-c", use]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, timeout: float = 300) -> tuple[str, str, int]:
    out, err = process.communicate(timeout=timeout)
    return out.strip(), err.strip(), process.returncode


def test_a_warm_start_does_not_import_numba():
    assert finish(start()) == ("1.0 False", "", 0)


def test_use_keeps_a_build_from_being_swept():
    """Those that were not used for a week are deleted."""
    home = library.objects()
    os.utime(home, (0, 0))
    assert library.objects() == home and home.stat().st_mtime > 0


def test_threads_that_need_code_at_once_get_the_same():
    """A second copy that is dropped frees what another thread runs."""
    use = ("from concurrent.futures import ThreadPoolExecutor as Pool; from ds4ref.kernels.cpu.library import library;"
           "print(len(set(map(id, Pool(8).map(lambda _: library(), range(8))))))")  # fmt: skip
    assert finish(start(use=use)) == ("1", "", 0)


def test_the_key_covers_sources_and_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    key = library.cache_key()
    assert key == library.cache_key()
    monkeypatch.setenv("DS4_SIMD_TIER", "C")
    assert library.cache_key() != key
    monkeypatch.undo()
    copy = tmp_path / "kernels"
    for path in (path for kind in ("*.py", "*.npz") for path in (ROOT / "kernels").rglob(kind)):
        target = copy / path.relative_to(ROOT / "kernels")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    monkeypatch.setattr(library, "KERNELS", copy)
    assert library.cache_key() == key
    for name in (
        "cpu/simd/q8_0.py",
        "cpu/tasks/lang.py",
        "formats/fp4.py",
        "formats/codebooks.npz",
    ):  # callees in other files count too
        before = library.cache_key()
        with open(copy / name, "a") as file:
            file.write("# edited\n")
        assert library.cache_key() != before
    before = library.cache_key()
    (copy / "reference" / "norm.py").write_text("")  # not compiled code
    assert library.cache_key() == before


@pytest.mark.parametrize("what", ["numba", "llvmlite", "python", "processor", "features"])
def test_the_key_covers_what_compiles_and_for_what(what: str, monkeypatch: pytest.MonkeyPatch):
    """Another compiler or processor: with the old key stale machine code runs, or an instruction that is not there."""
    import llvmlite.binding as ll

    key, version, features = library.cache_key(), library.importlib.metadata.version, ll.get_host_cpu_features()
    features["avx512-of-tomorrow"] = True
    target, name, value = {
        "python": (library.sys, "version", "3.99"),
        "processor": (ll, "get_host_cpu_name", lambda: "another"),
        "features": (ll, "get_host_cpu_features", lambda: features),
    }.get(what, (library.importlib.metadata, "version", lambda name: version(name) + ".post1" * (name == what)))
    monkeypatch.setattr(target, name, value)
    assert library.cache_key() != key


def test_damage_is_noticed(tmp_path: Path):
    for path in library.objects().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert library.complete(tmp_path) and not library.complete(tmp_path / "nothing")
    code = next(tmp_path.glob("*.o"))
    whole = code.read_bytes()
    for damaged in (whole[:-100], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]):
        code.write_bytes(damaged)
        assert not library.complete(tmp_path)
    code.write_bytes(whole)
    code.with_suffix(".txt").unlink()
    assert not library.complete(tmp_path)


def test_a_failed_build_is_one_line_and_leaves_nothing(tmp_path: Path):
    process = start(tmp_path, DS4_SIMD_TIER="Z")
    out, err, code = finish(process)
    last = err.splitlines()[-1]
    assert code == 1 and out == "" and "KernelError: compiling the CPU kernels failed:" in last and "A, B, N, C" in last
    assert err.splitlines()[0].startswith("ds4ref: compiling the CPU kernels for this machine, once")
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["lock"]


@pytest.mark.slow
def test_two_processes_on_a_cold_cache_compile_once(tmp_path: Path):
    processes = [start(tmp_path) for _ in range(2)]
    told = []
    for process in processes:
        out, err, code = finish(process)
        told.append(re.sub("[0-9]+", "N", err).splitlines())
        assert (out, code) == ("1.0 False", 0)
    assert sorted(told) == [
        ["ds4ref: another process is compiling kernels, waiting: N s",
         "ds4ref: waited N s for the process that compiled them"],
        ["ds4ref: compiling the CPU kernels for this machine, once",
         "ds4ref: compiled N CPU kernels in N s"],
    ]  # fmt: skip
    builds = [path for path in (tmp_path / "kernels").iterdir() if path.is_dir()]
    assert len(builds) == 1 and library.complete(builds[0])
    assert builds[0].name == library.cache_key()
    # damage to a build is repaired, not loaded
    next(builds[0].glob("*.o")).write_bytes(b"")
    out, err, code = finish(start(tmp_path))
    assert (out, len(err.splitlines()), code) == ("1.0 False", 2, 0)


@pytest.mark.parametrize(
    ("name", "group"),
    [("rope", "engine"), ("attend", "dense"), ("rows.Q8_0.float", "Q8_0"), ("rows.Q8_0.a8", "Q8_0.a8"),
     ("size.floats", "engine"), ("gemm_multiply.Q4_K.q8k.3", "Q4_K.q8k"), ("quantize.Q8_0", "quantize")],
)  # fmt: skip
def test_entry_points_belong_to_one_group(name: str, group: str):
    assert library.group_of(name) == group


def test_rounded_inputs_need_more_kernels():
    assert library.groups_for(["Q8_0", "F16", "dense"]) == ["engine", "dense", "F16", "Q8_0"]
    assert library.groups_for(["Q8_0", "F16", "integers"]) == ["engine", "integers", "F16", "Q8_0", "Q8_0.a8"]


def test_every_task_of_a_group_exists():
    listed = [task for tasks in library.TASKS.values() for task in tasks.split()]
    assert len(listed) == len(set(listed)) and set(listed) <= set(Task.registry)


def test_groups_hold_every_entry_point_once():
    """Also one that no format has, and a format without kernels of its own."""
    loaded = {group: set(library.library(group)._addresses) for group in library.GROUPS}
    assert sum(map(len, loaded.values())) == len(set().union(*loaded.values()))
    assert all(library.group_of(name) == group for group, names in loaded.items() for name in names)
    assert loaded["I32"] == set() and not library.available("rows.I32.float") and library.available("rows.F16.float")
    with pytest.raises(library.KernelError, match="no rows.F16.q8k"):
        library.entry_address("rows.F16.q8k")


@pytest.mark.slow
def test_a_model_compiles_what_it_needs(tmp_path: Path):
    """Its formats with its family's kernels and the engine's, in one go."""
    use = USE.replace("CPU()", "CPU(); cpu.load(None, ['F16', 'deepseek4'])")
    env = dict(os.environ, DS4_CACHE_DIR=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", use], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "1.0" and len(done.stderr.splitlines()) == 2
    names = {path.name for path in (tmp_path / "kernels").iterdir()} - {"lock"}
    assert names == set(library.cache_keys(["engine", "F16", "deepseek4"]).values())


@pytest.mark.slow
def test_an_unwritable_cache_costs_a_line_and_a_compilation(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # a file where the cache directory should be: unwritable for root, too
    out, err, code = finish(start(blocked))
    assert (out, code) == ("1.0 False", 0)
    assert len(err.splitlines()) == 3 and err.startswith("ds4ref: cannot write the kernel cache")


SCATTERED = """
import ctypes, threading
from ds4ref.kernels.cpu import library
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
begun = threading.Event()

def reserve():
    for _ in range(20000):
        libc.mmap(None, 3 << 30, 0, 0x4022, -1, 0)  # private, anonymous, never used
        begun.set()

threading.Thread(target=reserve).start()
begun.wait()
print(sum(len(library.library(group)._addresses) for group in library.GROUPS))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="flags of Linux's mmap")
def test_kernels_load_where_their_sections_lie_gigabytes_apart():
    """As beside a GPU's driver, which reserves most of the address space; an offset of 32 bits made LLVM abort."""
    library.prepare(library.GROUPS)
    done = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and int(done.stdout) > 80, done.stderr
