"""Scores, pass@k, majorities and costs of small logs, counted by hand."""

from __future__ import annotations

import msgspec
import pytest

from ds4ref.eval.log import Grade
from ds4ref.eval.scores import majority_of, pass_at, summarize, summary
from ds4ref.runs.stats import share_interval

from . import logs as made


def found(*epochs: str):
    return summary(made.build("x", epochs))


def test_a_majority_is_that_of_the_first_k() -> None:
    """One question, five answers: wrong, wrong, right, right, right. Of the first four it is a tie."""
    summed = found("w", "w", "r", "r", "r")
    assert summed.majority == {4: 0.5, 5: 1.0}
    assert majority_of(made.build("x", "wwrrr").samples, 3) == 0.0
    assert summed.passes == {1: pytest.approx(0.6), 2: pytest.approx(0.9), 4: 1.0, 5: 1.0}
    assert pass_at(made.build("x", "wwrrr").samples, 6) is None and majority_of([], 1) is None


def test_who_says_nothing_clear_has_no_vote_and_questions_count_alike() -> None:
    """right by 1 to 1 (a tie) and wrong by 2 to 0, and one without any vote."""
    samples = made.build("x", ["rwa", "wwm", "awa"]).samples
    assert majority_of(samples, 3) == pytest.approx((0.5 + 0 + 0) / 3)
    assert majority_of(samples[:-1], 3) is None  # one question has two answers only


def test_wrong_letters_are_one_vote_where_they_mean_one_choice() -> None:
    """Choices are shown in another order each time: B, then C, both the same wrong choice; and D, another one."""
    asked = made.question(1, "science")
    right = made.sample(asked, "right", 1)
    wrong = [
        msgspec.structs.replace(made.sample(asked, "wrong", epoch), grade=Grade("wrong", given, ""), order=order)
        for epoch, given, order in ((2, "B", (0, 1, 2, 3)), (3, "C", (2, 0, 1, 3)), (4, "D", (0, 1, 2, 3)))
    ]
    other = msgspec.structs.replace(right, epoch=5)
    assert majority_of([right, other, wrong[0], wrong[2]], 4) == 1.0  # 2 to 1 to 1
    assert majority_of([right, other, wrong[0], wrong[1]], 4) == 0.5  # 2 to 2


def test_a_question_counts_once_however_often_it_was_asked() -> None:
    """Shares of 1, 1/2 and 0 by two graded answers, one, and two; failed and stopped ones are in no score."""
    summed = found("rrw", "rww", "fss", "smf")
    # maths-000: r r; science-001: r w; security-002: w w, missing is a grade of science-001 in epoch 4
    assert summed.whole.share == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert summed.whole.interval == share_interval([1.0, 1 / 3, 0.0])
    assert (summed.whole.samples, dict(summed.whole.outcomes)) == (7, {"right": 3, "wrong": 3, "missing": 1})
    assert (summed.failed, summed.stopped) == (2, 3)
    assert {score.name: (score.share, score.samples) for score in summed.sources} == {
        "maths": (1.0, 2), "science": (pytest.approx(1 / 3), 3), "security": (0.0, 2),
    }  # fmt: skip


def test_costs_are_means_of_what_is_known() -> None:
    """Tokens of 210, 220 and an uncounted one; the rate is that of decoding, without the time to the first token."""
    log = made.build("x", ["r", "w", "r"])
    log.samples[2] = msgspec.structs.replace(log.samples[2], tokens=None, seconds=20.5, reasoning_tokens=None)
    log.samples[1] = msgspec.structs.replace(log.samples[1], close="hard")
    log.samples[0] = msgspec.structs.replace(log.samples[0], finish="length")
    summed = summary(log)
    assert (summed.tokens, summed.reasoning, summed.seconds) == (215, 150, pytest.approx(41.5 / 3))
    assert summed.rate == pytest.approx((209 + 219) / 20) and summed.exhausted == 2
    assert summed.to_json()["tokens_per_sample"] == 215 and summed.to_json()["seconds_per_sample"] == summed.seconds


def test_medians_halves_and_the_price_of_a_right_answer() -> None:
    """Answers of 10, 20, 30 and 1,000 tokens; only the shorter two are right."""
    log = made.build("x", ["rrww"])
    for sample, tokens in zip(log.samples, (10, 20, 30, 1000), strict=True):
        sample.tokens = tokens
    summed = summary(log)
    assert (summed.median, summed.price, summed.tokens) == (25.0, 530.0, 265.0)
    assert [(s.name, s.share, s.samples) for s in summed.lengths] == [
        ("up to 25 tokens", 1.0, 2), ("longer answers", 0.0, 2)
    ]  # fmt: skip
    assert found("ww").price is None and found("rr").lengths == (), "all are as long"
    for sample in log.samples:
        sample.tokens = None
    assert (summary(log).median, summary(log).price, summary(log).lengths) == (None, None, ())


def test_scores_by_difficulty() -> None:
    log = made.build("x", ["rwrw"])
    names = ("hard", "very hard", "hard", "")
    asked = [msgspec.structs.replace(q, difficulty=d) for q, d in zip(log.header.questions, names, strict=True)]
    summed = summarize({q.id: q for q in asked}, log.samples)
    assert [(s.name, s.share) for s in summed.difficulties] == [("hard", 1.0), ("very hard", 0.0), ("not stated", 0.0)]
    assert set(summed.to_json()["per_difficulty"]) == {"hard", "very hard", "not stated"}


def test_two_reports_of_one_run_have_one_order() -> None:
    """Whatever order the samples were made in: several at once, resumed, taken from the log or from the plan."""
    log = made.build("x", ["rwamrr", "rrwwar"])
    backwards = summarize(log.questions, log.samples[::-1])
    assert backwards == summary(log)
    assert list(backwards.to_json()["per_source"]) == ["maths", "science", "security"]


def test_json_says_what_people_read() -> None:
    whole = found("rw").whole
    said = whole.to_json()
    assert said == {
        "score": 0.5, "ci95": [whole.interval.low, whole.interval.high], "n": 2, "samples": 2, "right": 1, "wrong": 1,
        "ambiguous": 0, "missing": 0,
    }  # fmt: skip
    assert 0 < said["ci95"][0] < 0.5 < said["ci95"][1] < 1
