"""Results for other programs: Markdown, JSON, JSON lines and SQL, as llama-bench prints them, beside ds4's CSV.

Markdown has a line a test: ``pp2048 @ d4096`` is the prefill of 2048 tokens behind 4096, ``tg128 @ d6144`` the decode
of 128 behind 6144, both as mean and standard deviation over repetitions. JSON holds a summary a depth, JSON lines a
sample a depth and repetition, SQL the summaries as one table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .results import COLUMNS, HEADER, OURS, format_row
from .samples import Sample, summaries

FORMATS = ("csv", "md", "json", "jsonl", "sql")
_TEXT = ("gen_digest", "decode_binds", "prefill_binds", "test")


def render(kind: str, lanes: Sequence[tuple[Sequence[Sample], Mapping[str, Any]]]) -> str:
    """The whole text, newline included: samples and facts of every lane."""
    if kind == "csv":
        return "".join("\n".join([HEADER, *map(format_row, summaries(samples))]) + "\n" for samples, _ in lanes)
    if kind == "md":
        return markdown(lanes)
    if kind == "jsonl":
        return "".join(json.dumps(_about(facts) | entry) + "\n" for samples, facts in lanes for entry in samples)
    entries = [_about(facts) | entry for samples, facts in lanes for entry in summaries(samples)]
    return json.dumps(entries, indent=1) + "\n" if kind == "json" else sql(entries)


def _about(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": facts["model"]["name"] or facts["model"]["file"], "backend": facts["backend"],
            "numerics": facts["numerics"], "threads": facts["threads"], "created": facts["created"]}  # fmt: skip


def markdown(lanes: Sequence[tuple[Sequence[Sample], Mapping[str, Any]]]) -> str:
    """llama-bench's table."""
    lines = ["| model | backend | threads | test | t/s |", "|---|---|---:|---:|---:|"]
    for samples, facts in lanes:
        about = _about(facts)
        name, threads = str(about["model"]).replace("|", "\\|"), "" if about["threads"] is None else about["threads"]
        groups: dict[tuple[int, str], list[Sample]] = {}
        for entry in samples:
            groups.setdefault((entry["ctx_tokens"], entry.get("test", "")), []).append(entry)
        for (depth, _), group in groups.items():
            done = group[0]["prefill_tokens"]
            tests = ((f"pp{done}", depth - done, "prefill_tps"), (f"tg{group[0]['gen_tokens']}", depth, "gen_tps"))
            for test, behind, column in tests:
                at = f" @ d{behind}" if behind else ""
                shown = group[0].get("test") or f"{test}{at}"
                if group[0][column] > 0 or not group[0].get("test"):
                    lines.append(f"| {name} | {about['backend']} | {threads} | {shown} | {_spread(group, column)} |")
    return "\n".join(lines) + "\n"


def _spread(group: Sequence[Sample], column: str) -> str:
    values = [entry[column] for entry in group]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} \u00b1 {statistics.stdev(values):.2f}"


def sql(entries: Sequence[Mapping[str, Any]]) -> str:
    """A table and its lines."""
    about = ("model", "backend", "numerics", "threads", "created")
    names = (*about, *COLUMNS, *OURS)
    kinds = dict.fromkeys((*about, *_TEXT), "TEXT") | {"threads": "INTEGER"}
    columns = ",\n".join(f"  {name} {kinds.get(name, 'REAL')}" for name in names)
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
