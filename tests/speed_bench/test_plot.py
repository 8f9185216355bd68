"""The picture shows the data, in the promised form, and says why when it cannot."""

import xml.etree.ElementTree as ET

import pytest
from matplotlib.colors import to_hex

from ds4ref.console.curves import SERIES, logarithmic
from ds4ref.console.plots import tick
from ds4ref.errors import DataError, UsageError
from ds4ref.speed_bench.plot import default_title, draw, draw_load, levels, plot, read_curve

from ..reports.published import ROWS, as_ds4


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "m2_ultra.csv"
    path.write_text(as_ds4())
    return path


@pytest.mark.parametrize("names, title", [
    (["m3_max"], "M3 Max t/s"), (["dir/m2-ultra"], "M2 Ultra t/s"), (["gb10 spark"], "GB10 Spark t/s"),
    (["gb10"], "DGX Spark GB10 t/s"), (["rtx_pro_6000"], "RTX PRO 6000 t/s"), (["epyc_h200-q4"], "Epyc H200 Q4 t/s"),
    (["run2_nightly"], "Run2 Nightly t/s"), (["m4x_max"], "M4x Max t/s"), (["m3_max", "m4_max"], "M3 Max, M4 Max t/s"),
    ([f"machine_{n}" for n in range(9)], "Machine 0, Machine 1, Machine 2 and 6 more t/s"),
])  # fmt: skip
def test_titles(names, title):
    assert default_title([f"{name}.csv" for name in names]) == title


def test_ticks():
    assert [tick(value) for value in (0, 2.5, 999, 1000, 2500, 65536)] == ["0", "2.5", "999", "1k", "2.5k", "65.536k"]


def rows(*depths, prefill=300.0, gen=20.0, **more):
    return [{"ctx_tokens": n, "prefill_tps": prefill, "gen_tps": gen, **more} for n in depths]


def test_curves_hold_the_data(csv):
    figure = draw([("m2_ultra", read_curve(csv))], "title")
    left, right = figure.axes
    for axes, column in ((left, 1), (right, 2)):
        (line,) = axes.get_lines()
        assert list(line.get_xdata()) == [row[0] for row in ROWS]
        assert list(line.get_ydata()) == [row[column] for row in ROWS]
        assert line.get_color() == SERIES[0] and not axes.texts, "a single machine is in the title"
        low, high = axes.get_ylim()
        assert low == 0 and high > max(row[column] for row in ROWS)


@pytest.mark.parametrize("count", [2, 6])
def test_every_machine_has_a_colour_and_a_name(count):
    curves = [(f"m{n}", rows(2048, 4096, prefill=100.0 + n)) for n in range(count)]
    figure = draw(curves, "t")
    figure.draw_without_rendering()
    for axes in figure.axes:
        colours = {text.get_text(): to_hex(text.get_color()) for text in axes.get_legend().get_texts()}
        assert colours == dict(zip((name for name, _ in curves), SERIES, strict=False))
        assert [line.get_color() for line in axes.get_lines()] == list(SERIES[:count])


def test_files_of_one_name_are_numbered(tmp_path):
    figure = draw([("M3", rows(1000, 2000))] * 3, "t")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["M3", "M3 (2)", "M3 (3)"]


@pytest.mark.parametrize("depths, log", [
    (range(2048, 65537, 2048), False), ([2048, 4096, 8192, 16384, 32768, 65536], True), ([64, 8192], True),
    ([1000, 2000, 4000, 8000], False), (range(512, 8193, 512), False), (range(256, 131073, 256), True), ([4096], False),
])  # fmt: skip
def test_depths_that_span_decades_are_on_a_logarithmic_axis(depths, log):
    """From two decades on, or from one where the depths are multiplied."""
    assert logarithmic(list(depths)) == log
    axes = draw([("x", rows(*depths))], "t").axes[0]
    assert axes.get_xscale() == ("log" if log else "linear") and ("logarithmic" in axes.get_xlabel()) == log
    assert axes.get_xlim()[0] < min(depths) and axes.get_xlim()[1] > max(depths)


def test_points_with_warnings_are_crosses(csv):
    text = as_ds4().splitlines()
    csv.write_text(
        "\n".join([text[0] + ",warnings", text[1] + ",count", text[2] + ",busy", *(f"{t}," for t in text[3:])])
    )
    figure = draw([("m2", read_curve(csv))], "t")
    crosses = [[list(found.get_offsets()[:, 0]) for found in axes.collections] for axes in figure.axes]
    assert crosses == [[[4096]], [[2048, 4096]]], "what a server miscounts is decode alone"
    assert "warnings: busy count" in figure._supxlabel.get_text()


def test_svg(csv):
    (file,) = plot([csv])
    assert file.name == "m2_ultra_ts.svg"
    root = ET.parse(file).getroot()
    assert root.tag.endswith("svg")
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    context = "context (tokens, k = 1024, logarithmic)"
    for wanted in ("M2 Ultra t/s", context, "prefill, tokens/s", "decode, tokens/s", "64k"):
        assert wanted in texts
    links = [value for element in root.iter() for name, value in element.attrib.items() if name.endswith("href")]
    assert all(link.startswith("#") for link in links), "one self-contained file"


@pytest.mark.thorough
def test_the_same_data_give_the_same_bytes(csv, tmp_path):
    for suffix in ("svg", "png", "pdf"):
        files = plot([csv], [tmp_path / f"a.{suffix}"]) + plot([csv], [tmp_path / f"b.{suffix}"])
        assert files[0].read_bytes() == files[1].read_bytes()


def test_flat_zero_curves_can_be_drawn():
    figure = draw([("x", rows(1, 2, prefill=0.0, gen=0.0))], "t")
    assert figure.axes[0].get_ylim() == (0, 1)


def test_repetitions_are_a_band():
    points = rows(2048, 4096, prefill_tps_low=290.0, prefill_tps_high=310.0, gen_tps_low=19.0, gen_tps_high=22.0)
    left, right = draw([("a", points)], "title").axes
    for axes, low, high in ((left, 290, 310), (right, 19, 22)):
        (band,) = axes.collections
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (low, high)
    assert not draw([("a", rows(2048, 4096))], "t").axes[0].collections


def test_bad_outputs(csv, tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.svg, \.png, \.pdf"):
        plot([csv], [tmp_path / "a.svg", tmp_path / "a.bmp"])
    with pytest.raises(DataError, match="cannot write"):
        plot([csv], [tmp_path / "absent" / "a.svg"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m2_ultra.csv"]


def load(*streams, **more):
    return [{"ctx_tokens": 64, "streams": n, "ttft_ms": 5.0 * n, "total_tps": 9.0, **more} for n in streams]


def test_a_load_has_curves_over_streams_or_rates_and_crosses():
    column, curves = levels([*load(4, 1, 2), *load(4, 1, ctx_tokens=96)])
    assert column == "streams" and list(curves) == ["64 tokens", "96 tokens"]
    assert levels([{"ctx_tokens": 64, "offered_rps": r, "ttft_ms": 5.0} for r in (2.0, 1.0)])[0] == "offered_rps"
    with pytest.raises(DataError, match="two levels"):
        levels(load(4))
    figure = draw_load([*load(1), *load(2, warnings="burst busy"), *load(4)], "t")
    crosses = [[list(found.get_offsets()[0]) for found in axes.collections] for axes in figure.axes]
    assert crosses == [[[2, 9.0]], [[2, 10.0]]] and "warnings: burst busy" in figure._supxlabel.get_text()
    assert [axes.get_xlabel() for axes in figure.axes] == ["streams at once"] * 2
    assert list(figure.axes[1].get_lines()[0].get_xdata()) == [1, 2, 4]
