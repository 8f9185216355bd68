"""Tables of what ``benchmarks.skills`` measured, from its JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ds4ref.runs.stats import Interval, graded_interval, share_interval, weighted_interval

from .skills import FAULTS, PLAIN, RIGHT, TEXT, Arm, Results

Unit = dict[str, Any]
"""Type of the line of one skill of one arm."""


def change(right: Unit, other: Unit, confidence: float = 0.95) -> Interval:
    """Return the paired change of a score; for texts that of the log probability per token. Negative is worse."""
    if right["unit"]["skill"] == TEXT:
        return weighted_interval(np.subtract(right["nll"], other["nll"]), right["tokens"], confidence)
    return graded_interval(right["right"], other["right"], confidence)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def perplexity(unit: Unit) -> float:
    """Return the perplexity of a unit's replies."""
    return math.exp(min(sum(unit["nll"]) / sum(unit["tokens"]), 700.0))


def cell(right: Unit | None, other: Unit | None, confidence: float = 0.95) -> str:
    """Return a score in percent (of texts, perplexity) and its change with interval; "=" where nothing changed."""
    if other is None:
        return ""
    text = other["unit"]["skill"] == TEXT
    value = f"{perplexity(other):.3f}" if text else f"{100 * np.mean(other['right']):.1f}"
    if right is None or right is other:
        return value
    if right["right" if not text else "nll"] == other["right" if not text else "nll"]:
        return f"{value} ="
    d = change(right, other, confidence)
    scale, digits = (1, 3) if text else (100, 1)
    span = f" [{scale * d.low:+.{digits}f}, {scale * d.high:+.{digits}f}]" if d.known else ""
    return f"{value} {scale * d.estimate:+.{digits}f}{span}"


def score_rows(units: Iterable[Unit]) -> list[list[str]]:
    """Return rows of skill, right in percent with Wilson's interval, guessing and number of questions."""
    rows = []
    for unit in units:
        skill, n = unit["unit"]["skill"], len(unit["right"])
        if skill == TEXT:
            rows.append(["perplexity of stories", f"{perplexity(unit):.3f}", "", "", str(n)])
            continue
        for name, values in {"": unit["right"], **unit["parts"]}.items():
            share = share_interval(values)
            guess = "" if name else f"{100 * unit['guess']:.1f}"
            span = f"{100 * share.low:.1f} to {100 * share.high:.1f}"
            rows.append([f"{skill}{name and ': ' + name}", f"{100 * share.estimate:.1f}", span, guess, str(n)])
    return rows


def fallen(right: dict[str, Unit], other: dict[str, Unit]) -> dict[str, Interval]:
    """Return the changes of the skills that fall beyond their intervals, Bonferroni-corrected, the largest first."""
    both = [skill for skill in right if skill in other]
    if not both:
        return {}
    changes = {skill: change(right[skill], other[skill], 1 - 0.05 / len(both)) for skill in both}
    lower = [(skill, interval) for skill, interval in changes.items() if interval.high < 0]
    return dict(sorted(lower, key=lambda entry: (entry[0] == TEXT, entry[1].estimate)))


def tables(results: Results) -> str:
    """Return all tables of the last run's weights as Markdown."""
    weights = results.runs[-1]["weights"] if results.runs else ""
    by_arm: dict[tuple, dict[Arm, dict[str, Unit]]] = {}
    for line in results.units.values():
        unit = dict(line["unit"])
        if unit["weights"] == weights:
            arm = Arm(unit["recipe"], unit["mode"], unit["fault"])
            by_arm.setdefault((unit["items"], unit["seed"]), {}).setdefault(arm, {})[unit["skill"]] = line
    parts = []
    for (items, seed), arms in by_arm.items():
        for arm, skills in arms.items():
            if arm.fault == PLAIN:
                header = ("skill", "right, %", "95 %", "guessing, %", "questions")
                rows = score_rows(skills.values())
                parts.append(f"## {arm.recipe} in mode {arm.mode} (seed {seed})\n\n" + markdown(header, rows))
        for arm, right in arms.items():
            same = {other: skills for other, skills in arms.items() if other.mode == arm.mode}
            if arm == Arm("f16", arm.mode):
                parts += _damage_table(arm, right, {o: s for o, s in same.items() if o.fault == PLAIN and o != arm})
            if arm.fault == RIGHT:
                wrong = {o: s for o, s in same.items() if o.recipe == arm.recipe and o.fault in FAULTS}
                parts += _fault_table(arm, right, wrong, items)
    return "\n\n".join(parts)


def _damage_table(arm: Arm, right: dict[str, Unit], others: dict[Arm, dict[str, Unit]]) -> list[str]:
    if not others:
        return []
    header = ("skill", "f16", *(text for o in others for text in (f"{o.recipe}: change [95 %]", "mean KL")))
    rows = []
    for skill in right:
        row = [skill, cell(None, right[skill])]
        for skills in others.values():
            other = skills.get(skill)
            row += [cell(right[skill], other), f"{np.mean(other['kl_mean']):.4f}" if other else ""]
        rows.append(row)
    return [f"## Quantization in mode {arm.mode}\n\n" + markdown(header, rows)]


def _fault_table(arm: Arm, right: dict[str, Unit], wrong: dict[Arm, dict[str, Unit]], items: int) -> list[str]:
    rows = [["(right)", "", "", *(cell(None, right[skill]) for skill in right)]]
    falls = {o: fallen(right, skills) for o, skills in wrong.items()}
    for other, skills in wrong.items():
        kl = float(np.median([value for unit in skills.values() for value in unit["kl_median"]]))
        rows.append([other.fault, f"{kl:.2g}", next(iter(falls[other]), ""),
                     *(cell(right[skill], skills.get(skill), 1 - 0.05 / len(right)) for skill in right)])  # fmt: skip
    lower, scores = sum(map(bool, falls.values())), sum(any(s != TEXT for s in fall) for fall in falls.values())
    said = (f"{lower} of {len(wrong)} mistakes lower at least one score or raise perplexity ({scores} at least one "
            f"score) beyond intervals that hold for all {len(right)} skills together at 95 % (Bonferroni). {items} "
            f"questions a skill; scores in percent, changes in points, of texts in nats per token.")  # fmt: skip
    header = ("mistake", "median KL", "falls most", *right)
    return [f"## Mistakes: {arm.recipe} in mode {arm.mode}\n\n{said}\n\n" + markdown(header, rows)]
