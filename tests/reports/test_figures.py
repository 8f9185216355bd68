"""The plots of a report show the numbers they were given, under the right names, and names do not cover each other."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from matplotlib.colors import to_hex

from ds4ref.reports import figures
from ds4ref.reports.figures import SERIES, Bar, Curve
from tests.marking import sampled


@pytest.fixture
def drawn(monkeypatch):
    """The wide and the narrow figure of the last picture, laid out."""
    made: list = []

    def picture(draw, alt, name):
        with figures._style():
            made[:] = [draw(figures.WIDE, 1, 2), draw(figures.NARROW, 2, 1)]
            for figure in made:
                figure.draw_without_rendering()

    monkeypatch.setattr(figures, "_picture", picture)
    return made


def curve(name: str, *values: float, spread: float = 0.0, step: int = 1000) -> Curve:
    return Curve(name, tuple((step * (i + 1), v, v - spread, v + spread) for i, v in enumerate(values)))


def apart(texts) -> bool:
    boxes = [text.get_window_extent() for text in texts]
    return not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_speeds(drawn):
    prefill = [curve("one", 300, 280, 260, spread=9), curve("two", 200, 190, 180)]
    decode = [curve("two", 20, 19, 18), curve("three", 9, 8, 7)]
    figures.speed_picture(prefill, decode)
    for figure in drawn:
        colours = {}
        for axes, curves, title in zip(figure.axes, (prefill, decode), ("prefill", "decode"), strict=True):
            assert title in axes.get_title(loc="left") and axes.get_ylim()[0] == axes.get_xlim()[0] == 0
            assert axes.get_ylim()[1] > max(p[3] for c in curves for p in c.points) and axes.get_xlim()[1] >= 3000
            labels = {text.get_text(): to_hex(text.get_color()) for text in axes.texts}
            for shown, line in zip(curves, axes.get_lines(), strict=True):
                assert [*zip(line.get_xdata(), line.get_ydata(), strict=True)] == [p[:2] for p in shown.points]
                assert labels[shown.name] == to_hex(line.get_color()), "a name has the colour of its curve"
                assert colours.setdefault(shown.name, labels[shown.name]) == labels[shown.name]
            assert apart(axes.texts)
        assert len(set(colours.values())) == 3
        (band,) = figure.axes[0].collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (251, 309) and not figure.axes[1].collections


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "3"])
def test_what_is_no_number_is_not_drawn(value):
    assert not figures.finite(value) and figures.finite(3) and figures.finite(-0.5)


def test_one_curve_and_one_panel(drawn):
    figures.speed_picture([], [curve("one", 3, 2)])
    for figure in drawn:
        (axes,) = figure.axes
        assert "decode" in axes.get_title(loc="left") and not axes.texts


@pytest.mark.parametrize(
    "shares",
    sampled([((1.0, 1.01, 1.02, 1.03),), ((1.0, 0.9, 0.8, 0.7),), ((1.0, 1.0, 0.2, 0.21),)], 3),
)
def test_names_of_near_curves_do_not_collide(drawn, shares):
    """Four curves that nearly lie on each other: every name is readable, and its own."""
    curves = [
        curve(f"run {i} of the evening", *(share * (40 - d / 4) for d in range(32)), step=2048)
        for i, share in enumerate(shares)
    ]
    figures.speed_picture(curves, curves)
    for figure in drawn:
        for axes in figure.axes:
            assert len(axes.texts) == 4 and apart(axes.texts)


def test_ratios(drawn):
    curves = [("prefill", [(1000, 1.1), (2000, 1.2)]), ("decode", [(1000, 0.9), (2000, 1.19)])]
    figures.ratio_picture("A and B", curves, 2.0)
    for figure in drawn:
        (axes,) = figure.axes
        lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 2 and list(line.get_xdata()) != [0, 1]]
        assert [list(line.get_ydata()) for line in lines] == [pytest.approx([10, 20]), pytest.approx([-10, 19])]
        low, high = axes.get_ylim()
        assert "change of speed, %" in axes.get_title(loc="left")
        assert low <= -10 and high >= 20 and axes.get_xlim()[1] > 2000
        assert [t.get_text() for t in axes.texts] == ["prefill", "decode"] and apart(axes.texts)
        assert [t.get_color() for t in axes.texts] == [line.get_color() for line in lines] == list(SERIES[:2])
        (margin,) = axes.patches
        assert (margin.get_extents().y0, margin.get_extents().y1) == pytest.approx(
            tuple(axes.transData.transform([(0, -2), (0, 2)])[:, 1])
        )


def test_a_ratio_within_its_margin_is_not_blown_up(drawn):
    figures.ratio_picture("A and B", [("decode", [(1000, 1.001), (2000, 0.999)])], 2.0)
    low, high = drawn[0].axes[0].get_ylim()
    assert low <= -4 and high >= 4


def test_bars_are_shares_of_the_bound(drawn):
    bars = [Bar("decode at 2k", 0.25, "bytes"), Bar("prefill at 2k", 0.5, "arithmetic"), Bar("decode at 8k", 1.25, "?")]
    figures.roofline_picture(bars)
    for figure in drawn:
        (axes,) = figure.axes
        widths = {round(b.get_y() + b.get_height() / 2): b.get_width() for b in axes.patches}
        assert [widths[y] for y in (2, 1, 0)] == [0.25, 0.5, 1.25], "first on top"
        texts = [t.get_text() for t in axes.texts]
        assert ["25%" in texts[0], "50%" in texts[1], "125%" in texts[2]] == [True] * 3 and apart(axes.texts)
        assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] >= 1.25
    assert [t.get_text() for t in drawn[0].axes[0].get_yticklabels()] == [bar.name for bar in reversed(bars)]
    colours = [to_hex(b.get_facecolor()) for b in drawn[0].axes[0].patches]
    assert colours[0] == colours[2] != colours[1], "decode and prefill are told apart"
