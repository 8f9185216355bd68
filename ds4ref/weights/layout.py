"""Converts a published tensor, with its scales if any, to rows of a storage format of ``ds4ref.kernels.formats``.

    published as                       becomes      how
    F32, F16, BF16, I32                the same     a view of the file
    I64                                I32          every value checked
    F8_E4M3 + E8M0 for 128 x 128       F8_E4M3      the scale of each 128 weights before their codes
    F8_E4M3 + E8M0 for 32 x 32,        F8_E4M3_32   the scale of each 32 weights before their codes
      or for each row x 32
    I8, U8 or F4, two codes a byte,
      + E8M0 for 32 inputs             MXFP4        scale and codes of each 32 weights together, in GGUF's order
    F8_E4M3 with any other scales      F32          scales multiplied in

All conversions are exact, except that the last one rounds once, to float32. FP8 with one scale per 128 x 128 or 32 x 32
weights, and FP4, need no conversion for kernels that read codes and scales from two separate arrays (``apart_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ds4ref.kernels.formats import FORMATS, ApartRows, Format
from ds4ref.kernels.formats.apart import FP4, FP8, FP8_32, FP8_ROWS, Apart
from ds4ref.kernels.formats.f8_e4m3 import BLOCK_WEIGHTS, E4M3, E8M0

from ..errors import ModelFileError
from .cursor import quote
from .safetensors import Checkpoint, Stored

PLAIN = ("F32", "F16", "BF16", "I32")
SCALE_DTYPES = ("F8_E8M0", "U8")
"""Dtypes that may hold E8M0 scales; files written before F8_E8M0 was a dtype use U8."""
PACKED_DTYPES = ("I8", "U8", "F4")
MX_WEIGHTS = FP4.codes.block_elems
_STEP_BYTES = 16 << 20
"""Number of published bytes converted at a time, which limits the memory for temporary arrays."""


@dataclass(frozen=True)
class Layout:
    """Conversion of a published tensor to weight rows of the storage format ``fmt``.

    stored   the published tensor
    shape    dimensions in weights, outermost first
    bytes    returns the converted rows, uint8 (nbytes,); raises ModelFileError for values that the format cannot hold
    is_view  ``bytes`` returns a view of the file instead of converting
    apart    how the file keeps codes and scales separately, for kernels that read both from the file; None: such a
             kernel cannot read this tensor, so it must be converted
    parts    returns (codes, scales), views of the files, uint8 (rows, bytes); None without ``apart``
    """

    stored: Stored
    fmt: Format
    shape: tuple[int, ...]
    bytes: Callable[[], np.ndarray]
    is_view: bool = False
    apart: Apart | None = None
    parts: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None

    @property
    def nbytes(self) -> int:
        """Return the size of the converted rows in bytes."""
        return prod(self.shape) // self.fmt.block_elems * self.fmt.block_bytes


def layout_of(checkpoint: Checkpoint, stored: Stored, scale: Stored | None) -> Layout:
    """Return the conversion of the tensor ``stored`` with the tensor of its scales, if it has one.

    Raise ModelFileError for an unsupported dtype or kind of scales.
    """
    path, name = checkpoint.files[stored.shard].path, quote(stored.name)
    if 0 in stored.shape:
        raise ModelFileError(path, f"tensor {name} is empty", stored.offset)
    shape = stored.shape or (1,)
    raw = lambda: checkpoint.raw(stored.name)  # noqa: E731
    if scale is None and stored.dtype in PLAIN:
        return Layout(stored, FORMATS[stored.dtype], shape, raw, is_view=True)
    if scale is None and stored.dtype == "I64":
        return Layout(stored, FORMATS["I32"], shape, lambda: _narrowed(path, stored, raw()))
    if len(shape) != 2:
        raise ModelFileError(path, f"tensor {name} of {len(shape)} axes cannot be {stored.dtype}", stored.offset)
    if stored.dtype == "F8_E4M3":
        if scale is None:
            stem = stored.name.removesuffix(".weight")
            wanted = f"{quote(stem + '.weight_scale_inv')} or {quote(stem + '.scale')}"
            raise ModelFileError(path, f"tensor {name} is F8_E4M3 without its scales, {wanted}", stored.offset)
        return _fp8(checkpoint, path, stored, scale)
    if stored.dtype in PACKED_DTYPES and scale is not None:
        return _fp4(checkpoint, path, stored, scale)
    dtype = f"{stored.dtype} with scales" if scale is not None else stored.dtype
    raise ModelFileError(path, f"tensor {name} is {dtype}, which is not a supported format", stored.offset)


def made_layout(name: str, values: np.ndarray) -> Layout:
    """Return the layout of a float32 tensor that is computed from the config instead of stored in a file."""
    data = np.ascontiguousarray(values, "<f4")
    return Layout(Stored(name, "F32", data.shape, 0, 0, data.nbytes), FORMATS["F32"], data.shape,
                  lambda: data.reshape(-1).view(np.uint8))  # fmt: skip


def _narrowed(path: str, stored: Stored, raw: np.ndarray) -> np.ndarray:
    """Convert the bytes of 64-bit integers to 32-bit ones; raise ModelFileError for one that does not fit."""
    values = raw.view("<i8")
    limits = np.iinfo(np.int32)
    bad = np.flatnonzero((values < limits.min) | (values > limits.max))
    if bad.size:
        reason = f"tensor {quote(stored.name)} holds {values[bad[0]]}, more than 32 bits"
        raise ModelFileError(path, reason, stored.offset + 8 * int(bad[0]))
    return values.astype("<i4").view(np.uint8)


def _shared(size: int, count: int) -> int | None:
    """Return how many of ``size`` rows or columns share each of ``count`` scales; None if that is not possible.

    Either 128 share one, the last group being smaller if need be, or all groups are equal.
    """
    if -(-size // BLOCK_WEIGHTS) == count:
        return BLOCK_WEIGHTS
    return None if count == 0 or size % count else size // count


def _checked_scales(checkpoint: Checkpoint, path: str, scale: Stored) -> np.ndarray:
    """Return the E8M0 scales as bytes (rows, cols); raise ModelFileError if one is 255, which is NaN."""
    scales = checkpoint.raw(scale.name).reshape(scale.shape)
    if (scales == 255).any():
        where = scale.offset + int(np.flatnonzero(scales == 255)[0])
        raise ModelFileError(checkpoint.files[scale.shard].path, f"tensor {quote(scale.name)} holds a NaN scale", where)
    return scales


def _fp8(checkpoint: Checkpoint, path: str, stored: Stored, scale: Stored) -> Layout:
    rows, cols = stored.shape
    if scale.dtype in SCALE_DTYPES:
        for kind in (FP8, FP8_32, FP8_ROWS):
            width = kind.joined.block_elems
            if cols % width == 0 and scale.shape == (-(-rows // kind.high), cols // width):
                return _apart(kind, checkpoint, path, stored, scale, (rows, cols))
    high = wide = None
    if len(scale.shape) == 2:
        high, wide = (_shared(size, count) for size, count in zip(stored.shape, scale.shape, strict=True))
    if high is None or wide is None:
        reason = f"scales of shape {list(scale.shape)} do not fit {quote(stored.name)} of {list(stored.shape)}"
        raise ModelFileError(path, reason, scale.offset)
    if scale.dtype not in (*SCALE_DTYPES, "F32", "BF16"):
        raise ModelFileError(path, f"tensor {quote(scale.name)}: scales are not {scale.dtype}", scale.offset)
    step = max(1, _STEP_BYTES // cols)

    def values() -> np.ndarray:
        factors = _factors(checkpoint, path, scale)
        out = np.empty((rows, cols), np.float32)
        codes = checkpoint.raw(stored.name).reshape(rows, cols)
        for at in range(0, rows, step):
            part = E4M3.table[codes[at : at + step]]
            mine = factors[np.arange(at, at + len(part)) // high]
            with np.errstate(over="ignore", invalid="ignore"):
                out[at : at + step] = part * np.repeat(mine, wide, axis=1)[:, :cols]
        return out.reshape(-1).view(np.uint8)

    return Layout(stored, FORMATS["F32"], (rows, cols), values)


def _factors(checkpoint: Checkpoint, path: str, scale: Stored) -> np.ndarray:
    """Return the scales of a tensor, of any supported dtype, as float32 (rows, cols)."""
    if scale.dtype in SCALE_DTYPES:
        return E8M0.table[_checked_scales(checkpoint, path, scale)]
    return FORMATS[scale.dtype].dequantize(checkpoint.raw(scale.name)).reshape(scale.shape)


def _fp4(checkpoint: Checkpoint, path: str, stored: Stored, scale: Stored) -> Layout:
    rows, packed = stored.shape
    cols = packed if stored.dtype == "F4" else 2 * packed
    if scale.dtype not in SCALE_DTYPES or scale.shape != (rows, cols // MX_WEIGHTS) or cols % MX_WEIGHTS:
        reason = f"scales {scale.dtype} {list(scale.shape)} do not fit FP4 {quote(stored.name)} of {rows} x {cols}"
        raise ModelFileError(path, reason, scale.offset)
    return _apart(FP4, checkpoint, path, stored, scale, (rows, cols))


def _apart(
    apart: Apart, checkpoint: Checkpoint, path: str, stored: Stored, scale: Stored, shape: tuple[int, int]
) -> Layout:
    """Return the layout of a matrix whose codes and scales kernels can also read from the file without conversion."""

    def parts() -> tuple[np.ndarray, np.ndarray]:
        return checkpoint.raw(stored.name).reshape(shape[0], -1), checkpoint.raw(scale.name).reshape(scale.shape)

    def blocks() -> np.ndarray:
        _checked_scales(checkpoint, path, scale)
        codes, scales = parts()
        return np.asarray(ApartRows(apart, [codes], [scales], stacked=False)).reshape(-1)

    return Layout(stored, apart.joined, shape, blocks, apart=apart, parts=parts)


def apart_rows(pieces: Sequence[Layout], stacked: bool) -> ApartRows:
    """Return codes and scales of the matrices ``pieces`` as views of the files, without conversion.

    All pieces have the same shape and the same layout ``apart``, not None. stacked: add an outermost axis, one item per
    piece, even for a single one.
    """
    codes, scales = zip(*(piece.parts() for piece in pieces if piece.parts is not None), strict=True)
    layout = pieces[0].apart
    assert layout is not None
    return ApartRows(layout, codes, scales, stacked)
