"""Decoders of block formats, generated from their declarations (``ds4ref.kernels.formats``).

``unit_of(fmt)`` returns a ``Unit``: the byte layout of a block, and a device function ``decode(words, at, skew, j,
tables)`` that one lane calls for 32 weights. ``at`` is the byte of ``words`` (a multiple of 4) at or before the block's
first byte, ``skew`` (0 to 3) the bytes between them; j is the number of the unit in its block. It returns

    (q0, ..., q7, d, s, t, low, m)    w = d s q            q: the signed bytes of the eight words
                                      w = d s q or d t q   if ``halves``: s for words 0 to 3, t for the others
                                      ... - low m_h        if ``minima``: m_h is byte h of m, for half h of the unit

d and low are float32, products of a binary16 or a power of two with a power of two; s, t and m are int32, s is 1 unless
``scaled``.

Words q_i hold weights ``column(j, i)`` .. +3 of the block. Minima belong to weights 32 j .. 32 j + 15 and the 16 after
them. The same units feed dot products with integer inputs (dp4a), with floats, and tensor-core tiles.

A plane (``formats.format.Plane``) gives the byte and the shift of each number. In most formats both are sums over the
bits of the number's index, so a few terms ((index >> s) & mask) * step compute them for any unit. ``Unsupported`` is
raised for codes that are not signed bytes, codebooks, bytes or shifts that are not such sums, and numbers that cross
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...formats import Format
from ...formats.format import Half, Listed, Numbers, Plane, PowerOfTwo, ScatteredHalf
from ..driver.intrinsics import (
    bits_to_float,
    funnel_right,
    half_to_float,
    permute_bytes,
    shift_left,
    shift_right,
    word_at,
)
from ..driver.shim import cuda

F32, I32 = np.float32, np.int32
ZERO, NONE, ONE = F32(0), I32(0), I32(1)
UNIT = 32
"""Weights per unit."""
Function = Callable[..., Any]


class Unsupported(ValueError):
    """No decoder can be generated for this declaration."""


class Unit(NamedTuple):
    """How kernels decode a format: the byte layout of its blocks, and the device function ``decode`` (see the module's
    docstring). ``table`` has the look-up words that ``decode`` needs, of which each lane gets a copy."""

    name: str
    block_bytes: int
    per_block: int
    activation: str
    decode: Function
    column: Function
    minima: bool = False
    halves: bool = False
    scaled: bool = False
    table: np.ndarray | None = None


@cuda.jit(device=True)
def straight(j, i):
    """Return the number in the block of the first weight in word i of unit j, for words in the order of the weights."""
    return 32 * j + 4 * i


def repeated(byte: int) -> np.int32:
    """Return a word of four equal bytes."""
    return np.uint32(0x01010101 * byte).view(np.int32)


@cuda.jit(device=True)
def byte_at(words, at, byte):
    """Load byte ``at + byte``, with those above it in its word; ``at`` is a multiple of 4."""
    return shift_right(word_at(words, at + (byte & ~3)), (byte & 3) << 3)


# --- places of numbers


def _steps(values: Sequence[int]) -> list[int]:
    """Return what each bit of an index adds to ``values[0]``; raise Unsupported unless that gives all values."""
    steps = [values[1 << bit] - values[0] for bit in range((len(values) - 1).bit_length())]
    for index, value in enumerate(values):
        if value != values[0] + sum(step for bit, step in enumerate(steps) if index >> bit & 1):
            raise Unsupported("places that are no sums over the bits of an index")
    return steps


def _computed(values: Sequence[int]) -> Function:
    """Make a device function that computes ``values[index]``."""
    terms: list[tuple[int, int, int]] = []  # shift, mask, step
    for bit, step in enumerate(_steps(values)):
        if terms and step and step == terms[-1][2] << (bit - terms[-1][0]) and terms[-1][1] >> (bit - 1 - terms[-1][0]):
            shift, mask, first = terms.pop()
            terms.append((shift, 2 * mask + 1, first))
        elif step:
            terms.append((bit, 1, step))
    if len(terms) > 3:
        raise Unsupported("places in more than three terms")
    base = values[0]
    (s0, m0, t0), (s1, m1, t1), (s2, m2, t2) = (*terms, *[(0, 0, 0)] * 3)[:3]

    @cuda.jit(device=True)
    def value(index):
        return I32(base + ((index >> s0) & m0) * t0 + ((index >> s1) & m1) * t1 + ((index >> s2) & m2) * t2)

    return value


class _Places(NamedTuple):
    """The byte and the shift of every number of a plane."""

    bytes: list[int]
    shifts: list[int]


def _places(plane: Plane) -> _Places:
    positions = [(byte + i, shift) for byte, shift in plane.places for i in range(plane.run)]
    if any(shift + plane.width > 8 for _, shift in positions):
        raise Unsupported("numbers across bytes")
    return _Places([byte for byte, _ in positions], [shift for _, shift in positions])


# --- four bytes, four codes


def _four_bytes(block_bytes: int, offset: int) -> Function:
    """Make a device function that loads the four bytes of a block from ``byte`` on, a number that is ``offset`` (0 to
    3) past a multiple of 4. It loads only words that contain some of them."""
    even = block_bytes % 2 == 0

    @cuda.jit(device=True)
    def aligned(words, at, skew, byte):
        return word_at(words, at + byte)

    @cuda.jit(device=True)
    def skewed(words, at, skew, byte):
        behind = I32(skew << 1) if even else I32((skew + 3) & 4)
        return funnel_right(word_at(words, at + byte), word_at(words, at + byte + behind), skew << 3)

    @cuda.jit(device=True)
    def across(words, at, skew, byte):
        first = at + byte - offset
        return funnel_right(word_at(words, first), word_at(words, first + 4), (skew << 3) + 8 * offset)

    if offset and offset + (0 if block_bytes % 4 == 0 else 2 if even else 3) > 4:
        raise Unsupported("codes that lie anywhere")
    if offset:
        return across
    return skewed if block_bytes % 4 else aligned


def _four_codes(plane: Plane, block_bytes: int) -> Function:
    """Make a device function that returns numbers ``index`` to ``index`` + 3 of a plane as four bytes of a word;
    ``index`` is a multiple of 4."""
    places, width = _places(plane), plane.width
    byte_steps, shift_steps = _steps(places.bytes), _steps(places.shifts)
    byte, shift = _computed(places.bytes), _computed(places.shifts)
    if byte_steps[:2] == [1, 2] and shift_steps[:2] == [0, 0] and not any(step % 4 for step in byte_steps[2:]):
        four, mask = _four_bytes(block_bytes, places.bytes[0] & 3), repeated((1 << width) - 1)

        @cuda.jit(device=True)
        def from_four_bytes(words, at, skew, index):
            return I32(shift_right(four(words, at, skew, byte(index)), shift(index)) & mask)

        return from_four_bytes
    if byte_steps[:2] == [0, 0] and shift_steps[:2] == [width, 2 * width]:
        one = I32((1 << width) - 1)

        @cuda.jit(device=True)
        def from_one_byte(words, at, skew, index):
            bits = shift_right(byte_at(words, at, skew + byte(index)), shift(index))
            low = (bits & one) | shift_left(bits & (one << width), 8 - width)
            high = shift_left(bits & (one << (2 * width)), 16 - 2 * width)
            return I32(low | high | shift_left(bits & (one << (3 * width)), 24 - 3 * width))

        return from_one_byte
    raise Unsupported("four codes that lie apart")


def _joined(low: Function, high: Function, above: int) -> Function:
    @cuda.jit(device=True)
    def codes(words, at, skew, index):
        return I32(low(words, at, skew, index) | shift_left(high(words, at, skew, index), above))

    return codes


def _minus(codes: Function, zero: int) -> Function:
    """Make a device function that subtracts ``zero`` from each of the four codes that ``codes`` returns, without
    borrows between bytes."""
    more, top_bits = repeated(128 - zero), repeated(128)

    @cuda.jit(device=True)
    def less(words, at, skew, index):
        return I32((codes(words, at, skew, index) + more) ^ top_bits)

    return less


def _look_up(codes: Function, values: np.ndarray) -> Function:
    """Make a device function that maps the 4-bit codes that ``codes`` returns to ``values``, 16 signed bytes."""
    v0, v1, v2, v3 = values.astype(np.int8).view(np.int32)
    bit3, all_bits = repeated(8), I32(255)

    @cuda.jit(device=True)
    def values_of(words, at, skew, index):
        code = codes(words, at, skew, index)
        pairs = I32(code | shift_right(code, 4))
        selector = I32((pairs & 0x77) | (shift_right(pairs, 8) & 0x7700))
        upper = I32(shift_right(code & bit3, 3) * all_bits)
        return I32((permute_bytes(v0, v1, selector) & ~upper) | (permute_bytes(v2, v3, selector) & upper))

    return values_of


def _codes(fmt: Format) -> Function:
    """Make a device function (words, at, skew, index) that returns four codes as signed bytes."""
    numbers = fmt.codes
    if not isinstance(numbers, Numbers):
        raise Unsupported("a codebook")
    if numbers.times != 1 or numbers.signed and numbers.width != 8:
        raise Unsupported("codes that are no plain integers")
    combined, above = _four_codes(numbers.planes[0], fmt.block_bytes), numbers.planes[0].width
    for plane in numbers.planes[1:]:
        combined, above = _joined(combined, _four_codes(plane, fmt.block_bytes), above), above + plane.width
    if fmt.small is not None:
        values = fmt.small.table
        if len(values) != 16 or not np.array_equal(values, np.clip(np.rint(values), -127, 127)):
            raise Unsupported("codes that are no small integers")
        return _look_up(combined, values)
    low, high = numbers.range
    if low < -127 - numbers.signed or high > 127:
        raise Unsupported("codes that are no signed bytes")
    return _minus(combined, numbers.zero) if numbers.zero else combined


# --- scales


def _number(numbers: Numbers) -> Function:
    """Make a device function (words, at, skew, index) that returns one number as int32."""

    def bits_of(plane: Plane) -> Function:
        places, mask = _places(plane), (1 << plane.width) - 1
        byte, shift = _computed(places.bytes), _computed(places.shifts)

        @cuda.jit(device=True)
        def bits(words, at, skew, index):
            return I32(shift_right(byte_at(words, at, skew + byte(index)), shift(index)) & mask)

        return bits

    combined, above = bits_of(numbers.planes[0]), numbers.planes[0].width
    for plane in numbers.planes[1:]:
        combined, above = _joined(combined, bits_of(plane), above), above + plane.width
    times, zero, sign = I32(numbers.times), I32(numbers.zero), I32((1 << (numbers.width - 1)) if numbers.signed else 0)

    @cuda.jit(device=True)
    def number(words, at, skew, index):
        return I32(times * ((combined(words, at, skew, index) ^ sign) - sign) - zero)

    return number


def _factor(scale: Half | PowerOfTwo, block_bytes: int) -> Function:
    """Make a device function (words, at, skew) that returns a scale of the block as float32."""
    byte = scale.byte
    if isinstance(scale, Half):
        factor = F32(scale.factor)
        if block_bytes % 2 or byte % 2:
            raise Unsupported("a binary16 at an odd byte")

        @cuda.jit(device=True)
        def half(words, at, skew):
            return half_to_float(byte_at(words, at, skew + byte)) * factor

        return half
    if scale.nan:
        raise Unsupported("a scale that may be NaN")
    bias = scale.bias

    @cuda.jit(device=True)
    def power(words, at, skew):
        """Multiply two powers of two whose exponents are in the normal range."""
        e = I32(byte_at(words, at, skew + byte) & 255)
        part = I32(e >> 1)
        rest = I32(e - part + 64 - bias)
        return bits_to_float(shift_left(I32(part - 64 + 127), 23)) * bits_to_float(shift_left(I32(rest + 127), 23))

    return power


def unit_of(fmt: Format) -> Unit:
    """Generate the decoder of a format; raise Unsupported if that is impossible."""
    if isinstance(fmt.scale, ScatteredHalf) or isinstance(fmt.scales, Listed):
        raise Unsupported("scales that are no field of numbers")
    if fmt.codes is None or fmt.scale is None or fmt.block_elems not in (UNIT, 8 * UNIT):
        raise Unsupported(f"{fmt.name} has no blocks of one or eight units")
    if fmt.scales is not None and fmt.group not in (UNIT, UNIT // 2):
        raise Unsupported("groups of other than 16 or 32 weights")
    if fmt.minimum is not None and fmt.minima is None:
        raise Unsupported("a minimum of the whole block: inputs of 32 are packed without their sum")
    codes, scale_at = _codes(fmt), _factor(fmt.scale, fmt.block_bytes)
    scaled, minima = fmt.scales is not None, fmt.minima is not None
    by_half = fmt.scales is not None and fmt.group < UNIT
    sub_scale = _number(fmt.scales) if fmt.scales is not None else _nothing
    minimum = _number(fmt.minima) if fmt.minima is not None else _nothing
    low_at = _factor(fmt.minimum, fmt.block_bytes) if fmt.minimum is not None else _no_factor
    at_words = fmt.block_bytes % 4 == 0

    @cuda.jit(device=True)
    def decode(words, at, skew, j, tables):
        if at_words:
            skew = I32(0)
        v = 32 * j
        d, s, t, low, m = scale_at(words, at, skew), ONE, ONE, ZERO, NONE
        if minima:
            low = low_at(words, at, skew)
            if by_half:
                m = I32(minimum(words, at, skew, 2 * j) | minimum(words, at, skew, 2 * j + 1) << 8)
            else:
                m = I32(minimum(words, at, skew, j) * 0x0101)
        if by_half:
            s, t = sub_scale(words, at, skew, 2 * j), sub_scale(words, at, skew, 2 * j + 1)
        elif scaled:
            s = sub_scale(words, at, skew, j)
        return (
            codes(words, at, skew, v), codes(words, at, skew, v + 4), codes(words, at, skew, v + 8),
            codes(words, at, skew, v + 12), codes(words, at, skew, v + 16), codes(words, at, skew, v + 20),
            codes(words, at, skew, v + 24), codes(words, at, skew, v + 28), d, s, t, low, m,
        )  # fmt: skip

    per_block = fmt.block_elems // UNIT
    return Unit(fmt.name, fmt.block_bytes, per_block, fmt.activation, decode, straight, minima, by_half, scaled)


@cuda.jit(device=True)
def _nothing(words, at, skew, index):
    return NONE


@cuda.jit(device=True)
def _no_factor(words, at, skew):
    return ZERO
