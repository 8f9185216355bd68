"""What differences between answers depend on: length, residue, distance. A likelihood for every known pattern.

    fit = Fit(records, constants, columns)
    fit.families()          probability of each family of bugs, and of none
    fit.best["groups"]      the likeliest pattern of a family

A pattern says which answers a bug would affect. Failures among those and among the others have rates of their own,
integrated over Beta priors; logarithms of differences have means and a spread of their own (normal-inverse-gamma). So a
pattern wins over "none" only if it explains more than chance, whatever the rate of failures or the level of noise is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import isfinite, lgamma, log, log10, pi
from typing import Any

import numpy as np

from .probes import KINDS, TOKENS, Record

NONE = "none"
FAMILIES = {
    "groups": "compressed groups at the end of the prompt",
    "window": "the sliding window's edge",
    "rows": "compressed rows: nothing older than the window is seen",
    "topk": "the indexer's choice of rows",
    "rope": "RoPE (factor, base, betas) or positions: it grows with depth",
    "cut": "a prompt cut: old text never reaches the model",
    "onset": "positions or a chunk edge: all prompts from one length on",
    "constant": "all lengths alike: not a matter of length",
}
"""What each family of patterns points at, in words."""
FLOOR = 1e-6
"""Differences in nats below this are equal: float noise."""
BASE, LOST = ((0.3, 6.0), (1.0, 1.0)), ((3.0, 1.0), (1.0, 1.0))
"""Beta priors of the rate of failures: of answers that a bug spares, and of those that it affects."""
PRIOR = 0.2
"""Probability of any family of bugs before anything is seen."""
SLACKS = (-8, 0, 8, 24)
"""Tokens by which a distance may be off: of an item's parts, of a question that is split otherwise."""
TOKEN = 3.0
"""How many independent values the later tokens of one answer are worth at most."""
OFF = 8
"""Most tokens that a wrong window is off."""
LEAST_CUT = 256
"""No server drops text to keep fewer tokens than this."""
HALF = 0.3
"""Least difference of mean log10 differences between affected and other answers that a pattern may have."""


@dataclass(frozen=True)
class Constants:
    """Constants of a model that bugs depend on; 0 or () where a model has no such part.

    window  sliding window in tokens, itself included
    ratios  compression ratios, ascending
    topk    compressed rows that the indexer selects
    """

    window: int = 128
    ratios: tuple[int, ...] = (4, 128)
    topk: int = 512

    @classmethod
    def of(cls, shape: Any) -> Constants:
        """Return the constants of a model's shape, DeepSeek V4's or a dense one's."""
        ratios = sorted({ratio for ratio in getattr(shape, "ratios", ()) if ratio})
        return cls(getattr(shape, "window", 0), tuple(ratios), getattr(shape, "index_topk", 0) if ratios else 0)

    @property
    def edges(self) -> dict[int, str]:
        """Return the lengths at which a bug of the window or of the indexer begins to show, with its family."""
        found = {4 * (rows + 1): "topk" for rows in (self.topk // 4, self.topk // 2, self.topk - 1, self.topk)
                 if self.topk}  # fmt: skip
        return found | dict.fromkeys((self.window, self.window + 1) if self.window else (), "window")


@dataclass(frozen=True)
class Pattern:
    """Which answers a bug affects.

    family, says  its family; what it says of the answers
    answers       by record, whether the item may be lost
    first, later  whether log probabilities of the first token, of later ones differ
    since         position from which on they do
    ratio         if not 0, they do at positions of these ``residues`` modulo this number only
    slope         if not 0, differences grow as this power of the length instead
    """

    family: str
    says: str
    answers: np.ndarray
    first: np.ndarray
    later: np.ndarray
    since: int = 0
    ratio: int = 0
    residues: tuple[int, ...] = ()
    slope: float = 0.0

    def affects(self, name: str, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return whether it affects values of a column, by their records ``rows`` (n,) and positions ``at`` (n,)."""
        z = getattr(self, name)[rows] & (at >= self.since)
        return z & np.isin(at % self.ratio, self.residues) if self.ratio else z


def binomial(fails: int, count: int, priors: Sequence[tuple[float, float]]) -> float:
    """Return the log likelihood of ``fails`` of ``count`` under a rate with one of several Beta(a, b) priors."""
    each = [lgamma(a + fails) + lgamma(b + count - fails) - lgamma(a + b + count)
            - lgamma(a) - lgamma(b) + lgamma(a + b) for a, b in priors]  # fmt: skip
    return float(np.logaddexp.reduce(each)) - log(len(priors))


def normal(y: np.ndarray, weights: np.ndarray) -> float:
    """Return the log likelihood of ``y`` (n,) under a normal distribution of unknown mean and variance.

    weights (n,): how many values each counts for. The prior of the mean is at the median, worth 0.2 values; that of the
    variance has shape 2, scale 0.12.
    """
    n, kappa, a, b = float(weights.sum()), 0.2, 2.0, 0.12
    if not n:
        return 0.0
    mean, centre = float(weights @ y) / n, float(np.median(y))
    after = b + 0.5 * float(weights @ (y - mean) ** 2) + 0.5 * kappa * n * (mean - centre) ** 2 / (kappa + n)
    return (lgamma(a + n / 2) - lgamma(a) + a * log(b) - (a + n / 2) * log(after)
            + 0.5 * log(kappa / (kappa + n)) - n / 2 * log(2 * pi))  # fmt: skip


@dataclass(frozen=True)
class Column:
    """Values of one kind of item: 1 for a failure, or log10 of a difference.

    name     "answers", "first" or "later"
    rows     the record of each value (n,)
    y        values (n,)
    at       positions of their tokens (n,)
    weights  how many values each counts for (n,)
    """

    name: str
    rows: np.ndarray
    y: np.ndarray
    at: np.ndarray
    weights: np.ndarray


class Fit:
    """Probabilities of families of patterns, given records.

    numbers  whether to explain log probabilities; if not, answers
    best     likeliest pattern by family
    """

    def __init__(self, records: Sequence[Record], constants: Constants, numbers: bool):
        self.records, self.constants, self.numbers = list(records), constants, numbers
        self.n = np.array([r.length for r in records], np.int64)
        self.d = np.array([r.distance for r in records], np.int64)
        self.exact = all(r.exact for r in records)
        self._columns = [Column(name, *map(np.array, zip(*values, strict=True)))
                         for kind in KINDS for name, values in self._values(kind) if values]  # fmt: skip
        self.best: dict[str, Pattern] = {}
        self._null = self._evidence(None)

    def _values(self, kind: str) -> Iterator[tuple[str, list[tuple[int, float, int, float]]]]:
        """Yield (name of a column, its rows, values, positions and weights) for one kind of item."""
        here = [(i, r) for i, r in enumerate(self.records) if r.kind == kind]
        if not self.numbers:
            # what our engine cannot do with this model is no failure
            yield "answers", [(i, float(not r.match), r.length, 1.0) for i, r in here if r.expected is not False]
            return
        for name, part in (("first", slice(0, 1)), ("later", slice(1, None))):
            out = []
            for i, r in here:
                known = [(r.length + place, gap) for place, gap in enumerate(r.gaps) if isfinite(gap)][part]
                out += [(i, log10(max(gap, FLOOR)), at, min(1.0, TOKEN / len(known))) for at, gap in known]
            yield name, out

    def _evidence(self, pattern: Pattern | None) -> float:
        """Return the log likelihood of all columns under a pattern; None: nothing is affected, or all alike.

        A bug may spare a kind of items, so that a pattern holds for a column with probability 0.5.
        """
        total = 0.0
        for column in self._columns:
            rows, y, w = column.rows, column.y, column.weights
            z = np.zeros(len(rows), bool) if pattern is None else pattern.affects(column.name, rows, column.at)
            explained = -np.inf
            if column.name == "answers":
                fails, lost = int(y.sum()), int(y[z].sum())
                alike = binomial(fails, len(y), BASE)
                if z.any() and lost * (~z).sum() > (fails - lost) * z.sum():
                    explained = binomial(lost, int(z.sum()), LOST) + binomial(fails - lost, int((~z).sum()), BASE)
            else:
                alike = normal(y, w)
                if pattern is not None and pattern.slope:
                    explained = normal(y - pattern.slope * np.log10(column.at / np.median(self.n)), w)
                elif z.any() and not z.all() and y[z].mean() > y[~z].mean() + HALF:
                    explained = normal(y[z], w[z]) + normal(y[~z], w[~z])
            split = z.any() or (pattern is not None and bool(pattern.slope))
            total += float(np.logaddexp(alike, explained)) - log(2) if split else alike
        return total

    def families(self) -> dict[str, float]:
        """Return the probability of each family and of ``NONE``, likeliest first."""
        by_family: dict[str, list[tuple[float, Pattern]]] = {}
        for pattern in self.patterns():
            by_family.setdefault(pattern.family, []).append((self._evidence(pattern), pattern))
        scores = {NONE: self._null + log(1 - PRIOR)}
        for family, each in by_family.items():
            values = np.array([evidence for evidence, _ in each])
            scores[family] = float(np.logaddexp.reduce(values) + np.log(PRIOR / (len(values) * len(FAMILIES))))
            self.best[family] = each[int(values.argmax())][1]
        total = np.logaddexp.reduce(list(scores.values()))
        return dict(sorted(((name, float(np.exp(s - total))) for name, s in scores.items()), key=lambda p: -p[1]))

    # ------------------------------------------------------------------------------------------- the patterns

    def patterns(self) -> Iterator[Pattern]:
        """Yield all patterns that are different on these records."""
        n, d, none = self.n, self.d, np.zeros(len(self.n), bool)
        every, window, topk = ~none, self.constants.window, self.constants.topk
        if self.exact:
            yield from self._groups()
        lengths = np.unique(n)
        edges = self.constants.edges
        starts: list[tuple[int, str]] = []
        for below, at in pairwise(map(int, lengths)) if len(lengths) > 3 else ():
            # where an edge lies between two lengths that were sent, its part of the model may be the reason
            inside = {family for edge, family in edges.items() if below < edge <= at}
            close = {family for edge, family in edges.items() if below < edge <= at < edge + 2}
            inside |= {"window"} if abs(at - window) <= OFF else set()
            starts += [(at, family) for family in sorted(close or {"onset", *inside})]
        for at, family in starts:
            lost = none if family == "window" else n >= at
            if family == "topk":
                lost = (n >= at) & (d >= window) & (at >= 2 * window)
            yield Pattern(family, f"prompts of {at:,} tokens and more", lost, every, every, at)
        if window:
            near = (d >= window - 2) & (d <= window + 1)
            yield Pattern("window", f"items {window - 2} to {window + 1} tokens back", near, none, none)
            for edge in (window - 1, *(window + slack for slack in SLACKS if slack >= 0)):
                yield Pattern("rows", f"items more than {window} tokens back", d >= edge, d >= edge, none)
        if topk:
            for far in (at for at in (topk, 2 * topk, 4 * topk) if at > window + 32):
                for slack in SLACKS:
                    z = d >= far + slack
                    yield Pattern("topk", f"items more than {far:,} tokens back", z, z, none)
        distances = np.unique(d)
        apart = [int(at) for at in distances[1:] if at >= LEAST_CUT]
        named = {int(distances[distances >= far][0]) for far in (topk, 2 * topk, 4 * topk) if (distances >= far).any()}
        for at in apart:
            if not topk or at not in named:
                yield Pattern("cut", f"items more than about {at:,} tokens back", d >= at, d >= at, none)
            for head in (32, 64, 128, 256, 512, 1024, 2048):
                middle = (d >= at) & (n - d > head)
                if middle.any() and (middle != (d >= at)).any():
                    says = f"items after the first {head:,} and before the last {at:,} tokens"
                    yield Pattern("cut", says, middle, middle, none)
        for slope in (0.4, 0.7, 1.0, 1.4):
            yield Pattern("rope", f"differences grow as length to the power of {slope}", none, none, none, slope=slope)

    def _groups(self) -> Iterator[Pattern]:
        """Yield patterns by residue of the length: of the last, incomplete group of tokens."""
        n, none = self.n, np.zeros(len(self.n), bool)
        deep = [0, *(at for at in (300, 2000, 10_000, 40_000) if (n >= at).any() and (n < at).any())]
        for ratio in self.constants.ratios:
            mod = n % ratio
            if ratio <= 8:
                sets = [each for size in range(1, ratio) for each in combinations(range(ratio), size)]
            else:
                sets = [(0,), (1,), (ratio - 1,), (0, 1), (ratio - 1, 0), tuple(range(1, ratio)),
                        tuple(range(ratio - TOKENS // 2, ratio)), tuple(range(ratio // 2, ratio))]  # fmt: skip
            for residues in sets:
                shown = ", ".join(map(str, residues[:4])) + (" ..." if len(residues) > 4 else "")
                for least in deep if ratio <= 8 and len(residues) == 1 else deep[:1]:
                    z = np.isin(mod, residues) & (n >= least)
                    if not z.any() or z.all():
                        continue
                    says = f"lengths that are {shown} modulo {ratio}" + (f", from {least:,} tokens on" if least else "")
                    yield Pattern("groups", says, z, z, z)
                    yield Pattern("groups", says + ", after the first token of the answer", z, none, z)
                    if ratio <= 8:
                        says = says.replace("lengths", "positions")
                        yield Pattern("groups", says, none, ~none, ~none, least, ratio, residues)
