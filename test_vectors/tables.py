"""Check from shape, scale and values whether a table of numbers holds logits at all.

    findings = of_table(table, positions)
    shape_problem(...), scale(table)        used before there is an Observation

The outcome of a finding is one of:

    REFUSE   no logits at all, or of another model: no conclusion is possible
    BROKEN   the engine's output, or its dump, is wrong at these positions, for any model
    WARN     usable, but something was repaired, or the form of the data hides something

Nothing here knows the model; checks that need one are in ``diagnosis``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .finding import Finding, Outcome
from .storage import SILENT

REFUSE, BROKEN, WARN = Outcome.FAILED, Outcome.WRONG, Outcome.UNSURE

SUM = 0.02
"""Allowed distance from 1 of a row's sum of probabilities. Storage causes 5e-4 in float16, 5e-3 in bfloat16, and
0.5 x 10^-d x V with d decimals of V tokens. Logits never sum this close to 1 by chance in every row."""

TELLING = 5
"""Fewest known values of a row whose exact repetition is evidence: five values of two decimals agree by chance once in
10^10."""

BLOCK = 64
"""Rows processed at once."""


def refused(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding that makes the data useless, None if there is none."""
    return next((f for f in findings if f.outcome is REFUSE), None)


def shape_problem(shape: tuple[int, ...], tokens: int, positions: int, vocab: int | None) -> str | None:
    """Return why a table of this shape cannot belong to ``positions`` of ``tokens`` token ids; None if it can."""
    of = f"{positions} positions" if positions == tokens else f"{positions} positions of {tokens} tokens"
    problem = f"logits of shape {shape} do not match {of}"
    if len(shape) != 2:
        return f"{problem}: expected one row per position and one column per vocabulary token"
    height, width = shape
    if height == positions:
        return None
    if width == positions and (vocab is None or height >= vocab):
        return f"{problem}: they look transposed (rows must be positions, columns the vocabulary)"
    if height == positions - 1:
        return (f"{problem}: one row is missing (who dumps the log probability of each given token starts at the "
                'second; say which positions the rows are, as "rows" in an .npz)')  # fmt: skip
    if height == positions + 1:
        return f"{problem}: one row too many (did the engine add a BOS token that the ids lack?)"
    if height == 1:
        return f'{problem}: a single row; if it is that of the last token, say so as "rows" in an .npz'
    return problem


def padding(table: np.ndarray, vocab: int) -> bool:
    """Return whether the columns beyond ``vocab`` are padding: one value for all, or the same values in every row."""
    more = table[:, vocab:]
    if not more.size:
        return False
    return bool((more == more.flat[0]).all() or (len(more) > 1 and (more == more[:1]).all()))


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of the rows of a table (R, V); arrays are (R,).

    nan    number of NaN
    high   number of +infinity
    low    number of -infinity
    least  smallest finite value
    most   largest finite value
    """

    nan: np.ndarray
    high: np.ndarray
    low: np.ndarray
    least: np.ndarray
    most: np.ndarray


def measure(table: np.ndarray) -> RowStatistics:
    """Compute the statistics of every row, a block at a time, as the table may be large."""
    parts: list[list[np.ndarray]] = []
    for start in range(0, max(1, len(table)), BLOCK):
        x = np.asarray(table[start : start + BLOCK])
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        finite = np.isfinite(x)
        if finite.all():
            zeros = np.zeros(len(x), np.int64)
            least, most = (f(x, axis=1, initial=i) for f, i in ((np.min, np.inf), (np.max, -np.inf)))
            parts.append([zeros, zeros, zeros, least, most])
            continue
        least = np.where(finite, x, np.inf).min(axis=1, initial=np.inf)
        most = np.where(finite, x, -np.inf).max(axis=1, initial=-np.inf)
        parts.append([f(x).sum(axis=1) for f in (np.isnan, np.isposinf, np.isneginf)] + [least, most])
    nan, high, low, least, most = (np.concatenate(column) for column in zip(*parts, strict=True))
    return RowStatistics(nan, high, low, least.astype(np.float64), most.astype(np.float64))


BASES = {"log": 1.0, "log10": float(np.log(10)), "log2": float(np.log(2))}


def scale(table: np.ndarray) -> str:
    """Return the scale of a table from the sums of its rows.

    "logits", "log" (natural log probabilities), "log10", "log2" or "probabilities". The median of up to BLOCK rows
    decides, so that a few broken rows do not hide it.
    """
    x = np.asarray(table[:: max(1, len(table) // BLOCK)], np.float64)
    rows = measure(x)
    x = x[(rows.nan == 0) & (rows.high == 0) & (rows.least < rows.most)]
    if table.shape[1] < 2 or not len(x):
        return "logits"
    if x.min() >= 0 and _is_one(x.sum(axis=1)):
        return "probabilities"
    if np.median(x.max(axis=1)) > SUM:
        return "logits"  # the exponentials below could not add up to 1
    return next((name for name, base in BASES.items() if _is_one(np.exp(x * base).sum(axis=1))), "logits")


def _is_one(sums: np.ndarray) -> bool:
    return bool(abs(np.median(sums) - 1) <= SUM)


def of_table(table: np.ndarray, positions: np.ndarray, ids: np.ndarray | None = None) -> list[Finding]:
    """Return the findings about a table (R, V) whose rows are ``positions`` (R,) of ``ids`` (None: unknown)."""
    return [*examine(table, positions), *repeated(table, positions, np.zeros(0, np.int32) if ids is None else ids)]


def examine(table: np.ndarray, positions: np.ndarray) -> list[Finding]:
    """Return findings about the values of a table (R, V) at ``positions`` (R,): not finite, constant, masked."""
    rows, findings = measure(table), []
    height, width = table.shape
    for name, counts, description in (("nan", rows.nan, "not a number"), ("infinite", rows.high, "+infinity")):
        if counts.any():
            at = chosen_positions(positions, counts > 0)
            findings.append(Finding(
                name, f"{int(counts.sum())} values are {description}, at {name_positions(at, height)}", BROKEN, at
            ))  # fmt: skip
    masked = _masked(table, rows)
    tokens = tuple(np.flatnonzero(masked).tolist())
    if len(tokens) * 2 > width:
        says = f"{len(tokens)} of the {width} tokens are masked (-infinity) everywhere: not a complete distribution"
        findings.append(Finding("masked", says, REFUSE, (), tokens))
    elif tokens:
        says = f"{len(tokens)} token{'s' * (len(tokens) > 1)} masked (-infinity) at all positions: not compared"
        findings.append(Finding("masked", says, WARN, (), tokens))
    if len(tokens) * 2 <= width:
        findings += _holes(table, rows, masked, positions)
    flat = (rows.nan + rows.high + rows.low == 0) & (rows.least == rows.most) if width > 1 else np.zeros(height, bool)
    if flat.any():
        zero = bool((rows.most[flat] == 0).all())
        description = "only zeros" if zero else "one value for every token"
        at = () if flat.all() else chosen_positions(positions, flat)
        says = f"all rows hold {description}: the buffer was never written"
        if not flat.all():
            says = f"{description} at {name_positions(at, height)}: these rows were never written"
        findings.append(Finding("zero" if zero else "constant", says, REFUSE if flat.all() else BROKEN, at))
    return findings


def _masked(table: np.ndarray, rows: RowStatistics) -> np.ndarray:
    """Return the mask of columns (V,) that are -infinity, or a number that stands for it, in every usable row."""
    on = rows.nan + rows.high == 0
    if not on.any():
        return np.zeros(table.shape[1], bool)
    mask = np.ones(table.shape[1], bool)
    for r in np.flatnonzero(on):
        mask &= np.asarray(table[r], np.float64) <= rows.most[r] + SILENT
    return mask


def _holes(table: np.ndarray, rows: RowStatistics, masked: np.ndarray, positions: np.ndarray) -> list[Finding]:
    """Return a finding for -infinity at some positions only; most of every row: a filter ran before the dump."""
    extra = rows.low - np.array([np.isneginf(np.asarray(row[masked], np.float64)).sum() for row in table])
    if not (extra > 0).any():
        return []
    height, width = table.shape
    usable = rows.nan + rows.high == 0
    if (2 * extra[usable] > width).all() and usable.any():
        kept_values = int(np.median(width - rows.low[usable]))
        says = (
            f"all but about {kept_values} of {width} values of each row are -infinity: a filter (top-k, top-p) ran "
            "before the dump; dump before it, or give log probabilities of the best tokens as JSON"
        )
        return [Finding("filtered", says, REFUSE)]
    at = chosen_positions(positions, extra > 0)
    says = f"{int(extra.sum())} values are -infinity, at {name_positions(at, height)}"
    return [Finding("infinite", says, BROKEN, at)]


def repeated(table: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> list[Finding]:
    """Return a finding for rows that repeat an earlier one bit for bit, as a buffer that was not rewritten does.

    Rows after the same two tokens are ignored, as an engine may repeat itself where its text does.
    """
    if table.shape[1] < TELLING or len(table) < 2:
        return []
    first: dict[bytes, int] = {}
    again: list[int] = []
    for r in range(len(table)):
        row = np.ascontiguousarray(table[r])
        origin = first.setdefault(hashlib.blake2b(row.tobytes()).digest(), r)
        if origin == r or _same_last_tokens(ids, int(positions[origin]), int(positions[r])):
            continue
        if len(np.unique(row[np.isfinite(row)])) >= TELLING:  # constant rows and masks have their own findings
            again.append(r)
    if not again:
        return []
    at = chosen_positions(positions, np.array(again))
    if len(first) == 1:
        says = "every position has the same row: the same result was dumped repeatedly"
        return [Finding("repeated", says, REFUSE)]
    says = f"an earlier row is repeated bit for bit at {name_positions(at, len(table))}: a stale buffer"
    return [Finding("repeated", says, BROKEN, at)]


def _same_last_tokens(ids: np.ndarray, a: int, b: int) -> bool:
    return min(a, b) >= 1 and max(a, b) < len(ids) and bool((ids[a - 1 : a + 1] == ids[b - 1 : b + 1]).all())


def chosen_positions(positions: np.ndarray, chosen: np.ndarray) -> tuple[int, ...]:
    """Return the positions of the rows that ``chosen`` (mask or indices) selects."""
    return tuple(int(p) for p in positions[chosen])


def name_positions(at: Sequence[int], of: int) -> str:
    """Describe positions ``at`` of ``of``: "position 3", "positions 3 and 7", "12 of 200 positions, the first is 3"."""
    if len(at) == 1:
        return f"position {at[0]}"
    if len(at) <= 4:
        return f"positions {', '.join(map(str, at[:-1]))} and {at[-1]}"
    return f"{len(at)} of {of} positions, first at {at[0]}"
