"""What machine code calls: few functions of the C library, and none of libm whose results differ between systems.

Objects for other machines: ``test_cross``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba import cfunc, types

from ds4ref.kernels.cpu import build, library
from ds4ref.kernels.cpu.numba_internals import make_intrinsic
from ds4ref.kernels.cpu.tasks.lang import F32, external, f32p


def planted(name: str) -> Callable[[], Any]:
    """An entry point that calls ``name``, a function or intrinsic of a float."""
    call = make_intrinsic(types.float32, [types.float32], lambda b, v: external(b, name, F32, v))

    def make() -> Any:
        @cfunc("void(int64)")
        def entry(address):
            f32p(address)[0] = call(f32p(address)[0])

        return entry

    return make


def externals(path: Path) -> set[str]:
    """Functions that an object file uses and does not define."""
    lief = pytest.importorskip("lief", reason="reads object files")
    file = lief.parse(path)
    if not isinstance(file, lief.ELF.Binary):
        pytest.skip("the object files are not ELF")
    return {symbol.name for symbol in file.symbols if symbol.name and symbol.shndx == 0} - {"_GLOBAL_OFFSET_TABLE_"}


def test_a_call_of_libm_ends_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(build, "entries", lambda *groups: {"planted": planted("expf")})
    with pytest.raises(SystemExit, match=r"^compiled kernels call expf$"):
        build.build(tmp_path, 0, "engine")
    assert not list(tmp_path.glob("*/*")), "no object is left to be loaded"


def test_this_machines_objects_call_what_is_allowed():
    folders = library.prepare(library.GROUPS).values()
    paths = [path for folder in folders for path in folder.glob("*.o") if path.stat().st_size]
    called = set().union(*map(externals, paths))
    assert {"sched_yield", "usleep", "madvise"} <= called <= build.ALLOWED_EXTERNALS
