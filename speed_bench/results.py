"""The results CSV (docs/bench.md): ds4-bench's six columns first, ours after them.

With repetitions the speeds are medians. Cells of what was not measured are empty. ``ds4ref.runs.results`` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from ds4ref.errors import DataError
from ds4ref.runs.results import COLUMNS, read_rows

OURS = {
    "gen_first_ms": ".3f",
    "gen_steady_tps": ".2f",
    "gen_digest": "",
    "reps": "d",
    "prefill_tps_low": ".2f",
    "prefill_tps_high": ".2f",
    "gen_tps_low": ".2f",
    "gen_tps_high": ".2f",
    "itl_p50_ms": ".3f",
    "itl_p95_ms": ".3f",
    "rss_bytes": ".0f",
    "cache_bytes_per_token": ".1f",
    "decode_bytes": ".0f",
    "decode_gbs": ".3f",
    "decode_share": ".4f",
    "decode_binds": "",
    "prefill_share": ".4f",
    "prefill_binds": "",
    "test": "",
    "ttft_ms": ".3f",
    "e2e_ms": ".3f",
    "prompt_tokens": ".0f",
    "cached_tokens": ".0f",
    "streams": "d",
    "total_tps": ".2f",
    "fairness": ".4f",
}
"""Our columns and how their cells are written."""

HEADER = ",".join((*COLUMNS, *OURS))


def format_row(entry: Mapping[str, Any]) -> str:
    """One CSV line without its newline, from a summary (``samples``)."""
    size = entry.get("kvcache_bytes")  # an endpoint does not tell
    cells = [
        f"{entry['ctx_tokens']},{entry['prefill_tokens']},{entry['prefill_tps']:.2f},{entry['gen_tokens']},"
        f"{entry['gen_tps']:.2f},{'' if size is None else size}"
    ]
    values = ((entry.get(name), form) for name, form in OURS.items())
    return ",".join(cells + ["" if value is None else format(value, form) for value, form in values])


class CsvWriter:
    """Header at once, then row by row, each one flushed: what was measured stays, whatever comes after."""

    def __init__(self, stream: IO[str]):
        self.stream = stream
        self._line(HEADER)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append one row."""
        self._line(format_row(entry))

    def _line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


@dataclass(frozen=True)
class Point:
    """What a curve needs of a row. Bands are (low, high) where repetitions gave one."""

    ctx: int
    prefill_tps: float
    gen_tps: float
    prefill_band: tuple[float, float] | None = None
    gen_band: tuple[float, float] | None = None


def read_points(path: str | os.PathLike[str], least: int = 2) -> list[Point]:
    """The rows of a CSV as points of a curve, sorted by depth. DataError as ``read_rows``."""
    rows = read_rows(path, least)
    if any(one["ctx_tokens"] == other["ctx_tokens"] for one, other in zip(rows, rows[1:], strict=False)):
        raise DataError(f"{path}: several tests at one depth make no curve")
    return [
        Point(row["ctx_tokens"], row["prefill_tps"], row["gen_tps"], _band(row, "prefill_tps"), _band(row, "gen_tps"))
        for row in rows
    ]


def _band(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return (low, high) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else None
