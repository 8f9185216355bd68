"""Wrong constants (families of faults) and the fit of their values, and faults in a part of the model."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.test_vectors.diagnosis import Signatures, fitting
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import LIBRARY
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import ScopedFault, scopes
from tests.marking import sampled


@pytest.fixture(scope="module")
def library(engine):
    return Signatures(engine, PROMPTS["mixed"]()[:60])


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_right_value_is_no_mistake_and_others_are(library, engine, name) -> None:
    family = FAMILIES[name]
    right = library.run("exact", [])
    assert rms(library.run("exact", [family.fault(family.neutral(engine.shape))]), right) < 2e-4
    moved = max(rms(library.run("exact", [family.fault(v)]), right) for v in family.grid(engine.shape))
    assert moved > 2e-4


@pytest.mark.parametrize(("family", "value", "fault"), [
    ("sinkhorn_rounds", 1, "sinkhorn_1"), ("sink_scale", 0.0, "sink_zero"), ("window_rows", -1, "window_short"),
    ("window_rows", 1, "window_long"), ("ape_scale", 0.0, "no_ape"), ("router_bias_scale", 0.0, "router_no_bias"),
    ("shared_scale", 0.0, "no_shared_expert"), ("hc_eps", 0.0, "hc_eps_0"), ("rms_eps", 1e-5, "rms_eps_1e5"),
    ("row_position", 1, "key_position_late"), ("indexer_topk", 7, "indexer_topk_short"),
])  # fmt: skip
def test_members_that_the_library_knows_by_name(library, family, value, fault) -> None:
    """A mistake that exists both as a named fault and as a value of a family gives the same numbers."""
    a = library.run("exact", [FAMILIES[family].fault(value)])
    b = library.run("exact", [LIBRARY[fault]])
    assert rms(a, b) < 1e-4


@pytest.mark.parametrize(("name", "start", "truth"), sampled([
    ("routed_scale", 1.25, 1.1), ("attention_scale", 0.8, 0.9), ("clamp_routed", 5, 6.2), ("rope_base", 12500, 11000),
    ("sink_offset", 0.3, 0.5), ("sinkhorn_rounds", 6, 3), ("window_rows", -4, -3),
], 3))  # fmt: skip
def test_a_size_is_found(library, name, start, truth) -> None:
    family = FAMILIES[name]
    seen = from_logits(library.ids, library.run("exact", [family.fault(truth)], seed=4))
    result = fitting.refined(Case(library, seen, 0), "exact", family, start)
    p = result.parameter
    assert p is not None and p["low"] <= p["value"] <= p["high"]
    assert p["value"] == pytest.approx(truth, rel=0.02, abs=0.02 if not family.whole else 0)


def test_a_size_in_a_set_that_flips_steps(library) -> None:
    family = FAMILIES["shared_scale"]
    seen = from_logits(library.ids, library.run("ds4", [family.fault(1.4)], seed=4))
    result = fitting.refined(Case(library, seen, 0), "ds4", family, 1.25)
    p = result.parameter
    assert p is not None and p["value"] == pytest.approx(1.4, rel=0.1) and p["low"] < 1.4 < p["high"]


@pytest.mark.thorough
@pytest.mark.parametrize("family, value", [("attention_scale", 1.02), ("routed_scale", 0.98), ("swiglu_limit", 9.6),
                                           ("sink_offset", 0.05), ("compress_rope_base", 165000.0)])  # fmt: skip
def test_a_small_error_is_found_along_its_slope(engine, family, value) -> None:
    """Even in a chaotic model, where a small error has large effects."""
    library = Signatures(engine, PROMPTS["mixed"]()[:100])
    logits = library.run("exact", [FAMILIES[family].fault(value)], seed=5)
    made = Case(library, from_logits(library.ids, logits), 0)
    right = FAMILIES[family].neutral(engine.shape)
    start = fitting.along(made, "exact", FAMILIES[family])
    assert start is not None and abs(start - value) < 0.5 * abs(value - right)
    best = max(fitting.nearest(made, "exact", [FAMILIES[family]]), key=fitting.closeness)
    fitted = fitting.refined(made, "exact", FAMILIES[family], fitting.value_of(best))
    assert abs(fitted.parameter["value"] - value) < 0.02 * abs(value - right)


def test_of_a_clean_engine_no_slope_makes_more_than_noise(engine, library) -> None:
    made = Case(library, from_logits(library.ids, library.run("exact", [], seed=5)), 0)
    for family in FAMILIES.values():
        start = None if family.whole or not family.log else fitting.along(made, "exact", family)
        assert start is None or abs(np.log(start / family.neutral(engine.shape))) < 1e-3


# ------------------------------------------------------------------------------------------------------------- scoped


@pytest.mark.parametrize(("name", "half"), [("no_yarn", "attn"), ("router_no_scale", "ffn"), ("no_sink", "attn")])
def test_a_fault_of_one_half_is_not_in_the_other(engine, library, name, half) -> None:
    where = scopes(engine.shape)
    parts = {"attn": "attention halves", "ffn": "FFN halves"}
    right, wrong = library.run("exact", []), library.run("exact", [LIBRARY[name]])
    for each, part in parts.items():
        got = library.run("exact", [ScopedFault(LIBRARY[name], part, where[part])])
        assert rms(got, wrong if each == half else right) < 1e-4


def test_layers_differ(engine, library) -> None:
    """A rope table of one layer is not used in another, as only layers with a compressed cache use YaRN."""
    where = scopes(engine.shape)
    right = library.run("exact", [])
    for number, ratio in enumerate(engine.shape.ratios):
        part = f"layer {number}"
        got = library.run("exact", [ScopedFault(LIBRARY["compressed_main_rope"], part, where[part])])
        assert (rms(got, right) > 1e-3) is (ratio != 0), part


def test_from_a_position_on(library) -> None:
    right = library.run("exact", [])
    late = library.run("exact", [LIBRARY["no_sink"]], since=40)
    assert np.array_equal(late[:40], right[:40]) and rms(late[40:], right[40:]) > 0.1
