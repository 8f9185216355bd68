"""Logits as other engines' users keep them: the same numbers written in six ways and read back as the tools read them.

for way in WAYS:
    observation = stored(tmp_path, way, ids, logits)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ds4ref.test_vectors import reading
from ds4ref.test_vectors.observation import Observation, log_softmax


def _npz(path: Path, ids: np.ndarray, logits: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), ids=ids, logits=logits)
    return path.with_suffix(".npz")


def _float16(path: Path, ids: np.ndarray, logits: np.ndarray) -> Path:
    with np.errstate(over="ignore"):
        return _npz(path, ids, logits.astype(np.float16))


def _bfloat16(path: Path, ids: np.ndarray, logits: np.ndarray) -> Path:
    """NumPy has no such type: its users upcast before they save."""
    bits = logits.astype(np.float32).view(np.uint32)
    even = (bits >> 16) & 1
    return _npz(path, ids, ((bits + 0x7FFF + even) & 0xFFFF0000).view(np.float32))


def _csv(path: Path, ids: np.ndarray, logits: np.ndarray) -> Path:
    np.savetxt(path.with_suffix(".csv"), logits, fmt="%.4f", delimiter=",")
    return path.with_suffix(".csv")


def _top(decimals: int | None) -> Callable[[Path, np.ndarray, np.ndarray], Path]:
    """The 20 best log probabilities of each position, as an API answers: rounded to decimals, or float32 as it is."""

    def write(path: Path, ids: np.ndarray, logits: np.ndarray) -> Path:
        logprobs = log_softmax(logits)
        order = np.argsort(-logprobs, axis=1, kind="stable")[:, :20]
        rows = []
        for t, best in enumerate(order):
            values = (float(np.float32(logprobs[t, i])) for i in best)
            kept = [value if decimals is None else round(value, decimals) for value in values]
            rows.append({"position": t, "top": [[int(i), p] for i, p in zip(best, kept, strict=True)]})
        target = path.with_suffix(".json")
        target.write_text(json.dumps({"ids": ids.tolist(), "rows": rows}))
        return target

    return write


WAYS: dict[str, Callable[[Path, np.ndarray, np.ndarray], Path]] = {
    "float32": _npz,
    "float16": _float16,
    "bfloat16": _bfloat16,
    "csv": _csv,
    "top20": _top(None),
    "top20_rounded": _top(4),
}
"""write(path without suffix, ids (T,), logits (T, V)) -> the file; CSV has 4 decimals."""


def stored(folder: Path, way: str, ids: np.ndarray, logits: np.ndarray, name: str = "theirs") -> Observation:
    """What ``ds4-vectors`` sees of logits (T, V) float32 after tokens ids (T,), kept in one of ``WAYS``."""
    path = WAYS[way](folder / f"{name}.{way}", np.asarray(ids, np.int32), logits)
    return reading.read(str(path), np.asarray(ids).tolist() if path.suffix == ".csv" else None)
