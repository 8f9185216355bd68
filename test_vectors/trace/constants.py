"""Fit the model's constants to a wrong op: find the value of a constant with which our op gives their result.

    for fault, late in fitted(case, wrong): ...      "attention.layer_norm_rms_epsilon is 0.001, not 1e-06"

Each constant is a family of faults in ``ds4ref.variants``; those that model files store are named by their metadata key
and tried first. As only one op is computed, on the other engine's inputs, the value is found to float precision.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from ds4ref.errors import DataError
from ds4ref.variants import Fault
from ds4ref.variants.families import Family

from .blame import Blaming, WrongOp

FIELDS = {
    "rms_eps": "rms_eps", "hc_eps": "hc_eps", "rope_base": "rope_theta", "compress_rope_base": "compress_theta",
    "yarn_factor": "yarn_factor", "yarn_original_context": "yarn_orig_ctx", "yarn_beta_fast": "yarn_beta_fast",
    "yarn_beta_slow": "yarn_beta_slow", "routed_scale": "route_scale", "window_rows": "window",
    "indexer_topk": "index_topk", "experts_used": "n_used", "sinkhorn_rounds": "sinkhorn_iters",
    "swiglu_limit": "swiglu_limit", "candidate_blocks": "candidate_blocks", "router_temperature": "gate_temp",
}  # fmt: skip
"""Name of a family -> field of the model's shape that model files store."""
FAR = 1e3
"""Distances of rows are clipped to this, in units of their size, so that one infinite distance does not hide others."""

Candidate = tuple[Fault, bool]
"""A fault, and whether it acts on the op's inputs after they were dumped."""


def worded(family: Family, value: float, shape: Any) -> str:
    """Describe a wrong constant in words, by its metadata key if it has one; ``value``: in the family's units."""
    name = family.name
    if name not in FIELDS:
        return family.describe(value, shape)
    field = FIELDS[name]
    right = getattr(shape, field)
    right = right[0] if isinstance(right, tuple) else right
    in_file = shape.window + value if name == "window_rows" else value * _unit(name, shape)
    return f"{shape.keys()[field]} is {in_file:.7g}, not {right:.7g}"


def _unit(name: str, shape: Any) -> float:
    """Return the value of the metadata key that corresponds to the value 1 of the family ``name``."""
    return shape.route_scale if name == "routed_scale" else 1.0


def fitted(
    case: Blaming, wrong: WrongOp, candidates: Callable[[Sequence[Fault]], Iterator[Candidate]]
) -> Iterator[Candidate]:
    """Yield faults in which a constant has the value that fits ``wrong`` best, those with a metadata key first.

    candidates  returns those of the given faults that can change the op, each with ``late`` as in ``Forcing``
    """
    for family in sorted(case.runner.families().values(), key=lambda family: family.name not in FIELDS):
        grid = family.grid(case.engine.shape)
        for _, late in candidates([family.fault(grid[0])] if grid else []):
            fit = _fit(case, wrong, family, late)
            if fit is not None:
                value, stepped = fit
                says = worded(family, value, case.engine.shape) + (", or a value near it" if stepped else "")
                yield dataclasses.replace(family.fault(value), says=says), late


def _fit(case: Blaming, wrong: WrongOp, family: Family, late: bool) -> tuple[float, bool] | None:
    """Return (value of a constant that fits a wrong op best, whether values near it fit equally well).

    None if the constant has no effect on the op, or no value fits better than the right one.
    """
    shape, key, layers = case.engine.shape, wrong.key, case.leading([wrong.key[1]])
    clean = case.clean_pass(wrong.rounding)
    size = max(float(np.median(clean.size[key])), 1e-30)

    def squares(apart: np.ndarray) -> float:
        with np.errstate(invalid="ignore"):
            return float(np.mean(np.minimum(np.nan_to_num(apart / size, nan=0.0, posinf=FAR), FAR) ** 2))

    @cache
    def cost(value: float) -> float:
        """Return the mean square of the rows' distances in units of a row's size; infinite if ``value`` is rejected."""
        try:
            reading = case.reading(wrong.rounding, [family.fault(value)], layers, until=key, late=late)
        except (DataError, ArithmeticError):
            return math.inf
        return squares(reading.apart[key]) if key in reading.apart else math.inf

    before, grid = squares(clean.apart[key]), family.grid(shape)
    if cost(grid[0]) == before:
        return None
    tried = [*grid, *_wide(family, shape)]
    best = min(tried, key=cost)
    best = _nearby(best, family, shape, cost) if family.whole else _refined(best, sorted(tried), family.log, cost)
    if cost(best) >= before:
        return None
    # the ends of YaRN's ramp are rounded to whole channels, so many values give the same result
    stepped = not family.whole and cost(best) in (cost(best * 0.99), cost(best * 1.01))
    return _plain(best, stepped, _unit(family.name, shape), cost), stepped


def _wide(family: Family, shape: Any) -> list[float]:
    """Return values to try that are far from the right one, and for some families the right one itself."""
    right = family.neutral(shape)
    if family.whole:
        low, high = family.limits(shape)
        return [step for n in range(4, 12) for step in (right - 2**n, right + 2**n) if low <= step <= high]
    if not family.log or right <= 0:
        return [right, *(right + sign * size for size in (0.01, 0.1, 10.0, 100.0) for sign in (-1, 1))]
    return [right * 10.0**n for n in range(-4, 5)]


def _nearby(best: float, family: Family, shape: Any, cost: Callable[[float], float]) -> float:
    """Return the best whole number near ``best``, found by steps of 8, 4, 2 and 1."""
    low, high = family.limits(shape)
    step = 8
    while step >= 1:
        near = [value for value in (best, best - step, best + step) if value == best or low <= value <= high]
        better = min(near, key=cost)
        step, best = (step if better != best else step // 2), better
    return best


def _refined(best: float, tried: list[float], log: bool, cost: Callable[[float], float]) -> float:
    """Return the best value between the neighbours of ``best`` in ``tried``; ``log``: search its logarithm."""
    from scipy.optimize import minimize_scalar

    at = tried.index(best)
    low, high = tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]
    into, back = (math.log, math.exp) if log and low > 0 else (float, float)
    minimum = minimize_scalar(lambda t: cost(back(t)), bounds=(into(low), into(high)), method="bounded",
                            options={"xatol": 1e-8 * max(into(high) - into(low), 1e-9), "maxiter": 60})  # fmt: skip
    return min(best, back(minimum.x), key=cost)


def _plain(value: float, stepped: bool, unit: float, cost: Callable[[float], float]) -> float:
    """Return the shortest decimal that fits as well as ``value``: 0.001, not 0.00100002.

    stepped  whether values near ``value`` give the same result
    unit     value of the file's metadata key for a value of 1
    cost     how badly a value fits
    """
    if float(value).is_integer() and not stepped:
        return value
    shorts = [2.0 ** round(math.log2(value))] if stepped and value > 0 else []
    for short in [*shorts, *(float(f"{value * unit:.{digits}g}") / unit for digits in range(1, 7))]:
        if stepped and cost(short) == cost(value):
            return short
        if abs(short - value) < 1e-2 * abs(value) and cost(short) <= 1.2 * cost(value) + 1e-12:
            return short
    return value
