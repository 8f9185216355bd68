"""Products of many float inputs on tensor cores: tiles that are not full, every format, how exact they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.cuda import grouping, limbs, matmat_float, products
from kernels.cuda import simulated_intrinsics as meaning
from kernels.cuda.plain import VALUE_BYTES
from kernels.cuda.units import UNITS
from kernels.formats import FORMATS, Matrix

from . import cuda
from .test_cuda_products import FAILURE, REFERENCE, close, drawn, host, normal, placed, scratch, stream, there, unwritten
from .test_cuda_products import _nothing_is_kept  # noqa: F401

FORMATS_HERE = [*UNITS, *VALUE_BYTES]


def shape_of(fmt: str) -> int:
    """Inputs of a vector: an odd number of units where the format has them."""
    block = FORMATS[fmt].block_elems
    return 256 if block == 256 else 160


@pytest.mark.parametrize("fmt", FORMATS_HERE)
def test_tiles_that_are_not_full(fmt: str) -> None:
    """18 inputs of 64, 67 rows of 128, groups whose rows begin inside a tile."""
    n, tokens = shape_of(fmt), 18
    w, x = drawn(fmt, 134, n), normal(tokens, 2, n)
    out = unwritten(134 * tokens)
    products.linear(stream(), out, there(x), placed(w), tokens, 2, "float", scratch=scratch)
    close(out, REFERENCE.grouped_linear(x, w))
