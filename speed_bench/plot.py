"""Speed curves: one or several CSVs to one figure, as SVG, PNG or PDF by the output's suffix.

Prefill is on the left axis, decode on the right one; both start at zero, and each axis has the colour of its curves
(blue and vermilion, which colour-blind readers can tell apart). The left axis has more room above, so that two curves
of similar shape do not overlap. Every curve has its name, and a band for the middle half of its repetitions. The same
input gives the same bytes.

    ds4-bench plot results/m3.csv -o m3.svg --title "M3 Max"
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ds4ref.console.plots import GRID, INK, STYLES, tick
from ds4ref.errors import DataError, UsageError

from .results import Point, read_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFILL, DECODE = "#0072B2", "#C44601"
SUFFIXES = (".svg", ".png", ".pdf")


def default_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of a CSV's default plot: ``dir/name.csv`` -> ``dir/name_ts.svg``."""
    path = Path(path)
    return path.with_name(path.stem + "_ts.svg")


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Raise UsageError unless the path ends in .svg, .png or .pdf."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"cannot plot to {path}: the name must end in {', '.join(SUFFIXES)}")


def default_title(*paths: str | os.PathLike[str]) -> str:
    """Return a plot's title from file names: ``m3_max.csv`` -> ``M3 Max t/s``; several are joined by commas."""
    return ", ".join(words(Path(path).stem) for path in paths) + " t/s"


def words(stem: str) -> str:
    """Return a file name without suffix as words of a title: ``m3_max`` -> ``M3 Max``."""
    words = re.split(r"[ _-]+", stem)
    return " ".join(word.upper() if re.fullmatch(r"m[0-9]+", word) else word.capitalize() for word in words)


def plot(
    sources: Sequence[str | os.PathLike[str]],
    outputs: Sequence[str | os.PathLike[str]] = (),
    title: str | None = None,
    size: tuple[int, int] = (960, 540),
) -> list[Path]:
    """Draw the CSVs ``sources`` into each file of ``outputs`` (default: an SVG beside the first CSV); return the files.

    ``size`` in pixels (PNGs have twice as many, for sharp screens). Raises DataError for bad data or a file that cannot
    be written, UsageError for an output of unknown suffix.
    """
    files = [Path(output) for output in outputs] or [default_output(sources[0])]
    for file in files:
        check_suffix(file)
    curves = [(Path(source).stem, read_points(source)) for source in sources]
    figure = draw(curves, title or default_title(*sources), size)
    for file in files:
        save(figure, file)
    return files


def draw(curves: Sequence[tuple[str, list[Point]]], title: str, size: tuple[int, int]) -> Figure:
    """Return the figure of named curves; ``size`` in pixels. Imports matplotlib, which takes half a second."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK}):
        figure = Figure(figsize=(size[0] / 96, size[1] / 96), dpi=96, layout="constrained")
        prefill_axes = figure.add_subplot()
        decode_axes = prefill_axes.twinx()
        prefill_axes.set_title(title, fontsize=15, fontweight="bold", loc="left", color=INK, pad=12)
        prefill_axes.set_xlabel("context (tokens)", color=INK)
        prefill_axes.set_ylabel("prefill (tokens/s)", color=PREFILL)
        decode_axes.set_ylabel("decode (tokens/s)", color=DECODE)
        for index, (_, points) in enumerate(curves):
            _line(prefill_axes, points, "prefill_tps", PREFILL, index)
            _line(decode_axes, points, "gen_tps", DECODE, index)
            _fill(prefill_axes, [(point.ctx, point.prefill_band) for point in points], PREFILL)
            _fill(decode_axes, [(point.ctx, point.gen_band) for point in points], DECODE)
        prefill_axes.set_xlim(0, 1.02 * max(point.ctx for _, points in curves for point in points))
        for axes, name, colour, room in (
            (prefill_axes, "prefill_tps", PREFILL, 1.5),
            (decode_axes, "gen_tps", DECODE, 1.1),
        ):
            axes.set_ylim(0, room * max(getattr(p, name) for _, points in curves for p in points) or 1.0)
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
            axes.tick_params(axis="y", colors=colour, length=0)
            axes.spines[["top", "left", "right"]].set_visible(False)
        prefill_axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        prefill_axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        prefill_axes.tick_params(axis="x", colors=INK)
        prefill_axes.grid(axis="y", color=GRID, linewidth=0.8)
        prefill_axes.set_axisbelow(True)
        _labels(prefill_axes, decode_axes, curves)
    return figure


def _line(axes: Axes, points: list[Point], name: str, colour: str, index: int) -> None:
    marker = "o" if len(points) <= 40 else ""
    axes.plot(
        [point.ctx for point in points],
        [getattr(point, name) for point in points],
        color=colour,
        linewidth=2.2,
        linestyle=STYLES[index % len(STYLES)],
        marker=marker,
        markersize=4,
        markerfacecolor=colour if name == "prefill_tps" else "white",
        clip_on=False,
    )


def _fill(axes: Axes, bands: Sequence[tuple[int, tuple[float, float] | None]], colour: str) -> None:
    known = [(ctx, *band) for ctx, band in bands if band is not None]
    if known:
        ctx, low, high = zip(*known, strict=True)
        axes.fill_between(ctx, low, high, color=colour, alpha=0.18, linewidth=0)


def _labels(prefill_axes: Axes, decode_axes: Axes, curves: Sequence[tuple[str, list[Point]]]) -> None:
    """Label every curve on the side that faces away from the other kind, so that no label is crossed."""
    several = len(curves) > 1
    for name, points in curves:
        at = min(points, key=lambda point: abs(point.ctx - points[-1].ctx / 2))
        heights = {
            "prefill": at.prefill_tps / prefill_axes.get_ylim()[1],
            "decode": at.gen_tps / decode_axes.get_ylim()[1],
        }
        above = max(heights, key=lambda kind: heights[kind])
        for kind, axes, value, colour in (
            ("prefill", prefill_axes, at.prefill_tps, PREFILL),
            ("decode", decode_axes, at.gen_tps, DECODE),
        ):
            up = kind == above
            axes.annotate(
                f"{kind}, {name}" if several else kind,
                (at.ctx, value),
                xytext=(0, 9 if up else -9),
                textcoords="offset points",
                ha="center",
                va="bottom" if up else "top",
                color=colour,
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )


def save(figure: Figure, file: Path) -> None:
    """Write a figure to a file, the same bytes for the same data; raises DataError if that fails."""
    import matplotlib

    from ds4ref.console.common import atomic_output

    kind = file.suffix[1:].lower()
    # no date, and a fixed salt for element ids: the same data gives the same file
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "ds4-bench", "svg.fonttype": "none"}):
        try:
            with atomic_output(str(file)) as out:
                figure.savefig(out, format=kind, metadata=stamp, dpi=192 if kind == "png" else 96)
        except OSError as error:
            raise DataError(f"cannot write {file}: {error.strerror or error}") from None
