"""Differences of logits, golden files and perplexities against numbers computed by hand or by scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax as scipys
from scipy.stats import binomtest, entropy

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.runs.stats import weighted_interval
from ds4ref.targets import Ability, Prompt, Step, Token
from ds4ref.test_vectors.logits import check, differences, freeze, load
from ds4ref.test_vectors.observation import Observation, from_logits, from_top
from ds4ref.test_vectors.ppl import by_depth, continuation_nll, echo_agrees, paired, score
from ds4ref.test_vectors.recall import Recall, grade, make

from .scripted import Scripted, step

RNG = np.random.default_rng(7)
A = RNG.normal(0, 2, (4, 12)).astype(np.float32)
B = A + RNG.normal(0, 0.3, A.shape).astype(np.float32)


def test_differences_are_those_of_the_definitions():
    found = differences(A, B, np.array([3, 5, 8, 9]))
    a, b = A.astype(np.float64), B.astype(np.float64)
    assert found.max == pytest.approx(abs(a - b).max(axis=1)) and found.rows.tolist() == [3, 5, 8, 9]
    assert found.rms == pytest.approx(np.sqrt(((a - b) ** 2).mean(axis=1)))
    p, q = np.exp(scipys(a, axis=1)), np.exp(scipys(b, axis=1))
    assert found.kl == pytest.approx(entropy(p, q, axis=1), rel=1e-9)
    assert found.same_top.tolist() == (a.argmax(axis=1) == b.argmax(axis=1)).tolist()
    best = [(set(np.argsort(-x)[:5]), set(np.argsort(-y)[:5])) for x, y in zip(a, b, strict=True)]
    assert found.overlap == pytest.approx([len(x & y) / 5 for x, y in best])
    said = found.summary(0.1)
    assert said["positions"] == 4 and said["max"] == found.max.max() and said["kl"] == pytest.approx(found.kl.mean())
    assert said["rms"] == pytest.approx(np.sqrt(((a - b) ** 2).mean())), "over all values, not over rows"
    assert said["worst_position"] == [3, 5, 8, 9][int(found.max.argmax())]


def test_the_first_bad_position():
    b = A.copy()
    b[1:, 0] += np.array([0.5, 1.0, 2.0], np.float32)
    found = differences(A, b, np.array([10, 20, 30, 40]))
    limit = float(found.max[1])
    assert [found.first_bad(atol) for atol in (limit / 2, limit, 1.5, 3.0)] == [20, 30, 40, None]
    b[2, 3] = np.nan
    broken = differences(A, b)
    assert broken.first_bad(1e9) == 2 and broken.summary(1e9)["max"] is None and broken.summary(1e9)["first_bad"] == 2
    assert broken.summary(1e9)["worst_position"] == 2 and differences(A[:0], A[:0]).summary(0.0)["max"] is None
    assert differences(A[:0], A[:0]).summary(0.0)["positions"] == 0 and differences(A[:0], A[:0]).first_bad(0.0) is None
    with pytest.raises(DataError, match="cannot be compared"):
        differences(A, A[:3])


def test_a_token_masked_on_both_sides_is_no_difference():
    a, b = A.copy(), A.copy()
    a[:, 4] = b[:, 4] = -np.inf
    found = differences(a, b)
    assert not found.max.any() and not found.kl.any() and found.same_top.all() and (found.overlap == 1).all()
    b[2, 4] = 0.0
    assert differences(a, b).first_bad(100.0) == 2


@pytest.mark.parametrize("top", [0, 3, 8])
def test_golden_files(tmp_path, top):
    path = str(tmp_path / "g.npz")
    freeze(path, [5, 6, 7, 8], A, {"model": "m"}, top)
    golden = load(path)
    assert golden.ids.tolist() == [5, 6, 7, 8] and golden.about["vocab"] == 12 and golden.about["model"] == "m"
    same = check(golden, A)
    assert same.max.max() < 1e-6 and same.kl.max() < 1e-6 and same.same_top.all() and (same.overlap == 1).all()
    found = check(golden, B)
    if top:
        a, b = scipys(A.astype(np.float64), axis=1), scipys(B.astype(np.float64), axis=1)
        order = np.argsort(-A, axis=1)[:, :top]
        delta = np.take_along_axis(a - b, order, axis=1)
        assert found.max == pytest.approx(abs(delta).max(axis=1), abs=1e-5)
        assert found.rms == pytest.approx(np.sqrt((delta**2).mean(axis=1)), abs=1e-5)
        shares = np.take_along_axis(np.exp(a), order, axis=1)
        assert found.kl == pytest.approx(np.maximum((shares * delta).sum(axis=1), 0), abs=1e-5)
        k = min(top, 5)
        sets = [(set(x[:k]), set(np.argsort(-y)[:k])) for x, y in zip(order, B, strict=True)]
        assert found.overlap == pytest.approx([len(x & y) / k for x, y in sets])
        assert found.same_top.tolist() == (A.argmax(axis=1) == B.argmax(axis=1)).tolist()
    else:
        assert found.max == pytest.approx(differences(A, B).max)
    with pytest.raises(UsageError, match="will not be overwritten"):
        freeze(path, [5, 6, 7, 8], A, {})
    for wrong in (A[:3], A[:, :11]):
        with pytest.raises(DataError, match="golden logits are"):
            check(golden, wrong)


def test_golden_logits_are_whole_unless_told(tmp_path):
    freeze(str(tmp_path / "g.npz"), [5, 6, 7, 8], A, {})
    assert np.array_equal(load(str(tmp_path / "g.npz")).arrays["logits"], A)


def test_what_cannot_become_golden(tmp_path):
    for ids, logits in (([1, 2], A), ([1, 2, 3, 4], np.where(A == A[1, 1], np.inf, A))):
        with pytest.raises(DataError):
            freeze(str(tmp_path / "g.npz"), ids, logits, {})
    assert not list(tmp_path.iterdir())


def test_an_observation_through_fewer_alternatives():
    seen = from_logits([5, 6, 7, 8], A).top(3)
    order = np.argsort(-A, axis=1)[:, :3]
    assert seen.support.tolist() == order.tolist() and not seen.full
    assert seen.logprobs == pytest.approx(np.take_along_axis(scipys(A.astype(np.float64), axis=1), order, axis=1))
    again = seen.top(2)
    assert again.support.tolist() == order[:, :2].tolist()


def test_entries_in_any_order():
    seen = from_top([1, 2, 3, 4], [(3, [(7, -0.5)]), (1, [(9, -0.25), (4, -1.5)]), (2, [(1, -9999.0)])])
    assert seen.rows.tolist() == [1, 3] and seen.support.tolist() == [[9, 4], [7, -1]]
    assert seen.logprobs[0].tolist() == [-0.25, -1.5] and seen.logprobs[1][0] == -0.5 and np.isnan(seen.logprobs[1][1])


@pytest.mark.parametrize(("values", "quantum"), [([-0.5, -1.25], 0.01), ([-0.123456, -1], 1e-6), ([-1 / 3], 0.0)])
def test_how_finely_values_were_written(values, quantum):
    seen = Observation(np.arange(1), np.arange(1), np.zeros((1, 2), np.int64), np.array([values]))
    assert seen.quantum == pytest.approx(quantum)


# --- perplexity and likelihood


def test_a_text_is_scored_from_its_second_token_on():
    class Told(Scripted):
        abilities = frozenset(Ability)

        def score_text(self, text, top_logprobs=0):
            return [Step(Token(b"x", value)) for value in (None, -0.5, None, -2.0)]

    target = Told([step(b"x")], forced=())
    target.abilities = frozenset(Ability)
    found = score(target, "text", None)
    assert found.nll.tolist() == pytest.approx([0.5, math.nan, 2.0], nan_ok=True) and found.echo_agrees is None
    assert found.length == 4 and not found.stopped
    assert len(score(target, "text", 2).nll) == 1


def test_depths_that_the_text_does_not_reach_are_left_out():
    nll = np.arange(1.0, 100.0)  # of a text of 100 tokens
    found = by_depth(nll, [32, 33, 100, 101], 10)
    assert [(d.depth, d.tokens) for d in found] == [(33, 1), (100, 10)]
    assert found[1].nll == pytest.approx(nll[89:99].mean()) and found[1].ppl == pytest.approx(math.exp(94.5))
    assert by_depth(np.full(99, 800.0), [100], 10)[0].ppl == math.inf
    told = found[1].to_json()
    assert told["ppl_stderr"] == pytest.approx(told["ppl"] * told["nll_stderr"])


def test_the_likelihood_of_an_answer_is_the_sum_of_its_tokens():
    known = Scripted([step(b"A")], forced=[step(b"A", logprob=-0.5), step(b"B", logprob=-1.25)])
    assert continuation_nll(known, Prompt.chat("?"), [b"A", b"B"]) == (1.75, 2)
    lost = Scripted([step(b"A")], forced=[step(b"A"), Step(Token(b"B", None))])
    with pytest.raises(TargetError, match="step 1"):
        continuation_nll(lost, Prompt.chat("?"), [b"A", b"B"])


def test_paired_likelihoods():
    a, b = [(8.0, 4), (9.0, 3), (10.0, 2)], [(6.0, 4), (9.0, 3), (11.0, 2)]
    found = paired(a, b)
    assert (found.a, found.b, found.delta) == pytest.approx((27 / 9, 26 / 9, -1 / 9))
    assert (found.cases, found.tokens, found.wins) == (3, 9, (1, 1, 1)) and found.sign_p == 1.0
    assert found.interval == weighted_interval([-2.0, 0.0, 1.0], [4, 3, 2]), "the one that ds4-report uses"
    better = paired([(float(i), 1) for i in range(10)], [(i - 1.0 - 0.01 * i, 1) for i in range(10)])
    assert better.wins == (10, 0, 0) and better.sign_p == pytest.approx(binomtest(0, 10).pvalue)
    assert better.delta == pytest.approx(-1.045) and -1.08 < better.interval.low < -1.06 < better.interval.high < -1.02
    assert paired(a[:2], b[:2]).to_json()["ci95"] is None and paired(a[:2], a[:2]).to_json()["ci95"] == [0, 0]
    for wrong in ([(6.0, 4)], [(6.0, 4), (9.0, 3), (11.0, 3)]):
        with pytest.raises(UsageError, match="same tokens of the same cases"):
            paired(a, wrong)


def test_four_cases_gate_as_often_as_they_say():
    """The gate fails where the interval lies above its limit: of equal engines once in forty, not once in nine, as with
    percentiles of a bootstrap."""
    rng = np.random.default_rng(5)
    fails = 0
    for _ in range(2000):
        counts = rng.integers(8, 40, 4)
        a = [(float(n), int(n)) for n in counts]
        b = [(float(n + n * x), int(n)) for n, x in zip(counts, rng.normal(0, 0.05, 4), strict=True)]
        fails += paired(a, b).interval.low > 0
    assert 0.018 <= fails / 2000 <= 0.04


def test_wins_beyond_chance():
    for wins, losses in ((3, 1), (6, 2), (5, 5)):
        a = [(1.0, 1)] * (wins + losses)
        b = [(0.5, 1)] * wins + [(1.5, 1)] * losses
        assert paired(a, b).sign_p == pytest.approx(binomtest(wins, wins + losses).pvalue)


@pytest.mark.parametrize(("same", "agrees"), [(3, True), (2, False)])
def test_an_echo_agrees_if_half_of_the_alternatives_do(same, agrees):
    """Of five listed alternatives so many are given again."""
    listed = [(bytes([97 + i]), -1.0 - i) for i in range(5)]
    given = [(bytes([97 + i if i < same else 65 + i]), -1.0 - i) for i in range(5)]
    steps = [Step(Token(b"x"), tuple(Token(*pair) for pair in listed)) for _ in range(12)]
    answer = Step(Token(b"a"), tuple(Token(*pair) for pair in given))
    target = Scripted([answer])
    assert echo_agrees(target, steps) is agrees and len(target.asked) == 5
    assert echo_agrees(target, steps[:5]) is None, "too few to tell"


# --- facts


def test_facts_lie_where_their_sentences_stand():
    story = make(3, 80, 16)
    right = "\n".join(f"{fact.name}={fact.number}" for fact in story.facts)
    found = grade(story, right, "stop", 99)
    assert (found.right, found.facts, found.score, found.finish, found.prompt_tokens) == (16, 16, 1.0, "stop", 99)
    bins = [sum(i <= 4 * fact.position / len(story.text) < i + 1 for fact in story.facts) for i in range(4)]
    assert found.by_depth == [(n, n) for n in bins] and sum(bins) == 16
    assert grade(story, "").by_depth == [(n, 0) for n in bins]


@pytest.mark.parametrize(("right", "facts"), [(0, 12), (7, 12), (12, 12)])
def test_the_interval_is_wilsons(right, facts):
    low, high = Recall(facts, right, {}, [], [], "", "", None).interval()
    wanted = binomtest(right, facts).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((wanted.low, wanted.high))
    assert Recall(0, 0, {}, [], [], "", "", None).interval() == (0.0, 1.0)
