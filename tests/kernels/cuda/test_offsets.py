"""Weights of more than 4 GiB: what lies behind 2^31 and 2^32 bytes is found by every kind of product.

The array takes no memory but for what is written: large blocks of the tests' driver are zeros that nobody has touched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.products import dispatch
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.reference import Reference
from tests.marking import sampled

from .device import cuda
from .test_products import close, drawn, host, normal, scratch, stream, unwritten, uploaded

pytestmark = pytest.mark.cuda

FAR = 9 << 29
"""Bytes of a whole array, 4.5 GiB."""


def stack(fmt: str, rows: int, n: int) -> tuple[Any, list[int], Matrix]:
    """A stack with three experts, at its beginning, beyond 2^31 and beyond 2^32 bytes; their numbers; the three."""
    few = drawn(fmt, rows, n, 3)
    size = rows * few.row_bytes
    numbers = [0, (5 << 29) // size, FAR // size - 1]
    data = cuda.backend.array(numbers[2] + 1, rows, few.row_bytes, dtype=np.uint8)
    for number, values in zip(numbers, few.data, strict=True):
        cuda.backend.fill(data[number], values)
    assert numbers[1] * size > 1 << 31 and numbers[2] * size > 1 << 32 and len(data) <= 1024
    return data, numbers, few


WAYS = [
    (*kind, in_tiles) for in_tiles in (True, False) for kind in (("Q2_K", "q8k"), ("Q8_0", "float"), ("F16", "float"))
]

EACH_KERNEL = [("Q2_K", "q8k", True), ("Q8_0", "float", True), ("Q2_K", "q8k", False), ("F16", "float", False)]


@pytest.mark.parametrize(("fmt", "act", "in_tiles"), sampled(WAYS, EACH_KERNEL, pytest.mark.slow))
def test_experts_beyond_four_gibibytes(fmt: str, act: str, in_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "worth_sorting", lambda pairs, experts: in_tiles)
    n = 8192
    data, numbers, few = stack(fmt, (5 << 20) // FORMATS[fmt].row_bytes(n), n)
    x, ids = normal(2, n), np.array([[2, 1], [0, 2]], np.int32)
    out, error = unwritten(4 * few.rows), uploaded(np.zeros(1, np.int32))
    args = uploaded(x), uploaded(np.array(numbers, np.int32)[ids]), Matrix(fmt, data.flat(), few.rows, n)
    dispatch.expert_linear(stream(), out, error, *args, 2, 2, len(data), act, 7, scratch=scratch)
    close(out, Reference().expert_linear(x, ids, few, act))
    assert host(error)[0] == 0


def test_rows_of_a_table_beyond_four_gibibytes() -> None:
    ops, n = cuda.backend, 8192
    data, few = ops.array(FAR // (2 * n), 2 * n, dtype=np.uint8), drawn("F16", 3, n)
    numbers = [0, (5 << 29) // (2 * n), len(data) - 1]
    for number, values in zip(numbers, few.data, strict=True):
        ops.fill(data[number], values)
    out = ops.embed(Matrix("F16", data, len(data), n), ops.upload(np.array(numbers, np.int32)))
    assert np.array_equal(ops.host(out), few.data.view(np.float16).astype(np.float32))
