"""Long context: prompts that end around prefill chunk edges, and recall of facts in a long story.

Recall is a property of engine and model together. So a short story is asked first: if the model finds no facts there
(random weights, or an engine that is wrong anyway), no conclusion is drawn from the long one.
"""

from __future__ import annotations

import time

from ds4ref.errors import Ds4Error

from .. import recall
from ..finding import Outcome
from .case import ExamContext
from .examination import Stage
from .repeat import edges

SHORT, USUAL, LONG = 4, 24, 190
"""Scenes of a story, 600 bytes each: the short story, the default long one, and the one of --long."""
ABLE = 0.5
"""Share of facts that the model must find in the short story before the long one is asked."""
GOOD = 0.9
"""Share of facts found in the long story that counts as nothing wrong."""
RARE = 0.01
"""Largest p-value at which a lower share in the long story counts as a loss."""


def depth(case: ExamContext, stage: Stage) -> None:
    """Check prompts around chunk edges, then recall of facts in a long story."""
    edges(case, stage)
    if "chat" not in case.kinds:
        stage.add("facts", Outcome.IMPOSSIBLE, "the target does not support chat")
        return
    if case.out_of_time:
        stage.add("facts", Outcome.SKIPPED, "out of time")
        return
    scenes = LONG if case.long else USUAL
    command = f"ds4-vectors recall --scenes {scenes} --target {case.spec or case.target.name}"
    try:
        _recall(case, stage, scenes, command)
    except Ds4Error as error:
        stage.add("facts", Outcome.IMPOSSIBLE, str(error), next=[command])


def _recall(case: ExamContext, stage: Stage, scenes: int, command: str) -> None:
    case.progress("facts in a short story")
    start = time.monotonic()
    short = recall.ask(case.target, recall.make(1, SHORT, SHORT), 120)
    took = time.monotonic() - start
    figures: dict[str, str | int] = {"short story": f"{short.right} of {short.facts}"}
    if short.score < ABLE:
        stage.add("facts", Outcome.UNSURE, f"{short.right} of {short.facts} facts recalled from a short story: "
                  "the model cannot do it, or the engine is wrong already here", figures=figures,
                  limit="long prompts were not tested")  # fmt: skip
        return
    # prefill grows with the square of the length in the worst case, with the length in the best
    while scenes > 2 * SHORT and took * (scenes / SHORT) > max(case.seconds_left, 0.0):
        scenes //= 2
    if took * (scenes / SHORT) > max(case.seconds_left, 0.0):
        stage.add("facts, long", Outcome.SKIPPED, "out of time", figures=figures, next=[command])
        return
    case.progress(f"facts in a story of {scenes} scenes")
    long = recall.ask(case.target, recall.make(2, scenes, min(16, scenes)), recall.MAX_TOKENS)
    figures |= {"long story": f"{long.right} of {long.facts}", "scenes": scenes}
    figures |= {f"quarter {i + 1}": f"{right} of {n}" for i, (n, right) in enumerate(long.by_depth)}
    tokens = "" if long.prompt_tokens is None else f", {long.prompt_tokens:,} tokens"
    says = f"{long.right} of {long.facts} in a long story{tokens}"
    if long.score >= GOOD:
        stage.add("facts", Outcome.OK, says, figures=figures)
        return
    from scipy.stats import fisher_exact

    table = [[long.right, long.facts - long.right], [short.right, short.facts - short.right]]
    p = float(fisher_exact(table, alternative="less").pvalue)
    notes = ["the answer hit the token limit: facts may be missing because of that"] if long.finish == "length" else []
    lost = p < RARE and not notes
    more = "recall is lost in long prompts" if lost else "too few facts, or a weak model: inconclusive"
    stage.add("facts", Outcome.UNEXPLAINED if lost else Outcome.UNSURE,
              f"{says}, {short.right} of {short.facts} in a short one: {more}",
              figures=figures | {"p-value of the drop": f"{p:.2g}"}, notes=notes,
              next=[command, "Compare with a known-good engine on the same model"])  # fmt: skip
