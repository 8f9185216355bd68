"""Fit the model's constants to a wrong op: the value of a constant with which our op gives their result.

    for fault, late in fitted(case, wrong): ...      "attention.layer_norm_rms_epsilon is 0.001, not 1e-06"

Constants are the families of ``ds4ref.variants``; those that a file declares are named by their metadata key and tried
first. As only one op is computed, on the other engine's inputs, the value comes out to float precision.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ds4ref.archs.deepseek4.shape import KEYS, ModelShape
from ds4ref.errors import DataError
from ds4ref.variants import Fault
from ds4ref.variants.families import FAMILIES, Family

from .blame import Blaming, WrongOp

FIELDS = {
    "rms_eps": "rms_eps", "hc_eps": "hc_eps", "rope_base": "rope_theta", "compress_rope_base": "compress_theta",
    "yarn_factor": "yarn_factor", "yarn_original_context": "yarn_orig_ctx", "yarn_beta_fast": "yarn_beta_fast",
    "yarn_beta_slow": "yarn_beta_slow", "routed_scale": "route_scale", "window_rows": "window",
    "indexer_topk": "index_topk", "experts_used": "n_used", "sinkhorn_rounds": "sinkhorn_iters",
    "swiglu_limit": "swiglu_limit",
}  # fmt: skip
"""Family -> field of the shape that a file declares."""
DECADES = (-4, -3, -2, -1, 1, 2, 3, 4)
FAR = 1e3
"""Largest distance of a row that counts, in units of its size: a row infinitely far off must not hide the others."""

Candidate = tuple[Fault, bool]
"""A fault, and whether it acts on the op's inputs after they were dumped."""


def worded(name: str, value: float, shape: ModelShape) -> str:
    """Describe a wrong constant, by its metadata key if it has one; ``name`` and ``value`` are the family's."""
    if name not in FIELDS:
        return FAMILIES[name].describe(value, shape)
    field = FIELDS[name]
    right = getattr(shape, field)
    right = right[0] if isinstance(right, tuple) else right
    in_file = shape.window + value if name == "window_rows" else value * _unit(name, shape)
    return f"{KEYS[field]} is {in_file:.7g}, not {right:.7g}"


def _unit(name: str, shape: ModelShape) -> float:
    """Return the metadata key's value for a family's value of 1."""
    return shape.route_scale if name == "routed_scale" else 1.0


def fitted(
    case: Blaming, wrong: WrongOp, candidates: Callable[[Sequence[Fault]], Iterator[Candidate]]
) -> Iterator[Candidate]:
    """Yield faults in which a constant has the value that fits ``wrong`` best, those with a metadata key first.

    candidates  leaves out faults that cannot act in the op
    """
    for name in sorted(FAMILIES, key=lambda name: name not in FIELDS):
        family = FAMILIES[name]
        grid = family.grid(case.engine.shape)
        for _, late in candidates([family.fault(grid[0])] if grid else []):
            fit = _Fit(case, wrong, family, late)
            value = fit.value()
            if value is not None:
                says = worded(name, value, case.engine.shape) + (", or a value near it" if fit.stepped else "")
                yield dataclasses.replace(family.fault(value), says=says), late


class _Fit:
    """The search for one constant's value at one wrong op."""

    def __init__(self, case: Blaming, wrong: WrongOp, family: Family, late: bool):
        self.case, self.wrong, self.family, self.late = case, wrong, family, late
        self.shape = case.engine.shape
        self.layers = case.leading([wrong.key[1]])
        self.size = max(float(np.median(case.clean_pass(wrong.rounding).size[wrong.key])), 1e-30)
        self.seen: dict[float, float] = {}
        self.stepped = False

    def value(self) -> float | None:
        """Return the best value; None if the constant has no effect here, or none that leads nearer."""
        neutral, grid = self.family.neutral(self.shape), self.family.grid(self.shape)
        before = self.seen[neutral] = self._cost(self.case.clean_pass(self.wrong.rounding).apart[self.wrong.key])
        if self.cost(grid[0]) == before:
            return None
        if self.family.name == "window_rows":
            best = self._window()
        else:
            tried = [*grid, *self._wide(), *([] if self.family.whole else [neutral])]
            best = min(tried, key=self.cost)
            best = self._nearby(best) if self.family.whole else self._refined(best)
        if self.cost(best) >= before:
            return None
        # the ends of YaRN's ramp are whole channels, so that many values give the same
        self.stepped = not self.family.whole and self.cost(best) in [self.cost(best * f) for f in (0.99, 1.01)]
        return self._plain(best)

    def cost(self, value: float) -> float:
        """Return the mean square of the rows' distances in units of a row's size; infinite if it cannot be computed."""
        if value not in self.seen:
            apart = self._apart(value)
            self.seen[value] = math.inf if apart is None else self._cost(apart)
        return self.seen[value]

    def _cost(self, apart: np.ndarray) -> float:
        with np.errstate(invalid="ignore"):
            return float(np.mean(np.minimum(np.nan_to_num(apart / self.size, nan=0.0, posinf=FAR), FAR) ** 2))

    def _apart(self, value: float) -> np.ndarray | None:
        """Return the rows' distances with the constant at ``value``; None if the op refuses it."""
        key, faults = self.wrong.key, [self.family.fault(value)]
        try:
            reading = self.case.reading(self.wrong.rounding, faults, self.layers, until=key, late=self.late)
        except (DataError, ArithmeticError):
            return None
        return reading.apart.get(key)

    def _wide(self) -> list[float]:
        right = self.family.neutral(self.shape)
        if self.family.whole:
            low, high = self.family.limits(self.shape)
            steps = [right + sign * 2**n for n in range(4, 12) for sign in (-1, 1)]
            return [step for step in steps if low <= step <= high]
        if not self.family.log or right <= 0:
            return [right + sign * size for size in (0.01, 0.1, 10.0, 100.0) for sign in (-1, 1)]
        return [right * 10.0**n for n in DECADES]

    def _window(self) -> float:
        """Return how much longer or shorter their window is.

        With a window of all tokens our op is right up to the position at which theirs loses its first row.
        """
        apart = self._apart(float(len(self.case.ids)))
        hard = None if apart is None else self.case.judge(self.wrong.rounding, self.wrong.key, apart).hard
        if hard is None or not hard.any():
            return float(len(self.case.ids) - self.shape.window)
        return float(max(int(self.wrong.rows[np.argmax(hard)]), 1) - self.shape.window)

    def _nearby(self, best: float) -> float:
        """Return the best whole number around ``best``."""
        low, high = self.family.limits(self.shape)
        step = 8
        while step >= 1:
            near = [value for value in (best, best - step, best + step) if value == best or low <= value <= high]
            better = min(near, key=self.cost)
            step, best = (step if better != best else step // 2), better
        return best

    def _refined(self, best: float) -> float:
        """Return the best value between the neighbours of ``best`` that were tried."""
        from scipy.optimize import minimize_scalar

        tried = sorted(self.seen)
        at = tried.index(best)
        low, high = tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]
        into, back = (math.log, math.exp) if self.family.log and low > 0 else (float, float)
        width = max(into(high) - into(low), 1e-9)
        minimize_scalar(lambda t: self.cost(back(t)), bounds=(into(low), into(high)), method="bounded",
                        options={"xatol": 1e-8 * width, "maxiter": 60})  # fmt: skip
        return min(self.seen, key=self.cost)

    def _plain(self, value: float) -> float:
        """Return the shortest decimal, in the file's units, that fits as well as ``value``: 0.001, not 0.00100002."""
        if float(value).is_integer() and not self.stepped:
            return value
        unit = _unit(self.family.name, self.shape)
        shorts = [2.0 ** round(math.log2(value))] if self.stepped and value > 0 else []
        for short in [*shorts, *(float(f"{value * unit:.{digits}g}") / unit for digits in range(1, 7))]:
            if self.stepped and self.cost(short) == self.cost(value):
                return short
            if abs(short - value) < 1e-2 * abs(value) and self.cost(short) <= 1.2 * self.cost(value) + 1e-12:
                return short
        return value
