"""Prints rows as a table that fits the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ds4ref.console.page import line
from ds4ref.console.tables import Column, choose, fitted, stdout_width
from ds4ref.runs import warnings
from ds4ref.runs.columns import shown

PIPE_WIDTH = 160
"""Width in characters of tables written to a pipe or file."""


def table(
    entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], name: str = "", width: int | None = None
) -> str:
    """Return summaries of rows as a table, under a title with model and engine from the run's metadata ``facts``.

    ``width`` is in characters, None: that of the terminal. Columns without values are omitted; columns for which there
    is no space are listed below the table.
    """
    width = width or stdout_width(PIPE_WIDTH)
    ordered = sorted(shown(entries), key=lambda column: column.rank)
    headings = [Column(column.heading, column.rank, right=True) for column in ordered]
    rows = [[column.display(entry) for column in ordered] for entry in entries]
    chosen, _ = choose(headings, rows, width)
    omitted = [column.heading for index, column in enumerate(ordered) if index not in chosen]
    below = [textwrap.fill(text, width) for text in _caption(entries, facts, omitted)]
    return "\n".join([textwrap.fill(_title(facts, name), width), fitted(headings, rows, width), *below])


def _title(facts: Mapping[str, Any], name: str) -> str:
    model = facts["model"]
    numerics = f", numerics {facts['numerics']}" if facts["numerics"] else ""
    title = f"{model['name'] or model['file']} · backend {facts['backend']}{numerics}"
    return line(f"{name} · {title}" if name else title)


def _caption(entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], omitted: Sequence[str]) -> list[str]:
    machine = facts["machine"]
    reps = max((entry["reps"] for entry in entries), default=1)
    if facts.get("cluster"):
        caption = "; ".join(
            f"layers {p['layers']} on {p['worker']}: {p['threads']} thread(s) on {p['processor']}"
            for p in facts["cluster"]
        )
    else:
        threads = f"{facts['threads']} thread(s) on " if facts["threads"] else "from "
        caption = f"{threads}{machine['cpu']}, {machine['cores']} cores"
    if reps > 1:
        caption += f"; medians of {reps} repetitions"
    lines = [caption, *(f"warning ({code}): {warnings.MEANINGS[code]}" for code in warnings.codes(entries).split())]
    return lines + ([f"no room for {', '.join(omitted)}"] if omitted else [])
