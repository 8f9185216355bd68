"""Plots of a report as inline SVG, which follows the page's light or dark colours, in two widths for readable text.

As in ``speed_bench.plot``: axes from zero, direct labels, no frame, colours that colour-blind readers can tell apart
(Okabe and Ito), and line styles that differ without colour.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.console.plots import GRID, INK, STYLES, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

SERIES = ("#0072b2", "#c44601", "#00795a", "#8f4a78", "#806000", "#3d7fa8")
PAPER = "#fdfdfc"
WIDE, NARROW = (940, 340), (380, 560)

# colours of the drawing -> variables of the style sheet
_VARIABLES = {
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)},
    INK.lower(): "var(--ink)",
    GRID.lower(): "var(--grid)",
    PAPER: "var(--paper)",
    "#000000": "var(--ink)",
}


@dataclass(frozen=True)
class Curve:
    """Speeds of one run: points (depth, value, low, high), where low = high = value if the band is unknown."""

    name: str
    points: tuple[tuple[int, float, float, float], ...]


@dataclass(frozen=True)
class Bar:
    """A speed as a share of its bound.

    share    0 to 1 (above 1 if the bound is wrong)
    detail   the resource that bounds it
    """

    name: str
    share: float
    detail: str


@dataclass(frozen=True)
class Picture:
    """A figure as SVG text in two widths, and its alternative text."""

    wide: str
    narrow: str
    alt: str


def speed_picture(prefill: Sequence[Curve], decode: Sequence[Curve]) -> Picture:
    """Draw tokens per second against depth, in a panel each for prefill and decode, if measured."""
    names = ", ".join(dict.fromkeys(curve.name for curve in (*prefill, *decode)))
    draw = partial(_speeds, prefill, decode)
    return _picture(draw, f"Prefill and decode speed against context depth of {names}", "speed")


def ratio_picture(name: str, curves: Sequence[tuple[str, Sequence[tuple[int, float]]]], margin: float) -> Picture:
    """Draw the change of speed from A to B in per cent at each depth, and the margin within which runs are the same."""

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        figure, (axes,) = _figure((size[0], 260), 1, 1)
        axes.axhspan(-margin, margin, color=GRID, linewidth=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        for index, (_, points) in enumerate(curves):
            values = [100 * (ratio - 1) for _, ratio in points]
            _line(axes, [depth for depth, _ in points], values, index)
        last = max(depth for _, points in curves for depth, _ in points)
        _context_axis(axes, last)
        axes.set_xlim(0, (1.09 if columns > 1 else 1.2) * last)  # room for the names
        _title(axes, f"change of speed, %{f': {shorten(name, 70)}' if columns > 1 else ''}")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -2 * margin), max(high, 2 * margin))
        _end_labels(axes, [(metric, points[-1][0], 100 * (points[-1][1] - 1)) for metric, points in curves])
        return figure

    return _picture(draw, f"Change of speed against context depth: {name}", "ratio")


def roofline_picture(bars: Sequence[Bar]) -> Picture:
    """Draw shares of the bound as bars; the right edge is the bound."""

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        height = 46 + (26 if columns > 1 else 40) * len(bars)
        figure, (axes,) = _figure((size[0], height), 1, 1)
        top = max(1.0, *(bar.share for bar in bars))
        for index, bar in enumerate(bars):
            y = len(bars) - 1 - index
            colour = SERIES[1] if "decode at" in bar.name else SERIES[0]
            axes.barh(y, bar.share, height=0.55 if columns > 1 else 0.34, color=colour)
            label = f"{bar.share:.0%}  {bar.detail}"
            if columns > 1:
                # contrast inside the bar is uncertain, so put the text after its end
                axes.text(bar.share + 0.008 * top, y, label, va="center", ha="left", color=INK)
            else:
                axes.text(0, y + 0.24, f"{bar.name}  {label}", va="bottom", ha="left", color=INK)
        axes.set_yticks([] if columns == 1 else range(len(bars)))
        if columns > 1:
            axes.set_yticklabels([bar.name for bar in reversed(bars)], color=INK)
        axes.set_xlim(0, top * (1.55 if columns > 1 else 1.0))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "bound"])
        axes.tick_params(length=0, colors=INK)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
        axes.set_ylim(-0.6, len(bars) - (0.4 if columns > 1 else 0.1))
        return figure

    return _picture(draw, "; ".join(f"{bar.name}: {bar.share:.0%} of the bound" for bar in bars), "roofline")


def standalone(prefill: Sequence[Curve], decode: Sequence[Curve]) -> bytes:
    """Return the speed figure as an SVG file on white background, for the Markdown version."""
    with _style():
        figure = _speeds(prefill, decode, WIDE, 1, 2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return buffer.getvalue()


# --- inside


def _speeds(
    prefill: Sequence[Curve], decode: Sequence[Curve], size: tuple[int, int], rows: int, columns: int
) -> Figure:
    titled_curves = [(title, curves) for title, curves in (("prefill", prefill), ("decode", decode)) if curves]
    if len(titled_curves) < 2:
        rows = columns = 1
    figure, panels = _figure(size, rows, columns)
    # a run has the same style in both panels, even if one lacks another run
    styles = {name: index for index, name in enumerate(dict.fromkeys(curve.name for curve in (*prefill, *decode)))}
    for axes, (title, curves) in zip(panels, titled_curves, strict=True):
        _panel(axes, f"{title}, tokens/s", curves, styles)
    figure.draw_without_rendering()  # sets the size of the axes
    for axes, (_, curves) in zip(panels, titled_curves, strict=True):
        _spread_labels(axes, curves, styles)
    return figure


def _panel(axes: Axes, title: str, curves: Sequence[Curve], styles: dict[str, int]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    top = max(point[3] for curve in curves for point in curve.points)
    axes.set_ylim(0, 1.14 * top or 1.0)
    for curve in curves:
        index, depths = styles[curve.name], [point[0] for point in curve.points]
        _line(axes, depths, [point[1] for point in curve.points], index)
        if any(low < high for _, _, low, high in curve.points):
            low, high = ([point[i] for point in curve.points] for i in (2, 3))
            axes.fill_between(depths, low, high, color=SERIES[index % len(SERIES)], alpha=0.2, linewidth=0)
    _context_axis(axes, max(point[0] for curve in curves for point in curve.points))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    _title(axes, title)


def _spread_labels(axes: Axes, curves: Sequence[Curve], styles: dict[str, int]) -> None:
    """Label each curve where the label covers no other label and as little of the curves as possible."""
    if len(curves) == 1:
        return
    room, dense = axes.bbox, []
    for curve in curves:
        x = [point[0] for point in curve.points]
        along = np.linspace(x[0], x[-1], 200)
        dense.append(axes.transData.transform(np.c_[along, np.interp(along, x, [point[1] for point in curve.points])]))
    placed: list[Bbox] = []
    for index, curve in enumerate(curves):
        label = axes.annotate(
            shorten(curve.name, 22), (0, 0), xytext=(0, 8), textcoords="offset points", ha="center",
            color=SERIES[styles[curve.name] % len(SERIES)], fontweight="bold",
        )  # fmt: skip
        wanted = (index + 1) / (len(curves) + 1) * max(c.points[-1][0] for c in curves)
        best = math.inf, curve.points[0], 8
        for point in curve.points[:: max(1, len(curve.points) // 16)]:
            for offset in (8, -8, 24, -24, 40, -40, 56, -56):
                box = _put(label, point, offset).padded(2)
                covered = sum(int(_inside(box, line).sum()) for line in dense)
                names = sum(box.overlaps(other) for other in placed)
                out = max(0.0, room.x0 - box.x0, box.x1 - room.x1, room.y0 - box.y0, box.y1 - room.y1)
                away = abs(point[0] - wanted) / wanted
                best = min(best, (1000 * names + 10 * out + covered + 4 * away + abs(offset) / 4, point, offset))
        placed.append(_put(label, best[1], best[2]).padded(2))


def _put(label: Annotation, point: tuple[int, float, float, float], offset: int) -> Bbox:
    """Move a label to ``offset`` points above a point of its curve (of its band, if closest); return its box."""
    _, value, low, high = point
    label.xy = point[0], {8: high, -8: low}.get(offset, value)
    label.set_position((0, offset))
    label.set_verticalalignment("bottom" if offset > 0 else "top")
    return label.get_window_extent()


def _inside(box: Bbox, points: np.ndarray) -> np.ndarray:
    return np.all((points >= (box.x0, box.y0)) & (points <= (box.x1, box.y1)), axis=1)


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], index: int) -> None:
    axes.plot(
        x, y, color=SERIES[index % len(SERIES)], linewidth=2.2, linestyle=STYLES[index % len(STYLES)],
        marker="o" if len(x) <= 40 else "", markersize=4, clip_on=False,
    )  # fmt: skip


def _end_labels(axes: Axes, ends: Sequence[tuple[str, float, float]]) -> None:
    """Label the end of each curve (name, x, y), moving labels apart that would overlap."""
    low, high = axes.get_ylim()
    least = 0.09 * (high - low)
    at, below = {}, -math.inf
    for index in sorted(range(len(ends)), key=lambda i: ends[i][2]):
        at[index] = below = max(ends[index][2], below + least)
    for index, (name, x, _) in enumerate(ends):
        axes.annotate(name, (x, at[index]), xytext=(8, 0), textcoords="offset points", ha="left", va="center",
                      color=SERIES[index % len(SERIES)], fontweight="bold")  # fmt: skip


def _context_axis(axes: Axes, last: int) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(0, 1.02 * last)
    axes.set_xlabel("context (tokens)", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 4, 5, 8, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(colors=INK, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=12, fontweight="bold", color=INK, pad=10)


def _figure(size: tuple[int, int], rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), dpi=72, layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK, "svg.fonttype": "none",
            "svg.hashsalt": "ds4-report", "axes.unicode_minus": True,
        }
    )  # fmt: skip


def _picture(draw: Callable[[tuple[int, int], int, int], Figure], alt: str, salt: str) -> Picture:
    with _style():
        wide = _inline(draw(WIDE, 1, 2), f"{salt}-w")
        narrow = _inline(draw(NARROW, 2, 1), f"{salt}-n")
    return Picture(wide, narrow, alt)


def _inline(figure: Figure, prefix: str) -> str:
    """Return the figure as an <svg> element without prologue and metadata, with colour variables and unique ids."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text)
    text = re.sub(r'(\bid="|href="#|url\(#)', lambda match: f"{match.group(1)}{prefix}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _VARIABLES.get(match.group(), match.group()), text)
    text = re.sub(r"font: (bold )?([\d.]+px) [^;\"]*", r"font: \g<1>\2 var(--font)", text)
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def shorten(text: str, most: int) -> str:
    """Shorten ``text`` to at most ``most`` characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def finite(value: Any) -> bool:
    """Return whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)
