"""Read another engine's logits or log probabilities from a file; the suffix tells the format.

full   .npz with ``ids`` (T,) and ``logits`` (T, V) (``ds4 --dump-logits``), optionally ``rows``; .npy; .csv
top-k  JSON: a list of {"position": t, "top": [[id, logprob], ...]}, or {"ids": [...], "rows": [as above]}
dumps  JSON dumps of ds4 and ds4ref, raw float32 (``dumps``)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ds4ref.errors import DataError, UsageError

from . import dumps
from .observation import MAX_ID, Observation, from_logits, from_top

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

T = TypeVar("T")
RAW = (".bin", ".raw", ".f32")
FILES = (".npz", ".npy", ".csv", ".tsv", ".json", ".jsonl", *RAW)
"""Suffixes that can be read."""


def read_ids(path: str) -> list[int]:
    """Read token ids from a JSON list, {"ids": [...]}, or the output of ``ds4 --dump-tokens``; else DataError."""
    try:
        with open(path, encoding="utf-8") as file:
            ids: Any = dumps.first_line_ids(file.read())
    except (OSError, ValueError):
        ids = None  # reported below
    if ids is None:
        data = _json(path)
        ids = data.get("ids") if isinstance(data, dict) else data
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i <= MAX_ID for i in ids):
        raise DataError(f"{path}: expected a non-empty JSON list of token ids")
    return ids


def read(
    path: str, ids: Sequence[int] | None, key: str = "logits", tokenizer: Tokenizer | None = None, *,
    vocab: int | None = None, prompt: tuple[str, str] | None = None,
) -> Observation:  # fmt: skip
    """Read a file of logits or log probabilities.

    ids        token ids, which must agree with those in the file; None takes them from the file
    key        name of the array in an .npz
    tokenizer  the model's, for dumps that hold text
    vocab      size of the model's vocabulary
    prompt     (system, user) text of a dump that has neither ids nor text

    DataError if the file holds no logits, OtherModel if they do not fit the vocabulary.
    """
    kind = Path(path).suffix.lower()
    if kind in (".json", ".jsonl"):
        data = _json(path)
        if dumps.is_dump(data) or dumps.is_logits(data):
            return dumps.read_json(path, data, ids, tokenizer, prompt, vocab)
        return _read_top(path, data, ids, vocab)
    if kind in RAW:
        return dumps.raw_observation(path, ids, vocab)
    logits, file_ids, rows = read_table(path, key)
    return from_logits(_checked_ids(path, ids, file_ids), logits, rows, vocab)


def read_table(path: str, key: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Read (array as stored, ids, rows) from .npz, .npy, .csv or .tsv; ids and rows are None if the file has none."""
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        arrays = read_npz(path)
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (available: {', '.join(sorted(arrays))})")
        return arrays[key], arrays.get("ids"), arrays.get("rows")
    if kind in (".npy", ".csv", ".tsv"):
        return _matrix(path, kind), None, None
    raise UsageError(f"{path}: unsupported file type for logits; use {', '.join(FILES[:-1])} or {FILES[-1]}")


def _read_top(path: str, data: Any, ids: Sequence[int] | None, vocab: int | None) -> Observation:
    entries = data.get("rows") if isinstance(data, dict) else data
    own = data.get("ids") if isinstance(data, dict) else None
    try:
        pairs = [
            (
                _integer(entry.get("position", at)),
                [(_integer(i), None if p is None else float(p)) for i, p in entry["top"]],
            )
            for at, entry in enumerate(entries or [])
        ]
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise DataError(f'{path}: expected a list of {{"position": t, "top": [[id, logprob], ...]}}') from None
    try:
        tokens = None if own is None else np.asarray(own)
    except (ValueError, OverflowError):
        raise DataError(f"{path}: ids must be a list of integers") from None
    return from_top(_checked_ids(path, ids, tokens), pairs, vocab)


def _integer(value: Any) -> int:
    """Return a JSON integer; TypeError for anything else, such as 1.5 or true."""
    if type(value) is not int:
        raise TypeError
    return value


def _checked_ids(path: str, given_ids: Sequence[int] | None, file_ids: np.ndarray | None) -> np.ndarray:
    if given_ids is None and file_ids is None:
        raise UsageError(f"{path} contains no token ids: pass --token-ids")
    if file_ids is not None and (file_ids.ndim != 1 or file_ids.dtype.kind not in "iu" or not file_ids.size):
        raise DataError(f"{path}: ids must be a list of integers")
    if file_ids is not None and not (file_ids.min() >= 0 and file_ids.max() <= MAX_ID):
        raise DataError(f"{path}: token ids must be 0 to {MAX_ID}")
    if given_ids is not None and file_ids is not None and not np.array_equal(np.asarray(given_ids), file_ids):
        raise DataError(f"{path} was computed on different token ids")
    return np.asarray(file_ids if given_ids is None else given_ids, np.int32)


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Read every array of an .npz; DataError for a damaged one."""

    def every(file: Any) -> dict[str, np.ndarray]:
        with np.load(file, allow_pickle=False) as z:
            if not isinstance(z, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {key: z[key] for key in z.files}

    return _load(path, "a usable .npz", every)


def _matrix(path: str, kind: str) -> np.ndarray:
    if kind == ".npy":
        return _load(path, "a usable .npy", lambda file: np.asarray(np.load(file, allow_pickle=False)))
    separator = "," if kind == ".csv" else "\t"
    return _load(path, "a table of numbers", lambda file: np.loadtxt(file, delimiter=separator, ndmin=2))


def _load(path: str, kind: str, load: Callable[[Any], T]) -> T:
    """Call ``load`` with the open file; DataError for any exception.

    Damaged archives fail in many ways: zlib, zip, struct, NumPy's parser, a header that asks for too much memory.
    """
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        why = " ".join(str(error).split())[:160]
        raise DataError(f"{path} is not {kind}: {why or type(error).__name__}") from None


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
