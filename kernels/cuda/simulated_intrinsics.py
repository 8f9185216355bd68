"""Python meanings of ``intrinsics``, for the simulator. What each one does is said here, once for both.

Arrays inside simulated kernels wrap NumPy arrays; ``_plain`` unwraps them. Integers come as NumPy scalars or Python
ints; results are ``np.int32`` or ``np.float32``, as compiled.
"""

from __future__ import annotations

import struct
from operator import mul
from typing import Any

import numpy as np

from .simulation import WARP, this_lane, warp_together, warp_values

__all__ = [
    "add_halves",
    "bits_to_float",
    "copy16",
    "copy_commit",
    "copy_wait0",
    "copy_wait1",
    "copy_wait2",
    "divide",
    "dp2a_codes",
    "dp2a_low",
    "dp4a",
    "dp4a_codes",
    "element",
    "float_bits",
    "float_to_half",
    "funnel_right",
    "half_to_float",
    "lane_value",
    "load4",
    "mma_bf16",
    "mma_f16",
    "mma_s8",
    "permute_bytes",
    "put4",
    "read2",
    "read4",
    "remainder",
    "shift_left",
    "shift_right",
    "shuffle_xor",
    "store4",
    "stream4",
    "sync_warp",
    "warp_any",
    "warp_ballot",
    "warp_max",
    "warp_sum",
    "word_at",
    "words_at",
]

I32, F32 = np.int32, np.float32
LOW, SIGN = 0xFFFFFFFF, 0x80000000
SIGNED = struct.Struct("4b")


def _plain(array: Any) -> np.ndarray:
    while not isinstance(array, np.ndarray):
        array = array._item if hasattr(type(array), "__array_ufunc__") else array._ary
    return array


def _word(value: int) -> np.int32:
    """The low 32 bits."""
    return I32(((int(value) & LOW) ^ SIGN) - SIGN)


def _bytes(word: Any) -> tuple[int, ...]:
    """The four signed bytes of a word."""
    return SIGNED.unpack((int(word) & LOW).to_bytes(4, "little"))


def _codes(word: Any) -> bytes:
    """The four unsigned bytes of a word."""
    return (int(word) & LOW).to_bytes(4, "little")


# --- words


def dp4a(a: Any, b: Any, c: Any) -> np.int32:
    """c + the dot product of four signed bytes each."""
    return _word(int(c) + sum(map(mul, _bytes(a), _bytes(b))))


def dp4a_codes(a: Any, b: Any, c: Any) -> np.int32:
    """c + the dot product of the four unsigned bytes of a and the signed ones of b."""
    return _word(int(c) + sum(map(mul, _codes(a), _bytes(b))))


def dp2a_low(a: Any, b: Any, c: Any) -> np.int32:
    """c + the dot product of the two int16 of a and the two low signed bytes of b."""
    halves = [((int(a) >> (16 * i) & 0xFFFF) ^ 0x8000) - 0x8000 for i in range(2)]
    return _word(int(c) + sum(map(mul, halves, _bytes(b))))


def dp2a_codes(a: Any, b: Any, c: Any) -> np.int32:
    """c + the dot product of the two int16 of a and the two low unsigned bytes of b."""
    halves = [((int(a) >> (16 * i) & 0xFFFF) ^ 0x8000) - 0x8000 for i in range(2)]
    return _word(int(c) + sum(map(mul, halves, _codes(b))))


def permute_bytes(a: Any, b: Any, selector: Any) -> np.int32:
    """Four bytes out of the eight of a (0 to 3) and b (4 to 7), chosen by the low four nibbles of ``selector``; a
    nibble's highest bit asks for the byte's sign in all bits instead."""
    pool, chosen, out = (int(b) & LOW) << 32 | int(a) & LOW, int(selector), 0
    for to in (0, 8, 16, 24):
        byte = pool >> (8 * (chosen & 7)) & 255
        if chosen & 8:
            byte = 255 if byte & 128 else 0
        out |= byte << to
        chosen >>= 4
    return _word(out)


def funnel_right(low: Any, high: Any, count: Any) -> np.int32:
    """The low word of the pair shifted right by ``count`` bits, at most 32."""
    pair = (int(high) & 0xFFFFFFFF) << 32 | (int(low) & 0xFFFFFFFF)
    return _word(pair >> min(int(count) & 0xFFFFFFFF, 32))


def shift_right(word: Any, count: Any) -> np.int32:
    """Zeros come in from above; ``count`` below 32."""
    return _word((int(word) & 0xFFFFFFFF) >> int(count))


def shift_left(word: Any, count: Any) -> np.int32:
    """``count`` below 32."""
    return _word(int(word) << int(count))


def divide(a: Any, b: Any) -> np.int32:
    """a // b of words that are not negative: a tenth of the instructions of Numba's 64-bit floor division."""
    assert a >= 0 and b > 0
    return I32(int(a) // int(b))


def remainder(a: Any, b: Any) -> np.int32:
    """a % b of words that are not negative."""
    assert a >= 0 and b > 0
    return I32(int(a) % int(b))


# --- floats


def half_to_float(bits: Any) -> np.float32:
    """The binary16 in the low half of a word."""
    return F32(np.uint16(int(bits) & 0xFFFF).view(np.float16))


def float_to_half(value: Any) -> np.int32:
    """Bits of the nearest binary16, half to even, overflow to infinity."""
    with np.errstate(over="ignore"):
        return I32(F32(value).astype(np.float16).view(np.uint16))


def add_halves(a: Any, b: Any) -> np.int32:
    """The sums of the low and of the high binary16 of two words, each rounded to the nearest one."""
    pairs = [np.array([int(word) & 0xFFFFFFFF], np.uint32).view(np.float16) for word in (a, b)]
    with np.errstate(all="ignore"):
        return I32((pairs[0] + pairs[1]).view(I32)[0])


def bits_to_float(word: Any) -> np.float32:
    """A word's bits as a float32."""
    return (word if isinstance(word, I32) else _word(word)).view(F32)


def float_bits(value: Any) -> np.int32:
    """A float32's bits as a word."""
    return F32(value).view(I32)


# --- memory


def element(array: Any, index: Any) -> Any:
    """``array[index]``, a 4-byte value. A plain subscript would have the compiled code ask whether it counts from the
    end."""
    assert index >= 0
    return _plain(array)[index]


def word_at(words: Any, at: int) -> np.int32:
    """The word at byte ``at``, a multiple of 4, of any array. Constant offsets cost nothing this way. What lies behind
    the end may be read, as far as the next multiple of 16, but must not matter."""
    assert at % 4 == 0 and at >= 0
    return I32(_bytes_at(words, int(at), 4)[0])


def words_at(words: Any, at: int) -> tuple[np.int32, ...]:
    """Four words at byte ``at``, a multiple of 16, of any array."""
    assert at % 16 == 0 and at >= 0
    return tuple(_bytes_at(words, int(at), 16))


def _bytes_at(array: Any, at: int, count: int) -> np.ndarray:
    """Words from ``at`` on; zeros behind the end."""
    plain = _plain(array)
    size = plain.itemsize
    if at % size == 0 and at + count <= plain.nbytes:
        return plain[at // size : (at + count) // size].view(I32)
    raw = plain.reshape(-1).view(np.uint8)[at : at + count]
    return np.concatenate((raw, np.zeros(count - len(raw), np.uint8))).view(I32)


def load4(words: Any, index: int) -> tuple[np.int32, ...]:
    """Four words of a shared or global int32 array."""
    return tuple(_plain(words)[index : index + 4])


def store4(words: Any, index: int, value: Any) -> None:
    """Four times a word into a shared int32 array, at a multiple of 4."""
    assert index % 4 == 0
    _plain(words)[index : index + 4] = value


def put4(words: Any, index: int, a: Any, b: Any, c: Any, d: Any) -> None:
    """Four words into a shared or global int32 array, at a multiple of 4."""
    assert index % 4 == 0
    _plain(words)[index : index + 4] = a, b, c, d


def stream4(raw: Any, index: int) -> tuple[np.int32, ...]:
    """Four words at byte ``index`` of a global uint8 array that no kernel writes meanwhile; not kept in the cache."""
    assert index % 16 == 0
    return tuple(_plain(raw)[index : index + 16].view(I32))


def read4(words: Any, index: int) -> tuple[np.int32, ...]:
    """Four words of a global array of 4-byte values that no kernel writes meanwhile."""
    assert index % 4 == 0
    return tuple(_plain(words)[index : index + 4].view(I32))


def read2(words: Any, index: int) -> tuple[np.int32, ...]:
    """Two words of a global array of 4-byte values that no kernel writes meanwhile, at a multiple of 8 bytes."""
    assert index % 2 == 0
    return tuple(_plain(words)[index : index + 2].view(I32))


def copy16(target: Any, word: int, raw: Any, index: int) -> None:
    """Begin to copy 16 bytes from ``index`` of a global array of bytes or words to a shared int32 array. They are there
    once this thread has waited for the group they were committed with; for others of the warp, after ``sync_warp``
    then."""
    assert index * _plain(raw).itemsize % 16 == 0 and word % 4 == 0
    source = _plain(raw)[index : index + 16 // _plain(raw).itemsize].view(np.uint8)
    # an allocation is a multiple of 256 bytes, so reading on behind the last row is harmless; its bytes are not used
    _plain(target)[word : word + 4] = np.concatenate((source, np.zeros(16 - len(source), np.uint8))).view(I32)


def copy_commit() -> None:
    """Make a group of the copies that this thread began since the last one."""


def copy_wait0() -> None:
    """Until all groups of this thread are there."""


def copy_wait1() -> None:
    """Until all groups but the last one are there."""


def copy_wait2() -> None:
    """Until all groups but the last two are there."""


# --- warps


def sync_warp() -> None:
    """Until all lanes are here; what they wrote before is visible to them after."""
    lane = this_lane()
    lane.block.wait(lane.thread_id // WARP, lane)


def shuffle_xor(value: Any, mask: int) -> Any:
    """``value`` of the lane whose number differs by ``mask``; int32 or float32 or float64."""
    return warp_values(value)[this_lane().thread_id % WARP ^ int(mask)]


def lane_value(value: Any, lane: int) -> Any:
    """``value`` of lane ``lane`` (mod 32)."""
    return warp_values(value)[int(lane) % WARP]


def _butterfly(value: Any, join: Any) -> Any:
    """As the compiled code does it: partners 16, 8, 4, 2, 1 apart, so that the bits are the same."""

    def joined(values: list[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            for mask in (16, 8, 4, 2, 1):
                values = [join(values[i], values[i ^ mask]) for i in range(WARP)]
        return values

    return warp_together(value, joined)[this_lane().thread_id % WARP]


def warp_sum(value: Any) -> Any:
    """The sum over all lanes, in each of them; float32, float64 or int32."""
    return _butterfly(value, lambda a, b: a + b)


def warp_max(value: Any) -> Any:
    """The maximum over all lanes, in each of them; NaN counts as nothing."""
    return _butterfly(value, np.fmax)


def warp_ballot(condition: Any) -> np.int32:
    """Bit i: whether the condition holds in lane i."""
    return _word(sum(bool(value) << i for i, value in enumerate(warp_values(condition))))


def warp_any(condition: Any) -> bool:
    """Whether the condition holds in one lane."""
    return any(map(bool, warp_values(condition)))


# --- tensor cores. Of a lane with number l: row r = l // 4, column pair c = l % 4


def _product(a: tuple[Any, ...], b: tuple[Any, ...], per_word: int, kind: str) -> list[Any]:
    """A lane's four values of A B, (16, k) times (k, 8), from the words of all lanes; ``per_word`` values of type
    ``kind`` in a word. They are in rows r, r, r + 8, r + 8 and columns 2c, 2c + 1."""

    def whole(values: list[Any]) -> np.ndarray:
        words = np.array([[int(word) & 0xFFFFFFFF for word in (*of_a, *of_b)] for of_a, of_b in values], np.uint32)
        if kind == "bf16":
            raw: np.ndarray = (words.view(np.uint16).astype(np.uint32) << 16).view(F32)
        else:
            raw = words.view(kind)
        parts = raw.astype(np.float64).reshape(8, 4, 6, per_word)  # row or column, c, word, value
        A = parts[:, :, :4].reshape(8, 4, 2, 2, per_word).transpose(3, 0, 2, 1, 4).reshape(16, -1)
        B = parts[:, :, 4:].transpose(2, 1, 3, 0).reshape(-1, 8)
        with np.errstate(all="ignore"):
            return A @ B

    C = warp_together((a, b), whole)
    lane = this_lane().thread_id % WARP
    r, c = lane // 4, 2 * (lane % 4)
    return [C[r, c], C[r, c + 1], C[r + 8, c], C[r + 8, c + 1]]


def mma_s8(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
) -> tuple[np.int32, ...]:
    """C + A B of int8: A (16, 32), B (32, 8), C (16, 8) int32.

    a0: row r, bytes 4c..4c+3; a1: row r + 8; a2, a3: the same 16 further. b0: column r, rows 4c..4c+3; b1: 16 further.
    c0, c1: row r, columns 2c, 2c+1; c2, c3: row r + 8.
    """
    product = _product((a0, a1, a2, a3), (b0, b1), 4, "i1")
    return tuple(_word(int(p) + int(c)) for p, c in zip(product, (c0, c1, c2, c3), strict=True))


def _mma_16(operands: tuple[Any, ...], kind: str) -> tuple[np.float32, ...]:
    a, b, c = operands[:4], operands[4:6], operands[6:]
    with np.errstate(all="ignore"):
        return tuple(F32(p + float(old)) for p, old in zip(_product(a, b, 2, kind), c, strict=True))


def mma_f16(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
) -> tuple[np.float32, ...]:
    """C + A B of binary16: A (16, 16), B (16, 8), C (16, 8) float32.

    a0: row r, values 2c, 2c+1; a1: row r + 8; a2, a3: the same 8 further. b0: column r, rows 2c, 2c+1; b1: 8 further.
    C as in ``mma_s8``.
    """
    return _mma_16((a0, a1, a2, a3, b0, b1, c0, c1, c2, c3), "f2")


def mma_bf16(
    a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any
) -> tuple[np.float32, ...]:
    """``mma_f16`` of bfloat16."""
    return _mma_16((a0, a1, a2, a3, b0, b1, c0, c1, c2, c3), "bf16")
