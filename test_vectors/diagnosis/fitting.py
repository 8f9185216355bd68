"""Estimate the parameter of a mistake (a wrong constant of the model), with an interval.

A family is the same mistake with different values of its parameter. It is first tried at the values of a grid, and at
the value that a linear extrapolation of a tiny change suggests, as in a chaotic model even a nearly right value may not
look better than others. Around the best of these the squared distance is a parabola in the parameter (or its logarithm)
wherever the effect is smooth; the estimate is the parabola's minimum. The interval is how far the minimum would move if
the remaining difference were due to the parameter; in rounding sets that quantize, it comes from the scatter about the
parabola.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ds4ref.variants import ROUNDING
from ds4ref.variants.families import Family

from .case import CLIP, Candidate, Case, Idea, Opening
from .evidence import FOREIGN
from .signatures import Pass

ROUNDS = 6
REACH = 0.02
"""First step on either side of the best grid value, in the searched scale (2 % for logarithmic parameters)."""
Z90 = 1.645
CLOSER = 0.5
"""A value found by short runs is fitted by whole ones if it lowers ``Fit.core`` by more than this."""
TINY = 1e-3
"""Relative change of a parameter that measures its slope (effect per change); float noise is 1/100 of the effect."""
OUTWARD, FARTHEST = 4.0, 4
"""Factor between values that are tried beyond the end of a logarithmic grid, and their largest number."""
IDLE = 0.98
"""Factor by which the distance must fall within two rounds of a fit, else it ends."""
FELT, LOUD = 1.0, float(np.log(3.0))
"""Where the set without a mistake fits: FELT: a constant's values are not tried if the effect of a tiny change, in
proportion, is this many times the largest float noise of another engine. LOUD: values nearer to the correct one are
tried if the engine's float noise, as a logarithm, exceeds ours by this."""
ALIGNED = 0.7
"""Smallest cosine between the observed difference and a parameter's effect at which the parameter is suspected; that of
unrelated differences of several hundred numbers reaches 0.3."""


def nearest(case: Case, mode: str, families: Sequence[Family]) -> list[Candidate]:
    """Return candidates with wrong constants (members of ``families``) that may be near to the observation.

    Each constant is tried at its grid's values, at the value that its slope suggests, and beyond the grid if an end of
    it is nearest. If short runs can rank the values, only the best one of each family is returned.
    """
    shape, coarse = case.library.engine.shape, ROUNDING[mode].coarse
    grids = {family.name: sorted(family.grid(shape)) for family in families}
    every, opening = dict(grids), case.opening(mode)
    if opening is not None and not opening.deviates:  # where the nearest values would be noticed, others would, too
        grids = {family.name: _beside(family.neutral(shape), grids[family.name]) for family in families}
    sloped = [family for family in families if not (family.whole or coarse)]
    case.library.ahead(_run(case, tiny(case, mode, family)) for family in sloped)
    if opening is not None and not opening.deviates:
        for family in sloped:
            if _felt(case, mode, family, grids[family.name], opening):
                grids[family.name] = []
    quiet = opening is not None and not opening.deviates and case.clean(mode).fit.shift < LOUD
    pointed = {family.name: along(case, mode, family) for family in ([] if quiet else sloped)}
    if opening is not None and opening.deviates:
        few = {family.name: _spread(family.neutral(shape), grids[family.name]) for family in families}
        some = [case.member(mode, family, value) for family in families for value in few[family.name]]
        better = {i.family for gain, i in zip(case.gains(mode, some) or (), some, strict=True) if gain > 0}
        grids |= {name: values for name, values in few.items() if name not in better}
    grids |= {name: [*grids[name], value] for name, value in pointed.items() if value is not None}
    ideas = [case.member(mode, family, value) for family in families for value in grids[family.name]]
    gains = case.gains(mode, ideas)
    if gains is None or opening is None:
        return list(case.computed(ideas))
    if not opening.deviates:
        hidden = case.screened(mode, ideas)
        names = {idea.family for idea in hidden}
        further = [
            case.member(mode, family, value)
            for family in families
            for value in every[family.name]
            if family.name in names and value not in grids[family.name]
        ]
        return list(case.computed([*hidden, *case.screened(mode, further)]))
    chosen = []
    for family in families:
        ranked = [(gain, idea) for gain, idea in zip(gains, ideas, strict=True) if idea.family == family.name]
        chosen.append(_outward(case, mode, family, grids[family.name], max(ranked, key=lambda pair: pair[0])))
    return list(case.computed(case.screened(mode, chosen)))


def _felt(case: Case, mode: str, family: Family, grid: Sequence[float], opening: Opening) -> bool:
    """Return whether the effect of a tiny change of a parameter shows that the data would be far from each value of
    ``grid``; if so, add the nearest one to ``case.refused``."""
    right, unit = family.neutral(case.library.engine.shape), float(np.log1p(TINY)) if family.log else TINY
    if not grid or (family.log and min(right, *grid) <= 0):
        return False
    times = min(abs(np.log(v / right) if family.log else v - right) for v in grid) / unit
    _, moved = case.at_opening(tiny(case, mode, family), opening)
    effect = float(np.sqrt(np.nanmedian(moved))) * times
    felt = effect > FELT * float(np.sqrt(np.median(case.reference(mode).expected_at(FOREIGN)[opening.rows])))
    if felt:
        nearest_value = min(grid, key=lambda v: abs(v - right))
        case.refused.setdefault(mode, {})[family.fault(nearest_value).name] = effect
    return felt


def _beside(right: float, grid: Sequence[float]) -> list[float]:
    """Return the value of ``grid`` next to the correct value on either side, those that exist."""
    below, above = [v for v in grid if v < right], [v for v in grid if v >= right]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _spread(right: float, grid: Sequence[float]) -> list[float]:
    """Return every other value of ``grid`` on either side of the correct value, from the next one on."""
    below, above = [v for v in grid if v < right], [v for v in grid if v >= right]
    return [*below[::-1][::2], *above[::2]]


def approached(case: Case, mode: str, family: Family, start: float) -> float | None:
    """Return the value near ``start`` that fits the first deviating rows best, found by short runs.

    None if a whole run with that value is hardly nearer to the data than one without a mistake. Where runs cannot be
    short, or the parameter is an integer, return ``start``.
    """
    opening = case.opening(mode)
    if opening is None or not opening.deviates or family.whole:
        return start
    into, back = (np.log, np.exp) if family.log else (float, float)
    centre, gap = float(into(start)), 0.25 if family.log else max(abs(start) / 4, 0.25)
    weight = 1 / case.reference(mode).expected[opening.rows]

    def at(t: float) -> float:
        r, _ = case.at_opening(case.member(mode, family, float(f"{float(back(t)):.7g}")), opening)
        return float(np.nanmean(np.sort(r * weight)[: max(2, len(r) // 2)]))

    for _ in range(ROUNDS):
        low, middle, high = at(centre - gap), at(centre), at(centre + gap)
        bend = low - 2 * middle + high
        step = 0.5 * (low - high) / bend * gap if bend > 0 else (-gap if low < high else gap)
        centre += float(np.clip(step, -2 * gap, 2 * gap))
        gap = max(abs(step) / 3, gap / 4, 1e-6) if bend > 0 else gap
    value = float(f"{float(back(centre)):.7g}")
    (c,), clean = case.computed([case.member(mode, family, value)]), case.clean(mode)
    near = c.fit.core < clean.fit.core - CLOSER or c.fit.score > clean.fit.score + CLIP
    return value if near else None


def _outward(case: Case, mode: str, family: Family, grid: Sequence[float], best: tuple[float, Idea]) -> Idea:
    """Try values beyond the end of a logarithmic grid as long as they fit the first deviating rows better.

    best  (log likelihood gained, explanation) of the best value in the grid

    Return the best explanation.
    """
    value = value_of(best[1])
    if family.log and not family.whole and len(grid) > 1 and value in (min(grid), max(grid)):
        step = OUTWARD if value == max(grid) else 1 / OUTWARD
        for _ in range(FARTHEST):
            value *= step
            idea = case.member(mode, family, value)
            gains = case.gains(mode, [idea])
            if gains is None or gains[0] <= best[0]:
                break
            best = gains[0], idea
    return best[1]


def tiny(case: Case, mode: str, family: Family) -> Idea:
    """Return the explanation with the parameter ``TINY`` away from its correct value, to measure the slope."""
    right = family.neutral(case.library.engine.shape)
    return case.member(mode, family, right * (1 + TINY) if family.log else right + TINY)


def _run(case: Case, idea: Idea) -> Pass:
    """Return the run that measures a slope: of the first tokens only, if the observation deviates early."""
    opening = case.opening(idea.mode)
    return idea.run if opening is None else replace(idea.run, until=opening.until)


def along(case: Case, mode: str, family: Family) -> float | None:
    """Return the parameter value that explains the observation if effects are proportional to the parameter.

    None if the observed difference does not resemble the parameter's effect. Only the best eighth of the positions
    counts, as a top-k that is decided otherwise turns the difference at other positions in any direction.
    """
    opening, idea = case.opening(mode), tiny(case, mode, family)
    rows = slice(None) if opening is None else opening.rows
    base = case.reference(mode).predicted[rows]
    step = case.rows_of(idea.run) if opening is None else case.opening_rows(idea, opening)
    with np.errstate(invalid="ignore"):
        slope, apart = np.nan_to_num(step - base), np.nan_to_num(case.values[rows] - base)
    dot, own, far = ((a * b).sum(axis=1) for a, b in ((slope, apart), (slope, slope), (apart, apart)))
    known = (own > 0) & (far > 0)
    if known.sum() < 4:
        return None
    cosine, times = dot[known] / np.sqrt(own[known] * far[known]), dot[known] / own[known]
    best = np.argsort(-np.abs(cosine))[: max(4, len(cosine) // 8)]
    if np.median(np.abs(cosine[best])) < ALIGNED:
        return None
    by = float(np.median(times[best])) * (np.log1p(TINY) if family.log else TINY)
    right = family.neutral(case.library.engine.shape)
    return right * float(np.exp(np.clip(by, -3, 3))) if family.log else right + by


def closeness(c: Candidate) -> float:
    """Return a number to rank values of one constant by, larger is better: score if the set quantizes, else -core."""
    return c.fit.score if c.coarse else -c.fit.core


def value_of(c: Idea) -> float:
    """Return the parameter value of a family member, read from its name."""
    return float(c.name.partition("=")[2])


def refined(case: Case, mode: str, family: Family, start: float) -> Candidate:
    """Return the family member that fits best near the value ``start``; its ``parameter`` has a 90 % interval."""
    return _whole(case, mode, family, start) if family.whole else _smooth(case, mode, family, start)


def _whole(case: Case, mode: str, family: Family, start: float) -> Candidate:
    """Fit an integer parameter: walk to better neighbours, halving the step when there is none."""
    tried: dict[int, Candidate] = {}

    def at(value: int) -> Candidate:
        if value not in tried:
            (tried[value],) = case.computed([case.member(mode, family, value)])
        return tried[value]

    low, high = family.limits(case.library.engine.shape)
    best, step = int(start), max(1, abs(int(start)) // 2)
    while step:
        near = [v for v in (best - step, best + step) if low <= v <= high]
        better = max([best, *near], key=lambda value: closeness(at(value)))
        if better == best:
            step //= 2
        best = better
    near_to = closeness(at(best))
    # the interval: values whose fit is as good as the best one's to within noise
    slack = 2.0 if ROUNDING[mode].coarse else 0.1
    same = [v for v, c in tried.items() if closeness(c) > near_to - slack]
    return _with(case, at(best), family, best, min(same), max(same))


def _smooth(case: Case, mode: str, family: Family, start: float) -> Candidate:
    """Fit a real parameter: find the minimum of the distance by repeated parabolas through three values."""
    into, back = (np.log, np.exp) if family.log else (float, float)
    coarse = ROUNDING[mode].coarse
    weight = 1 / case.reference(mode).expected

    def idea(t: float) -> Idea:
        return case.member(mode, family, float(f"{float(back(t)):.7g}"))

    def at(t: float) -> tuple[float, Candidate, float]:
        (c,) = case.computed([idea(t)])
        r = np.sort(c.fit.r * weight)
        r = r[np.isfinite(r)]
        # a top-k that is decided otherwise spoils what follows, which is at most half of the positions
        eighth, half = (float(r[: max(1, len(r) // part)].mean()) for part in (8, 2))
        return (float(r.mean()), c, float(r.mean())) if coarse else (half, c, eighth)

    points: dict[float, tuple[float, Candidate, float]] = {}
    grid = sorted(float(into(v)) for v in family.grid(case.library.engine.shape))
    centre = float(into(start))
    gap = min((abs(a - centre) for a in grid if a != centre), default=1.0) / 2
    if not any(np.isclose(centre, a) for a in grid):  # suggested by the slope, so only off as effects are not linear
        right = family.neutral(case.library.engine.shape)
        gap = min(gap, max(abs(centre - float(into(right))) / 8, 1e-4)) if right > 0 or not family.log else gap
    idle, before = 0, np.inf
    for turn in range(ROUNDS + 2):
        # far from the right value, only at a few early positions do the numbers change smoothly with the value
        which = 2 if turn < 4 else 0
        case.library.ahead(idea(t).run for t in (centre - gap, centre, centre + gap))
        for t in (centre - gap, centre, centre + gap):
            if t not in points:
                points[t] = at(t)
        ts = np.array([centre - gap, centre, centre + gap])
        ys = np.array([points[t][which] for t in ts])
        bend = ys[0] - 2 * ys[1] + ys[2]
        step = 0.5 * (ys[0] - ys[2]) / bend * gap if bend > 0 else (-gap if ys[0] < ys[2] else gap)
        step = float(np.clip(step, -2 * gap, 2 * gap))
        least = min(point[0] for point in points.values())
        idle, before = (idle + 1 if least > IDLE * before else 0), least
        if idle == 2:  # what remains is not due to the parameter
            break
        if coarse and gap <= REACH:
            break
        centre += step
        gap = max(abs(step) / 3, gap / 4, 1e-7) if not coarse else max(gap / 2, REACH)
    best = min(points, key=lambda t: points[t][0])
    width = _width(points, best, coarse)
    chosen = points[best][1]
    width = min(width, 20.0) if family.log else width
    low, high = float(back(best - width)), float(back(best + width))
    value = float(back(best))
    # constants are usually round numbers: prefer one inside the interval if it fits better, or where a set quantizes,
    # if it does not fit clearly worse
    slack = 1.0 if coarse else 0.0
    for digits in range(1, 5):
        near = float(f"{value:.{digits}g}")
        if low <= near <= high and near != family.neutral(case.library.engine.shape):
            (rounded,) = case.computed([case.member(mode, family, near)])
            if rounded.fit.score > chosen.fit.score - slack:
                chosen, value = rounded, near
                if coarse:
                    break
    return _with(case, chosen, family, value, low, high)


def _width(points: dict[float, tuple[float, Candidate, float]], best: float, coarse: bool) -> float:
    """Return half of the 90 % interval in the searched scale, from a parabola through the values tried near the best.

    points  by value tried: (squared distance, candidate, squared distance at the best positions)
    """
    near = sorted(points, key=lambda t: abs(t - best))[: 9 if coarse else 5]
    t = np.array(near) - best
    y = np.array([points[p][0] for p in near])
    scale = float(np.abs(t).max()) or 1.0
    if len(near) < 4:
        return scale
    curve, remains, *_ = np.polyfit(t / scale, y, 2, full=True)
    bend = float(curve[0])
    if bend <= 0:
        return scale
    error = np.sqrt(float(remains[0]) / max(len(near) - 3, 1)) if len(remains) else 0.0
    # noise at the minimum may act like a change of the parameter: by as much as one independent observation
    lean = max(float(y.min()), 1.0) / 50
    rise = max(2 * error, lean)
    return float(Z90 * scale * np.sqrt(rise / bend))


def _with(case: Case, c: Candidate, family: Family, value: float, low: float, high: float) -> Candidate:
    right = family.neutral(case.library.engine.shape)
    parameter = {"name": family.name, "value": value, "low": low, "high": high, "right": right}
    (sized,) = case.computed([case.member(c.mode, family, value_of(c), parameter)])
    return sized
