"""Speed against context depth in two panels, prefill and decode: what ``ds4-bench plot`` and reports draw.

Each run has one colour and line style in both panels (Okabe and Ito's colours, which colour-blind readers can tell
apart), and its name in a legend. Speeds start at zero. Depths are on a logarithmic axis if they span decades.
Points with warnings (``runs.warnings``) are marked by crosses, which a line below the plot explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runs import warnings
from .plots import GRID, INK, STYLES, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERIES = ("#0072b2", "#c44601", "#00795a", "#8f4a78", "#806000", "#3d7fa8")
DECADES, DECADE, BUNCHED = 100, 10, 0.25
"""When the axis is logarithmic: if the largest depth is at least ``DECADES`` times the smallest one, or ``DECADE``
times if the depths are bunched at the beginning, that is, half of them lie within the first ``BUNCHED`` share of the
axis."""


@dataclass(frozen=True)
class Curve:
    """Speeds of one benchmark run over the context depth.

    points    (depth, value, low, high), low to high being the band of uncertainty; low = high = value if it is unknown
    warnings  (depth, codes of its warnings) for each depth with warnings (``runs.warnings``)
    """

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    warnings: tuple[tuple[float, str], ...] = ()

    @classmethod
    def of(cls, name: str, rows: Sequence[Mapping[str, Any]], column: str, x: str = "ctx_tokens") -> Curve:
        """Return the values of ``column`` over those of column ``x`` in ``rows`` (of one run), with their bands and
        warnings."""
        points, codes = [], []
        for row in sorted(rows, key=lambda row: row[x]):
            low, high = (float(row.get(f"{column}{end}") or row[column]) for end in ("_low", "_high"))
            points.append((row[x], float(row[column]), low, high))
            if text := warnings.concerning(row, column):
                codes.append((row[x], text))
        return cls(name, tuple(points), tuple(codes))


def speed_figure(
    prefill: Sequence[Curve],
    decode: Sequence[Curve],
    size: tuple[float, float],
    rows: int,
    columns: int,
    title: str = "",
) -> Figure:
    """Return a figure of ``size`` points with one panel each for prefill and decode, if they have curves.

    rows, columns: how two panels are arranged.
    """
    panels = [(f"{name}, tokens/s", curves) for name, curves in (("prefill", prefill), ("decode", decode)) if curves]
    return panels_figure(panels, size, rows, columns, title)


def panels_figure(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    size: tuple[float, float],
    rows: int,
    columns: int,
    title: str = "",
    label: str = "",
) -> Figure:
    """Return a figure of ``size`` points with a panel of curves under each heading.

    panels: (heading, curves) pairs; ``rows`` and ``columns``: how they are arranged. ``label``: name of the x axis, ""
    for context depths.
    """
    if len(panels) < 2:
        rows = columns = 1
    figure, all_axes = new_figure(size, rows, columns)
    every = [curve for _, curves in panels for curve in curves]
    # a run has the same style in both panels, even if one lacks another run
    styles = {name: index for index, name in enumerate(dict.fromkeys(curve.name for curve in every))}
    for axes, (text, curves) in zip(all_axes, panels, strict=True):
        _panel(axes, text, curves, styles, label)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold", color=INK)
    note_warnings(figure, dict.fromkeys(code for curve in every for _, text in curve.warnings for code in text.split()))
    return figure


def _panel(
    axes: Axes,
    text: str,
    curves: Sequence[Curve],
    styles: dict[str, int],
    label: str,
) -> None:
    """Draw the curves of one panel, with their bands, warnings, axes and heading ``text``."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    top = max(point[3] for curve in curves for point in curve.points)
    axes.set_ylim(0, (1.14 if len(curves) < 3 else 1.3) * top or 1.0)
    for curve in curves:
        index, depths = styles[curve.name], [point[0] for point in curve.points]
        line(axes, depths, [point[1] for point in curve.points], index, shorten(curve.name, 22))
        if any(low < high for _, _, low, high in curve.points):
            low, high = ([point[i] for point in curve.points] for i in (2, 3))
            axes.fill_between(depths, low, high, color=SERIES[index % len(SERIES)], alpha=0.2, linewidth=0)
        crossed = {depth for depth, _ in curve.warnings}
        cross(axes, [(depth, value) for depth, value, _, _ in curve.points if depth in crossed])
    x_axis(axes, [point[0] for curve in curves for point in curve.points], label)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    heading(axes, text)
    if len(curves) > 1:
        axes.legend(frameon=False, labelcolor="linecolor")


# --- parts of other figures


def line(axes: Axes, x: Sequence[float], y: Sequence[float], index: int, label: str | None = None) -> None:
    """Draw a curve in the style of the run with this ``index``; ``label``: its name in the legend."""
    axes.plot(
        x, y, color=SERIES[index % len(SERIES)], linewidth=2.2, linestyle=STYLES[index % len(STYLES)],
        marker="o" if len(x) <= 40 else "", markersize=4, clip_on=False, label=label,
    )  # fmt: skip


def cross(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw crosses over points that have warnings."""
    if points:
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=80, c=INK, marker="x", linewidths=1.8, clip_on=False, zorder=3)


def note_warnings(figure: Figure, codes: Iterable[str]) -> None:
    """Write below a figure what its crosses mean, if there are any; ``codes``: the codes of all warnings in it."""
    if text := " ".join(codes):
        text = f"\u00d7 warnings: {text}; do not rely on these points"
        figure.supxlabel(text, x=0.01, ha="left", fontsize=10, color=INK)


def x_axis(axes: Axes, depths: Sequence[float], label: str = "") -> None:
    """Set up the x axis: for context depths, logarithmic if they span decades, or a linear axis named ``label``."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    first, last = min(depths), max(depths)
    if not label and logarithmic(depths):
        axes.set_xscale("log", base=2)
        axes.set_xlim(first / 1.1, 1.1 * last)
        powers = range(math.ceil(math.log2(first)), math.floor(math.log2(last)) + 1)
        axes.xaxis.set_major_locator(FixedLocator([2.0**power for power in powers[:: -(-len(powers) // 7)]]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1024:g}k" if x >= 1024 else f"{x:g}"))
        axes.set_xlabel("context (tokens, k = 1024, logarithmic)", color=INK)
    else:
        axes.set_xlim(0, 1.02 * last)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 4, 5, 8, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        axes.set_xlabel(label or "context (tokens)", color=INK)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def logarithmic(depths: Sequence[float]) -> bool:
    """Return whether ``depths`` are better drawn on a logarithmic axis."""
    first, last = min(depths), max(depths)
    bunched = np.median(sorted(set(depths))) - first < BUNCHED * (last - first)
    return last >= DECADES * first or (last >= DECADE * first and bool(bunched))


def heading(axes: Axes, text: str) -> None:
    """Write the heading of a panel above it."""
    axes.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)


def new_figure(size: tuple[float, float], rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``size`` points, and its ``rows`` x ``columns`` panels as a list."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def shorten(text: str, most: int) -> str:
    """Shorten ``text`` to at most ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"
