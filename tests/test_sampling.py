"""Sampling: golden draws of ds4's sampler bit for bit, known pitfalls, scipy as oracle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import TokenError, UsageError
from ds4ref.sampling import (
    FLOOR,
    Rng,
    Sampler,
    argmax,
    fresh_seed,
    log_sum_exp,
    token_logprob,
    top_logprobs,
)
from ds4ref.sampling.adjust import Adjustment

LOGITS = np.array([1, 3, 2, 3, -1, 0], dtype=np.float32)
INF, NAN = np.inf, np.nan


def f32(*values):
    return np.array(values, dtype=np.float32)


def draws(count, logits=LOGITS, **settings):
    sampler = Sampler(**settings)
    return [sampler.pick(logits) for _ in range(count)]


# --- golden


def test_53_54_generator():
    rng = Rng(42)
    assert [rng.next() for _ in range(3)] == [0x56CE4AB7719BA3A0, 0xC841EB53EBBB2DDA, 0xCA466BE0C9980276]
    rng = Rng(42)
    got = [rng.uniform() for _ in range(3)]
    assert got == [np.float32(u) for u in (0.339085221, 0.782255828, 0.790136993)]
    golden = {
        0: [0x0D83B3E29A21487A, 0x54C44C79F1FE9D67],
        1: [0x47E4CE4B896CDD1D, 0xABCFA6A8E079651D],
        12345: [0x9857FB32C9EFB5E4],
    }
    for seed, outputs in golden.items():
        rng = Rng(seed)
        assert [rng.next() for _ in outputs] == outputs


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"min_p": 0.05, "seed": 42}, [1, 3, 3, 3, 3, 3, 1, 1]),
        ({"temperature": 2, "min_p": 0.05, "seed": 12345}, [3, 3, 0, 3, 1, 1, 5, 2]),
        ({"top_p": 0.9, "min_p": 0, "seed": 42}, [1, 3, 3, 2, 3, 3, 1, 3]),
        ({"top_k": 3, "top_p": 0.8, "min_p": 0.1, "seed": 99}, [1, 3, 3, 3, 1, 3, 1, 3]),
        ({"top_k": 2, "seed": 1}, [1, 3, 3, 1, 1, 3, 3, 3]),
    ],
)
def test_55_56_draws(settings, wanted):
    assert draws(8, **settings) == wanted


def test_57_greedy():
    sampler = Sampler(temperature=0, seed=7)
    assert [sampler.pick(LOGITS) for _ in range(3)] == [1, 1, 1]
    assert sampler.rng.state == 7
    assert argmax(f32(NAN, NAN, NAN)) == 0
    assert argmax(f32(1, INF, 2)) == 1


# --- argmax


def naive_argmax(logits, exclude=None):
    ids = [i for i in range(len(logits)) if i != exclude]
    best, value = ids[0], np.float32(-1e30)
    for i in ids:
        if logits[i] > value:
            best, value = i, logits[i]
    return best


FLOATS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, INF, -INF, NAN, -1e30, -2e30, 3.0e38, 1e-40, -7.25])
VECTORS = st.lists(FLOATS, min_size=2, max_size=9).map(lambda values: np.array(values, dtype=np.float32))


def test_argmax_with_nothing_left():
    with pytest.raises(TokenError):
        argmax(f32(1), exclude=0)
    with pytest.raises(ValueError):
        argmax(f32())
    assert argmax(LOGITS, exclude=99) == 1
    for nothing in (f32(-INF, -INF, -INF), f32(NAN, NAN, NAN), f32(-INF, -2e30, NAN), f32(-1e30, -1e30, -1e30)):
        assert [argmax(nothing, exclude) for exclude in (None, 0, 1, 2)] == [0, 1, 0, 0]
    assert argmax(f32(-INF, -1e30, -INF)) == 0  # no better than nothing
    assert argmax(f32(-INF, -9e29, -INF)) == 1
    before = LOGITS.copy()
    assert argmax(LOGITS, exclude=1) == 3 and (before == LOGITS).all()


# --- the sampler against a plain transcription of docs/explanation/text.md 6


def naive_pick(logits, temperature, top_k, top_p, min_p, rng):
    """Loops in float32, written from the text; equal logits in id order."""
    if temperature <= 0:
        return naive_argmax(logits)
    top_p = np.float32(1 if not 0 < top_p <= 1 else top_p)
    min_p, temperature = np.float32(max(min_p, 0)), np.float32(temperature)
    ids = [i for i in range(len(logits)) if np.isfinite(logits[i])]
    if not ids:
        return naive_argmax(logits)
    ids.sort(key=lambda i: (-logits[i], i))
    best = ids[0]

    def weight(i):
        return np.float32(math.exp((logits[i] - logits[best]) / temperature))

    if top_k <= 0 and top_p >= 1:
        kept = [(i, weight(i)) for i in sorted(ids) if weight(i) >= min_p]
        fallback = best
    else:
        ids = ids[: min(top_k, 1024)] if top_k > 0 else ids
        total = np.float32(0)
        for i in ids:
            total += weight(i)
        kept, included = [], np.float32(0)
        for i in ids:
            w = weight(i)
            if kept and w / total < weight(best) / total * min_p:
                break
            kept.append((i, w))
            included += w
            if included / total >= top_p:
                break
        fallback = kept[-1][0]
    total = np.float32(0)
    for _, w in kept:
        total += w
    if not kept or total <= 0:
        return best
    r = rng.uniform() * total
    for i, w in kept:
        r -= w
        if r <= 0:
            return i
    return fallback


SMALL = st.lists(
    st.one_of(st.integers(-12, 12).map(lambda i: i / 4), st.sampled_from([INF, -INF, NAN, -300.0])),
    min_size=1,
    max_size=40,
).map(lambda values: np.array(values, dtype=np.float32))


@given(
    SMALL,
    st.sampled_from([0, -1, 0.3, 1, 2.5]),
    st.sampled_from([0, -3, 1, 2, 7, 1000, 5000]),
    st.sampled_from([1, 0.9, 0.5, 1e-6, 0, 1.5]),
    st.sampled_from([0.05, 0.4, 1, 2, -1]),
    st.integers(0, 2**64 - 1),
)
def test_against_the_plain_transcription(logits, temperature, top_k, top_p, min_p, seed):
    sampler, rng = Sampler(temperature, top_k, top_p, min_p, seed), Rng(seed)
    for _ in range(4):
        got = sampler.pick(logits)
        assert got == naive_pick(logits, temperature, top_k, top_p, min_p, rng) and type(got) is int
    assert sampler.rng.state == rng.state  # one number per draw, none when greedy or without a choice to make


class Coin:
    """A generator that gives one number."""

    def __init__(self, value):
        self.uniform = lambda: np.float32(value)


FULL, RANKED = {"min_p": 0}, {"min_p": 0, "top_k": 5000}


@pytest.mark.parametrize("settings", [FULL, RANKED])
def test_the_ends_of_the_range_of_draws(settings):
    """A share of 0 is the first token that has a chance; of a share just below 1 rounding leaves a rest, which is the
    most likely token's or, by rank, the last one's. Of more candidates than 1,024 the first count."""
    values = np.random.default_rng(2).integers(-8, 1, 40) / 4
    logits, sampler = f32(-300, *values, -300), Sampler(seed=1, **settings)
    first, last = int(values.argmax()) + 1, int(np.flatnonzero(values == values.min())[-1]) + 1
    sampler.rng = Coin(0)
    assert sampler.pick(logits) == (1 if settings is FULL else first)
    sampler.rng = Coin(1 - 2**-24)
    assert sampler.pick(logits) == (first if settings is FULL else last)
    assert sampler.pick(f32(-300, 2, *[1.0] * 3000)) == (1 if settings is FULL else 1024)


def test_frequencies_are_the_probabilities():
    """By chi-square of three degrees of freedom, which is above 31 once in a million times."""
    wanted = {1.0: [0.1171, 0.0158, 0.0021, 0.8650], 0.5: [0.0180, 0.0003, 6e-6, 0.9817],
              2.0: [0.2369, 0.0871, 0.0321, 0.6439]}  # fmt: skip
    for temperature, probs in wanted.items():
        for settings in (FULL, RANKED):
            counts = np.bincount(
                draws(6000, f32(3, 1, -1, 5), temperature=temperature, seed=5, **settings), minlength=4
            )
            expected = 6000 * np.array(probs)
            assert (np.square(counts - expected) / np.maximum(expected, 1)).sum() < 31


# --- odd settings


def test_settings():
    for bad in ({"temperature": NAN}, {"top_p": NAN}, {"min_p": NAN}):
        with pytest.raises(UsageError, match="not a number"):
            Sampler(**bad)
    assert draws(5, temperature=1e-60, seed=1) == [1] * 5
    assert set(draws(300, temperature=1e300, min_p=0, seed=1)) == set(range(6))
    tied = np.array([1, 2, 2], np.float32)
    assert set(draws(30, tied, min_p=1, seed=1)) == set(draws(30, tied, min_p=1, top_k=3, seed=1)) == {1, 2}
    assert Sampler().rng.state != Sampler().rng.state and fresh_seed() > 0


# --- log probabilities


@given(VECTORS)
def test_logprobs_against_scipy(logits):
    from scipy.special import logsumexp

    finite = logits[np.isfinite(logits)].astype(float)
    total = log_sum_exp(logits)
    assert total == (pytest.approx(logsumexp(finite), rel=1e-14, abs=1e-14) if len(finite) else -INF)
    for token, logit in enumerate(logits):
        wanted = np.float32(float(logit) - total) if np.isfinite(logit) else FLOOR
        assert token_logprob(logits, token) == wanted


@given(VECTORS, st.integers(-1, 12))
def test_top_logprobs(logits, k):
    order = sorted((i for i in range(len(logits)) if np.isfinite(logits[i])), key=lambda i: (-logits[i], i))
    got = top_logprobs(logits, k)
    assert [i for i, _, _ in got] == order[: max(k, 0)]
    for i, logit, logprob in got:
        assert logit == logits[i] and logprob == token_logprob(logits, i)
        assert type(i) is int and type(logit) is float and type(logprob) is float


@given(st.integers(0, 1 << 32), st.integers(1, 30))
def test_the_best_of_a_large_vocabulary(seed, k):
    """With equal logits at the border, in any block, and some that are -inf."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-3, rng.integers(-2, 40), 3000 + seed % 300).astype(np.float32)
    logits[rng.random(len(logits)) < rng.choice([0, 0.5, 0.999])] = -INF
    finite = np.flatnonzero(logits > -INF)
    assert [i for i, _, _ in top_logprobs(logits, k)] == list(finite[np.argsort(-logits[finite], kind="stable")][:k])


def test_token_outside_the_vocabulary():
    for token in (-1, 6):
        with pytest.raises(TokenError, match=r"outside the vocabulary \(0\.\.5\)"):
            token_logprob(LOGITS, token)


# --- bias and penalties


@given(
    st.lists(st.integers(0, 19), max_size=30),
    st.dictionaries(st.integers(0, 19), st.floats(-100, 100), max_size=5),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.integers(1, 30),
)
def test_adjusted_logits_are_those_of_the_formula(tokens, bias, presence, frequency, step):
    """However many tokens come between two calls."""
    adjust, logits = Adjustment(bias, presence, frequency), np.linspace(-3, 3, 20, dtype=np.float32)
    for end in [*range(0, len(tokens), step), len(tokens)]:
        found = adjust(logits, tokens[:end])
        counts = np.bincount(tokens[:end], minlength=20)
        wanted = logits + [bias.get(i, 0.0) for i in range(20)] - counts * frequency - (counts > 0) * presence
        np.testing.assert_allclose(found, wanted, atol=1e-3)
        assert found.dtype == np.float32 and found is not logits
    assert logits[0] == -3


def test_what_is_forbidden_stays_so():
    logits = np.array([0, -np.inf, 1], np.float32)
    assert list(Adjustment({1: 100.0, 2: -5.0})(logits, ())) == [0, -np.inf, -4]
