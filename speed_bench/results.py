"""The results CSV (tools.md 1.5): ds4-bench's six columns first, ours after them.

    ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes,gen_first_ms,gen_steady_tps,gen_digest

Reading tolerates what spreadsheets do to such files (byte order mark, CRLF, dropped zeros, other columns between) and
refuses what they could mean two ways.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from typing import IO

from ds4ref.errors import DataError

from .sweep import Row

COLUMNS = ("ctx_tokens", "prefill_tokens", "prefill_tps", "gen_tokens", "gen_tps", "kvcache_bytes")
OURS = ("gen_first_ms", "gen_steady_tps", "gen_digest")
HEADER = ",".join(COLUMNS + OURS)

_NEEDED = ("ctx_tokens", "prefill_tps", "gen_tps")


def format_row(row: Row) -> str:
    """One CSV line without its newline."""
    return (
        f"{row.ctx_tokens},{row.prefill_tokens},{row.prefill_tps:.2f},{row.gen_tokens},{row.gen_tps:.2f},"
        f"{row.kvcache_bytes},{row.gen_first_ms:.3f},{row.gen_steady_tps:.2f},{row.gen_digest}"
    )


class CsvWriter:
    """Header at once, then row by row, each one flushed: what was measured stays, whatever comes after."""

    def __init__(self, stream: IO[str]):
        self.stream = stream
        self._line(HEADER)

    def write(self, row: Row) -> None:
        """Append one row."""
        self._line(format_row(row))

    def _line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()


@dataclass(frozen=True)
class Point:
    """What a curve needs of a row."""

    ctx: int
    prefill_tps: float
    gen_tps: float


def read_points(path: str | os.PathLike[str], least: int = 2) -> list[Point]:
    """The rows of a CSV sorted by depth; other columns are ignored.

    DataError says what is wrong: unreadable, missing columns, a cell that is no number, fewer than ``least`` rows, or
    the same depth twice.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path}: missing CSV column(s): {', '.join(missing)}")
            points = [_point(path, reader.line_num, cells) for cells in reader]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a CSV file: {error}") from None
    if len(points) < least:
        raise DataError(f"{path}: need at least {'two data rows' if least == 2 else f'{least} data row(s)'}")
    points.sort(key=lambda point: point.ctx)
    for one, other in zip(points, points[1:], strict=False):
        if one.ctx == other.ctx:
            raise DataError(f"{path}: ctx_tokens {one.ctx} occurs twice")
    return points


def _point(path: str | os.PathLike[str], line: int, cells: dict[str, str | None]) -> Point:
    values = []
    for name in _NEEDED:
        text = (cells[name] or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or (name == "ctx_tokens" and (value < 1 or value % 1)):
            raise DataError(f"{path}:{line}: {name} is {text!r}, not a number one can plot")
        values.append(value)
    return Point(int(values[0]), values[1], values[2])
