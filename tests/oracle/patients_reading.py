"""Faults of the library about storage formats, made again with gguf-py's dequantizers in place of ours.

A dequantizer that takes two fields for each other gives what a right one gives on blocks with the fields exchanged; so
the blocks are rearranged, byte by byte as the formats are laid down, and gguf-py reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch

from ds4ref.variants import LIBRARY

from .hf import Oracle
from .surgery import Apply, Patient

Rearrange = Callable[[np.ndarray], None]


def misread(fmt: str, rearrange: Rearrange) -> Apply:
    """Every tensor of a format read wrongly; ``rearrange`` changes blocks uint8 (n, bytes of a block) in place."""
    kind = gguf.GGMLQuantizationType[fmt]
    size = gguf.GGML_QUANT_SIZES[kind][1]

    def wrong(data: np.ndarray, qtype: gguf.GGMLQuantizationType) -> np.ndarray:
        if qtype == kind:
            data = np.array(data, np.uint8)
            rearrange(data.reshape(-1, size))
        return right(data, qtype)

    right = gguf.quants.dequantize
    return reread(gguf.quants, "dequantize", lambda: wrong)


def reread(owner: Any, part: str, wrong: Callable[[], Any]) -> Apply:
    """The file read while ``part`` of ``owner``, which belongs to gguf-py, is ``wrong()``."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with patch.object(owner, part, wrong()):
            other = Oracle.load(oracle.path, torch.get_num_threads()).model.state_dict()
        kept = oracle.model.state_dict()
        changed = {name for name, value in other.items() if not torch.equal(value, kept[name])}
        if not changed:
            raise ValueError(f"nothing in {oracle.path} reads otherwise")
        backup = {name: kept[name].clone() for name in changed}
        try:
            with torch.no_grad():
                for name in changed:
                    kept[name].copy_(other[name])
            yield
        finally:
            with torch.no_grad():
                for name in changed:
                    kept[name].copy_(backup[name])

    return apply


def _nibbles(first: int, last: int) -> Rearrange:
    def change(blocks: np.ndarray) -> None:
        part = blocks[:, first:last]
        blocks[:, first:last] = (part << 4) | (part >> 4)

    return change


def _q8_interleaved(blocks: np.ndarray) -> None:
    codes = blocks[:, 2:].copy()
    blocks[:, 2::2], blocks[:, 3::2] = codes[:, :16], codes[:, 16:]


def _q2_bits(blocks: np.ndarray) -> None:
    codes = blocks[:, 16:80]
    crumbs = [(codes >> shift) & 3 for shift in (0, 2, 4, 6)]
    blocks[:, 16:80] = crumbs[0] << 6 | crumbs[1] << 4 | crumbs[2] << 2 | crumbs[3]


def _q2_neighbours(blocks: np.ndarray) -> None:
    """Byte i of a half holds weights i, 32 + i, 64 + i, 96 + i; it is taken to hold 4 i to 4 i + 3."""
    for start in (16, 48):
        codes = blocks[:, start : start + 32]
        taken = np.stack([(codes >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(len(blocks), 128)
        blocks[:, start : start + 32] = sum(taken[:, 32 * k : 32 * k + 32] << (2 * k) for k in range(4))


def _q2_minimum_sign(blocks: np.ndarray) -> None:
    blocks[:, 83] ^= 0x80


def _iq2_groups(change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Rearrange:
    """change(indices (n, 8, 4) uint8, words (n, 8) uint32) of the eight groups of 32 weights."""

    def rearrange(blocks: np.ndarray) -> None:
        groups = blocks[:, 2:].reshape(len(blocks), 8, 8)
        words = groups[..., 4:].copy().view("<u4")[..., 0]
        indices, words = change(groups[..., :4].copy(), words)
        groups[..., :4] = indices
        groups[..., 4:] = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
        blocks[:, 2:] = groups.reshape(len(blocks), 64)

    return rearrange


def _exchanged(indices: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return words.copy().view(np.uint8).reshape(indices.shape), indices.copy().view("<u4")[..., 0]


def _low_scale(indices: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale lies in the top four bits; it is looked for in the lowest, the signs above it."""
    return indices, words >> 4 | (words & 15) << 28


def _backwards(indices: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return indices[..., ::-1], words


def _q4_low_bits(blocks: np.ndarray) -> None:
    """Scales and minima 4 to 7 keep two bits in the tops of the bytes of 0 to 3."""
    blocks[:, 4:12] &= 0x3F


_IQ2 = gguf.quants.IQ2_XXS


def iq2_signs(change: Callable[[int, int], int]) -> Apply:
    """IQ2_XXS with change(entry, its eight signs as bits) for every entry of the table of signs."""
    return reread(_IQ2, "ksigns", lambda: bytes(change(entry, bits) for entry, bits in enumerate(_IQ2.ksigns)))


def iq2_magnitudes(entry: int, change: Callable[[np.ndarray], Any]) -> Apply:
    """IQ2_XXS with change(magnitudes (8,)) in place of one entry of the codebook."""

    def wrong() -> np.ndarray:
        _IQ2.init_grid()
        grid = np.array(_IQ2.grid)
        grid[..., entry, :] = change(grid[..., entry, :])
        return grid

    return reread(_IQ2, "grid", wrong)


_APPLY: dict[str, Apply] = {
    "q8_0_nibbles": misread("Q8_0", _nibbles(2, 34)),
    "q8_0_interleaved": misread("Q8_0", _q8_interleaved),
    "q2_k_scale_nibbles": misread("Q2_K", _nibbles(0, 16)),
    "q2_k_bit_order": misread("Q2_K", _q2_bits),
    "q2_k_code_order": misread("Q2_K", _q2_neighbours),
    "q2_k_min_added": misread("Q2_K", _q2_minimum_sign),
    "iq2_xxs_words": misread("IQ2_XXS", _iq2_groups(_exchanged)),
    "iq2_xxs_scale_low": misread("IQ2_XXS", _iq2_groups(_low_scale)),
    "iq2_xxs_byte_order": misread("IQ2_XXS", _iq2_groups(_backwards)),
    "iq2_xxs_sign_parity": iq2_signs(lambda entry, bits: bits & 127),
    "iq2_xxs_last_signs": iq2_signs(lambda entry, bits: 0 if entry == 127 else bits),
    "iq2_xxs_last_magnitudes": iq2_magnitudes(255, np.zeros_like),
    "q4_k_nibbles": misread("Q4_K", _nibbles(16, 144)),
    "q4_k_scale_bits": misread("Q4_K", _q4_low_bits),
}

READING_PATIENTS = [Patient(name, LIBRARY[name].says, apply) for name, apply in _APPLY.items()]
