"""Difficulty and discrimination from logs: against scipy and against values computed by hand."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from scipy import stats as oracle

from ds4ref.eval.calibrate import LEAST_ENGINES, LEAST_OTHERS, LEAST_PAIRED, calibrate, document, text
from ds4ref.eval.cli import main
from ds4ref.eval.log import read
from tests.eval import logs


def graded(letters: list[str], **more):
    """A log for each engine, all of the same questions."""
    return [logs.build(f"{i}.jsonl", [row], name=f"model {i}", digest=f"d{i}", **more) for i, row in enumerate(letters)]


def table(seed: int, engines: int, questions: int, spread: float = 1.0) -> np.ndarray:
    """Right or wrong, (engines, questions): abler engines are right more often."""
    rng = np.random.default_rng(seed)
    able, hard = rng.normal(size=(engines, 1)), spread * rng.normal(size=questions)
    return rng.random((engines, questions)) < 1 / (1 + np.exp(hard - able))


def letters_of(right: np.ndarray) -> list[str]:
    return ["".join("rw"[not cell] for cell in row) for row in right]


def test_discrimination_is_scipys_point_biserial_with_the_rest():
    right = table(1, 40, 30)
    found = calibrate(graded(letters_of(right)))
    assert found.engines == 40 and len(found.items) == 30
    for j, item in enumerate(found.items):
        rest = np.delete(right, j, axis=1).mean(axis=1)
        expected = oracle.pointbiserialr(right[:, j], rest)
        assert item.discrimination.r == pytest.approx(expected.statistic, abs=1e-12)
        assert item.discrimination.engines == 40
        # told is where scipy's p is 0.05
        assert (abs(item.discrimination.r) > item.discrimination.told) == (expected.pvalue < 0.05)


def test_the_limit_of_what_can_be_told_by_hand():
    """20 engines: t(18) = 2.1009, and 2.1009 / sqrt(2.1009**2 + 18) = 0.4438."""
    found = calibrate(graded(letters_of(table(2, 20, 12))))
    assert found.items[0].discrimination.told == pytest.approx(0.4438, abs=5e-5)


def test_difficulty_is_wilsons_interval_by_hand():
    """8 of 10: centre (0.8 + 1.92073 / 10) / 1.384146 = 0.71674, half width 0.22674."""
    found = calibrate(graded(["r" * 2] * 8 + ["wr"] + ["ar"]))
    first, second = found.items
    assert (first.engines, first.share) == (10, 0.8)
    assert first.difficulty.low == pytest.approx(0.4901, abs=1e-4)
    assert first.difficulty.high == pytest.approx(0.9433, abs=1e-4)
    assert second.note == "all right" and first.note == ""


def test_few_engines_are_no_measurement():
    few = calibrate(graded(["r" * 12] * (LEAST_ENGINES - 1)))
    assert all(item.difficulty is None and item.discrimination is None for item in few.items)
    assert few.items[0].note == f"unmeasured: fewer than {LEAST_ENGINES} engines" and few.items[0].engines == 9
    enough = calibrate(graded(["r" * 12] * LEAST_ENGINES))
    assert all(item.difficulty is not None and item.discrimination is None for item in enough.items)
    right = table(3, LEAST_PAIRED, LEAST_OTHERS + 1)
    assert all(item.discrimination is not None for item in calibrate(graded(letters_of(right))).items)
    assert all(item.discrimination is None for item in calibrate(graded(letters_of(right[:-1]))).items)
    assert all(item.discrimination is None for item in calibrate(graded(letters_of(right[:, :-1]))).items)


def test_logs_of_one_engine_count_once():
    """Another seed, another epoch or the same file again bring no engine; another setting or model does."""
    same = [logs.build(f"{i}", ["rw"]) for i in range(3)] + [logs.build("epochs", ["rw", "ww"])]
    found = calibrate(same)
    assert found.engines == 1 and found.items[0].samples == 5
    assert found.items[0].share == pytest.approx(4 / 5) and found.items[1].share == 0
    seeded = logs.build("seed", ["rr"])
    seeded.header.settings = {**seeded.header.settings, "seed": 7}
    assert calibrate([*same, seeded]).engines == 1
    cool = logs.build("temp", ["rr"])
    cool.header.settings = {**cool.header.settings, "temperature": 0.5}
    assert calibrate([*same, cool]).engines == 2
    assert calibrate([*same, logs.build("other", ["rr"], digest="sha256:other")]).engines == 2


def test_where_a_server_is_tells_engines_apart_and_where_a_file_is_does_not():
    files = [logs.build(name, ["r"], name=name) for name in ("a", "b")]
    assert calibrate(files).engines == 1
    served = [logs.build(name, ["r"], kind="http", name=name, digest=None) for name in ("http://a/v1", "http://b/v1")]
    assert calibrate(served).engines == 2


def test_engines_average_before_questions_do():
    """An engine with nine right epochs weighs as much as one with a wrong one."""
    often, once = logs.build("a", ["r"] * 9), logs.build("b", ["w"], digest="other")
    assert calibrate([often, once]).items[0].share == 0.5


def test_what_was_not_graded_is_in_no_figure():
    found = calibrate(graded(["rfs", "rrf", "mra"]))
    assert [(item.engines, item.share) for item in found.items] == [(3, pytest.approx(2 / 3)), (2, 1.0), (1, 0.0)]
    assert not calibrate(graded(["fs"])).items


def test_engines_that_answered_other_questions_are_comparable():
    """Half of the engines, drawn without regard to ability, leave out half of the others: easy ones or hard ones.

    A plain mean of what is left would take whoever left out the hard ones for able.
    """
    right = table(4, 60, 40, spread=3)
    ease = right.mean(axis=0).argsort()
    skipped = letters_of(right)
    for i in range(0, 60, 2):
        left_out = set(ease[:20] if i % 4 else ease[20:]) - {0}
        skipped[i] = "".join(" " if j in left_out else letter for j, letter in enumerate(skipped[i]))
    part = calibrate(graded(skipped)).items[0].discrimination
    whole = calibrate(graded(letters_of(right))).items[0].discrimination
    kept = np.array([[letter != " " for letter in row] for row in skipped])
    plain = [right[i, kept[i] & (np.arange(40) > 0)].mean() for i in range(60)]
    naive = oracle.pointbiserialr(right[:, 0], plain).statistic
    assert part.engines == 60
    assert abs(part.r - whole.r) < 0.12 < abs(naive - whole.r)


def test_only_questions_of_the_same_pack_are_the_others():
    right, other = table(9, 30, 15), graded(letters_of(table(10, 30, 25)))
    for log in other:
        log.header.pack = {**log.header.pack, "pack": "other"}
        log.header.questions = [msgspec.structs.replace(q, question=f"{q.question} Now?") for q in log.header.questions]
    alone, both = calibrate(graded(letters_of(right))), calibrate([*graded(letters_of(right)), *other])
    assert both.engines == 30 and both.items[:15] == alone.items
    assert both.items[15:] == calibrate(other).items and {item.pack for item in both.items[15:]} == {"other"}


def test_no_spread_is_no_correlation():
    right = table(5, 25, 20)
    right[:, 3] = True
    item = calibrate(graded(letters_of(right))).items[3]
    assert item.discrimination.r is None and item.note == "all right"
    alike = np.tile(right[0], (25, 1))
    alike[:12, 0] = ~alike[:12, 0]
    assert calibrate(graded(letters_of(alike))).items[0].discrimination.r is None, "the others do not differ"


def test_a_wrong_key_is_pointed_at():
    right = table(6, 50, 30)
    able = right.mean(axis=1).argsort()
    right[:, 7] = False
    right[able[:25], 7] = True
    item = calibrate(graded(letters_of(right))).items[7]
    assert item.discrimination.r < -0.6 and item.note == "better engines fail: is the key right?"


def test_questions_are_the_same_by_what_they_ask():
    one, other = graded(["rr", "rr"])
    other.header.questions = [msgspec.structs.replace(q, id=f"x-{q.id}") for q in other.header.questions]
    other.samples = [msgspec.structs.replace(s, id=f"x-{s.id}") for s in other.samples]
    assert [item.engines for item in calibrate([one, other]).items] == [2, 2]


# --- the command


@pytest.fixture
def files(tmp_path):
    paths = []
    for i, row in enumerate(letters_of(table(8, 22, 15))):
        paths.append(str(tmp_path / f"{i}.jsonl"))
        logs.write(tmp_path / f"{i}.jsonl", [row], target={"digest": f"d{i}"})
    return paths


def test_a_table_that_fits(files, capsys):
    assert main(["calibrate", *files]) == 0
    out = capsys.readouterr().out
    assert "15 questions answered by 22 engines (a model with its settings) in 22 logs" in out
    assert "difficulty: 15 measured, 0 not" in out and "discrimination: 15 measured" in out
    assert out.count(" to ") == 15
    found = calibrate([read(path) for path in files])
    assert all(len(line) <= 60 for line in text(found, 60).split("\n"))
    assert "unmeasured: fewer than 10" in text(calibrate([read(files[0])]), 160)


def test_json(files, capsys):
    assert main(["calibrate", *files, "--json", "--only", "maths"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out.count("\n") == 1 and found["engines"] == 22 and len(found["logs"]) == 22
    assert found["least_engines"] == {"difficulty": 10, "discrimination": 20, "other_questions": 10}
    assert [item["source"] for item in found["items"]] == ["maths"] * 5
    whole = document(calibrate([read(path) for path in files]))
    assert found["items"] == [item for item in whole["items"] if item["source"] == "maths"], "counted over all"
    item = found["items"][0]
    low, high = item["difficulty"]["ci95"]
    assert low < item["share_right"] == item["difficulty"]["share_right"] < high
    assert item["discrimination"]["engines"] == 22
    assert main(["calibrate", files[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["difficulty"] is None


@pytest.mark.parametrize(
    "arguments, said", [([], "calibrate needs logs"), (["nothing.jsonl"], "nothing.jsonl"), (["x", "--only"], "--only")]
)
def test_usage(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *arguments]) in (1, 2)
    assert said in capsys.readouterr().err


def test_nothing_graded(tmp_path, capsys):
    logs.write(tmp_path / "a.jsonl", ["ff"])
    assert main(["calibrate", str(tmp_path / "a.jsonl")]) == 2
    assert "no graded answer" in capsys.readouterr().err
