"""Plots of graded runs: scores with their intervals by source, over time, and against speed.

As in ``figures``: no frame, direct labels, colours and shapes that colour-blind readers can tell apart. Scores by
source are on a scale from 0 to 100 %, so that small differences look small.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ds4ref.console.curves import SERIES, heading, new_figure, shorten
from ds4ref.console.plots import GRID, INK
from ds4ref.runs.provenance import FORM

from .figures import Picture, _picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHAPES = ("o", "s", "D", "^", "v", "P")
LINE, GAP = 19, 22
"""Vertical distances in points: between runs, and between groups."""


class ScoreInterval(NamedTuple):
    """A score with the ends of its confidence interval, in per cent."""

    value: float
    low: float
    high: float


def score_picture(
    groups: Sequence[tuple[str, Sequence[tuple[str, ScoreInterval | None]]]], guesses: Mapping[str, float] | None = None
) -> Picture:
    """Draw scores from groups of questions (group, [(run, dot)]): a dot with a whisker for each run in each group.

    All groups have the same runs in the same order. ``guesses``: score of guessing in per cent by group, a stroke.
    """

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        wide, several = columns > 1, len(groups[0][1]) > 1
        lines = sum(len(dots) for _, dots in groups)
        height = 64 + LINE * lines + GAP * len(groups) * (1 if wide else 2)
        height += 0 if wide or not several else LINE * len(groups[0][1])
        figure, (axes,) = new_figure((size[0], height), 1, 1)
        y, ticks = 0.0, []
        for name, dots in groups:
            y -= GAP * (1 if wide else 2)
            ticks.append((y - LINE * (len(dots) - 1) / 2, name))
            if not wide:
                axes.annotate(shorten(name, 40), (0, y), (0, 10), textcoords="offset points", color=INK,
                              fontweight="bold" if name == groups[0][0] else "normal")  # fmt: skip
            if guesses and name in guesses:
                low = y - LINE * (len(dots) - 0.5)
                axes.vlines(guesses[name], low, y + LINE / 2, colors=INK, linewidth=1.6)
            for index, (run, dot) in enumerate(dots):
                if dot is not None:
                    _whisker(axes, y, dot, index)
                    # a run is named once: beside its score over all questions, or in the legend if narrow
                    named = several and name == groups[0][0]
                    text = f"{dot.value:.1f}" + (f"  {shorten(run, 30)}" if named and wide else "")
                    colour = SERIES[index % len(SERIES)] if several else INK
                    axes.annotate(text, (100, y), (8, 0), textcoords="offset points", va="center", color=colour,
                                  fontweight="bold" if named else "normal", annotation_clip=False)  # fmt: skip
                y -= LINE
        axes.set_ylim(y, 0)
        axes.set_yticks([at for at, _ in ticks] if wide else [])
        if wide:
            axes.set_yticklabels([shorten(name, 28) for _, name in ticks], color=INK)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
        _bare(axes, "x")
        heading(axes, "right answers, with 95 % intervals")
        if several and not wide:
            _legend(figure, [run for run, _ in groups[0][1]])
        return figure

    first = "; ".join(f"{run} {dot.value:.1f} %" for run, dot in groups[0][1] if dot is not None)
    return _picture(draw, f"Right answers with 95 % intervals by source; over all: {first}", "scores")


def depth_picture(runs: Sequence[tuple[str, Sequence[tuple[int, ScoreInterval, float | None]]]]) -> Picture:
    """Draw scores against the depth of what is asked for, from runs (run, [(depth, dot, score of guessing)]).

    Scores of guessing are shares; the depth axis is logarithmic.
    """
    depths = sorted({depth for _, points in runs for depth, _, _ in points})

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        figure, (axes,) = new_figure((size[0], 300), 1, 1)
        axes.set_xscale("log", base=2)
        axes.set_xlim(depths[0] / 1.3, depths[-1] * 1.3)
        axes.set_ylim(0, 100)
        _bare(axes, "y")
        axes.set_xticks(depths, [f"{depth:,}" for depth in depths])
        axes.set_xlabel("tokens back", color=INK)
        for index, (_, points) in enumerate(runs):
            colour, xs = SERIES[index % len(SERIES)], [depth for depth, _, _ in points]
            axes.plot(xs, [dot.value for _, dot, _ in points], SHAPES[index % len(SHAPES)] + "-", color=colour,
                      markersize=6, linewidth=1.2)  # fmt: skip
            for depth, dot, _ in points:
                _upright(axes, depth, dot, colour)
        guesses = {depth: 100 * guess for _, points in runs for depth, _, guess in points if guess is not None}
        if guesses:
            xs = sorted(guesses)
            axes.plot(xs, [guesses[x] for x in xs], "--", color=INK, linewidth=1.0)
            axes.annotate("guessing", (xs[0], guesses[xs[0]]), (0, 4), textcoords="offset points", color=INK)
        heading(axes, "right answers by depth, %")
        if len(runs) > 1:
            _legend(figure, [run for run, _ in runs])
        return figure

    told = "; ".join(f"{depth:,} tokens back {dot.value:.0f} %" for depth, dot, _ in next(p for _, p in runs if p))
    return _picture(draw, f"Right answers by the depth of what is asked for: {told}", "depth")


def time_picture(points: Sequence[tuple[str, str, ScoreInterval, bool]]) -> Picture:
    """Draw scores over time from points (series, time, dot, whether the run is in the report).

    Runs of one series are joined by a line; those not in the report are hollow.
    """

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        figure, (axes,) = new_figure((size[0], 300), 1, 1)
        names = list(dict.fromkeys(series for series, *_ in points))
        days = {at: _days(at) for _, at, _, _ in points}
        first = min(days.values())
        ends = []
        for index, name in enumerate(names):
            runs = [(days[at] - first, dot, highlighted) for series, at, dot, highlighted in points if series == name]
            colour, shape = SERIES[index % len(SERIES)], SHAPES[index % len(SHAPES)]
            times, values = [x for x, _, _ in runs], [dot.value for _, dot, _ in runs]
            axes.plot(times, values, color=colour, linewidth=1.2, alpha=0.6)
            for x, dot, highlighted in runs:
                _upright(axes, x, dot, colour)
                axes.plot([x], [dot.value], shape, color=colour, markersize=7, markeredgewidth=1.6,
                          markerfacecolor=colour if highlighted else "#fdfdfc")  # fmt: skip
            ends.append((name, runs[-1][0], runs[-1][1].value, colour))
        span = max(days.values()) - first
        axes.set_xlim(-0.04 * span, 1.04 * span)
        _dates(axes, first, span, 5 if columns > 1 else 3)
        _scores_axis(axes, [dot for _, _, dot, _ in points])
        heading(axes, "score over time, %")
        if len(names) > 1:
            _names(axes, ends, 30 if columns > 1 else 14)
        return figure

    latest = points[-1]
    text = f"Score over time, {len(points)} runs of one pack; the last one {latest[2].value:.1f} %"
    return _picture(draw, text, "time")


def speed_score_picture(points: Sequence[tuple[str, float, ScoreInterval]]) -> Picture:
    """Draw scores against tokens per second from points (run, tokens/s, dot)."""

    def draw(size: tuple[int, int], rows: int, columns: int) -> Figure:
        figure, (axes,) = new_figure((size[0], 320), 1, 1)
        fastest = max(speed for _, speed, _ in points)
        axes.set_xlim(0, 1.08 * fastest)
        _scores_axis(axes, [dot for _, _, dot in points])
        for index, (_, speed, dot) in enumerate(points):
            colour = SERIES[index % len(SERIES)]
            _upright(axes, speed, dot, colour)
            axes.plot([speed], [dot.value], SHAPES[index % len(SHAPES)], color=colour, markersize=7)
        ends = [(name, speed, dot.value, SERIES[i % len(SERIES)]) for i, (name, speed, dot) in enumerate(points)]
        _names(axes, ends, 30 if columns > 1 else 14)
        axes.set_xlabel("tokens/s of one answer", color=INK)
        heading(axes, "score against speed, %")
        return figure

    scores = "; ".join(f"{name}: {dot.value:.1f} % at {speed:.3g} tokens/s" for name, speed, dot in points)
    return _picture(draw, f"Score against speed. {scores}", "speedscore")


# --- inside


def _whisker(axes: Axes, y: float, dot: ScoreInterval, index: int) -> None:
    colour = SERIES[index % len(SERIES)]
    axes.plot([dot.low, dot.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
    axes.plot([dot.value], [y], SHAPES[index % len(SHAPES)], color=colour, markersize=6)


def _legend(figure: Figure, names: Sequence[str]) -> None:
    """Put the names above the figure, a line each."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=SERIES[i % len(SERIES)], marker=SHAPES[i % len(SHAPES)], linewidth=2.2)
        for i in range(len(names))
    ]
    texts = figure.legend(
        handles, [shorten(name, 44) for name in names], loc="outside upper left", frameon=False, borderpad=0
    ).get_texts()  # fmt: skip
    for index, text in enumerate(texts):
        text.set_color(SERIES[index % len(SERIES)])


def _upright(axes: Axes, x: float, dot: ScoreInterval, colour: str) -> None:
    axes.plot([x, x], [dot.low, dot.high], color=colour, linewidth=1.6, solid_capstyle="butt")


def _names(axes: Axes, ends: Sequence[tuple[str, float, float, str]], most: int) -> None:
    """Label each point (name, x, y, colour) right of the axes, in order of height and without overlaps."""
    low, high = axes.get_ylim()
    least, right = 0.075 * (high - low), axes.get_xlim()[1]
    below, at = -math.inf, {}
    for index in sorted(range(len(ends)), key=lambda i: ends[i][2]):
        at[index] = below = max(ends[index][2], below + least)
    over = max(0.0, below - high)
    for index, (name, x, y, colour) in enumerate(ends):
        axes.plot([x, right], [y, at[index] - over], color=colour, linewidth=0.6, alpha=0.5, clip_on=False)
        axes.annotate(shorten(name, most), (right, at[index] - over), (5, 0), textcoords="offset points", va="center",
                      color=colour, fontweight="bold", annotation_clip=False)  # fmt: skip


def _scores_axis(axes: Axes, dots: Sequence[ScoreInterval]) -> None:
    """Set the y axis to the tens around all intervals, within 0 to 100."""
    low = max(0.0, 10 * math.floor((min(dot.low for dot in dots) - 2) / 10))
    high = min(100.0, 10 * math.ceil((max(dot.high for dot in dots) + 2) / 10))
    axes.set_ylim(low, high)
    _bare(axes, "y")


def _bare(axes: Axes, grid: str) -> None:
    axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0, colors=INK)
    axes.tick_params(axis="x", pad=9)
    axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def _dates(axes: Axes, first: float, span: float, count: int) -> None:
    """Label the x axis with days, or with minutes if the span is short."""
    form = "%Y-%m-%d" if span >= count - 1 else "%m-%d %H:%M"
    places = [span * i / (count - 1) for i in range(count)]
    axes.set_xticks(places, [time.strftime(form, time.gmtime(86400 * (first + at))) for at in places])


def _days(created: str) -> float:
    """Convert a time of the run store to days; 0 if it is malformed."""
    try:
        return calendar.timegm(time.strptime(created, FORM)) / 86400
    except ValueError:
        return 0.0
