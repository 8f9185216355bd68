"""``ds4-vectors recall``: facts hidden in a long story, graded by depth.

ds4's own test passes only if all 16 facts are right, at one length; here the share of right facts is reported by depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ds4ref.console.common import atomic_output, check_output, read_text
from ds4ref.console.flags import add
from ds4ref.console.options import integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import UsageError
from ds4ref.nano.prose import Story, tell
from ds4ref.targets import Ability, Prompt, Request, Target

BINS = 4
"""Number of equal stretches of the story by which recall is reported."""
MAX_TOKENS = 350


@dataclass(frozen=True)
class Recall:
    """Graded answer to one story.

    facts          number of facts asked for
    right          number of facts answered correctly
    wrong          wrong answers by name
    missing        names without an answer
    by_depth       (facts, right) for each quarter of the story, in order
    answer         the model's text
    finish         finish reason of the answer
    prompt_tokens  tokens of the story as counted by the target; None if unknown
    """

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
        """Return the share of the facts that were right; 0 without facts."""
        return self.right / self.facts if self.facts else 0.0

    def interval(self) -> tuple[float, float]:
        """Return the 95 % Wilson interval of the score; (0, 1) without facts."""
        from ds4ref.runs.stats import wilson

        bounds = wilson(self.right, self.facts) if self.facts else None
        return (bounds.low, bounds.high) if bounds else (0.0, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the report."""
        return {"facts": self.facts, "right": self.right, "score": self.score, "ci95": list(self.interval()),
                "wrong": self.wrong, "missing": self.missing, "by_depth": [list(x) for x in self.by_depth],
                "finish": self.finish, "prompt_tokens": self.prompt_tokens}  # fmt: skip


def ask(target: Target, story: Story, max_tokens: int = MAX_TOKENS, ctx: int | None = None) -> Recall:
    """Send the story to ``target`` as one user message, greedy, thinking off, and grade the answer."""
    target.require(Ability.CHAT, needed_for="recall")
    answer = target.complete(Request(Prompt.chat(story.text), max_tokens, ctx=ctx))
    return grade(story, answer.text, answer.finish, answer.usage.prompt)


def grade(story: Story, answer: str, finish: str = "", prompt_tokens: int | None = None) -> Recall:
    """Grade an answer; a fact's depth is the position of its sentence in the text."""
    graded = story.grade(answer)
    counts = [[0, 0] for _ in range(BINS)]
    for fact in story.facts:
        at = min(BINS - 1, fact.position * BINS // max(1, len(story.text)))
        counts[at][0] += 1
        counts[at][1] += fact.name in graded.right
    bins = [(n, right) for n, right in counts]
    return Recall(
        len(story.facts), len(graded.right), graded.wrong, graded.missing, bins, answer, finish, prompt_tokens
    )


def make(seed: int, scenes: int, facts: int) -> Story:
    """Make a story from a seed; UsageError for sizes that are not possible."""
    try:
        return tell(seed, scenes=scenes, facts=facts)
    except ValueError as error:
        raise UsageError(str(error)) from None


# ------------------------------------------------------------------------------------------------------- the command


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors recall``; return the exit code."""
    flags = parser("ds4-vectors recall", "Ask for facts hidden in a long story; score by depth.", "[options]",
                   "--target http://127.0.0.1:8000/v1 --fail-below 0.9",
                   "--scenes 1000 --facts 64 --seed 3 --target local:model.gguf -c 200000",
                   "--write-story story.txt", "--answer answer.txt")  # fmt: skip
    flags.add_argument(
        "--scenes", metavar="N", type=integer(1, 20000), default=190, help="scenes in the story, 600 bytes each (190)"
    )
    flags.add_argument("--facts", metavar="N", type=integer(1, 200), default=16, help="facts to hide (16)")
    add(flags, "--seed", type=integer(0), default=0, help="random seed of the story (0)")
    add(
        flags,
        "--fail-below",
        "--min-score",
        type=number(0, 1),
        help="exit 1 if the share of right answers is below this",
    )
    add(flags, "--tokens", "--max-tokens", default=350, help="maximum tokens of the answer (350)")
    flags.add_argument("--answer", metavar="FILE", help="grade this answer instead of asking an engine")
    flags.add_argument("--write-story", metavar="FILE", help="write the story and exit")
    add(flags, "--json")
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    story = make(args.seed, args.scenes, args.facts)
    if args.write_story:
        check_output(args.write_story)
        with atomic_output(args.write_story) as out:
            out.write(story.text.encode())
        finish({"story": args.write_story, "bytes": len(story.text.encode())}, args.json, "")
        return 0
    if args.answer:
        result = grade(story, read_text(args.answer, "answer"))
    else:
        with target_of(args, args.target) as target:
            result = ask(target, story, args.tokens, args.ctx)
            report_notes("ds4-vectors", target)
    passed = None if args.fail_below is None else result.score >= args.fail_below
    table = [(f"{i}/{len(result.by_depth)}", f"{right}/{n}") for i, (n, right) in enumerate(result.by_depth)]
    table.append(("all", f"{result.right}/{result.facts}"))
    verdict = {
        None: "no pass mark: --fail-below not given",
        True: "passed",
        False: f"not passed: below {args.fail_below}",
    }[passed]
    finish({"seed": args.seed, "scenes": args.scenes, **result.to_json(), "passed": passed}, args.json,
           rows(("depth", "right"), table) + f"\n{verdict}")  # fmt: skip
    return 1 if passed is False else 0
