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

from ds4ref.console.curves import SERIES, Curve, context_axis, heading, line, new_figure, shorten, speed_figure
from ds4ref.console.plots import GRID, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    draw = partial(speed_figure, prefill, decode)
    return _picture(draw, f"Prefill and decode speed against context depth of {names}", "speed")


def ratio_picture(name: str, curves: Sequence[tuple[str, Sequence[tuple[int, float]]]], margin: float) -> Picture:
    """Draw the change of speed from A to B in per cent at each depth, and the margin within which runs are the same."""

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        figure, (axes,) = new_figure((size[0], 260), 1, 1)
        axes.axhspan(-margin, margin, color=GRID, linewidth=0)
        axes.axhline(0, color=INK, linewidth=0.8)
        for index, (_, points) in enumerate(curves):
            values = [100 * (ratio - 1) for _, ratio in points]
            line(axes, [depth for depth, _ in points], values, index)
        context_axis(axes, [depth for _, points in curves for depth, _ in points])
        (left, right), room = axes.get_xlim(), 0.07 if columns > 1 else 0.17  # for the names
        logarithmic = axes.get_xscale() == "log"
        axes.set_xlim(left, right * (right / left) ** room if logarithmic else right + room * (right - left))
        heading(axes, f"change of speed, %{f': {shorten(name, 70)}' if columns > 1 else ''}")
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -2 * margin), max(high, 2 * margin))
        _end_labels(axes, [(metric, points[-1][0], 100 * (points[-1][1] - 1)) for metric, points in curves])
        return figure

    return _picture(draw, f"Change of speed against context depth: {name}", "ratio")


def roofline_picture(bars: Sequence[Bar]) -> Picture:
    """Draw shares of the bound as bars; the right edge is the bound."""

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        height = 46 + (26 if columns > 1 else 40) * len(bars)
        figure, (axes,) = new_figure((size[0], height), 1, 1)
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
        figure = speed_figure(prefill, decode, WIDE, 1, 2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return buffer.getvalue()


# --- inside


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


def finite(value: Any) -> bool:
    """Return whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)
