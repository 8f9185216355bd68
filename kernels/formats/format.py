"""Storage formats as declarations, from which every decoder is derived.

A row of ``cols`` weights is stored as ``cols / block_elems`` blocks of ``block_bytes`` bytes, without padding
(docs/explanation/model.md 2.1). The weights of a block are

    w = d * s_g * code - dmin * m_g         g = group of ``group`` weights

where d and dmin are the scale and minimum of the block, and code, s_g and m_g are small numbers (``Numbers``) whose
bits are spread over the bytes of the block (``Plane`` says how). A format without sub-scales has s_g = 1 for the whole
block; one without minima has m_g = 1, or no second term if it has no dmin either. A code is an integer, the bits of a
small float (``SmallFloat``), the number of a level (``Levels``), or the index of a group of weights in a codebook
(``Codebook``).

The NumPy decoder here interprets the declaration; the CPU's and CUDA's kernels are generated from it. Of a format whose
``layout`` is None only the size is known: its tensors can be laid out in a file or skipped, but not decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

# Values decoded per step: keeps the temporaries of a step inside the second-level cache.
_STEP = 1 << 17

# Exponent bits: all of them set means NaN or infinite. Scales inside blocks are F16, or no IEEE numbers at all.
_EXPONENT = {"F32": np.uint32(0x7F800000), "F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}


@dataclass(frozen=True)
class Plane:
    """Where a block stores ``width`` bits of each of its small numbers (codes or sub-scales); numbers whose bits are
    in several fields, such as 4 low and 2 high ones, have several planes.

    The numbers come in runs of ``run``, each in consecutive bytes. Number v belongs to run r = v // run; with (byte,
    shift) = places[r] its bits begin at bit ``shift`` of byte ``byte + v % run`` of the block. Bits beyond the eighth
    continue in the next byte.
    """

    width: int
    run: int
    places: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Return how many numbers a block has."""
        return self.run * len(self.places)

    def bits(self, blocks: np.ndarray) -> np.ndarray:
        """Extract the bits: uint8 (n, block_bytes) -> uint8 (n, count); the result may be a view of ``blocks``."""
        (byte, _), *others = self.places
        if self.width == 8 and not others:
            return blocks[:, byte : byte + self.run]
        out = np.empty((len(blocks), len(self.places), self.run), np.uint8)
        for i, (byte, shift) in enumerate(self.places):
            np.right_shift(blocks[:, byte : byte + self.run], shift, out=out[:, i])
            if shift + self.width > 8:
                out[:, i] |= blocks[:, byte + 1 : byte + 1 + self.run] << 8 - shift
        out &= (1 << self.width) - 1
        return out.reshape(len(blocks), self.count)


def plane(
    layout: np.dtype,
    field: str,
    width: int,
    run: int,
    shifts: Sequence[int] = (0,),
    places: Sequence[tuple[int, int]] | None = None,
) -> Plane:
    """Declare a plane within one field of the block.

    By default each ``run`` bytes of the field hold as many runs as there are ``shifts``: the first at the first shift
    within these bytes, and so on. ``places`` lists (byte within the field, shift) of each run instead.
    """
    dtype, start = layout.fields[field][:2] if layout.fields else (layout, 0)
    if places is None:
        places = [(byte, shift) for byte in range(0, dtype.itemsize, run) for shift in shifts]
    return Plane(width, run, tuple((start + byte, shift) for byte, shift in places))


@dataclass(frozen=True)
class Numbers:
    """The small integers of a block (codes or sub-scales), each with the value ``times * bits - zero``.

    planes  where the bits are, the lowest bits first
    signed  whether the bits are two's complement
    """

    planes: tuple[Plane, ...]
    zero: int = 0
    times: int = 1
    signed: bool = False

    def __init__(self, *planes: Plane, zero: int = 0, times: int = 1, signed: bool = False):
        for name, value in (("planes", planes), ("zero", zero), ("times", times), ("signed", signed)):
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Return the number of bits of each number."""
        return sum(p.width for p in self.planes)

    @property
    def count(self) -> int:
        """Return how many numbers a block holds."""
        return self.planes[0].count

    @property
    def range(self) -> tuple[int, int]:
        """Return the least and the greatest value that a number can have."""
        low = -(1 << self.width - 1) if self.signed else 0
        return self.times * low - self.zero, self.times * (low + (1 << self.width) - 1) - self.zero

    def bits(self, blocks: np.ndarray) -> np.ndarray:
        """Extract the bits of all planes: uint8 (n, block_bytes) -> uint8 or, above eight bits, uint16 (n, count)."""
        first, *others = self.planes
        value, above = first.bits(blocks), first.width
        if self.width > 8:
            value = value.astype(np.uint16)
        for p in others:
            value |= p.bits(blocks).astype(value.dtype) << above
            above += p.width
        return value

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode the numbers: uint8 (n, block_bytes) -> float32 (n, count), exact."""
        bits = self.bits(blocks)
        if self.signed:
            bits = (bits << 8 - self.width).view(np.int8) >> 8 - self.width if self.width < 8 else bits.view(np.int8)
        values = bits.astype(np.float32)
        if self.times != 1:
            values *= self.times
        if self.zero:
            values -= self.zero
        return values


@dataclass(frozen=True)
class Half:
    """A half-precision (binary16) scale at offset ``byte`` of the block, times ``factor`` (a power of two, or -1)."""

    byte: int
    factor: float = 1.0

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n,)."""
        bits = np.ascontiguousarray(blocks[:, self.byte : self.byte + 2])
        return bits.view("<f2")[:, 0].astype(np.float32) * np.float32(self.factor)


def half(layout: np.dtype, field: str, factor: float = 1.0) -> Half:
    """Declare the half-precision scale in ``field`` of the block, times ``factor``."""
    assert layout.fields is not None
    return Half(layout.fields[field][1], factor)


@dataclass(frozen=True)
class PowerOfTwo:
    """A scale 2^(e - bias), e being the byte at offset ``byte`` of the block; 255 means NaN if ``nan`` (E8M0, OCP
    Microscaling Formats 1.0)."""

    byte: int
    bias: int
    nan: bool

    @cached_property
    def table(self) -> np.ndarray:
        """Return the value of every byte, float32 (256,)."""
        value = np.ldexp(1.0, np.arange(256) - self.bias)
        if self.nan:
            value[255] = np.nan
        return value.astype(np.float32)

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n,)."""
        return self.table[blocks[:, self.byte]]


@dataclass(frozen=True)
class SmallFloat:
    """A small float: a sign bit, ``exponent`` bits and ``fraction`` bits, with subnormal numbers and no infinity.

    bias           taken from the exponent bits
    nan            whether a code with all bits below the sign set means NaN
    negative_zero  whether the sign bit alone means -0 rather than 0
    """

    exponent: int
    fraction: int
    bias: int
    nan: bool = False
    negative_zero: bool = True

    @cached_property
    def table(self) -> np.ndarray:
        """Return the value of every code, float32 (2^bits,)."""
        below = 1 << self.exponent + self.fraction
        code = np.arange(2 * below)
        exponent, fraction = (code % below) >> self.fraction, code % (1 << self.fraction)
        mantissa = np.where(exponent > 0, fraction + (1 << self.fraction), fraction).astype(np.float64)
        value = np.ldexp(mantissa, np.maximum(exponent, 1) - self.bias - self.fraction)
        if self.nan:
            value[code % below == below - 1] = np.nan
        value = np.copysign(value, np.where(code >= below, -1.0, 1.0)).astype(np.float32)
        return value if self.negative_zero else value + np.float32(0)


@dataclass(frozen=True)
class Levels:
    """The sixteen values (signed bytes) that the 4-bit codes of a format stand for."""

    values: tuple[int, ...]

    @cached_property
    def table(self) -> np.ndarray:
        """Return the value of every code, float32 (16,)."""
        return np.array(self.values, np.float32)


@dataclass(frozen=True, eq=False)
class Codebook:
    """Codes for groups of 4 or 8 weights: an index into a table of values and, in most formats, the weights' signs.

    grid   uint8 or int8 (entries, weights): the values that each index stands for; magnitudes if there are ``signs``
    index  where the index of each group is stored
    signs  a number for each 8 weights, of which bit i is set if weight i is negative; if it has only 7 bits, weight 7
           is negative where that makes the number of negative weights even
    shift  a bit for each group: 1 is subtracted from the group's values if it is set, else added
    """

    grid: np.ndarray
    index: Numbers
    signs: Numbers | None = None
    shift: Numbers | None = None

    @cached_property
    def sign_table(self) -> np.ndarray:
        """Return the eight signs, +1 or -1, that each number of ``signs`` stands for: int8 (2^bits, 8)."""
        assert self.signs is not None
        bits = (np.arange(1 << self.signs.width, dtype=np.uint8)[:, None] >> np.arange(8, dtype=np.uint8)) & 1
        if self.signs.width == 7:
            bits[:, 7] = bits[:, :7].sum(axis=1) & 1
        return (1 - 2 * bits.astype(np.int8)).astype(np.int8)

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n, weights)."""
        values = self._values[self.index.bits(blocks)]
        if self.shift is not None:
            values += (1 - 2 * self.shift.bits(blocks).astype(np.float32))[..., None]
        if self.signs is not None:
            values = values.reshape(len(blocks), -1, 8) * self._signs[self.signs.bits(blocks)]
        return values.reshape(len(blocks), -1)

    @cached_property
    def _values(self) -> np.ndarray:
        return self.grid.astype(np.float32)

    @cached_property
    def _signs(self) -> np.ndarray:
        return self.sign_table.astype(np.float32)


@dataclass(frozen=True)
class Trits:
    """Weights -1, 0 or 1 stored as base-3 digits, up to five a byte (TQ1_0).

    Digit n of byte v is ``((v * 3^n mod 256) * 3) >> 8``.

    fields  (first byte, number of bytes, digits in each byte) in the order of the weights; within a field the first
            digits of all bytes come first, then the second digits, and so on
    """

    fields: tuple[tuple[int, int, int], ...]

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n, weights)."""
        powers = [
            blocks[:, byte : byte + count] * np.uint8(3**digit)
            for byte, count, digits in self.fields for digit in range(digits)
        ]  # fmt: skip
        digits = (np.concatenate(powers, axis=1).astype(np.uint16) * 3) >> 8
        return digits.astype(np.float32) - 1


@dataclass(frozen=True)
class ScatteredHalf:
    """A half-precision scale spread over the block: its four nibbles, lowest first, are the high halves of the bytes at
    offsets ``places``. It is multiplied by ``factor``."""

    places: tuple[int, int, int, int]
    factor: float = 1.0

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n,)."""
        bits = sum((blocks[:, byte].astype(np.uint16) >> 4) << 4 * i for i, byte in enumerate(self.places))
        return np.asarray(bits, np.uint16).view(np.float16).astype(np.float32) * np.float32(self.factor)


@dataclass(frozen=True, eq=False)
class Listed:
    """Sub-scales stored as one byte per group, which is an index into ``table``, float32 (256,); the ``count`` bytes
    begin at offset ``byte`` of the block."""

    table: np.ndarray
    byte: int
    count: int

    def values(self, blocks: np.ndarray) -> np.ndarray:
        """Decode: uint8 (n, block_bytes) -> float32 (n, count)."""
        return self.table[blocks[:, self.byte : self.byte + self.count]]


@dataclass(frozen=True, eq=False)
class Format:
    """One storage format.

    name         as in GGUF
    ggml_id      type id in GGUF; negative for a format that GGUF does not have
    block_elems  weights per block
    block_bytes  bytes per block
    layout       the block as a packed little-endian NumPy record; None if only the size is known

    How weights are decoded, for a format of blocks:

    codes        the codes: integers, bits whose meaning ``small`` gives, a codebook, or base-3 digits
    small        the float format or levels that the bits of ``codes`` stand for; None for integers
    scale        where d is; None means d = 1
    group        number of weights that share a sub-scale and a minimum
    scales       where the sub-scales s_g are; None if there are none
    minimum      where dmin is; None if there are no minima
    minima       where the m_g are; None means 1 for the whole block

    How it is used:

    activation   how a matrix product rounds its inputs if the numerics mode rounds them (docs/explanation/model.md
                 10.2): "a8" or "q8k", int8 in blocks of 32 or 256; "float": never
    quantizer    how we quantize to it: "exact" (a conversion), "blocks" (ggml's own rounding), "search" (scales fitted
                 to the weights), or "" (we cannot)
    loss         relative rms error of storing normally distributed weights, rounded up from measurements
                 (tests/kernels/test_quantize.py)
    lookup       whether rows are only looked up, on the host: no backend multiplies by them
    """

    name: str
    ggml_id: int
    block_elems: int
    block_bytes: int
    layout: np.dtype | None = None
    codes: Numbers | Codebook | Trits | None = None
    small: SmallFloat | Levels | None = None
    scale: Half | PowerOfTwo | ScatteredHalf | None = None
    group: int = 0
    scales: Numbers | Listed | None = None
    minimum: Half | None = None
    minima: Numbers | None = None
    activation: str = "float"
    quantizer: str = ""
    loss: float = 1.0
    lookup: bool = False

    @property
    def weighed(self) -> bool:
        """Return whether the quantizer can weigh its errors by an importance matrix."""
        return self.quantizer == "search"

    @property
    def decodes(self) -> bool:
        """Return whether weights can be decoded, rather than only their size being known."""
        return self.layout is not None

    @property
    def multiplies(self) -> bool:
        """Return whether a matrix of this format can be multiplied: true for blocks and floating-point numbers."""
        return (self.codes is not None and not self.lookup) or self.name in _EXPONENT

    @cached_property
    def scale_fields(self) -> tuple[str, ...]:
        """Return the names of the floating-point fields of a block; if there are any, only they can make a weight NaN
        or infinite."""
        if self.layout is None or self.layout.fields is None:
            return ()
        return tuple(name for name in self.layout.names or () if self.layout[name].base.kind == "f")

    def dequantize(self, raw: np.ndarray) -> np.ndarray:
        """Decode rows: uint8 (..., row_bytes) -> float32 (..., cols).

        Raise ValueError if the format cannot be decoded, or if ``raw`` is not rows of whole blocks of bytes.
        """
        if self.layout is None:
            raise ValueError(f"format {self.name} has no dequantizer")
        raw = np.ascontiguousarray(raw)
        if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] % self.block_bytes:
            unit = f"uint8 in multiples of {self.block_bytes} bytes"
            raise ValueError(f"{self.name}: rows must be {unit}, got {raw.dtype} of shape {raw.shape}")
        cols = raw.shape[-1] // self.block_bytes * self.block_elems
        blocks = raw.reshape(-1, self.block_bytes)
        out = np.empty((len(blocks), self.block_elems), np.float32)
        step = max(1, _STEP // self.block_elems)
        # Infinite or NaN scales are data, not a reason to warn: they give infinite or NaN weights.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(blocks), step):
                out[start : start + step] = self._decode(blocks[start : start + step])
        return out.reshape(*raw.shape[:-1], cols)

    def _decode(self, blocks: np.ndarray) -> np.ndarray:
        """Decode blocks: uint8 (n, block_bytes) -> float32 (n, block_elems)."""
        if self.codes is None:
            assert self.layout is not None
            values = blocks.view(self.layout)
            if self.name == "BF16":  # the upper half of a float32
                return (values.astype(np.uint32) << 16).view(np.float32)
            return values.astype(np.float32)
        scale = np.ones((len(blocks), 1), np.float32) if self.scale is None else self.scale.values(blocks)[:, None]
        if self.scales is not None:
            scale = scale * self.scales.values(blocks)
        if self.small is not None and isinstance(self.codes, Numbers):
            codes = self.small.table[self.codes.bits(blocks)]
        else:
            codes = self.codes.values(blocks)
        weights = scale[:, :, None] * codes.reshape(*scale.shape, -1)
        if self.minimum is not None:
            minimum = self.minimum.values(blocks)[:, None]
            weights -= (minimum if self.minima is None else minimum * self.minima.values(blocks))[:, :, None]
        return weights.reshape(len(blocks), -1)

    def first_non_finite(self, raw: np.ndarray) -> int | None:
        """Return the index of the first block of ``raw``, uint8 (n,), with a NaN or infinite scale; None if there is
        no such block, or if the format cannot be decoded.

        In a format without blocks, such as F16, it is the index of the first NaN or infinite value.
        """
        if self.layout is None or self.layout.base.kind == "i":
            return None
        blocks = raw.view(self.layout)
        if self.layout.fields is not None and not self.scale_fields:
            return self._first_decoded(raw.reshape(-1, self.block_bytes))
        fields = [blocks[name] for name in self.scale_fields] or [blocks]
        mask = _EXPONENT[self.name] if not self.scale_fields else _EXPONENT["F16"]
        step = 1 << 20
        for start in range(0, blocks.size, step):
            bad = np.zeros(min(step, blocks.size - start), bool)
            for field in fields:
                bits = field[start : start + step].view(f"<u{field.dtype.itemsize}")
                bad |= (bits & mask) == mask
            if bad.any():
                return start + int(bad.argmax())
        return None

    def _first_decoded(self, blocks: np.ndarray) -> int | None:
        """Do the work of ``first_non_finite`` for formats whose scales are bytes, by decoding the blocks."""
        step = max(1, _STEP // self.block_elems)
        for start in range(0, len(blocks), step):
            bad = ~np.isfinite(self.dequantize(blocks[start : start + step])).all(axis=1)
            if bad.any():
                return start + int(bad.argmax())
        return None

    def row_bytes(self, cols: int) -> int:
        """Return the bytes of a row of ``cols`` weights; raise ValueError unless that is a positive number of whole
        blocks."""
        if cols <= 0 or cols % self.block_elems:
            raise ValueError(f"{self.name} rows come in multiples of {self.block_elems} weights, not {cols}")
        return cols // self.block_elems * self.block_bytes


def block_format(name: str, ggml_id: int, block_elems: int, layout: np.dtype, **facts: Any) -> Format:
    """Return a format that can be decoded, with blocks of ``layout``; ``facts`` are the other fields of ``Format``.

    Unless they say otherwise, the whole block is one group.
    """
    return Format(name, ggml_id, block_elems, layout.itemsize, layout, **{"group": block_elems, **facts})


def size_only(name: str, ggml_id: int, block_elems: int, block_bytes: int) -> Format:
    """Return a format of which only the size is known, so that its tensors can be skipped but not decoded."""
    return Format(name, ggml_id, block_elems, block_bytes)
