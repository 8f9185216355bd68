"""Compare a server's log probabilities with our engine's on the prompts of all hypotheses that are left.

This tells what counts cannot: ``<think>`` from ``</think>``, one BOS token from a count that is off by one, and whether
the server has the weights of our model file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.targets import Completion, Step
from ds4ref.text.vocabulary import ids_by_bytes

from .asking import Asker
from .posterior import MANNERS, Manner, Posterior
from .shapes import BASE, SYSTEM, TURNS, Shape, Template

SHAPES = (SYSTEM, TURNS, BASE)
TOKENS = 4
ALIKE = 0.7
"""Distance in nats (rms over the listed tokens) above which no hypothesis explains the log probabilities: the server
has other weights."""
FLOOR, OTHER = 0.02, 1.5
"""Distances in nats: smaller ones count as this much, and how far a wrong prompt's log probabilities are."""
EFFECTIVE = 0.5
"""Independent measurements per token of an answer."""
SAME, WEIGHTS = 0.003, 0.3
"""Distances in nats below which the weights have the file's formats, and below which they are of its checkpoint."""


def _whole(answer: Completion) -> bool:
    """Return whether an answer lists all of its tokens: many servers leave out those of reasoning."""
    tokens = answer.usage.completion
    return bool(answer.steps) and (not answer.reasoning if tokens is None else tokens == len(answer.steps))


class Comparison:
    """Compares answers with our engine's.

    engine    our engine, with the model file that the server may have loaded
    distance  smallest distance of all answers under one hypothesis, None before one was compared
    answers   number of answers compared
    """

    def __init__(self, engine: Engine):
        self.engine, self.tokenizer = engine, engine.tokenizer
        self._ids = ids_by_bytes(self.tokenizer)
        self.distance: float | None = None
        self.answers = 0

    def run(self, asker: Asker, posterior: Posterior, top: int) -> None:
        """Ask for log probabilities after several conversations and update ``posterior``; ``top``: how many to ask
        for."""
        settings = [name for name in ("default", "off", "high", "max") if name in asker.settings]
        for shape, setting in [(shape, settings[0]) for shape in SHAPES] + [(SYSTEM, name) for name in settings[1:]]:
            answer = asker.answer(shape, setting, TOKENS, top)
            if answer is not None and _whole(answer) and answer.steps[0].top:
                self._update(posterior, shape, setting, answer.steps)

    def _update(self, posterior: Posterior, shape: Shape, setting: str, steps: Sequence[Step]) -> None:
        """Update with one answer."""
        forced: list[int] = []
        for step in steps[:-1]:
            if step.token.raw not in self._ids:
                break
            forced.append(self._ids[step.token.raw])
        rows = [{self._ids[t.raw]: t.logprob for t in step.top if t.raw in self._ids and t.logprob is not None}
                for step in steps[: len(forced) + 1]]  # fmt: skip
        if not any(rows):
            return
        cache: dict[tuple[int, ...], float] = {}
        distances: dict[tuple[Template, str, int], float] = {}
        for template in posterior.templates:
            for mode in {manner.mode(setting) for manner in MANNERS}:
                with suppress(Ds4Error):
                    ids = template.ids(shape, mode, self.tokenizer)
                    for bos in (0, 1, 2):
                        made = [self.tokenizer.bos] * max(0, bos - 1 + template.bos) + ids[template.bos :]
                        if tuple(made) not in cache:
                            cache[tuple(made)] = self._distance(made, forced, rows)
                        distances[template, mode, bos] = cache[tuple(made)]
        closest = min(cache.values(), default=OTHER)
        if closest > ALIKE:
            self.distance = max(closest, self.distance or 0.0)
            return
        self.answers += 1
        self.distance = max(closest, self.distance or 0.0)
        count = EFFECTIVE * len(rows)

        def like(template: Template, manner: Manner, bos: int) -> float:
            return -count * math.log(max(FLOOR, distances.get((template, manner.mode(setting), bos), OTHER)))

        posterior.weigh(like, -count * math.log(OTHER))

    def _distance(self, ids: list[int], forced: Sequence[int], rows: Sequence[Mapping[int, float]]) -> float:
        """Return the rms distance in nats of the server's log probabilities ``rows`` (token id -> value, one for each
        position) from ours after ``ids`` and the tokens ``forced``."""
        if not ids:
            return OTHER
        logits = np.asarray(self.engine.logits([*ids, *forced]), np.float64)[len(ids) - 1 :]
        top = logits.max(axis=1, keepdims=True)
        ours = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        gaps = [ours[i, token] - value for i, row in enumerate(rows) for token, value in row.items()]
        return float(np.sqrt(np.mean(np.square(np.clip(gaps, -5, 5))))) if gaps else OTHER
