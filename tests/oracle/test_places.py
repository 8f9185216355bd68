"""Mistakes without a name in Hugging Face's model: their op and layer from logits alone, on trained weights."""

from __future__ import annotations

from typing import Any

import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.test_vectors.diagnosis import Signatures
from ds4ref.test_vectors.diagnosis.case import Case
from ds4ref.test_vectors.diagnosis.places import Effects, places
from ds4ref.test_vectors.observation import from_logits
from tests.test_vectors.test_sixteen_bits import own_ids

EVERY = 3
"""One in so many of the forty mistakes is tried; ``python -m benchmarks.places --of strangers`` tries all."""


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_op_and_layer_of_mistakes_in_hugging_face(load_oracle: Any, _model_cache: Any) -> None:
    """The op among the first three places in 60 %, the layer of the first place in 50 %; a right engine has none."""
    from .strangers import EVERY as ALL
    from .strangers import MISTAKES

    oracle, kept = load_oracle(embedded_path("f16")), dict[int, Effects]()
    with Engine.open(embedded_path("f16"), backend="cpu", numerics="exact") as engine:
        library = Signatures(engine, own_ids(engine, 200))
        ids = library.ids.tolist()

        def located(logits: Any) -> list[Any]:
            return places(Case(library, from_logits(ids, logits), None), "exact", 900, kept=kept)

        right = oracle.logits(ids)
        assert sum(place.probability for place in located(right)) < 0.1
        ops, at_layer = [], []
        for mistake in MISTAKES[::EVERY]:
            with mistake.apply(oracle):
                answer = located(oracle.logits(ids))
            ops.append(any(place.op in mistake.ops for place in answer[:3]))
            at_layer.append(answer[0].layer != -1 if mistake.layer == ALL else answer[0].layer == mistake.layer)
    assert len(ops) >= 12
    assert sum(ops) >= 0.6 * len(ops) and sum(at_layer) >= 0.5 * len(ops), (ops, at_layer)
