"""What another engine computed, in one form whether it came as full logits or as a few log probabilities per step.

full   .npz with ``ids`` (T,) and ``logits`` (T, V) (``ds4 --dump-logits``), optionally ``rows``; .npy; .csv
top-k  JSON: a list of {"position": t, "top": [[id, logprob], ...]}, or {"ids": [...], "rows": that list}
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ds4ref.errors import DataError, UsageError

from .storage import precision

Ids = Sequence[int] | np.ndarray
T = TypeVar("T")
MAX_ID = 2**31 - 1
DEGENERATE = -1000.0
"""A log probability at or below this is an API's way of saying nothing."""


@dataclass(frozen=True)
class Observation:
    """Log probabilities of next tokens after ``rows`` of the tokens ``ids``.

    ids       int32 (T,), the tokens the engine was given
    rows      int64 (R,), ascending positions in ids; row r is the distribution after token ids[rows[r]]
    support   None for the whole vocabulary, else int64 (R, K) token ids, -1 where there are fewer
    logprobs  float64 (R, V) or (R, K); NaN where support is -1
    raw       whether absolute logits were given (their offset is known too)
    stored    how precisely the numbers were stored, as they show it ("" for float32 and finer)
    storage   float64, the shape of logprobs: mean square of what that rounding adds; None for nothing
    """

    ids: np.ndarray
    rows: np.ndarray
    support: np.ndarray | None
    logprobs: np.ndarray
    raw: bool = False
    stored: str = ""
    storage: np.ndarray | None = None

    @property
    def full(self) -> bool:
        """Whether the whole vocabulary is known."""
        return self.support is None

    def top(self, k: int) -> Observation:
        """The same engine seen through an API that shows only the ``k`` best tokens."""
        order = np.argsort(-self.logprobs, axis=1, kind="stable")[:, :k]
        support = order if self.support is None else np.take_along_axis(self.support, order, axis=1)
        storage = None if self.storage is None else np.take_along_axis(self.storage, order, axis=1)
        logprobs = np.take_along_axis(self.logprobs, order, axis=1)
        return Observation(self.ids, self.rows, support, logprobs, stored=self.stored, storage=storage)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logits (T, V) -> log probabilities float64; a row with a NaN becomes all NaN."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def from_logits(ids: Ids, logits: np.ndarray, rows: Ids | None = None) -> Observation:
    """Full logits (T, V), or of the positions ``rows`` only. DataError if shapes do not go together."""
    tokens = np.asarray(ids, np.int32)
    at = np.arange(len(tokens)) if rows is None else np.asarray(rows)
    if at.ndim != 1 or at.dtype.kind not in "iu":
        raise DataError(f"positions of the logits must be a list of integers, not {at.dtype} of shape {at.shape}")
    if logits.ndim != 2 or len(logits) != len(at):
        raise DataError(f"logits of shape {logits.shape} do not go with {len(at)} positions of {len(tokens)} tokens")
    if not logits.size:
        raise DataError(f"there are no logits: their shape is {logits.shape}")
    if not (0 <= at[0] and np.all(at[1:] > at[:-1]) and at[-1] < len(tokens)):
        raise DataError("positions of the logits must ascend and lie inside the token list")
    if logits.dtype.kind not in "fiu":
        raise DataError(f"logits are of type {logits.dtype}, not numbers")
    at = at.astype(np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        logprobs = log_softmax(logits)
    stored = precision(logits)
    storage = None
    if stored is not None:
        storage = stored.variance(logits)
        # the normaliser carries the rounding of the likely tokens into the whole row
        storage += np.nansum(np.exp(2 * logprobs) * storage, axis=1, keepdims=True)
    return Observation(tokens, at, None, logprobs, raw=True, stored=str(stored or ""), storage=storage)


def from_top(ids: Ids, entries: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> Observation:
    """``entries``: (position, [(token id, logprob), ...]) in any order. Degenerate values are dropped."""
    kept = {
        int(position): [(int(i), float(p)) for i, p in top if p is not None and DEGENERATE < p < np.inf]
        for position, top in entries
    }
    if any(not 0 <= i <= MAX_ID for top in kept.values() for i, _ in top):
        raise DataError(f"token ids of the log probabilities must be 0 to {MAX_ID}")
    rows = np.array(sorted(p for p, top in kept.items() if top), np.int64)
    if not len(rows):
        raise DataError("no position has usable log probabilities")
    if rows[0] < 0 or rows[-1] >= len(ids):
        raise DataError(f"position {rows[-1] if rows[0] >= 0 else rows[0]} lies outside the {len(ids)} tokens")
    width = max(len(kept[int(r)]) for r in rows)
    support = np.full((len(rows), width), -1, np.int64)
    values = np.full((len(rows), width), np.nan)
    for r, position in enumerate(rows):
        for k, (token, logprob) in enumerate(kept[int(position)]):
            support[r, k], values[r, k] = token, logprob
    stored = precision(values)
    storage = None if stored is None else np.where(support >= 0, stored.variance(values), np.nan)
    return Observation(
        np.asarray(ids, np.int32), rows, support, values, stored=str(stored or ""), storage=storage
    )


def read_ids(path: str) -> list[int]:
    """A JSON list of token ids, or {"ids": [...]}."""
    found = _json(path)
    ids = found.get("ids") if isinstance(found, dict) else found
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i <= MAX_ID for i in ids):
        raise DataError(f"{path}: a non-empty JSON list of token ids is needed")
    return ids


def read(path: str, ids: Sequence[int] | None, key: str = "logits") -> Observation:
    """A file of logits by its ending. ``ids`` None takes them from the file; given ones must agree with it."""
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        arrays = _npz(path)
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (there are {', '.join(sorted(arrays))})")
        return from_logits(_agreed(path, ids, arrays.get("ids")), arrays[key], arrays.get("rows"))
    if kind in (".npy", ".csv", ".tsv"):
        if ids is None:
            raise UsageError(f"{path} holds no token ids: give them with --token-ids")
        return from_logits(ids, _matrix(path, kind))
    if kind in (".json", ".jsonl"):
        return _read_top(path, ids)
    raise UsageError(f"{path}: logits are read from .npz, .npy, .csv, .tsv or .json")


def _read_top(path: str, ids: Sequence[int] | None) -> Observation:
    found = _json(path)
    entries = found.get("rows") if isinstance(found, dict) else found
    own = found.get("ids") if isinstance(found, dict) else None
    try:
        pairs = [
            (_whole(entry.get("position", at)), [(_whole(i), float(p)) for i, p in entry["top"]])
            for at, entry in enumerate(entries or [])
        ]
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise DataError(f'{path}: expected a list of {{"position": t, "top": [[id, logprob], ...]}}') from None
    try:
        tokens = None if own is None else np.asarray(own)
    except (ValueError, OverflowError):
        raise DataError(f"{path}: ids must be a list of integers") from None
    return from_top(_agreed(path, ids, tokens), pairs)


def _whole(value: Any) -> int:
    """A JSON integer; TypeError for anything else, 1.5 and true included."""
    if type(value) is not int:
        raise TypeError
    return value


def _agreed(path: str, given: Sequence[int] | None, found: np.ndarray | None) -> np.ndarray:
    if given is None and found is None:
        raise UsageError(f"{path} holds no token ids: give them with --token-ids")
    if found is not None and (found.ndim != 1 or found.dtype.kind not in "iu" or not found.size):
        raise DataError(f"{path}: ids must be a list of integers")
    if found is not None and not (found.min() >= 0 and found.max() <= MAX_ID):
        raise DataError(f"{path}: token ids must be 0 to {MAX_ID}")
    if given is not None and found is not None and not np.array_equal(np.asarray(given), found):
        raise DataError(f"{path} was computed on other token ids than the ones given")
    return np.asarray(found if given is None else given, np.int32)


def _npz(path: str) -> dict[str, np.ndarray]:
    def every(file: Any) -> dict[str, np.ndarray]:
        with np.load(file, allow_pickle=False) as z:
            if not isinstance(z, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            return {key: z[key] for key in z.files}

    return _loaded(path, "a usable .npz", every)


def _matrix(path: str, kind: str) -> np.ndarray:
    if kind == ".npy":
        return _loaded(path, "a usable .npy", lambda file: np.asarray(np.load(file, allow_pickle=False)))
    separator = "," if kind == ".csv" else "\t"
    return _loaded(path, "a table of numbers", lambda file: np.loadtxt(file, delimiter=separator, ndmin=2))


def _loaded(path: str, what: str, load: Callable[[Any], T]) -> T:
    """``load`` of the open file. Damaged archives fail in many ways (zlib, zip, struct, NumPy's own parser, a header
    that asks for more memory than there is): whatever happens while foreign bytes are read is the file's fault."""
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise DataError(f"{path} is not {what}: {why or type(error).__name__}") from None


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
