"""Random weights, rounded activations and exact products for the tests of the vector kernels."""

import numpy as np

from ds4ref.kernels.formats import FORMATS
from tests.kernels import reference

BYTE_SCALES = ("MXFP4", "F8_E4M3")
"""Formats whose first byte is an exponent."""


def halves(fmt):
    """Bytes at which a block has an f16."""
    return [half.byte for half in (FORMATS[fmt].scale, FORMATS[fmt].minimum) if half is not None]


def random_rows(fmt, rows, n, rng, codes=None):
    """uint8 (rows, row_bytes): arbitrary block bytes (all ``codes`` if given), finite f16 scales of either sign."""
    layout = FORMATS[fmt]
    if fmt in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, n)).astype(np.float32)
        if fmt == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if fmt == "F16" else np.float32).view(np.uint8)
    shape = rows, n // layout.block_elems, layout.block_bytes
    blocks = rng.integers(0, 256, shape, np.uint8) if codes is None else np.full(shape, codes, np.uint8)
    if fmt in BYTE_SCALES:
        blocks[:, :, 0] = rng.integers(112, 122, shape[:2])
        if fmt == "F8_E4M3":  # no NaN
            blocks[:, :, 1:][blocks[:, :, 1:] % 128 == 127] ^= 1
        return blocks.reshape(rows, -1)
    for field in halves(fmt):
        scale = rng.uniform(-0.01, 0.01, shape[:2]).astype(np.float16)
        blocks[:, :, field : field + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def rounded(act, x):
    """The activations as the kernel sees them, float64."""
    x = np.asarray(x, np.float32 if act in ("a8", "q8k") else np.float64)
    if act not in ("a8", "q8k"):
        return x
    codes, scales, *_ = getattr(reference, f"quantize_{act}")(x[None])
    return codes[0] * np.repeat(scales[0].astype(np.float64), x.size // scales.size)


def run(kernel, raw, x, first=0, last=None):
    """out[first:last] of the matrix ``raw`` (rows, row_bytes) times ``x``; NaN where the kernel must not write."""
    return run_several(kernel, raw, [x], first, last)[0]


def run_several(kernel, raw, xs, first=0, last=None):
    """``run`` of several inputs (1, 2 or 4) in one pass over the rows: float32 (inputs, rows)."""
    raw, xs = np.ascontiguousarray(raw), np.ascontiguousarray(xs, np.float32)
    count, n = xs.shape
    last = len(raw) if last is None else last
    size = kernel.packed_bytes(n)
    buffers = np.full((count, size + 64), 0x5A, np.uint8)
    out = np.full((count, len(raw)), np.nan, np.float32)
    for x, buffer in zip(xs, buffers, strict=True):
        kernel.pack(x.ctypes.data, n, buffer.ctypes.data)
        assert (buffer[size:] == 0x5A).all(), "pack wrote beyond packed_bytes"
    table = table_of(buffers, out)
    kernel.rows[count](raw.ctypes.data, first, last, raw.shape[1], n, table.ctypes.data)
    return out


def table_of(buffers, outs):
    """int64 (inputs, 2): the addresses of packed inputs and of their results, as row kernels take them."""
    return np.array([[b.ctypes.data, o.ctypes.data] for b, o in zip(buffers, outs, strict=True)], np.int64)
