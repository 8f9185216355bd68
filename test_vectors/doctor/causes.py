"""Is it the engine, the checkpoint, the template, the quantization or the load? One answer each, from the findings.

A wrong finding answers for its own cause (``Finding.cause``). Logits that agree with the model's file clear everything
that they depend on; logits that differ unexplained leave open which part it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..finding import CAUSES, Finding, Outcome, counted

DEPENDS_ON = ("engine", "checkpoint", "quantization")
"""Causes on which the logits of the numbers stage depend."""
CLEAR, WRONG, UNKNOWN = "nothing wrong found", "wrong", "cannot tell"
VALUES = {CLEAR: "ok", WRONG: "wrong", UNKNOWN: "unknown"}
"""The answers' names in JSON."""
Check = tuple[str, Finding]
"""A stage's name and one of its findings."""


@dataclass(frozen=True)
class Answer:
    """The answer for one cause.

    answer  CLEAR, WRONG or UNKNOWN
    says    why, in a sentence
    stage   name of the stage with the evidence; "": none
    """

    cause: str
    answer: str
    says: str
    stage: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a report."""
        return {"answer": VALUES[self.answer], "says": self.says, "stage": self.stage}


def answers(checks: Sequence[Check]) -> list[Answer]:
    """Return one answer per cause, in the order of ``CAUSES``."""
    return [_answer(cause, [check for check in checks if _is_about(cause, *check)]) for cause in CAUSES]


def _is_about(cause: str, stage: str, check: Finding) -> bool:
    """Return whether a finding is evidence about a cause."""
    logits = stage == "numbers" and cause in DEPENDS_ON and check.outcome is not Outcome.WRONG
    return check.cause == cause or logits


def _answer(cause: str, evidence: list[Check]) -> Answer:
    def of(*outcomes: Outcome) -> list[Check]:
        return [pair for pair in evidence if pair[1].outcome in outcomes]

    def says(answer: str, pairs: list[Check], before: str = "") -> Answer:
        stage, check = pairs[0]
        more = f"; and {counted(len(pairs) - 1, 'other check')}" if len(pairs) > 1 else ""
        return Answer(cause, answer, f"{before}{check.name}: {check.says}{more}", stage)

    if wrong := of(Outcome.WRONG):
        return says(WRONG, wrong)
    if odd := of(Outcome.UNEXPLAINED):
        return says(UNKNOWN, odd, "a difference that nothing known explains: ")
    clear, open_ = of(Outcome.OK, Outcome.DEPENDS), of(Outcome.FAILED, Outcome.UNSURE)
    if clear:
        depends = of(Outcome.DEPENDS)
        but = f", of which {len(depends)} depend on its batch or cache" if depends else ""
        rest = f"; {len(open_)} inconclusive, {open_[0][1].name} first" if open_ else ""
        return Answer(cause, CLEAR, f"{counted(len(clear), 'check')}{but}{rest}", (depends or clear)[0][0])
    if open_:
        return says(UNKNOWN, open_)
    untested = of(Outcome.IMPOSSIBLE) or of(Outcome.SKIPPED)
    return says(UNKNOWN, untested) if untested else Answer(cause, UNKNOWN, "no check looked at it")
