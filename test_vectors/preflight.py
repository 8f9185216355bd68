"""Is this what an engine computed at all? Looked at before any question about rounding or mistakes.

    findings = preflight(seen, vocab)       of an Observation; ``refused`` picks what makes a diagnosis pointless
    findings = of_table(table, positions)   of an array alone
    shape_problem(...), scale(table)        what observation.py asks of an array before there is an Observation

A finding has a severity:

    refuse   no logits at all, or none of this model: nothing can be concluded from them
    broken   the engine's output, or its dump, is wrong at these positions, whatever the model says
    warn     usable; what was repaired, or what the form of the data hides

Nothing here knows a model. Left out: everything that needs one (``diagnose``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .storage import SILENT, written

if TYPE_CHECKING:
    from .observation import Observation

REFUSE, BROKEN, WARN = "refuse", "broken", "warn"

SUM = 0.02
"""How far the probabilities of a row may add up beside 1. A rounded sum is off by what storage leaves: 5e-4 in float16,
5e-3 in bfloat16, 0.5 x 10^-d x V with d decimals of V tokens. Logits that do it by chance in every row do not exist."""

TOP_SUM = 1e-3
"""The same for the best tokens of a top-k list, which may stay below 1 but not exceed it; coarse decimals are added."""

TELLING = 5
"""Known values that a row needs before an exact repetition of it means anything: five values to two decimals agree by
chance once in 10^10."""

BLOCK = 64


@dataclass(frozen=True)
class Finding:
    """``says`` is one plain sentence without a full stop; ``positions`` (in the token list) and ``tokens`` (ids) are
    empty where it concerns all of them."""

    name: str
    says: str
    severity: str
    positions: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {"name": self.name, "says": self.says, "severity": self.severity, "positions": list(self.positions),
                "tokens": list(self.tokens)}  # fmt: skip


def refused(findings: Sequence[Finding]) -> Finding | None:
    """The first finding that makes the data useless."""
    return next((f for f in findings if f.severity == REFUSE), None)


def preflight(seen: Observation, vocab: int | None = None) -> list[Finding]:
    """Everything found about ``seen``, worst first; what reading it repaired is part of it. ``vocab`` is the size of
    the model's vocabulary, if a model is known."""
    found = [*seen.findings, *_ids(seen, vocab)]
    if seen.support is None:
        table = seen.logprobs if seen.given is None else seen.given
        found += of_table(table, seen.rows, seen.ids)
    else:
        found += _top(seen)
        combined = np.concatenate((np.where(seen.support < 0, -1, seen.support), seen.logprobs), axis=1)
        if seen.support.shape[1] >= TELLING:
            found += _repeated(combined, seen.rows, seen.ids)
    stored = _storage(seen)
    found += [] if stored is None else [stored]
    order = (REFUSE, BROKEN, WARN)
    return sorted(dict.fromkeys(found), key=lambda f: order.index(f.severity))


# ------------------------------------------------------------------------------------------------------------- arrays


def shape_problem(shape: tuple[int, ...], tokens: int, positions: int, vocab: int | None) -> str | None:
    """Why a table of this shape does not belong to ``positions`` of ``tokens`` token ids; None if it may."""
    of = f"{positions} positions" if positions == tokens else f"{positions} positions of {tokens} tokens"
    problem = f"logits of shape {shape} do not go with {of}"
    if len(shape) != 2:
        return f"{problem}: a table is needed, one row a position, one column a token of the vocabulary"
    height, width = shape
    if height == positions:
        return None
    if width == positions and (vocab is None or height >= vocab):
        return f"{problem}: they look transposed (rows are positions, columns the vocabulary)"
    if height == positions - 1:
        return (f"{problem}: one row is missing (who dumps the log probability of each given token starts at the "
                'second; say which positions the rows are, as "rows" in an .npz)')  # fmt: skip
    if height == positions + 1:
        return f"{problem}: one row too many (did the engine add a BOS token that the ids lack?)"
    if height == 1:
        return f'{problem}: a single row; if it is that of the last token, say so as "rows" in an .npz'
    return problem


def padding(table: np.ndarray, vocab: int) -> bool:
    """Whether the columns beyond ``vocab`` hold nothing: the same value for all, or for each one in every row."""
    more = table[:, vocab:]
    if not more.size:
        return False
    return bool((more == more.flat[0]).all() or (len(more) > 1 and (more == more[:1]).all()))


@dataclass(frozen=True)
class Rows:
    """Per row of a table (R, V): counts of values that are not numbers, and the range of those that are."""

    nan: np.ndarray
    high: np.ndarray
    low: np.ndarray
    least: np.ndarray
    most: np.ndarray


def measure(table: np.ndarray) -> Rows:
    """Statistics of every row, a block at a time: the table may be large."""
    parts: list[list[np.ndarray]] = []
    for start in range(0, max(1, len(table)), BLOCK):
        x = np.asarray(table[start : start + BLOCK])
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
        finite = np.isfinite(x)
        if finite.all():
            none = np.zeros(len(x), np.int64)
            least, most = (f(x, axis=1, initial=i) for f, i in ((np.min, np.inf), (np.max, -np.inf)))
            parts.append([none, none, none, least, most])
            continue
        least = np.where(finite, x, np.inf).min(axis=1, initial=np.inf)
        most = np.where(finite, x, -np.inf).max(axis=1, initial=-np.inf)
        parts.append([f(x).sum(axis=1) for f in (np.isnan, np.isposinf, np.isneginf)] + [least, most])
    nan, high, low, least, most = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Rows(nan, high, low, least.astype(np.float64), most.astype(np.float64))


_BASES = {"log": 1.0, "log10": float(np.log(10)), "log2": float(np.log(2))}


def scale(table: np.ndarray) -> str:
    """ "logits", "log" (natural log probabilities), "log10", "log2" or "probabilities": what the rows add up to. The
    typical row of up to BLOCK decides, so that a few broken ones do not hide it."""
    x = np.asarray(table[:: max(1, len(table) // BLOCK)], np.float64)
    rows = measure(x)
    x = x[(rows.nan == 0) & (rows.high == 0) & (rows.least < rows.most)]
    if table.shape[1] < 2 or not len(x):
        return "logits"
    if x.min() >= 0 and _is_one(x.sum(axis=1)):
        return "probabilities"
    if np.median(x.max(axis=1)) > SUM:
        return "logits"  # the exponentials below could not add up to 1
    return next((name for name, base in _BASES.items() if _is_one(np.exp(x * base).sum(axis=1))), "logits")


def _is_one(sums: np.ndarray) -> bool:
    return bool(abs(np.median(sums) - 1) <= SUM)


def of_table(table: np.ndarray, positions: np.ndarray, ids: np.ndarray | None = None) -> list[Finding]:
    """What is wrong with a table (R, V) whose rows are ``positions`` (R,) of ``ids``, where those are known."""
    return [*examine(table, positions), *_repeated(table, positions, np.zeros(0, np.int32) if ids is None else ids)]


def examine(table: np.ndarray, positions: np.ndarray) -> list[Finding]:
    """What is wrong with the values of a table (R, V): not finite, constant, masked. ``positions`` (R,) names rows."""
    rows, found = measure(table), []
    height, width = table.shape
    for name, counts, what in (("nan", rows.nan, "not a number"), ("infinite", rows.high, "+infinity")):
        if counts.any():
            at = _at(positions, counts > 0)
            found.append(Finding(
                name, f"{int(counts.sum())} values are {what}, at {_places(at, height)}", BROKEN, at
            ))  # fmt: skip
    masked = _masked(table, rows)
    tokens = tuple(np.flatnonzero(masked).tolist())
    if len(tokens) * 2 > width:
        says = f"{len(tokens)} of the {width} tokens are masked (-infinity) everywhere: this is no whole distribution"
        found.append(Finding("masked", says, REFUSE, (), tokens))
    elif tokens:
        says = f"{len(tokens)} token{'s' * (len(tokens) > 1)} masked (-infinity) at all positions: not compared"
        found.append(Finding("masked", says, WARN, (), tokens))
    if len(tokens) * 2 <= width:
        found += _holes(table, rows, masked, positions)
    flat = (rows.nan + rows.high + rows.low == 0) & (rows.least == rows.most) if width > 1 else np.zeros(height, bool)
    if flat.any():
        zero = bool((rows.most[flat] == 0).all())
        what = "only zeros" if zero else "one value for every token"
        says = (f"all rows hold {what}: the buffer was never written" if flat.all()
                else f"{what} at {_places(_at(positions, flat), height)}: these rows were never written")  # fmt: skip
        found.append(Finding("zero" if zero else "constant", says, REFUSE if flat.all() else BROKEN,
                             () if flat.all() else _at(positions, flat)))  # fmt: skip
    return found


def _masked(table: np.ndarray, rows: Rows) -> np.ndarray:
    """Columns (V,) that are -infinity, or a number that stands for it, in every row that is otherwise usable."""
    on = rows.nan + rows.high == 0
    if not on.any():
        return np.zeros(table.shape[1], bool)
    mask = np.ones(table.shape[1], bool)
    for r in np.flatnonzero(on):
        mask &= np.asarray(table[r], np.float64) <= rows.most[r] + SILENT
    return mask


def _holes(table: np.ndarray, rows: Rows, masked: np.ndarray, positions: np.ndarray) -> list[Finding]:
    """-infinity at some positions only. Where it takes most of every row, a filter ran before the dump."""
    extra = rows.low - np.array([np.isneginf(np.asarray(row[masked], np.float64)).sum() for row in table])
    if not (extra > 0).any():
        return []
    height, width = table.shape
    usable = rows.nan + rows.high == 0
    if (2 * extra[usable] > width).all() and usable.any():
        left = int(np.median(width - rows.low[usable]))
        says = (f"all but about {left} of {width} values of each row are -infinity: a filter (top-k, top-p) ran before "
                "the dump; dump before it, or give log probabilities of the best tokens as JSON")  # fmt: skip
        return [Finding("filtered", says, REFUSE)]
    at = _at(positions, extra > 0)
    says = f"{int(extra.sum())} values are -infinity, at {_places(at, height)}"
    return [Finding("infinite", says, BROKEN, at)]


def _repeated(table: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> list[Finding]:
    """Rows that repeat an earlier one bit for bit: a buffer that was not written again. Where the last two tokens are
    the same as well, nothing is concluded: a text that repeats itself may make an engine do so."""
    if table.shape[1] < TELLING or len(table) < 2:
        return []
    first: dict[bytes, int] = {}
    again: list[int] = []
    for r in range(len(table)):
        row = np.ascontiguousarray(table[r])
        origin = first.setdefault(hashlib.blake2b(row.tobytes()).digest(), r)
        if origin == r or _same_end(ids, int(positions[origin]), int(positions[r])):
            continue
        if len(np.unique(row[np.isfinite(row)])) >= TELLING:  # constant rows and masks are findings of their own
            again.append(r)
    if not again:
        return []
    at = _at(positions, np.array(again))
    if len(first) == 1:
        says = "every position has the same row: one result was dumped again and again"
        return [Finding("repeated", says, REFUSE)]
    says = f"an earlier row is repeated bit for bit at {_places(at, len(table))}: a stale buffer"
    return [Finding("repeated", says, BROKEN, at)]


def _same_end(ids: np.ndarray, a: int, b: int) -> bool:
    return min(a, b) >= 1 and max(a, b) < len(ids) and bool((ids[a - 1 : a + 1] == ids[b - 1 : b + 1]).all())


# ------------------------------------------------------------------------------------------------------- observations


def _ids(seen: Observation, vocab: int | None) -> list[Finding]:
    if vocab is None:
        return []
    found = []
    outside = (seen.ids < 0) | (seen.ids >= vocab)
    if outside.any():
        says = f"token id {int(seen.ids[outside][0])} is outside the vocabulary of {vocab}: another model?"
        at = tuple(np.flatnonzero(outside).tolist())
        found.append(Finding("ids", says, REFUSE, at, tuple(sorted({int(i) for i in seen.ids[outside]}))))
    if seen.support is None and seen.logprobs.shape[1] != vocab:
        says = f"the logits are {seen.logprobs.shape[1]} wide, the model's vocabulary is {vocab}: another model?"
        found.append(Finding("width", says, REFUSE))
    if seen.support is not None and seen.support.max() >= vocab:
        says = f"token id {int(seen.support.max())} in the log probabilities is outside the vocabulary of {vocab}"
        at = _at(seen.rows, np.asarray((seen.support >= vocab).any(axis=1)))
        found.append(Finding("ids", says, REFUSE, at, tuple(np.unique(seen.support[seen.support >= vocab]).tolist())))
    return found


def _top(seen: Observation) -> list[Finding]:
    """The lists of best tokens: sums above 1, tokens listed twice, no distribution at all."""
    assert seen.support is not None
    known, found = seen.support >= 0, []
    values = np.where(known, seen.logprobs, -np.inf)
    if (np.where(known, seen.logprobs, 0.0) == 0).all():
        says = "every listed log probability is 0: the source tells which token it chose, and no distribution"
        return [Finding("degenerate", says, REFUSE)]
    with np.errstate(over="ignore"):
        sums, tens = np.exp(values).sum(axis=1), np.exp(values * _BASES["log10"]).sum(axis=1)
    over = sums > 1 + TOP_SUM + seen.quantum
    if over.any():
        at = _at(seen.rows, over)
        hint = ", and look like logarithms to base 10" if (tens <= 1 + TOP_SUM).all() and (values <= 0).all() else ""
        says = (f"the listed tokens alone have probabilities that add up to {sums.max():.3g} at "
                f"{_places(at, len(over))}: these are no natural log probabilities{hint}")  # fmt: skip
        found.append(Finding("sum", says, REFUSE if over.all() else BROKEN, () if over.all() else at))
    twice = np.zeros(len(known), bool)
    for r, on in enumerate(known):
        twice[r] = len(np.unique(seen.support[r][on])) < on.sum()
    if twice.any():
        at = _at(seen.rows, twice)
        found.append(Finding("twice", f"a token is listed twice at {_places(at, len(twice))}", BROKEN, at))
    return found


def _storage(seen: Observation) -> Finding | None:
    name, step = written(seen.logprobs if seen.given is None else seen.given)
    if not name:
        return None
    if name.startswith(("float", "bfloat")):
        says = f"the values are rounded to {name}: relative differences below {step:.1g} cannot be seen"
    else:
        says = f"the values were written as {name}: differences below {step / 2:g} cannot be seen"
    return Finding("storage", says, WARN)


def _at(positions: np.ndarray, chosen: np.ndarray) -> tuple[int, ...]:
    return tuple(int(p) for p in positions[chosen])


def _places(at: Sequence[int], of: int) -> str:
    """ "position 3", "positions 3, 5 and 7", "12 of 200 positions, the first is 3"."""
    if len(at) == 1:
        return f"position {at[0]}"
    if len(at) <= 4:
        return f"positions {', '.join(map(str, at[:-1]))} and {at[-1]}"
    return f"{len(at)} of {of} positions, the first is {at[0]}"
