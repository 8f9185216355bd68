"""Long context: prompts that end around prefill chunk edges, and recall of facts in a long story.

Recall is a property of engine and model together. So the target is first asked about a short story: if it finds no
facts there (random weights, or an engine that is wrong anyway), no conclusion is drawn from the long one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ds4ref.errors import Ds4Error
from ds4ref.nano.prose import Story, tell
from ds4ref.targets import Completion, Prompt, Request, Target

from ..finding import Outcome
from .case import ExamContext
from .examination import Stage
from .repeat import edges

TOKENS = 350
"""Largest number of tokens of an answer about the long story."""
SHORT, USUAL, LONG = 4, 24, 190
"""Scenes of a story, 600 bytes each: the short story, the default long one, and the one of --long."""
ABLE = 0.5
"""Share of facts that the model must find in the short story before the long one is asked."""
GOOD = 0.9
"""Share of facts found in the long story that counts as nothing wrong."""
RARE = 0.01
"""Largest p-value at which a lower share in the long story counts as a loss."""


@dataclass(frozen=True)
class Recall:
    """How many of a story's facts a target's answer got right.

    right     number of right facts
    facts     number of facts asked for
    quarters  (right, facts) by quarter of the story in which they lie
    answer    the answer
    """

    right: int
    facts: int
    quarters: list[tuple[int, int]]
    answer: Completion

    def __str__(self) -> str:
        return f"{self.right} of {self.facts}"

    @property
    def share(self) -> float:
        """Return the share of right facts."""
        return self.right / self.facts


def recalled(target: Target, story: Story, tokens: int = TOKENS) -> Recall:
    """Send the story as one user message, greedy, thinking off, and grade the answer."""
    answer = target.complete(Request(Prompt.chat(story.text), tokens))
    right = story.recalled(answer.text)
    places = [(fact.position * 4 // len(story.text), fact.name in right) for fact in story.facts]
    quarters = [[ok for at, ok in places if at == quarter] for quarter in range(4)]
    return Recall(len(right), len(story.facts), [(sum(each), len(each)) for each in quarters], answer)


def depth(case: ExamContext, stage: Stage) -> None:
    """Check prompts around chunk edges, then recall of facts in a long story."""
    edges(case, stage)
    if "chat" not in case.kinds:
        stage.add("facts", Outcome.IMPOSSIBLE, "the target does not support chat")
    elif case.out_of_time:
        stage.add("facts", Outcome.SKIPPED, "out of time")
    else:
        try:
            _facts(case, stage, LONG if case.long else USUAL)
        except Ds4Error as error:
            stage.add("facts", Outcome.IMPOSSIBLE, str(error))


def _facts(case: ExamContext, stage: Stage, scenes: int) -> None:
    """Add a finding about recall of facts in a story of ``scenes`` scenes, or a shorter one if time is short."""
    case.progress("facts in a short story")
    start = time.monotonic()
    short = recalled(case.target, tell(1, scenes=SHORT, facts=SHORT), 120)
    took = time.monotonic() - start
    figures: dict[str, str | int] = {"short story": str(short)}
    if short.share < ABLE:
        stage.add("facts", Outcome.UNSURE, f"{short} facts recalled from a short story: "
                  "the model cannot do it, or the engine is wrong already here", figures=figures,
                  limit="long prompts were not tested")  # fmt: skip
        return
    # the time of prefill grows with the length at least, and with its square at most
    while scenes > 2 * SHORT and took * (scenes / SHORT) > max(case.limit.seconds_left, 0.0):
        scenes //= 2
    if took * (scenes / SHORT) > max(case.limit.seconds_left, 0.0):
        stage.add("facts, long", Outcome.SKIPPED, "out of time", figures=figures)
        return
    case.progress(f"facts in a story of {scenes} scenes")
    long = recalled(case.target, tell(2, scenes=scenes, facts=min(16, scenes)))
    figures |= {"long story": str(long), "scenes": scenes}
    figures |= {f"quarter {i + 1}": f"{right} of {n}" for i, (right, n) in enumerate(long.quarters)}
    count = long.answer.usage.prompt
    says = f"{long} in a long story" + ("" if count is None else f", {count:,} tokens")
    if long.share >= GOOD:
        stage.add("facts", Outcome.OK, says, figures=figures)
        return
    from scipy.stats import fisher_exact

    table = [[each.right, each.facts - each.right] for each in (long, short)]
    p = float(fisher_exact(table, alternative="less").pvalue)
    cut = long.answer.finish == "length"
    lost = p < RARE and not cut
    more = "recall is lost in long prompts" if lost else "too few facts, or a weak model: inconclusive"
    stage.add("facts", Outcome.UNEXPLAINED if lost else Outcome.UNSURE, f"{says}, {short} in a short one: {more}",
              figures=figures | {"p-value of the drop": f"{p:.2g}"},
              notes=["the answer hit the token limit: facts may be missing because of that"] if cut else [],
              next=["Compare with a known-good engine on the same model"])  # fmt: skip
