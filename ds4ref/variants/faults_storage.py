"""Injected bugs in decoding stored weights, by format: transposed nibbles, swapped fields, wrong bit orders.

A fault gives every matrix product a copy of the weight blocks, rearranged so that our dequantizer returns what a wrong
one would. If no rearrangement does (an entry of a table is wrong), the copy holds the wrong values as float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ds4ref.kernels.formats import FORMATS, codebooks
from ds4ref.kernels.formats.matrix import Matrix

from ..archs.deepseek4.chunk import Chunk
from .faults import Begin, Changed, Fault

PRODUCTS = {"linear": 1, "grouped_linear": 1, "expert_linear": 2, "expert_sum": 2}
"""Ops that read weights, with the index of the weight Matrix among their arguments."""

Rewrite = Callable[[np.ndarray], None]


def _misread(fmt: str, rewrite: Rewrite) -> Begin:
    """Return a ``begin`` function after which matrix products read weights of format ``fmt`` as changed by ``rewrite``,
    which edits an array (n,) of the format's blocks in place."""
    layout = FORMATS[fmt].layout
    assert layout is not None

    def wrong(w: Matrix) -> Matrix:
        data = np.array(w.data)
        rewrite(data.reshape(-1).view(layout))
        return Matrix(w.fmt, data, w.rows, w.cols)

    return _products(fmt, wrong)


def _products(fmt: str, change: Callable[[Matrix], Matrix]) -> Begin:
    """Return a ``begin`` function after which every matrix product uses change(w) for a weight w of format ``fmt``."""

    def wrong(w: Matrix) -> Matrix:
        return change(w) if w.fmt == fmt else w

    def begin(chunk: Chunk) -> None:
        changes = {name: _through(getattr(chunk.ops, name), at, wrong) for name, at in PRODUCTS.items()}
        chunk.ops = Changed(chunk.ops, **changes)

    return begin


def _through(op: Callable, at: int, wrong: Callable[[Matrix], Matrix]) -> Callable:
    def product(*args):
        return op(*args[:at], wrong(args[at]), *args[at + 1 :])

    return product


def _nibbles(field: str) -> Rewrite:
    def rewrite(blocks: np.ndarray) -> None:
        codes = blocks[field].view(np.uint8)
        blocks[field] = (codes >> 4 | codes << 4).view(blocks[field].dtype)

    return rewrite


def _q8_interleaved(blocks: np.ndarray) -> None:
    blocks["q"] = blocks["q"][:, np.arange(32).reshape(2, 16).T.ravel()]


def _q2_bit_order(blocks: np.ndarray) -> None:
    q = blocks["qs"]
    blocks["qs"] = (q & 3) << 6 | (q >> 2 & 3) << 4 | (q >> 4 & 3) << 2 | q >> 6


def _q2_code_order(blocks: np.ndarray) -> None:
    """Treat the four 2-bit codes of a byte as adjacent weights; correct is 32 weights apart."""
    shifts = np.array([0, 2, 4, 6], np.uint8)
    codes = (blocks["qs"][..., None] >> shifts) & 3  # (n, half, byte, k): weight 4 byte + k
    codes = codes.reshape(len(blocks), 2, 4, 32)  # (n, half, k, i): weight 32 k + i
    blocks["qs"] = (codes << shifts[:, None]).sum(axis=2).astype(np.uint8)


def _q2_min_added(blocks: np.ndarray) -> None:
    blocks["dmin"] = -blocks["dmin"]


def _iq2_words_swapped(blocks: np.ndarray) -> None:
    groups = blocks["groups"]
    index, word = groups["index"].copy(), groups["word"].copy()
    groups["index"] = word.astype("<u4")[..., None].view(np.uint8)
    groups["word"] = np.ascontiguousarray(index).view("<u4")[..., 0]


def _iq2_scale_low(blocks: np.ndarray) -> None:
    word = blocks["groups"]["word"]
    blocks["groups"]["word"] = word << 28 | word >> 4


def _iq2_byte_order(blocks: np.ndarray) -> None:
    blocks["groups"]["index"] = blocks["groups"]["index"][..., ::-1].copy()


def _iq2_tables(signs: np.ndarray = codebooks.SIGNS, grid: np.ndarray = codebooks.GRID) -> Begin:
    """Return a ``begin`` function after which IQ2_XXS weights are decoded with these tables: signs (128, 8), magnitudes
    (256, 8)."""

    def decoded(w: Matrix) -> Matrix:
        blocks = w.data.reshape(-1).view(FORMATS["IQ2_XXS"].layout)
        word = blocks["groups"]["word"]
        scale = blocks["d"].astype(np.float32)[:, None] * (0.5 + (word >> 28)).astype(np.float32) * np.float32(0.25)
        octets = signs[word[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127] * grid[blocks["groups"]["index"]]
        values = scale[..., None, None] * octets.astype(np.float32)
        data = values.reshape(*w.data.shape[:-1], w.cols).view(np.uint8)
        return Matrix("F32", data, w.rows, w.cols)

    return _products("IQ2_XXS", decoded)


def _changed(table: np.ndarray, at: tuple, value: int) -> np.ndarray:
    table = table.copy()
    table[at] = value
    return table


def _q4_scale_bits(blocks: np.ndarray) -> None:
    blocks["packed"][:, :8] &= 63


def _storage(fmt: str, name: str, says: str, rewrite: Rewrite) -> Fault:
    return Fault(f"{fmt.lower()}_{name}", f"{fmt}: {says}", _misread(fmt, rewrite), fmt=fmt)


LIST = [
    _storage("Q8_0", "nibbles", "nibbles of a code transposed", _nibbles("q")),
    _storage("Q8_0", "interleaved", "first and second 16 codes interleaved", _q8_interleaved),
    _storage("Q2_K", "scale_nibbles", "scale and minimum nibbles transposed", _nibbles("scales")),
    _storage("Q2_K", "bit_order", "2-bit codes of a byte in reverse order", _q2_bit_order),
    _storage("Q2_K", "code_order", "codes of a byte taken as neighbours", _q2_code_order),
    _storage("Q2_K", "min_added", "minimum added instead of subtracted", _q2_min_added),
    _storage("IQ2_XXS", "words", "codebook indices and sign word exchanged", _iq2_words_swapped),
    _storage("IQ2_XXS", "scale_low", "group scale read from the low bits of the sign word", _iq2_scale_low),
    _storage("IQ2_XXS", "byte_order", "codebook indices in reverse order", _iq2_byte_order),
    Fault("iq2_xxs_sign_parity", "IQ2_XXS: eighth sign of an octet always plus, not the parity of the other seven",
          _iq2_tables(signs=_changed(codebooks.SIGNS, np.s_[:, 7], 1)), fmt="IQ2_XXS"),
    Fault("iq2_xxs_last_signs", "IQ2_XXS: last entry of the sign table missing, read as eight plus signs",
          _iq2_tables(signs=_changed(codebooks.SIGNS, (127,), 1)), fmt="IQ2_XXS"),
    Fault("iq2_xxs_last_magnitudes", "IQ2_XXS: last entry of the codebook missing, read as zeros",
          _iq2_tables(grid=_changed(codebooks.GRID, (255,), 0)), fmt="IQ2_XXS"),
    _storage("Q4_K", "nibbles", "nibbles of a code byte transposed", _nibbles("qs")),
    _storage("Q4_K", "scale_bits", "upper bits of the later scales and minima ignored", _q4_scale_bits),
]  # fmt: skip
