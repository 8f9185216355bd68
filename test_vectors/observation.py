"""What another engine computed, in one form whether it came as full logits or as a few log probabilities per step.

full   .npz with ``ids`` (T,) and ``logits`` (T, V) (``ds4 --dump-logits``), optionally ``rows``; .npy; .csv
top-k  JSON: a list of {"position": t, "top": [[id, logprob], ...]}, or {"ids": [...], "rows": that list}
dumps  ds4's own JSON and ours, raw float32 (``dumps``)

What is no logits is refused or repaired here as far as its shape and scale tell (``preflight``); a repair is a finding
of the observation.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ds4ref.errors import DataError, UsageError

from .preflight import BROKEN, WARN, Finding, padding, scale, shape_problem
from .storage import SILENT, decimals, variance, written

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

Ids = Sequence[int] | np.ndarray
T = TypeVar("T")
MAX_ID = 2**31 - 1
DEGENERATE = SILENT
"""A log probability at or below this is an API's way of saying nothing."""

RAW = (".bin", ".raw", ".f32")
FILES = (".npz", ".npy", ".csv", ".tsv", ".json", ".jsonl", *RAW)
"""What can be read, by the name's ending."""


class OtherModel(DataError):
    """The data is sound and does not fit this model's vocabulary."""


@dataclass(frozen=True)
class Observation:
    """Log probabilities of next tokens after ``rows`` of the tokens ``ids``.

    ids       int32 (T,), the tokens the engine was given
    rows      int64 (R,), ascending positions in ids; row r is the distribution after token ids[rows[r]]
    support   None for the whole vocabulary, else int64 (R, K) token ids, -1 where there are fewer
    logprobs  float64 (R, V) or (R, K); NaN where support is -1
    raw       whether absolute logits were given (their offset is known too)
    given     the table (R, V) as it was given, in its own type, if it was one: how finely it was written shows there
    findings  what was repaired or dropped while it was read
    stored    how precisely the numbers were stored, as they show it ("" for float32 and finer)
    storage   float64, the shape of logprobs: mean square of what that rounding adds; None for nothing
    shared    (R,) the part of it that all values of a row have in common: the normaliser's
    """

    ids: np.ndarray
    rows: np.ndarray
    support: np.ndarray | None
    logprobs: np.ndarray
    raw: bool = False
    given: np.ndarray | None = None
    findings: tuple[Finding, ...] = ()
    stored: str = ""
    storage: np.ndarray | None = None
    shared: np.ndarray | None = None

    @property
    def full(self) -> bool:
        """Whether the whole vocabulary is known."""
        return self.support is None

    def top(self, k: int) -> Observation:
        """The same engine seen through an API that shows only the ``k`` best tokens."""
        order = np.argsort(-self.logprobs, axis=1, kind="stable")[:, :k]
        support = order if self.support is None else np.take_along_axis(self.support, order, axis=1)
        values = np.take_along_axis(self.logprobs, order, axis=1)
        storage = None if self.storage is None else np.take_along_axis(self.storage, order, axis=1)
        return Observation(
            self.ids, self.rows, support, values, findings=self.findings, stored=self.stored, storage=storage,
            shared=self.shared,
        )  # fmt: skip

    @property
    def quantum(self) -> float:
        """Spacing of the values if they were written with few decimals, else 0."""
        places = decimals(self.logprobs if self.given is None else self.given)
        return 0.0 if places is None else 10.0**-places


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logits (T, V) -> log probabilities float64; a row with a NaN becomes all NaN."""
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def from_logits(ids: Ids, logits: np.ndarray, rows: Ids | None = None, vocab: int | None = None) -> Observation:
    """Full logits (T, V), or of the positions ``rows`` only; log probabilities to any usual base and probabilities are
    recognised and converted. ``vocab`` is that of the model. DataError if shapes do not go together, OtherModel if they
    do not fit the vocabulary."""
    tokens = np.asarray(ids, np.int32)
    at = np.arange(len(tokens)) if rows is None else np.asarray(rows)
    if at.ndim != 1 or at.dtype.kind not in "iu":
        raise DataError(f"positions of the logits must be a list of integers, not {at.dtype} of shape {at.shape}")
    if logits.ndim == 3 and 1 in (logits.shape[0], logits.shape[2]):
        logits = logits[0] if logits.shape[0] == 1 else logits[:, :, 0]  # one batch, or a last axis of one
    problem = shape_problem(logits.shape, len(tokens), len(at), vocab)
    if problem is not None:
        raise DataError(problem)
    if not logits.size:
        raise DataError(f"there are no logits: their shape is {logits.shape}")
    if not (0 <= at[0] and np.all(at[1:] > at[:-1]) and at[-1] < len(tokens)):
        raise DataError("positions of the logits must ascend and lie inside the token list")
    if logits.dtype.kind not in "fiu":
        hint = " (NumPy has no bfloat16: save float32)" if logits.dtype.kind == "V" else ""
        raise DataError(f"logits are of type {logits.dtype}, not numbers{hint}")
    found: list[Finding] = []
    if vocab is not None:
        if int(tokens.max()) >= vocab:
            raise OtherModel(f"token id {int(tokens.max())} is outside the vocabulary of {vocab}: another model?")
        width = logits.shape[1]
        if width > vocab and padding(logits, vocab):
            found.append(Finding("padded", f"{width - vocab} columns of padding beyond the vocabulary were cut", WARN))
            logits = logits[:, :vocab]
        if logits.shape[1] != vocab:
            raise OtherModel(f"the logits are {width} wide, the model's vocabulary is {vocab}: another model?")
    return _scaled(Observation(tokens, at.astype(np.int64), None, logits, raw=True, given=logits), found)


_FACTOR = {"log10": np.log(10), "log2": np.log(2)}


def to_logprobs(table: np.ndarray) -> tuple[np.ndarray, str]:
    """Log probabilities (R, V) float64 of a table on any scale, -inf where one is 0 or masked; and that scale."""
    kind = scale(table)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if kind == "probabilities":
            return np.log(np.asarray(table, np.float64)), kind
        x = np.asarray(table, np.float64) * _FACTOR.get(kind, 1.0)
        floor = x.max(axis=1, keepdims=True) + SILENT
        if (x <= floor).any():
            x = np.where(x <= floor, -np.inf, x)  # a mask written as a large number
        return log_softmax(x), kind


def _scaled(seen: Observation, found: list[Finding]) -> Observation:
    """With log probabilities in place of whatever ``seen.logprobs`` (R, V) are."""
    logs, kind = to_logprobs(seen.logprobs)
    if kind == "probabilities":
        return _of_probabilities(seen, logs, found)
    if kind in _FACTOR:
        says = f"these are logarithms to base {kind[3:]} of probabilities, not logits: they were converted"
        found.append(Finding(kind, says, WARN))
    storage, shared = variance(seen.logprobs), None
    if storage is not None:
        storage = storage * _FACTOR.get(kind, 1.0) ** 2
        if kind == "logits":  # the normaliser carries the rounding of the likely tokens into the whole row
            shared = np.nansum(np.exp(2 * logs) * storage, axis=1)
            storage = storage + shared[:, None]
    return replace(
        seen, logprobs=logs, raw=kind == "logits", findings=tuple(found), stored=written(seen.logprobs)[0],
        storage=storage, shared=shared,
    )  # fmt: skip


def _of_probabilities(seen: Observation, logs: np.ndarray, found: list[Finding]) -> Observation:
    """The logarithm. A probability of 0 is one too small for its storage: those tokens are unknown, not impossible."""
    p = np.asarray(seen.logprobs, np.float64)
    found.append(Finding("probabilities", "these are probabilities, not logits: their logarithm was taken", WARN))
    if (p != 0).all():
        return replace(seen, logprobs=logs, raw=False, findings=tuple(found))
    lost = int((p == 0).sum())
    found.append(Finding("underflow", f"{lost} of {p.size} probabilities are 0: these tokens are not compared", WARN))
    known = p != 0
    width = int(known.sum(axis=1).max())
    order = np.argsort(~known, axis=1, kind="stable")[:, :width]  # the known ones first, in the order of their ids
    kept = np.take_along_axis(known, order, axis=1)
    values = np.where(kept, np.take_along_axis(logs, order, axis=1), np.nan)
    return replace(seen, support=np.where(kept, order, -1), logprobs=values, raw=False, findings=tuple(found))


def from_top(
    ids: Ids, entries: Sequence[tuple[int, Sequence[tuple[int, float | None]]]], vocab: int | None = None
) -> Observation:
    """``entries``: (position, [(token id, logprob), ...]) in any order. Values that say nothing are dropped; a None,
    NaN or infinity among them is a finding. Lists of probabilities are converted. OtherModel for ids beyond ``vocab``.
    """
    listed = {int(position): [(int(i), p) for i, p in top] for position, top in entries}
    kept = {
        position: [(i, float(p)) for i, p in top if p is not None and DEGENERATE < p < np.inf]
        for position, top in listed.items()
    }
    ids_seen = [i for top in listed.values() for i, _ in top]
    if any(not 0 <= i <= MAX_ID for i in ids_seen):
        raise DataError(f"token ids of the log probabilities must be 0 to {MAX_ID}")
    tokens = np.asarray(ids, np.int32)
    if vocab is not None and len(tokens) and max(int(tokens.max()), *ids_seen, 0) >= vocab:
        worst = max(int(tokens.max()), *ids_seen, 0)
        raise OtherModel(f"token id {worst} is outside the vocabulary of {vocab}: another model?")
    rows = np.array(sorted(p for p, top in kept.items() if top), np.int64)
    found = _not_numbers(listed)
    if not len(rows):
        raise DataError("no position has usable log probabilities" + (f": {found[0].says}" if found else ""))
    if rows[0] < 0 or rows[-1] >= len(ids):
        raise DataError(f"position {rows[-1] if rows[0] >= 0 else rows[0]} lies outside the {len(ids)} tokens")
    width = max(len(kept[int(r)]) for r in rows)
    support = np.full((len(rows), width), -1, np.int64)
    values = np.full((len(rows), width), np.nan)
    for r, position in enumerate(rows):
        for k, (token, logprob) in enumerate(kept[int(position)]):
            support[r, k], values[r, k] = token, logprob
    known = np.where(support >= 0, values, 0.0)
    # log probabilities are not positive; probabilities are nothing else
    if (known >= 0).all() and (known > 1e-3).any() and (known.sum(axis=1) <= 1 + 1e-3).all():
        says = "these are probabilities, not log probabilities: their logarithm was taken"
        found.append(Finding("probabilities", says, WARN))
        with np.errstate(divide="ignore"):
            values = np.log(values)
        support = np.where(np.isneginf(values), -1, support)
        values = np.where(support < 0, np.nan, values)
    return Observation(
        tokens, rows, support, values, findings=tuple(found), stored=written(values)[0], storage=variance(values)
    )


def _not_numbers(listed: dict[int, list[tuple[int, float | None]]]) -> list[Finding]:
    """Positions whose lists hold something that is no number. -infinity says that a token is impossible: nothing."""
    bad = sorted(
        position for position, top in listed.items() if any(p is None or np.isnan(p) or p == np.inf for _, p in top)
    )
    if not bad:
        return []
    says = f"log probabilities that are no numbers at {len(bad)} of {len(listed)} positions, the first is {bad[0]}"
    return [Finding("nan", says, BROKEN, tuple(bad))]


def read_ids(path: str) -> list[int]:
    """A JSON list of token ids, {"ids": [...]}, or what ``ds4 --dump-tokens`` prints."""
    from .dumps import first_line_ids

    try:
        with open(path, encoding="utf-8") as file:
            ids: Any = first_line_ids(file.read())
    except (OSError, ValueError):
        ids = None  # said below
    if ids is None:
        found = _json(path)
        ids = found.get("ids") if isinstance(found, dict) else found
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i <= MAX_ID for i in ids):
        raise DataError(f"{path}: a non-empty JSON list of token ids is needed")
    return ids


def read(
    path: str, ids: Sequence[int] | None, key: str = "logits", tokenizer: Tokenizer | None = None, *,
    vocab: int | None = None, prompt: tuple[str, str] | None = None,
) -> Observation:  # fmt: skip
    """A file of logits by its ending. ``ids`` None takes them from the file; given ones must agree with it.

    ``tokenizer`` and ``vocab`` are the model's; ``prompt`` is the (system, user) text of a dump that has neither ids
    nor text. DataError for what is no logits, OtherModel if they do not fit the vocabulary."""
    kind = Path(path).suffix.lower()
    if kind in (".json", ".jsonl"):
        from . import dumps

        found = _json(path)
        if dumps.is_dump(found) or dumps.is_capture(found) or dumps.is_logits(found):
            return dumps.read_json(path, found, ids, tokenizer, prompt, vocab)
        return _read_top(path, found, ids, vocab)
    if kind in RAW:
        from . import dumps

        return dumps.raw_observation(path, ids, vocab)
    logits, own, rows = read_table(path, key)
    return from_logits(_agreed(path, ids, own), logits, rows, vocab)


def read_table(path: str, key: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The array in .npz, .npy, .csv or .tsv as it is, and the ids and rows beside it, if any."""
    kind = Path(path).suffix.lower()
    if kind == ".npz":
        arrays = _npz(path)
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (there are {', '.join(sorted(arrays))})")
        return arrays[key], arrays.get("ids"), arrays.get("rows")
    if kind in (".npy", ".csv", ".tsv"):
        return _matrix(path, kind), None, None
    raise UsageError(f"{path}: logits are read from {', '.join(FILES[:-1])} or {FILES[-1]}")


def _read_top(path: str, found: Any, ids: Sequence[int] | None, vocab: int | None) -> Observation:
    entries = found.get("rows") if isinstance(found, dict) else found
    own = found.get("ids") if isinstance(found, dict) else None
    try:
        pairs = [
            (_whole(entry.get("position", at)), [(_whole(i), None if p is None else float(p)) for i, p in entry["top"]])
            for at, entry in enumerate(entries or [])
        ]
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise DataError(f'{path}: expected a list of {{"position": t, "top": [[id, logprob], ...]}}') from None
    try:
        tokens = None if own is None else np.asarray(own)
    except (ValueError, OverflowError):
        raise DataError(f"{path}: ids must be a list of integers") from None
    return from_top(_agreed(path, ids, tokens), pairs, vocab)


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
