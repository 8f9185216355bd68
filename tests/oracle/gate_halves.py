"""DeepSeek V4's half layers, one by one, against llama.cpp's of the same file.

End to end one code on the other side of a rounding selects another row or expert, and what follows is another text's.
Each half layer of ours, given llama.cpp's own streams, has nothing to select from but what it gave. llama.cpp rounds
inputs of the experts' down projections before they get the routing weight, and we after (``test_quantized``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ds4ref.archs.deepseek4.forward import Model
from ds4ref.engine import Engine

from .llama import Llama
from .llama_numerics import NUMERICS, ops
from .test_llama import forced_errors


def _taken(name: str) -> bool:
    return name == "hc_init" or name.startswith(("hc_attn_post-", "l_last-"))


def logits_and_halves(engine: Engine, out: Path, ids: Sequence[int], bars: Mapping[str, float]) -> np.ndarray:
    """Return llama.cpp's logits; raise AssertionError naming a half layer of ours that is not its.

    bars  largest error of the median position, in standard deviations, behind "hc_attn_post" and "hc_ffn_post"

    The first layer's attention is left out: embeddings of few bits times norms of few bits lie on ties between codes.
    """
    with Llama(out, f32_cache=True, flash=False) as other:
        logits, taken = other.record(ids, _taken)
    streams = [taken["hc_init"]]
    for layer in range(engine.shape.n_layers):
        streams += [taken[f"hc_attn_post-{layer}"], taken[f"l_last-{layer}"]]
    graph = {"ids": list(ids), "streams": [stream.reshape(len(ids), -1) for stream in streams]}
    model = Model(engine.shape, engine.model.weights, ops(engine.model.ops), NUMERICS)
    errors, _ = forced_errors(graph, model)
    for half, name in enumerate(bars):
        for layer in range(1 - half, engine.shape.n_layers):
            error = np.median(errors[name][layer]) / graph["streams"][2 * layer + 1 + half].std()
            assert error < bars[name], f"{name} of layer {layer} is {error:.1g} standard deviations from llama.cpp's"
    return logits
