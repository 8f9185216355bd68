"""Long context and tool calls of a target that has loaded the trained embedded model, whose answers are known.

Our engine answers the same questions. What it cannot answer the model does not know, and counts for nothing.
"""

from __future__ import annotations

from ds4ref.nano.skills import Item, held_out, vocabulary
from ds4ref.targets import Completion, Prompt, Request, Target
from ds4ref.targets.local import LocalTarget
from ds4ref.text.dsml import render_calls

from .case import ExamContext
from .findings import Outcome, Stage

SEED = 26
DEPTHS = {64: "recall/window", 128: "recall/near", 512: "recall/near", 1024: "recall/far", 2048: "recall/far"}
"""Distance in tokens from a fact to the answer, and the skill that asks over it; --quick asks the first three."""
LONG_DEPTH = 4000
QUESTIONS, CALLS = 4, 8
"""Questions of a depth, and tool calls."""
MAX_TOKENS = 96


def has_skills(case: ExamContext) -> bool:
    """Return whether the model that the target should have loaded is the trained embedded one, of any recipe."""
    if case.tokenizer is None or len(case.tokenizer) != len(vocabulary().tokens):
        return False
    return all(case.tokenizer.token_bytes(i) == own for i, own in _own_bytes().items())


def _own_bytes() -> dict[int, bytes]:
    from ds4ref.nano.skills import tokenizer

    own = tokenizer()
    return {i: own.token_bytes(i) for i in range(len(vocabulary().tokens))}


def check(case: ExamContext, stage: Stage) -> None:
    """Ask for facts by depth, and for tool calls."""
    depths = DEPTHS | ({LONG_DEPTH: "recall/far"} if case.long else {})
    asked = {
        f"{distance:,} tokens back": held_out(skill, QUESTIONS, SEED, distance=distance)
        for distance, skill in [*depths.items()][: 3 if case.quick else None]
    }
    _judge(case, stage, "facts", asked, "facts far back are lost")
    if case.out_of_time:
        stage.add("tool calls", Outcome.SKIPPED, "out of time")
        return
    _judge(case, stage, "tool calls", {"calls": held_out("tools/fixed", CALLS, SEED)}, "calls are not what they were")


def _judge(case: ExamContext, stage: Stage, name: str, asked: dict[str, list[Item]], wrong: str) -> None:
    ours = LocalTarget(case.engine)
    figures: dict[str, str | int] = {}
    known = right = 0
    for label, items in asked.items():
        case.progress(f"{name}: {label}")
        able = [item for item in items if answered(ours, item)]
        case.limit.check()
        found = sum(answered(case.target, item) for item in able)
        case.limit.check()
        figures[label] = f"{found} of {len(able)}"
        known, right = known + len(able), right + found
    summary = f"{right} of {known} questions that our engine answers with this model"
    if not known:
        stage.add(name, Outcome.UNSURE, "our engine answers none with this model", figures=figures)
    elif right == known:
        stage.add(name, Outcome.OK, summary, figures=figures)
    else:
        # Near ties may turn; one question of eight is no conclusion.
        rare = right >= known - max(1, known // 8)
        outcome = Outcome.UNSURE if rare else Outcome.UNEXPLAINED
        stage.add(name, outcome, f"{summary}: {'a near tie, or the beginning of it' if rare else wrong}",
                  figures=figures, next=["ds4-eval --pack nano asks 194 questions of all skills"])  # fmt: skip


def answered(target: Target, item: Item) -> bool:
    """Return whether a target answers a question right, greedily."""
    prompt = Prompt.conversation(item.messages, item.schemas, item.mode)
    return item.grade(_text(target.complete(Request(prompt, MAX_TOKENS))))


def _text(answer: Completion) -> str:
    """Return an answer as the model wrote it; the calls that an endpoint read out of it are written again."""
    markup = answer.markup or "".join(part.text for part in render_calls(answer.calls) if answer.calls)
    return answer.text.strip() + markup
