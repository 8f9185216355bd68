"""A published result names its command, commit and machine."""

import re
from pathlib import Path

import pytest

from ds4ref.reports.sources import read_csv
from ds4ref.runs.columns import HEADER

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "speed_bench" / "results").glob("*.csv"))


def test_there_are_results():
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=[path.name for path in RESULTS])
def test_every_result_says_where_it_came_from(path):
    found = read_csv(path)
    facts = found.run.facts
    assert path.with_suffix(".json").exists(), "the facts lie beside the rows"
    assert facts["command"][0] == "ds4-bench" and any(part.endswith(path.name) for part in facts["command"])
    assert re.fullmatch(r"[0-9a-f]{40}", facts["commit"] or ""), "a commit that others can look up, without changes"
    assert facts["machine"]["cpu"] and facts["machine"]["load"] is not None and facts["versions"]["numpy"]
    assert re.fullmatch(r"[0-9a-f]{64}", facts["model"]["sha256"]) and len(facts["prompt_sha256"]) == 64
    assert not [part for part in facts["command"] if part.startswith("/")], "no paths of one machine"


@pytest.mark.parametrize("path", RESULTS, ids=[path.name for path in RESULTS])
def test_rows_and_facts_are_of_one_run(path):
    """Medians of the single repetitions in the JSON are the rows of the CSV."""
    header, *lines = path.read_text().splitlines()
    assert HEADER.startswith(header)
    rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    samples = read_csv(path).rows
    assert len(samples) == sum(int(row["reps"]) for row in rows)
    for row in rows:
        own = sorted(s["gen_tps"] for s in samples if s["ctx_tokens"] == int(row["ctx_tokens"]))
        assert float(row["gen_tps"]) == pytest.approx((own[(len(own) - 1) // 2] + own[len(own) // 2]) / 2, abs=0.006)
