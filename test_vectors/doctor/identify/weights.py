"""Compare a server's log probabilities with our engine's on the prompts of all hypotheses that are left.

This tells what counts cannot: ``<think>`` from ``</think>``, one BOS token from a count that is off by one, and whether
the server has the weights of our model file. Without log probabilities the tokens of greedy answers are compared: how
much less likely than the best they are after each prompt. They tell hypotheses apart, and nothing about the weights.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.targets import Completion, Finish, Message
from ds4ref.text.protocol import THINK_CLOSE
from ds4ref.text.vocabulary import ids_by_bytes
from ds4ref.variants import Runner

from ...observation import log_softmax
from ..trials import rms, scored
from .asking import Asker
from .posterior import MANNERS, Manner, Posterior
from .shapes import BASE, SYSTEM, TURNS, Shape, Template
from .turns import mistakes

SHAPES = (SYSTEM, TURNS, BASE)
STORIES = "Tell a short story about a mill.", "What is a river?"
"""Messages whose answers depend on all before them."""
TOKENS, GREEDY = 4, 24
"""Tokens of answers with log probabilities, and of those without."""
ALIKE = 0.7
"""Distance in nats (rms over the listed tokens) above which no hypothesis explains the log probabilities: the server
has other weights."""
FLOOR, OTHER = 0.02, 1.5
"""Distances in nats: smaller ones count as this much, and how far a wrong prompt's log probabilities are."""
EFFECTIVE = 0.5
"""Independent measurements per token of an answer with log probabilities."""
LIKELY, FEWEST, TELLS, MATCHING = 0.1, 3, 0.25, 0.6
"""For answers without: nats below which our engine could have given the answer, fewest tokens, measurements per
token, and the share of answers that a known prompt must explain."""
FITS, OFF = 0.1, 4
"""Answers to three turns are off if first turns are within FITS nats of our engine's, and those OFF times as far and
farther than FITS; a mistake that brings them to FITS explains them."""
SAME, WEIGHTS = 0.003, 0.3
"""Distances in nats below which the weights have the file's formats, and below which they are of its checkpoint."""


def _whole(answer: Completion) -> bool:
    """Return whether an answer lists all of its tokens: many servers leave out those of reasoning."""
    tokens = answer.usage.completion
    return bool(answer.steps) and (not answer.reasoning if tokens is None else tokens == len(answer.steps))


Hypothesis = tuple[Template, str, int]
"""A template, a thinking mode and how many BOS tokens more or fewer than the template's, plus 1."""


@dataclass(frozen=True)
class _Fit:
    """An answer to a conversation, its log probabilities, and prompts and distances by hypothesis."""

    forced: list[int]
    rows: Sequence[Mapping[int, float]]
    prompts: Mapping[Hypothesis, list[int]]
    distances: Mapping[Hypothesis, float]


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
        self.answers = self._asked = 0
        self._fits = dict[tuple[Shape, str], _Fit]()
        self._odds = list[tuple[Callable[[Template, Manner, int], float], float]]()
        self._scores = list[tuple[tuple[int, ...], list[int], Sequence[Mapping[int, float]]]]()

    def run(self, asker: Asker, posterior: Posterior, top: int) -> None:
        """Ask for answers to several conversations and update ``posterior``; ``top``: how many log probabilities to ask
        for."""
        settings = [name for name in ("default", "off", "high", "max") if name in asker.settings]
        # many servers list the tokens of an answer, and not those of its reasoning
        shown = (asker.answer(BASE, name, 1, top) for name in ("off", settings[0]) if top and name in settings)
        if not any(answer is not None and answer.steps for answer in shown):
            top = 0
        asked = [(shape, settings[0]) for shape in SHAPES] + [(SYSTEM, name) for name in settings[1:]]
        for shape, setting in asked + [(TURNS, name) for name in settings[1:] if name == "off"]:
            if top:
                answer = asker.answer(shape, setting, TOKENS, top)
                if answer is not None and _whole(answer) and answer.steps[0].top:
                    self._update(posterior, shape, setting, *scored(self._ids, answer.steps))
                continue
            before = shape.messages if shape is BASE else shape.messages[:-1]
            for text, turns in product(STORIES, (before, ()) if setting != settings[0] else (before,)):
                story = Shape(text, (*turns, Message("user", text)))
                if (answer := asker.answer(story, setting, GREEDY)) is not None:
                    self._update(posterior, story, setting, self._written(answer), ())
        if top or self.answers >= MATCHING * self._asked:
            for like, other in self._odds:
                posterior.weigh(like, other)
        else:
            self.answers = 0

    def rounded(self) -> tuple[str, float]:
        """Return the rounding set that is closest to the server's log probabilities, and its distance in nats."""
        runner, gaps = Runner(self.engine), dict[str, float]()
        for name in runner.sets():
            rows = [_log(runner.run([*ids, *forced], name)[0][len(ids) - 1 :]) for ids, forced, _ in self._scores]
            gaps[name] = max(rms(ours, scores) for ours, (*_, scores) in zip(rows, self._scores, strict=True))
        name = min(gaps, key=lambda name: gaps[name])
        return name, gaps[name]

    def turns(self) -> tuple[str, float, float] | None:
        """Return what is wrong with earlier turns (``mistakes``; "": none of these), how far answers to three turns
        are from our engine's and how far those to first turns, in nats; None: nothing wrong, or not known."""
        asked, setting = next(((fit, setting) for (shape, setting), fit in self._fits.items() if shape is TURNS),
                              (None, ""))  # fmt: skip
        others = [fit.distances for (shape, name), fit in self._fits.items() if shape is not TURNS and name == setting]
        if not others or asked is None:
            return None
        known = {key: max(each.get(key, OTHER) for each in others) for key in asked.distances}
        first = min(known.values(), default=OTHER)
        likely = {tuple(asked.prompts[key]) for key, gap in known.items() if gap <= 2 * max(first, FLOOR)}
        gap = min((asked.distances[key] for key in known if tuple(asked.prompts[key]) in likely), default=0.0)
        if first > FITS or gap <= max(FITS, OFF * first):
            return None
        found = [(self._distance(made, asked.forced, asked.rows), name)
                 for ids in likely for name, made in mistakes(ids, self.tokenizer)]  # fmt: skip
        left, name = min(found, default=(OTHER, ""))
        return name if left <= max(FITS, 2 * first) else "", gap, first

    def _written(self, answer: Completion) -> list[int]:
        """Return the tokens of a whole answer that follows ``<think>``; of one that was cut off all but the last."""
        ids = self.tokenizer.encode(answer.reasoning)
        if answer.text:
            ids += self.tokenizer.encode_rendered(THINK_CLOSE) + self.tokenizer.encode(answer.text)
        return [*ids, self.tokenizer.eos] if answer.finish is Finish.STOP else ids[:-1]

    def _update(
        self, posterior: Posterior, shape: Shape, setting: str, forced: list[int], rows: Sequence[Mapping[int, float]]
    ) -> None:
        """Update with one answer: its tokens, and log probabilities by position (token id -> value), () without."""
        if not any(rows) if rows else len(forced) < FEWEST:
            return
        cache: dict[tuple[int, ...], float] = {}
        prompts: dict[Hypothesis, list[int]] = {}
        distances: dict[Hypothesis, float] = {}
        for template in posterior.templates:
            for mode in {manner.mode(setting) for manner in MANNERS}:
                with suppress(Ds4Error):
                    ids = template.ids(shape, mode, self.tokenizer)
                    for bos in (0, 1, 2):
                        made = [self.tokenizer.bos] * max(0, bos - 1 + template.bos) + ids[template.bos :]
                        if tuple(made) not in cache:
                            # without reasoning, an answer whose prompt ends in </think> begins with its text
                            cache[tuple(made)] = self._distance(
                                made, forced[not rows and made[-1:] == forced[:1] :], rows
                            )
                        prompts[template, mode, bos], distances[template, mode, bos] = made, cache[tuple(made)]
        if rows:
            self._fits[shape, setting] = _Fit(forced, rows, prompts, distances)
        self._asked += 1
        best = min(cache, key=lambda ids: cache[ids], default=())
        closest = cache.get(best, OTHER)
        if rows:
            self.distance = max(closest, self.distance or 0.0)
        if closest > (ALIKE if rows else LIKELY):
            return
        self.answers += 1
        # an answer that follows every known prompt alike would follow an unknown one, too
        count, other = (
            (EFFECTIVE * len(rows), OTHER)
            if rows
            else (TELLS * len(forced), max(LIKELY, statistics.median(cache.values())))
        )
        if rows:
            self._scores.append((best, forced, rows))

        def like(template: Template, manner: Manner, bos: int) -> float:
            return -count * math.log(max(FLOOR, distances.get((template, manner.mode(setting), bos), other)))

        self._odds.append((like, -count * math.log(other)))

    def _distance(self, ids: list[int], forced: Sequence[int], rows: Sequence[Mapping[int, float]]) -> float:
        """Return the rms distance in nats of the server's log probabilities from ours after ``ids`` and the tokens
        ``forced``; without ``rows``, that of the tokens' log probabilities from the best ones."""
        if not ids:
            return OTHER
        ours = _log(self.engine.logits([*ids, *forced])[len(ids) - 1 :])
        return rms(ours, rows or [{token: float(row.max())} for row, token in zip(ours, forced, strict=False)], OTHER)


def _log(logits: np.ndarray) -> np.ndarray:
    """Return log probabilities (positions, vocabulary)."""
    return log_softmax(np.asarray(logits, np.float64))
