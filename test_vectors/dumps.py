"""Read the simplest dumps of an engine: ds4's JSON dumps, and raw arrays of float32.

    {"source": "ds4", "prompt_tokens": n, "steps": [{"selected": {...}, "top_logprobs": [...]}]}    --dump-logprobs
    {"prompt_tokens": n, "logits": [...]}      one row of logits, or a list of rows; optionally "ids" or "rows"
    .bin .raw .f32                             rows of float32, little-endian, without a header

Our own engine writes only the first (``ds4 --dump-logprobs``, with "prompt_ids"). A dump of ds4 holds no prompt: its
ids come from the caller, or from the caller's text through the tokenizer, as ``ds4 --nothink`` renders it. The steps
are greedy: step i holds the distribution after the prompt and the i tokens chosen before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets.command import Dump, read_dump

from .observation import MAX_ID, Observation, from_logits, from_top

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

Ids = Sequence[int] | None


def is_dump(data: Any) -> bool:
    """Return whether JSON data is an output of ``--dump-logprobs``."""
    steps = data.get("steps") if isinstance(data, dict) else None
    return isinstance(steps, list) and "schema" not in data and all(isinstance(s, dict) for s in steps)


def is_logits(data: Any) -> bool:
    """Return whether JSON data holds rows of logits."""
    return isinstance(data, dict) and isinstance(data.get("logits"), list)


def read_json(
    path: str, data: Any, ids: Ids, tokenizer: Tokenizer | None, prompt: tuple[str, str] | None, vocab: int | None
) -> Observation:
    """Convert JSON data of one of the two forms at the top of this module to an observation.

    ``prompt``: (system, user) text, for a dump without a prompt.
    """
    if is_logits(data):
        return _from_logit_rows(path, data, ids, tokenizer, prompt, vocab)
    dump = load(path)
    steps = [step for step in dump.steps if step.token.id is not None]
    chosen = [step.token.id for step in steps if step.token.id is not None]
    before = _prompt_ids(path, data, ids, chosen, tokenizer, prompt)
    tops = [[(t.id, t.logprob) for t in step.top if t.id is not None] for step in steps]
    return _from_greedy(path, before, chosen, tops, vocab)


def load(path: str) -> Dump:
    """Read an output of ``--dump-logprobs``; DataError if it is malformed or empty."""
    try:
        with open(path, "rb") as file:
            dump = read_dump(file.read(), path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except TargetError as error:
        raise DataError(str(error)) from None
    if not dump.steps:
        raise DataError(f"{path}: the dump has no steps")
    return dump


def _prompt_ids(
    path: str, data: dict[str, Any], ids: Ids, chosen: Sequence[int], tokenizer: Tokenizer | None,
    prompt: tuple[str, str] | None,
) -> list[int]:  # fmt: skip
    """Return the prompt's ids: those in the file, the given ones without the continuation, or those of its text."""
    own = data.get("prompt_ids")
    if own is not None:
        if not isinstance(own, list) or not own or not all(type(i) is int and 0 <= i <= MAX_ID for i in own):
            raise DataError(f"{path}: prompt_ids must be a list of token ids")
        if ids is not None and list(ids) not in (own, own + list(chosen), own + list(chosen[:-1])):
            raise DataError(f"{path} was computed on different token ids")
        return list(own)
    count = data.get("prompt_tokens")
    count = count if type(count) is int else None
    text = (str(data.get("system") or ""), data["prompt"]) if isinstance(data.get("prompt"), str) else prompt
    if ids is not None:
        before = list(ids)
        for more in (list(chosen), list(chosen[:-1])):  # the given ids are of the prompt, or of all that was fed
            if count is not None and len(before) == count + len(more) and before[count:] == more:
                before = before[:count]
    elif text is not None:
        before = _encode_prompt(path, tokenizer, text)
    else:
        raise UsageError(f"{path} contains no prompt: pass --token-ids, or --prompt-file")
    if count is not None and len(before) != count:
        source = "the ids given are" if ids is not None else "its text makes"
        raise DataError(f"{path}: the prompt had {count} tokens, {source} {len(before)}")
    return before


def _encode_prompt(path: str, tokenizer: Tokenizer | None, text: tuple[str, str]) -> list[int]:
    from ds4ref.text.chat import encode_chat_prompt

    if tokenizer is None:
        raise UsageError(f"{path}: a text prompt needs a model with a tokenizer: pass --token-ids")
    return encode_chat_prompt(tokenizer, text[0], text[1], "none")


def _from_greedy(
    path: str, before: list[int], chosen: Sequence[int],
    tops: Sequence[Sequence[tuple[int, float | None]]], vocab: int | None,
) -> Observation:  # fmt: skip
    """Make an observation of greedy steps; the last token chosen was not fed to the engine, so it is no input."""
    if not before:
        raise DataError(f"{path}: the prompt is empty")
    start = len(before) - 1
    return from_top([*before, *chosen[:-1]], [(start + i, top) for i, top in enumerate(tops)], vocab)


def _from_logit_rows(
    path: str, data: dict[str, Any], ids: Ids, tokenizer: Tokenizer | None, prompt: tuple[str, str] | None,
    vocab: int | None,
) -> Observation:  # fmt: skip
    """Convert rows of logits; a single row is that of the last token, as in a dump after prefill."""
    rows = data["logits"]
    try:
        nested = bool(rows) and isinstance(rows[0], list)
        table = np.array([[np.nan if v is None else float(v) for v in row] for row in (rows if nested else [rows])])
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"{path}: logits must be a list of numbers, or a list of rows of one length") from None
    if ids is None and data.get("prompt_ids") is None and isinstance(data.get("ids"), list):
        data = {**data, "prompt_ids": data["ids"]}
    tokens = _prompt_ids(path, data, ids, [], tokenizer, prompt)
    at = data.get("rows")
    if at is None and len(table) == 1:
        at = [len(tokens) - 1]
    try:
        positions = None if at is None else np.array(at)
    except ValueError:
        raise DataError(f"{path}: rows must be a list of positions") from None
    return from_logits(tokens, table, positions, vocab)


# ---------------------------------------------------------------------------------------------------------- raw floats


def raw(path: str, count: int | None, vocab: int | None) -> np.ndarray:
    """Read a file of float32 as (rows, vocab); DataError unless its size fits.

    ``count``: number of token ids, which sets the width if ``vocab`` is None.
    """
    try:
        size = os.stat(path).st_size
        if vocab is None:
            if not count:
                raise UsageError(f"{path} is a raw array: pass --token-ids to determine its shape")
            vocab, rest = divmod(size, 4 * count)
            if rest or not vocab:
                raise DataError(f"{path}: {size} bytes do not divide into {count} float32 rows, one per token id")
        if not size or size % (4 * vocab):
            raise DataError(f"{path}: {size} bytes do not divide into rows of {vocab} float32 ({4 * vocab} bytes each)"
                            + _size_hint(size, count, vocab))  # fmt: skip
        guess = _size_hint(size, count, vocab)
        if "-bit" in guess:  # 16-bit and 64-bit values may fill whole rows of float32, too
            raise DataError(f"{path}: {size} bytes are not {count} rows of {vocab} float32{guess}")
        return np.fromfile(path, "<f4").reshape(-1, vocab)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None


def _size_hint(size: int, count: int | None, vocab: int) -> str:
    for width, width_name in ((2, "16-bit"), (8, "64-bit")):
        if count and size == width * vocab * count:
            return f"; {count} rows of {width_name} numbers fit: write float32"
    if count and size % (4 * count) == 0:
        return f"; {count} rows of {size // (4 * count)} fit: another vocabulary, or padding?"
    return ""


def raw_observation(path: str, ids: Ids, vocab: int | None) -> Observation:
    """Read raw float32 logits of all positions, or of the last only, as DS4_*_DUMP_PREFILL_LOGITS writes them."""
    if ids is None:
        raise UsageError(f"{path} contains no token ids: pass --token-ids")
    table = raw(path, len(ids), vocab)
    rows = [len(ids) - 1] if len(table) == 1 else None
    return from_logits(ids, table, rows, vocab)


def first_line_ids(text: str) -> list[int] | None:
    """Parse the output of ``ds4 --dump-tokens``: a JSON list, then one line per id; None for any other text."""
    head, _, rest = text.partition("\n")
    try:
        ids = json.loads(head)
    except (ValueError, RecursionError):
        return None
    if not isinstance(ids, list) or not all(type(i) is int for i in ids) or not rest.strip():
        return None
    starts = [line.split(None, 1)[0] for line in rest.split("\n") if line[:7].strip().isdecimal()]
    return ids if starts[: len(ids)] == [str(i) for i in ids] else None
