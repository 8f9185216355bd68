"""How hard questions are and how well they tell engines apart, from logs of any number of engines.

The unit is an engine with its settings: all logs that share both (but for the seed), and all their epochs, are averaged
first, because the tenth greedy answer of one engine says nothing new about the question. Questions are the same if
their digests are; order and number of the choices' letters do not matter.

Difficulty is the share of engines that answer rightly, with Wilson's interval. Discrimination is the correlation, over
engines, of the score in this question with the score in all other questions of its pack (corrected item-total
correlation: point-biserial where scores are 0 or 1). Engines that answered different questions are comparable because
each of the others counts as what lies above or below its own difficulty. Both are None below a least number of engines.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy import special

from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted
from ds4ref.runs.stats import Interval, share_interval

from .log import VOLATILE, Log
from .packs import Question
from .report import LONGEST

LEAST_ENGINES = 10
"""Engines from which on a difficulty is stated."""
LEAST_PAIRED = 20
"""Engines from which on a discrimination is stated: any below 0.44 could be none at all there."""
LEAST_OTHERS = 10
"""Other questions that an engine must have answered, so that its score in them says something."""


@dataclass(frozen=True)
class Discrimination:
    """Correlation of a question with the others of its pack.

    r        correlation, over engines; None without spread (all engines score the same in it, or in the others)
    engines  number of engines
    told     correlation, up or down, that 95 % of questions without any stay below; None as ``r``
    """

    r: float | None
    engines: int
    told: float | None


@dataclass(frozen=True)
class Item:
    """What is known about one question.

    pack            name of the first pack in which it was found
    engines         number of engines with a graded answer
    samples         number of graded answers
    share           mean share of right answers over engines
    difficulty      the same with its interval; None below ``LEAST_ENGINES``
    discrimination  None below ``LEAST_PAIRED`` engines with ``LEAST_OTHERS`` other questions
    """

    question: Question
    pack: str
    engines: int
    samples: int
    share: float
    difficulty: Interval | None
    discrimination: Discrimination | None

    @property
    def note(self) -> str:
        """Return what the figures ask the question's author to look at; "" if nothing."""
        found = self.discrimination
        if self.difficulty is None:
            return f"unmeasured: fewer than {LEAST_ENGINES} engines"
        if self.share in (0.0, 1.0):
            return "all right" if self.share else "all wrong"
        if found is not None and found.r is not None and found.told is not None and found.r <= -found.told:
            return "better engines fail: is the key right?"
        return ""


@dataclass(frozen=True)
class Calibration:
    """All items, in the order of their packs; ``engines``: how many there are; ``logs``: the paths."""

    logs: tuple[str, ...]
    engines: int
    items: tuple[Item, ...]


def calibrate(logs: Sequence[Log]) -> Calibration:
    """Return what the logs tell about their questions; questions without a graded answer are left out."""
    questions: dict[str, tuple[Question, str]] = {}
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))  # question, engine
    for log in logs:
        digests = {q.id: q.digest for q in log.header.questions}
        for q in log.header.questions:
            questions.setdefault(digests[q.id], (q, str(log.header.pack.get("pack", ""))))
        for sample in log.done:
            if sample.grade is not None:
                scores[digests[sample.id]][_engine(log, sample.model)].append(float(sample.right))
    means = {name: {engine: fmean(values) for engine, values in of.items()} for name, of in scores.items()}
    packs: dict[str, dict[str, Mapping[str, float]]] = defaultdict(dict)
    for name, of in means.items():
        packs[questions[name][1]][name] = of
    surpluses = {pack: _surplus(of) for pack, of in packs.items()}
    items = []
    for name, (question, pack) in questions.items():
        if name in means:
            of = means[name]
            share = share_interval(list(of.values()))
            difficulty = share if len(of) >= LEAST_ENGINES else None
            samples = sum(map(len, scores[name].values()))
            found = _discrimination(of, surpluses[pack])
            items.append(Item(question, pack, len(of), samples, share.estimate, difficulty, found))
    return Calibration(tuple(log.path for log in logs), len({e for of in means.values() for e in of}), tuple(items))


def _engine(log: Log, model: str) -> str:
    """Name an engine with its settings: what it says of itself and the model that answered, but no seed."""
    target = log.header.target
    where = {*VOLATILE, "served"} if target.get("digest") else {"threads", "served"}
    facts = {name: value for name, value in target.items() if name not in where}
    settings = {name: value for name, value in log.header.settings.items() if name != "seed"}
    return json.dumps([facts, model, settings], sort_keys=True, default=str)


def _surplus(of: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, int]]:
    """Return for each engine how far its scores lie above their questions' means, summed, and of how many questions.

    ``of``: scores by question and engine.
    """
    found: dict[str, tuple[float, int]] = {}
    for shares in of.values():
        mean = fmean(shares.values())
        for engine, share in shares.items():
            total, count = found.get(engine, (0.0, 0))
            found[engine] = total + share - mean, count + 1
    return found


def _discrimination(shares: Mapping[str, float], surplus: Mapping[str, tuple[float, int]]) -> Discrimination | None:
    """Correlate a question's scores with the surplus of the same engines in the others, without this question."""
    mean, own, others = fmean(shares.values()), [], []
    for engine, share in shares.items():
        total, count = surplus[engine]
        if count > LEAST_OTHERS:
            own.append(share)
            others.append((total - (share - mean)) / (count - 1))
    if len(own) < LEAST_PAIRED:
        return None
    one, other = np.array(own), np.array(others)
    if np.ptp(one) == 0 or np.ptp(other) < 1e-12:
        return Discrimination(None, len(own), None)
    freedom = len(own) - 2
    t = float(special.stdtrit(freedom, 0.975))
    return Discrimination(float(np.corrcoef(one, other)[0, 1]), len(own), t / math.sqrt(t * t + freedom))


# ----------------------------------------------------------------------------------------------------- for people


def text(found: Calibration, width: int) -> str:
    """Format a table of the items and a summary, in lines of at most ``width`` characters."""
    columns = (
        Column("question", least=12), Column("engines", right=True), Column("right, %", right=True), Column("95 %", 3),
        Column("discrimination", 1, right=True), Column("of", 4, right=True), Column("note", 2, least=12),
        Column("title", 5, least=12),
    )  # fmt: skip
    parts = [fitted(columns, [_line(item) for item in found.items], width)] if found.items else []
    known = [item for item in found.items if item.difficulty is not None]
    telling = [i for i in found.items if i.discrimination is not None and i.discrimination.r is not None]
    lines = [
        f"{_counted(len(found.items), 'question')} answered by {_counted(found.engines, 'engine')} "
        f"(a model with its settings) in {_counted(len(found.logs), 'log')}",
        f"difficulty: {len(known)} measured, {len(found.items) - len(known)} not: that takes {LEAST_ENGINES} engines",
        f"discrimination: {len(telling)} measured, {len(found.items) - len(telling)} not: that takes {LEAST_PAIRED} "
        f"engines with {LEAST_OTHERS} other questions of the pack, which do not all score the same",
    ]
    return "\n\n".join(
        [*parts, "\n".join(textwrap.fill(line, max(20, width), subsequent_indent="  ") for line in lines)]
    )


def _line(item: Item) -> list[str]:
    i, d = item.difficulty, item.discrimination
    share = f"{100 * item.share:.0f}" if i is not None else ""
    span = f"{100 * i.low:.0f} to {100 * i.high:.0f}" if i is not None else ""
    r, of = ("", "") if d is None or d.r is None else (f"{d.r:+.2f}", str(d.engines))
    return [item.question.id, str(item.engines), share, span, r, of, item.note, printable(item.question.title, LONGEST)]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


# -------------------------------------------------------------------------------------------------- for programs


def document(found: Calibration) -> dict[str, Any]:
    """Return the items as plain data; what is unmeasured is null, with the raw counts beside it."""
    least = {"difficulty": LEAST_ENGINES, "discrimination": LEAST_PAIRED, "other_questions": LEAST_OTHERS}
    return {
        "logs": list(found.logs), "engines": found.engines, "least_engines": least,
        "items": [_item(item) for item in found.items],
    }  # fmt: skip


def _item(item: Item) -> dict[str, Any]:
    q, i, d = item.question, item.difficulty, item.discrimination
    return {
        "id": q.id, "digest": q.digest, "pack": item.pack, "source": q.source, "domain": q.domain, "kind": q.kind,
        "engines": item.engines, "samples": item.samples, "share_right": item.share,
        "difficulty": None if i is None else {"share_right": i.estimate, "ci95": [i.low, i.high]},
        "discrimination": None if d is None else {"r": d.r, "engines": d.engines, "told_from_none": d.told},
        "note": item.note,
    }  # fmt: skip
