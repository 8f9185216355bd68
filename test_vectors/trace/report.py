"""What was found, as JSON and as a page for people."""

from __future__ import annotations

import math
from typing import Any

from .blame import Result, Wrong
from .ops import OPS, Key, anchor, shown


def to_json(result: Result, total: int) -> dict[str, Any]:
    """Everything, JSON types only. ``total``: points that the dump has."""
    return {
        "verdict": "wrong" if result.wrong else "nothing beyond rounding",
        "rounding": result.rounding,
        "rounds_otherwise": result.exceptions,
        "rounds_unknown": result.coarse,
        "first": entry(result.wrong[0]) if result.wrong else None,
        "wrong": [entry(wrong) for wrong in result.wrong],
        "checked": len(result.clean) + len(result.wrong),
        "dumped": total,
        "not_judged": [{"point": name, "layer": layer, "why": why} for (name, layer), why in result.unjudged.items()],
        "not_covered": result.missing,
        "causes": [cause.to_json() for cause in result.causes],
        "notes": result.notes,
    }


def entry(wrong: Wrong) -> dict[str, Any]:
    """One op."""
    name, layer = wrong.key
    op = OPS[name]
    return {
        "point": name,
        "layer": layer,
        "from": [list(key) for key in wrong.inputs],
        "through": [list(key) for key in wrong.bridged],
        "formula": op.formula,
        "docs": anchor(op.section),
        "relative": _number(wrong.judgement.relative),
        "times_limit": _number(wrong.judgement.ratio),
        "rows": len(wrong.judgement.beyond),
        "rows_beyond": int(wrong.judgement.beyond.sum()),
        "where": wrong.where,
        "causes": wrong.causes,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def page(result: Result, total: int) -> str:
    """For people."""
    lines = []
    rounds = f"{result.rounding}" + (
        "; " + ", ".join(f"{kind} as {name}" for kind, name in result.exceptions.items()) if result.exceptions else ""
    )
    if not result.wrong:
        lines.append(f"nothing is beyond its rounding budget in {len(result.clean)} of {total} points dumped")
    else:
        first = result.wrong[0]
        lines += [f"the first op beyond its budget makes {shown(first.key)}", *_lines(first)]
    lines.append(f"rounds       {rounds}")
    lines += [
        f"note         {kind} has an error of {size:.1g} everywhere, without structure: a rounding that is in no set; "
        "a smaller mistake there cannot be seen"
        for kind, size in result.coarse.items()
    ]
    if len(result.wrong) > 1:
        lines += ["", f"all {len(result.wrong)} ops beyond their budgets, each on its own (their inputs, our op):"]
        for wrong in result.wrong:
            told = "; ".join(wrong.causes[:1] or wrong.where[:1])
            lines.append(f"  {shown(wrong.key):40} {wrong.judgement.relative:9.2e}  {told}".rstrip())
    lines += [f"note         {note}" for note in result.notes]
    if result.unjudged:
        lines += ["", f"{len(result.unjudged)} points could not be judged:"]
        lines += [f"  {shown(key):40} {why}" for key, why in list(result.unjudged.items())[:12]]
    if result.missing:
        lines += [
            "",
            "not covered: the dump has none of these, so mistakes inside them show only as gaps or not at all",
        ]
        lines += ["  " + ", ".join(result.missing)]
    return "\n".join(lines)


def _lines(wrong: Wrong) -> list[str]:
    op, found = OPS[wrong.key[0]], wrong.judgement
    through = [name for name, _ in wrong.bridged if name != wrong.key[0]]
    lines = [
        f"formula      {op.formula}",
        f"see          {anchor(op.section)}",
        f"inputs       {', '.join(_short(key, wrong.key) for key in wrong.inputs) or 'token ids and weights'}, theirs",
    ]
    if through:
        lines.append(f"gap          not dumped, so any of these may be it: {', '.join(through)}")
    lines.append(
        f"off by       {found.relative:.2g} of its size (median), {found.ratio:.3g} times the limit, "
        f"in {int(found.beyond.sum())} of {len(found.beyond)} rows"
    )
    lines += [f"where        {text}" for text in wrong.where]
    lines += [f"as if        {text}" for text in wrong.causes]
    return lines


def _short(key: Key, of: Key) -> str:
    return key[0] if key[1] == of[1] else shown(key)
