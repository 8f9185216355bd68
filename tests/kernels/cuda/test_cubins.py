"""Machine code that is kept: what tells kernels apart, files that are damaged. What commands make of it: test_stub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.driver import cubins
from ds4ref.kernels.cuda.driver.shim import cuda, types

pytestmark = pytest.mark.cuda

KINDS = (types.Array(types.float32, 1, "C"), types.int64)
CODE = bytes(range(256)) + b"\n\n"


def made(bound: Any, twice: bool = False, **options: Any) -> Any:
    """A kernel whose maker bound a value."""

    @cuda.jit(device=True)
    def inner(x):
        return x + bound

    @cuda.jit(**options)
    def once(out, n):
        out[0] = inner(n)

    @cuda.jit(**options)
    def kernel(out, n):
        out[0] = inner(inner(n))

    return kernel if twice else once


def test_what_was_bound_tells_kernels_apart() -> None:
    class Unknown:
        pass

    kernels = [
        made(1), made(2), made(1.0), made(np.float32(1)), made(np.float64(1)), made(True), made(np.arange(3)),
        made(np.arange(3, 6)), made(np.zeros(4)), made(np.zeros((2, 2))), made((1, 2)), made((1, (2,))),
        made((12, 3)), made((1, 23)), made(1, True), made(1, max_registers=64), made(1, fastmath=True),
        made(made(1)), made(made(2)),
    ]  # fmt: skip
    keys = [cubins.key_of(kernel, KINDS) for kernel in kernels]
    keys += [cubins.key_of(made(1), (KINDS[0], types.int32)), cubins.key_of(made(1), KINDS[:1])]
    assert len(set(keys)) == len(keys) and None not in keys
    assert cubins.key_of(made(1), KINDS) == keys[0]
    assert cubins.key_of(made(Unknown()), KINDS) is cubins.key_of(made((1, [Unknown()])), KINDS) is None


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cubins, "kept", lambda: tmp_path / "cubins" / "mine")
    return tmp_path / "cubins" / "mine"


def test_what_is_kept_is_found_whole_for_its_architecture_alone(kept: Path) -> None:
    assert cubins.find("key", "sm_90") is None
    cubins.keep("key", "sm_90", CODE, "entry")
    assert cubins.find("key", "sm_90") == (CODE, "entry")
    assert cubins.find("key", "sm_80") is None and cubins.find("other", "sm_90") is None
    path = kept / "sm_90" / "key.cubin"
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[:64], whole[:80] + b"?" + whole[81:]):
        path.write_bytes(data)
        assert cubins.find("key", "sm_90") is None
    kept.parent.rename(kept.parent.with_name("old"))
    kept.parent.write_text("a file")  # where nothing can be written
    cubins.keep("key", "sm_90", CODE, "entry")


def test_code_of_old_sources_is_deleted_but_for_the_last_ones(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        monkeypatch.setattr(cubins, "kept", lambda number=number: kept.parent / str(number))
        cubins.keep("key", "sm_90", CODE, "entry")
        os.utime(kept.parent / str(number), (number, number))
    assert sorted(path.name for path in kept.parent.iterdir()) == ["2", "3", "4", "5"]
