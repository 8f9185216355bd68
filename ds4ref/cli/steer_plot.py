"""The curve of ``ds4 steer measure``: effect and cost over scales, and where one exceeds the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..console.common import atomic_output, check_output
from ..console.curves import SERIES, heading, line, new_figure
from ..console.plots import GRID, INK
from ..errors import UsageError

if TYPE_CHECKING:
    from ..steering.measure import Result

SUFFIXES = ".svg", ".png", ".pdf"


def check(path: str) -> None:
    """Raise UsageError for a file that no plot can be written to."""
    if Path(path).suffix not in SUFFIXES:
        raise UsageError(f"--plot: {path} does not end in {', '.join(SUFFIXES)}")
    check_output(path)


def plot(result: Result, metric: str, path: str) -> None:
    """Draw the size of the effect and the cost at every scale, 0 among them, with their intervals."""
    import matplotlib

    with matplotlib.rc_context({"font.size": 11, "font.family": "sans-serif", "axes.edgecolor": INK}):
        figure, (axes,) = new_figure((560, 360), 1, 1)
        points = sorted(result.points, key=lambda p: p.scale)
        scales = [0.0, *(p.scale for p in points)]
        order = sorted(range(len(scales)), key=scales.__getitem__)
        for index, (name, values) in enumerate(
            (
                (
                    f"effect on prompts ({metric}), either way",
                    [p.effect.scaled(-1 if p.effect.estimate < 0 else 1) for p in points],
                ),
                ("cost, a token of the text", [p.cost for p in points]),
            )
        ):
            curve = [0.0, *(v.estimate for v in values)]
            line(axes, [scales[i] for i in order], [curve[i] for i in order], index)
            axes.plot([], [], color=SERIES[index], label=name)
            for scale, v in zip(scales[1:], values, strict=True):
                if v.known:
                    axes.plot([scale, scale], sorted((v.low, v.high)), color=SERIES[index], linewidth=1)
        for at in (result.crossing(1), result.crossing(-1)):
            if at is not None:
                axes.axvline(at, color=INK, linewidth=1, linestyle=":")
        heading(axes, "nats: steering's effect and its cost")
        axes.set_xlabel("scale (dotted: the cost exceeds the effect)", color=INK)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        with atomic_output(path) as out:
            figure.savefig(out, format=Path(path).suffix[1:])
