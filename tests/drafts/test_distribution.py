"""Sampling with drafts keeps the distribution: chi-square over 40 settings, and token for token the same as without.

For every draw the test knows the exact probabilities: computed here in float64 from the target's logits, apart from
``ds4ref.sampling``. Counted are how often each token came, and how often the drafted one did; the sum of the draws'
covariances says how far counts may lie from their expectation, also where every draw has probabilities of its own. The
statistic is chi-square with the rank of that matrix, its p-values over the settings are uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats

from ds4ref.drafts.lookup import Lookup
from ds4ref.drafts.speculation import Speculation
from ds4ref.generate import Generation
from ds4ref.sampling import Sampler
from ds4ref.sampling.adjust import Adjustment

from .fake_session import Guess, SpeculatingSession, Target

SETTINGS, SAMPLE, DRAWS, ANSWER = 40, 20_000, 100_000, 50


@dataclass
class Setting:
    number: int
    vocab: int
    sampling: dict[str, float]
    presence: float = 0.0
    frequency: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    grammar: bool = False
    depth: int = 0
    blur: float = 1.0

    def allowed(self, last: int) -> np.ndarray:
        """The tokens of a made-up grammar: which of them may follow depends on the last one."""
        allowed = (np.arange(self.vocab) * 7 + 3 * last) % 5 < 3
        allowed[(last + 1) % self.vocab] = True
        return allowed


def settings() -> list[Setting]:
    """Forty settings: each cut alone and together, penalties, biases, grammars; depths 0 (chosen) to 7."""
    chance, made = np.random.default_rng(11), []
    for number in range(SETTINGS):
        cuts = {"temperature": (0.6, 1.0, 1.7)[number % 3], "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        kind = number % 8
        if kind in (1, 4, 7):
            cuts["top_k"] = int(chance.integers(3, 6))
        if kind in (2, 4, 6):
            cuts["top_p"] = (0.7, 0.9)[number % 2]
        if kind in (3, 4, 5):
            cuts["min_p"] = (0.05, 0.2)[number % 2]
        setting = Setting(number, int(chance.integers(6, 13)), cuts, depth=number % 8, blur=float(number % 4) * 0.7)
        if number % 5 in (1, 4):
            setting.presence, setting.frequency = 0.7, 0.1
        if number % 5 == 2:
            setting.bias = {1: 1.5, 3: -2.0}
        setting.grammar = number % 5 in (3, 4)
        made.append(setting)
    return made


def probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """What a draw's probabilities are to be: top-k, then min-p and top-p of the softmax of these, then renormalized."""
    order = np.argsort(-logits, kind="stable")
    order = order[np.isfinite(logits[order])]
    if top_k:
        order = order[:top_k]
    weights = np.exp((logits[order].astype(np.float64) - logits[order[0]]) / temperature)
    weights /= weights.sum()
    kept = weights >= min_p * weights[0]
    kept &= np.r_[0.0, np.cumsum(weights)[:-1]] < top_p
    result = np.zeros(len(logits))
    result[order[kept]] = weights[kept] / weights[kept].sum()
    return result


class Tally:
    """Draws against their probabilities."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.probs: list[np.ndarray] = []
        self.drafts: list[int] = []

    def add(self, token: int, probs: np.ndarray, draft: int | None) -> None:
        self.tokens.append(token)
        self.probs.append(probs)
        self.drafts.append(-1 if draft is None else draft)

    @property
    def impossible(self) -> int:
        """How many tokens came that have no probability."""
        return sum(probs[token] == 0 for token, probs in zip(self.tokens, self.probs, strict=True))

    @property
    def p(self) -> float:
        probs, drafts, rows = np.array(self.probs), np.array(self.drafts), np.arange(len(self.drafts))
        hit = np.where(drafts >= 0, probs[rows, drafts], 0.0)  # the draft's probability
        mean = np.c_[probs, hit]
        came = np.zeros_like(mean)
        came[rows, self.tokens] = 1
        came[:, -1] = drafts == self.tokens
        cov = -mean.T @ mean
        cov[:-1, :-1] += np.diag(probs.sum(axis=0))
        both = np.zeros(probs.shape[1])  # a token and the draft at once: where it is the draft
        np.add.at(both, drafts[drafts >= 0], hit[drafts >= 0])
        cov[:-1, -1] += both
        cov[-1, :-1] += both
        cov[-1, -1] += hit.sum()
        values, vectors = np.linalg.eigh(cov)
        real = values > 1e-9 * values[-1]
        off = (came - mean).sum(axis=0)
        statistic = float(((vectors.T @ off)[real] ** 2 / values[real]).sum())
        return float(stats.chi2.sf(statistic, int(real.sum())))


class Tokens:
    """As much of a tokenizer as ``Generation`` asks for."""

    ends: frozenset[int] = frozenset()
    think_open = think_close = -1

    def token_bytes(self, token: int) -> bytes:
        return b"."


Choose = Callable[[np.ndarray, np.ndarray, "int | None", Sampler], int]


def sample(setting: Setting, draws: int, seed: int, *, drafts: bool = True, wrong: Choose | None = None):
    """Return (tally, tokens, session) of answers of ``ANSWER`` tokens until there are ``draws``.

    wrong: a sampler's mistake, from logits, probabilities and draft.
    """
    target = Target(setting.vocab, seed=setting.number)
    speculation = None
    if drafts:
        guesses = [Guess(target, setting.number, setting.blur)]
        if setting.number % 3 == 0:
            guesses.insert(0, Lookup())  # type: ignore[arg-type]
        speculation = Speculation(guesses, setting.depth, clock=lambda: 0.0)
    session = SpeculatingSession(target, speculation, ctx=10 + ANSWER)
    sampler, tally, made = Sampler(**setting.sampling, seed=seed), Tally(), []
    while len(made) < draws:
        session.start([len(made) % setting.vocab, 1, 2])
        adjust = Adjustment(setting.bias, setting.presence, setting.frequency)
        count = np.zeros(setting.vocab)

        def guide(run, logits, session=session, count=count):
            if setting.grammar:
                logits = np.where(setting.allowed(session.tokens[-1]), logits, -np.inf)
            seen = logits.astype(np.float64)
            seen = seen - setting.frequency * count - setting.presence * (count > 0)
            for token, value in setting.bias.items():
                seen[token] += value
            guide.probs, guide.draft = probabilities(seen, **setting.sampling), session.draft
            if wrong is not None and session.draft is not None:
                return wrong(seen, guide.probs, session.draft, sampler)
            return logits if setting.grammar else None

        run = Generation(session, Tokens(), sampler, limit=ANSWER, guide=guide, adjust=adjust)
        for piece in run:
            if piece.token is not None:
                tally.add(piece.token, guide.probs, guide.draft)
                count[piece.token] += 1
                made.append(piece.token)
    return tally, made, session


def drawn(draws: int):
    return [sample(setting, draws // SETTINGS, 1000 + setting.number) for setting in settings()]


@pytest.fixture(scope="module")
def results():
    return drawn(SAMPLE)


def check_uniform(results) -> None:
    ps = [tally.p for tally, _, _ in results]
    assert len(ps) == SETTINGS and not any(tally.impossible for tally, _, _ in results)
    assert stats.kstest(ps, "uniform").pvalue > 0.01
    assert min(ps) > 0.01 / SETTINGS


@pytest.mark.thorough
def test_p_values_of_forty_settings_are_uniform(results):
    check_uniform(results)


def test_drafts_were_tried_and_taken(results):
    """What is tested is speculation: drafts of every setting, some right and some wrong."""
    for setting, (tally, tokens, session) in zip(settings(), results, strict=True):
        total = session.speculation.counts.total()
        assert total.drafted > total.accepted > 0, setting
        if setting.depth:
            assert session.passes < len(tokens) and sum(draft >= 0 for draft in tally.drafts) > 100


def test_tokens_are_those_of_plain_decode(results):
    """The same random numbers give the same tokens, whatever was drafted."""
    for setting, (_, tokens, session) in zip(settings(), results, strict=True):
        _, plain, alone = sample(setting, 150, 1000 + setting.number, drafts=False)
        assert tokens[: len(plain)] == plain and alone.passes >= len(plain)
        assert session.pos == session.ctx - 10 + 3
