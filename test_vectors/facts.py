"""Recall of facts hidden in a long story, graded and by depth.

ds4's own test asks all 16 facts or nothing at one length; here every fact counts and says how deep it lay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ds4ref.nano.prose import Story, tell
from ds4ref.targets import Ability, Prompt, Request, Target

BINS = 4
MAX_TOKENS = 350


@dataclass(frozen=True)
class Recall:
    """One story's outcome. ``by_depth`` is (facts, right) for equal stretches of the story, first quarter first."""

    facts: int
    right: int
    wrong: dict[str, list[int]]
    missing: list[str]
    by_depth: list[tuple[int, int]]
    answer: str
    finish: str
    prompt_tokens: int | None

    @property
    def score(self) -> float:
        """Share of the facts that were right."""
        return self.right / self.facts if self.facts else 0.0

    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the score; all there is if no fact was asked for."""
        from ds4ref.runs.stats import wilson

        found = wilson(self.right, self.facts) if self.facts else None
        return (found.low, found.high) if found else (0.0, 1.0)

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {"facts": self.facts, "right": self.right, "score": self.score, "ci95": list(self.interval()),
                "wrong": self.wrong, "missing": self.missing, "by_depth": [list(x) for x in self.by_depth],
                "finish": self.finish, "prompt_tokens": self.prompt_tokens}  # fmt: skip


def ask(target: Target, story: Story, max_tokens: int = MAX_TOKENS, ctx: int | None = None) -> Recall:
    """Give the story to ``target`` as one user message, greedy, thinking off, and grade the answer."""
    target.require(Ability.CHAT, what="facts")
    done = target.complete(Request(Prompt.chat(story.text), max_tokens, ctx=ctx))
    return grade(story, done.text, done.finish, done.usage.prompt)


def grade(story: Story, answer: str, finish: str = "", prompt_tokens: int | None = None) -> Recall:
    """Grade an answer; a fact's depth is where its sentence stands in the text."""
    found = story.grade(answer)
    counts = [[0, 0] for _ in range(BINS)]
    for fact in story.facts:
        at = min(BINS - 1, fact.position * BINS // max(1, len(story.text)))
        counts[at][0] += 1
        counts[at][1] += fact.name in found.right
    bins = [(n, right) for n, right in counts]
    return Recall(len(story.facts), len(found.right), found.wrong, found.missing, bins, answer, finish, prompt_tokens)


def make(seed: int, scenes: int, facts: int) -> Story:
    """A story; UsageError for impossible sizes."""
    from ds4ref.errors import UsageError

    try:
        return tell(seed, scenes=scenes, facts=facts)
    except ValueError as error:
        raise UsageError(str(error)) from None
