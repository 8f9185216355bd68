"""Our engine in mode exact against Hugging Face, live, on models of three drawn configurations.

DS4_ORACLE_SEEDS="1,2,3" draws other configurations. The bars are those of the golden models (logits of standard
deviation 2.6), scaled to the logits at hand.

Token lists are drawn until none of Hugging Face's own top-k decisions is closer than ``LEAST_MARGIN``: below that,
float noise decides, and two right engines part. The oracle alone is asked, never the engine under test. Exact ties
(rows that score exactly zero) have margin zero and so never get this far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.archs.deepseek4.rope import RopeTables
from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.backends import BACKENDS
from ds4ref.engine import Engine
from ds4ref.errors import BackendError

from .compare import difference

pytestmark = pytest.mark.oracle

SEEDS = [int(seed) for seed in os.environ.get("DS4_ORACLE_SEEDS", "12,17,22").split(",")]
BARS = {5: 1e-4, 40: 2e-4, 200: 2e-4, 700: 1e-3}
"""Length -> largest logit difference that float noise explains where logits have the standard deviation ``BAR_STD``."""
BAR_STD = 2.6
LAYER_BAR = 1e-4
"""Largest difference of one layer's output, given the same input, in standard deviations of that output."""
LEAST_MARGIN = 2e-5
"""Standard deviations of a score between the last choice taken and the first left out. Noise of scores at 700 tokens
is 5e-6 in the median and 5e-5 at most."""


@dataclass
class Drawn:
    """A drawn model with what Hugging Face says about it: length -> hf.Trace, and ids likewise."""

    path: Path
    shape: ModelShape
    ids: dict[int, list[int]]
    traces: dict[int, Any]
    rejected: int

    def bar(self, length: int) -> float:
        """Acceptable logit difference for this model."""
        return BARS[length] * float(self.traces[length].logits.std()) / BAR_STD


@pytest.fixture(scope="session")
def draw(load_oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Drawn]:
    """seed -> the model of that seed, written, loaded by transformers and run on all lengths; each seed once."""
    from .modelgen import draw_ids, draw_shape, write_model

    def make(seed: int) -> Drawn:
        shape = draw_shape(seed)
        path = tmp_path_factory.mktemp("drawn") / f"seed{seed}.gguf"
        write_model(path, shape, seed)
        oracle = load_oracle(path)
        ids: dict[int, list[int]] = {}
        traces: dict[int, Any] = {}
        rejected = 0
        for length in BARS:

            def margin(candidate: Sequence[int], length: int = length) -> float:
                traces[length] = oracle.record(candidate)
                return oracle.margin(traces[length])

            found = draw_ids(margin, shape.vocab, length, seed, LEAST_MARGIN)
            ids[length] = found.ids
            rejected += found.rejected
        return Drawn(path, shape, ids, traces, rejected)

    return lru_cache(maxsize=None)(make)


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def drawn(request: pytest.FixtureRequest, draw: Callable[[int], Drawn]) -> Drawn:
    return draw(request.param)


COMPUTED = [name for name in BACKENDS if name != "cuda" or os.environ.get("DS4_TEST_CUDA") == "device"]
"""Compiled CUDA kernels take hours for a whole model of drawn size without a GPU; their ops are tested one by one."""


@pytest.fixture(scope="module", params=COMPUTED)
def engine(request: pytest.FixtureRequest, drawn: Drawn) -> Iterator[Engine]:
    """Mode exact on every backend; optional ones may be absent."""
    try:
        opened = Engine.open(drawn.path, backend=request.param, numerics="exact", threads=2)
    except BackendError as error:
        if request.param in ("cpu", "reference"):
            raise
        pytest.skip(str(error))
    with opened:
        yield opened


def longest(backend: str, one_by_one: bool = False) -> int:
    """The reference backend expands every matrix for every chunk: long sequences are for the others."""
    if backend == "reference":
        return 40 if one_by_one else 200
    return 700


def test_drawn_models_differ_from_flash_and_exercise_every_part(drawn: Drawn) -> None:
    """A drawn model must not be a weak test: it has every layer kind, selects, clamps, and its logits spread."""
    shape, trace = drawn.shape, drawn.traces[700]
    assert set(shape.ratios) == {0, 4, 128}
    assert shape.window < 700 and 700 // 128 > 2
    ratio4 = [layer for layer, ratio in enumerate(shape.ratios) if ratio == 4]
    assert sorted(trace.scores) == ratio4 and shape.index_topk < 700 // 4
    assert 1.5 < trace.logits.std() < 4
    assert len(np.unique(trace.logits.argmax(axis=1))) > 50, "an engine that ignores its input would pass"
    print(f"token lists turned down for close decisions: {drawn.rejected}")


@pytest.mark.parametrize("one_by_one", [False, True], ids=["prefill", "one by one"])
@pytest.mark.parametrize("length", list(BARS))
def test_logits(drawn: Drawn, engine: Engine, length: int, one_by_one: bool) -> None:
    if length > longest(engine.backend, one_by_one):
        pytest.skip("too slow on the reference backend")
    logits = engine.session(length + 1).extend(drawn.ids[length], one_by_one=one_by_one)
    result = difference(logits, drawn.traces[length].logits)
    print(f"{length} tokens: {result}")
    assert result.max <= drawn.bar(length) and result.top1 == 1, result


class Forced(Recorder):
    """Every half layer gets Hugging Face's input stream instead of our own; its output is recorded."""

    def __init__(self, trace: Any, halves: bool):
        super().__init__("hc_attn_post", "hc_ffn_post")
        self.trace, self.halves = trace, halves

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if name == "hc_attn_in":
            return self.trace.before(layer)[chunk.positions].reshape(value.shape)
        if name == "hc_ffn_in" and self.halves:
            return self.trace.after_attention(layer)[chunk.positions].reshape(value.shape)
        return super().tap(name, layer, value, chunk)


def worst_layer(got: Forced, name: str, wanted: list[np.ndarray]) -> tuple[float, str]:
    """Largest error over all layers, in standard deviations of the layer's output, and where it is."""
    worst, where = 0.0, ""
    for layer, stream in enumerate(wanted):
        error = np.abs(got[name, layer].reshape(stream.shape) - stream).max(axis=1) / stream.std()
        if error.max() > worst:
            worst = float(error.max())
            where = f"layer {layer}, position {int(error.argmax())}: {worst:.2e}, median {np.median(error):.1e}"
    return worst, where


def test_each_half_layer_alone(drawn: Drawn, engine: Engine) -> None:
    """The same with both halves forced, which tells an attention error from an ffn error."""
    length = longest(engine.backend)
    trace = drawn.traces[length]
    session = engine.session(length + 1)
    session.hooks = forced = Forced(trace, halves=True)
    session.extend(drawn.ids[length])
    layers = range(drawn.shape.n_layers)
    for name, wanted in (("hc_attn_post", trace.after_attention), ("hc_ffn_post", trace.after)):
        worst, where = worst_layer(forced, name, [wanted(n) for n in layers])
        print(name, where)
        assert worst <= LAYER_BAR, f"{name} {where}"


def test_discrete_choices_are_the_same(drawn: Drawn, engine: Engine) -> None:
    """Free-running: every expert and every selected row of every layer at all positions."""
    length = longest(engine.backend)
    session = engine.session(length + 1)
    session.hooks = seen = Recorder("ffn_moe_topk", "indexer_topk")
    session.extend(drawn.ids[length], chunk=length)
    trace = drawn.traces[length]
    for layer in range(drawn.shape.n_layers):
        ours, theirs = np.sort(seen["ffn_moe_topk", layer], axis=1), np.sort(trace.experts[layer], axis=1)
        assert np.array_equal(ours, theirs), f"layer {layer}: experts differ at {np.argwhere(ours != theirs)[0]}"
    for layer, chosen in trace.selected.items():
        ours, theirs = np.sort(seen["indexer_topk", layer], axis=1), np.sort(chosen, axis=1)
        assert np.array_equal(ours, theirs), f"layer {layer}: rows differ at {np.argwhere(ours != theirs)[0]}"


def test_rope_frequencies_are_those_of_transformers(load_oracle: Any) -> None:
    """Bit for bit on Flash: one unit in the last place would be 8e-3 rad at position 100000."""
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

    from .hf import PREFIX, config_from_metadata

    meta = {key.removeprefix(PREFIX): value for key, _, value in FLASH.metadata()}
    rotary = DeepseekV4RotaryEmbedding(config_from_metadata(meta))
    assert np.array_equal(RopeTables(FLASH, False, "f32").freqs32, rotary.main_inv_freq.numpy())
    assert np.array_equal(RopeTables(FLASH, True, "f32").freqs32, rotary.compress_inv_freq.numpy())
