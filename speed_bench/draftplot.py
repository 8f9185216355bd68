"""Plot of what drafts give: speed-up against acceptance by depth, and where they break even.

Curves are what bytes and operations allow (``ds4ref.drafts.breakeven``), a curve each depth; below the line at 1 a
depth costs more than it gives, and a dot marks where its curve crosses it. Measured points, if given, are drawn in the
colour of their depth.

    ds4-bench drafts -o drafts.svg      Flash q2 after 8,192 tokens, bytes alone
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ds4ref.console.curves import SERIES, heading, new_figure
from ds4ref.console.flags import add
from ds4ref.console.options import Parser, integer, parsed
from ds4ref.console.plots import GRID, INK, STYLES
from ds4ref.console.tool import parser, required
from ds4ref.drafts.breakeven import break_even, rows_costs, speed_up

from .plot import check_suffix, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (1, 2, 3, 5, 7)


class Measured(NamedTuple):
    """A measured speed-up at a depth and acceptance."""

    depth: int
    acceptance: float
    speed_up: float


def plot_drafts(
    costs: Sequence[float],
    output: str | os.PathLike[str],
    measured: Sequence[Measured] = (),
    title: str = "Drafts: speed-up against acceptance",
    size: tuple[int, int] = (960, 540),
) -> Path:
    """Draw the speed-up that passes of these relative ``costs`` (by rows) give into ``output``; return the file.

    ``size`` in pixels. Raises UsageError for an output of unknown suffix, DataError if it cannot be written.
    """
    check_suffix(output)
    save(draw(costs, measured, title, size), Path(output))
    return Path(output)


def draw(costs: Sequence[float], measured: Sequence[Measured], title: str, size: tuple[int, int]) -> Figure:
    """Return the figure; ``size`` in pixels."""
    import matplotlib

    depths = [depth for depth in DEPTHS if depth + 1 < len(costs)]
    with matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK}):
        figure, (axes,) = new_figure((size[0] * 72 / 96, size[1] * 72 / 96), 1, 1)
        heading(axes, title)
        rates = np.linspace(0, 1, 101)
        axes.axhline(1.0, color=INK, linewidth=1.2)
        axes.annotate("plain decode", (0.005, 1.0), xytext=(0, 4), textcoords="offset points", color=INK)
        for index, depth in enumerate(depths):
            colour = SERIES[index % len(SERIES)]
            speeds = [speed_up(rate, depth, costs) for rate in rates]
            axes.plot(rates, speeds, color=colour, linewidth=2.2, linestyle=STYLES[index % len(STYLES)],
                      label=f"depth {depth}")  # fmt: skip
            axes.annotate(f"depth {depth}", (1.0, speeds[-1]), xytext=(6, 0), textcoords="offset points", va="center",
                          color=colour, fontweight="bold", annotation_clip=False)  # fmt: skip
            if (even := break_even(depth, costs)) is not None:
                axes.plot([even], [1.0], marker="o", markersize=6, color=colour, zorder=3)
            points = [point for point in measured if point.depth == depth]
            axes.scatter([p.acceptance for p in points], [p.speed_up for p in points], s=50, color=colour,
                         edgecolors=INK, zorder=4)  # fmt: skip
        axes.set_xlim(0, 1)
        axes.set_ylim(0, None)
        axes.set_xlabel("acceptance of a drafted token", color=INK)
        axes.set_ylabel("tokens/s over plain decode", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, length=0)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
    return figure


def drafts_parser() -> Parser:
    """Return the parser of ``ds4-bench drafts``."""
    made = parser(
        "ds4-bench",
        "Draw the speed-up of guessed tokens against the share that is right, as far as bytes decide, with the "
        "break-even line: DeepSeek V4 Flash.",
        "drafts -o FILE [options]",
        "drafts -o drafts.svg --recipe q4",
    )
    add(made, "--output", help=".svg, .png or .pdf")
    add(made, "--recipe", default="q2", help="formats of the experts: q2, q4, mixed (q2)")
    made.add_argument("--context", metavar="N", type=integer(), default=8192, help="tokens before (8192)")
    return made


def drafts(argv: Sequence[str]) -> int:
    """Run ``ds4-bench drafts``; return the exit code."""
    args = parsed(drafts_parser(), argv)
    if args is None:
        return 0
    required(args, "output")
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.archs.deepseek4.shape import FLASH

    costs = rows_costs(Costs.of_recipe(FLASH, args.recipe), args.context)
    plot_drafts(costs, args.output, title=f"Flash {args.recipe} after {args.context:,} tokens, bytes alone: speed-up")
    return 0
