"""Read the corpus: outputs with the grades that the rule gives (``eval/data/answers.jsonl``), and grade it.

    ds4-eval --self-test-extractors      exit code 1 if an output gets another grade
    python -m ds4ref.eval.corpus         the table of docs/reference/eval.md

One JSON object a line: clause (of the rule in ``eval.grading``), kind, choices, key, text, outcome, given, ds4, and
reasoning and finish where there are any. ds4 is what ``ds4_grader`` says of the same output.
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
    """A question, an output, the grade by our rule and the one by ds4's, each as (outcome, given)."""

    clause: str
    question: Question
    text: str
    reasoning: str
    finish: str
    expected: tuple[str, str]
    ds4: tuple[str, str]

    def grade(self) -> Grade:
        """Grade it by our rule."""
        return grade(self.question, self.text, reasoning=self.reasoning, finish=self.finish)

    def grade_by_ds4(self) -> Grade:
        """Grade it by ds4's rule, which reads the thinking too."""
        return ds4_grade(self.question, f"{self.reasoning}</think>{self.text}" if self.reasoning else self.text)


def entries() -> list[Entry]:
    """Read all entries."""
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
    """Count the entries, and describe each that is not graded as expected."""
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
    """Count by clause, in Markdown: outputs that are right and failed by ds4, outputs that are not and passed by it."""
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
