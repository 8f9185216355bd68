"""Test the graders on a corpus of outputs with their right grades (``eval/data/answers.jsonl``).

    ds4-eval --self-test-extractors      exit code 1 if an output gets another grade
    python -m ds4ref.eval.corpus         the table of docs/reference/eval.md

The corpus has one JSON object a line: clause (of the rule in ``eval.grading``), kind, choices, key, text, outcome,
given and ds4; optionally reasoning and finish. ds4 is the grade of ``ds4_grader`` for the same output.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any, NamedTuple

from .ds4_grader import ds4_grade
from .grading import grade
from .log import Grade
from .packs import Question


class Entry(NamedTuple):
    """An output with its right grade by our rule and by ds4's, each as (outcome, given).

    clause     clause of the rule that the output tests
    question   the question
    text       the output
    reasoning  its thinking, if separate
    finish     why generation ended
    expected   right grade by our rule
    ds4        grade by ds4's rule
    """

    clause: str
    question: Question
    text: str
    reasoning: str
    finish: str
    expected: tuple[str, str]
    ds4: tuple[str, str]

    def grade(self) -> Grade:
        """Grade the output by our rule."""
        return grade(self.question, self.text, reasoning=self.reasoning, finish=self.finish)

    def grade_by_ds4(self) -> Grade:
        """Grade the output by ds4's rule, which reads the thinking, too."""
        return ds4_grade(self.question, f"{self.reasoning}</think>{self.text}" if self.reasoning else self.text)


def entries() -> list[Entry]:
    """Read all entries of the corpus."""
    lines = (resources.files("ds4ref.eval") / "data" / "answers.jsonl").read_text("utf-8").splitlines()
    return [_entry(number, json.loads(line)) for number, line in enumerate(lines, 1)]


def _entry(number: int, raw: dict[str, Any]) -> Entry:
    choices = tuple(raw.get("choices", ()))
    question = Question(f"corpus-{number}", "corpus", "", "", raw["kind"], "?", choices, raw["key"])
    return Entry(
        raw["clause"], question, raw["text"], raw.get("reasoning", ""), raw.get("finish", ""),
        (raw["outcome"], raw["given"]), (raw["ds4"][0], raw["ds4"][1]),
    )  # fmt: skip


def failures() -> tuple[int, list[str]]:
    """Return (number of entries, one line for each entry that is not graded as expected)."""
    lines, corpus = [], entries()
    for number, entry in enumerate(corpus, 1):
        result = entry.grade()
        if (result.outcome, result.given) != entry.expected:
            wanted = " ".join(entry.expected).strip()
            lines.append(
                f"{number}: {entry.text[-60:]!r}: {result.outcome} {result.given} ({result.why}) instead of {wanted}"
            )
    return len(corpus), lines


def table() -> str:
    """Return a Markdown table by clause: correct outputs that ds4's rule fails, and others that ds4's rule passes."""
    total, failed, passed = Counter[str](), Counter[str](), Counter[str]()
    for entry in entries():
        right, right_by_ds4 = entry.expected[0] == "right", entry.ds4[0] == "right"
        total[entry.clause] += 1
        failed[entry.clause] += right and not right_by_ds4
        passed[entry.clause] += right_by_ds4 and not right
    rows = [f"| {clause} | {total[clause]} | {failed[clause]} | {passed[clause]} |" for clause in total]
    last = f"| all | {total.total()} | {failed.total()} | {passed.total()} |"
    head = ["| clause | outputs | right, failed by ds4 | not right, passed by ds4 |", "|---|---:|---:|---:|"]
    return "\n".join([*head, *rows, last])


if __name__ == "__main__":
    print(table())
