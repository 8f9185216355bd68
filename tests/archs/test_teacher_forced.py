"""Each half layer in mode ds4, fed with ds4's own streams, against ds4's next streams (docs/evidence/validation.md).

The median tells whether the arithmetic is right; positions above 1e-4 must be single values that fell on the other
side of a rounding boundary, of which the report line shows a few.
"""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.archs.deepseek4 import attention, moe
from tests.golden import case, engine, needs_golden

pytestmark = needs_golden


def half_layer_errors(model: str, backend: str, half: str) -> np.ndarray:
    """Largest stream difference per (layer, position)."""
    golden = case(model, "t200.hidden")
    streams, ids = golden["ds4_hidden"], golden["ids"]
    m = engine(model, "ds4", backend).model
    errors = []
    for layer, w in enumerate(m.weights.layers):
        cache = m.cache(len(ids) + 1, exact=True)
        chunk = m.chunk(ids, cache)
        chunk.at_layer(layer, w, cache.layers[layer])
        at = 2 * layer + (half == "ffn")
        X = streams[at].reshape(len(ids), m.shape.hc, m.shape.dim).copy()
        if half == "attn":
            Y = attention.half_layer(chunk, X)
        else:
            Y = moe.half_layer(chunk, X)
        errors.append(np.abs(Y.reshape(len(ids), -1) - streams[at + 1]).max(axis=1))
    return np.array(errors)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("half", "share"), [("attn", 0.70), ("ffn", 0.98)])
@pytest.mark.parametrize("model", ["tiny", "smooth"])
def test_half_layers(model: str, half: str, share: float, backend: str) -> None:
    errors = half_layer_errors(model, backend, half)
    above = np.argwhere(errors > 1e-4)[:4]
    shown = ", ".join(f"layer {layer} position {t}: {errors[layer, t]:.1e}" for layer, t in above)
    print(f"{model} {half}: median {np.median(errors):.1e}, above 1e-4 e.g. {shown or 'none'}")
    assert np.median(errors, axis=1).max() <= 2e-5
    assert (errors < 1e-4).mean() >= share
