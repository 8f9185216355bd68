"""Compare full logits with full logits, and with golden logits frozen for a model.

    result = differences(a, b)                       per position: max, rms, KL, top-1, top-k overlap
    freeze(path, ids, logits, identity, top=0)       float32, or the best ``top`` of every position; compressed
    check(load(path), logits)                        the same measures against a frozen file

A golden file is never overwritten: a new checkpoint gets a new file.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.errors import DataError, UsageError
from ds4ref.files import atomic_write

from .observation import Ids, log_softmax
from .tables import of_table, refused

VERSION = 1
TOP_K = 5


@dataclass(frozen=True)
class Differences:
    """Comparison of B with A at R positions; arrays are (R,).

    rows        positions in the token list
    max, rms    of logit differences, or of log probability differences where only those are known
    kl          KL(A || B) in nats over the known support
    same_top    whether the best token agrees; False where either row holds a NaN
    overlap     share of A's TOP_K best tokens that are among B's TOP_K
    """

    rows: np.ndarray
    max: np.ndarray
    rms: np.ndarray
    kl: np.ndarray
    same_top: np.ndarray
    overlap: np.ndarray

    def first_bad(self, atol: float) -> int | None:
        """Return the first position whose largest difference exceeds ``atol`` or is NaN; None if there is none."""
        bad = np.flatnonzero(~(self.max <= atol))
        return int(self.rows[bad[0]]) if len(bad) else None

    def summary(self, atol: float) -> dict[str, Any]:
        """Return the summary over all positions; None for values that were not compared or are not finite.

        ``non_finite``: number of positions whose difference is not finite; ``atol``: tolerance for ``first_bad``.
        """
        if not len(self.rows):
            return {"positions": 0, "non_finite": 0, "max": None, "rms": None, "kl": None, "top1": None,
                    "overlap": None, "worst_position": None, "first_bad": None, "atol": atol}  # fmt: skip
        finite = bool(np.isfinite(self.max).all())
        return {
            "positions": len(self.rows),
            "non_finite": int((~np.isfinite(self.max)).sum()),
            "max": float(self.max.max()) if finite else None,
            "rms": float(np.sqrt(np.mean(self.rms**2))) if finite else None,
            "kl": float(self.kl.mean()) if finite else None,
            "top1": float(self.same_top.mean()),
            "overlap": float(self.overlap.mean()),
            "worst_position": int(self.rows[int(np.argmax(np.where(np.isfinite(self.max), self.max, np.inf)))]),
            "first_bad": self.first_bad(atol),
            "atol": atol,
        }


def differences(a: np.ndarray, b: np.ndarray, rows: Ids | None = None) -> Differences:
    """Compare logits a and b (R, V); DataError unless the shapes agree."""
    if a.shape != b.shape or a.ndim != 2:
        raise DataError(f"logits of shapes {a.shape} and {b.shape} cannot be compared")
    a, b = a.astype(np.float64), b.astype(np.float64)
    at = np.arange(len(a)) if rows is None else np.asarray(rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        # equal infinities (a token masked on both sides) are no difference
        difference = np.where(a == b, 0.0, np.abs(a - b))
        p, q = log_softmax(a), log_softmax(b)
        weight = np.exp(p)
        kl = np.where(weight > 0, weight * (p - q), 0.0).sum(axis=1)
    k = min(TOP_K, a.shape[1]) if a.size else 0
    best_a, best_b = _best(a, k), _best(b, k)
    overlap = (best_a[:, :, None] == best_b[:, None, :]).any(axis=2).mean(axis=1) if k else np.zeros(len(a))
    same = (best_a[:, 0] == best_b[:, 0]) if k else np.zeros(len(a), bool)
    same &= ~(np.isnan(a).any(axis=1) | np.isnan(b).any(axis=1))
    return Differences(
        at, difference.max(axis=1, initial=0.0), np.sqrt((difference**2).mean(axis=1)) if k else np.zeros(len(a)),
        np.maximum(kl, 0.0), same, overlap,
    )  # fmt: skip


def _best(x: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the k best tokens of each row, ties to the lower id; NaN counts as worst."""
    return np.argsort(-np.where(np.isnan(x), -np.inf, x), axis=1, kind="stable")[:, :k]


def freeze(path: str, ids: Ids, logits: np.ndarray, identity: dict[str, Any], top: int = 0) -> None:
    """Write golden logits (T, V): all of them, or the ``top`` best of each position; UsageError if ``path`` exists."""
    if os.path.lexists(path):
        raise UsageError(f"{path} already exists and will not be overwritten; choose a new name")
    tokens = np.asarray(ids, np.int32)
    if logits.ndim != 2 or len(logits) != len(tokens):
        raise DataError(f"logits of shape {logits.shape} do not match {len(tokens)} tokens")
    if not np.isfinite(logits).all():
        raise DataError("logits with NaN or infinite values cannot be saved as golden")
    useless = refused(of_table(logits, np.arange(len(logits)), tokens))
    if useless is not None:
        raise DataError(f"cannot save as golden: {useless.says}")
    arrays: dict[str, np.ndarray] = {"ids": tokens}
    if top:
        arrays["top_ids"] = _best(logits.astype(np.float64), top).astype(np.int32)
        arrays["top_logits"] = np.take_along_axis(logits, arrays["top_ids"], axis=1).astype(np.float32)
        x = logits.astype(np.float64)
        peak = x.max(axis=1)
        arrays["log_sum"] = peak + np.log(np.exp(x - peak[:, None]).sum(axis=1))
    else:
        arrays["logits"] = logits.astype(np.float32)
    about = {"schema": "ds4-golden-logits", "version": VERSION, "vocab": int(logits.shape[1]),
             "sha256": _digest(arrays), **identity}  # fmt: skip
    with atomic_write(path) as out:
        np.savez_compressed(out, **arrays, about=np.frombuffer(json.dumps(about).encode(), np.uint8))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Golden:
    """A golden file in memory.

    about   model, engine, numerics and sizes
    arrays  "ids" (T,), and "logits" (T, V) or "top_ids", "top_logits" (T, K), "log_sum" (T,)
    """

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def ids(self) -> np.ndarray:
        """Return the token ids (T,)."""
        return self.arrays["ids"]


def load(path: str) -> Golden:
    """Read and verify a golden file; DataError if the file is not one or was altered."""
    from .reading import read_npz

    arrays = read_npz(path)
    try:
        about = json.loads(arrays.pop("about").tobytes())
        if about["schema"] != "ds4-golden-logits" or about["version"] != VERSION:
            raise ValueError
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{path} is not a golden logits file of version {VERSION}") from None
    if _digest(arrays) != about.get("sha256"):
        raise DataError(f"{path} was modified: checksum mismatch")
    return Golden(about, arrays)


def check(golden: Golden, logits: np.ndarray) -> Differences:
    """Compare logits (T, V) with a golden file, at the tokens that it holds.

    A file of the best K is compared by log probabilities.
    """
    arrays = golden.arrays
    if len(logits) != len(golden.ids) or logits.ndim != 2 or logits.shape[1] != golden.about["vocab"]:
        raise DataError(f"golden logits are ({len(golden.ids)}, {golden.about['vocab']}), these are {logits.shape}")
    if "logits" in arrays:
        return differences(arrays["logits"], logits)
    top = arrays["top_ids"].astype(np.int64)
    expected = arrays["top_logits"].astype(np.float64) - arrays["log_sum"][:, None]
    logprobs = log_softmax(logits)
    logprobs_of_top = np.take_along_axis(logprobs, top, axis=1)
    difference = np.abs(expected - logprobs_of_top)
    k = min(TOP_K, top.shape[1])
    best = _best(logprobs, k)
    return Differences(
        np.arange(len(top)), difference.max(axis=1), np.sqrt((difference**2).mean(axis=1)),
        np.maximum((np.exp(expected) * (expected - logprobs_of_top)).sum(axis=1), 0.0), best[:, 0] == top[:, 0],
        (best[:, :, None] == top[:, None, :k]).any(axis=2).mean(axis=1),
    )  # fmt: skip


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()
