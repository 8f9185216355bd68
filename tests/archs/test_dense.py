"""Dense families against the pass in plain NumPy, and prefill, decode and chunks against one another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.dense.rope import RopeTables
from ds4ref.archs.dense.shape import Scaling
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError, PayloadError, PayloadMismatch, ShapeError

from . import dense

each_family = pytest.mark.parametrize("family", list(dense.FAMILIES))
BAR = 1e-4
"""Largest difference of logits in standard deviations of them: float32 sums against float64 ones."""


def drawn(folder: Path, family: str, seed: int, fmt: str = "F32", tied: bool = False, **how):
    """A model file, its shape, and the weights that it holds."""
    shape = dense.draw_shape(seed, dense.FAMILIES[family], **how)
    tensors = dense.draw_tensors(shape, seed, tied)
    path = dense.write(folder / f"{family}{seed}{fmt}.gguf", shape, tensors, fmt)
    return path, shape, dense.rounded(tensors, fmt)


def ids_of(shape, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, 5]).integers(0, shape.vocab, count).tolist()


def apart(got: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference in standard deviations."""
    assert np.isfinite(got).all() and wanted.std() > 0.3
    return float(np.abs(got - wanted).max() / wanted.std())


@each_family
@pytest.mark.parametrize("sharing", range(1, 9))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_sharing_of_heads(family: str, sharing: int, backend: str, tmp_path: Path) -> None:
    path, shape, tensors = drawn(tmp_path, family, sharing, tied=sharing % 2 == 0, sharing=sharing)
    ids = ids_of(shape, 21)
    with Engine.open(path, backend=backend, numerics="exact") as engine:
        got = engine.session(40).extend(ids)
    assert apart(got, dense.logits_of(shape, tensors, ids)) < BAR


@each_family
@pytest.mark.parametrize("mode", ["exact", "qat", "ds4"])
def test_prefill_decode_and_chunks_agree(family: str, mode: str, tmp_path: Path) -> None:
    """Past a block of rows of attention (64), and with chunks that are multiplied another way (8 tokens and more)."""
    path, shape, _ = drawn(tmp_path, family, 4, "Q8_0", block=32)
    ids = ids_of(shape, 150)
    with Engine.open(path, numerics=mode) as engine:
        whole = engine.session(160).extend(ids)
        chunks = engine.session(160)
        cut = np.concatenate([chunks.extend(ids[a:b]) for a, b in ((0, 1), (1, 8), (8, 77), (77, 150))])
        session = engine.session(160)
        decoded = np.array([session.eval(token) for token in ids])
        one_by_one = engine.session(160).extend(ids, one_by_one=True)
    bar = BAR if mode != "ds4" else 5e-2  # where inputs are rounded to 8 bits, noise moves them by a step
    assert apart(cut, whole) < bar and apart(decoded, whole) < bar
    assert np.array_equal(decoded, one_by_one), "the recorded pass is the pass"


@each_family
@pytest.mark.parametrize("mode", ["exact", "ds4"])
def test_snapshots_rewinding_and_saving(family: str, mode: str, tmp_path: Path) -> None:
    path, shape, _ = drawn(tmp_path, family, 5, "Q8_0", block=32)
    ids = ids_of(shape, 60)
    with Engine.open(path, numerics=mode) as engine:
        session, plain = engine.session(64), engine.session(64)
        session.sync(ids[:40])
        kept = session.snapshot()
        wanted = [session.eval(token) for token in ids[40:50]]
        other = engine.session(64)
        other.restore(kept)
        assert np.array_equal(other.eval(ids[40]), wanted[0])
        fork = [other.eval(token) for token in ids[50:55]]
        session.restore(kept)
        again = [session.eval(token) for token in ids[40:50]]
        assert np.array_equal(again, wanted), "another sequence wrote behind the snapshot"

        session.rewind(7)
        plain.sync(ids[:7])
        assert apart(session.eval(ids[7]), plain.eval(ids[7])) < (BAR if mode == "exact" else 5e-2)

        other.save(tmp_path / "saved")
        assert (tmp_path / "saved").stat().st_size == other.payload_bytes()
        fresh = engine.session(64)
        fresh.load(tmp_path / "saved")
        assert fresh.tokens == other.tokens and np.array_equal(fresh.logits, fork[-1])
        assert np.array_equal(fresh.eval(3), other.eval(3))


@each_family
def test_saved_sessions_that_do_not_fit(family: str, tmp_path: Path) -> None:
    path, shape, _ = drawn(tmp_path, family, 5)
    other, *_ = drawn(tmp_path, family, 6)
    with Engine.open(path) as engine, Engine.open(other) as foreign:
        session = engine.session(32)
        session.sync(ids_of(shape, 20))
        session.save(tmp_path / "saved")
        data = (tmp_path / "saved").read_bytes()
        with pytest.raises(PayloadMismatch, match="takes 1 to 15"):
            engine.session(16).load(tmp_path / "saved")
        with pytest.raises(PayloadMismatch, match="this one"):
            foreign.session(32).load(tmp_path / "saved")
        rng = np.random.default_rng(0)
        for cut in (0, 3, 39, 40, 100, len(data) - 1):
            (tmp_path / "cut").write_bytes(data[:cut])
            with pytest.raises(PayloadError):
                engine.session(32).load(tmp_path / "cut")
        for _ in range(200):  # any other header is refused or harmless
            bad = bytearray(data)
            bad[int(rng.integers(40))] ^= 1 << int(rng.integers(8))
            (tmp_path / "bad").write_bytes(bad)
            victim = engine.session(32)
            try:
                victim.load(tmp_path / "bad")
            except PayloadError:
                assert not victim.valid
            else:
                assert victim.tokens == session.tokens


def test_divisors_of_frequencies_and_linear_stretching(tmp_path: Path) -> None:
    """Dividing every frequency by two is what positions half as large are, in a file of either kind."""
    shape = dense.draw_shape(4, dense.FAMILIES["llama"])
    tensors, ids = dense.draw_tensors(shape, 4, True), ids_of(shape, 24)
    wanted = dense.logits_of(replace(shape, rope_theta=shape.rope_theta), tensors, ids)
    half = np.full(shape.head_dim // 2, 2, np.float32)
    files = [
        dense.write(tmp_path / "plain.gguf", shape, tensors),
        dense.write(tmp_path / "linear.gguf", replace(shape, scaling=Scaling("linear", 2.0)), tensors),
        dense.write(tmp_path / "divided.gguf", shape, {**tensors, "rope_freqs.weight": half}),
    ]
    found = []
    for path in files:
        with Engine.open(path, numerics="exact") as engine:
            found.append(engine.session(40).extend(ids))
    assert apart(found[0], wanted) < BAR
    assert np.array_equal(found[1], found[2]) and apart(found[1], wanted) > 1e-2


@pytest.mark.parametrize("recipe", ["f64", "f32"])
def test_frequencies_that_yarn_and_llama3_stretch(recipe: str) -> None:
    """By hand, for 8 pairs, base 10,000 and 4096 tokens: pairs that turn often stay, slow ones are divided by 4, with a
    ramp between them. YaRN's is one of pair numbers, from the first that turns 32 times to the last that turns once,
    and it stretches cos and sin by 0.1 ln 4 + 1."""
    shape = replace(dense.draw_shape(1, dense.FAMILIES["llama"]), head_dim=16, rope_theta=1e4, trained_ctx=16384)
    plain = 1e4 ** -(np.arange(8) / 8)
    turns = 4096 * plain / (2 * np.pi)  # 651.9, 206.1, 65.2, 20.6, 6.5, 2.1, 0.65, 0.2
    cases = {
        Scaling("yarn", 4.0, 4096, 32.0, 1.0): (np.clip(1 - (np.arange(8) - 2) / 4, 0, 1), 1.1386294361119891),
        Scaling("yarn", 4.0, 4096, 100.0, 3.0): (np.clip(1 - (np.arange(8) - 1) / 4, 0, 1), 1.1386294361119891),
        Scaling("llama3", 4.0, 4096, 32.0, 1.0): (np.clip((turns - 1) / 31, 0, 1), 1.0),
        Scaling("linear", 4.0): (np.zeros(8), 1.0),
        Scaling(): (np.ones(8), 1.0),
    }
    for scaling, (kept, magnitude) in cases.items():
        tables = RopeTables(replace(shape, scaling=scaling), recipe)
        np.testing.assert_allclose(tables.freqs, plain * (kept + (1 - kept) / 4), rtol=1e-6)
        cos, sin = tables.compute(np.array([0, 3]))
        np.testing.assert_allclose(cos, magnitude * np.cos([[0], [3]] * tables.freqs), atol=1e-6)
        np.testing.assert_allclose(sin, magnitude * np.sin([[0], [3]] * tables.freqs), atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("block_count", ("u32", 0), "block_count is 0, wanted 1 to 1024"),
        ("block_count", ("string", "two"), "block_count has type string"),
        ("embedding_length", None, "embedding_length is missing"),
        ("attention.head_count_kv", ("u32", 7), "cannot share 7 key-value heads"),
        ("attention.head_count_kv", ("u32[]", [1, 2]), "has type"),
        ("attention.key_length", ("u32", 3), "3"),
        ("attention.layer_norm_rms_epsilon", ("f32", float("nan")), "rms_epsilon is nan"),
        ("rope.freq_base", ("f32", 0.0), "freq_base is 0"),
        ("rope.dimension_count", ("u32", 4), "only 16 is supported"),
        ("rope.scaling.type", ("string", "dynamic"), "not one of none, linear, yarn, llama3"),
        ("expert_count", ("u32", 8), "expert_used_count is missing"),
        ("expert_used_count", ("u32", 2), "expert_count is 0, wanted 1 to 4096"),
        ("leading_dense_block_count", ("u32", 1), "leading_dense_block_count is '1', which is not supported"),
        ("attention.sliding_window", ("u32", (1 << 30) + 1), "sliding_window is 1073741825, wanted 0 to"),
        ("attention.sliding_window", ("string", "all"), "sliding_window has type string"),
        ("attention.sliding_window_pattern", ("u32", 2), "sliding_window_pattern has type u32, wanted bool[]"),
        ("attention.sliding_window_pattern", ("bool[]", [True] * 7), "sliding_window_pattern has 7 values for"),
        ("attention.scale", ("f32", 0.25), "llama.attention.scale is 0.25: unknown here, it may change the model"),
        ("rope.scaling.original_context_length", ("u32", 64), "original_context_length is 64: unknown here"),
        ("rope.scaling.yarn_ext_factor", ("f32", 0.5), "yarn_ext_factor is 0.5: unknown here"),
        ("rope.dimension_sections", ("i32[]", [1, 2]), "rope.dimension_sections is an array: unknown here"),
        ("rope.scaling.attn_factor", ("f32", 0.0), "factor 1"),
        ("pooling_type", ("u32", 1), "llama.pooling_type is 1, only 0 is computed here"),
        ("vocab_size", ("u32", 5), "vocab_size is 5, token_embd.weight has"),
        ("feed_forward_length", ("u64", 1 << 60), "feed_forward_length"),
    ],
)
def test_metadata_that_does_not_fit(key: str, value, says: str, tmp_path: Path) -> None:
    shape = replace(dense.draw_shape(2, dense.FAMILIES["llama"]), n_heads=4, n_kv_heads=2, head_dim=16)
    tensors = dense.draw_tensors(shape, 2, True)
    path = tmp_path / "bad.gguf"
    entries = [entry for entry in shape.metadata() if entry[0] != f"llama.{key}"]
    from ds4ref.weights.writer import TensorSpec, write_gguf

    entries += [] if value is None else [(f"llama.{key}", *value)]
    specs = [TensorSpec(name, "F32", values.shape[::-1]) for name, values in tensors.items()]
    with write_gguf(path, entries, specs) as out:
        for name, values in tensors.items():
            out.write(name, values)
    with pytest.raises(ShapeError) as found:
        Engine.open(path)
    assert says in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("blk.0.attn_q.bias", np.zeros(64), "blk.0.attn_q.bias has no place in a llama model here"),
        ("blk.0.ffn_gate_exps.weight", np.zeros((2, 4, 4)), "has no place"),
        ("blk.7.attn_norm.weight", np.zeros(4), "blk.7.attn_norm.weight has no place"),
        ("output.bias", np.zeros(4), "output.bias has no place"),
        ("rope_factors_long.weight", np.zeros(4), "rope_factors_long.weight has no place"),
        ("a\nb", np.zeros(4), "'a\\nb' has no place"),
        ("blk.0.attn_k.weight", None, "blk.0.attn_k.weight is missing"),
        ("blk.0.attn_k.weight", np.zeros((3, 3)), "has dims [3, 3], wanted"),
        ("output_norm.weight", "nan", "holds a NaN or infinite value"),
        ("rope_freqs.weight", "zero", "a divisor that is not above 0"),
    ],
)
def test_tensors_that_do_not_fit(name: str, values, says: str, tmp_path: Path) -> None:
    shape = dense.draw_shape(2, dense.FAMILIES["llama"])
    tensors = dense.draw_tensors(shape, 2, True)
    if values is None:
        del tensors[name]
    elif isinstance(values, str):
        tensors[name] = np.full(shape.dim if values == "nan" else shape.head_dim // 2, np.nan if values == "nan" else 0)
    else:
        tensors[name] = values
    dense.write(tmp_path / "bad.gguf", shape, {n: v.astype(np.float32) for n, v in tensors.items()})
    with pytest.raises(ModelFileError) as found:
        Engine.open(tmp_path / "bad.gguf")
    assert says in str(found.value) and "\n" not in str(found.value)


OLD = ("llama.rope.scale_linear", "f32", 2.0)
