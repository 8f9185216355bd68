"""What is far back in a long prompt: recall of facts by depth, and chunk edges.

Recall is a property of engine and model together. So a short story comes first: a model that finds nothing in it
(random weights, or an engine that is wrong anyway) cannot show anything at depth, and nothing is said.
"""

from __future__ import annotations

import time

from ds4ref.errors import Ds4Error

from .. import recall
from .case import Case
from .findings import Outcome, Stage
from .repeat import edges

SHORT, USUAL, LONG = 4, 24, 190
"""Scenes of a story, 600 bytes each."""
ABLE = 0.5
GOOD = 0.9
RARE = 0.01


def depth(case: Case, stage: Stage) -> None:
    """Chunk edges first, which are exact, then recall."""
    edges(case, stage)
    if "chat" not in case.kinds:
        stage.add("facts", Outcome.IMPOSSIBLE, "the target takes no chats")
        return
    if case.late:
        stage.add("facts", Outcome.SKIPPED, "out of time")
        return
    scenes = LONG if case.long else USUAL
    again = f"ds4-vectors recall --scenes {scenes} --target {case.spec or case.target.name}"
    try:
        _recall(case, stage, scenes, again)
    except Ds4Error as error:
        stage.add("facts", Outcome.IMPOSSIBLE, str(error), next=[again])


def _recall(case: Case, stage: Stage, scenes: int, again: str) -> None:
    case.progress("facts in a short story")
    start = time.monotonic()
    short = recall.ask(case.target, recall.make(1, SHORT, SHORT), 120)
    took = time.monotonic() - start
    figures: dict[str, str | int] = {"short story": _score(short)}
    if short.score < ABLE:
        stage.add("facts", Outcome.UNSURE, f"of {short.facts} facts in a short story {short.right} are found: the "
                  "model cannot do it, or the engine is wrong already there", figures=figures,
                  sight="long prompts were not tried: nothing could be seen there")  # fmt: skip
        return
    if case.quick:
        stage.add("facts", Outcome.OK, f"{_score(short)} in a short story", figures=figures)
        stage.add("facts, long", Outcome.SKIPPED, "not with --quick", next=[again])
        return
    # prefill grows with the square of the length in the worst case, with the length in the best
    while scenes > 2 * SHORT and took * (scenes / SHORT) > max(case.left, 0.0):
        scenes //= 2
    if took * (scenes / SHORT) > max(case.left, 0.0):
        stage.add("facts, long", Outcome.SKIPPED, "out of time", figures=figures, next=[again])
        return
    case.progress(f"facts in a story of {scenes} scenes")
    found = recall.ask(case.target, recall.make(2, scenes, min(16, scenes)), recall.MAX_TOKENS)
    figures |= {"long story": _score(found), "scenes": scenes}
    figures |= {f"quarter {i + 1}": f"{right} of {n}" for i, (n, right) in enumerate(found.by_depth)}
    notes = ["the answer was cut off: facts may be missing for that reason"] if found.finish == "length" else []
    if found.score >= GOOD:
        stage.add("facts", Outcome.OK, f"{_score(found)} in a long story", figures=figures, notes=notes)
        return
    from scipy.stats import fisher_exact

    table = [[found.right, found.facts - found.right], [short.right, short.facts - short.right]]
    p = float(fisher_exact(table, alternative="less").pvalue)
    figures["chance of such a fall"] = f"{p:.2g}"
    lost = p < RARE and not notes
    says = f"{_score(found)} in a long story, {_score(short)} in a short one"
    more = "long prompts lose what short ones keep" if lost else "too few facts, or a weak model: no conclusion"
    stage.add("facts", Outcome.UNEXPLAINED if lost else Outcome.UNSURE, f"{says}: {more}", figures=figures, notes=notes,
              next=[again, "Ask a right engine with the same model: recall is a matter of the model, too"])  # fmt: skip


def _score(found: recall.Recall) -> str:
    length = "" if found.prompt_tokens is None else f", {found.prompt_tokens:,} tokens"
    return f"{found.right} of {found.facts}{length}"
