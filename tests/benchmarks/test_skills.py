"""The benchmark of skills grades, compares, damages and resumes as it says; with random weights or made-up logits."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.skill_tables import change, fallen, score_rows, tables
from benchmarks.skills import (  # fmt: skip
    ABLATIONS,
    FAULTS,
    PLAIN,
    RIGHT,
    TEXT,
    Arm,
    Engines,
    Question,
    Results,
    answer,
    measure,
    questions,
    record,
)
from ds4ref.eval import nano_pack
from ds4ref.nano import random_path
from ds4ref.nano.skills import depth, tokenizer

VOCAB = 2048
ABOUT = {"items": 24, "seed": 0, "weights": "w"}


def sure(ids: list[int], wrong: tuple[int, ...] = ()) -> np.ndarray:
    """Logits that are sure of the token that follows; of another one before the positions ``wrong``."""
    logits = np.zeros((len(ids) - 1, VOCAB), np.float32)
    logits[np.arange(len(ids) - 1), [t + (i in wrong) for i, t in enumerate(ids[1:], 1)]] = 30
    return logits


def test_every_token_of_a_reply_must_be_right() -> None:
    ids = [1, 20, 30, 40, 50]
    asked = Question(ids, reply=2)
    good = answer(asked, sure(ids))
    assert good.right == 1 and good.nll == pytest.approx(0, abs=1e-6)
    assert answer(asked, sure(ids, (1, 2))).right == 1  # not part of the reply
    for at in (3, 4):
        bad = answer(asked, sure(ids, (at,)))
        assert bad.right == 0 and bad.nll == pytest.approx(30, abs=0.1)
    assert answer(Question(ids, reply=4), sure(ids, (2,))).right == 0.75  # a text


def test_logits_that_are_no_numbers_are_wrong() -> None:
    ids = [1, 20, 30]
    assert answer(Question(ids, 1), np.full((2, VOCAB), np.nan, np.float32)).right == 0


def test_a_call_is_graded_in_parts() -> None:
    asked = questions("tools/fixed", 1, 0)[0]
    (call,) = asked.item.reply.calls
    good = answer(asked, sure(asked.ids))
    assert good.right and good.parts == {"tool": True, "arguments": True, "call": True}
    pieces = [tokenizer().token_bytes(t).decode() for t in asked.ids]
    name = next(i for i in range(len(pieces) - asked.reply, len(pieces)) if pieces[i] and pieces[i] in call.name)
    bad = answer(asked, sure(asked.ids, (name,)))
    assert not bad.right and bad.parts == {"tool": False, "arguments": True, "call": False}


def test_recall_has_its_depth() -> None:
    for far in (32, 128):
        for asked in questions(f"recall@{far}", 3, 1):
            assert far - 12 <= depth(asked.item, tokenizer()) <= far + 2


def unit(skill: str, right: list[float], nll: list[float] | None = None) -> dict:
    n = len(right)
    return {"unit": {"skill": skill}, "right": right, "parts": {}, "nll": nll or [1.0] * n, "tokens": [10] * n,
            "guess": 0.25}  # fmt: skip


@pytest.mark.thorough
def test_the_pack_is_asked_whole_and_graded_as_a_whole() -> None:
    asked = questions("pack", 3, 0)
    assert [q.item for q in asked] == [item for item, _ in nano_pack.items()]
    answers = [answer(q, sure(q.ids, () if i else (len(q.ids) - 1,))) for i, q in enumerate(asked)]
    line = record({}, asked, answers, answers)
    assert line["right"] == [0.0] + [1.0] * (len(asked) - 1) and line["parts"] == {}


def test_changes_are_paired_and_corrected() -> None:
    before, after = unit("a", [1] * 30 + [0] * 10), unit("a", [1] * 15 + [0] * 25)
    interval = change(before, after)
    assert interval.estimate == pytest.approx(-15 / 40) and interval.high < 0 and interval.p < 0.001
    assert change(before, before).low < 0 < change(before, before).high
    little = unit("b", [1] * 25 + [0] * 15)  # significant alone, not among ten
    assert change(before, little).high < 0.01
    same = {f"s{i}": unit(f"s{i}", [1] * 40) for i in range(9)}
    assert list(fallen({"a": before, **same}, {"a": after, **same})) == ["a"]
    assert not fallen({"a": before, **same}, {"a": little, **same})
    rng = np.random.default_rng(0)
    text = unit(TEXT, [0.5] * 30, (10 + rng.random(30)).tolist())
    worse = unit(TEXT, [0.4] * 30, (12 + rng.random(30)).tolist())
    assert -0.3 < change(text, worse).estimate < -0.1 and list(fallen({TEXT: text}, {TEXT: worse})) == [TEXT]


def test_scores_have_wilsons_interval() -> None:
    ((skill, share, span, guess, n),) = score_rows([unit("a", [1] * 10 + [0] * 10)])
    assert (skill, share, guess, n) == ("a", "50.0", "25.0", "20") and span == "29.9 to 70.1"


@pytest.mark.thorough
def test_mistakes_change_logits() -> None:
    engines = Engines(threads=1, open_path=lambda recipe: random_path())
    ids = np.random.default_rng(3).integers(0, 256, 300).tolist()
    right = engines(Arm("any", "exact", RIGHT), ids)
    assert np.allclose(engines(Arm("any", "exact", PLAIN), ids), right, atol=1e-3)
    for name in ABLATIONS:
        other = engines(Arm("any", "exact", name), ids)
        assert other.shape == right.shape and np.isfinite(other).all()
        assert np.abs(other - right).max() > 1e-3, name
        first = int(np.flatnonzero(np.abs(other - right).max(axis=1) > 1e-3)[0])
        assert name != "window_short" or first >= engines.runner(Arm("any", "exact")).engine.shape.window - 1


def test_a_run_goes_on_where_it_was_stopped(tmp_path) -> None:
    short = next(name for name, fault in FAULTS.items() if fault.tokens == 64)
    arms = [Arm("f16", "exact", name) for name in (RIGHT, "no_sink", short)]
    calls: list[Arm] = []

    def logits(arm: Arm, ids: list[int]) -> np.ndarray:
        calls.append(arm)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return sure([*ids, 5], (3,) if arm.fault == "no_sink" else ())

    rows = [Question([1, 2, 7, i, 5], 2) for i in range(10, 34)]
    ask = {"a": lambda: rows, "b": lambda: rows}
    path = tmp_path / "out.jsonl"
    results = Results(path)
    results.append({"created": "now", "weights": "w"})
    with pytest.raises(KeyboardInterrupt):
        measure(results, ask, arms, arms[0], logits, ABOUT)
    assert len(Results(path).units) == 3
    with open(path, "a") as file:
        file.write('{"unit": {"sk')  # a torn line
    again = Results(path)
    measure(again, ask, arms, arms[0], logits, ABOUT)
    assert len(calls) == 60 + 2 * len(rows) and {arm.fault for arm in calls} == {RIGHT, "no_sink"}
    assert len(Results(path).units) == 6
    measure(again, ask, arms, arms[0], logits, ABOUT)
    assert len(calls) == 60 + 2 * len(rows)
    kept = next(line for line in again.units.values() if line["unit"]["fault"] == "no_sink")
    assert sum(kept["right"]) == 0 and min(kept["kl_mean"]) > 1
    text = tables(again)
    assert "1 of 2 mistakes lower" in text and f"| {short} | 0 |  | 100.0 = | 100.0 = |" in text
