"""Fit the model's constants to a wrong op: the value of a constant with which our op gives their result.

    for fault, late in fitted(case, wrong): ...      "attention.layer_norm_rms_epsilon is 0.001, not 1e-06"

Constants are the families of ``ds4ref.variants``; those that a file declares are named by their metadata key and tried
first. A value is searched over decades around the right one, then by Gauss-Newton steps on the op's whole result; as
only one op is computed, on the other engine's inputs, the value comes out to float precision.
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
from .ops import CHOICES

FIELDS = {
    "rms_eps": "rms_eps", "hc_eps": "hc_eps", "rope_base": "rope_theta", "compress_rope_base": "compress_theta",
    "yarn_factor": "yarn_factor", "yarn_original_context": "yarn_orig_ctx", "yarn_beta_fast": "yarn_beta_fast",
    "yarn_beta_slow": "yarn_beta_slow", "routed_scale": "route_scale", "window_rows": "window",
    "indexer_topk": "index_topk", "experts_used": "n_used", "sinkhorn_rounds": "sinkhorn_iters",
    "swiglu_limit": "swiglu_limit",
}  # fmt: skip
"""Family -> field of the shape that a file declares."""
DECADES = (-4, -3, -2, -1, 1, 2, 3, 4)
STEPS = 12
"""Largest number of Gauss-Newton steps."""
WIDEST = 0.25
"""Width of the first difference quotient: a small constant moves the result by little more than float noise."""
HALVINGS = 4
CLOSE = 1e-3
"""Steps that leave less than this share of the square of the distance have found the wrong value; else decades are
tried."""
FAR = 1e3
"""Largest distance of a row that counts, in units of its size: a row infinitely far off must not hide the others."""

Candidate = tuple[Fault, bool]
"""A fault, and whether it acts on the op's inputs after they were dumped."""


def worded(name: str, value: float, shape: ModelShape) -> str:
    """Describe a wrong constant, by its metadata key if it has one; ``name`` and ``value`` are the family's."""
    family = FAMILIES[name]
    if name not in FIELDS:
        return family.describe(value, shape)
    field = FIELDS[name]
    right = getattr(shape, field)
    right = right[0] if isinstance(right, tuple) else right
    return f"{KEYS[field]} is {_in_file(name, value, shape):.7g}, not {right:.7g}"


def _in_file(name: str, value: float, shape: ModelShape) -> float:
    """Convert a family's value to the metadata key's."""
    if name == "window_rows":
        return shape.window + value
    return shape.route_scale * value if name == "routed_scale" else value


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
        elif self.family.whole:
            best = self._nearby(min([*grid, *self._wide()], key=self.cost))
        else:
            best = self._refined(min((neutral, grid[0]), key=self.cost))
            if self.cost(best) > CLOSE * before:
                best = min([*grid, *self._wide(), best], key=self.cost)
                best = self._refined(best) if self.cost(best) < before else best
        if self.cost(best) >= before:
            return None
        # the ends of YaRN's ramp are whole channels, so that many values give the same
        self.stepped = not self.family.whole and self.cost(best) in [self.cost(best * f) for f in (0.99, 1.01)]
        return self._plain(best)

    def cost(self, value: float) -> float:
        """Return the mean square of the rows' distances in units of a row's size; infinite if it cannot be computed."""
        if value not in self.seen:
            result = self._result(value)
            self.seen[value] = math.inf if result is None else self._cost(result[0])
        return self.seen[value]

    def _cost(self, apart: np.ndarray) -> float:
        with np.errstate(invalid="ignore"):
            return float(np.mean(np.minimum(np.nan_to_num(apart / self.size, nan=0.0, posinf=FAR), FAR) ** 2))

    def _result(self, value: float) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the rows' distances and our result with the constant at ``value``; None if the op refuses it."""
        key = self.wrong.key
        try:
            reading = self.case.reading(
                self.wrong.rounding, [self.family.fault(value)], self.layers, keep=True, until=key, late=self.late
            )
        except (DataError, ArithmeticError):
            return None
        apart = reading.apart.get(key)
        return None if apart is None else (apart, reading.ours.get(key))

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
        result = self._result(float(len(self.case.ids)))
        hard = None if result is None else self.case.judge(self.wrong.rounding, self.wrong.key, result[0]).hard
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

    def _refined(self, value: float) -> float:
        """Improve a value by Gauss-Newton steps on all values of the op's result."""
        fits = self.case.theirs.get(self.wrong.key, None)
        if self.wrong.key[0] in CHOICES or fits is None or any(fit.partial for fit in fits):
            return value
        theirs = np.concatenate([fit.values.reshape(len(fit.values), -1) for fit in fits], axis=1)
        along, width = self.family.log and value > 0, WIDEST
        for _ in range(STEPS):
            here, near = self._result(value), self._result(moved(value, width, along))
            if here is None or near is None or here[1] is None or near[1] is None:
                break
            ours, slope = here[1].astype(np.float64), (near[1].astype(np.float64) - here[1]) / width
            with np.errstate(invalid="ignore"):
                apart = theirs - ours
            known = np.isfinite(apart) & np.isfinite(slope) & (np.abs(ours) < 1e29)
            square = float((slope[known] ** 2).sum())
            if not square > 0:
                return self._between(value)
            step = float(np.clip((slope[known] * apart[known]).sum() / square, -2.0, 2.0))
            tries = [moved(value, step * share, along) for share in (1.0, 0.25, 0.05)]
            better = next((v for v in tries if self.cost(v) < self.cost(value)), None)
            if better is None:
                break
            value, width = better, float(np.clip(abs(step), 1e-3, WIDEST))
        return value

    def _between(self, best: float) -> float:
        """Return the best of the values halfway to the neighbours that were tried."""
        for _ in range(HALVINGS):
            tried = sorted(self.seen)
            at = tried.index(best)
            near = [tried[i] for i in (at - 1, at + 1) if 0 <= i < len(tried)]
            best = min([best, *(math.copysign(math.sqrt(best * v), best) for v in near if best * v > 0)], key=self.cost)
        return best

    def _plain(self, value: float) -> float:
        """Return the shortest decimal, in the file's units, that fits as well as ``value``: 0.001, not 0.00100002."""
        if float(value).is_integer() and not self.stepped:
            return value
        unit = _in_file(self.family.name, 1.0, self.shape) if self.family.name != "window_rows" else 1.0
        shorts = [2.0 ** round(math.log2(value))] if self.stepped and value > 0 else []
        for short in [*shorts, *(float(f"{value * unit:.{digits}g}") / unit for digits in range(1, 7))]:
            if self.stepped and self.cost(short) == self.cost(value):
                return short
            if abs(short - value) < 1e-2 * abs(value) and self.cost(short) <= 1.2 * self.cost(value) + 1e-12:
                return short
        return value


def moved(value: float, step: float, along: bool) -> float:
    """Return a value moved by ``step``, on a logarithmic scale if ``along``."""
    return value * math.exp(step) if along else value + step
