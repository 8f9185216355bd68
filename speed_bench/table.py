"""Prints rows as a table that fits the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from ds4ref.runs import warnings
from ds4ref.runs.columns import Column, shown

PIPE_WIDTH = 120
"""Width in characters of tables written to a pipe or file."""
LEAST = 7
"""Minimum width of a column in characters."""


def print_table(
    entries: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    name: str = "",
    file: IO[str] | None = None,
    width: int | None = None,
) -> None:
    """Print summaries on ``file`` (default stdout) under a title with model and engine.

    Columns without values are omitted; columns that do not fit the terminal are listed below the table.
    """
    from rich.console import Console
    from rich.table import Table

    if width is None:
        width = shutil.get_terminal_size().columns if file is None and sys.stdout.isatty() else PIPE_WIDTH
    candidates = sorted(shown(entries), key=lambda column: column.rank)
    columns = fitting(candidates, entries, width)
    omitted = [column.heading for column in candidates if column not in columns]
    table = Table(
        title=_title(facts, name),
        caption=_caption(entries, facts, omitted),
        title_justify="left",
        caption_justify="left",
    )
    for column in columns:
        table.add_column(column.heading, justify="right", min_width=_width(column, entries), no_wrap=False)
    for entry in entries:
        table.add_row(*(column.display(entry) for column in columns))
    Console(file=file, highlight=False, width=width).print(table)


def fitting(columns: Sequence[Column], entries: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    """Return as many of ``columns`` (most important first) as fit into ``width`` characters, at least one.

    Headings may break between words, numbers may not.
    """
    chosen: list[Column] = []
    used = 1
    for column in columns:
        used += _width(column, entries) + 3
        if chosen and used > width:
            break
        chosen.append(column)
    return chosen


def _width(column: Column, entries: Sequence[Mapping[str, Any]]) -> int:
    cells = [len(column.display(entry)) for entry in entries]
    return max([LEAST, *cells, *(len(word) for word in column.heading.split())])


def _title(facts: Mapping[str, Any], name: str) -> str:
    model = facts["model"]
    numerics = f", numerics {facts['numerics']}" if facts["numerics"] else ""
    title = f"{model['name'] or model['file']} · backend {facts['backend']}{numerics}"
    return f"{name} · {title}" if name else title


def _caption(entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], omitted: Sequence[str]) -> str:
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
    caption += f"; no room for {', '.join(omitted)}" if omitted else ""
    return "\n".join(
        [caption, *(f"warning ({code}): {warnings.MEANINGS[code]}" for code in warnings.codes(entries).split())]
    )
