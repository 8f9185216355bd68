"""The corpus of outputs with the grades they should get (``eval/data/answers.jsonl``), and what ds4 makes of them.

    python -m eval.grading.corpus      the table by cause that docs/eval.md shows

One JSON object a line: cause (what makes the output hard to read), kind, choices, key, text, outcome, given, ds4, note,
and reasoning and finish where there are any. A human reader decided outcome and given; ds4 is what ``ds4_grader`` says.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any, NamedTuple

from ..ds4_grader import ds4_grade
from ..log import Grade
from ..packs import Question
from . import grade


class Entry(NamedTuple):
    """A question, an output, the grade it should get, and the one that ds4 gives it; ``cause`` is what the difficulty
    is, ``note`` anything else worth knowing."""

    cause: str
    question: Question
    text: str
    reasoning: str
    finish: str
    outcome: str
    given: str
    ds4: tuple[str, str]
    note: str

    def graded(self) -> Grade:
        """Ours."""
        return grade(self.question, self.text, reasoning=self.reasoning, finish=self.finish)

    def graded_by_ds4(self) -> Grade:
        """ds4's: it sees all that was put out."""
        return ds4_grade(self.question, f"{self.reasoning}</think>{self.text}" if self.reasoning else self.text)


def entries() -> list[Entry]:
    """All of them."""
    lines = (resources.files("eval") / "data" / "answers.jsonl").read_text("utf-8").splitlines()
    return [_entry(number, json.loads(line)) for number, line in enumerate(lines, 1)]


def _entry(number: int, raw: dict[str, Any]) -> Entry:
    choices = tuple(raw.get("choices", ()))
    question = Question(f"corpus-{number}", "corpus", "", "", raw["kind"], "?", choices, raw["key"])
    rest = {name: raw.get(name, "") for name in ("reasoning", "finish", "note")}
    return Entry(
        raw["cause"],
        question,
        raw["text"],
        **rest,
        outcome=raw["outcome"],
        given=raw["given"],
        ds4=(raw["ds4"][0], raw["ds4"][1]),
    )


def failures() -> tuple[int, list[str]]:
    """How many entries there are, and a line for each that is not graded as it should be."""
    found, every = [], entries()
    for number, entry in enumerate(every, 1):
        got = entry.graded()
        if (got.outcome, got.given) != (entry.outcome, entry.given):
            wanted = f"{entry.outcome} {entry.given}".strip()
            found.append(f"{number}: {entry.text[-60:]!r}: {got.outcome} {got.given} ({got.why}) instead of {wanted}")
    return len(every), found


def table() -> str:
    """In Markdown, by cause: how many outputs ds4 fails that are right, and passes that are not."""
    lost, given, total = Counter[str](), Counter[str](), Counter[str]()
    for entry in entries():
        by_ds4 = entry.ds4[0] == "right"
        total[entry.cause] += 1
        lost[entry.cause] += entry.outcome == "right" and not by_ds4
        given[entry.cause] += by_ds4 and entry.outcome != "right"
    rows = [f"| {cause} | {total[cause]} | {lost[cause]} | {given[cause]} |" for cause in sorted(total)]
    last = f"| all | {total.total()} | {lost.total()} | {given.total()} |"
    return "\n".join(
        ["| cause | outputs | right, failed by ds4 | not right, passed by ds4 |", "|---|---|---|---|", *rows, last]
    )


if __name__ == "__main__":
    print(table())
