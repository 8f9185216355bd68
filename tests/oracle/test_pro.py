"""Mode exact at DeepSeek V4 Pro's own dimensions, against Hugging Face and the reference backend.

Two layers, one of each kind that Pro has and one of each way of routing, 8 experts of Pro's size, Q4_K: 1.2 GB, and
7.5 GB as Hugging Face holds it. The indexer selects 16 rows instead of 1024, so that 150 tokens make it choose;
``tests/kernels/test_ops.py`` has all 1024, and 384 experts. Bars are those of ``test_hf_live``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import CSA, HCA, PRO
from ds4ref.engine import Engine
from ds4ref.nano.recipe import write_model

from .compare import difference
from .modelgen import draw_ids
from .test_hf_live import BAR_STD, LEAST_MARGIN

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(3600)]

LENGTH, BAR = 150, 2e-4
SHAPE = replace(
    PRO,
    n_layers=2,
    ratios=(HCA, CSA),
    swiglu_limit=PRO.swiglu_limit[:2],
    n_hash_layers=1,
    n_experts=8,
    index_topk=16,
    vocab=512,
    name="slice of Pro",
)


class Drawn:
    def __init__(self, path: Path, oracle: Any):
        def margin(ids: Any) -> float:
            self.trace = oracle.record(ids)
            return oracle.margin(self.trace)

        self.path, self.oracle = path, oracle
        self.ids = draw_ids(margin, SHAPE.vocab, LENGTH, 61, LEAST_MARGIN).ids
        self.bar = BAR * float(self.trace.logits.std()) / BAR_STD


@pytest.fixture(scope="module")
def drawn(load_oracle: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    path = tmp_path_factory.mktemp("pro") / "pro.gguf"
    write_model(path, SHAPE, "q4")
    return Drawn(path, load_oracle(path))


def test_prefill_and_decode(drawn: Drawn) -> None:
    with Engine.open(drawn.path, numerics="exact", threads=2) as engine:
        assert engine.shape.dim == 7168 and engine.shape.expert_ff == 3072
        at_once = engine.session(LENGTH + 1).extend(drawn.ids)
        session = engine.session(LENGTH + 1)
        session.extend(drawn.ids[:100], chunk=37)
        one_by_one = np.stack([session.eval(token).copy() for token in drawn.ids[100:]])
    for name, got, want in (
        ("prefill", at_once, drawn.trace.logits),
        ("decode", one_by_one, drawn.trace.logits[100:]),
    ):
        found = difference(got, want)
        print(f"{name}: {found}, bar {drawn.bar:.3g}")
        assert found.max <= drawn.bar and found.top1 == 1, found


@pytest.mark.parametrize(("numerics", "least"), [("qat", 0.999), ("ds4", 0.995)])
def test_rounding_modes_agree_with_the_reference(drawn: Drawn, numerics: str, least: float) -> None:
    """The compiled kernels of Pro's widths where caches, and int8 inputs, are rounded: by float noise, values fall to
    the other side. Bars are those of ``tests/archs/test_formats.py``."""
    logits = []
    for backend in ("cpu", "reference"):
        with Engine.open(drawn.path, backend=backend, numerics=numerics, threads=2) as engine:
            logits.append(engine.session(9).extend(drawn.ids[:8]))
    print(numerics, difference(*logits))
    assert np.corrcoef(logits[0].ravel(), logits[1].ravel())[0, 1] > least
