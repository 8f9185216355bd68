"""Engines that compute in bfloat16 or float16, on trained weights: correct ones pass, those with a bug do not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.patients import kept_as
from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.nano.skills import held_out
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import LIBRARY, Fault
from tests.marking import sampled

from .tracing import Bent, rounding


def late(factor: float, since: int) -> Fault:
    """Return a bug that is not in the library: shared experts are ``factor`` times too large from ``since`` on."""

    def louder(value, layer, chunk, taps):
        out = value.copy()
        out[since:] *= np.float32(factor)
        return out

    return Fault("louder", "", edits={"ffn_shexp": louder})


@pytest.fixture(scope="module")
def trained():
    """The embedded model, and its runs on 120 tokens like those it was trained on."""
    with Engine.open(embedded_path("f16"), numerics="exact", threads=2) as engine:
        yield engine, Signatures(engine, own_ids(engine, 120))


def own_ids(engine: Engine, count: int) -> list[int]:
    """Return ``count`` token ids like those that the embedded model was trained on."""
    ids: list[int] = []
    for skill in ("story", "facts", "lists/reverse", "recall/near", "sums3", "choice"):
        for item in held_out(skill, 1, seed=3):
            ids += item.prompt().encode(engine.tokenizer)
    return (ids * 3)[:count]


@pytest.mark.parametrize("computes", sampled(["bfloat16", "float16"], ["bfloat16"]))
@pytest.mark.parametrize(
    ("fault", "clean"), sampled([(None, True), (late(1.5, 60), False), ("rope_half_split", False)], 3)
)
def test_an_engine_that_computes_in_16_bits(trained, computes, fault, clean) -> None:
    """A correct one passes, with its detection limit; larger mistakes, known or not, are found. In a float32 engine the
    same distance does not count as rounding."""
    engine, signatures = trained
    session = engine.session(len(signatures.ids) + 1)
    faults = [LIBRARY[fault] if isinstance(fault, str) else fault] if fault else []
    session.hooks = Bent([*faults, rounding(computes)], set())
    logits = kept_as(np.asarray(session.extend(signatures.ids.tolist())), computes)
    result = diagnose(signatures, from_logits(signatures.ids, logits))
    assert result.clean is clean, (result.verdict, result.notes)
    if clean and result.verdict == "llama.cpp_f32_cache":
        assert computes == "float16"  # which rounds the inputs of F16 matrices, all of this model's, in the same way
    elif clean:
        assert result.verdict == computes and 0.002 < result.limit["size"] < 0.5
        wide = logits + np.random.default_rng(0).normal(0, 1e-5, logits.shape)  # no longer of that type
        assert not diagnose(signatures, from_logits(signatures.ids, wide)).clean
        assert diagnose(signatures, from_logits(signatures.ids, wide), computes=computes).verdict == computes


@pytest.mark.thorough
def test_what_agrees_better_than_it_rounds_was_not_computed_so(trained) -> None:
    """A float32 engine whose logits were stored in bfloat16, with a late mistake smaller than bfloat16's noise."""
    engine, signatures = trained
    session = engine.session(len(signatures.ids) + 1)
    session.hooks = late(1.05, 60).hooks()
    logits = kept_as(np.asarray(session.extend(signatures.ids.tolist())), "bfloat16")
    result = diagnose(signatures, from_logits(signatures.ids, logits))
    exact = next(row for row in result.ranking if row["name"] == "exact")
    assert not result.clean and result.first_position is not None and 58 <= exact["fits_until"] <= 64
