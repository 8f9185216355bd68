"""Folders in GPTQ and AWQ for tests, and their dequantization, written from the public descriptions of both formats.

Codes are packed and unpacked one at a time with Python's integers; nothing is shared with ``ds4ref.weights.packed4``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from ds4ref.archs.dense.shape import DenseShape

from . import dense

Arrays = dict[str, np.ndarray]
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)


class Kind(NamedTuple):
    """How a folder is packed. ``group`` -1: all inputs; ``v2``: zero points as they are."""

    method: str = "gptq"
    group: int = 32
    symmetric: bool = True
    ordered: bool = False
    v2: bool = False

    @property
    def config(self) -> dict[str, Any]:
        if self.method == "awq":
            return {"quant_method": "awq", "bits": 4, "group_size": self.group, "zero_point": True, "version": "gemm",
                    "modules_to_not_convert": None}  # fmt: skip
        stored = "gptq_v2" if self.v2 else "gptq"
        return {
            "quant_method": "gptq", "bits": 4, "group_size": self.group, "desc_act": self.ordered, "meta": {"x": 1},
            "sym": self.symmetric, "checkpoint_format": stored, "true_sequential": True, "lm_head": False,
        }  # fmt: skip


def _word(nibbles: list[int]) -> int:
    """Eight nibbles, the first one lowest, as an int32."""
    word = sum(nibble << 4 * i for i, nibble in enumerate(nibbles))
    return word - (1 << 32) if word >= 1 << 31 else word


def _words(rows: np.ndarray, places: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Numbers (n, m) packed along m, nibble i being number places[i] of each eight."""
    words = [[_word([int(row[at + p]) for p in places]) for at in range(0, len(row), 8)] for row in rows]
    return np.array(words, np.int32)


def draw(seed: int, rows: int, cols: int, kind: Kind) -> tuple[Arrays, np.ndarray]:
    """Tensors of a random matrix by the last part of their names, and its float32 values (rows, cols)."""
    rng = np.random.default_rng([seed, 4])
    size = cols if kind.group == -1 else kind.group
    count = cols // size
    q = rng.integers(0, 16, (rows, cols))
    low = 1 if kind.method == "gptq" and not kind.v2 else 0
    z = np.full((count, rows), 8) if kind.symmetric else rng.integers(low, 16, (count, rows))
    scales = (rng.uniform(0.5, 2, (count, rows)) / (5 * np.sqrt(cols))).astype(np.float16)
    groups = np.arange(cols) // size
    if kind.ordered:
        rng.shuffle(groups)
    values = scales.astype(np.float32)[groups].T * (q - z[groups].T).astype(np.float32)
    if kind.method == "awq":
        tensors = {"qweight": _words(q.T, AWQ_PLACES), "qzeros": _words(z, AWQ_PLACES), "scales": scales}
    else:
        tensors = {
            "qweight": np.ascontiguousarray(_words(q).T), "qzeros": _words(z if kind.v2 else z - 1), "scales": scales,
            "g_idx": groups.astype(np.int32), "bias": np.zeros(rows, np.float16),
        }  # fmt: skip
    return tensors, values


def dequantized(tensors: Arrays, kind: Kind) -> np.ndarray:
    """float32 (rows, cols), one weight at a time."""
    rows, above = tensors["scales"].shape[1], int(kind.method == "gptq" and not kind.v2)
    cols = len(tensors["qweight"]) * (1 if kind.method == "awq" else 8)
    size = cols if kind.group == -1 else kind.group
    out = np.empty((rows, cols), np.float32)
    for n in range(rows):
        nibble = AWQ_PLACES.index(n % 8) if kind.method == "awq" else n % 8
        for k in range(cols):
            g = int(tensors["g_idx"][k]) if "g_idx" in tensors else k // size
            if kind.method == "awq":
                code = int(tensors["qweight"][k, n // 8]) >> 4 * nibble & 15
            else:
                code = int(tensors["qweight"][k // 8, n]) >> 4 * (k % 8) & 15
            zero = (int(tensors["qzeros"][g, n // 8]) >> 4 * nibble & 15) + above
            out[n, k] = np.float32(tensors["scales"][g, n]) * np.float32(code - zero)
    return out


def folders(path: Path, shape: DenseShape, kind: Kind, **config: Any) -> tuple[Path, Path, Arrays]:
    """A packed folder, the same in float32, and its values by name."""
    tensors = dense.draw_tensors(shape, 1, tied=False)
    plain = dense.published(path / "plain", shape, tensors, **config)
    values, stored = load_file(plain / "model.safetensors"), {}
    for seed, (name, array) in enumerate(values.items()):
        if "_proj.weight" not in name and ".experts." not in name:
            stored[name] = array
            continue
        parts, values[name] = draw(seed, *array.shape, kind)
        if name.removesuffix("weight") + "bias" in values:
            parts.pop("bias", None)
        stored |= {name.removesuffix("weight") + part: some for part, some in parts.items()}
    save_file(values, plain / "model.safetensors")
    packed = path / "packed"
    packed.mkdir()
    save_file(stored, packed / "model.safetensors")
    about = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**about, "quantization_config": kind.config}))
    return packed, plain, values
