"""Search for the cause of a wrong op: a known bug (a fault of the library), or a constant with a wrong value.

Each fault is injected into our layer, which is run on the other engine's inputs. If the op's result then agrees with
theirs (to within its budget), the fault is tried in all layers, and reported with the number of wrong ops it explains
and the number of right ones it would make wrong (spoil).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ds4ref.variants import Fault

from .blame import BlameResult, Blaming, WrongOp
from .constants import fitted
from .forcing import Reading
from .ops import CHOICES, OPS, STORED, Key
from .patterns import describe, structure

ROTATED = frozenset(("Qcur", "KVrope", "KVcur", "KVcompress", "indexer_KVcompress", "indexer_q", "kqv_out", "kqv_back"))
MOST_CAUSES = 4
"""Largest number of causes to search for; each is searched among the ops that the previous ones do not explain."""
TIES = 4
"""Largest number of faults named in one cause, if several explain the ops equally well."""


@dataclass(frozen=True)
class Cause:
    """One explanation of wrong ops.

    names     names of the faults that explain equally many ops
    text      the explanation in a sentence
    explains  the wrong ops that it explains
    """

    names: tuple[str, ...]
    text: str
    explains: tuple[Key, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the cause in JSON types."""
        return {"names": list(self.names), "text": self.text,
                "explains": [list(key) for key in self.explains]}  # fmt: skip


def explain(case: Blaming, result: BlameResult, search: bool = True) -> None:
    """Fill in ``where`` and ``causes`` of the wrong ops of ``result``; search for causes only if ``search``."""
    for wrong in result.wrong:
        wrong.where = _describe(case, wrong)
    if search:
        _search(case, result)
    settle(case, result)


def _search(case: Blaming, result: BlameResult) -> None:
    """Find up to ``MOST_CAUSES`` causes, each among the wrong ops that earlier ones do not explain."""
    unexplained = list(result.wrong)
    for _ in range(MOST_CAUSES):
        if not unexplained:
            break
        cause = _find_fault(case, result, unexplained)
        if cause is None:
            unexplained = unexplained[1:]
            continue
        result.causes.append(cause)
        explained = set(cause.explains)
        for wrong in unexplained:
            if wrong.key in explained:
                wrong.causes.append(cause.text)
        unexplained = [wrong for wrong in unexplained if wrong.key not in explained]


COARSE = {"bf16": 2.0**-6, "": 2.0**-9}
"""Largest relative difference that rounding to bfloat16 ("bf16") or another float type ("") explains: four times its
effect on one value. bfloat16 is considered only if the engine's rounding set uses it, and for attention outputs."""
STRUCTURE = 0.2
"""An error counts as rounding only if its ``patterns.structure`` is at most this."""
EVEN = 10.0
"""An error counts as rounding only if the 90 % quantile of the rows' errors is at most this many times the 10 % one."""
ALONE = 6.0
"""An error counts as rounding only if no row's is more than this many times the median, as in a mistake in one row."""


def settle(case: Blaming, result: BlameResult) -> None:
    """Move wrong ops whose errors are an unknown but uniform rounding from ``result.wrong`` to ``result.coarse``.

    A kind of op is moved if it is off in every layer by the same small error without structure, and no cause explains
    it. A mistake smaller than that error cannot be seen there.
    """
    for kind in dict.fromkeys(wrong.key[0] for wrong in result.wrong):
        same_kind = [wrong for wrong in result.wrong if wrong.key[0] == kind]
        # some engines compute in 16 bits only in attention kernels
        coarse = result.rounding.startswith("bf16") or kind in ("kqv_out", "kqv_back")
        most = COARSE["bf16" if coarse else ""]
        sizes = [wrong.judgement.relative for wrong in same_kind]
        spared = [key for key in result.clean if key[0] == kind]
        if kind in CHOICES or spared or len(same_kind) < 2 or any(wrong.causes for wrong in same_kind):
            continue
        if not 0 < min(sizes) <= max(sizes) <= min(most, 4 * min(sizes)):
            continue
        # the structure of one layer's error is noisy, so take the median over layers
        shares = [_error_structure(case, wrong) for wrong in same_kind]
        if None not in shares and np.median([value for value in shares if value is not None]) <= STRUCTURE:
            result.coarse[kind] = max(sizes)
            result.clean += [wrong.key for wrong in same_kind]
            result.wrong = [wrong for wrong in result.wrong if wrong.key[0] != kind]


def _error_structure(case: Blaming, wrong: WrongOp) -> float | None:
    """Return the structure (``patterns.structure``) of a point's error, near 0 for a rounding.

    None if it cannot be computed, or if the rows' errors are too uneven for a rounding. If the rounding set explains
    less than half of the difference from our unrounded op, the other engine rounds differently there, and the
    difference from the unrounded op may count instead.
    """
    fits = case.theirs.get(wrong.key, None)
    if fits is None or len(fits) != 1 or fits[0].values.shape[-1] < 8:
        return None
    shares = []
    sizes: list[float] = []
    for name in dict.fromkeys((wrong.rounding, "exact")):
        reading = case.clean_pass(name)
        ours = reading.ours.get(wrong.key)
        if ours is None:
            return None
        size = reading.size[wrong.key]
        level = reading.apart[wrong.key] / np.maximum(size, max(float(np.median(size)), 1e-30))
        low, median, high = np.quantile(level, (0.1, 0.5, 0.9))
        if not 0 < high <= EVEN * low or level.max() > ALONE * median:
            return None
        sizes.append(median)
        if sizes[0] > 0.5 * median:
            shares.append(float(structure(ours.reshape(fits[0].values.shape), fits[0].values)))
    return min(shares)


def _describe(case: Blaming, wrong: WrongOp) -> list[str]:
    """Return sentences on where and how the op's result differs from ours."""
    name, _ = wrong.key
    fits = case.theirs.get(wrong.key, None)
    if fits is None:
        return []
    rows = wrong.rows
    if name in CHOICES:
        hit = rows[wrong.judgement.beyond]
        return [f"other {CHOICES[name]} chosen at {len(hit)} of {len(rows)} positions, {hit[0]} first"]
    ours = case.clean_pass(wrong.rounding).ours.get(wrong.key)
    if ours is None:
        return []
    theirs = np.concatenate([fit.values.reshape(len(fit.values), -1) for fit in fits], axis=1)
    axes = OPS[name].axes
    if len(fits) == 1:
        ours = ours.reshape(fits[0].values.shape)
        theirs = theirs.reshape(ours.shape)
    else:
        axes = axes[0] + "F"
    rope_dim = int(case.engine.shape.rope_dim) if name in ROTATED else 0
    return describe(ours, theirs, np.full(len(rows), wrong.judgement.limit), rows, axes, rope_dim)


# ------------------------------------------------------------------------------------------------- faults


def _find_fault(case: Blaming, result: BlameResult, unexplained: list[WrongOp]) -> Cause | None:
    """Return the mistake that explains the first of ``unexplained``, and most of the others; None if none does.

    Constants are fitted if no known fault explains all of them without making right ops wrong.
    """
    first = unexplained[0]
    library = case.runner.faults(first.rounding, len(case.ids))
    best = _best(case, result, unexplained, list(_acting(first, library)))
    if best is not None and best.full:
        return best.cause
    for candidate in fitted(case, first, lambda faults: _acting(first, faults)):
        scored = _best(case, result, unexplained, [candidate])
        if scored is not None and (best is None or scored.score > best.score):
            best = scored
        if best is not None and best.full:
            break
    return None if best is None else best.cause


class _Scored(NamedTuple):
    """A cause with its score.

    score  (ops explained minus right ops made wrong, minus the latter), to compare causes by
    full   whether it explains all wrong ops and makes no right one wrong
    """

    cause: Cause
    score: tuple[int, int]
    full: bool


def _best(
    case: Blaming, result: BlameResult, unexplained: list[WrongOp], candidates: Sequence[tuple[Fault, bool]]
) -> _Scored | None:
    """Return the best of ``candidates``, scored: it explains the first of ``unexplained``, and most of the others.

    A candidate is (fault, ``late`` as in ``Forcing``). None if no candidate explains the first.
    """
    first = unexplained[0]
    exact, near = [], []
    for fault, late in candidates:
        reading = case.reading(first.rounding, [fault], case.leading([first.key[1]]), until=first.key, late=late)
        if _is_explained(case, first, reading):
            exact.append((fault, late))
        elif _nearly_explained(case, first, reading):
            near.append((fault, late))
    layers = case.leading({wrong.key[1] for wrong in unexplained})
    readings = [
        (fault, late, case.reading(first.rounding, [fault], layers, late=late), _NO_NOISE) for fault, late in exact
    ]
    for fault, late in near if not exact else ():
        reading = case.reading(first.rounding, [fault], layers, late=late, keep=True)
        own = case.noise_of(first.rounding, reading, layers, [fault], late)
        if _is_explained(case, first, reading, own):
            readings.append((fault, late, reading, own))
    if not readings:
        return None
    scored = []
    for fault, _, reading, own in readings:
        explains = tuple(wrong.key for wrong in unexplained if _is_explained(case, wrong, reading, own))
        spoils = sum(_is_spoiled(case, key, result, reading) for key in result.clean if key in reading.apart)
        scored.append((len(explains) - spoils, -spoils, explains, fault))
    best = max(score[:2] for score in scored)
    chosen = [(explains, fault) for *score, explains, fault in scored if tuple(score) == best]
    explains = chosen[0][0]
    explains += _stored(case, chosen[0][1], [wrong for wrong in unexplained if wrong.key not in explains])
    named = list({fault.name: fault.says for _, fault in chosen}.items())[:TIES]
    says = " or ".join(f"{says} ({name})" for name, says in named)
    more = f", or {len(chosen) - TIES} others that would do the same here" if len(chosen) > TIES else ""
    many = f"; explains {len(explains)} of {len(unexplained)} ops" if len(unexplained) > 1 else ""
    part = f", but not in all places: {-best[1]} other ops are right that it would spoil" if best[1] else ""
    cause = Cause(tuple(name for name, _ in named), f"{says}{more}{many}{part}", explains)
    return _Scored(cause, best, len(explains) == len(unexplained) and not best[1])


def _stored(case: Blaming, fault: Fault, rest: list[WrongOp]) -> tuple[Key, ...]:
    """Return the points of ``rest`` that the fault explains in any rounding set, if all of them are cached points.

    Values for the KV cache may have been dumped before they were rounded, so another rounding set may apply to them
    (``BlameResult.exceptions``); that cannot be found out for ops that are wrong.
    """
    explained: dict[Key, None] = {}
    if rest and all(wrong.key[0] in STORED for wrong in rest):
        layers = case.leading({wrong.key[1] for wrong in rest})
        for name in case.runner.sets():
            missing = [wrong for wrong in rest if wrong.key not in explained]
            if missing:
                reading = case.reading(name, [fault], layers)
                explained |= {w.key: None for w in missing if _is_explained(case, replace(w, rounding=name), reading)}
    return tuple(explained)


def _acting(wrong: WrongOp, faults: Iterable[Fault]) -> Iterator[tuple[Fault, bool]]:
    """Yield (fault, late) for those of ``faults`` that can change the op's result.

    ``late``: the fault changes the op's inputs after they were dumped, not the op itself.
    """
    points, inputs = {name for name, _ in wrong.bridged}, {name for name, _ in wrong.inputs}
    multiplies = any(OPS[name].tensors for name in points)
    for fault in faults:
        if (fault.begin is not None or points & set(fault.edits)) and (not fault.fmt or multiplies):
            yield fault, False
        if inputs & set(fault.edits):
            yield fault, True


_NO_NOISE: dict[Key, list[np.ndarray]] = {}

NEAR = 0.1
"""A fault nearly explains a difference if less than this share of it remains. As a wrong op may amplify the noise of
its inputs more than a right one, the noise is then measured again with the fault injected."""


def _is_explained(
    case: Blaming, wrong: WrongOp, reading: Reading, own: dict[Key, list[np.ndarray]] = _NO_NOISE
) -> bool:
    apart = reading.apart.get(wrong.key)
    if apart is None or len(apart) != len(wrong.judgement.beyond):
        return False
    return not case.judge(wrong.rounding, wrong.key, apart, own.get(wrong.key)).wrong


def _nearly_explained(case: Blaming, wrong: WrongOp, reading: Reading) -> bool:
    """Whether less than NEAR of the difference remains with a fault, in the median of the rows that were wrong.

    ``reading``: the pass with the fault.
    """
    apart, rows = reading.apart.get(wrong.key), wrong.judgement.beyond
    if apart is None or len(apart) != len(rows) or not rows.any():
        return False
    before = case.clean_pass(wrong.rounding).apart[wrong.key][rows]
    return bool(np.isfinite(before).all() and np.median(apart[rows] / before) < NEAR)


def _is_spoiled(case: Blaming, key: Key, result: BlameResult, reading: Reading) -> bool:
    name = result.exceptions.get(key[0], result.rounding)
    if name != result.rounding:
        return False
    before = case.clean_pass(name).apart[key]
    after = reading.apart[key]
    return not np.array_equal(before, after) and len(before) == len(after) and case.judge(name, key, after).wrong
