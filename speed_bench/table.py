"""The sweep as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True)
class Column:
    """A cell is the entry's value times ``factor``; a speed or size of 0 was not measured."""

    heading: str
    name: str
    form: str
    factor: float = 1.0

    def value(self, entry: Mapping[str, Any]) -> Any:
        """What to print, None for nothing."""
        value = entry.get(self.name)
        return value * self.factor if value and not isinstance(value, str) else value or None


COLUMNS = (
    Column("test", "test", ""),
    Column("context", "ctx_tokens", ",.0f"),
    Column("prefill t/s", "prefill_tps", ",.1f"),
    Column("decode t/s", "gen_tps", ",.1f"),
    Column("first ms", "gen_first_ms", ".2f"),
    Column("p95 ms", "itl_p95_ms", ".2f"),
    Column("TTFT ms", "ttft_ms", ",.1f"),
    Column("end to end ms", "e2e_ms", ",.0f"),
    Column("all streams t/s", "total_tps", ",.1f"),
    Column("fairness", "fairness", ".3f"),
    Column("session MiB", "kvcache_bytes", ",.2f", 2.0**-20),
    Column("prefill share", "prefill_share", ".0%"),
    Column("decode share", "decode_share", ".0%"),
    Column("GB/s", "decode_gbs", ".2f"),
)
"""Those of which no entry has a value are left out."""


def print_table(
    entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], name: str = "", file: IO[str] | None = None
) -> None:
    """Summaries on ``file`` (stdout), headed by what was measured on what. Shares of the bound where one is known."""
    from rich.console import Console
    from rich.table import Table

    model, machine = facts["model"], facts["machine"]
    reps = max((entry["reps"] for entry in entries), default=1)
    numerics = f", numerics {facts['numerics']}" if facts["numerics"] else ""
    title = f"{model['name'] or model['file']} · backend {facts['backend']}{numerics}"
    threads = f"{facts['threads']} thread(s) on " if facts["threads"] else "from "
    caption = f"{threads}{machine['cpu']}, {machine['cores']} cores"
    if reps > 1:
        caption += f"; medians of {reps} repetitions"
    table = Table(
        title=f"{name} · {title}" if name else title, caption=caption, title_justify="left", caption_justify="left"
    )
    columns = [column for column in COLUMNS if any(column.value(entry) is not None for entry in entries)]
    for column in columns:
        table.add_column(column.heading, justify="right", min_width=7)
    for entry in entries:
        table.add_row(*(_cell(column.value(entry), column.form) for column in columns))
    # A pipe has no width, so that nothing is to be wrapped there.
    width = None if file is None and sys.stdout.isatty() else 120
    Console(file=file, highlight=False, width=width).print(table)


def _cell(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)
