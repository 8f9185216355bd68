"""Reads the CSV files that ds4-bench writes, both ours and ds4's own.

It tolerates changes made by spreadsheets (byte order mark, CRLF, dropped zeros, other columns in between) and refuses
ambiguous files.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import DataError

COLUMNS = ("ctx_tokens", "prefill_tokens", "prefill_tps", "gen_tokens", "gen_tps", "kvcache_bytes")
"""Columns that both programs write, before any others."""
_NEEDED = ("ctx_tokens", "prefill_tps", "gen_tps")
_MOST = 1e18
"""Largest accepted value of a known column: small enough that no plot or mean overflows."""
_COUNTS = ("ctx_tokens", "prefill_tokens", "gen_tokens", "kvcache_bytes")


def read_rows(path: str | os.PathLike[str], least: int = 1) -> list[dict[str, Any]]:
    """Read the rows of a CSV, sorted by depth; cells are numbers where possible, else text, None if empty.

    Raise DataError for an unreadable file, missing columns, incomplete lines, a known column's cell that is not a
    number, fewer than ``least`` rows, or two rows of the same depth and test.
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
    """Yield the rows of a results CSV as its ``lines`` are read; ``path`` is the file's name in error messages."""
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


def sample_rows(rows: Sequence[Mapping[str, Any]], source: object) -> None:
    """Raise DataError unless all ``rows`` have a depth, and speeds that are numbers; ``source`` is named in it."""
    for number, row in enumerate(rows, 1):
        for name in _NEEDED:
            value = row.get(name, None if name == "ctx_tokens" else 0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
                raise DataError(f"{source}: row {number}: {name} is {value!r}, not a number one can plot")


def check_objects(facts: Mapping[str, Any], source: object) -> None:
    """Raise DataError if one of the ``facts`` that have parts is something else than an object or null; ``source`` is
    named in it."""
    for name in ("machine", "versions", "settings", "selection"):
        if not isinstance(facts.get(name), dict | None):
            raise DataError(f"{source}: {name} is {str(facts[name])[:40]!r}, not a JSON object")


def _row(path: str | os.PathLike[str], line: int, cells: dict[Any, Any], width: int) -> dict[str, Any]:
    """Parse the ``cells`` of one line of a file with ``width`` columns; raise DataError if one is wrong.

    Numbers with decimal commas, as spreadsheets write them, give too many cells; an incomplete line has too few.
    """
    count = width + len(cells.get(None) or ()) - sum(value is None for value in cells.values())
    if count != width:
        raise DataError(f"{path}:{line}: {count} cells instead of {width}: a torn line, or decimal commas")
    row: dict[str, Any] = {}
    for name, cell in cells.items():
        text = cell.strip()
        value, known, whole = _number(text), name in COLUMNS, name in _COUNTS
        if value is None:
            wrong = name in _NEEDED or (known and text)
        else:
            least = 1 if name == "ctx_tokens" else 0
            wrong = known and (not least <= value <= _MOST or (whole and value % 1 != 0))
        if wrong:
            raise DataError(f"{path}:{line}: {name} is {text!r}, not a number one can plot")
        row[name] = (int(value) if whole else value) if value is not None else text or None
    return row


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
