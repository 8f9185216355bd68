"""The sweep as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from .sweep import Row


def print_table(rows: Sequence[Row], facts: dict[str, Any], file: IO[str] | None = None) -> None:
    """Depths, speeds and snapshot sizes on ``file`` (stdout), headed by what was measured on what."""
    from rich.console import Console
    from rich.table import Table

    model, machine = facts["model"], facts["machine"]
    console = Console(file=file, highlight=False, soft_wrap=True)
    console.print(f"{model['name'] or model['file']} · backend {facts['backend']}, numerics {facts['numerics']}")
    table = Table()
    for heading in ("context", "prefill t/s", "decode t/s", "first ms", "session MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.ctx_tokens:,}",
            f"{row.prefill_tps:,.1f}",
            f"{row.gen_tps:,.1f}",
            f"{row.gen_first_ms:.2f}",
            f"{row.kvcache_bytes / 2**20:,.2f}",
        )
    console.print(table, soft_wrap=False)
    console.print(f"{facts['threads']} thread(s) on {machine['cpu']}, {machine['cores']} cores")
