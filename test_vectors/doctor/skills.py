"""Long context and tool calls of a target that has loaded the trained embedded model, whose answers are known.

Our engine answers the same questions. What it cannot answer the model does not know, and counts for nothing.
"""

from __future__ import annotations

from ds4ref.errors import Ds4Error
from ds4ref.nano.skills import Item, held_out, tokenizer
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
    own = tokenizer()
    if case.tokenizer is None or len(case.tokenizer) != len(own):
        return False
    return all(case.tokenizer.token_bytes(i) == own.token_bytes(i) for i in range(len(own)))


def check(case: ExamContext, stage: Stage) -> None:
    """Ask for facts by depth, and for tool calls."""
    depths = DEPTHS | ({LONG_DEPTH: "recall/far"} if case.long else {})
    asked = {
        f"{distance:,} tokens back": held_out(skill, QUESTIONS, SEED + distance, distance=distance)
        for distance, skill in [*depths.items()][: 3 if case.quick else None]
    }
    _judge(case, stage, "facts", asked, "facts are not recalled")
    _judge(
        case,
        stage,
        "tool calls",
        {"calls": held_out("tools/fixed", CALLS, SEED)},
        "tool calls are wrong",
    )


def _judge(case: ExamContext, stage: Stage, name: str, asked: dict[str, list[Item]], wrong: str) -> None:
    if case.out_of_time:
        stage.add(name, Outcome.SKIPPED, "out of time")
        return
    ours = LocalTarget(case.engine)
    figures: dict[str, str | int] = {}
    known, right, most, notes = 0, 0, 0, []
    for label, items in asked.items():
        case.progress(f"{name}: {label}")
        try:
            able = [item for item in items if answered(case, ours, item)]
            found = sum(answered(case, case.target, item) for item in able)
        except Ds4Error as error:
            notes.append(f"{label}: {error}")
            continue
        figures[label] = f"{found} of {len(able)}"
        known, right, most = known + len(able), right + found, max(most, len(able) - found)
    summary = f"{right} of {known} questions that our engine answers correctly with this model"
    if not figures:
        stage.add(name, Outcome.IMPOSSIBLE, "no question could be asked", notes=notes)
    elif not known:
        stage.add(name, Outcome.UNSURE, "our engine gets none right with this model", figures=figures, notes=notes)
    elif right == known:
        stage.add(name, Outcome.OK, summary, figures=figures, notes=notes)
    else:
        # A near tie may turn one answer; two of the same kind are no accident.
        outcome, why = (Outcome.UNEXPLAINED, wrong) if most > 1 else (Outcome.UNSURE, "possibly a near tie")
        stage.add(name, outcome, f"{summary}: {why}", figures=figures, notes=notes,
                  next=["ds4-eval --pack nano tests all skills"])  # fmt: skip


def answered(case: ExamContext, target: Target, item: Item) -> bool:
    """Return whether a target answers a question right, greedily; raise OutOfTime if the stage ends before that."""
    prompt = Prompt.conversation(item.messages, item.schemas, item.mode)
    answer = target.complete(Request(prompt, MAX_TOKENS, cancel=case.limit.cancel))
    case.limit.check()
    return item.grade(_text(answer))


def _text(answer: Completion) -> str:
    """Return an answer as the model wrote it; the calls that an endpoint read out of it are written again."""
    calls = "".join(part.text for part in render_calls(answer.calls)) if answer.calls else ""
    return answer.text.strip() + (answer.markup or calls)
