"""The fuzzer of the grader: it finds what it is there to find, and draws the same texts each time."""

import random

import pytest

from benchmarks import grading
from eval.grading import corpus, statements


@pytest.fixture(scope="module")
def found():
    return grading.fuzz(400, 1)


def test_no_text_crashes_the_grader(found):
    assert found["crashes"] == [] and found["texts"] == 400


def test_figures_agree(found):
    assert 0 < found["median_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert 0 < found["cpu_s"] and len(found["slowest"]) == grading.SLOWEST
    assert list(found["above"].values()) == sorted(found["above"].values(), reverse=True)


def test_a_crash_is_told(monkeypatch, capsys):
    def breaks(output, *rest):
        raise RecursionError("too deep")

    monkeypatch.setattr(statements.Output, "read", breaks)
    found = grading.fuzz(60, 1)
    assert found["crashes"] and "RecursionError: too deep" in found["crashes"][0]
    monkeypatch.setattr(grading, "GROWTH", (200,))
    monkeypatch.setattr(grading, "growth", lambda seed: {"runs": {"0 kB": 1.0}})
    assert grading.main(["--texts", "60"]) == 1
    assert "RecursionError" in capsys.readouterr().out


def test_a_slow_text_is_told(monkeypatch):
    times = iter([0.001] * 9 + [0.5] + [0.001] * 19 + [0.3] * 500)
    monkeypatch.setattr(grading, "seconds", lambda *case: next(times))
    found = grading.fuzz(29, 1)
    assert found["above_at_first"] == 1 and found["max_ms"] == 300.0
    assert found["slowest"][0].startswith("300.00 ms, text 9:")


@pytest.mark.parametrize("way", grading.draws(corpus.entries()))
def test_every_way_of_making_a_text_depends_on_its_seed_alone(way):
    draw = grading.draws(corpus.entries())[way]
    assert draw(random.Random(5), 3000) == draw(random.Random(5), 3000)
    assert len({draw(random.Random(seed), 3000) for seed in range(5)}) == 5


def test_texts_are_clipped_to_bytes():
    for text in ("a" * 50_000, "é" * 30_000, "\ud800" * 20_000, "\U0001d402" * 9000):
        short = grading.clipped(text)
        assert text.startswith(short) and 15_000 < len(short.encode("utf-8", "surrogatepass")) <= grading.LONGEST
    assert grading.clipped("abc") == "abc"


def test_growth_is_measured(monkeypatch):
    monkeypatch.setattr(grading, "GROWTH", (1000, 3000))
    table = grading.growth(1)
    assert table and all(list(row) == ["1 kB", "3 kB"] and min(row.values()) >= 0 for row in table.values())
