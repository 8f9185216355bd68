"""The report: complete, self-contained, escaped, and honest about what is not known."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from ds4ref.errors import DataError
from ds4ref.reports import figures
from ds4ref.reports.build import _markdown_cell, assemble, build_report, series, speed_curves
from ds4ref.reports.cli import main
from ds4ref.reports.sources import read_csv
from ds4ref.reports.thresholds import Thresholds

from . import published, sample
from .simulate import arms, run

VOID = {"meta", "link", "br", "hr", "img"}


class Page(HTMLParser):
    """Every tag, attribute and text; complains about tags that do not close."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    files = build_report(sample.runs(), str(folder / "report.html")).files
    assert [file.name for file in files] == ["report.html", "report.md", "report.svg"]
    return folder, (folder / "report.html").read_text(), (folder / "report.md").read_text()


@pytest.fixture(scope="module")
def page(built):
    return Page(built[1])


@pytest.mark.thorough
def test_it_needs_nothing_from_anywhere(built, page):
    _, html, _ = built
    assert len(html.encode()) < 1_500_000
    assert not {"script", "iframe", "img", "object", "embed"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith("#") or target == "data:,", (tag, target)
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "http://" not in html and "https://" not in html


def test_ids_are_unique_and_references_resolve(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        if "xlink:href" in attributes:
            assert attributes["xlink:href"][1:] in ids
        clip = re.search(r"url\(#(.*)\)", attributes.get("clip-path", ""))
        assert clip is None or clip.group(1) in ids


def test_it_follows_light_dark_paper_and_width(built):
    html = built[1]
    for query in ("prefers-color-scheme: dark", "@media print", "max-width: 640px"):
        assert query in html
    drawings = "".join(re.findall(r"<svg.*?</svg>", html, re.S))
    assert drawings.count("<svg") == 2 * 6
    assert "var(--series-0)" in drawings and "var(--ink)" in drawings
    assert not re.search(r"#[0-9a-f]{6}\b", drawings.replace("#ffffff", "")), "every colour follows the page"


def test_every_cell_of_a_table_has_the_heading_of_its_column(built):
    """On narrow screens rows are cards, and nothing else says what a number is."""
    tables = re.findall(r"<table>.*?</table>", built[1], re.S)
    for table in tables:
        headings = re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table)
        for line in re.findall(r"<tr[^>]*>(<td.*?)</tr>", table, re.S):
            assert re.findall(r"<td data-label=\"([^\"]*)\"", line) == headings and line.count("<td") == len(headings)
    assert len(tables) > 5 and "td::before { content: attr(data-label)" in built[1]


def test_every_part_is_there(page):
    text = " ".join("".join(page.text).split())
    for part in ("Speed", "Comparison", "Roofline", "Vectors", "Graded runs", "Over time", "Against speed",
                 "Environment", "How to reproduce"):  # fmt: skip
        assert part in text
    assert "4 of 5 vectors pass" in text and "bound by bytes" in text
    assert re.search(r"prefill: int8 scores, .{5,20} is 0\.9\d+ x \(0\.9\d+ to 0\.9\d+\) as fast as main: slower", text)
    assert "ds4-bench --arm main --csv main.csv" in text
    assert "2026-11-21 (UTC)" in text and "24.0 GiB" in text and "clock governor" not in text, (
        "what is unknown is left out"
    )


def test_names_are_text_and_never_markup(built, page):
    _, html, markdown = built
    assert "<b>" not in html and "int8 scores, <b>&amp;" in "".join(page.text)
    assert not any("<b>" in line for line in markdown.splitlines() if not line.startswith("    "))
    assert "int8 scores, &lt;b>&amp;amp;" in markdown


@pytest.mark.parametrize(("text", "cell"), [
    ("a|b||c", r"a\|b\|\|c"), ("a\\|b", r"a\\\|b"), ("<b>&amp;</b>", "&lt;b>&amp;amp;&lt;/b>"), ("a\nb", "a b"),
])  # fmt: skip
def test_a_cell_stays_one_cell_of_its_table(text, cell):
    """A label with a bar would move every figure of its row into another column."""
    assert _markdown_cell(text) == cell


@pytest.mark.thorough
def test_the_twin_says_the_same(built):
    folder, html, markdown = built
    assert "![prefill and decode speed against context depth](report.svg)" in markdown
    assert (folder / "report.svg").read_text().lstrip().startswith("<?xml")
    for number in re.findall(r'<td class="main">([^<]*)</td>', html):
        assert number in markdown
    for line in markdown.splitlines():
        assert not line.startswith("|") or line.endswith("|")
    assert "\n\n\n\n" not in markdown


@pytest.mark.thorough
def test_the_same_runs_give_the_same_bytes(built, tmp_path):
    build_report(sample.runs(), str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").read_text() == built[1]


def test_one_csv_and_many(tmp_path):
    for name, data in (("m2_ultra", published.m2_ultra()), ("m4_max", published.m4_max())):
        (tmp_path / f"{name}.csv").write_bytes(data)
    one, two = (read_csv(tmp_path / f"{name}.csv") for name in ("m2_ultra", "m4_max"))
    assert list(assemble([one], None, Thresholds()).pictures) == ["speed"]
    both = assemble([one, two], "Two machines", Thresholds())
    assert both.title == "Two machines" and list(both.pictures) == ["speed", "ratio1"]
    assert "prefill 410.6 tokens/s at 2,048, 269.8 at 65,536 (-34 %)" in both.headline[0]


def test_bands_come_from_repetitions_or_from_the_csv():
    (a, _) = arms(1, reps=7, noise=0.05)
    (curve,) = speed_curves([a])["decode"]
    values = sorted(row["gen_tps"] for row in a.rows if row["ctx_tokens"] == 2048)
    depth, middle, low, high = curve.points[0]
    assert (depth, middle) == (2048, values[3]) and values[0] < low < middle < high < values[6]
    stated = [
        {"ctx_tokens": 1, "reps": 5, "prefill_tps": 5.0, "gen_tps": 2.0, "gen_tps_low": 1.5, "gen_tps_high": 2.25}
    ]
    twice = [{**stated[0], "rep": 0}, {**stated[0], "rep": 1, "gen_tps": 3.0}]
    assert speed_curves([run("x", twice)])["decode"][0].points == ((1, 2.5, 2.0, 3.0),), "not what a summary said"
    curves = speed_curves([run("x", stated)])
    assert curves["decode"][0].points == ((1, 2.0, 1.5, 2.25),)
    assert curves["prefill"][0].points == ((1, 5.0, 5.0, 5.0),)


@pytest.mark.thorough
def test_every_run_has_its_own_numbers_even_under_one_name():
    rows = [[{"ctx_tokens": depth, "prefill_tokens": 64, "gen_tokens": 4, "prefill_tps": speed - depth, "gen_tps": 9.5}
             for depth in (64, 128)] for speed in (300.0, 1400.0)]  # fmt: skip
    report = assemble([run("same", rows[0]), run("same", rows[1])], None, Thresholds())
    assert [[row["prefill"][0] for row in table["rows"]] for table in report.speeds] == [[236, 172], [1336, 1272]]
    assert "prefill 236.0 tokens/s at 64, 172.0 at 128 (-27 %); decode 9.50 tokens/s" in report.headline[0]
    assert "prefill 1,336 tokens/s at 64, 1,272 at 128 (-5 %)" in report.headline[1]
    assert [table["reps"] for table in report.speeds] == [1, 1]


def test_shares_of_the_bound_at_both_ends(monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "roofline_picture", lambda bars: shown.extend(bars))
    rows = [{"ctx_tokens": depth, "rep": rep, "gen_tps": 1.0, "decode_share": share, "decode_binds": "bytes"}
            for depth, shares in ((64, (0.5, 0.9, 0.6)), (128, (0.1,)), (256, (0.3, 0.4, 0.2)))
            for rep, share in enumerate(shares)]  # fmt: skip
    assemble([run("x", rows)], None, Thresholds())
    assert [(bar.name, bar.share, bar.detail) for bar in shown] == [
        ("decode at 64", 0.6, "bound by bytes"), ("decode at 256", 0.3, "bound by bytes")
    ]  # fmt: skip


@pytest.mark.thorough
def test_peaks_tell_their_age():
    def entry(**more):
        measured = run("x", [{"ctx_tokens": 64, "gen_tps": 1.0}], facts={"peaks": {**sample.FACTS["peaks"], **more}})
        measured = replace(measured, run=replace(measured.run, created="2026-03-02T10:00:00Z"))
        (one,) = assemble([measured], None, Thresholds()).roofline
        return one["when"]

    assert entry(measured="2026-03-02T10:00:00Z") == "0 s before"
    assert entry(measured="2026-02-28T09:00:00Z") == "2 d 1 h before"
    assert entry() == entry(measured="lately") == "unknown"


def test_vectors_and_questions():
    vectors = [{"id": "v1", "verdict": "match", "passed": True, "nll": None}, {"id": "v2", "verdict": "mismatch"}]
    scores = [("q1", 1.0, "a"), ("q1", 0.0, "a"), ("q2", 1.0, "b"), ("q3", None, "b")]
    questions = [{"id": name, "score": score, "group": group} for name, score, group in scores]
    report = assemble([run("v", vectors, kind="vectors"), run("q", questions, kind="eval")], None, Thresholds())
    (table,) = report.vectors
    assert (table["passed"], table["total"], table["has_nll"]) == (1, 2, False)
    assert [(row["id"], row["verdict"], row["passed"]) for row in table["rows"]] == [
        ("v1", "match", True), ("v2", "mismatch", False)
    ]  # fmt: skip
    vectors[1]["nll"] = 0.0
    assert assemble([run("v", vectors, kind="vectors")], None, Thresholds()).vectors[0]["has_nll"]
    (table,) = report.graded
    assert (table["n"], table["score"]) == (2, pytest.approx(0.75)), "epochs are averaged, an error says nothing"
    assert [(g["name"], g["n"], g["score"]) for g in table["groups"]] == [("a", 1, 0.5), ("b", 1, 1.0)]
    assert (table["samples"], table["ungraded"]) == (3, 1)
    assert 0 < table["low"] < 0.5 < table["high"] < 1
    with pytest.raises(DataError, match="no questions"):
        assemble([run("q", [], kind="eval")], None, Thresholds())


def test_where_it_was_measured():
    machine = {"cpu": "Chip", "cores": 4, "cores_total": 8, "memory_bytes": 3 << 29, "load": 0.5}
    facts = {"machine": machine, "backend": "cpu", "threads": 3, "seed": 0, "command": ["ds4-bench", "-m", "a b"]}
    report = assemble([run("x", [{"ctx_tokens": 1, "gen_tps": 1.0}], facts=facts)], None, Thresholds())
    shown = dict(report.environments[0]["facts"])
    assert (shown["model SHA-256"], shown["prompt SHA-256"]) == ("a" * 64, "b" * 64)
    assert shown["cores"] == "4 of 8" and shown["memory"] == "1.5 GiB" and shown["seed"] == "0"
    assert shown["backend, numerics"] == "cpu, ds4" and shown["load before"] == "0.5" and "run" not in shown
    assert report.commands == [("x", "ds4-bench -m 'a b'")]


@pytest.mark.thorough
def test_incomparable_and_unfinished_runs_are_shown_as_such():
    a, b = arms(1)
    other = run("other", b.rows, facts={"model": {"sha256": "f" * 64}})
    report = assemble([a, other], None, Thresholds())
    assert report.comparisons[0].verdict == "incomparable"
    assert any("different model" in line for line in report.headline)


def test_nothing_is_no_report(tmp_path, capsys, monkeypatch):
    with pytest.raises(DataError, match="nothing to report"):
        assemble([run("empty", [])], None, Thresholds())
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path))
    assert main(["build", "-o", str(tmp_path / "r.html")]) == 1
    assert "no run store" in capsys.readouterr().err
    csv = tmp_path / "m2.csv"
    csv.write_bytes(published.m2_ultra())
    assert main(["build", str(csv), "-o", str(tmp_path / "no" / "r.html")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert main(["build", str(csv), "-o", str(tmp_path / "r.html")]) == 0
    *found, last = capsys.readouterr().out.splitlines()
    assert any("tokens/s" in line for line in found), "what was found is said, not only where it is"
    page, twin, figure = (tmp_path / f"r.{suffix}" for suffix in ("html", "md", "svg"))
    assert last == f"open {page} (the same in {twin}, {figure})"


def test_long_names_are_cut_for_labels_only():
    assert figures.shorten("x" * 30, 10) == "x" * 9 + "\u2026"
    assert figures.shorten("short", 10) == "short"


@pytest.mark.thorough
def test_endpoints_have_a_table_and_tests_a_curve_each(tmp_path):
    served = [
        {"rep": rep, "ctx_tokens": depth, "prefill_tokens": depth, "prefill_tps": 900.0, "gen_tokens": 8,
         "gen_tps": 30.0, "ttft_ms": 100.0 + rep, "e2e_ms": 400.0, "streams": 4, "total_tps": 77.5, "fairness": 0.875,
         "steps_s": [0.0125, 0.0125]}
        for rep in range(3) for depth in (256, 512)
    ]  # fmt: skip
    probes = [
        {"rep": 0, "ctx_tokens": 512, "prefill_tokens": count, "prefill_tps": float(count), "gen_tokens": 0,
         "gen_tps": 0.0, "test": name}
        for name, count in (("pp512", 512), ("pp256 @ d256", 256))
    ]  # fmt: skip
    files = build_report([run("served", served), run("tests", probes)], str(tmp_path / "r.html")).files
    assert len(files) == 3
    text = " ".join(Page(files[0].read_text()).text)
    for shown in ("TTFT ms", "101.0", "12.5", "400.0", "77.5", "0.875", "tests, pp512", "tests, pp256"):
        assert shown in text
    twin = files[1].read_text()
    assert "| ITL p50 ms | TTFT ms | end to end ms | streams | all t/s | fairness |" in twin
    assert "| 256 | 900.0 | 30.0 | 12.5 | 101.0 | 400.0 | 4 | 77.5 | 0.875 |" in twin
    curves = speed_curves(series(run("tests", probes)))
    assert [(c.name, c.points) for c in curves["prefill"]] == [
        ("tests, pp512", ((512, 512.0, 512.0, 512.0),)), ("tests, pp256", ((512, 256.0, 256.0, 256.0),))
    ]  # fmt: skip
    assert not curves["decode"]


def depth_run(name, depths, reps=1, group=None, speed=20.0):
    rows = [{"rep": rep, "ctx_tokens": d, "prefill_tokens": 64, "gen_tokens": 8, "prefill_tps": speed * 10 + rep,
             "gen_tps": speed + rep, "ttft_ms": 5.0} for rep in range(reps) for d in depths]  # fmt: skip
    return run(name, rows, facts={"arms": {"group": group}} if group else {})


def test_every_depth_is_in_the_tables():
    depths = list(range(2048, 2048 * 17, 2048))
    report = assemble([depth_run("one", depths)], None, Thresholds())
    assert [row["depth"] for row in report.speeds[0]["rows"]] == depths


@pytest.mark.thorough
@pytest.mark.parametrize(("reps", "band"), [(4, "min-max"), (5, "quartiles")])
def test_a_band_is_called_what_it_is(reps, band, tmp_path):
    build_report([depth_run("one", [64, 128], reps)], str(tmp_path / "r.html"))
    for page in ("r.html", "r.md"):
        text = (tmp_path / page).read_text()
        assert {name for name in ("min-max", "quartiles") if f"{name} " in text or f"{name}<" in text} == {band}


@pytest.mark.thorough
def test_runs_of_one_name_are_told_apart():
    report = assemble([depth_run("run", [64, 128], speed=s) for s in (20.0, 30.0, 40.0)], None, Thresholds())
    assert [table["name"] for table in report.speeds] == ["run", "run (2)", "run (3)"]
    assert [(c.a, c.b) for c in report.comparisons] == [("run", "run (2)"), ("run", "run (3)")]
    assert [e["name"] for e in report.environments] == ["run", "run (2)", "run (3)"]


@pytest.mark.thorough
def test_arms_are_compared_with_the_arm_they_took_turns_with():
    runs = [depth_run(name, [64, 128], 5, group) for name, group in zip("abcd", ("x", "x", "y", "y"), strict=True)]
    report = assemble([*runs, depth_run("e", [64, 128], 5)], None, Thresholds())
    assert [(c.a, c.b) for c in report.comparisons] == [("a", "b"), ("a", "c"), ("c", "d"), ("a", "e")]
    assert [c.design for c in report.comparisons] == ["in turn", "separate", "in turn", "separate"]


def measured(name="slowing down", **more):
    """Eight repetitions of two depths, each 2 % slower than the one before, of 25 steps."""
    rows = [
        {"rep": rep, "at": 10.0 * rep + n, "ctx_tokens": 2048 * n, "prefill_tokens": 2048, "gen_tokens": 25,
         "prefill_tps": 400.0, "gen_tps": 20 * 0.98**rep, "gen_first_ms": 70.0 + rep,
         "rss_bytes": (100 * n + rep) << 20, "steps_s": [0.05 * n] * 23 + [0.09] * 2} | more
        for rep in range(8) for n in (1, 2)
    ]  # fmt: skip
    return run(name, rows)


@pytest.mark.thorough
def test_what_stderr_said_is_in_the_report(tmp_path):
    page, twin, _ = build_report([measured()], str(tmp_path / "r.html")).files
    html, text = page.read_text(), twin.read_text()
    for found in (html, text):
        assert "decode drifted -7.8 % from first to second half (p = 0.0078)" in found
        assert "prefill drifted" not in found and "warning" not in found
    assert (
        "| first step ms | ITL p50 ms | ITL p95 ms | process MiB |\n|---:|---:|---:|---:|---:|---:|---:|---:|\n" in text
    )
    assert len(re.findall(r" \| 73\.5 \| [\d.]+ \| 90\.0 \| 107 \|\n", text)) == 1
    assert len(re.findall(r" \| 73\.5 \| [\d.]+ \| 100\.0 \| 207 \|\n", text)) == 1
    assert "<th>first step ms</th><th>ITL p50 ms</th><th>ITL p95 ms</th><th>process MiB</th>" in html


@pytest.mark.thorough
def test_figures_that_are_not_to_be_relied_on_are_in_the_headline(tmp_path):
    busy = measured("busy", warnings={"busy": "this client woke 45 ms late"})
    report = assemble([measured(), busy], None, Thresholds())
    assert report.headline[1].startswith("busy: prefill 400.0 tokens/s at 2,048")
    assert report.headline[2] == ("busy: warning (busy) on 16 of 16 rows: this client woke 45 ms late.")
    assert report.headline[-1] == (
        "prefill: busy is not compared with slowing down: B: 16 of 16 rows have warnings: "
        "busy; decode: busy is not compared with slowing down: B: 16 of 16 rows have warnings: busy."
    )
    page, twin, figure = build_report([measured(), busy], str(tmp_path / "r.html")).files
    assert "warnings: busy; do not rely on these points" in figure.read_text()
    assert text_cells(twin.read_text(), "refused") == 2 and "nan" not in page.read_text() + twin.read_text()


def text_cells(text: str, cell: str) -> int:
    return sum(line.split("|").count(f" {cell} ") for line in text.splitlines())


@pytest.mark.thorough
def test_a_csv_with_its_json_has_percentiles_of_steps(tmp_path, monkeypatch):
    """Single steps are in the store alone."""
    from ds4ref.speed_bench import cli

    monkeypatch.chdir(tmp_path)
    argv = ["--frontiers", "16,32", "-n", "25", "-r", "1", "--backend", "reference", "--no-store", "--no-roofline"]
    assert cli.main([*argv, "--csv", "s.csv"]) == 0
    assert main(["build", "s.csv", "-o", "r.html"]) == 0
    assert "| ITL p95 ms |" in (tmp_path / "r.md").read_text()
