"""Quantizers: float32 weights to the rows of a storage format, compiled and multi-threaded.

    raw = quantize("Q4_K", weights)                            weights float32 (rows, cols) -> uint8 (rows, row_bytes)
    raw = quantize("IQ2_XXS", weights, importance, threads=8)  importance float32 (cols,): how much each input matters

Importance (an imatrix) is the mean square of the inputs that a column of the matrix is multiplied by; errors in the
column are weighted by it. Layouts and dequantizers are those of ``kernels.formats``. The bytes of Q8_0, F16, BF16 and
F32 equal ggml's bit for bit; the other formats use searches of our own (docs/reference/quantize.md).

The kernels are a separate library (``kernels.cpu.library``), which is compiled when the first row is quantized.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ds4ref.kernels.formats import FORMATS

QUANTIZERS = tuple(fmt.name for fmt in FORMATS.values() if fmt.quantizer)
"""Formats that can be written."""

BLOCKED = tuple(fmt for fmt in QUANTIZERS if FORMATS[fmt].quantizer != "exact")
SEARCHED = tuple(fmt for fmt in QUANTIZERS if FORMATS[fmt].quantizer == "search")

_PIECE = 1 << 16
"""Number of weights that a thread claims at a time: milliseconds of work, so that threads finish together."""


def quantize(fmt: str, x: np.ndarray, importance: np.ndarray | None = None, threads: int = 1) -> np.ndarray:
    """Quantize float32 (rows, cols) to uint8 (rows, row_bytes) in format ``fmt``.

        importance  float32 (cols,), not negative; None: unknown
        threads     number of threads
    Raise ValueError for a format that cannot be written, columns that are not a whole number of blocks, values that are
    not
    finite, or another shape or dtype. The bytes do not depend on ``threads``.
    """
    x = _checked(fmt, x, importance)
    if fmt not in BLOCKED:
        return _scalars(fmt, x)
    rows, cols = x.shape
    out = np.empty((rows, FORMATS[fmt].row_bytes(cols)), np.uint8)
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
    from ..library import library

    code = library("quantize").function(f"quantize.{fmt}", 5)
    address = 0 if importance is None else importance.ctypes.data

    size = max(1, _PIECE // cols)

    def part(first: int) -> None:
        count = min(size, rows - first)
        code(x.ctypes.data + 4 * cols * first, count, cols, address, out.ctypes.data + out.shape[1] * first)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, rows, size)))
    return out


def prepare() -> None:
    """Compile the kernels that quantize, if they are not in the cache; raise KernelError if that fails."""
    from ..library import library

    library("quantize")


def _checked(fmt: str, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    if fmt not in QUANTIZERS:
        raise ValueError(f"there is no quantizer for {fmt}: choose from {', '.join(QUANTIZERS)}")
    if x.dtype != np.float32 or x.ndim != 2:
        raise ValueError(f"weights are float32 (rows, cols), not {x.dtype} {x.shape}")
    FORMATS[fmt].row_bytes(x.shape[1])
    if not np.isfinite(x).all():
        raise ValueError("weights must be finite")
    if importance is not None:
        if importance.shape != (x.shape[1],):
            raise ValueError(f"importance must have one value a column, ({x.shape[1]},), not {importance.shape}")
        if not (np.isfinite(importance).all() and (importance >= 0).all()):
            raise ValueError("importance must be finite and not below zero")
    return np.ascontiguousarray(x)


def _scalars(fmt: str, x: np.ndarray) -> np.ndarray:
    if fmt == "F32":
        return x.astype("<f4").view(np.uint8)
    if fmt == "F16":
        with np.errstate(over="ignore"):  # values out of range become infinite, which the caller sees in the result
            return x.astype("<f2").view(np.uint8)
    bits = x.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)  # nearest, ties to even
