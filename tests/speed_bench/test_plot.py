"""The picture shows the data, in the promised form, and says why when it cannot."""

import struct
import xml.etree.ElementTree as ET

import pytest

from ds4ref.console.plots import tick
from ds4ref.errors import DataError, UsageError
from ds4ref.speed_bench.plot import DECODE, PREFILL, check_suffix, default_output, default_title, draw, plot
from ds4ref.speed_bench.results import Point, read_points

from .test_results import PUBLISHED, as_ds4


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "m2_ultra.csv"
    path.write_text(as_ds4())
    return path


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("m3_max.csv", "M3 Max t/s"),
        ("dir/m2-ultra.csv", "M2 Ultra t/s"),
        ("gb10 spark.csv", "Gb10 Spark t/s"),
        ("m4x_max.csv", "M4x Max t/s"),
    ],
)
def test_titles(name, title):
    assert default_title(name) == title


def test_title_of_several():
    assert default_title("m3_max.csv", "m4_max.csv") == "M3 Max, M4 Max t/s"


def test_default_output():
    assert str(default_output("dir/m3_max.csv")) == "dir/m3_max_ts.svg"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (2.5, "2.5"), (999, "999"), (1000, "1k"), (2500, "2.5k"), (65536, "65.536k")]
)
def test_ticks(value, text):
    assert tick(value) == text


def test_curves_hold_the_data(csv):
    figure = draw([("m2_ultra", read_points(csv))], "title", (960, 540))
    left, right = figure.axes
    for axes, column, colour in ((left, 1, PREFILL), (right, 2, DECODE)):
        (line,) = axes.get_lines()
        assert list(line.get_xdata()) == [row[0] for row in PUBLISHED]
        assert list(line.get_ydata()) == [row[column] for row in PUBLISHED]
        assert line.get_color() == colour
        low, high = axes.get_ylim()
        assert low == 0 and high > max(row[column] for row in PUBLISHED)
    assert left.get_xlim()[0] == 0


def test_nothing_overlaps(csv):
    """Text stays apart from other text, and labels off the other curve, for near and crossing curves alike."""
    points = read_points(csv)
    crossing = [Point(p.ctx, p.prefill_tps * (0.6 + i / 10), p.gen_tps) for i, p in enumerate(points)]
    for curve in (points, crossing):
        figure = draw([("m2_ultra", curve)], "title", (960, 540))
        figure.draw_without_rendering()
        left, right = figure.axes
        boxes = [text.get_window_extent() for text in (*left.texts, *right.texts)]
        assert len(boxes) == 2 and not boxes[0].overlaps(boxes[1])
        texts = [t for axes in figure.axes for t in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label)]
        shown = [text.get_window_extent() for text in texts if text.get_text()]
        for index, box in enumerate(shown):
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            assert not any(box.overlaps(other) for other in shown[:index])


def test_svg(csv):
    (file,) = plot([csv])
    assert file.name == "m2_ultra_ts.svg"
    root = ET.parse(file).getroot()
    assert root.tag.endswith("svg")
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    for wanted in ("M2 Ultra t/s", "context (tokens)", "prefill (tokens/s)", "decode (tokens/s)", "prefill", "decode"):
        assert wanted in texts
    assert "60k" in texts
    links = [value for element in root.iter() for name, value in element.attrib.items() if name.endswith("href")]
    assert all(link.startswith("#") for link in links), "one self-contained file"


def test_the_same_data_give_the_same_bytes(csv, tmp_path):
    for suffix in ("svg", "png", "pdf"):
        files = plot([csv], [tmp_path / f"a.{suffix}"]) + plot([csv], [tmp_path / f"b.{suffix}"])
        assert files[0].read_bytes() == files[1].read_bytes()


def test_png_size(csv, tmp_path):
    plot([csv], [tmp_path / "a.png"], size=(400, 300))
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (800, 600)


def test_several_files_are_told_apart(csv, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text(as_ds4([(n, p / 2, g / 2, b) for n, p, g, b in PUBLISHED]))
    figure = draw([("one", read_points(csv)), ("two", read_points(other))], "t", (960, 540))
    left, right = figure.axes
    assert {line.get_linestyle() for line in left.get_lines()} == {"-", "--"}
    assert [t.get_text() for t in (*left.texts, *right.texts)] == [
        "prefill, one",
        "prefill, two",
        "decode, one",
        "decode, two",
    ]


def test_a_name_stands_at_the_middle_of_its_curve_away_from_the_other():
    points = [Point(ctx, 300.0, 20.0) for ctx in (1000, 2000, 4000, 8000)]
    figure = draw([("x", points)], "t", (960, 540))
    (prefill,), (decode,) = (axes.texts for axes in figure.axes)
    assert prefill.xy == (4000, 300) and decode.xy == (4000, 20)
    assert (prefill.get_va(), decode.get_va()) == ("top", "bottom"), "decode is drawn higher: its axis has less room"


def test_flat_zero_curves_can_be_drawn():
    figure = draw([("x", [Point(1, 0.0, 0.0), Point(2, 0.0, 0.0)])], "t", (300, 200))
    assert figure.axes[0].get_ylim() == (0, 1)


def test_repetitions_are_a_band():
    points = [Point(n, 300.0, 20.0, (290.0, 310.0), (19.0, 22.0)) for n in (2048, 4096)]
    left, right = draw([("a", points)], "title", (960, 540)).axes
    for axes, low, high in ((left, 290, 310), (right, 19, 22)):
        (band,) = axes.collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (low, high)
    assert not draw([("a", [Point(n, 300.0, 20.0) for n in (2048, 4096)])], "t", (960, 540)).axes[0].collections


def test_bad_outputs(csv, tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.svg, \.png, \.pdf"):
        check_suffix("plot.jpg")
    with pytest.raises(UsageError):
        plot([csv], [tmp_path / "a.svg", tmp_path / "a.bmp"])
    with pytest.raises(DataError, match="cannot write"):
        plot([csv], [tmp_path / "absent" / "a.svg"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m2_ultra.csv"]
