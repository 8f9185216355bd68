"""Machine code that is kept: what tells kernels apart, files that are damaged or brought along, processes that need no
compiler."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.driver import cubins
from ds4ref.kernels.cuda.driver.shim import cuda, types

from .stubbed import Done, Stub

pytestmark = pytest.mark.cuda

KINDS = (types.Array(types.float32, 1, "C"), types.int64)


def made(bound: Any, twice: bool = False, **options: Any) -> Any:
    """A kernel whose maker bound a value."""

    @cuda.jit(device=True)
    def inner(x):
        return x + bound

    if twice:

        @cuda.jit(**options)
        def kernel(out, n):
            out[0] = inner(inner(n))
    else:

        @cuda.jit(**options)
        def kernel(out, n):
            out[0] = inner(n)

    return kernel


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made(1), made(2)), (made(1), made(1.0)), (made(np.float32(1)), made(np.float64(1))), (made(1), made(True)),
        (made(np.arange(3)), made(np.arange(3, 6))), (made(np.zeros(4)), made(np.zeros((2, 2)))),
        (made((1, 2)), made((1, (2,)))), (made((12, 3)), made((1, 23))), (made(1), made(1, True)),
        (made(1), made(1, max_registers=64)), (made(1), made(1, fastmath=True)), (made(made(1)), made(made(2))),
    ],
)  # fmt: skip
def test_what_was_bound_tells_kernels_apart(one: Any, other: Any) -> None:
    assert cubins.key_of(one, KINDS) != cubins.key_of(other, KINDS)


def test_the_same_again_has_the_same_key_and_other_types_another_one() -> None:
    key = cubins.key_of(made(1), KINDS)
    assert key == cubins.key_of(made(1), KINDS) and key is not None
    assert key != cubins.key_of(made(1), (KINDS[0], types.int32)) != cubins.key_of(made(1), KINDS[:1])


def test_what_is_not_known_has_no_key() -> None:
    class Unknown:
        pass

    assert cubins.key_of(made(Unknown()), KINDS) is None
    assert cubins.key_of(made((1, [Unknown()])), KINDS) is None


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cubins, "kept", lambda: tmp_path / "cubins" / "mine")
    monkeypatch.delenv("DS4_CUBINS", raising=False)
    return tmp_path / "cubins" / "mine"


CODE = bytes(range(256)) + b"\n\n"


def test_what_is_kept_is_found_for_its_architecture_alone(kept: Path) -> None:
    assert cubins.find("key", "sm_90") is None
    cubins.keep("key", "sm_90", CODE, "entry")
    assert cubins.find("key", "sm_90") == (CODE, "entry")
    assert cubins.find("key", "sm_80") is None and cubins.find("other", "sm_90") is None
    assert [path.name for path in (kept / "sm_90").iterdir()] == ["key.cubin"]


@pytest.mark.parametrize("place", [0, 70, 80, -1])
def test_damage_is_seen(kept: Path, place: int) -> None:
    cubins.keep("key", "sm_90", CODE, "entry")
    path = kept / "sm_90" / "key.cubin"
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[: len(whole) // 2], whole[:64]):
        path.write_bytes(data)
        assert cubins.find("key", "sm_90") is None
    changed = bytearray(whole)
    changed[place] ^= 1
    path.write_bytes(changed)
    found = cubins.find("key", "sm_90")
    assert found is None or found[0] == CODE  # the entry's name: the driver will not find it
    cubins.keep("key", "sm_90", CODE, "entry")
    assert cubins.find("key", "sm_90") == (CODE, "entry")


def test_what_was_brought_along_comes_first(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubins.keep("key", "sm_90", CODE, "entry")
    (kept / "sm_90").rename(tmp_path / "sm_90")
    cubins.keep("key", "sm_90", b"mine", "entry")
    monkeypatch.setenv("DS4_CUBINS", str(tmp_path))
    assert cubins.find("key", "sm_90") == (CODE, "entry")
    (tmp_path / "sm_90" / "key.cubin").write_bytes(b"damaged")
    assert cubins.find("key", "sm_90") == (b"mine", "entry")


def test_code_of_old_sources_is_deleted_but_for_the_last_ones(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        monkeypatch.setattr(cubins, "kept", lambda number=number: kept.parent / str(number))
        cubins.keep("key", "sm_90", CODE, "entry")
        os.utime(kept.parent / str(number), (number, number))
    assert sorted(path.name for path in kept.parent.iterdir()) == ["2", "3", "4", "5"]


def test_a_folder_that_cannot_be_written_is_no_error(kept: Path) -> None:
    kept.parent.write_text("a file")
    cubins.keep("key", "sm_90", CODE, "entry")
    assert cubins.find("key", "sm_90") is None


def answer(stub: Stub, story: Path, folder: Path, before: str = "", **environment: Any) -> Done:
    """One token on the stand-in, with a cache of its own."""
    script = f"""
        import os, sys
        os.environ |= {{"DS4_CACHE_DIR": {str(folder)!r}, **{environment!r}}}
        from ds4ref.kernels.cuda.driver import loading
        from ds4ref.engine import Engine
        compiled = []
        machine_code = loading.machine_code
        def noted(kernel, kinds):
            compiled.append(kernel)
            return machine_code(kernel, kinds)
        loading.machine_code = noted
        {before}
        engine = Engine.open({str(story)!r}, backend="cuda")
        session = engine.session(8)
        session.append(1)
        print(len(compiled))
    """
    return stub.python("-c", textwrap.dedent(script))


def test_a_second_process_compiles_nothing(stub: Stub, story: Path, tmp_path: Path) -> None:
    """But the one kernel that asks whether the compiler works; the code may be brought to another machine."""
    first = answer(stub, story, tmp_path / "one")
    assert first.code == 0, first.err[-2000:]
    kernels = int(first.out)
    assert kernels > 5
    again = answer(stub, story, tmp_path / "one")
    assert (again.code, again.out) == (0, "1\n"), again.err[-2000:]
    assert len(again.named("cuLibraryLoadData")) == kernels and not again.refused()
    (code,) = (tmp_path / "one" / "cubins").iterdir()
    brought = answer(stub, story, tmp_path / "two", DS4_CUBINS=str(code))
    assert (brought.code, brought.out) == (0, "1\n"), brought.err[-2000:]
    spoiled = sorted((code / "sm_90").iterdir())[0].stem
    before = f'from ds4ref.kernels.cuda.driver import cubins; cubins.keep("{spoiled}", "sm_90", b"no code", "x")'
    mended = answer(stub, story, tmp_path / "one", before)
    assert (mended.code, mended.out) == (0, "2\n"), "code that the driver refuses is made anew"
    assert answer(stub, story, tmp_path / "one").out == "1\n"
