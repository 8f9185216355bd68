"""A steered engine against Hugging Face's model with the formula put on its modules by forward hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.engine_options import Steering

from .compare import difference
from .modelgen import draw_ids, draw_shape, write_model
from .test_hf_live import BAR_STD, BARS, LEAST_MARGIN

pytestmark = pytest.mark.oracle

LENGTH = 40


@pytest.mark.parametrize(("attn", "ffn"), [(0.0, 1.0), (1.5, -0.5)])
def test_steered(load_oracle: Any, tmp_path: Path, attn: float, ffn: float) -> None:
    import torch

    shape = draw_shape(12)
    write_model(tmp_path / "model.gguf", shape, 12)
    oracle = load_oracle(tmp_path / "model.gguf")
    rows = np.random.default_rng(2).standard_normal((shape.n_layers, shape.dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def steered(scale: float, row: np.ndarray) -> Any:
        d = torch.from_numpy(row)

        def hook(module: Any, args: Any, out: Any) -> Any:
            y = out[0] if isinstance(out, tuple) else out
            y = y - scale * (y @ d)[..., None] * d
            return (y, *out[1:]) if isinstance(out, tuple) else y

        return hook

    plain = oracle.logits(range(5, 5 + LENGTH))
    handles = []
    for layer, row in zip(oracle.model.model.layers, rows, strict=True):
        handles += [layer.self_attn.register_forward_hook(steered(attn, row)) if attn else None]
        handles += [layer.mlp.register_forward_hook(steered(ffn, row))]
    try:
        traces: list[Any] = []

        def margin(candidate: Any) -> float:
            traces.append(oracle.record(candidate))
            return float(oracle.margin(traces[-1]))

        ids = draw_ids(margin, shape.vocab, LENGTH, 12, LEAST_MARGIN).ids
        wanted = traces[-1].logits
        assert np.abs(oracle.logits(range(5, 5 + LENGTH)) - plain).max() > 0.1, "steering does something"
    finally:
        for handle in handles:
            if handle is not None:
                handle.remove()
    bar = BARS[LENGTH] * float(wanted.std()) / BAR_STD
    for backend in ("reference", "cpu"):
        with Engine.open(
            tmp_path / "model.gguf", backend=backend, numerics="exact", steering=Steering(rows, attn, ffn)
        ) as engine:
            found = difference(engine.logits(ids), wanted)
            assert found.max < bar, f"{backend}: {found}"
