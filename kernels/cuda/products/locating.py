"""Where the matrix of a pair starts, as a step of the mat-vec kernels: on the device, or in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..driver.intrinsics import apart
from ..driver.shim import cuda

I32, I64 = np.int32, np.int64


@cuda.jit(device=True)
def _here(matrices, routing, number, second):
    return I64(0), number


@cuda.jit(device=True)
def _anywhere(matrices, routing, number, second):
    base = I64(0)
    if number >= routing.elsewhere.slots:
        number = I32(number - routing.elsewhere.slots)
        if second:
            base = apart(matrices.raw2, routing.elsewhere.far2)
        else:
            base = apart(matrices.raw, routing.elsewhere.far)
    return base, number


def locator(spread: bool) -> Any:
    """Return the device function (matrices, routing, number, second) to the byte, from ``raw`` or ``raw2`` on, and the
    number of a matrix there. ``spread``: a stack is in part ``Elsewhere``."""
    return _anywhere if spread else _here
