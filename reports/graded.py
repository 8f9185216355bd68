"""Graded runs in a report.

Scores with intervals, overall, by source and by domain; tokens and seconds; comparison with earlier runs of the same
pack, and with speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ds4ref.errors import DataError
from ds4ref.runs import scored, thinking
from ds4ref.runs.scored import Answered
from ds4ref.runs.stats import Interval

from . import scoreplots
from .figures import Picture, finite
from .scoreplots import ScoreInterval
from .sources import Measured, model_name
from .tables import printable

OUTCOMES = ("right", "wrong", "ambiguous", "missing")


@dataclass
class GradedPart:
    """The part of a report on graded runs.

    tables    one for each run
    pictures  by name: "graded", "depth", "time", "speed_score"
    history   a line for each run of the same pack, in order of time
    """

    tables: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def graded_part(runs: Sequence[Measured], bench: Sequence[Measured], earlier: Sequence[Measured]) -> GradedPart:
    """Build the part of a report on graded runs; raises DataError for a run without graded questions.

    bench     bench runs, for the speed of the same models
    earlier   further runs of the same packs, for the history only
    """
    part = GradedPart([_table(measured, bench) for measured in runs])
    if not runs:
        return part
    part.pictures["graded"] = scoreplots.score_picture(_groups(part.tables), _guesses(part.tables))
    if any(table["depths"] for table in part.tables):
        part.pictures["depth"] = scoreplots.depth_picture(
            [(t["name"], [(line["depth"], _dot(line), line["guess"]) for line in t["depths"]]) for t in part.tables]
        )
    _add_history(part, runs, earlier)
    points = [(t["name"], t["speed"], _dot(t)) for t in part.tables if t["speed"] is not None]
    if len(points) > 1:
        part.pictures["speed_score"] = scoreplots.speed_score_picture(points)
    return part


def _table(measured: Measured, bench: Sequence[Measured]) -> dict[str, Any]:
    questions = list(scored.answered(measured.rows).values())
    whole = scored.share(questions)
    if whole is None:
        raise DataError(f"{measured.name} has no questions with a grade")
    run, rows = measured.run, measured.rows
    outcomes = Counter(str(row["outcome"]) for row in rows if row.get("outcome") and scored.score_of(row) is not None)
    graded = sum(q.graded for q in questions)
    exhausted = sum(_exhausted(row) for row in rows if scored.score_of(row) is not None)
    rate, bench_rate = scored.rate(rows), _bench_rate(measured, bench)
    pack = run.fact("pack") or {}
    return {
        **_line(printable(measured.name), whole, scored.guessed(questions)),
        "groups": _lines(questions, lambda q: q.source),
        "domains": [d for d in _lines(questions, lambda q: q.domain.partition("/")[0] or "?") if d["n"] > 1],
        "difficulties": _lines(questions, lambda q: q.difficulty or "difficulty not stated"),
        "depths": _depths(questions),
        "samples": graded, "ungraded": sum(q.ungraded for q in questions), "status": run.status,
        "epochs": max((int(row.get("epoch") or 1) for row in rows), default=1),
        "outcomes": {name: outcomes[name] for name in OUTCOMES} if outcomes else None,
        "exhausted": exhausted / graded if outcomes else None,
        "tokens": _mean(questions, "tokens"), **_prices(rows), "seconds": _mean(questions, "seconds"),
        "rate": rate, "bench_rate": bench_rate, "speed": bench_rate if rate is None else rate,
        "model": printable(str(model_name(run.facts) or "")),
        "pack": printable(f"{pack.get('pack', '')} {pack.get('version', '')}".strip()),
        "ds4": _ds4(rows), "notes": [printable(note) for note in thinking.notes(rows, run.facts)],
    }  # fmt: skip


def _line(name: str, i: Interval, guess: float | None = None) -> dict[str, Any]:
    return {"name": name, "n": i.n, "score": i.estimate, "low": i.low, "high": i.high, "guess": guess}


def _lines(questions: Sequence[Answered], name: Any) -> list[dict[str, Any]]:
    """Return a line for each group; none if there is only one."""
    intervals = scored.shares(questions, name)
    if len(intervals) < 2:
        return []
    guesses = {key: scored.guessed(q for q in questions if name(q) == key) for key in intervals}
    return [_line(printable(key), i, guesses[key]) for key, i in intervals.items()]


def _depths(questions: Sequence[Answered]) -> list[dict[str, Any]]:
    """Return a line for each depth of what is asked for, in order; none if no question states it."""
    lines = []
    for depth in sorted({q.depth for q in questions if q.depth}):
        group = [q for q in questions if q.depth == depth]
        if (interval := scored.share(group)) is not None:
            lines.append({**_line(f"{depth:,} tokens back", interval, scored.guessed(group)), "depth": depth})
    return lines


def _mean(questions: Sequence[Answered], name: str) -> float | None:
    known = [value for q in questions if (value := getattr(q, name)) is not None]
    return sum(known) / len(known) if known else None


def _prices(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the median tokens of a sample, and the tokens of all samples for each right one; None if not counted."""
    counted = [row for row in rows if scored.score_of(row) is not None and finite(row.get("tokens"))]
    tokens, right = [float(row["tokens"]) for row in counted], sum(scored.score_of(row) or 0 for row in counted)
    return {"median": median(tokens) if tokens else None, "price": sum(tokens) / right if right else None}


def _exhausted(row: dict[str, Any]) -> bool:
    return row.get("finish") == "length" or row.get("close") in ("soft", "hard", "open")


def _ds4(rows: Sequence[dict[str, Any]]) -> float | None:
    """Return the score by ds4's own answer extractor; None if it is the same, or unknown."""
    known = [row for row in rows if scored.score_of(row) is not None and row.get("ds4")]
    if not known or len(known) < sum(scored.score_of(row) is not None for row in rows):
        return None
    theirs = scored.share(scored.answered([{**row, "outcome": row["ds4"]} for row in known]).values())
    ours = scored.share(scored.answered(known).values())
    return theirs.estimate if theirs is not None and ours is not None and theirs != ours else None


def _bench_rate(measured: Measured, bench: Sequence[Measured]) -> float | None:
    """Return the median decode speed of the same model in the bench runs of the report."""
    speeds = [
        float(row["gen_tps"])
        for other in bench
        if same_model(measured.run.fact("model"), other.run.fact("model"))
        for row in other.rows
        if finite(row.get("gen_tps")) and row["gen_tps"] > 0
    ]
    return median(speeds) if speeds else None


def same_model(one: Any, other: Any) -> bool:
    """Return whether two models are the same, by digest, or by name and size if one lacks a digest."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if one.get("sha256") and other.get("sha256"):
        return bool(one["sha256"] == other["sha256"])
    return bool(one.get("name") and one.get("bytes")) and all(one[k] == other.get(k) for k in ("name", "bytes"))


# -------------------------------------------------------------------------------------------------- against others


def _groups(tables: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, ScoreInterval | None]]]]:
    """Return (name, dots of the runs) for all questions and for every source."""
    names = list(dict.fromkeys(group["name"] for table in tables for group in table["groups"]))
    groups: list[tuple[str, list[tuple[str, ScoreInterval | None]]]] = [("all", [(t["name"], _dot(t)) for t in tables])]
    for name in names:
        dots = []
        for table in tables:
            line = next((group for group in table["groups"] if group["name"] == name), None)
            dots.append((table["name"], None if line is None else _dot(line)))
        groups.append((name, dots))
    return groups


def _guesses(tables: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the score of guessing in per cent for all questions and for every source that states it."""
    lines = [("all", table) for table in tables]
    lines += [(group["name"], group) for table in tables for group in table["groups"]]
    return {name: 100 * line["guess"] for name, line in reversed(lines) if line["guess"] is not None}


def _dot(line: dict[str, Any]) -> ScoreInterval:
    return ScoreInterval(100 * line["score"], 100 * line["low"], 100 * line["high"])


def _pack_of(measured: Measured) -> str | None:
    digest = measured.run.fact("pack", "digest")
    return str(digest) if digest else None


def _add_history(part: GradedPart, runs: Sequence[Measured], earlier: Sequence[Measured]) -> None:
    """Add the runs of the most frequent pack in order of time, if there are several."""
    packs = Counter(pack for measured in runs if (pack := _pack_of(measured)))
    if not packs:
        return
    (pack, _), *_ = packs.most_common(1)
    known = [m for m in (*earlier, *runs) if _pack_of(m) == pack]
    known.sort(key=lambda measured: (measured.run.created, measured.run.id))
    named = {id(measured) for measured in runs}
    for measured in known:
        whole = scored.share(scored.answered(measured.rows).values())
        if whole is not None:
            part.history.append({
                **_line(printable(measured.name), whole), "created": measured.run.created,
                "series": _series(measured, known), "here": id(measured) in named, "status": measured.run.status,
            })  # fmt: skip
    if len({line["created"] for line in part.history}) < 2:
        part.history = []
        return
    part.pictures["time"] = scoreplots.time_picture(
        [(line["series"], line["created"], _dot(line), line["here"]) for line in part.history]
    )


def _series(measured: Measured, among: Sequence[Measured]) -> str:
    """Return the model's name, with the thinking mode if its runs differ in that."""
    model = printable(str(model_name(measured.run.facts) or measured.run.fact("engine") or "unknown"))
    alike = [m for m in among if model_name(m.run.facts) == model_name(measured.run.facts)]
    modes = {m.run.fact("settings", "think") for m in alike}
    think = measured.run.fact("settings", "think")
    return f"{model}, think {think}" if len(modes) > 1 and think else model
