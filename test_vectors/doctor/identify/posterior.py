"""Probabilities of templates, of what a server makes of reasoning settings, and of BOS, given token counts.

A hypothesis is a template, the way the server reads reasoning settings (``Manner``), the number of BOS tokens, and a
constant by which all its counts are off. It predicts every count exactly. Another template than the known ones is a
hypothesis of its own: it predicts no count, and wins where no known one gives all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ..served import UNKNOWN
from .asking import EFFORTS
from .shapes import BASE, MODES, Length, Shape, Template

BOS = {0: 0.03, 1: 0.93, 2: 0.04}
"""Prior probability of each number of BOS tokens; a template's own count has one."""
OFFSETS = {0: 0.95, 1: 0.02, -1: 0.02, **{n: 1e-4 for n in range(-30, 31) if abs(n) > 1}}
"""Prior probability of a constant error of all counts."""
OTHER = 0.1
"""Prior probability of a template that is not among the known ones."""
CHANCE = {"first": 1 / 40, "again": 0.2}
"""Probability that an unknown template gives a certain count: for the first count, and for each later one."""
DETAIL = 0.1
"""Probability that a server of a known template differs from it in a shape that is not ``core``."""
NEVER = 1e-12


@dataclass(frozen=True)
class Manner:
    """How a server reads reasoning settings.

    thinks   whether a request without a setting thinks
    effort   effort of a request that thinks and names none
    switch   whether on and off are heeded
    efforts  whether efforts are heeded
    caps     whether "max" counts as "high", as in ds4 with a context below 393,216 tokens
    """

    thinks: bool
    effort: str
    switch: bool
    efforts: bool
    caps: bool

    def mode(self, setting: str) -> str:
        """Return the thinking mode of a request with this setting."""
        heeded = setting in EFFORTS and self.efforts
        thinks = heeded or (setting != "off" if self.switch and setting != "default" else self.thinks)
        effort = setting if heeded else self.effort
        return "none" if not thinks else "high" if effort == "max" and self.caps else effort

    @property
    def prior(self) -> float:
        """Return its probability before anything is measured: each default is as likely as another, and who heeds the
        switch often heeds efforts."""
        heeds = 0.85 if self.switch else 0.4
        return (0.7 if self.switch else 0.3) * (heeds if self.efforts else 1 - heeds) * (0.3 if self.caps else 0.7)


_YES = (True, False)
MANNERS = tuple(Manner(*values) for values in product(_YES, EFFORTS, _YES, _YES, _YES))
_BOS, _OFF = tuple(BOS), tuple(OFFSETS)


class Posterior:
    """Probabilities of all hypotheses, updated with every measurement.

    templates  the known templates
    length     length of texts in tokens
    """

    def __init__(self, templates: Sequence[Template], length: Length):
        self.templates, self.length = tuple(templates), length
        weight = sum(t.prior for t in templates) / (1 - OTHER)
        parts = [np.array(values) for values in ([t.prior / weight for t in templates], [m.prior for m in MANNERS],
                                                 [*BOS.values()], [*OFFSETS.values()])]  # fmt: skip
        with np.errstate(divide="ignore"):
            self.log = sum(np.log(part / max(part.sum(), 1e-9) * (1 - OTHER if i == 0 else 1)).reshape(
                [-1 if axis == i else 1 for axis in range(4)]) for i, part in enumerate(parts))  # fmt: skip
        self.other = math.log(OTHER)
        self.counts: dict[tuple[Shape, str], int] = {}
        self._plain = dict[tuple[int, str, Shape], int | None]()

    # --- measurements

    def predicted(self, template: int, mode: str, shape: Shape) -> int | None:
        """Return the count of a shape by a template, with one BOS and no error."""
        key = template, mode, shape
        if key not in self._plain:
            self._plain[key] = self.templates[template].count(shape, mode, self.length)
        return self._plain[key]

    def observe(self, shape: Shape, setting: str, count: int) -> None:
        """Update with the number of prompt tokens that the server counted."""
        first = not self.counts
        self.counts[shape, setting] = count
        chance = CHANCE["first" if first else "again"]
        miss = NEVER if shape.core else DETAIL * CHANCE["first"]
        shift = np.add.outer(np.array(_BOS) - 1, np.array(_OFF))
        for t, mode in product(range(len(self.templates)), MODES):
            at = [i for i, manner in enumerate(MANNERS) if manner.mode(setting) == mode]
            want = self.predicted(t, mode, shape)
            like = chance if want is None else np.where(want + shift == count, 1.0 if shape.core else 1 - DETAIL, miss)
            self.log[t, at] += np.log(like)
        self.other += math.log(chance)

    def plain(self, count: int, length: int) -> None:
        """Update with the count of a plain text of ``length`` tokens, before which there may be a BOS token."""
        like = np.zeros((len(_BOS), len(_OFF)))
        for i, bos in enumerate(_BOS):
            with_bos = {0: 0.1, 1: 0.5, 2: 0.9}[bos]  # two BOS come from a template and a tokenizer that adds another
            for j, offset in enumerate(_OFF):
                for error, share in ((offset, 0.7), (0, 0.3)):  # the error may be one of chats only
                    extra = count - length - error
                    like[i, j] += share * (with_bos if extra == 1 else 1 - with_bos if extra == 0 else 1e-3)
        self.log += np.log(like)
        self.other += math.log(0.5)

    def weigh(self, like: Callable[[Template, Manner, int], float], other: float) -> None:
        """Update with the log likelihood of each (template, manner, number of BOS), and that of another template."""
        for t, m, b in product(range(len(self.templates)), range(len(MANNERS)), range(len(_BOS))):
            self.log[t, m, b] += like(self.templates[t], MANNERS[m], _BOS[b])
        self.other += other

    def forget(self) -> None:
        """Return to the state before any measurement: the counts turned out to be unreliable."""
        self.__init__(self.templates, self.length)  # type: ignore[misc]

    # --- probabilities

    def _weights(self) -> tuple[np.ndarray, float]:
        """Return the probabilities (templates, manners, BOS, offsets), and that of another template."""
        top = max(float(self.log.max()), self.other)
        weights, other = np.exp(self.log - top), math.exp(self.other - top)
        total = float(weights.sum()) + other
        return weights / total, other / total

    def odds(self, name: Callable[[Template, Manner, int, int], str], other: str = "") -> dict[str, float]:
        """Return the probability of each value of ``name``, a property of (template, manner, BOS, offset).

        other: value for another template; "": none, and probabilities add up to less than 1.
        """
        weights, rest = self._weights()
        out: dict[str, float] = defaultdict(float)
        for at in zip(*np.nonzero(weights > 1e-9), strict=True):
            t, m, b, o = map(int, at)
            out[name(self.templates[t], MANNERS[m], _BOS[b], _OFF[o])] += float(weights[at])
        if other:
            out[other] += rest
        return dict(out)

    @property
    def profile(self) -> dict[str, float]:
        """Return the probability of each profile."""
        return self.odds(lambda template, *_: template.name, UNKNOWN)

    def information(self, shape: Shape, setting: str) -> float:
        """Return the entropy in bits of the count that the known templates predict."""
        weights = self._weights()[0].sum(axis=(2, 3))
        if weights.sum() < 1e-6:
            return 0.0
        by_count: dict[int | None, float] = defaultdict(float)
        for t, m in zip(*np.nonzero(weights > 1e-6), strict=True):
            by_count[self.predicted(int(t), MANNERS[m].mode(setting), shape)] += float(weights[t, m])
        total = sum(by_count.values())
        return -sum(p / total * math.log2(p / total) for p in by_count.values())

    def best(self, pool: Iterable[tuple[Shape, str]]) -> tuple[float, Shape, str]:
        """Return the shape and setting whose count tells most, after its information in bits."""
        ranked = [(self.information(shape, setting), shape, setting) for shape, setting in pool]
        return max(ranked, key=lambda each: each[0], default=(0.0, BASE, "off"))
