"""What a storage format is: a name, a GGUF type id, a block size, and perhaps a dequantizer.

A row of ``cols`` weights is stored as ``cols / block_elems`` blocks of ``block_bytes`` bytes, without padding
(docs/model.md 2.1). Formats the engine only has to *size* (to lay out or skip a tensor) have no dequantizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Values decoded per step: keeps the temporaries of a step inside the second-level cache.
_STEP = 1 << 17

# Exponent bits: all of them set means NaN or infinite. Scales inside blocks are F16, or no IEEE numbers at all.
_EXPONENT = {"F32": np.uint32(0x7F800000), "F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}


@dataclass(frozen=True)
class Format:
    """One storage format.

    ggml_id     type id in GGUF; negative for a format that GGUF does not have
    layout      the block as a packed little-endian NumPy record; None for size-only formats
    dequantize  raw uint8 (..., row_bytes) -> float32 (..., cols); None for size-only formats
    """

    name: str
    ggml_id: int
    block_elems: int
    block_bytes: int
    layout: np.dtype | None = None
    dequantize: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def scale_fields(self) -> tuple[str, ...]:
        """Names of the floating-point fields of a block: the only bytes that can make a weight NaN or infinite."""
        if self.layout is None or self.layout.fields is None:
            return ()
        return tuple(name for name in self.layout.names or () if self.layout[name].base.kind == "f")

    def first_non_finite(self, raw: np.ndarray) -> int | None:
        """Index of the first block of ``raw``, uint8 (n,), that holds a NaN or infinite scale (or value, if the format
        has no blocks). None if all are finite, and for formats without a dequantizer."""
        if self.layout is None or self.dequantize is None or self.layout.base.kind == "i":
            return None
        blocks = raw.view(self.layout)
        if self.layout.fields is not None and not self.scale_fields:
            return self._first_decoded(raw.reshape(-1, self.block_bytes), self.dequantize)
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

    def _first_decoded(self, blocks: np.ndarray, dequantize: Callable[[np.ndarray], np.ndarray]) -> int | None:
        """``first_non_finite`` of formats whose scales are bytes: only decoding tells."""
        step = max(1, _STEP // self.block_elems)
        for start in range(0, len(blocks), step):
            bad = ~np.isfinite(dequantize(blocks[start : start + step])).all(axis=1)
            if bad.any():
                return start + int(bad.argmax())
        return None

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row of ``cols`` weights; ValueError unless ``cols`` is a positive multiple of the block."""
        if cols <= 0 or cols % self.block_elems:
            raise ValueError(f"{self.name} rows come in multiples of {self.block_elems} weights, not {cols}")
        return cols // self.block_elems * self.block_bytes


def size_only(name: str, ggml_id: int, block_elems: int, block_bytes: int) -> Format:
    """A format that is known by its size alone."""
    return Format(name, ggml_id, block_elems, block_bytes)


def block_format(
    name: str, ggml_id: int, block_elems: int, layout: np.dtype, decode: Callable[[np.ndarray], np.ndarray]
) -> Format:
    """A format with a dequantizer. ``decode`` maps records of ``layout``, (n,), to float32, (n, block_elems)."""

    def dequantize(raw: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(raw)
        if raw.dtype != np.uint8 or raw.ndim == 0 or raw.shape[-1] % layout.itemsize:
            unit = f"uint8 in multiples of {layout.itemsize} bytes"
            raise ValueError(f"{name} rows are {unit}, not {raw.dtype} {raw.shape}")
        blocks = raw.reshape(-1).view(layout)
        out = np.empty((blocks.size, block_elems), np.float32)
        step = max(1, _STEP // block_elems)
        # Infinite or NaN scales are data, not a reason to warn: they give infinite or NaN weights.
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, blocks.size, step):
                out[start : start + step] = decode(blocks[start : start + step])
        return out.reshape(*raw.shape[:-1], raw.shape[-1] // layout.itemsize * block_elems)

    return Format(name, ggml_id, block_elems, layout.itemsize, layout, dequantize)
