"""Check by shape, scale and values whether numbers can be an engine's logits or log probabilities at all.

    shape_problem(...), padding(table, vocab), scale(table)    used before there is an Observation
    examine(table, positions), repeated(...)                   find defects (for ``observation.preflight``)
    refused(findings)                                          the first defect that makes a diagnosis pointless

The outcome of a finding is one of:

    REFUSE   these are not logits, or those of another model: no conclusion is possible
    BROKEN   the engine's output, or its dump, is wrong at these positions, whatever the model
    WARN     usable, but something was converted, or small differences cannot be seen in data of this form

These checks do not need the model; those that do are in ``diagnosis``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from .finding import Finding, Outcome
from .storage import SILENT

REFUSE, BROKEN, WARN = Outcome.FAILED, Outcome.WRONG, Outcome.UNSURE

SUM = 0.02
"""Allowed distance from 1 of a row's sum of probabilities. Storage causes 5e-4 in float16, 5e-3 in bfloat16, and
0.5 x 10^-d x V with d decimals of V tokens. Logits never sum this close to 1 by chance in every row."""
TELLING = 5
"""Smallest number of values in a row whose exact repetition is evidence of a defect: five values of two decimals agree
by chance once in 10^10."""
SAMPLE = 64
"""Number of rows from which the scale is inferred."""
BASES = {"log": 1.0, "log10": float(np.log(10)), "log2": float(np.log(2))}


def refused(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding (with outcome REFUSE) that makes the data useless; None if there is none."""
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
    hints = {
        1: 'a single row; if it is that of the last token, say so as "rows" in an .npz',
        positions + 1: "one row too many (did the engine add a BOS token that the ids lack?)",
        positions - 1: "one row is missing (who dumps the log probability of each given token starts at the second; "
        'say which positions the rows are, as "rows" in an .npz)',
    }
    return f"{problem}: {hints[height]}" if height in hints else problem


def padding(table: np.ndarray, vocab: int) -> bool:
    """Return whether the columns beyond ``vocab`` are padding: one value for all, or the same values in every row."""
    more = table[:, vocab:]
    return bool(more.size) and bool((more == more.flat[0]).all() or (len(more) > 1 and (more == more[:1]).all()))


def scale(table: np.ndarray) -> str:
    """Return the scale of a table from the sums of its rows.

    "logits", "log" (natural log probabilities), "log10", "log2" or "probabilities". The median of up to SAMPLE rows
    decides, so that a few broken rows do not hide it.
    """
    x = np.asarray(table[:: max(1, len(table) // SAMPLE)], np.float64)
    least, most = _range(x)
    x = x[~(np.isnan(x) | np.isposinf(x)).any(axis=1) & (least < most)]
    if table.shape[1] < 2 or not len(x):
        return "logits"
    if x.min() >= 0 and _is_one(x.sum(axis=1)):
        return "probabilities"
    if np.median(x.max(axis=1)) > SUM:
        return "logits"  # the exponentials below could not add up to 1
    return next((name for name, base in BASES.items() if _is_one(np.exp(x * base).sum(axis=1))), "logits")


def _is_one(sums: np.ndarray) -> bool:
    return bool(abs(np.median(sums) - 1) <= SUM)


def _range(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest finite value of each row."""
    finite = np.isfinite(x)
    return x.min(axis=1, where=finite, initial=np.inf), x.max(axis=1, where=finite, initial=-np.inf)


def broken(name: str, says: str, positions: np.ndarray, wrong: np.ndarray) -> Finding:
    """Return a finding with outcome BROKEN about the rows in the mask ``wrong``.

    name       short name of the finding
    says       its sentence, in which {at} is replaced by the positions
    positions  positions of all rows
    """
    at = positions[wrong].tolist()
    if len(at) == 1:
        where = f"position {at[0]}"
    elif len(at) <= 4:
        where = f"positions {', '.join(map(str, at[:-1]))} and {at[-1]}"
    else:
        where = f"{len(at)} of {len(positions)} positions, first at {at[0]}"
    return Finding(name, says.format(at=where), BROKEN, tuple(at))


def examine(table: np.ndarray, positions: np.ndarray) -> list[Finding]:
    """Return findings about the values of a table (R, V) at ``positions`` (R,): not finite, constant, masked."""
    x = table if table.dtype.kind == "f" else table.astype(np.float64)
    nan, high, low = np.isnan(x), np.isposinf(x), np.isneginf(x)
    least, most = _range(x)
    width, findings = x.shape[1], []
    for name, wrong, description in (("nan", nan, "not a number"), ("infinite", high, "+infinity")):
        if wrong.any():
            says = f"{int(wrong.sum())} values are {description}, at {{at}}"
            findings.append(broken(name, says, positions, np.asarray(wrong.any(axis=1))))
    usable = ~(nan | high).any(axis=1)
    # masked tokens: -infinity, or a large negative number instead, in every usable row
    masked = (x[usable] <= (most[usable].astype(np.float64) + SILENT)[:, None]).all(axis=0) & usable.any()
    tokens = tuple(np.flatnonzero(masked).tolist())
    if len(tokens) * 2 > width:
        says = f"{len(tokens)} of the {width} tokens are masked (-infinity) everywhere: not a complete distribution"
        findings.append(Finding("masked", says, REFUSE, (), tokens))
    elif tokens:
        says = f"{len(tokens)} token{'s' * (len(tokens) > 1)} masked (-infinity) at all positions: not compared"
        findings.append(Finding("masked", says, WARN, (), tokens))
    holes = np.sum(low & ~masked, axis=1)
    if usable.any() and (2 * holes[usable] > width).all():
        says = (
            f"all but about {int(np.median(width - low[usable].sum(axis=1)))} of {width} values of each row are "
            "-infinity: a filter (top-k, top-p) ran before the dump; dump before it, or give log probabilities of the "
            "best tokens as JSON"
        )
        findings.append(Finding("filtered", says, REFUSE))
    elif holes.any():
        findings.append(broken("infinite", f"{holes.sum()} values are -infinity, at {{at}}", positions, holes > 0))
    flat = np.isfinite(x).all(axis=1) & (least == most) if width > 1 else np.zeros(len(x), bool)
    if flat.any():
        zero = bool((most[flat] == 0).all())
        name, description = ("zero", "only zeros") if zero else ("constant", "one value for every token")
        if flat.all():
            says = f"all rows hold {description}: the buffer was never written"
            findings.append(Finding(name, says, REFUSE))
        else:
            findings.append(broken(name, f"{description} at {{at}}: these rows were never written", positions, flat))
    return findings


def repeated(table: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> list[Finding]:
    """Return a finding if rows repeat an earlier one bit for bit, as if a buffer had not been overwritten.

    A row that follows the same two tokens as the earlier one is ignored: where the text repeats, an engine's output may
    repeat, too. ``table`` (R, V), ``positions`` (R,), ``ids`` (T,): all token ids.
    """
    if table.shape[1] < TELLING or len(table) < 2:
        return []
    first: dict[bytes, int] = {}
    again = np.zeros(len(table), bool)
    for r in range(len(table)):
        row = np.ascontiguousarray(table[r])
        origin = first.setdefault(hashlib.blake2b(row.tobytes()).digest(), r)
        a, b = int(positions[origin]), int(positions[r])
        alike = a >= 1 and np.array_equal(ids[a - 1 : a + 1], ids[b - 1 : b + 1])
        # constant rows and masked tokens have findings of their own
        again[r] = origin != r and not alike and len(np.unique(row[np.isfinite(row)])) >= TELLING
    if not again.any():
        return []
    if len(first) == 1:
        return [Finding("repeated", "every position has the same row: the same result was dumped repeatedly", REFUSE)]
    says = "an earlier row is repeated bit for bit at {at}: a stale buffer"
    return [broken("repeated", says, positions, again)]
