"""Read memory as fast as possible, without computing: the bound with which benchmarks compare other kernels."""

from __future__ import annotations

from numba import njit, types

from .. import tasktable as t
from ..simd.helpers import AHEAD, prefetch, store_int
from ..simd.vec import JIT, I32x16, I32x32, Int, inline
from ..sizes import READ_LINE as LINE
from .registry import body

_zero = inline(I32x32)(lambda k: k.zero(I32x32))


@inline(I32x32, I32x32, Int)
def _add_lines(k, total, address):
    """Add the two cache lines at ``address`` to the total."""
    return total + k.load(I32x16, address).cat(k.load(I32x16, address + 64))


_total = inline(types.int32, I32x32)(lambda k, a: k.fold(a, lambda x, y: x + y))


@njit(**JIT)
def read(address, size, out):
    """Read ``size`` bytes (a multiple of 256); their sum as int32, in two parts at ``out``, keeps the compiler from
    dropping the reads."""
    low = _zero()
    high = _zero()
    for _ in range(size // LINE):
        prefetch(address + AHEAD)
        prefetch(address + AHEAD + 64)
        prefetch(address + AHEAD + 128)
        prefetch(address + AHEAD + 192)
        low = _add_lines(low, address)
        high = _add_lines(high, address + 128)
        address += LINE
    store_int(out, _total(low))
    store_int(out + 4, _total(high))


@body(t.READ, exact=True)
def read_lines(args, first, last, thread):
    """Read memory; items are pieces of 256 bytes, and every thread writes to its own 64 bytes of ``out``."""
    read(args.address + LINE * first, LINE * (last - first), args.out + 64 * thread)
