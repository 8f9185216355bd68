"""Priors, odds and the rule that chooses a verdict, on made-up candidates."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ds4ref.test_vectors.diagnosis import posterior as module
from ds4ref.test_vectors.diagnosis.calibration import PATH
from ds4ref.test_vectors.diagnosis.case import CLIP, HALVES, LAYERS, Candidate, parts_of
from ds4ref.test_vectors.diagnosis.evidence import LIMIT, Fit, limit_of, log_student
from ds4ref.test_vectors.diagnosis.posterior import ACCUSED, ALONE, BY_CHANCE, NAMED, Posterior
from ds4ref.variants import LIBRARY
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import scopes

PRIORS = json.loads(PATH.read_text())["priors"]


def fit(score: float = 0.0, misfit: float = 0.0) -> Fit:
    return Fit(np.zeros(4), 0.0, misfit, 0.0, 0.0, score, 0.1, 0.0, np.zeros(4))


def candidate(kind: str, mode: str = "exact", name: str = "", score: float = 0.0, misfit: float = 0.0, at: float = 0.0):
    """Return a candidate whose predicted log probabilities are all ``at``."""
    return Candidate(
        kind=kind, mode=mode, name=name, says="", predict=lambda: np.full((4, 2), at), fit=fit(score, misfit)
    )


@pytest.fixture
def posterior(monkeypatch) -> Posterior:
    """The posterior of a case in which a Bayes factor is the difference of two scores."""
    monkeypatch.setattr(module, "outside_bugs", lambda library, bos: [None] * 15)
    library = SimpleNamespace(
        engine=SimpleNamespace(shape=shape()), ids=range(200), more={}, families=FAMILIES, family=FAMILIES.__getitem__,
        runner=SimpleNamespace(library=LIBRARY),
    )  # fmt: skip
    case: Any = SimpleNamespace(library=library, bos=0, values=np.zeros((4, 2)))
    case.bayes_factor = lambda a, b: a.fit.score - b.fit.score
    return Posterior(case)


def shape() -> Any:
    from ds4ref.nano.diagnostic import DIAGNOSTIC

    return DIAGNOSTIC


def test_a_part_is_one_of_the_faults_and_parts_that_are_tried(posterior) -> None:
    """Faults of storage and chunk edges belong to no layer; others are tried either by kinds of layers or by halves."""
    single = {f"layer {number}" for number in range(6)}
    expected = {"no_sink": single | set(LAYERS), "hc_comb_transposed": single | set(HALVES), "hc_eps_0": set(),
                "q8_0_nibbles": set(), "chunk_128_state_lost": set()}  # fmt: skip
    for name, parts in expected.items():
        assert set(parts_of(LIBRARY[name], scopes(shape()))) == parts, name
    able = [f for f in LIBRARY.values() if not (f.quiet or f.fmt or f.tokens)]
    prior = math.log(PRIORS["sets"]["mode"] / 3 * PRIORS["kinds"]["part"] / (8 * len(able)))
    assert posterior.log_prior(candidate("part")) == pytest.approx(prior)


def test_odds_are_prior_times_scatter_times_bayes_factor(posterior) -> None:
    clean, fault = candidate("mode", misfit=2.0), candidate("fault", name="a", score=9.0, misfit=1.0)
    prior = posterior.log_prior(fault) - posterior.log_prior(clean)
    expected = prior + log_student(1.0) - log_student(2.0) + 9.0
    assert posterior.odds(fault, clean) == pytest.approx(expected)
    assert posterior.odds(clean, fault) == pytest.approx(-expected)
    assert posterior.odds(candidate("fault", name="a", score=99.0), clean) == CLIP


def test_the_limit_is_where_an_unknown_mistake_becomes_likelier() -> None:
    """An unknown mistake (a quarter of all engines, log-uniform from 1 to 1000 standard deviations) against a correct
    engine (Student's density)."""
    density = math.gamma(4) / (math.sqrt(7 * math.pi) * math.gamma(3.5))

    def excess(z: float) -> float:
        return 0.75 * density * math.exp(log_student(z)) - 0.25 / (z * math.log(1000))

    assert excess(LIMIT - 0.25) > 0 > excess(LIMIT)


@dataclass
class Decision:
    """One case at the edge of the rule that names a mistake."""

    over: float
    gap: float = 20.0
    fits: bool = True
    apart: bool = True
    next: float = 1.0
    """Distance of the next explanation, in units of the mistake's."""


@pytest.mark.parametrize(("decision", "named"), [
    (Decision(ACCUSED + 0.01), True), (Decision(ACCUSED - 0.01), False),
    (Decision(20.0, gap=NAMED + 0.01), True), (Decision(20.0, gap=NAMED - 0.01), False),
    (Decision(20.0, fits=False), False), (Decision(20.0, apart=False), False),
    (Decision(20.0, apart=False, next=ALONE - 0.1), False), (Decision(20.0, apart=False, next=ALONE + 0.1), True),
])  # fmt: skip
def test_a_name_needs_odds_over_right_engines_and_over_other_names(posterior, monkeypatch, decision, named) -> None:
    """A mistake much nearer than all else needs not be told apart from itself in other rounding sets."""
    fault, clean = candidate("fault", name="a"), candidate("mode", at=1.0)
    object.__setattr__(clean.fit, "rms", fault.fit.rms * decision.next)
    posterior.candidates.extend([fault, clean])
    posterior.case.reference = lambda mode: SimpleNamespace(level=lambda a, b: 9.0 * float(np.abs(a - b).max()))
    monkeypatch.setattr(posterior, "over", lambda c: decision.over)
    monkeypatch.setattr(posterior, "rival", lambda c: (None, decision.gap))
    monkeypatch.setattr(posterior, "fits", lambda c: decision.fits)
    monkeypatch.setattr(posterior, "told_apart", lambda c: decision.apart)
    assert posterior.proven() is (fault if named else None)


def test_the_champion_is_the_best_mistake_that_fits(posterior, monkeypatch) -> None:
    """The best is chosen by score in float precision, by odds in sets that quantize."""
    monkeypatch.setattr(posterior, "fits", lambda c: c.name != "a")
    a, b, c = (candidate("fault", "exact", name, score) for name, score in (("a", 9.0), ("b", 8.0), ("c", 7.0)))
    posterior.candidates.extend([c, b, a])
    assert posterior.champion() is b
    posterior.candidates = [candidate("fault", "ds4", x.name, x.fit.score) for x in (a, b, c)]
    monkeypatch.setattr(posterior, "over", lambda x: {"b": 1.0, "c": 2.0}[x.name])
    assert posterior.champion().name == "c"


def test_the_answer_is_the_best_clean_set_that_fits(posterior, monkeypatch) -> None:
    monkeypatch.setattr(posterior, "told_apart", lambda c: c.mode != "bf16")
    near, wide = candidate("mode", "exact", score=5.0, misfit=LIMIT), candidate("rounding", "bf16", score=7.0)
    right, other = candidate("mode", "qat", score=3.0), candidate("mode", "ds4", score=2.0)
    posterior.candidates.extend([other, near, wide, right])
    assert posterior.answer() is right
    assert [c.mode for c in posterior.ranked(clean=True)] == ["exact", "bf16", "qat", "ds4"]


@pytest.mark.parametrize(("share", "begin", "base"), [
    (0.9 * BY_CHANCE, 2, "exact"), (1.1 * BY_CHANCE, 2, "bf16"), (0.9 * BY_CHANCE, 0, "bf16"),
])  # fmt: skip
def test_the_base_is_exact_if_its_beginning_agrees_too_well_for_chance(posterior, monkeypatch, share, begin, base):
    """``share``: the noise of exact, in units of the other set's; ``begin``: the first position exact does not fit."""
    exact, wide = candidate("mode", "exact", misfit=LIMIT), candidate("rounding", "bf16")
    noise = {"exact": 2.0 * share, "bf16": 2.0}
    posterior.candidates.extend([exact, wide])
    posterior.case.seen = SimpleNamespace(rows=np.arange(4))
    posterior.case.first_beyond = {exact: begin}.__getitem__
    posterior.case.reference = lambda mode: SimpleNamespace(expected=np.full(4, noise[mode] ** 2))
    monkeypatch.setattr(posterior, "answer", lambda: wide)
    assert posterior.base().mode == base


def test_a_wide_set_may_miss_one_of_many_narrower_ones(posterior, monkeypatch) -> None:
    """As many of a set's own engines are rejected whether it is compared with one narrower set or with five."""
    noise = {"bf16": 2.0, "exact": 0.1, "qat": 0.5, "kv_f16": 0.5, "kv_fp8": 0.5, "indexer_fp4": 0.5}
    posterior.case.reference = lambda mode: SimpleNamespace(coarse=True, expected=np.full(4, noise[mode]))
    places = 1 + np.linspace(-0.05, 0.05, 8)
    posterior.case.runs = lambda c: [np.full((4, 2), place) for place in places]
    wide = candidate("rounding", "bf16", at=1.0)
    spread = float(places.std(ddof=1)) * math.sqrt(1 + 1 / 8)
    posterior.case.values = np.full((4, 2), 1 - 0.1 - 4 * spread)
    assert LIMIT == limit_of(1) < 4 < limit_of(5)
    posterior.candidates.extend([wide, candidate("mode", "exact")])
    assert not posterior.told_apart(wide)
    posterior.candidates.extend([candidate("rounding", mode) for mode in noise if mode not in ("bf16", "exact")])
    assert posterior.told_apart(wide)
    for count in (2, 5, 12):
        assert stats.t.sf(limit_of(count), 7) == pytest.approx(stats.t.sf(LIMIT, 7) / count, rel=0.15)


@pytest.mark.parametrize("place, apart", [(1.0, True), (0.1, False)])
def test_a_constant_in_a_wide_set_is_held_against_itself_in_narrower_ones(posterior, place, apart) -> None:
    """The wrong constant has the same value in all sets; where it was not tried, it is computed."""
    noise, asked = {"bf16": 2.0, "exact": 0.1}, []
    posterior.case.reference = lambda mode: SimpleNamespace(coarse=True, expected=np.full(4, noise[mode]))
    posterior.case.runs = lambda c: [np.full((4, 2), 1 + each) for each in (-0.05, 0.0, 0.05)]
    posterior.case.values = np.full((4, 2), place)
    posterior.case.member = lambda mode, family, value: asked.append((mode, family.name, value))
    posterior.case.computed = lambda ideas: [candidate("family", "exact", "shared_scale=1.5") for _ in ideas]
    right, wide = candidate("rounding", "bf16", at=-1.0), candidate("family", "bf16", "shared_scale=1.5", at=1.0)
    posterior.candidates.extend([candidate("mode", "exact"), right, wide])
    assert posterior.told_apart(wide) is apart and asked == [("exact", "shared_scale", 1.5)]


@pytest.mark.parametrize("spread, apart", [(0.30, True), (0.36, False)])
def test_a_mistake_must_move_all_of_its_engines(posterior, spread, apart) -> None:
    """A single run may be near the data by its flipped roundings alone, as any noisy run may."""
    posterior.case.reference = lambda mode: SimpleNamespace(coarse=True, expected=np.full(4, 1.0))
    places = np.array([1 - spread, 1, 1 + spread])
    posterior.case.runs = lambda c: [np.full((4, 2), place) for place in places]
    posterior.case.values = np.ones((4, 2))
    right, wrong = candidate("mode", "qat"), candidate("part", "qat", "x [in layer 1]", at=1.0)
    posterior.candidates.extend([right, wrong])
    assert posterior.told_apart(wrong) is apart
