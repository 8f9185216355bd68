"""Several targets side by side: one row per check, one cell per target, with a mark where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ds4ref.console.page import Toned

from ..finding import CAUSES, OPEN, Finding, Outcome
from .causes import CLEAR, UNKNOWN, VALUES, WRONG
from .examination import Examination

TONES = {Outcome.WRONG: "bad", Outcome.UNEXPLAINED: "bad", Outcome.FAILED: "bad", Outcome.OK: "good"}
ANSWERS = {CLEAR: "good", WRONG: "bad", UNKNOWN: "unsure"}
WIDTH = 60
"""Longest sentence shown in a cell, in characters."""
SHOWN = ("identify",)
"""Stages whose findings tell what a server is; their cells show the sentence, and differ where it does, but for what is
in parentheses: the probability."""


@dataclass(frozen=True)
class Row:
    """A row of the matrix.

    name     name of the check, with its stage's
    results  per target: value of its outcome, "" if it has no such check; of a cause, the answer
    cells    the same for the page, with links to the evidence
    differ   whether targets that were tested give different results
    cause    whether the row is about a cause, not a check
    """

    name: str
    results: tuple[str, ...]
    cells: tuple[Toned, ...]
    differ: bool
    cause: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a report."""
        return {"check": self.name, "results": self.results, "differ": self.differ}


def marked(outcome: Outcome) -> Toned:
    """Return an outcome in words, with the colour to show it in."""
    return Toned(outcome.words, TONES.get(outcome, "unsure"))


def matrix(examinations: Sequence[Examination]) -> list[Row]:
    """Return the rows: the five causes, then every check that any of the targets has."""
    by_cause = [{a.cause: a for a in e.answers} for e in examinations]
    rows = []
    for cause in CAUSES:
        each = [of[cause] for of in by_cause]
        known = {a.answer for a in each if a.answer != UNKNOWN}
        cells = tuple(Toned(a.answer, ANSWERS[a.answer], a.says, f"{at}-{a.stage}" if a.stage in e.evidence else "")
                      for at, (a, e) in enumerate(zip(each, examinations, strict=True), 1))  # fmt: skip
        rows.append(Row(cause, tuple(VALUES[a.answer] for a in each), cells, len(known) > 1, cause=True))
    checked = [{(stage.name, check.name): (stage.title, check) for stage, check in e.checks()
              if stage.outcome is not Outcome.SKIPPED} for e in examinations]  # fmt: skip
    keys = sorted(dict.fromkeys(key for each in checked for key in each),
                  key=lambda key: min(list(each).index(key) for each in checked if key in each))  # fmt: skip
    order = list(dict.fromkeys(stage.name for e in examinations for stage in e.stages))
    for key in sorted(keys, key=lambda key: order.index(key[0])):
        checks = [each[key][1] if key in each else None for each in checked]
        title = next(each[key][0] for each in checked if key in each)
        cells = tuple(_cell(key[0], check, at) for at, check in enumerate(checks, 1))
        tested = {
            (c.outcome, c.says.partition(" (")[0] if key[0] in SHOWN else "")
            for c in checks
            if c is not None and c.outcome not in OPEN
        }
        results = tuple("" if c is None else c.outcome.value for c in checks)
        rows.append(Row(f"{title}: {key[1]}", results, cells, len(tested) > 1))
    return rows


def _cell(stage: str, check: Finding | None, at: int) -> Toned:
    if check is None:
        return Toned("not run", "soft")
    text, tone = marked(check.outcome)[:2]
    if stage in SHOWN:
        text = check.says if len(check.says) <= WIDTH else check.says[: WIDTH - 1] + "\u2026"
    return Toned(text, tone, check.says, f"{at}-{stage}")


def steps_of(examinations: Sequence[Examination], most: int = 5) -> list[str]:
    """Return the first next steps of every target, each with the target's number in front."""
    return [f"{at}: {step}" for at, e in enumerate(examinations, 1) for step in e.steps[:most]]
