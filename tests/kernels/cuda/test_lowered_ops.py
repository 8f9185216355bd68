"""Every op of the CUDA backend as a GPU would run it: compiled for sm_90, its PTX run here, against the reference.

Operands are those of ``tests/kernels/test_ops.py``. Threads and blocks are as many as on a GPU. Both orders of threads
have to give the same bits, or results depend on who is first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kernels.formats import Matrix
from kernels.ops import OPS

from .. import reference
from ..test_cpu_ops import assert_close
from ..test_ops import EXACT, Case, bits, drawn
from .hosted import available, hosted

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(available() is not None, reason=str(available()))]

ORDERED = {"count"}
"""Ops whose atomics may come in any order without a difference."""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with hosted() as opened:
        yield opened


@pytest.fixture(scope="module")
def cuda(driver: Any) -> Any:
    from kernels.cuda import CUDA

    return CUDA()


def placed(ops: Any, args: list[Any]) -> list[Any]:
    """Operands where ``ops`` can read them."""
    return [ops.place(v) if isinstance(v, Matrix) else ops.upload(v) if isinstance(v, np.ndarray) else v for v in args]


def results(case: Case, ops: Any, args: list[Any]) -> list[np.ndarray]:
    """What the op gives and writes, on the host."""
    return case.seen([ops.host(out) for out in case.run(ops, args)])


@pytest.mark.parametrize("name", sorted(OPS))
def test_op_against_the_reference(name: str, cuda: Any, driver: Any) -> None:
    for case in drawn(name):
        wanted = case.seen(case.run(reference, case.copies()))
        both = []
        for backward in (False, True):
            driver.backward = backward
            both.append(results(case, cuda, placed(cuda, case.copies())))
        driver.backward = False
        for forward, backward, w in zip(*both, wanted, strict=True):
            assert forward.shape == w.shape and forward.dtype == w.dtype
            assert bits(forward) == bits(backward), "depends on the order of threads"
            if w.dtype.kind != "f" or name in EXACT:
                np.testing.assert_array_equal(forward, w)
            else:
                assert_close(forward, w, 6e-6)
