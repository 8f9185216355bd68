"""Read another engine's logits or log probabilities from a file; the suffix selects the format.

full    .npz with ``ids`` (T,) and ``logits`` (T, V) (``ds4 --dump-logits``), optionally ``rows``, the positions of the
        rows of ``logits``; .npy; .csv
        .bin .raw .f32: rows of float32, little-endian, without a header
        JSON: {"prompt_tokens": n, "logits": [...]}: one row of logits, or a list of rows; optionally "ids" or "rows"
top-k   JSON: a list of {"position": t, "top": [[id, logprob], ...]}, or {"ids": [...], "rows": [as above]}
greedy  JSON: {"source": "ds4", "prompt_tokens": n, "steps": [{"selected": {...}, "top_logprobs": [...]}]}, as
        ``--dump-logprobs`` of ds4 and of ours writes it: step i follows the prompt and the i tokens chosen before

A dump of ds4 does not contain the prompt: the caller passes its ids, or its text, which is then tokenized in the chat
template of ``ds4 --nothink``.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets.command import read_dump

from .observation import MAX_ID, Observation, from_logits, from_top

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

T = TypeVar("T")
RAW = (".bin", ".raw", ".f32")
FILES = (".npz", ".npy", ".csv", ".tsv", ".json", ".jsonl", *RAW)
"""Suffixes that can be read."""


class _File(NamedTuple):
    """A file to read, and what the caller knows about it (the parameters of ``read``)."""

    path: str
    ids: Sequence[int] | None
    tokenizer: Tokenizer | None
    vocab: int | None
    prompt: tuple[str, str] | None


Ids = Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]], msgspec.Meta(min_length=1)]


class _Row(msgspec.Struct):
    top: list[tuple[int, float | None]]
    position: int | None = None


class _Top(msgspec.Struct):
    """A top-k file: the best tokens at several positions."""

    ids: Ids | None = None
    rows: list[_Row] | None = None


class _Prompted(msgspec.Struct):
    """The fields of a JSON dump that describe its prompt, and ``rows``, the positions of its rows of logits."""

    ids: Any = None
    rows: list[int] | None = None
    prompt_ids: Ids | None = None
    prompt_tokens: int | None = None
    prompt: str | None = None
    system: str | None = None


def read_ids(path: str) -> list[int]:
    """Read token ids from a JSON list, {"ids": [...]}, or the output of ``ds4 --dump-tokens``.

    DataError for any other file.
    """
    text = _text(path)
    head, _, rest = text.partition("\n")
    starts = [line.split(None, 1)[0] for line in rest.split("\n") if line[:7].strip().isdecimal()]
    # --dump-tokens prints the list, then a line per id
    if starts and head.replace(" ", "") == f"[{','.join(starts[: head.count(',') + 1])}]":
        text = head
    data = _json(path, text)
    try:
        return msgspec.convert(data.get("ids") if isinstance(data, dict) else data, Ids)
    except msgspec.ValidationError:
        raise DataError(f"{path}: expected a non-empty JSON list of token ids") from None


class Answer(msgspec.Struct):
    """Tokens of a prompt and the answer to it, which begins at ``start``."""

    ids: Ids
    start: Annotated[int, msgspec.Meta(ge=1)] = 1


def read_answers(path: str, start: int) -> list[Answer]:
    """Read a JSON list of answers, or one that begins at ``start`` in what ``read_ids`` reads; errors as there."""
    try:
        return msgspec.convert(_json(path, _text(path)), Annotated[list[Answer], msgspec.Meta(min_length=1)])
    except (msgspec.ValidationError, DataError):
        return [Answer(read_ids(path), start)]


def read(
    path: str, ids: Sequence[int] | None, key: str = "logits", tokenizer: Tokenizer | None = None, *,
    vocab: int | None = None, prompt: tuple[str, str] | None = None, numbered: bool = False,
) -> Observation:  # fmt: skip
    """Read a file of logits or log probabilities.

    ids        token ids, which must agree with those in the file; None takes them from the file
    key        name of the array in an .npz
    tokenizer  the model's, for dumps that hold text
    vocab      size of the model's vocabulary
    prompt     (system, user) text of a dump that has neither ids nor text
    numbered   if a table has no token ids, use 0, 1, 2, ... instead of raising an error

    DataError if the file holds no logits, OtherModel if they do not fit the vocabulary.
    """
    kind = Path(path).suffix.lower()
    file = _File(path, ids, tokenizer, vocab, prompt)
    if kind in (".json", ".jsonl"):
        return _of_json(file, _json(path, _text(path)))
    if kind in RAW:
        if ids is None:
            raise UsageError(f"{path} contains no token ids: pass --token-ids")
        table = _raw(path, len(ids), vocab)
        return from_logits(ids, table, [len(ids) - 1] if len(table) == 1 else None, vocab)
    own, rows = None, None
    if kind == ".npz":
        arrays = read_npz(path)
        if key not in arrays:
            raise DataError(f"{path}: no array {key!r} (available: {', '.join(sorted(arrays))})")
        table, own, rows = arrays[key], arrays.get("ids"), arrays.get("rows")
    elif kind == ".npy":
        table = _load(path, "a usable .npy", lambda f: np.asarray(np.load(f, allow_pickle=False)))
    elif kind in (".csv", ".tsv"):
        separator = "," if kind == ".csv" else "\t"
        table = _load(path, "a table of numbers", lambda f: np.loadtxt(f, delimiter=separator, ndmin=2))
    else:
        raise UsageError(f"{path}: unsupported file type for logits; use {', '.join(FILES[:-1])} or {FILES[-1]}")
    if numbered and ids is None and own is None:
        own = np.arange(len(table))
    return from_logits(_agreed(file, own), table, rows, vocab)


def read_npz(path: str) -> dict[str, np.ndarray]:
    """Read every array of an .npz; DataError for a damaged one."""

    def every(file: Any) -> dict[str, np.ndarray]:
        with np.load(file, allow_pickle=False) as z:
            if not isinstance(z, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            return {key: z[key] for key in z.files}

    return _load(path, "a usable .npz", every)


def _agreed(file: _File, own: np.ndarray | None) -> np.ndarray:
    """Return the token ids: those in the file (``own``), else the caller's; DataError if both exist and differ."""
    path, given = file.path, file.ids
    if own is None:
        if given is None:
            raise UsageError(f"{path} contains no token ids: pass --token-ids")
        return np.asarray(given, np.int32)
    if own.ndim != 1 or own.dtype.kind not in "iu" or not own.size:
        raise DataError(f"{path}: ids must be a list of integers")
    if not (own.min() >= 0 and own.max() <= MAX_ID):
        raise DataError(f"{path}: token ids must be 0 to {MAX_ID}")
    if given is not None and not np.array_equal(np.asarray(given), own):
        raise DataError(f"{path} was computed on different token ids")
    return np.asarray(own, np.int32)


def _load(path: str, kind: str, load: Callable[[Any], T]) -> T:
    """Call ``load`` with the open file; DataError for any exception.

    ``kind``: what the file should be, for the message. Any exception, as damaged archives fail in many ways: in zlib,
    zip, struct, NumPy's parser, or by a header that demands too much memory.
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


# ---------------------------------------------------------------------------------------------------------------- JSON


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def _json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def _converted(file: _File, data: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise DataError(f"{file.path}: {error}") from None


def _of_json(file: _File, data: Any) -> Observation:
    """Convert JSON data of one of the forms at the top of this module."""
    whole = data if isinstance(data, dict) else {"rows": data}
    if isinstance(whole.get("logits"), list):
        return _of_rows(file, whole)
    if isinstance(whole.get("steps"), list) and "schema" not in whole:
        return _of_greedy(file, whole)
    best = _converted(file, whole, _Top)
    entries = [(at if row.position is None else row.position, row.top) for at, row in enumerate(best.rows or ())]
    return from_top(_agreed(file, None if best.ids is None else np.asarray(best.ids)), entries, file.vocab)


def _of_greedy(file: _File, data: dict[str, Any]) -> Observation:
    """Convert a dump of greedy steps; the token chosen last is left out, as it was not fed to the engine."""
    try:
        dump = read_dump(json.dumps(data).encode(), file.path)
    except TargetError as error:
        raise DataError(str(error)) from None
    if not dump.steps:
        raise DataError(f"{file.path}: the dump has no steps")
    chosen = [step.token.id for step in dump.steps if step.token.id is not None]
    given = _converted(file, data, _Prompted)
    before = _prompt(file, given, given.prompt_ids, chosen)
    tops = [[(t.id, t.logprob) for t in step.top if t.id is not None] for step in dump.steps]
    entries = [(len(before) - 1 + i, top) for i, top in enumerate(tops)]
    return from_top([*before, *chosen[:-1]], entries, file.vocab)


def _of_rows(file: _File, data: dict[str, Any]) -> Observation:
    """Convert a dump of rows of logits; a single row belongs to the last token, as in a dump after prefill."""
    rows, given = data["logits"], _converted(file, data, _Prompted)
    try:
        table = np.array(rows if rows and isinstance(rows[0], list) else [rows], np.float64)  # None becomes NaN
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{file.path}: logits must be a list of numbers, or a list of rows of one length") from None
    own = given.prompt_ids
    if file.ids is None and own is None and given.ids is not None:
        own = _converted(file, given.ids, Ids)
    tokens = _prompt(file, given, own, [])
    at = [len(tokens) - 1] if given.rows is None and len(table) == 1 else given.rows
    return from_logits(tokens, table, at, file.vocab)


def _prompt(file: _File, given: _Prompted, own: list[int] | None, chosen: Sequence[int]) -> list[int]:
    """Return the prompt's ids: those in the file, else the caller's without the continuation, else those of its text.

    given   what the file states about its prompt
    own     the prompt's ids in the file
    chosen  ids that were generated after the prompt
    """
    path, ids = file.path, file.ids
    if own is not None:
        if ids is not None and list(ids) not in (own, own + list(chosen), own + list(chosen[:-1])):
            raise DataError(f"{path} was computed on different token ids")
        return own
    count = given.prompt_tokens
    text = file.prompt if given.prompt is None else (given.system or "", given.prompt)
    if ids is not None:
        before, source = list(ids), "the ids given are"
        if count is not None and before[count:] in (list(chosen), list(chosen[:-1])):
            before = before[:count]  # the caller's ids may include the generated tokens
    elif text is not None:
        from ds4ref.text.prompts import encode_chat_prompt

        if file.tokenizer is None:
            raise UsageError(f"{path}: a text prompt needs a model with a tokenizer: pass --token-ids")
        before, source = encode_chat_prompt(file.tokenizer, text[0], text[1], "none"), "its text makes"
    else:
        raise UsageError(f"{path} contains no prompt: pass --token-ids, or --prompt-file")
    if count is not None and len(before) != count:
        raise DataError(f"{path}: the prompt had {count} tokens, {source} {len(before)}")
    if not before:
        raise DataError(f"{path}: the prompt is empty")
    return before


# ---------------------------------------------------------------------------------------------------------- raw floats


def _raw(path: str, count: int, vocab: int | None) -> np.ndarray:
    """Read a file of float32 as rows of ``vocab`` values, or if that is None as ``count`` rows of equal length.

    DataError if the file's size does not fit.
    """
    try:
        size = os.stat(path).st_size
        if vocab is None:
            vocab, rest = divmod(size, 4 * max(count, 1))
            if rest or not vocab:
                raise DataError(f"{path}: {size} bytes do not divide into {count} float32 rows, one per token id")
        hint = ""
        for width, name in ((2, "16-bit"), (8, "64-bit")):
            if size == width * vocab * count:  # such a file may also fill whole rows of float32
                hint = f"; {count} rows of {name} numbers fit: write float32"
        if not size or size % (4 * vocab) or hint:
            if not hint and size % (4 * count) == 0:
                hint = f"; {count} rows of {size // (4 * count)} fit: another vocabulary, or padding?"
            raise DataError(f"{path}: {size} bytes do not divide into rows of {vocab} float32 "
                            f"({4 * vocab} bytes each){hint}")  # fmt: skip
        return np.fromfile(path, "<f4").reshape(-1, vocab)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
