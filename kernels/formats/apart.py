"""Weights as they were published (safetensors): codes of a matrix in one array, its scales in another, not copied.

``ApartRows`` takes the place of the byte array of a matrix or stack (``Matrix.data``) and looks like one in a format
whose blocks hold scale and codes together. The CPU's ops read the two arrays directly; indexing gives copies in that
format.

    layout    looks like  codes                                   scales
    FP8       F8_E4M3     one byte per weight                     E8M0 for each 128 rows x 128 columns
    FP8_32    F8_E4M3_32  one byte per weight                     E8M0 for each 32 rows x 32 columns
    FP8_ROWS  F8_E4M3_32  one byte per weight                     E8M0 for each row x 32 columns
    FP4       MXFP4       two per byte, the earlier in the low 4  E8M0 for each row x 32 columns

A scale byte of 255 is NaN, in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .f8_e4m3 import BLOCK_WEIGHTS, E4M3, E8M0, F8_E4M3, F8_E4M3_32, SMALL_WEIGHTS
from .format import Format, Numbers, Plane, PowerOfTwo, block_format
from .fp4 import MXFP4

_STEP_BYTES = 16 << 20
"""Bytes of codes that are joined with their scales at once, which limits the size of temporary arrays."""

_CODES = {width: np.dtype([("codes", "u1", width)]) for width in (BLOCK_WEIGHTS, SMALL_WEIGHTS, 16)}


@dataclass(frozen=True, eq=False)
class Apart:
    """A layout that stores the codes of a matrix and its scales in two arrays.

    name    by which its kernels are found
    codes   the codes, as a format whose blocks have no scale; its ``scale`` describes a byte of the other array
    joined  the format whose blocks hold both
    high    number of consecutive rows that share scales, a power of two
    """

    name: str
    codes: Format
    joined: Format
    high: int


def _fp8(name: str, joined: Format, high: int) -> Apart:
    width = joined.block_elems
    codes = Numbers(Plane(8, width, ((0, 0),)))
    return Apart(
        name, block_format("codes", -1, width, _CODES[width], codes=codes, small=E4M3, scale=E8M0), joined, high
    )


FP8 = _fp8("F8_E4M3.apart", F8_E4M3, high=128)
FP8_32 = _fp8("F8_E4M3_32.apart", F8_E4M3_32, high=32)
FP8_ROWS = _fp8("F8_E4M3_32.rows.apart", F8_E4M3_32, high=1)

FP4 = Apart(
    "MXFP4.apart",
    block_format(
        "codes", -1, 32, _CODES[16],
        codes=Numbers(Plane(4, 1, tuple((i // 2, i % 2 * 4) for i in range(32)))), small=MXFP4.small,
        scale=PowerOfTwo(0, bias=128, nan=True),
    ),
    MXFP4,
    high=1,
)  # fmt: skip

APART = {layout.name: layout for layout in (FP8, FP8_32, FP8_ROWS, FP4)}


class ApartRows:
    """What looks like the uint8 array of one matrix (rows, row_bytes), or of a stack (matrices, rows, row_bytes), in
    the format ``layout.joined``, while its codes and scales stay in separate arrays.

    codes    uint8 arrays (rows, bytes), one per matrix, each contiguous; they need not be neighbours in memory
    scales   uint8 arrays (rows / layout.high rounded up, blocks), one per matrix, likewise
    stacked  whether this is a stack, even of one matrix
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, layout: Apart, codes: Sequence[np.ndarray], scales: Sequence[np.ndarray], stacked: bool):
        self.layout, self.codes, self.scales = layout, tuple(codes), tuple(scales)
        self.rows, self.code_bytes = self.codes[0].shape
        self.blocks = self.code_bytes // layout.codes.block_bytes
        sizes = (self.rows, self.blocks * layout.codes.block_bytes), (-(-self.rows // layout.high), self.blocks)
        for pair in zip(self.codes, self.scales, strict=True):
            for array, size in zip(pair, sizes, strict=True):
                if array.dtype != np.uint8 or array.shape != size or not array.flags.c_contiguous:
                    raise ValueError(f"{layout.name}: contiguous bytes of {size} are wanted, not {array.shape}")
        lead = (len(self.codes),) if stacked else ()
        self.shape = (*lead, self.rows, self.blocks * layout.joined.block_bytes)

    @property
    def ndim(self) -> int:
        """Return the number of axes: 2, or 3 for a stack."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of all codes and scales."""
        return sum(array.nbytes for array in (*self.codes, *self.scales))

    def matrix(self, index: int) -> ApartRows:
        """Return matrix ``index`` of a stack, without copying."""
        return ApartRows(self.layout, self.codes[index : index + 1], self.scales[index : index + 1], False)

    def __getitem__(self, index: Any) -> Any:
        """Return one matrix of a stack without copying if ``index`` is an integer; for any other index, and for the
        rows of a single matrix, a copy in the joined format."""
        if self.ndim == 3:
            if isinstance(index, int | np.integer):
                return self.matrix(range(len(self.codes))[index])
            chosen = np.arange(len(self.codes))[index]
            return np.stack([np.asarray(self.matrix(int(i))) for i in chosen])
        return self.take(np.arange(self.rows)[index])

    def take(self, rows: Any, axis: int = 0) -> np.ndarray:
        """Return rows of a matrix by number, as a copy (n, row_bytes) in the joined format."""
        if axis != 0 or self.ndim != 2:
            raise ValueError("rows of one matrix are taken")
        numbers = np.asarray(rows)
        flat = numbers.reshape(-1)
        out = np.empty((flat.size, self.blocks, self.layout.joined.block_bytes), np.uint8)
        step = max(1, _STEP_BYTES // self.code_bytes)
        for at in range(0, flat.size, step):
            some = flat[at : at + step]
            out[at : at + step, :, 0] = self.scales[0][some // self.layout.high]
            codes = self.codes[0][some].reshape(len(some), self.blocks, -1)
            _join(self.layout, codes, out[at : at + step, :, 1:])
        return out.reshape(*numbers.shape, self.shape[-1])

    def numbered(self, rows: np.ndarray) -> np.ndarray:
        """Return a copy of rows as ``take`` does, with row numbers that run through all matrices of a stack."""
        out = np.empty((len(rows), self.shape[-1]), np.uint8)
        matrices, places = np.divmod(rows, self.rows)
        for i in np.unique(matrices):
            here = matrices == i
            out[here] = (self.matrix(int(i)) if self.ndim == 3 else self).take(places[here])
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return a copy of everything in the joined format."""
        if self.ndim == 2:
            return self.take(np.arange(self.rows))
        out = np.empty(self.shape, np.uint8)
        for i in range(len(self.codes)):
            out[i] = self.matrix(i)
        return out

    def dequantize(self) -> np.ndarray:
        """Decode to float32 (..., rows, cols); a scale of 255 gives NaN."""
        values = self.layout.joined.dequantize(np.asarray(self)).reshape(-1, self.rows, self.blocks, self._width)
        for matrix, scales in zip(values, self.scales, strict=True):
            if (scales == 255).any():
                matrix[np.repeat(scales == 255, self.layout.high, axis=0)[: self.rows]] = np.nan
        return values.reshape(*self.shape[:-1], self.blocks * self._width)

    @property
    def _width(self) -> int:
        return self.layout.codes.block_elems


def _join(layout: Apart, codes: np.ndarray, out: np.ndarray) -> None:
    """Store published codes (rows, blocks, bytes) in ``out``, in the order of the joined format's blocks."""
    if layout is not FP4:
        out[:] = codes
        return
    low, high = codes[:, :, :8], codes[:, :, 8:]
    # published byte j holds weights 2 j and 2 j + 1; GGUF's byte i holds weights i and i + 16
    out[:, :, ::2] = (low & 15) | (high << 4)
    out[:, :, 1::2] = (low >> 4) | (high & 0xF0)
