"""ds4-report from the command line: what it prints, what it refuses, how it ends."""

import json
import subprocess
import sys

import pytest

from ds4ref.reports.cli import main
from ds4ref.runs.store import Store

from ..runs.simulate import arms
from . import published


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The user's store, with two runs measured in turn."""
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    with Store.open() as store:
        for measured, name in zip(arms(1, slower=0.08, noise=0.01), ("before", "after"), strict=True):
            store.add("bench", measured.run.facts | {"created": "2026-11-21T10:00:00Z"}, measured.rows, label=name)
        yield store


@pytest.fixture
def csvs(tmp_path):
    paths = [tmp_path / "m2_ultra.csv", tmp_path / "m4_max.csv"]
    paths[0].write_bytes(published.m2_ultra())
    paths[1].write_bytes(published.m4_max())
    return [str(path) for path in paths]


def call(capsys, *argv) -> tuple[int, str, str]:
    code = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    assert captured.err.count("\n") <= 1
    return code, captured.out, captured.err


# --- ds4's published files


def test_published_files_import_as_they_are(store, csvs, capsys):
    code, out, err = call(capsys, "import", *csvs, "--tag", "published")
    assert (code, err) == (0, "")
    assert out == "run 3: m2_ultra, 32 rows\nrun 4: m4_max, 32 rows\n"
    for name, column in (("m2_ultra", 1), ("m4_max", 3)):
        run = store.find(name)
        assert run.tags == ("published",)
        rows = {row["ctx_tokens"]: row for row in store.rows(run.id)}
        for known in published.ROWS:
            row = rows[known[0]]
            assert (row["prefill_tps"], row["gen_tps"]) == (known[column], known[column + 1])
            assert (row["kvcache_bytes"], row["prefill_tokens"], row["gen_tokens"]) == (known[5], 2048, 128)
            assert isinstance(row["kvcache_bytes"], int)


def test_files_are_compared_without_a_store(csvs, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "none"))
    code, out, _ = call(capsys, "compare", *csvs)
    assert code == 1 and out.startswith("A = m2_ultra\nB = m4_max\n\nprefill: B is 0.7")
    assert "better" in out and "one repetition each" in out
    code, out, _ = call(capsys, "compare", *csvs, "--json", "--fail-on", 50)
    found = json.loads(out)
    assert code == 0 and [f["verdict"] for f in found["findings"]] == ["worse", "better"]
    # medians 245.31 / 321.02 and 24.41 / 21.79
    assert found["findings"][0]["estimate"] == pytest.approx(-23, abs=2)
    assert found["findings"][1]["estimate"] == pytest.approx(12.4, abs=1)
    assert not (tmp_path / "none").exists()


# --- the store from outside


def test_listing_and_showing(store, capsys):
    code, out, _ = call(capsys, "list")
    assert code == 0 and out.index("after") < out.index("before") and "2026-11-21 10:00:00" in out
    assert [run["id"] for run in json.loads(call(capsys, "list", "--json")[1])] == [2, 1]
    code, out, _ = call(capsys, "show", "before")
    assert code == 0 and "prompt_sha256" in out and "prefill_tps" in out
    shown = json.loads(call(capsys, "show", "1", "--json")[1])
    assert shown["label"] == "before" and shown["rows"] == store.rows(1)
    assert call(capsys, "list", "--tag", "none")[1:] == ("", f"ds4-report: no such runs in {store.path}\n")


def test_a_run_is_shown_with_its_seconds_but_not_with_those_of_each_step(store, capsys):
    """Long cells are cut to forty characters, so that a table keeps its columns."""
    row = {"ctx_tokens": 8, "prefill_s": 0.25, "steps_s": [0.125], "note": "x" * 40, "longer": "y" * 41}
    number = store.add("bench", {}, [row])
    lines = call(capsys, "show", number)[1].splitlines()
    assert lines[-2].split() == ["ctx_tokens", "prefill_s", "note", "longer"]
    assert lines[-1].split() == ["8", "0.25", "x" * 40, "y" * 37 + "..."]


def test_tags_labels_and_removal(store, capsys):
    assert call(capsys, "tag", "1", "base", "q2")[1] == "run 1: base q2\n"
    assert call(capsys, "tag", "base", "q2", "--remove", "--label", "old one")[1] == "run 1: base\n"
    assert store.run(1).label == "old one"
    assert call(capsys, "rm", "base", "1", "after")[:2] == (0, "removed run 1, run 2\n")
    assert store.runs() == []


def test_labels_cannot_command_the_terminal(store, capsys):
    store.rename(1, "\x1b[31mred\n\x07")
    for argv in (("list",), ("show", "1"), ("compare", "1", "2")):
        out = call(capsys, *argv)[1]
        assert "\x1b" not in out and "\x07" not in out and " [31mred" in out


# --- comparing, as a gate


def test_exit_codes_of_a_gate(store, tmp_path, capsys):
    assert call(capsys, "compare", "before", "after")[0] == 1
    assert call(capsys, "compare", "after", "before")[0] == 0
    assert call(capsys, "compare", "before", "after", "--fail-on", "20")[0] == 0
    assert call(capsys, "compare", "before", "after", "--fail-on", 0)[0] == 1, "0 is a limit"
    graded = [[{"id": str(i), "outcome": ("right", odd)[i % 2]} for i in range(60)] for odd in ("right", "wrong")]
    likely = [[{"id": str(i), "nll": 200.0 + i % 5 * more, "tokens": 100} for i in range(60)] for more in (0, 5)]
    for kind, sides in (("eval", graded), ("vectors", likely)):
        one, other = (store.add(kind, {}, rows) for rows in sides)
        codes = [call(capsys, "compare", one, other, *more)[0] for more in ((), ("--fail-on", 100), ("--margin", 100))]
        assert codes == [1, 0, 0], f"limits are those of {kind}, too"
    other = store.add("bench", {"model": {"sha256": "f" * 64}}, store.rows(1))
    code, out, _ = call(capsys, "compare", "before", other)
    assert code == 4 and "not comparable: different model" in out
    assert call(capsys, "compare", "before", other, "--differ", "model")[0] == 0


def test_the_sound_and_the_unsound(store, capsys):
    assert call(capsys, "check")[1] == f"{store.path}: sound, 2 run(s), 80 row(s)\n"
    store._db.execute("UPDATE rows SET data = '{\"torn' WHERE run = 2 AND seq = 3")
    code, _, err = call(capsys, "check")
    assert code == 1 and "damaged: an entry is no JSON object" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["lst"], 2, "unknown command 'lst' (did you mean list?)"),
        (["frobnicate"], 2, "unknown command 'frobnicate': choose from list, show"),
        (["--store", "x"], 2, "missing command"),
        (["show"], 2, "1 name(s) needed, 0 given"),
        (["compare", "1", "2", "3"], 2, "unexpected argument: 3"),
        (["compare", "1", "77"], 1, "has no run 77"),
        (["compare", "1", "absent.csv"], 1, "absent.csv: No such file"),
        (["list", "--kind", "speed"], 2, "invalid value for --kind"),
        (["list", "--store", "/nowhere/at/all"], 1, "no run store at /nowhere/at/all"),
        (["tag", "1"], 2, "at least one tag"),
        (["import", "absent.csv"], 1, "absent.csv: No such file"),
        (["import", "a.csv", "b.csv", "--label", "x"], 2, "--label names one file"),
        (["build", "absent.csv"], 1, "absent.csv: No such file"),
        (["build", "1", "-o", "/nowhere/r.html"], 1, "cannot write /nowhere/r.html"),
        (["build", "1", "-o", "x.pdf"], 2, "must end in .html"),
    ],
)
def test_mistakes_are_one_line(store, capsys, argv, code, message):
    found, out, err = call(capsys, *argv)
    assert (found, out) == (code, "") and message in err and err.startswith("ds4-report: ")


def test_listing_loads_no_scipy_stats(store):
    code = (
        "import sys, ds4ref.reports.cli as m\n"
        f"assert m.main(['list', '--store', {str(store.path)!r}]) == 0\n"
        "print('heavy:', sorted({'scipy.stats', 'matplotlib', 'jinja2', 'numba'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "heavy: []\n" and len(done.stdout.splitlines()) > 2


def test_checked_vectors_are_imported(store, tmp_path, capsys):
    """Their rows: ``tests/runs/test_store.py``."""
    step = {"step": 0, "verdict": "match", "delta": -0.25, "kl": 1e-9}
    results = [{"id": name, "verdict": "match", "steps": [step]} for name in "abc"]
    path = tmp_path / "check.json"
    path.write_text(json.dumps({"path": "v", "target": "local", "failed": ["b", "c"], "results": results}))
    assert call(capsys, "import", path)[:2] == (0, "run 3: check, 3 rows\n")
    run = store.run(3)
    assert run.kind == "vectors" and run.fact("target") == "local" and "results" not in run.facts
    assert [(row["passed"], row["max_abs"]) for row in store.rows(3)] == [(True, 0.25), (False, 0.25), (False, 0.25)]
    report = tmp_path / "r.html"
    assert call(capsys, "build", "before", "check", "-o", report)[0] == 0
    assert "1 of 3 vectors pass" in report.read_text()


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"results": [{"id": "a"}], "failed": []}', '{"results": 3}', "{", "\xff"]
)
def test_other_json_is_refused(store, tmp_path, capsys, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("latin-1"))
    code, out, err = call(capsys, "import", path)
    assert (code, out) == (1, "") and "x.json: not" in err


@pytest.mark.parametrize("sample", ['{"prefill_tps": 1.0}', '{"ctx_tokens": "8", "prefill_tps": 1, "gen_tps": 1}'])
def test_samples_without_their_columns_are_refused(store, csvs, tmp_path, capsys, sample):
    (tmp_path / "m4_max.json").write_text(f'{{"samples": [{sample}]}}')
    for argv in (["import", csvs[1]], ["compare", *csvs]):
        code, out, err = call(capsys, *argv)
        assert (code, out) == (1, "") and "m4_max.json: row 1: ctx_tokens is" in err
    run = store.add("bench", {}, [json.loads(sample)], label="odd")
    code, _, err = call(capsys, "compare", "odd", "before")
    assert code == 1 and f"run {run}: row 1: ctx_tokens is" in err


def test_facts_of_another_type_are_refused(csvs, tmp_path, capsys):
    (tmp_path / "m4_max.json").write_text('{"machine": [1]}')
    code, out, err = call(capsys, "import", csvs[1])
    assert (code, out) == (1, "") and "m4_max.json: machine is '[1]', not a JSON object" in err
