"""A constant that is off by little, in a model that turns little into much: found along its slope, fitted exactly."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.test_vectors.diagnosis import Signatures, fitting
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants.families import FAMILIES


def case(engine, family: str, value: float) -> Case:
    library = Signatures(engine, PROMPTS["mixed"]()[:100])
    logits = library.run("exact", [FAMILIES[family].fault(value)], seed=5)
    return Case(library, from_logits(library.ids, logits), 0)


@pytest.mark.thorough
@pytest.mark.parametrize("family, value", [("attention_scale", 1.02), ("routed_scale", 0.98), ("swiglu_limit", 9.6),
                                           ("sink_offset", 0.05), ("compress_rope_base", 165000.0)])  # fmt: skip
def test_a_small_error_is_found_along_its_slope(engine, family, value) -> None:
    made = case(engine, family, value)
    right = FAMILIES[family].neutral(engine.shape)
    start = fitting.along(made, "exact", FAMILIES[family])
    assert start is not None and abs(start - value) < 0.5 * abs(value - right)
    best = max(fitting.nearest(made, "exact", [FAMILIES[family]]), key=fitting.closeness)
    fitted = fitting.refined(made, "exact", FAMILIES[family], fitting.value_of(best))
    assert fitted.parameter is not None
    assert abs(fitted.parameter["value"] - value) < 0.02 * abs(value - right)


def test_of_a_clean_engine_no_slope_makes_more_than_noise(engine) -> None:
    library = Signatures(engine, PROMPTS["mixed"]()[:60])
    made = Case(library, from_logits(library.ids, library.run("exact", [], seed=5)), 0)
    for family in FAMILIES.values():
        if family.whole or family.log is False:
            continue
        start = fitting.along(made, "exact", family)
        assert start is None or abs(np.log(start / family.neutral(engine.shape))) < 1e-3
