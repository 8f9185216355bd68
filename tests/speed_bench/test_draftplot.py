"""The plot of drafts: its curves are the model's, and cross the line of plain decode where they break even."""

from __future__ import annotations

import pytest

from ds4ref.drafts.breakeven import break_even, speed_up
from ds4ref.errors import UsageError
from ds4ref.speed_bench.draftplot import Measured, draw, plot_drafts

COSTS = [0.0, 1.0, 1.25, 1.5, 1.75]


def test_curves_dots_and_points():
    axes = draw(COSTS, [Measured(2, 0.7, 1.3)], "drafts", (960, 540)).axes[0]
    curves = {line.get_label(): line for line in axes.lines if str(line.get_label()).startswith("depth")}
    assert list(curves) == ["depth 1", "depth 2", "depth 3"]  # no pass of more than 4 rows is known
    for depth in (1, 2, 3):
        rates, speeds = curves[f"depth {depth}"].get_data()
        assert list(speeds) == pytest.approx([speed_up(rate, depth, COSTS) for rate in rates])
    dots = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert dots == pytest.approx([break_even(depth, COSTS) for depth in (1, 2, 3)])
    assert [list(map(tuple, points.get_offsets())) for points in axes.collections] == [[], [(0.7, 1.3)], []]


def test_a_depth_that_never_pays_has_no_dot():
    axes = draw([0.0, 1.0, 2.5], [], "drafts", (960, 540)).axes[0]
    assert [line for line in axes.lines if line.get_marker() == "o"] == []


def test_the_same_data_gives_the_same_file(tmp_path):
    files = [plot_drafts(COSTS, tmp_path / name) for name in ("a.svg", "b.svg")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(UsageError, match="must end in"):
        plot_drafts(COSTS, tmp_path / "a.txt")
