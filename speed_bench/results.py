"""Rows of a results CSV as points of a curve (``columns`` writes such files, ``ds4ref.runs.results`` reads them)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ds4ref.errors import DataError
from ds4ref.runs import warnings
from ds4ref.runs.results import read_rows


@dataclass(frozen=True)
class Point:
    """One point of a speed curve; a band is (low, high), None without repetitions; ``warnings``: codes by column."""

    ctx: int
    prefill_tps: float
    gen_tps: float
    prefill_band: tuple[float, float] | None = None
    gen_band: tuple[float, float] | None = None
    warnings: Mapping[str, str] = field(default_factory=dict)


def read_points(path: str | os.PathLike[str], least: int = 2) -> list[Point]:
    """Read a CSV as points of a curve, sorted by depth.

    Raises DataError as ``read_rows`` does, for fewer than ``least`` points, or for two rows of one depth.
    """
    rows = read_rows(path, least)
    if any(one["ctx_tokens"] == other["ctx_tokens"] for one, other in zip(rows, rows[1:], strict=False)):
        raise DataError(f"{path}: several rows at one depth: not a curve")
    return [
        Point(
            row["ctx_tokens"],
            row["prefill_tps"],
            row["gen_tps"],
            _band(row, "prefill_tps"),
            _band(row, "gen_tps"),
            {name: codes for name in ("prefill_tps", "gen_tps") if (codes := warnings.concerning(row, name))},
        )
        for row in rows
    ]


def _band(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return (low, high) if isinstance(low, (int, float)) and isinstance(high, (int, float)) else None
