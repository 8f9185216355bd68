"""Graded runs in the report, the store and on the command line: scores, domains, history, speed."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.reports import figures, scoreplots
from ds4ref.reports.build import assemble, build_report
from ds4ref.reports.cli import main
from ds4ref.reports.graded import same_model
from ds4ref.reports.scoreplots import ScoreInterval
from ds4ref.reports.sources import Measured, earlier
from ds4ref.reports.thresholds import Thresholds
from ds4ref.runs import scored, stats
from ds4ref.runs.store import Store

from . import sample
from .simulate import run


def evaluation(name="e", seed=1, p=0.7, **more):
    return sample.evaluation(name, np.random.default_rng(seed), p, **more)


def part(*runs, earlier=()):
    return assemble(list(runs), None, Thresholds(), earlier)


# --- tables


def test_scores_whole_by_source_and_by_domain():
    measured = evaluation(count=60)
    (table,) = part(measured).graded
    questions = scored.answered(measured.rows)
    whole = stats.share_interval([q.score for q in questions.values()])
    assert (table["score"], table["low"], table["high"], table["n"]) == (whole.estimate, whole.low, whole.high, 60)
    assert [g["name"] for g in table["groups"]] == ["maths", "science", "security"]
    assert [g["name"] for g in table["domains"]] == ["number theory", "geometry", "physics", "memory"]
    physics = [q.score for q in questions.values() if q.domain.startswith("physics/")]
    assert [g["score"] for g in table["domains"] if g["name"] == "physics"] == [pytest.approx(np.mean(physics))]
    assert sum(g["n"] for g in table["domains"]) == sum(g["n"] for g in table["groups"]) == 60


def test_domains_of_one_question_are_left_out():
    rows = [{"id": f"q{i}", "outcome": "right", "domain": d} for i, d in enumerate("aab")]
    (table,) = part(run("x", rows, kind="eval")).graded
    assert [(d["name"], d["n"]) for d in table["domains"]] == [("a", 2)] and table["difficulties"] == []


def test_difficulty_median_and_price():
    rows = [{"id": f"q{i}", "outcome": o, "difficulty": d, "tokens": t}
            for i, (o, d, t) in enumerate(zip(("right", "wrong", "wrong"), ("hard", "easy", ""), (10, 20, 300)))]  # fmt: skip  # noqa: B905, E501
    (table,) = part(run("x", rows, kind="eval")).graded
    assert [(d["name"], d["score"]) for d in table["difficulties"]] == [
        ("hard", 1.0), ("easy", 0.0), ("difficulty not stated", 0.0)
    ]  # fmt: skip
    assert (table["median"], table["price"]) == (20, 330)
    rows[0]["outcome"] = "wrong"
    assert part(run("x", rows, kind="eval")).graded[0]["price"] is None
    for row in rows:
        del row["tokens"]
    assert part(run("x", rows, kind="eval")).graded[0]["median"] is None


@pytest.mark.thorough
def test_what_became_of_the_answers():
    measured = evaluation(count=40)
    (table,) = part(measured).graded
    done = [row for row in measured.rows if row["status"] == "done"]
    assert table["outcomes"] == {
        name: sum(row["outcome"] == name for row in done) for name in ("right", "wrong", "ambiguous", "missing")
    }
    assert (table["samples"], table["ungraded"], table["epochs"]) == (79, 1, 2)
    assert table["exhausted"] == sum(row["finish"] == "length" for row in done) / 79
    assert table["rate"] == scored.rate(measured.rows)
    tokens = [[row["tokens"] for row in done if row["id"] == f"q{i}"] for i in range(40)]
    assert table["tokens"] == pytest.approx(np.mean([np.mean(counts) for counts in tokens]))
    theirs = [[row["ds4"] == "right" for row in done if row["id"] == f"q{i}"] for i in range(40)]
    assert table["ds4"] == pytest.approx(np.mean([np.mean(rights) for rights in theirs]))
    del done[0]["ds4"]
    assert part(measured).graded[0]["ds4"] is None, "a score of some of the answers is none"
    for row in measured.rows:
        row["ds4"] = row["outcome"]
    assert part(measured).graded[0]["ds4"] is None, "nothing to say where both agree"
    ways = [("stop", ""), ("stop", "natural"), ("length", ""), ("stop", "soft"), ("stop", "hard"), ("stop", "open")]
    for (finish, close), exhausted in zip(ways, (0, 0, 1, 1, 1, 1), strict=True):
        row = {"id": "q", "outcome": "right", "finish": finish, "close": close}
        assert part(run("x", [row], kind="eval")).graded[0]["exhausted"] == exhausted, (finish, close)


def test_rows_of_other_graders_have_scores_only():
    rows = [{"id": f"q{i}", "score": 0.5, "group": "g"} for i in range(5)]
    (table,) = part(run("x", rows, kind="eval")).graded
    assert (table["score"], table["outcomes"], table["exhausted"], table["groups"]) == (0.5, None, None, [])
    with pytest.raises(DataError, match="no questions with a grade"):
        part(run("x", [{"id": "q", "status": "failed"}], kind="eval"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"sha256": "a"}, {"sha256": "a"}, True),
        ({"sha256": "a", "name": "m", "bytes": 5}, {"sha256": "b", "name": "m", "bytes": 5}, False),
        ({"name": "m", "bytes": 5}, {"sha256": "b", "name": "m", "bytes": 5}, True),
        ({"name": "m", "bytes": 5}, {"name": "m", "bytes": 6}, False),
        ({"name": "m"}, {"name": "m"}, False),
        (None, {"name": "m", "bytes": 5}, False),
    ],
)
def test_models_are_the_same_by_digest_or_by_name_and_size(one, other, same):
    assert same_model(one, other) is same


@pytest.mark.thorough
def test_speed_of_the_same_model_in_a_bench_run():
    rows = [{"ctx_tokens": 64 * i, "gen_tps": 10.0 + i} for i in (1, 2, 3)]
    bench = run("bench", rows, facts={"model": {"name": "m", "bytes": 1000}})
    graded = evaluation(model="m")
    assert part(bench, graded).graded[0]["bench_rate"] == 12.0
    assert part(bench, evaluation(model="other")).graded[0]["bench_rate"] is None
    for row in graded.rows:
        row["ttft"] = None
    (table,) = part(bench, graded).graded
    assert table["rate"] is None and table["speed"] == 12.0


# --- pictures


@pytest.fixture
def drawn(monkeypatch):
    """Pictures are drawn, laid out and kept as figures: (wide, narrow) by name."""
    made: dict = {}

    def picture(draw, alt, name):
        with figures._style():
            made[name] = (draw(figures.WIDE, 1, 2), draw(figures.NARROW, 2, 1))
            for figure in made[name]:
                figure.draw_without_rendering()
        return figures.Picture("<svg/>", "<svg/>", alt)

    monkeypatch.setattr(figures, "_picture", picture)
    monkeypatch.setattr(scoreplots, "_picture", picture)
    return made


def spans(axes, upright=False):
    """Whiskers as (from, to), in the order they were drawn."""
    lines = [(line.get_xdata(), line.get_ydata()) for line in axes.get_lines()]
    found = [y if upright else x for x, y in lines if len(x) == 2 and (x[0] == x[1]) == upright]
    return [(float(low), float(high)) for low, high in found]


def test_dots_and_whiskers_by_source_for_several_runs(drawn):
    groups = [("all", [("one", ScoreInterval(70, 60, 80)), ("two", ScoreInterval(50, 40, 60))]),
              ("maths", [("one", ScoreInterval(90, 70, 100)), ("two", None)])]  # fmt: skip
    scoreplots.score_picture(groups)
    for figure in drawn["scores"]:
        (axes,) = figure.axes
        assert spans(axes) == [(60, 80), (40, 60), (70, 100)] and axes.get_xlim() == (0, 100)
        heights = [line.get_ydata()[0] for line in axes.get_lines()]
        assert heights == sorted(heights, reverse=True), "from top to bottom"
        colours = [line.get_color() for line in axes.get_lines()]
        assert colours[0] == colours[1] == colours[4] != colours[2]
        texts = [text.get_text() for text in axes.texts]
        assert any(text.startswith("70.0") for text in texts) and any(text.startswith("90.0") for text in texts)
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        assert all(0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes), "names stay inside"
    wide, narrow = drawn["scores"]
    assert [label.get_text() for label in wide.axes[0].get_yticklabels()] == ["all", "maths"]
    assert "70.0  one" in [text.get_text() for text in wide.axes[0].texts]
    assert [text.get_text() for text in narrow.legends[0].get_texts()] == ["one", "two"] and not wide.legends


def test_every_run_has_its_place_in_every_group(monkeypatch):
    shown = []
    monkeypatch.setattr(scoreplots, "score_picture", lambda groups, guesses: shown.extend(groups))
    one, other = evaluation("one"), evaluation("other", 2)
    other = replace(other, rows=[row for row in other.rows if row["source"] != "science"])
    tables = part(one, other).graded
    assert [name for name, _ in shown] == ["all", "maths", "science", "security"]
    assert all([run for run, _ in dots] == ["one", "other"] for _, dots in shown)
    dots = {name: [dot for _, dot in dots] for name, dots in shown}
    assert dots["science"][1] is None and None not in (*dots["all"], *dots["maths"], *dots["security"])
    (line,) = (line for line in tables[1]["groups"] if line["name"] == "security")
    assert dots["security"][1] == ScoreInterval(100 * line["score"], 100 * line["low"], 100 * line["high"])


def test_scores_over_time(drawn):
    points = [
        ("q4", "2026-11-01T00:00:00Z", ScoreInterval(60, 50, 70), False),
        ("q2", "2026-11-03T12:00:00Z", ScoreInterval(40, 30, 50), True),
        ("q4", "2026-11-05T00:00:00Z", ScoreInterval(65, 55, 75), True),
    ]
    scoreplots.time_picture(points)
    for figure in drawn["time"]:
        (axes,) = figure.axes
        dots = {tuple(map(float, (line.get_xdata()[0], line.get_ydata()[0]))): line for line in axes.get_lines()
                if len(line.get_xdata()) == 1 and line.get_marker() != "None"}  # fmt: skip
        assert set(dots) == {(0.0, 60.0), (4.0, 65.0), (2.5, 40.0)}
        hollow = {at: line.get_markerfacecolor() != line.get_color() for at, line in dots.items()}
        assert hollow == {(0.0, 60.0): True, (4.0, 65.0): False, (2.5, 40.0): False}
        assert [text.get_text() for text in axes.texts] == ["q4", "q2"]
        led = [line.get_xydata()[0].tolist() for line in axes.get_lines() if line.get_xdata()[-1] == axes.get_xlim()[1]]
        assert led == [[4.0, 65.0], [2.5, 40.0]], "a name belongs to its last run"
        assert axes.get_xticklabels()[0].get_text() == "2026-11-01" and axes.get_ylim() == (20, 80)


def test_scores_against_speed(drawn):
    scoreplots.speed_score_picture(
        [("slow and right", 5.0, ScoreInterval(80, 70, 88)), ("fast", 50.0, ScoreInterval(60, 50, 70))]
    )
    for figure in drawn["speedscore"]:
        (axes,) = figure.axes
        assert spans(axes, upright=True) == [(70, 88), (50, 70)] and axes.get_xlim()[0] == 0
        names = [text.get_text() for text in axes.texts]
        assert names[1] == "fast" and names[0].startswith("slow and rig")


def test_near_names_do_not_collide(drawn):
    scoreplots.speed_score_picture([(f"run {i}", 10.0 + i, ScoreInterval(70 + i / 10, 60, 80)) for i in range(6)])
    for figure in drawn["speedscore"]:
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


# --- history


@pytest.mark.thorough
def test_history_is_the_runs_of_one_pack_in_the_order_of_time(drawn):
    runs = [evaluation("b", 2, created="2026-11-20T10:00:00Z"), evaluation("a", 1, created="2026-11-18T10:00:00Z")]
    other = evaluation("c", 3, created="2026-11-19T10:00:00Z")
    other.run.facts["pack"] = {"pack": "other", "digest": "e" * 64}
    older = evaluation("o", 4, created="2026-11-11T10:00:00Z", model="old")
    report = part(*runs, other, earlier=[older])
    assert [(line["name"], line["here"]) for line in report.history] == [("o", False), ("a", True), ("b", True)]
    assert [line["series"] for line in report.history] == ["old", *["DeepSeek V4 <Flash>"] * 2]
    assert "time" in report.pictures
    alone = part(runs[0])
    assert alone.history == [] and "time" not in alone.pictures and "speed_score" not in alone.pictures


@pytest.mark.thorough
def test_other_ways_of_thinking_are_other_series():
    runs = [evaluation(n, created=f"2026-11-2{i}T10:00:00Z") for i, n in enumerate("ab")]
    runs[1].run.facts["settings"] = {"think": "none"}
    assert [line["series"].rpartition(", ")[2] for line in part(*runs).history] == ["think high", "think none"]
    for run_, name in zip(runs, ("an engine", None), strict=True):
        run_.run.facts["model"], run_.run.facts["engine"] = {}, name
    assert [line["series"] for line in part(*runs).history] == ["an engine, think high", "unknown, think none"]


# --- the command line


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    with Store.open() as store:
        for day in range(5):
            m = evaluation(f"day {day}", day, 0.6, created=f"2026-11-1{day}T10:00:00Z")
            summary = {"score": 0.5, "ci95": [0.4, 0.6]}
            store.add("eval", m.run.facts | {"created": m.run.created, "summary": summary}, m.rows, label=m.run.label)
        yield store


def call(capsys, *argv):
    code = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.thorough
def test_earlier_runs_come_from_the_store(store, tmp_path, capsys):
    page = tmp_path / "r.html"
    for argv, count in ((["day 3"], 4), (["day 3", "--history", 2], 3), (["day 3", "--history", 0], 0), (["day 0"], 0)):
        assert call(capsys, "build", *argv, "-o", page)[0] == 0
        text = page.read_text()
        assert ("Over time" in text) == (count > 0) and (f"<summary>{count} runs of the pack" in text) == (count > 0)
        assert "day 4" not in text, "what came later is no history"


def test_earlier_runs_are_the_newest_before_these(store):
    """Of the same pack, at most so many, oldest first; not the run itself, nor what came later."""
    named = next(run for run in store.runs(kind="eval") if run.label == "day 3")
    asked = [Measured(named, store.rows(named.id))]
    for most, days in ((1, "2"), (2, "12"), (9, "012")):
        assert [m.run.label for m in earlier(store, asked, most)] == [f"day {day}" for day in days]
    asked[0].run.facts["pack"] = {"digest": "another"}
    assert earlier(store, asked, 9) == []


def test_the_list_tells_scores(store, capsys):
    store.add("bench", {}, [])
    lines = call(capsys, "list")[1].splitlines()
    assert "result" in lines[0] and "50.0 % (40 to 60)" in lines[-1]
    store.remove(*(entry.id for entry in store.runs(kind="eval")))
    assert "result" not in call(capsys, "list")[1]


def test_showing_a_graded_run(store, capsys):
    code, out, _ = call(capsys, "show", "day 1")
    table = out.split("\n\n")
    assert code == 0 and table[1].splitlines()[0].split() == ["score", "%", "95", "%", "n"]
    assert [line.split()[0] for line in table[1].splitlines()[1:]] == ["all", "maths", "science", "security"]
    assert table[2].splitlines()[0].split()[:4] == ["id", "source", "epoch", "outcome"]
    assert len(table[2].splitlines()) == 187 and "failed" in table[2]
    assert len(json.loads(call(capsys, "show", "day 1", "--json")[1])["rows"]) == 186
    for sources, shown in (("m", ["all"]), ("mms", ["all", "m", "s"])):
        rows = [{"id": str(i), "source": source, "outcome": "right"} for i, source in enumerate(sources)]
        table = call(capsys, "show", store.add("eval", {}, rows))[1].split("\n\n")[1]
        assert [line.split()[0] for line in table.splitlines()[1:]] == shown, "one source alone is all of it"


# --- logs of ds4-eval as files


def log(path, letters, created="2026-11-22T10:00:00Z", text="What?"):
    """A log as ds4-eval writes it, by hand: the format is what this room knows of that tool."""
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
         "tokens": 11, "ttft": 1.0, "output": "Answer: 5", "ds4": {"outcome": words.get(c, "wrong")}}
        for q, c in zip(questions, letters, strict=True)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (header, *samples)))
    return path


def test_logs_are_reported_compared_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    before, after = log(tmp_path / "before.jsonl", "r" * 60 + "w" * 30), log(tmp_path / "after.jsonl", "w" * 15 + "r" * 45 + "w" * 29 + "f")  # fmt: skip  # noqa: E501
    code, out, err = call(capsys, "compare", before, after)
    assert code == 1 and "B = after against A = before: worse" in out and err == ""
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
    with Store.open() as own:
        assert own.run(1).created == "2026-11-22T10:00:00Z", "when it was measured, not when the file was copied"
    table = tmp_path / "t.csv"
    assert call(capsys, "export", "before", "-o", table)[0] == 0 and table.read_text().count("\nNaN") == 0
    assert len(table.read_text().splitlines()) == 91


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


def test_what_is_no_log_is_one_line(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n')
    code, out, err = call(capsys, "build", path, "-o", tmp_path / "r.html")
    assert (code, out) == (1, "") and "x.jsonl: not a log of ds4-eval" in err and err.count("\n") == 1
    assert not os.path.exists(tmp_path / "r.html")


def test_the_same_runs_give_the_same_bytes(tmp_path):
    runs = [evaluation("one"), replace(evaluation("two", 2), rows=evaluation("two", 2).rows)]
    pages = [build_report(runs, str(tmp_path / name)).files[0].read_text() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1] and "<Flash>" not in pages[0].replace("&lt;Flash&gt;", "")
