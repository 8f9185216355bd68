"""The report: complete, self-contained, and honest about what is not known (escaping: ``tests/test_page.py``)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ds4ref.console.page import Section, Table, pictures
from ds4ref.errors import DataError
from ds4ref.reports.build import assemble, build_report, series, speed_curves
from ds4ref.reports.cli import main
from ds4ref.reports.sources import read_csv
from ds4ref.runs import scored, stats
from ds4ref.runs.store import Store

from ..runs.simulate import arms, run
from . import published, sample


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    files = build_report(sample.runs(), str(folder / "report.html")).files
    assert [Path(file).name for file in files] == ["report.html", "report.md", "report.svg"]
    return [Path(file).read_text() for file in files]


def tables(page, *path):
    """The tables under headings that begin so, as lists of rows that are dicts from heading to text."""
    blocks = page.sections
    for title in path:
        blocks = [inner for b in blocks if isinstance(b, Section) and b.title.startswith(title) for inner in b.blocks]
    return [
        [
            dict(zip(t.headings or (0, 1), (c if isinstance(c, str) else c.text for c in row), strict=True))
            for row in t.rows
        ]
        for t in blocks
        if isinstance(t, Table)
    ]


def test_it_needs_nothing_from_anywhere(built):
    html = built[0]
    assert len(html.encode()) < 1_500_000 and "@import" not in html
    assert not re.search(r"<(script|iframe|img|object|embed)\b|https?://", html)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_ids_are_unique_and_references_resolve(built):
    ids = re.findall(r' id="([^"]*)"', built[0])
    assert len(ids) == len(set(ids)) > 50
    assert set(re.findall(r'xlink:href="#([^"]*)"|url\(#([^)]*)\)', built[0])) <= {(i, "") for i in ids} | {
        ("", i) for i in ids
    }


def test_every_colour_of_a_drawing_follows_the_page(built):
    drawings = "".join(re.findall(r"<svg.*?</svg>", built[0], re.S))
    assert drawings.count("<svg") == 2 and "var(--series-0)" in drawings and "var(--ink)" in drawings
    assert not re.search(r"#[0-9a-f]{6}\b", drawings.replace("#ffffff", ""))


def test_every_part_is_there(built):
    html, markdown, _ = built
    for part in ("Speed", "Comparison", "Vectors", "Graded runs", "Environment", "How to reproduce"):
        assert part in html and part in markdown
    assert "4 of 5 vectors pass" in html and "24.0 GiB" in html and "clock governor" not in html
    assert re.search(r"prefill: int8 scores, .* is 0\.9\d+ x \(0\.9\d+ to 0\.9\d+\) as fast as main: slower", html)
    assert "ds4-bench --label main --csv main.csv" in markdown and "(report.svg)" in markdown


def test_the_same_runs_give_the_same_bytes(built, tmp_path):
    build_report(sample.runs(), str(tmp_path / "report.html"))
    assert [(tmp_path / f"report.{suffix}").read_text() for suffix in ("html", "md", "svg")] == built


# --- speeds


def test_one_csv_and_many(tmp_path):
    for name, data in (("m2_ultra", published.m2_ultra()), ("m4_max", published.m4_max())):
        (tmp_path / f"{name}.csv").write_bytes(data)
    one, two = (read_csv(tmp_path / f"{name}.csv") for name in ("m2_ultra", "m4_max"))
    assert [p.alt for p in pictures(assemble([one]).sections)] == [
        "Prefill and decode speed against context depth of m2_ultra"
    ]
    both = assemble([one, two], "Two machines")
    assert both.title == "Two machines" and len(pictures(both.sections)) == 1
    assert "prefill 410.6 tokens/s at 2,048, 269.8 at 65,536 (-34 %)" in both.headline[0]
    assert [row["context"] for row in tables(both, "Speed", "m2")[0]] == [f"{n:,}" for n in range(2048, 65537, 2048)]


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
    assert curves["decode"][0].points == ((1, 2.0, 1.5, 2.25),) and curves["prefill"][0].points == ((1, 5.0, 5.0, 5.0),)


def depth_run(name, depths=(64, 128), reps=1, group=None, speed=20.0, **more):
    rows = [{"rep": rep, "ctx_tokens": d, "prefill_tokens": 64, "gen_tokens": 8, "prefill_tps": speed * 10 + rep,
             "gen_tps": speed + rep, **more} for rep in range(reps) for d in depths]  # fmt: skip
    return run(name, rows, facts={"arms": {"group": group}} if group else {})


@pytest.mark.parametrize("reps, band", [(4, "min-max"), (5, "quartiles")])
def test_a_band_is_called_what_it_is(reps, band):
    (row, _), *_ = tables(assemble([depth_run("one", reps=reps)]), "Speed", "one")
    assert list(row) == ["context", "prefill t/s", f"prefill, {band}", "decode t/s", f"decode, {band}"]


def test_runs_of_one_name_are_told_apart_and_have_their_own_numbers():
    page = assemble([depth_run("run", speed=speed) for speed in (20.0, 30.0)])
    assert [section.title for section in page.sections[0].blocks[1:]] == [
        "run · 1 repetition",
        "run (2) · 1 repetition",
    ]
    assert [tables(page, "Speed", name)[0][0]["decode t/s"] for name in ("run ·", "run (2)")] == ["20.0", "30.0"]
    assert [s.title for s in page.sections[1].blocks] == ["B = run (2) against A = run: better"]


def test_targets_measured_in_turn_are_compared_with_each_other():
    runs = [depth_run(name, (64, 128), 5, group) for name, group in zip("abcd", ("x", "x", "y", "y"), strict=True)]
    titles = [section.title for section in assemble([*runs, depth_run("e", (64, 128), 5)]).sections[1].blocks]
    assert [re.findall(r"= (\w)", title) for title in titles] == [["b", "a"], ["c", "a"], ["d", "c"], ["e", "a"]]


def test_endpoints_have_a_table_and_tests_a_curve_each():
    served = depth_run("served", reps=3, ttft_ms=101.0, e2e_ms=400.0, streams=4, total_tps=77.5, fairness=0.875,
                       steps_s=[0.0125, 0.0125])  # fmt: skip
    (row, _), *_ = tables(assemble([served]), "Speed", "served")
    assert row.items() > {
        "ITL p50 ms": "12.5", "TTFT ms": "101.0", "end to end ms": "400.0", "streams": "4", "all t/s": "77.5",
        "fairness": "0.875",
    }.items()  # fmt: skip
    probes = [{"rep": 0, "ctx_tokens": 512, "prefill_tokens": count, "prefill_tps": float(count), "gen_tps": 0.0,
               "test": name} for name, count in (("pp512", 512), ("pp256 @ d256", 256))]  # fmt: skip
    curves = speed_curves(series(run("tests", probes)))
    assert [(c.name, c.points) for c in curves["prefill"]] == [
        ("tests, pp512", ((512, 512.0, 512.0, 512.0),)), ("tests, pp256", ((512, 256.0, 256.0, 256.0),))
    ]  # fmt: skip
    assert not curves["decode"]


def test_drift_and_warnings_are_in_the_report_and_the_headline(tmp_path):
    """Eight repetitions of two depths, each 2 % slower than the one before."""
    rows = [{"rep": rep, "at": 10.0 * rep + n, "ctx_tokens": 2048 * n, "prefill_tokens": 2048, "gen_tokens": 25,
             "prefill_tps": 400.0, "gen_tps": 20 * 0.98**rep} for rep in range(8) for n in (1, 2)]  # fmt: skip
    busy = [row | {"warnings": {"busy": "this client woke 45 ms late"}} for row in rows]
    page = assemble([run("slowing down", rows), run("busy", busy)])
    assert page.headline[2] == "busy: warning (busy) on 16 of 16 rows: this client woke 45 ms late."
    assert page.headline[-1].startswith(
        "prefill: busy is not compared with slowing down: B: 16 of 16 rows have warnings: busy; decode: "
    )
    html, markdown, figure = (Path(f).read_text() for f in build_report([run("x", rows), run("busy", busy)],
                                                                        str(tmp_path / "r.html")).files)  # fmt: skip
    assert "decode drifted -7.8 % from first to second half (p = 0.0078)" in html and "prefill drifted" not in html
    assert "warnings: busy; do not rely on these points" in figure and "nan" not in markdown


def test_where_it_was_measured():
    machine = {"cpu": "Chip", "cores": 4, "cores_total": 8, "memory_bytes": 3 << 29, "load": 0.5}
    facts = {"machine": machine, "backend": "cpu", "threads": 3, "seed": 0, "command": ["ds4-bench", "-m", "a b"],
             "peaks": sample.FACTS["peaks"]}  # fmt: skip
    page = assemble([run("x", [{"ctx_tokens": 1, "gen_tps": 1.0}], facts=facts)])
    shown = {row[0]: row[1] for row in tables(page, "Environment", "x")[0]}
    assert (shown["model SHA-256"], shown["prompt SHA-256"]) == ("a" * 64, "b" * 64)
    assert shown["cores"] == "4 of 8" and shown["memory"] == "1.5 GiB" and shown["seed"] == "0"
    assert shown["backend, numerics"] == "cpu, ds4" and shown["load before"] == "0.5" and "run" not in shown
    assert shown["peaks"].startswith("read 24.7 GB/s, int8 612 GOP/s") and "clock governor" not in shown
    assert page.sections[-1].blocks[1].text == "ds4-bench -m 'a b'"


def test_incomparable_runs_are_shown_as_such():
    a, b = arms(1)
    page = assemble([a, run("other", b.rows, facts={"model": {"sha256": "f" * 64}})])
    assert page.sections[1].blocks[0].title.endswith("incomparable") and "different model" in page.headline[-1]


def test_nothing_is_no_report():
    with pytest.raises(DataError, match="nothing to report"):
        assemble([run("empty", [])])


# --- vectors and graded runs


def test_vectors():
    rows = [{"id": "v1", "verdict": "match", "passed": True, "nll": None}, {"id": "v2", "nll": 3.0, "tokens": 2}]
    page = assemble([run("v", rows, kind="vectors")])
    assert page.headline == ["v: 1 of 2 vectors pass."]
    assert [(row["vector"], row["NLL/token"]) for row in tables(page, "Vectors", "v")[0]] == [
        ("v1", ""),
        ("v2", "1.5000"),
    ]


def evaluation(name="e", seed=1, p=0.7, **more):
    return sample.evaluation(name, np.random.default_rng(seed), p, **more)


def graded(measured):
    """The score table and the first row of the table of answers."""
    scores, answers, *_ = tables(assemble([measured]), "Graded")
    return scores, answers[0]


def test_scores_whole_by_source_and_by_domain():
    measured = evaluation(count=60)
    scores, _ = graded(measured)
    questions = scored.answered(measured.rows)
    whole = stats.share_interval([q.score for q in questions.values()])
    assert scores[0]["score"] == f"{whole.estimate:.1%}" and scores[0]["questions"] == "60"
    assert scores[0]["interval"] == f"{100 * whole.low:.1f} to {100 * whole.high:.1f}"
    assert [row["run"] for row in scores] == ["e", "· maths", "· science", "· security"]
    (domains,) = tables(assemble([measured]), "Graded", "e by domain")
    physics = [q.score for q in questions.values() if q.domain.startswith("physics/")]
    assert [row["domain"] for row in domains] == ["number theory", "geometry", "physics", "memory"]
    assert domains[2]["score"] == f"{np.mean(physics):.1%}" and sum(int(row["questions"]) for row in domains) == 60


def test_difficulty_depth_guessing_median_and_price():
    rows = [{"id": f"q{i}", "outcome": o, "difficulty": d, "tokens": t, "depth": 64, "guess": 0.25,
             "domain": "ab"[i // 2]}
            for i, (o, d, t) in enumerate([("r", "hard", 10), ("w", "easy", 20), ("w", "", 300)])]  # fmt: skip
    for row in rows:
        row["outcome"] = {"r": "right", "w": "wrong"}[row["outcome"]]
    scores, answers = graded(run("x", rows, kind="eval"))
    assert [(row["run"], row["score"]) for row in scores[1:]] == [
        ("· hard", "100.0%"), ("· easy", "0.0%"), ("· difficulty not stated", "0.0%"), ("· 64 tokens back", "33.3%")
    ]  # fmt: skip
    assert scores[0]["guessing"] == "25.0%" and (answers["median"], answers["per right answer"]) == ("20", "330")
    (domains,) = tables(assemble([run("x", rows, kind="eval")]), "Graded", "x by domain")
    assert [row["domain"] for row in domains] == ["a"], "one question is no domain"
    rows[1] |= {"outcome": "right", "tokens": None}
    assert graded(run("x", rows, kind="eval"))[1]["per right answer"] == "310", "of answers whose length is known"
    rows[0]["outcome"] = rows[1]["outcome"] = "wrong"
    assert graded(run("x", rows, kind="eval"))[1]["per right answer"] == ""


def test_what_became_of_the_answers():
    measured = evaluation(count=40)
    _, row = graded(measured)
    done = [sample for sample in measured.rows if sample["status"] == "done"]
    names = {"right": "right", "wrong": "wrong", "ambiguous": "ambiguous", "none": "missing"}
    assert {n: row[n] for n in names} == {n: str(sum(s["outcome"] == o for s in done)) for n, o in names.items()}
    assert (row["not graded"], row["epochs"]) == ("1", "2")
    assert row["cut or closed"] == f"{sum(s['finish'] == 'length' for s in done) / 79:.0%}"
    for finish, close, cut in (("stop", "natural", "0%"), ("length", "", "100%"), ("stop", "soft", "100%"),
                               ("stop", "hard", "100%"), ("stop", "open", "100%")):  # fmt: skip
        answer = {"id": "q", "outcome": "right", "finish": finish, "close": close}
        rows = [answer, {**answer, "id": "r", "outcome": None, "status": "failed"}]
        assert graded(run("x", rows, kind="eval"))[1]["cut or closed"] == cut, (finish, close)


def test_rows_of_other_graders_have_scores_only():
    scores, answers = graded(run("x", [{"id": f"q{i}", "score": 0.5, "group": "g"} for i in range(5)], kind="eval"))
    assert [row["score"] for row in scores] == ["50.0%"] and answers["right"] == answers["cut or closed"] == ""
    with pytest.raises(DataError, match="no questions with a grade"):
        assemble([run("x", [{"id": "q", "status": "failed"}], kind="eval")])


# --- logs of ds4-eval as files


def log(path, letters, created="2026-11-22T10:00:00Z", text="What?"):
    """A log as ds4-eval writes it, by hand: the format is what this package knows of that tool."""
    questions = [
        {"id": f"q{i}", "source": ("maths", "science")[i % 2], "domain": "d/e", "difficulty": "hard", "kind": "integer",
         "question": f"{text} {i}", "choices": [], "answer": "5"}
        for i in range(len(letters))
    ]  # fmt: skip
    header = {
        "schema": "ds4-eval-log-v1", "pack": {"pack": "p", "version": 1, "digest": "d" * 64}, "epochs": 1,
        "settings": {"think": "high"}, "target": {"kind": "local", "name": "m", "digest": "sha256:" + "a" * 64},
        "facts": {"created": created, "command": ["ds4-eval"]}, "questions": questions,
    }  # fmt: skip
    words = {"r": "right", "w": "wrong"}
    samples = [
        {"id": q["id"], "epoch": 1, "digest": "x", "status": "done" if c in words else "failed", "expected": "5",
         "started": created, "grade": {"outcome": words[c], "given": "5"} if c in words else None, "seconds": 2.0,
         "tokens": 11, "ttft": 1.0, "output": "Answer: 5"}
        for q, c in zip(questions, letters, strict=True)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (header, *samples)))
    return path


def call(capsys, *argv):
    code = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_logs_are_reported_compared_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    before = log(tmp_path / "before.jsonl", "r" * 60 + "w" * 30)
    after = log(tmp_path / "after.jsonl", "w" * 15 + "r" * 45 + "w" * 29 + "f")
    code, out, err = call(capsys, "compare", before, after)
    assert code == 1 and out.startswith("A = before\nB = after\n\nB is worse by") and err == ""
    assert "samples without a grade (failed, stopped): 0 of A, 1 of B" in out
    assert call(capsys, "compare", after, before)[0] == 0
    assert call(capsys, "compare", before, log(tmp_path / "c.jsonl", "rr", text="Other?"))[0] == 4
    page = tmp_path / "r.html"
    code, out, _ = call(capsys, "build", before, after, "-o", page)
    assert code == 0 and "before: 66.7% of 90 questions" in out and page.exists()
    assert not (tmp_path / "data").exists(), "files need no store"
    assert call(capsys, "import", before)[1] == "run 1: before, 90 rows\n"
    assert call(capsys, "import", before)[1] == "run 1: before, 90 rows (already stored)\n"
    assert "66.7 % (56 to 76)" in call(capsys, "list")[1]
    shown = call(capsys, "show", 1)[1].split("\n\n")
    assert [line.split()[0] for line in shown[1].splitlines()] == ["score", "all", "maths", "science"]
    assert (
        len(shown[2].splitlines()) == 91 and json.loads(call(capsys, "show", 1, "--json")[1])["created"][:4] == "2026"
    )


def test_a_log_that_grew_stays_one_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    path = log(tmp_path / "x.jsonl", "rrww")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    assert call(capsys, "import", path, "--tag", "nightly")[1] == "run 1: x, 2 rows\n"
    with Store.open() as store:
        assert store.run(1).status == "stopped"
    path.write_text("".join(lines))
    assert call(capsys, "import", path)[1] == "run 1: x, 4 rows (already stored)\n"
    with Store.open() as store:
        assert (store.run(1).status, store.run(1).tags, len(store.runs())) == ("complete", ("nightly",), 1)
