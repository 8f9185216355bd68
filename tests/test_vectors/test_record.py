"""Every check and perplexity run is stored with its environment, and two of them can be compared."""

import json

import pytest

from ds4ref.reports.cli import main as report
from ds4ref.runs.store import Store
from ds4ref.test_vectors.cli import main

ENGINE = ["--backend", "reference", "-t", "1"]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory, nano_path):
    folder = tmp_path_factory.mktemp("vectors")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "prompt": "Say it. " * (i + 1)}) + "\n" for i in range(2)))
    argv = ["capture", str(folder / "v"), "--prompts", str(prompts), "-n", "2", "--repeat", "1", *ENGINE]
    assert main([*argv, "--target", f"local:{nano_path}", "--numerics", "exact"]) == 0
    return str(folder / "v")


def test_a_check_is_kept(vectors, nano_path, private_data, capsys):
    argv = ["check", vectors, "--target", f"local:{nano_path}", *ENGINE]
    assert main([*argv, "--numerics", "exact", "--label", "before"]) == 0
    main([*argv, "--numerics", "ds4", "--label", "after"])
    assert "saved as run 2; ds4-report show 2\n" in capsys.readouterr().err
    with Store.open(private_data / "runs.sqlite") as store:
        result = store.find("before")
        assert result.kind == "vectors" and result.status == "complete"
        assert len(result.fact("model", "sha256")) == len(result.fact("prompt_sha256")) == 64
        assert result.fact("numerics") == "exact" and result.fact("command")[:2] == ["ds4-vectors", "check"]
        assert result.fact("machine", "cpu") and result.fact("versions", "numpy") and result.fact("threads") == 1
        rows = store.rows(result.id)
    assert [row["id"] for row in rows] == ["p0", "p1"]
    assert all(row["passed"] and row["tokens"] == 2 and row["nll"] > 0 for row in rows)
    assert report(["compare", "before", "after"]) == 4
    assert report(["compare", "before", "after", "--differ", "numerics", "--json"]) in (0, 1)
    (finding,) = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    assert finding["metric"].startswith("perplexity") and finding["n"] == 2


def test_perplexities_are_kept(nano_path, private_data):
    argv = ["ppl", "--depths", "40", "--window", "16", "--target", f"local:{nano_path}", *ENGINE]
    assert main(argv) == 0
    with Store.open(private_data / "runs.sqlite") as store:
        kept = {run.label: store.rows(run.id) for run in store.runs(kind="vectors")}
    assert kept["ppl"][0]["id"] == "depth 40" and kept["ppl"][0]["tokens"] == 8


@pytest.mark.thorough
def test_no_record_if_unwanted(vectors, nano_path, private_data, capsys):
    argv = ["check", vectors, "--target", f"local:{nano_path}", "--numerics", "exact", *ENGINE]
    assert main([*argv, "--no-store"]) == 0
    assert not (private_data / "runs.sqlite").exists()
    (private_data / "other.sqlite").write_text("not a store")
    assert main([*argv, "--store", str(private_data / "other.sqlite")]) == 1
    assert "is not a run store" in capsys.readouterr().err
