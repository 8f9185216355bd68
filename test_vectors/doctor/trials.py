"""Compare log probabilities of answers with our engine's, right or with one known bug.

    tokens, rows = scored(case.ids_by_bytes, answer.steps)
    rms(log_softmax(logits), rows)       how far the log probabilities are from ours, in nats
    explained(case, prompts)             Trial("rope", "yarn_factor=4", ...), None if no bug explains

A bug explains a difference if it is gone with the bug in our engine. So the answer does not depend on how the target
rounds: rounding is not made equal by another window, or another RoPE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.targets import Step
from ds4ref.variants import LIBRARY, MODE_NAMES, Fault, Runner
from ds4ref.variants.families import FAMILIES

from ..observation import log_softmax
from .case import ExamContext

GONE, ALONE = 0.4, 0.6
"""A bug explains a difference if less than this part of it remains, and less than this part of what remains with any
bug of another family."""
FAULTS = {
    "window": ("window_short", "window_long"), "rows": ("no_compressed_rows",),
    "topk": ("indexer_recent", "indexer_topk_short"),
    "rope": ("no_yarn", "plain_compressed_rope", "compressed_main_rope", "key_position_late"),
}  # fmt: skip
CONSTANTS = {
    "window": ("window_rows",),
    "rope": ("yarn_factor", "yarn_original_context", "yarn_beta_fast", "yarn_beta_slow", "rope_base",
             "compress_rope_base", "query_position", "row_position", "compressed_position"),
}  # fmt: skip
"""Bugs to try, and constants with each value of their families, by family of ``patterns``."""
FEWER = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 2.0)
"""Parts of its rows that a wrong indexer may select."""


class Trial(NamedTuple):
    """A bug that explains a difference.

    family, bug    family of ``patterns``, and the bug's name
    before, after  nats rms from our engine's log probabilities, right and with the bug
    """

    family: str
    bug: str
    before: float
    after: float


def scored(ids: Mapping[bytes, int], steps: Sequence[Step]) -> tuple[list[int], list[dict[int, float]]]:
    """Return an answer's tokens up to the last whose id is known, and the listed log probabilities by position and id.

    ``ids``: token ids by bytes.
    """
    tokens: list[int] = []
    for step in steps[:-1]:
        if step.token.raw not in ids:
            break
        tokens.append(ids[step.token.raw])
    rows = [{ids[t.raw]: t.logprob for t in step.top if t.raw in ids and t.logprob is not None}
            for step in steps[: len(tokens) + 1]]  # fmt: skip
    return tokens, rows


def rms(ours: np.ndarray, rows: Sequence[Mapping[int, float]], none: float = np.inf) -> float:
    """Return the rms distance of log probabilities from ours (positions, vocabulary); ``none``: without any."""
    gaps = [ours[i, token] - value for i, row in enumerate(rows) for token, value in row.items()]
    return float(np.sqrt(np.mean(np.square(np.clip(gaps, -5, 5))))) if gaps else none


def bugs(shape: ModelShape) -> Iterator[tuple[str, Fault]]:
    """Yield (family, bug) of the bugs to try in a model's engine."""
    for family, names in FAULTS.items():
        yield from ((family, LIBRARY[name]) for name in names)
    for part in FEWER:
        yield "topk", FAMILIES["indexer_topk"].fault(max(1, int(part * shape.index_topk)))
    for family, names in CONSTANTS.items():
        for name in names:
            yield from ((family, FAMILIES[name].fault(value)) for value in FAMILIES[name].values(shape))


def explained(case: ExamContext, prompts: Sequence[tuple[list[int], Sequence[Step]]]) -> Trial | None:
    """Return the bug that explains what the target answered to ``prompts`` (token ids, steps of the answer), if one
    does; all bugs are tried on the first prompt, and the best of each family on the others."""
    shape: Any = case.engine.shape
    if not isinstance(shape, ModelShape):
        return None
    runner = Runner(case.engine)
    answers = [(ids, scored(case.ids_by_bytes, steps)) for ids, steps in prompts]

    def distance(at: int, mode: str, bug: Fault | None) -> float:
        case.limit.check()
        ids, (tokens, rows) = answers[at]
        logits = runner.run([*ids, *tokens], mode, [] if bug is None else [bug])[0]
        return rms(log_softmax(np.asarray(logits[len(ids) - 1 :], np.float64)), rows)

    modes = [case.rounding] if case.rounding in MODE_NAMES else MODE_NAMES
    before, mode = min((distance(0, str(each), None), str(each)) for each in modes)
    best: dict[str, tuple[float, Fault]] = {}
    for family, bug in bugs(shape):
        case.progress(f"trying {bug.name}")
        gap = distance(0, mode, bug)
        if gap < best.get(family, (np.inf,))[0]:
            best[family] = gap, bug
    family = min(best, key=lambda name: best[name][0])
    after, bug = best.pop(family)
    if after > GONE * before or any(after > ALONE * gap for gap, _ in best.values()):
        return None
    for at in range(1, len(answers)):
        if distance(at, mode, bug) > GONE * distance(at, mode, None):
            return None
    return Trial(family, bug.name, before, after)
