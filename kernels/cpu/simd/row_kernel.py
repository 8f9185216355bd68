"""The one signature of all row kernels."""

from __future__ import annotations

from typing import Any, NamedTuple


class RowKernel(NamedTuple):
    """Mat-vec on raw rows of one weight format, for one treatment of the activations. All addresses are int64.

    packed_bytes(n) -> int
        size of the activation buffer for n inputs
    pack(x, n, buffer)
        n float32 at ``x`` -> the buffer: rounded as the activation mode says, in the order the weight decoder wants
    rows(weights, first, last, row_bytes, n, buffer, out)
        float32 out[first:last] = rows first .. last-1 of the matrix at ``weights`` times the packed vector; never reads
        beyond the last byte of row last-1, nor before the first of row ``first``

    The buffer and out need no alignment (64 bytes is faster). n is a multiple of 32 for Q8_0 and Q4_0, of 256 for the
    K and IQ formats, any positive number for F16, BF16 and F32. All three are ``@njit(nogil=True)`` and call nothing in
    Python, so other compiled functions can call them, and threads run them in parallel.
    """

    pack: Any
    rows: Any
    packed_bytes: Any
