"""Compare two runs: B is better than A, worse, the same within a margin, or not comparable.

How benchmark runs are compared is described in ``speeds``. Graded runs (of ds4-eval) are paired by question
(``pairs``); they may differ in engine, model and settings, which are the things to compare. Checks of test vectors are
paired by text. If a comparison makes several statements, their confidence level applies to all of them together
(Bonferroni correction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import stats, thinking, words
from .pairs import pair, remarks
from .speeds import compare_speeds
from .statements import IDENTITY, LIMITS, Comparison, Finding, Limits, conclude, incomparable, unrecorded
from .stats import judge, per_cent
from .store import Measured

VOLATILE = ("name", "url", "file", "served")
"""Fields of a target's identity that depend on where it ran: ignored when looking for differences between engines."""


def compare(a: Measured, b: Measured, limits: Limits | None = None, differ: Sequence[str] = ()) -> Comparison:
    """Compare run B (``b``) with run A (``a``).

    limits   what counts as a difference; None: the default for the kind of run
    differ   names of metadata (keys of ``IDENTITY``) that may differ, although they normally must not
    """
    obstacles = mismatches(a, b, differ)
    if obstacles:
        return incomparable(a, b, obstacles)
    kinds = {"bench": compare_speeds, "eval": _graded, "vectors": _vectors}
    if a.run.kind not in kinds:
        return incomparable(a, b, [f"runs of kind {a.run.kind} are not compared"])
    return kinds[a.run.kind](a, b, limits or LIMITS[a.run.kind])


def mismatches(a: Measured, b: Measured, differ: Sequence[str] = ()) -> list[str]:
    """Return the reasons why runs A and B cannot be compared, [] if they can.

    Metadata that only one run recorded are not taken for a difference. ``differ`` as for ``compare``.
    """
    if a.run.kind != b.run.kind:
        return [f"{a.name} is a {a.run.kind} run, {b.name} a {b.run.kind} run"]
    reasons = [f"{one.name} has no rows" for one in (a, b) if not one.rows]
    if a.run.kind == "eval":
        return reasons
    reasons += [f"{one.name} is {one.run.status}" for one in (a, b) if one.run.status != "complete"]
    for name, keys in IDENTITY.items():
        one, other = a.run.fact(*keys), b.run.fact(*keys)
        if name not in differ and one is not None and other is not None and one != other:
            if name == "model" and None not in (releases := [side.run.fact("model", "checkpoint") for side in (a, b)]):
                one, other = releases if releases[0] != releases[1] else (one, other)
            reasons.append(f"different {name}: {words.shortened(one)} and {words.shortened(other)}")
    return reasons


def _graded(a: Measured, b: Measured, limits: Limits) -> Comparison:
    pairs = pair(a.rows, b.rows, limits.confidence)
    whole = pairs.whole
    if whole is None:
        why = (
            f"none of {words.counted(pairs.shared, 'question')} has a grade in both"
            if pairs.shared
            else "no question in common"
        )
        return replace(incomparable(a, b, [why]), pairs=pairs)
    i = whole.points
    finding = Finding("score", "points", i, judge(i, limits.margin), limits.margin, 100 * whole.a.estimate,
                      100 * whole.b.estimate, whole.averaged)  # fmt: skip
    notes = [f"{side.name} is {side.run.status}" for side in (a, b) if side.run.status != "complete"]
    notes += remarks(pairs, a.run.facts, b.run.facts)
    notes += [f"{side.name}: {note}" for side in (a, b) for note in thinking.notes(side.rows, side.run.facts)]
    if i.known and (i.low > 0 or i.high < 0) and whole.p >= 1 - limits.confidence:
        notes.append(f"a close call: the interval leaves zero out, the exact test (p = {whole.p:.2g}) would not decide")
    return conclude(a, b, [finding], limits, "paired by question", notes, pairs=pairs,
                     differs=tuple(differences(a.run.facts, b.run.facts)))  # fmt: skip


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, value in A, value in B) of each difference in the metadata of two graded runs.

    Compared are question pack, model, settings, epochs, engine, processor and commit.
    """
    one, other = _facts(a), _facts(b)
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [(name, words.shortened(one.get(name)), words.shortened(other.get(name))) for name in names]


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a graded run that may influence its score, under names for users."""
    pack, target = run.get("pack") or {}, run.get("target") or {}
    return {
        "pack": f"{pack.get('pack', '')} {pack.get('version', '')}".strip() or None,
        "pack digest": pack.get("digest"),
        "model": (run.get("model") or {}).get("name"),
        **(run.get("settings") or {}),
        **{f"engine's {name}": value for name, value in target.items() if name not in VOLATILE},
        "epochs": run.get("epochs"),
        "processor": (run.get("machine") or {}).get("cpu"),
        "commit": run.get("commit"),
    }


def _vectors(a: Measured, b: Measured, limits: Limits) -> Comparison:
    one, other = ({str(r.get("id")): r for r in side.rows if _has_nll(r)} for side in (a, b))
    both = [i for i in one if i in other and one[i]["tokens"] == other[i]["tokens"]]
    if len(both) < 2:
        return incomparable(a, b, ["fewer than two vectors have an NLL in both runs"])
    tokens = np.array([one[i]["tokens"] for i in both], np.float64)
    nll = [np.array([side[i]["nll"] for i in both], np.float64) for side in (one, other)]
    interval = stats.weighted_interval(nll[0] - nll[1], tokens, limits.confidence)
    one_ppl, other_ppl = (float(np.exp(values.sum() / tokens.sum())) for values in nll)
    change = per_cent(interval)
    finding = Finding(
        "perplexity (lower is better)", "%", change, judge(change, limits.margin), limits.margin, one_ppl, other_ppl
    )
    note = f"{len(both)} vectors, {int(tokens.sum())} tokens; mean NLL differs by {interval.estimate:+.5f}"
    return conclude(a, b, [finding], limits, "paired by text", [*unrecorded(a, b), note])


def _has_nll(row: Mapping[str, Any]) -> bool:
    return (
        isinstance(row.get("nll"), (int, float)) and isinstance(row.get("tokens"), (int, float)) and row["tokens"] > 0
    )
