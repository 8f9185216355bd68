"""Rows as a table for people, as wide as their terminal is."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from .columns import COLUMNS, Column

PIPE_WIDTH = 120
"""A pipe has no width, so that nothing is to be wrapped there."""
LEAST = 7


def print_table(
    entries: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    name: str = "",
    file: IO[str] | None = None,
    width: int | None = None,
) -> None:
    """Summaries on ``file`` (stdout), headed by what was measured on what. Columns of which no entry has a value are
    left out, and those that the terminal has no room for are named below."""
    from rich.console import Console
    from rich.table import Table

    if width is None:
        width = shutil.get_terminal_size().columns if file is None and sys.stdout.isatty() else PIPE_WIDTH
    known = [column for column in COLUMNS if column.heading and any(column.display(entry) for entry in entries)]
    known.sort(key=lambda column: column.rank)
    shown = fitting(known, entries, width)
    left = [column.heading for column in known if column not in shown]
    table = Table(
        title=_title(facts, name), caption=_caption(entries, facts, left), title_justify="left", caption_justify="left"
    )
    for column in shown:
        table.add_column(column.heading, justify="right", min_width=LEAST, no_wrap=False)
    for entry in entries:
        table.add_row(*(column.display(entry) for column in shown))
    Console(file=file, highlight=False, width=width).print(table)


def fitting(columns: Sequence[Column], entries: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    """Those of ``columns``, most important first, that fit a terminal ``width`` wide; at least one. Headings may break
    between words, numbers may not."""
    found: list[Column] = []
    used = 1
    for column in columns:
        cells = [len(column.display(entry)) for entry in entries]
        words = [len(word) for word in column.heading.split()]
        used += max([LEAST, *cells, *words]) + 3
        if found and used > width:
            break
        found.append(column)
    return found


def _title(facts: Mapping[str, Any], name: str) -> str:
    model = facts["model"]
    numerics = f", numerics {facts['numerics']}" if facts["numerics"] else ""
    title = f"{model['name'] or model['file']} · backend {facts['backend']}{numerics}"
    return f"{name} · {title}" if name else title


def _caption(entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], left: Sequence[str]) -> str:
    machine = facts["machine"]
    reps = max((entry["reps"] for entry in entries), default=1)
    threads = f"{facts['threads']} thread(s) on " if facts["threads"] else "from "
    caption = f"{threads}{machine['cpu']}, {machine['cores']} cores"
    if reps > 1:
        caption += f"; medians of {reps} repetitions"
    return caption + (f"; no room for {', '.join(left)}" if left else "")
