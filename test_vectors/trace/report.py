"""Report of a blame run, as JSON and as text."""

from __future__ import annotations

import math
from typing import Any

from .blame import BlameResult, WrongOp
from .ops import anchor, describe_point
from .patterns import AXES


def to_json(result: BlameResult, total: int) -> dict[str, Any]:
    """Return the whole report in JSON types; ``total``: number of points in the dump."""
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


def entry(wrong: WrongOp) -> dict[str, Any]:
    """Return one wrong op in JSON types."""
    name, layer = wrong.key
    op = wrong.op
    return {
        "point": name,
        "layer": layer,
        "from": [list(key) for key in wrong.inputs],
        "through": [list(key) for key in wrong.bridged],
        "formula": op.formula,
        "docs": anchor(op),
        "relative": _number(wrong.judgement.relative),
        "largest": _number(wrong.judgement.largest),
        "times_limit": _number(wrong.judgement.ratio),
        "rows": len(wrong.judgement.beyond),
        "rows_beyond": int(wrong.judgement.beyond.sum()),
        "first_row": _first_row(wrong),
        "where": wrong.where,
        "causes": wrong.causes,
    }


def _first_row(wrong: WrongOp) -> int | None:
    """Return the first position (or index of a compressed cache row) that is further off than noise explains."""
    beyond = wrong.rows[wrong.judgement.beyond]
    return int(beyond.min()) if len(beyond) else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def page(result: BlameResult, total: int) -> str:
    """Return the report as text for a terminal; ``total``: number of points in the dump."""
    lines = []
    exceptions = ", ".join(f"{kind} as {name}" for kind, name in result.exceptions.items())
    if not result.wrong:
        lines.append(f"no op is wrong: {len(result.clean)} of the {total} dumped points are within their error budgets")
    else:
        first = result.wrong[0]
        lines += [f"first wrong op: the one that computes {describe_point(first.key)}", *_first_op_lines(first)]
    lines.append(f"rounds       {result.rounding}{'; ' if exceptions else ''}{exceptions}")
    lines += [
        f"note         {kind} has an even, unstructured error of {size:.1g}: an unknown rounding; a smaller mistake "
        "there cannot be detected"
        for kind, size in result.coarse.items()
    ]
    if len(result.wrong) > 1:
        lines += [
            "",
            f"all {len(result.wrong)} wrong ops, each judged alone (our op on their inputs; largest relative error):",
        ]
        for wrong in result.wrong:
            reason = "; ".join(wrong.causes[:1] or wrong.where[:1])
            lines.append(f"  {describe_point(wrong.key):40} {wrong.judgement.largest:9.2e}  {reason}".rstrip())
    lines += [f"note         {note}" for note in result.notes]
    if result.unjudged:
        lines += ["", f"{len(result.unjudged)} points could not be checked:"]
        lines += [f"  {describe_point(key):40} {why}" for key, why in list(result.unjudged.items())[:12]]
    if result.missing:
        lines += ["", "not in the dump, so not checked on their own:", "  " + ", ".join(result.missing)]
    return "\n".join(lines)


def _first_op_lines(wrong: WrongOp) -> list[str]:
    """Return the lines of the report on the first wrong op: formula, inputs, size and place of the error, causes."""
    op, judgement = wrong.op, wrong.judgement
    through = [name for name, _ in wrong.bridged if name != wrong.key[0]]
    inputs = [key[0] if key[1] == wrong.key[1] else describe_point(key) for key in wrong.inputs]
    lines = [
        f"formula      {op.formula}",
        f"see          {anchor(op)}",
        f"inputs       {', '.join(inputs) or 'token ids and weights'}, theirs",
    ]
    if through:
        lines.append(f"gap          any of these may be wrong, as they were not dumped: {', '.join(through)}")
    beyond, rows = int(judgement.beyond.sum()), len(judgement.beyond)
    usual = "" if 2 * beyond > rows else f" (median of all rows {judgement.relative:.2g})"
    at = "" if _first_row(wrong) is None else f", {AXES[op.axes[0]]} {_first_row(wrong)} first"
    lines.append(f"off by       {judgement.largest:.2g} of its size at most{usual}, {judgement.ratio:.3g} times the "
                 f"limit, in {beyond} of {rows} rows{at}")  # fmt: skip
    lines += [f"where        {text}" for text in wrong.where]
    lines += [f"explained by {text}" for text in wrong.causes]
    return lines
