"""Reader of llama.cpp's llama-eval-callback printout: the corners of every tensor with four digits, and its sum.

    common_debug_cb_eval:              attn_norm-0 = (f32)        MUL(norm-0{256, 5, 1, 1}, ...}) = {256, 5, 1, 1}
        [
            [
                [      0.1234,      -1.0000,       2.5000,    ...,       0.0001,  ...  ],
                ...,
            ],
        ]
        sum = 12.345678

Of a dimension longer than six only the first and last three entries are printed. A repeated name (llama.cpp has one
graph for both halves of a layer) gets "#2", "#3", ..., so the prompt must have been run as one batch.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from ds4ref.errors import DataError

from .dump import Dump, DumpChunk

_HEAD = re.compile(r"\S+:\s+(\S.*?) = \((\w+)\)\s+\w.*\) = \{(\d+), (\d+), (\d+), (\d+)\}\s*")
_SUM = re.compile(r"\s*sum = (\S+)\s*")
_ROW = re.compile(r"\s*\[\s*([-+0-9.a-zA-Z].*?)\s*\],?\s*")
_SHOWN = 3
DECIMALS = 4
MOST_VALUES = 1 << 27
"""Largest number of values of one tensor; a printed shape with more is damaged."""


def read_printed(path: Path) -> Dump:
    """Read every tensor of the printout; DataError if the file is no printout, or ends inside a tensor."""
    dump = Dump(str(path))
    text = path.read_bytes().decode("utf-8", "replace")
    name = ""
    dims: tuple[int, ...] = ()
    rows: list[list[float]] = []
    total: float | None = None
    counts: dict[str, int] = {}

    def close() -> None:
        if not name or not rows:
            return
        counts[name] = counts.get(name, 0) + 1
        label = name if counts[name] == 1 else f"{name}#{counts[name]}"
        values = _corners(dims, rows, f"{path}: {label}")
        load = lambda values=values, dims=dims: _spread(values, dims)  # noqa: E731
        partial = any(n > 2 * _SHOWN for n in dims)
        dump.add(label, DumpChunk(dims[::-1], "float32", load, None, partial, total, DECIMALS))

    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.fullmatch(line)
        if head:
            close()
            name, rows, total = head[1].strip(), [], None
            dims = tuple(int(n) for n in head.groups()[2:])
            if math.prod(dims) > MOST_VALUES:
                raise DataError(f"{path} line {number}: {name} of shape {list(dims)} cannot be meant")
        elif name and (sum_match := _SUM.fullmatch(line)):
            total = _number(sum_match[1], path, number)
        elif name and (row := _ROW.fullmatch(line)):
            cells = [cell.strip() for cell in row[1].split(",")]
            rows.append([_number(cell, path, number) for cell in cells if cell not in ("...", "")])
    close()
    if not dump.tensors:
        raise DataError(f"{path} is neither a printout of llama-eval-callback nor .npz, .safetensors or a folder")
    return dump


def _number(text: str, path: Path, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{path} line {line}: {text[:30]!r} is no number") from None


def _printed_indices(n: int) -> list[int]:
    return list(range(n)) if n <= 2 * _SHOWN else [*range(_SHOWN), *range(n - _SHOWN, n)]


def _corners(dims: tuple[int, ...], rows: list[list[float]], where: str) -> np.ndarray:
    """Return the printed values as an array, outermost dimension first."""
    shape = tuple(len(_printed_indices(n)) for n in dims[::-1])
    if len(rows) != math.prod(shape[:-1]) or any(len(row) != shape[-1] for row in rows):
        raise DataError(f"{where}: {len(rows)} rows are not what shape {list(dims)} prints (cut off?)")
    return np.array(rows, np.float64).reshape(shape)


def _spread(corners: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """Return the full float64 array with the corners at their places and NaN elsewhere."""
    full = np.full(dims[::-1], np.nan)
    if full.size:
        full[np.ix_(*(_printed_indices(n) for n in dims[::-1]))] = corners
    return full
