"""Read records from CSV with a header or from JSON Lines.

A damaged file is refused, with its line; missing or odd cells are left to the shapes. Files are read line by line with
a limit, so that neither a long file nor a long line fills the memory.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds4ref.console.options import printable
from ds4ref.errors import DataError

from .records import Record, fold

LONGEST_LINE = 16 << 20
"""Largest size of a line in bytes. Outputs of lm-evaluation-harness hold a prompt with its examples once for each
choice."""
LOOKED_AT = 20
"""Number of records from which the shape is detected."""


def lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text with its line end) of a UTF-8 file, with or without byte order mark."""
    number = 0
    try:
        with open(path, "rb") as file:
            while raw := file.readline(longest + 1):
                number += 1
                yield number, _decoded(path, number, raw, longest)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not number:
        raise DataError(f"{path}: empty")


def _decoded(path: Path, number: int, raw: bytes, longest: int) -> str:
    if number == 1:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{path}: UTF-16, not UTF-8: save it as UTF-8 first")
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in raw:
        raise DataError(f"{path}:{number}: a zero byte: not UTF-8 text")
    if len(raw) > longest:
        raise DataError(f"{path}:{number}: longer than {longest >> 20} MiB")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x}") from None


def is_json(path: Path) -> bool:
    """Return whether the first line that is not blank begins a JSON object; DataError for an empty file or an array."""
    for number, line in lines(path):
        if line.startswith("["):
            raise DataError(f"{path}:{number}: a JSON array: JSON Lines are needed (jq -c '.[]' makes them)")
        if line.strip():
            return line.lstrip().startswith("{")
    raise DataError(f"{path}: empty")


def records(path: Path, needs: Sequence[Sequence[str]] = ()) -> Iterator[Record]:
    """Yield all records; DataError for a damaged file, or a CSV file without a needed column (or its aliases)."""
    return json_records(path) if is_json(path) else csv_records(path, needs)


def json_records(path: Path) -> Iterator[Record]:
    """Yield one record per line."""
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except RecursionError:
            raise DataError(f"{path}:{number}: not JSON: nested too deeply") from None
        except ValueError as error:  # among them an integer with thousands of digits
            raise DataError(f"{path}:{number}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}:{number}: not a JSON object")
        yield Record(path, number, _folded(found))


def csv_records(path: Path, needs: Sequence[Sequence[str]] = ()) -> Iterator[Record]:
    """Yield one record per row below the header; cells are unchanged."""
    rows = _rows(path)
    start, header = next(rows)
    _check_header(path, start, header, needs)
    for start, row in rows:
        if len(row) != len(header):
            yield Record(path, start, {}, torn=f"{len(row)} cells under {len(header)} columns")
        else:
            yield Record(path, start, _folded(dict(zip(header, row, strict=True))))


def columns(path: Path) -> frozenset[str]:
    """Return the folded names of the columns, or of all cells of the first ``LOOKED_AT`` JSON objects."""
    if is_json(path):
        first = itertools.islice(json_records(path), LOOKED_AT)
        return frozenset(name for record in first for name in record.cells)
    return frozenset(map(fold, next(_rows(path))[1])) - {""}


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line it begins on, cells) of each row that is not blank, at least the header."""
    reader = csv.reader((line for _, line in lines(path)), strict=True)
    found = False
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise DataError(f"{path}:{start}: not CSV: {error}") from None
        if any(cell.strip() for cell in row):
            found = True
            yield start, row
    if not found:
        raise DataError(f"{path}: empty")


def _check_header(path: Path, line: int, header: list[str], needs: Sequence[Sequence[str]]) -> None:
    seen: set[str] = set()
    for name in filter(None, map(fold, header)):
        if name in seen:
            raise DataError(f"{path}:{line}: column {printable(name)} is there twice")
        seen.add(name)
    for names in needs:
        if not seen & set(names):
            has = printable(", ".join(header), 200)
            raise DataError(f"{path}:{line}: no column {' or '.join(names)} among {has}")


def _folded(cells: dict[str, Any]) -> dict[str, Any]:
    """Fold the names; of equal ones keep the first, drop columns without a name."""
    found: dict[str, Any] = {}
    for name, value in cells.items():
        if folded := fold(name):
            found.setdefault(folded, value)
    return found
