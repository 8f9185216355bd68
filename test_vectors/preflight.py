"""Check that log probabilities can be an engine's output at all, before they are diagnosed.

findings = preflight(observation, vocab)       defects, worst first
refused(findings)                              the first defect that makes a diagnosis pointless
"""

from __future__ import annotations

import numpy as np

from .finding import Finding
from .observation import Observation
from .storage import written
from .tables import (
    BASES,
    BROKEN,
    REFUSE,
    TELLING,
    WARN,
    chosen_positions,
    name_positions,
    of_table,
    repeated,
)  # fmt: skip

TOP_SUM = 1e-3
"""Allowed excess over 1 of the summed probabilities of a top-k list, in addition to the rounding of its decimals."""


def preflight(observation: Observation, vocab: int | None = None) -> list[Finding]:
    """Return all findings (defects) of an observation, worst first, with those made while reading it.

    ``vocab``: size of the model's vocabulary; None if no model is known.
    """
    findings = [*observation.findings, *_ids(observation, vocab)]
    if observation.support is None:
        table = observation.logprobs if observation.table is None else observation.table
        findings += of_table(table, observation.rows, observation.ids)
    else:
        findings += _top(observation)
        combined = np.concatenate(
            (np.where(observation.support < 0, -1, observation.support), observation.logprobs), axis=1
        )
        if observation.support.shape[1] >= TELLING:
            findings += repeated(combined, observation.rows, observation.ids)
    stored = _storage(observation)
    findings += [] if stored is None else [stored]
    order = (REFUSE, BROKEN, WARN)
    unique = [f for i, f in enumerate(findings) if f not in findings[:i]]
    return sorted(unique, key=lambda f: order.index(f.outcome))


def _ids(observation: Observation, vocab: int | None) -> list[Finding]:
    if vocab is None:
        return []
    findings = []
    outside = (observation.ids < 0) | (observation.ids >= vocab)
    if outside.any():
        says = f"token id {int(observation.ids[outside][0])} is outside the vocabulary of {vocab}: another model?"
        at = tuple(np.flatnonzero(outside).tolist())
        findings.append(Finding("ids", says, REFUSE, at, tuple(sorted({int(i) for i in observation.ids[outside]}))))
    if observation.support is None and observation.logprobs.shape[1] != vocab:
        says = f"the logits are {observation.logprobs.shape[1]} wide, the model's vocabulary is {vocab}: another model?"
        findings.append(Finding("width", says, REFUSE))
    if observation.support is not None and observation.support.max() >= vocab:
        says = (
            f"token id {int(observation.support.max())} in the log probabilities is outside the vocabulary of {vocab}"
        )
        at = chosen_positions(observation.rows, np.asarray((observation.support >= vocab).any(axis=1)))
        findings.append(
            Finding(
                "ids", says, REFUSE, at, tuple(np.unique(observation.support[observation.support >= vocab]).tolist())
            )
        )
    return findings


def _top(observation: Observation) -> list[Finding]:
    """Check top-k lists: sums above 1, tokens listed twice, no distribution at all."""
    assert observation.support is not None
    listed, findings = observation.support >= 0, []
    values = np.where(listed, observation.logprobs, -np.inf)
    if (np.where(listed, observation.logprobs, 0.0) == 0).all():
        says = "every listed log probability is 0: the source reports only the chosen token, not a distribution"
        return [Finding("degenerate", says, REFUSE)]
    with np.errstate(over="ignore"):
        sums, tens = np.exp(values).sum(axis=1), np.exp(values * BASES["log10"]).sum(axis=1)
    over = sums > 1 + TOP_SUM + observation.quantum
    if over.any():
        at = chosen_positions(observation.rows, over)
        hint = "; they look like base-10 logarithms" if (tens <= 1 + TOP_SUM).all() and (values <= 0).all() else ""
        says = (f"the listed tokens alone have probabilities summing to {sums.max():.3g} at "
                f"{name_positions(at, len(over))}: these are not natural log probabilities{hint}")  # fmt: skip
        findings.append(Finding("sum", says, REFUSE if over.all() else BROKEN, () if over.all() else at))
    twice = np.zeros(len(listed), bool)
    for r, on in enumerate(listed):
        twice[r] = len(np.unique(observation.support[r][on])) < on.sum()
    if twice.any():
        at = chosen_positions(observation.rows, twice)
        findings.append(Finding("twice", f"a token is listed twice at {name_positions(at, len(twice))}", BROKEN, at))
    return findings


def _storage(observation: Observation) -> Finding | None:
    name, step = written(observation.logprobs if observation.table is None else observation.table)
    if not name:
        return None
    if name.startswith(("float", "bfloat")):
        says = f"the values are rounded to {name}: relative differences below {step:.1g} are not detectable"
    else:
        says = f"the values were written as {name}: smaller differences than {step / 2:g} are not detectable"
    return Finding("storage", says, WARN)
