"""Plots of an endpoint under load: throughput above, latency below, over streams or request rate.

Drawn from CSVs as ``--concurrency LIST`` and ``--requests`` write them. Rows of equal depth make a curve. Both
panels share the x axis and start at zero; the time to first token (TTFT) is drawn with its 95th percentile. Levels with
warnings are crosses.

    ds4-bench plot --load served-*.csv -o load.svg
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.console.curves import cross, note_warnings
from ds4ref.console.plots import GRID, INK, STYLES, tick
from ds4ref.errors import DataError
from ds4ref.runs import warnings
from ds4ref.runs.results import read_rows

from .plot import check_suffix, default_output, save, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFILL, DECODE, GOOD = "#0072B2", "#C44601", "#00795C"
Row = dict[str, Any]


def plot_load(
    sources: Sequence[str | os.PathLike[str]],
    outputs: Sequence[str | os.PathLike[str]] = (),
    title: str | None = None,
    size: tuple[int, int] = (960, 720),
) -> list[Path]:
    """Draw the CSVs ``sources`` into each file of ``outputs``; return the files.

    Outputs and errors as in ``plot.plot``; raises DataError also for fewer than two levels of load.
    """
    files = [Path(output) for output in outputs] or [default_output(sources[0])]
    for file in files:
        check_suffix(file)
    rows = [row for source in sources for row in read_rows(source)]
    figure = draw(rows, title or _title(sources), size)
    for file in files:
        save(figure, file)
    return files


def _title(sources: Sequence[str | os.PathLike[str]]) -> str:
    """Return a title from the common prefix of the files' names."""
    common = os.path.commonprefix([Path(source).stem for source in sources]).strip(" _-.")
    return f"{words(common)} under load" if common else "Under load"


def levels(rows: Sequence[Row]) -> tuple[str, dict[str, list[Row]]]:
    """Return (name of the x column, rows of each curve by name in order of x); DataError if there is no curve."""
    column = "offered_rps" if all(row.get("offered_rps") for row in rows) else "streams"
    answered = [row for row in rows if isinstance(row.get(column), (int, float)) and row.get("ttft_ms")]
    curves: dict[str, list[Row]] = {}
    for row in sorted(answered, key=lambda row: row[column]):
        curves.setdefault(f"{row['ctx_tokens']:,} tokens", []).append(row)
    curves = {name: curve for name, curve in curves.items() if len({row[column] for row in curve}) > 1}
    if not curves:
        raise DataError("a load plot needs two levels (streams or request rates) of an endpoint")
    return column, curves


def draw(rows: Sequence[Row], title: str, size: tuple[int, int]) -> Figure:
    """Return the figure for the rows of all CSVs; ``size`` in pixels."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    column, curves = levels(rows)
    with matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK}):
        figure = Figure(figsize=(size[0] / 96, size[1] / 96), dpi=96, layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.set_title(title, fontsize=15, fontweight="bold", loc="left", color=INK, pad=12)
        upper.set_ylabel("all streams (tokens/s)", color=INK)
        lower.set_ylabel("time to first token (ms)", color=INK)
        lower.set_xlabel("streams at once" if column == "streams" else "requests per second", color=INK)
        for index, (name, curve) in enumerate(curves.items()):
            style = STYLES[index % len(STYLES)]
            several = f", {name}" if len(curves) > 1 else ""
            _line(upper, column, curve, "total_tps", DECODE, style, f"decoded{several}")
            _line(lower, column, curve, "ttft_ms", PREFILL, style, f"median{several}")
            if all(row.get("ttft_p95_ms") for row in curve):
                _line(lower, column, curve, "ttft_p95_ms", GOOD, style, f"95th percentile{several}")
        for axes in (upper, lower):
            axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
            axes.tick_params(colors=INK, length=0)
            axes.grid(axis="y", color=GRID, linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "left", "right"]].set_visible(False)
        lower.set_xlim(0, 1.22 * max(row[column] for curve in curves.values() for row in curve))
        lower.xaxis.set_major_locator(MaxNLocator(8, integer=column == "streams", steps=[1, 2, 4, 5, 10]))
        lower.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        note_warnings(figure, warnings.codes(row for curve in curves.values() for row in curve).split())
        _labels(upper)
        _labels(lower)
    return figure


def _line(axes: Axes, x: str, curve: Sequence[Row], y: str, colour: str, style: Any, label: str) -> None:
    values = [row[y] for row in curve]
    cross(axes, [(row[x], row[y]) for row in curve if warnings.of(row)])
    axes.plot([row[x] for row in curve], values, color=colour, linewidth=2.2, linestyle=style, marker="o", markersize=4,
              clip_on=False, label=label)  # fmt: skip


def _labels(axes: Axes) -> None:
    """Label the end of every curve, moving labels apart that would overlap."""
    top = axes.get_ylim()[1]
    ends = []
    for line in axes.lines:
        x, y = (float(np.asarray(values)[-1]) for values in line.get_data())
        ends.append((y, x, str(line.get_label()), line.get_color()))
    at = -top
    for y, x, label, colour in sorted(ends, key=lambda end: end[0]):
        at = max(y, at + 0.09 * top)
        axes.annotate(label, (x, at), xytext=(8, 0), textcoords="offset points", va="center", color=colour,
                      fontweight="bold", annotation_clip=False)  # fmt: skip
