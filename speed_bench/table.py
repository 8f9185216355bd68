"""The sweep as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any


def print_table(
    entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], name: str = "", file: IO[str] | None = None
) -> None:
    """Summaries on ``file`` (stdout), headed by what was measured on what. Shares of the bound where one is known."""
    from rich.console import Console
    from rich.table import Table

    model, machine = facts["model"], facts["machine"]
    reps = max((entry["reps"] for entry in entries), default=1)
    title = f"{model['name'] or model['file']} · backend {facts['backend']}, numerics {facts['numerics']}"
    caption = f"{facts['threads']} thread(s) on {machine['cpu']}, {machine['cores']} cores"
    if reps > 1:
        caption += f"; medians of {reps} repetitions"
    table = Table(
        title=f"{name} · {title}" if name else title, caption=caption, title_justify="left", caption_justify="left"
    )
    shares = any(entry.get("decode_share") is not None for entry in entries)
    headings = ["context", "prefill t/s", "decode t/s", "first ms", "p95 ms", "session MiB"]
    for heading in headings + (["prefill share", "decode share", "GB/s"] if shares else []):
        table.add_column(heading, justify="right", min_width=7)
    for entry in entries:
        cells = [
            f"{entry['ctx_tokens']:,}",
            f"{entry['prefill_tps']:,.1f}",
            f"{entry['gen_tps']:,.1f}",
            f"{entry['gen_first_ms']:.2f}",
            _cell(entry.get("itl_p95_ms"), ".2f"),
            f"{entry['kvcache_bytes'] / 2**20:,.2f}",
        ]
        if shares:
            cells += [_cell(entry.get("prefill_share"), ".0%"), _cell(entry.get("decode_share"), ".0%")]
            cells.append(_cell(entry.get("decode_gbs"), ".2f"))
        table.add_row(*cells)
    # A pipe has no width, so that nothing is to be wrapped there.
    width = None if file is None and sys.stdout.isatty() else 120
    Console(file=file, highlight=False, width=width).print(table)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
