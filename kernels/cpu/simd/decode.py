"""Decode weights in registers, from the declaration of their format (``kernels.formats``).

These functions run at compile time and emit the loads, shifts and masks that a declaration calls for. The generated
kernels (``float_rows``, ``integer_rows`` and ``gemm_float``) are built from them.
"""

from __future__ import annotations

import numpy as np
from numba import types

from ...formats import Format
from ...formats.format import Codebook, Half, Levels, Listed, Numbers, Plane, ScatteredHalf, SmallFloat, Trits
from .helpers import broadcast_half, look_up_16
from .vec import Emit, Float, Int, Val, Vec


def _bits(k: Emit, plane: Plane, block: Val, first: int, lanes: int) -> Val:
    """Load numbers ``first`` .. ``first + lanes - 1`` of a plane as bytes: as a vector, or eight of them as one
    int64."""
    mask, bytes_ = (1 << plane.width) - 1, Vec("i8", lanes)
    if plane.run == 1:
        places = plane.places[first : first + lanes]
        if places == tuple((places[0][0] + i // 2, i % 2 * 4) for i in range(lanes)) and plane.width == 4:
            both = k.load(Vec("i8", lanes // 2), block + places[0][0])
            return (both & mask).shuffle([i // 2 + i % 2 * (lanes // 2) for i in range(lanes)], both >> 4)
        start, size = places[0][0], places[-1][0] - places[0][0] + 1
        if plane.width == 1 and size < lanes:  # bits side by side
            spread = k.load(Vec("i8", size), block + start).shuffle([byte - start for byte, _ in places])
            return (spread & [1 << shift for _, shift in places]).compare("!=", 0).zext(bytes_)
        return k.gather(bytes_, [n.trunc(types.int8) for n in _scalars(k, plane, block, first, lanes)])
    step = min(plane.run, lanes)
    word = step == 4  # LLVM would widen a vector of four bytes to one of words
    pieces = []
    for v in range(first, first + lanes, step):
        byte, shift = plane.places[v // plane.run]
        piece = k.load(types.int32 if word else Vec("i8", step), block + (byte + v % plane.run))
        piece = piece >> shift if shift else piece
        pieces.append(piece if shift + plane.width == 8 and not word else piece & (mask * 0x01010101 if word else mask))
    if word and lanes == 8:
        return pieces[0].zext(Int) | (pieces[1].zext(Int) << 32)
    if word:
        return k.gather(Vec("i32", len(pieces)), pieces).bits(bytes_)
    while len(pieces) > 1:
        pieces = [a.cat(b) for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


_WORDS = {1: types.int8, 2: types.int16, 4: types.int32}


def _scalars(k: Emit, plane: Plane, block: Val, first: int, count: int) -> list[Val]:
    """Load numbers ``first`` .. ``first + count - 1`` of a plane as int64, with one load if they fill a word."""
    bits = []
    for v in range(first, first + count):
        byte, shift = plane.places[v // plane.run]
        bits.append(8 * (byte + v % plane.run) + shift)
    start, size = bits[0] // 8, (bits[-1] + plane.width + 7) // 8 - bits[0] // 8
    if size in _WORDS:
        word = k.load(_WORDS[size], block + start).zext(Int)
        return [(word >> bit - 8 * start) & (1 << plane.width) - 1 for bit in bits]
    return [number for i in range(count) for number in _scalars(k, plane, block, first + i, 1)]


def _wide_scalars(k: Emit, numbers: Numbers, block: Val, first: int, count: int) -> list[Val]:
    """Combine the bits of all planes of the numbers, each as int64."""
    whole, above = _scalars(k, numbers.planes[0], block, first, count), numbers.planes[0].width
    for plane in numbers.planes[1:]:
        parts = _scalars(k, plane, block, first, count)
        whole = [low | (high << above) for low, high in zip(whole, parts, strict=True)]
        above += plane.width
    return whole


def _raw(k: Emit, numbers: Numbers, block: Val, first: int, lanes: int) -> Val:
    """Combine the bits of all planes of the numbers, as a vector of bytes."""
    value, above = _bits(k, numbers.planes[0], block, first, lanes), numbers.planes[0].width
    for plane in numbers.planes[1:]:
        value = value | (_bits(k, plane, block, first, lanes) << above)
        above += plane.width
    return value.bits(Vec("i8", lanes))


def numbers(k: Emit, numbers: Numbers, block: Val, first: int, lanes: int) -> Val:
    """Return numbers ``first`` .. ``first + lanes - 1`` (codes or sub-scales) of the block at address ``block`` as
    signed bytes."""
    value = _raw(k, numbers, block, first, lanes)
    value = value * numbers.times if numbers.times != 1 else value
    return value - numbers.zero if numbers.zero else value


def number_floats(k: Emit, spec: Numbers | Listed, block: Val) -> Val:
    """Return all numbers of one kind, such as the sub-scales of a block, as a vector of float32."""
    if isinstance(spec, Listed):
        return k.gather(Vec("f32", spec.count), [_listed(k, spec, block, group) for group in range(spec.count)])
    return numbers(k, spec, block, 0, spec.count).sext(Vec("i32", spec.count)).to_float(Vec("f32", spec.count))


def _listed(k: Emit, spec: Listed, block: Val, group: int) -> Val:
    """Return the scale of a group, for formats that store it as an index into a table."""
    table = k.table("listed_scales", "i32", spec.table.view(np.uint32).tolist())
    return k.load(Float, table + k.load(types.int8, block + (spec.byte + group)).zext(Int) * 4)


class SubScales:
    """The sub-scales s_g of a block, loaded once and spread over the lanes of weights."""

    def __init__(self, k: Emit, fmt: Format, block: Val, element: str):
        """Load the sub-scales as ``element`` "i16" or "f32"."""
        assert fmt.scales is not None
        self.k, self.fmt, self.block, self.element = k, fmt, block, element
        if isinstance(fmt.scales, Listed):
            self.single, self.all = False, number_floats(k, fmt.scales, block)
            return
        self.single = len(fmt.scales.planes) == 1 and fmt.scales.planes[0].run == 1
        if not self.single:
            count = fmt.scales.count
            wide = numbers(k, fmt.scales, block, 0, count).sext(Vec("i16" if element == "i16" else "i32", count))
            self.all = wide if element == "i16" else wide.to_float(Vec("f32", count))

    def lanes(self, groups: list[int]) -> Val:
        """Return the sub-scale of ``groups[i]`` in lane i."""
        if not self.single:
            return self.all.shuffle(groups)
        if len(set(groups)) > 1:
            half = len(groups) // 2
            return self.lanes(groups[:half]).cat(self.lanes(groups[half:]))
        # scattered bytes: cheaper one by one than gathered in a vector
        spec, group = self.fmt.scales, groups[0]
        assert isinstance(spec, Numbers)
        (number,) = _scalars(self.k, spec.planes[0], self.block, group, 1)
        value = (number * spec.times - spec.zero).trunc(types.int16 if self.element == "i16" else types.int32)
        value = value if self.element == "i16" else value.to_float(Float)
        return value.splat(Vec(self.element, len(groups)))


def octets(k: Emit, fmt: Format, block: Val, first: int, lanes: int) -> tuple[Val, Val | None]:
    """Look up ``lanes`` weights, starting at ``first``, of a format with a codebook: return magnitudes and sign masks
    (0 or -1) as bytes, or values and None if the format has no signs."""
    book = fmt.codes
    assert isinstance(book, Codebook)
    width = book.grid.shape[1]
    word, element, shift = {8: (Int, "i64", 3), 4: (types.int32, "i32", 2)}[width]
    words = np.ascontiguousarray(book.grid).view(f"<u{width}")[:, 0].tolist()
    table, indices = (
        k.table(f"{fmt.name}_grid", element, words),
        _wide_scalars(k, book.index, block, first // width, lanes // width),
    )
    values = k.gather(Vec(element, lanes // width), [k.load(word, table + (n << shift)) for n in indices])
    values = values.bits(Vec("i8", lanes))
    if book.shift is not None:
        (plane,) = book.shift.planes
        ones = k.table("ones_by_bit", "i64", [0x0101010101010101, 0xFFFFFFFFFFFFFFFF])
        down = [k.load(Int, ones + (n << 3)) for n in _scalars(k, plane, block, first // 8, lanes // 8)]
        values = values + k.gather(Vec("i64", lanes // 8), down).bits(Vec("i8", lanes))
    if book.signs is None:
        return values, None
    signs = k.table(
        f"signs_{book.signs.width}", "i64", np.ascontiguousarray(book.sign_table >> 7).view(np.int64)[:, 0].tolist()
    )
    (plane,) = book.signs.planes
    masks = [k.load(Int, signs + (n << 3)) for n in _scalars(k, plane, block, first // 8, lanes // 8)]
    return values, k.gather(Vec("i64", lanes // 8), masks).bits(Vec("i8", lanes))


def _trits(k: Emit, spec: Trits, block: Val, first: int, lanes: int) -> Val:
    """Return ``lanes`` weights, starting at ``first``, of a format of base-3 digits: the digits minus one, as bytes."""
    pieces: list[Val] = []
    start = 0
    for byte, count, digits in spec.fields:
        step = min(count, lanes)
        for digit in range(digits):
            for at in range(start, start + count, step):
                if first <= at < first + lanes:
                    raw = k.load(Vec("i8", step), block + (byte + at - start)).zext(Vec("i16", step))
                    pieces.append((((raw * 3**digit & 0xFF) * 3) >> 8) - 1)
                    while len(pieces) > 1 and pieces[-1].ir.type == pieces[-2].ir.type:
                        high = pieces.pop()
                        pieces.append(pieces.pop().cat(high))
            start += count
    (whole,) = pieces
    return whole.trunc(Vec("i8", lanes))


def signed(fmt: Format) -> bool:
    """Return whether codes may be negative before ``octets``' masks are applied."""
    book = fmt.codes
    if isinstance(book, Codebook):
        return book.signs is None
    return isinstance(fmt.small, Levels) or isinstance(book, Trits) or (book is not None and book.range[0] < 0)


def codes(k: Emit, fmt: Format, block: Val, first: int, lanes: int) -> Val:
    """Return the integer codes, before scaling, of ``lanes`` weights starting at ``first``, as signed bytes."""
    if isinstance(fmt.codes, Codebook):
        magnitudes, masks = octets(k, fmt, block, first, lanes)
        return magnitudes if masks is None else (magnitudes ^ masks) - masks
    if isinstance(fmt.codes, Trits):
        return _trits(k, fmt.codes, block, first, lanes)
    assert fmt.codes is not None
    if isinstance(fmt.small, Levels):
        return look_up_16(k, fmt.small.values, _raw(k, fmt.codes, block, first, lanes))
    return numbers(k, fmt.codes, block, first, lanes)


def code_floats(k: Emit, fmt: Format, block: Val, first: int, lanes: int) -> Val:
    """Return the codes of ``lanes`` weights starting at ``first`` as float32, to be multiplied by ``rest(fmt)``."""
    if not isinstance(fmt.small, SmallFloat):
        return codes(k, fmt, block, first, lanes).sext(Vec("i32", lanes)).to_float(Vec("f32", lanes))
    # Move a small float's bits into the fields of a binary16: one multiplication (``rest``) corrects the exponent bias,
    # and the conversion handles subnormals at full speed.
    assert isinstance(fmt.codes, Numbers)
    small, words = fmt.small, Vec("i16", lanes)
    below, up = (1 << small.exponent + small.fraction) - 1, 10 - small.fraction
    raw = _raw(k, fmt.codes, block, first, lanes)
    if below == 127:  # sign extension fills the bits between sign and exponent
        wide = raw.sext(words)
        halves = (wide << up) & ~(0x7FFF & ~(below << up))
    else:
        wide = raw.zext(words)
        halves = ((wide << up) & (below << up)) | ((wide & (below + 1)) << (15 - small.exponent - small.fraction))
    if small.nan:
        halves = k.select((wide & below).compare("==", below), k.const(words, 0x7E00), halves)
    return k.half_to_float(halves)


def rest(fmt: Format) -> float:
    """Return the power of two by which ``code_floats`` of a small-float format must still be multiplied."""
    return 2.0 ** (15 - fmt.small.bias) if isinstance(fmt.small, SmallFloat) else 1.0


def block_scale(k: Emit, fmt: Format, block: Val, kind: Vec) -> Val:
    """Return the scale d of a block in every lane."""
    scale = fmt.scale
    if isinstance(scale, Half):
        d = broadcast_half(k, block + scale.byte, kind)
        return d * scale.factor if scale.factor != 1 else d
    if scale is None:
        return k.const(kind, 1.0)
    if isinstance(scale, ScatteredHalf):
        nibbles = [(k.load(types.int8, block + byte).zext(Int) >> 4) << 4 * i for i, byte in enumerate(scale.places)]
        bits = (nibbles[0] | nibbles[1]) | (nibbles[2] | nibbles[3])
        d = k.half_to_float(bits.trunc(types.int16).splat(Vec("i16", kind.lanes)))
        return d * scale.factor
    # a load that broadcasts costs no arithmetic; 2^(e - bias), subnormal results and NaN would take eight operations
    table = k.table(f"powers_{scale.bias}_{scale.nan}", "i32", scale.table.view(np.uint32).tolist())
    e = k.load(types.int8, block + scale.byte).zext(Int)
    return k.load(Float, table + e * 4).splat(kind)


def block_minimum(k: Emit, fmt: Format, block: Val, kind: Vec) -> Val:
    """Return the minimum dmin of a block in every lane."""
    minimum = fmt.minimum
    assert minimum is not None
    low = broadcast_half(k, block + minimum.byte, kind)
    return low * minimum.factor if minimum.factor != 1 else low


def group_lanes(fmt: Format, first: int, lanes: int) -> list[int]:
    """Return the group of each of ``lanes`` weights starting at ``first``."""
    return [(first + i) // fmt.group for i in range(lanes)]
