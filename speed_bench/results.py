"""The results CSV (docs/bench.md): ds4-bench's six columns first, ours after them.

With repetitions the speeds are medians. Cells of what was not measured are empty. Reading tolerates what spreadsheets
do to such files (byte order mark, CRLF, dropped zeros, other columns between) and refuses what they could mean two
ways.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ds4ref.errors import DataError

COLUMNS = ("ctx_tokens", "prefill_tokens", "prefill_tps", "gen_tokens", "gen_tps", "kvcache_bytes")
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

_NEEDED = ("ctx_tokens", "prefill_tps", "gen_tps")
_COUNTS = ("ctx_tokens", "prefill_tokens", "gen_tokens", "kvcache_bytes")


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


def read_rows(path: str | os.PathLike[str], least: int = 1) -> list[dict[str, Any]]:
    """The rows of a CSV sorted by depth, with every column: numbers where the cell is one, else text, None if empty.

    DataError says what is wrong: unreadable, missing columns, torn lines, a cell of a known column that is no number,
    fewer than ``least`` rows, or the same depth twice.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(parse_rows(file, path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if len(rows) < least:
        raise DataError(f"{path}: need at least {'two data rows' if least == 2 else f'{least} data row(s)'}")
    rows.sort(key=lambda row: (row["ctx_tokens"], row.get("test") or ""))
    for one, other in zip(rows, rows[1:], strict=False):
        if one["ctx_tokens"] == other["ctx_tokens"] and one.get("test") == other.get("test"):
            raise DataError(f"{path}: ctx_tokens {one['ctx_tokens']} occurs twice")
    return rows


def parse_rows(lines: Iterable[str], path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Rows of a results CSV as its lines come; ``path`` names it in a DataError."""
    try:
        reader = csv.DictReader(lines, strict=True)
        names = reader.fieldnames or []
        missing = [name for name in _NEEDED if name not in names]
        if missing:
            hint = "; separated by semicolons, save it with commas" if ";" in "".join(names) else ""
            raise DataError(f"{path}: missing CSV column(s): {', '.join(missing)}{hint}")
        twice = next((name for name in names if list(names).count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{path}: CSV column {twice} occurs twice")
        for cells in reader:
            yield _row(path, reader.line_num, cells, len(names))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a CSV file: {error}") from None


def _row(path: str | os.PathLike[str], line: int, cells: dict[Any, Any], width: int) -> dict[str, Any]:
    """One line; a spreadsheet's decimal commas show as too many cells, a torn line as too few."""
    count = width + len(cells.get(None) or ()) - sum(value is None for value in cells.values())
    if count != width:
        raise DataError(f"{path}:{line}: {count} cells instead of {width}: a torn line, or decimal commas")
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        text = cell.strip()
        known = name in COLUMNS
        value = _number(text)
        whole = name in _COUNTS
        if (known and text and value is None) or (name in _NEEDED and value is None) or _impossible(name, value):
            raise DataError(f"{path}:{line}: {name} is {text!r}, not a number one can plot")
        row[name] = (int(value) if whole else value) if value is not None else text or None
    return row


def _impossible(name: str, value: float | None) -> bool:
    if value is None or name not in COLUMNS:
        return False
    return value < 0 or (name in _COUNTS and value % 1 != 0) or (name == "ctx_tokens" and value < 1)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
