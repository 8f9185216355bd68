"""Plots of a report as inline SVG, which follows the page's light or dark colours.

As in ``speed_bench.plot``, axes begin at zero, there is no frame, colour-blind readers can tell the colours apart
(those of Okabe and Ito), and lines also differ in style. Scores are drawn on a scale from 0 to 100 %, so that small
differences look small.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.console.curves import SERIES, Curve, heading, new_figure, shorten, speed_figure
from ds4ref.console.page import Picture
from ds4ref.console.plots import GRID, INK
from ds4ref.runs.stats import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "#fdfdfc"
WIDTH, HEIGHT = 940, 340
SHAPES = ("o", "s", "D", "^", "v", "P")
LINE, GAP = 19, 22
"""Vertical distances in points in a plot of scores: between runs, and between groups of questions."""

# colours in the drawing -> variables of the page's style sheet
_VARIABLES = {
    **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)},
    INK.lower(): "var(--ink)",
    GRID.lower(): "var(--grid)",
    PAPER: "var(--paper)",
    "#000000": "var(--ink)",
}


def speed_picture(prefill: Sequence[Curve], decode: Sequence[Curve], file: str = "") -> Picture:
    """Draw tokens per second against depth, in one panel for prefill and one for decode, if they were measured.

    ``file`` is the name of the file with this plot, for Markdown.
    """
    names = ", ".join(dict.fromkeys(curve.name for curve in (*prefill, *decode)))
    with _style():
        svg = _inline(speed_figure(prefill, decode, (WIDTH, HEIGHT), 1, 2), "speed")
    alt = f"Prefill and decode speed against context depth of {names}"
    return Picture(svg, alt, "Median over repetitions; the tables name the band.", file)


def score_picture(
    groups: Mapping[str, Sequence[Interval | None]], names: Sequence[str], guesses: Mapping[str, float]
) -> Picture:
    """Draw scores with their confidence intervals, as dots with horizontal lines.

    groups    by name of a group of questions, the score of each run, 0 to 1; None if the run has none
    names     names of the runs
    guesses   by name of a group, the score that guessing would reach, drawn as a vertical line
    """
    several, first = len(names) > 1, next(iter(groups))
    with _style():
        height = 64 + LINE * sum(map(len, groups.values())) + GAP * len(groups)
        figure, (axes,) = new_figure((WIDTH, height), 1, 1)
        y, ticks = 0.0, []
        for name, scores in groups.items():
            y -= GAP
            ticks.append(y - LINE * (len(scores) - 1) / 2)
            if name in guesses:
                axes.vlines(
                    100 * guesses[name], y - LINE * (len(scores) - 0.5), y + LINE / 2, colors=INK, linewidth=1.6
                )
            for index, (run, score) in enumerate(zip(names, scores, strict=True)):
                colour = SERIES[index % len(SERIES)]
                if score is not None:
                    axes.plot([100 * score.low, 100 * score.high], [y, y], color=colour, linewidth=2.2,
                              solid_capstyle="butt")  # fmt: skip
                    axes.plot([100 * score.estimate], [y], SHAPES[index % len(SHAPES)], color=colour, markersize=6)
                    named = several and name == first  # a run is named only once, next to its first score
                    axes.annotate(f"{100 * score.estimate:.1f}" + (f"  {shorten(run, 30)}" if named else ""), (100, y),
                                  (8, 0), textcoords="offset points", va="center", color=colour if several else INK,
                                  fontweight="bold" if named else "normal", annotation_clip=False)  # fmt: skip
                y -= LINE
        axes.set_ylim(y, 0)
        axes.set_yticks(ticks, [shorten(name, 28) for name in groups], color=INK)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0, colors=INK)
        axes.tick_params(axis="x", pad=9)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        heading(axes, "right answers, with 95 % intervals")
        svg = _inline(figure, "scores")
    shares = (f"{run} {100 * score.estimate:.1f} %" for run, score in zip(names, groups[first], strict=True) if score)
    caption = (
        "Share of questions answered correctly, with 95 % intervals. The epochs of a question count as one; failed "
        "requests are left out."
    )
    if guesses:
        caption += " Vertical strokes: the score of guessing."
    return Picture(svg, f"Right answers with 95 % intervals by source; over all: {'; '.join(shares)}", caption)


def finite(value: Any) -> bool:
    """Return whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context(
        {
            "font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK, "svg.fonttype": "none",
            "svg.hashsalt": "ds4-report", "axes.unicode_minus": True,
        }
    )  # fmt: skip


def _inline(figure: Figure, prefix: str) -> str:
    """Return the figure as an <svg> element to be part of an HTML page.

    XML prologue and metadata are removed, colours replaced by variables of the style sheet, and ids begin with
    ``prefix``, so that they are unique in the page.
    """
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
