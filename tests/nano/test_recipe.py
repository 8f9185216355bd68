"""Generated files: the right dimensions, metadata and tensors, as an outside reader sees them."""

import hashlib
from dataclasses import replace

import gguf
import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH, PRO, ModelShape
from ds4ref.archs.deepseek4.weights import bind
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError, UsageError
from ds4ref.nano.cache import NANO_SHA256
from ds4ref.nano.prose import prose
from ds4ref.nano.recipe import NANO, slice_shape, tensors, write_model
from ds4ref.weights.gguf import GGUFFile

ONE_LAYER = replace(NANO, n_layers=1, n_hash_layers=1, ratios=(0,), swiglu_limit=(10.0,), vocab=300)


def test_the_embedded_model_is_reproducible(tmp_path):
    write_model(tmp_path / "a.gguf", NANO)
    assert hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest() == NANO_SHA256


def test_shape_survives_the_file(nano_path):
    with GGUFFile.open(nano_path) as file:
        assert ModelShape.from_metadata(file) == NANO
        weights = bind(file, NANO, verify=True)
        assert weights.layers[0].ffn_gate_tid2eid is not None
        assert weights.layers[3].exp_probs_b is not None


def test_every_mechanism_is_there():
    assert set(NANO.ratios) == {0, 4, 128}
    assert NANO.n_hash_layers < NANO.n_layers
    assert NANO.index_topk < 1024 // 4, "the indexer selects within a thousand tokens"
    assert NANO.n_used < NANO.n_experts


def test_gguf_py_reads_the_same(nano_path):
    reader = gguf.GGUFReader(nano_path)

    def field(key):
        return reader.fields[key]

    for key in ("block_count", "embedding_length", "expert_gating_func", "attention.indexer.top_k", "context_length"):
        assert field(f"deepseek4.{key}").types == [gguf.GGUFValueType.UINT32]
    assert field("deepseek4.expert_gating_func").contents() == 4
    assert field("deepseek4.attention.compress_ratios").contents() == [0, 0, 4, 128, 4, 128]
    tokens = field("tokenizer.ggml.tokens").contents()
    assert len(tokens) == NANO.vocab
    for special in ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜"):
        assert special in tokens
    assert {t.tensor_type.name for t in reader.tensors} == {"F32", "F16", "Q8_0", "IQ2_XXS", "Q2_K", "I32"}
    assert all(np.isfinite(t.data).all() for t in reader.tensors if t.tensor_type.name in ("F32", "F16"))


def test_a_slice_has_the_dimensions_of_flash():
    shape = slice_shape(layers=4, experts=256)
    for name in ("dim", "n_heads", "head_dim", "q_rank", "o_rank", "o_groups", "expert_ff", "window", "index_topk"):
        assert getattr(shape, name) == getattr(FLASH, name)
    assert shape.ratios == (0, 0, 4, 128)
    sizes = [sum(spec.nbytes for spec in tensors(slice_shape(4, n), "q2")) for n in (8, 256)]
    assert sizes[0] < 1e9 < 7.5e9 < sizes[1] < 8.5e9
    full = replace(slice_shape(43, 256, FLASH.vocab), name=FLASH.name)
    assert full == FLASH
    assert sum(spec.nbytes for spec in tensors(full, "q2")) == 86_714_775_900  # docs/explanation/model.md 2.2


def test_a_slice_of_pro():
    shape = slice_shape(layers=4, experts=8, model="pro")
    assert (shape.dim, shape.expert_ff, shape.n_heads, shape.index_topk) == (7168, 3072, 128, 1024)
    assert (
        shape.ratios == (128, 128, 4, 128) and shape.n_hash_layers == 3 and shape.name.startswith("ds4ref slice of Pro")
    )
    assert replace(slice_shape(61, 384, PRO.vocab, "pro"), name=PRO.name) == PRO
    with pytest.raises(UsageError, match="experts must be 1 to 384, not 385"):
        slice_shape(experts=385, model="pro")
    with pytest.raises(UsageError, match="unknown shape 'air': choose from flash, pro"):
        slice_shape(model="air")


@pytest.mark.parametrize("recipe", ["q2", "q4"])
def test_recipes_differ_in_the_experts_only(tmp_path, recipe):
    write_model(tmp_path / "m.gguf", ONE_LAYER, recipe)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        weights = bind(file, ONE_LAYER, verify=True)
    formats = weights.layers[0].ffn_gate_exps.fmt, weights.layers[0].ffn_down_exps.fmt
    assert formats == {"q2": ("IQ2_XXS", "Q2_K"), "q4": ("Q4_K", "Q4_K")}[recipe]
    assert weights.layers[0].attn_q_b.fmt == "Q8_0"


def test_real_dimensions_on_disk(tmp_path):
    shape = slice_shape(layers=1, experts=1, vocab=300)
    write_model(tmp_path / "m.gguf", shape)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert ModelShape.from_metadata(file) == shape
        assert bind(file, shape).layers[0].attn_q_b.data.shape == (32768, 1024 // 32 * 34)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 0}, "layers must be 1 to 43, not 0"),
        ({"layers": 44}, "layers must be"),
        ({"experts": 257}, "experts must be 1 to 256"),
        ({"vocab": 263}, "vocab must be 264 to 129280"),
    ],
)
def test_impossible_slices(values, message):
    with pytest.raises(UsageError, match=message):
        slice_shape(**values)


def test_bad_requests_leave_nothing(tmp_path):
    with pytest.raises(UsageError, match="choose from q2, q4"):
        write_model(tmp_path / "m.gguf", ONE_LAYER, "q3")
    with pytest.raises(UsageError, match="embedding_length 300"):
        write_model(tmp_path / "m.gguf", replace(ONE_LAYER, dim=300))
    with pytest.raises(ModelFileError, match="cannot write"):
        write_model(tmp_path / "absent" / "m.gguf", ONE_LAYER)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_byte(tmp_path):
    calls = []
    write_model(tmp_path / "m.gguf", ONE_LAYER, progress=lambda done, total: calls.append((done, total)))
    done = [d for d, _ in calls]
    assert done == sorted(done)
    assert calls[-1][0] == calls[-1][1] == sum(spec.nbytes for spec in tensors(ONE_LAYER, "q2"))


def test_an_interrupted_build_leaves_nothing(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_model(tmp_path / "m.gguf", ONE_LAYER, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_alive(nano_path):
    """Logits spread as intended, no two positions alike, and greedy text that does not get stuck."""
    with Engine.open(nano_path, backend="reference", numerics="exact") as engine:
        ids = engine.tokenizer.encode(prose(600, 5))
        assert 80 < len(ids) < 250
        assert engine.tokenizer.decode(ids).decode() == prose(600, 5)
        session = engine.session(ctx=512)
        logits = session.extend(ids[:64])
        assert 2.0 < logits.std(axis=1).mean() < 3.0
        corr = np.corrcoef(logits)
        assert np.abs(corr[~np.eye(len(corr), dtype=bool)]).max() < 0.9, "the same token, seen in two contexts"
        out = []
        for _ in range(16):
            out.append(session.argmax())
            session.eval(out[-1])
        assert len(set(out)) > 8
