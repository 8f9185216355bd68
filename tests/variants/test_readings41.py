"""Where readings of DeepSeek V4.1 disagree (docs/explanation/model-v41.md 9): each has a bug's name, or no effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.archs.deepseek41.forward import Model as Model41
from ds4ref.archs.deepseek41.shape import FLASH
from ds4ref.engine import Engine
from ds4ref.kernels import reference
from ds4ref.nano.diagnostic41 import DIAGNOSTIC41, diagnostic41_path
from ds4ref.numerics import MODES
from ds4ref.session.session import Session
from ds4ref.variants import V41, Runner
from ds4ref.variants.faults_v41 import REPLAY

IDS = (np.random.PCG64(1).random_raw(200) % np.uint64(DIAGNOSTIC41.vocab)).astype(int).tolist()
NAMED = {
    "no_temperature": "SGLang, NeMo", "rows_scaled_by_sixth": "SGLang", "raw_scale_floor": "SGLang",
    "scores_bf16": "NeMo, SGLang", "head_weights_bf16": "NeMo, SGLang", "norms_bf16": "transformers",
    "bounded_replay": "SGLang", "no_engram": "mlx-lm",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    with Engine.open(diagnostic41_path(), backend="reference", numerics="qat", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(engine):
    return Runner(engine)


@pytest.mark.parametrize("name", NAMED)
def test_the_name_says_whose_reading_it_is(name):
    assert all(who in V41[name].says for who in NAMED[name].split(", "))


def test_without_a_temperature_it_is_the_same_where_the_release_has_one_of_1(engine):
    """`gate_temp` divides in mlx-lm and transformers; SGLang and NeMo do not know it."""
    shape = replace(engine.shape, gate_temp=1.0)
    model = Model41(shape, engine.model.weights, engine.model.ops, MODES["exact"])
    logits = [Session(model, 64).extend(IDS[:40]) for _ in range(2)]
    wrong = Session(model, 64)
    wrong.hooks = V41["no_temperature"].hooks()
    assert FLASH.gate_temp == 1 and np.array_equal(wrong.extend(IDS[:40]), logits[0])


def test_fewer_candidates_than_selected_rows_are_refused():
    """mlx-lm and SGLang select rows outside of the candidates then, NeMo and transformers do not."""
    assert not FLASH.problems() and (FLASH.candidate_blocks - 1) * FLASH.candidate_size + 1 >= FLASH.index_topk
    assert any("candidate blocks surely have" in text for text in replace(FLASH, candidate_blocks=64).problems())


def test_a_scale_times_a_sixth_moves_few_blocks_and_the_floor_only_tiny_values():
    class Ops:
        ops, shape = reference, DIAGNOSTIC41

    chunk = Ops()
    x = np.random.default_rng(0).standard_normal((4000, 64)).astype(np.float32)
    rounded = {}
    for name, field in (("rows_scaled_by_sixth", "row_rounding"), ("raw_scale_floor", "kv_rounding")):
        setattr(chunk, field, None)
        V41[name].hooks().begin(chunk)
        rounded[name] = getattr(chunk, field)
    for scale, most in ((1.0, 0.001), (2.0**-8, 0.001)):
        same = rounded["rows_scaled_by_sixth"](x * np.float32(scale)) == reference.round_nvfp4(x * np.float32(scale))
        assert 1 - most < same.mean()
    # a magnitude whose sixth lies on the edge between two scales
    edge = np.zeros((1, 16), np.float32)
    edges = [np.float32(6 * (1 + (2 * i + 1) / 16) * 2.0**e) for i in range(8) for e in range(-5, 5)]
    moved = []
    for value in (
        one for edge in edges for one in (edge, np.nextafter(edge, np.float32(0)), np.nextafter(edge, np.inf))
    ):
        edge = np.linspace(0, 1, 16, dtype=np.float32)[None] * np.float32(value)
        moved.append(not np.array_equal(rounded["rows_scaled_by_sixth"](edge), reference.round_nvfp4(edge)))
    assert any(moved)
    for size, same in ((1.0, True), (2.0**-18, False)):
        plain, own = (
            reference.round_e4m3(x * np.float32(size), None, 32),
            rounded["raw_scale_floor"](x * np.float32(size)),
        )
        assert np.array_equal(plain, own) is same and np.abs(plain - own).max() <= 2.0**-23


def test_a_source_without_keys_is_one_after_which_no_layer_has_rows():
    """With no rows yet, mlx-lm and NeMo select none and transformers keeps the selection of the source before: that is
    empty as well, because sources of one ratio complete their first row with the same token."""
    ratios = [FLASH.ratios[layer] for layer in FLASH.index_sources]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] == 1


def test_bounded_replay_is_a_full_pass_up_to_128_tokens_and_another_after(engine, runner):
    """And what it changes are windows of the layers after the last kv source alone."""
    short = runner.run(IDS[:REPLAY], "exact", [V41["bounded_replay"]])[0]
    assert np.array_equal(short, runner.run(IDS[:REPLAY], "exact")[0])
    seen = {}
    for name, bugs in (("right", []), ("replayed", [V41["bounded_replay"]])):
        session, recorder = Session(engine.model, 201), Recorder("raw_window")
        session.hooks = recorder if not bugs else _Both(bugs[0].hooks(), recorder)
        session.extend(IDS, chunk=200)
        seen[name] = {layer: value[0] for (_, layer), (value,) in recorder.parts.items()}
    for layer in range(engine.shape.n_layers):
        first = seen["right"][layer]
        late = layer >= engine.shape.kv_sources[-1]
        want = np.where(np.arange(200) >= 200 - REPLAY, np.maximum(first, 200 - REPLAY), first) if late else first
        assert np.array_equal(seen["replayed"][layer], want), layer


class _Both:
    """Hooks of a bug, and a recorder of what they make."""

    def __init__(self, bug, recorder):
        self.bug, self.recorder = bug, recorder

    def begin(self, chunk):
        self.bug.begin(chunk)

    def tap(self, name, layer, value, chunk):
        return self.recorder.tap(name, layer, self.bug.tap(name, layer, value, chunk), chunk)
