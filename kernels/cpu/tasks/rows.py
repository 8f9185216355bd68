"""Export the row kernels of ``kernels.cpu.simd`` as ``pack.FMT.act``, ``rows.FMT.act`` and ``size.FMT.act``.

``pack`` packs one input, ``size`` returns the bytes of a packed input, and ``rows`` multiplies weight rows by any
number of inputs: it takes the address of a table of pairs of addresses (packed input, output), and their number.
Kernels that do not round their inputs share ``pack.floats`` and ``size.floats``.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from ..simd import APART_KERNELS, KERNELS
from ..simd.helpers import pack_floats
from ..simd.row_kernel import for_any_count
from .lang import JIT, i64p
from .registry import ENTRIES, export


def _sized(packed_bytes: Any) -> Any:
    """Make a function (n, out) that stores ``packed_bytes(n)`` at the address ``out``."""
    inner = packed_bytes if hasattr(packed_bytes, "py_func") else njit(**JIT)(packed_bytes)

    @njit(**JIT)
    def size(n, out):
        i64p(out)[0] = inner(n)

    return size


for (fmt, act), kernel in (KERNELS | {(name, "float"): kernel for name, kernel in APART_KERNELS.items()}).items():
    name = "floats" if kernel.pack is pack_floats else f"{fmt}.{act}"
    export(f"rows.{fmt}.{act}", 7)(for_any_count(kernel.rows))
    if f"pack.{name}" not in ENTRIES:
        export(f"pack.{name}", 3)(kernel.pack)
        export(f"size.{name}", 2)(_sized(kernel.packed_bytes))
