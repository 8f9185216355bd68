"""Results as Markdown, JSON, JSON lines and SQL, laid out as by llama-bench, and as ds4's CSV.

Markdown has one line per test: ``pp2048 @ d4096`` is the prefill of 2048 tokens after 4096, ``tg128 @ d6144`` the
decode of 128 tokens after 6144, both as mean and standard deviation over repetitions, with their warnings. JSON has one
summary per depth, JSON lines one sample per depth and repetition, SQL the summaries as one table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.runs.columns import COLUMNS, NAMES, Column, Sample, csv_text, place, shown

if TYPE_CHECKING:
    from .runner import MeasuredLane

FORMATS = ("csv", "md", "json", "jsonl", "sql")
_ABOUT = ("model", "backend", "numerics", "threads", "created", "lane")
_SQL = {str: "TEXT", int: "INTEGER", float: "REAL"}
_SHOWN = (
    "warnings",
    "gen_tokens",
    "asked_tokens",
    "streams",
    "ttft_ms",
    "ttft_p95_ms",
    "tpot_p50_ms",
    "total_tps",
    "request_rps",
    "goodput_rps",
    "failed",
)
SHOWN = sorted((column for column in COLUMNS if column.name in _SHOWN), key=lambda column: column.rank)
"""Columns that Markdown shows besides llama-bench's, where they have values: those of endpoints, and warnings."""


def render(kind: str, lanes: Sequence[MeasuredLane]) -> str:
    """Return the results as text in format ``kind``, with a final newline."""
    if kind == "csv":
        return "".join(csv_text(lane.samples) for lane in lanes)
    if kind == "md":
        return markdown(lanes)
    if kind == "jsonl":
        return "".join(json.dumps(_about(lane) | entry) + "\n" for lane in lanes for entry in lane.samples)
    entries = [_about(lane) | entry for lane in lanes for entry in lane.summary()]
    return json.dumps(entries, indent=1) + "\n" if kind == "json" else sql(entries)


def _about(lane: MeasuredLane) -> dict[str, Any]:
    facts = lane.facts
    engine_facts = {name: facts[name] for name in ("backend", "numerics", "threads", "created")}
    model = {"model": facts["model"]["name"] or facts["model"]["file"]}
    return {**model, **engine_facts, **({"lane": lane.name} if lane.name else {})}


def markdown(lanes: Sequence[MeasuredLane]) -> str:
    """Return llama-bench's table, with a column for the lane if there are several, and SHOWN ones with values."""
    more = [c for c in SHOWN if c in shown([entry for lane in lanes for entry in lane.samples])]
    named = len(lanes) > 1 and any(lane.name for lane in lanes)
    heads = [
        "model",
        "backend",
        "threads",
        *(["lane"] if named else []),
        "test",
        *(c.heading for c in more),
        "t/s, mean ± SD",
    ]
    left_columns = 4 if named else 2
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join("---" if i < left_columns and i != 2 else "---:" for i in range(len(heads))) + "|")
    for lane in lanes:
        about = _about(lane)
        first = [str(about["model"]), str(about["backend"]), "" if about["threads"] is None else str(about["threads"])]
        first += [lane.name] if named else []
        for test, column, group in _tests(lane.samples):
            cells = [*first, test, *(_combined(group, c) for c in more), _spread(group, column)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _tests(samples: Sequence[Sample]) -> list[tuple[str, str, list[Sample]]]:
    """Return (name, column of its speed, samples) for each test."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for entry in samples:
        groups.setdefault(place(entry), []).append(entry)
    tests_found = []
    for (depth, name), group in groups.items():
        if "requests" in group[0]:
            tests_found.append((name, "total_tps", group))
            continue
        done = group[0]["prefill_tokens"]
        decoded = group[0].get("asked_tokens") or group[0]["gen_tokens"]
        tests = ((f"pp{done}", depth - done, "prefill_tps"), (f"tg{decoded}", depth, "gen_tps"))
        for test, behind, column in tests:
            if group[0][column] > 0 or not name:
                tests_found.append((name or (f"{test} @ d{behind}" if behind else test), column, group))
    return tests_found


def _combined(group: Sequence[Sample], column: Column) -> str:
    value = column.combine(column.name, group)
    return column.display({column.name: value})


def _spread(group: Sequence[Sample], column: str) -> str:
    values = [entry[column] for entry in group]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} \u00b1 {statistics.stdev(values):.2f}"


def sql(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return SQL statements that create a table and insert the entries."""
    names = (*_ABOUT, *NAMES)
    kinds = dict.fromkeys(_ABOUT, "TEXT") | {"threads": "INTEGER"} | {c.name: _SQL[c.type] for c in COLUMNS}
    columns = ",\n".join(f"  {name} {kinds[name]}" for name in names)
    lines = [f"CREATE TABLE IF NOT EXISTS ds4_bench (\n{columns}\n);"]
    for entry in entries:
        values = ", ".join(_literal(entry.get(name)) for name in names)
        lines.append(f"INSERT INTO ds4_bench ({', '.join(names)}) VALUES ({values});")
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, (int, float)):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"
