"""Generated files: the right dimensions, metadata and tensors, as an outside reader sees them."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH, PRO
from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.nano.cache import NANO_SHA256
from ds4ref.nano.prose import prose
from ds4ref.nano.recipe import NANO, slice_shape, tensors, write_model


def test_the_embedded_model_is_reproducible(tmp_path):
    write_model(tmp_path / "a.gguf", NANO)
    assert hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest() == NANO_SHA256


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


def test_a_slice_of_v41_has_one_layer_of_each_kind_and_runs(tmp_path):
    """At true widths, 24 rows of 264 bytes a token from its table among them."""
    from ds4ref.archs.deepseek41.shape import FLASH as WHOLE

    shape = slice_shape(5, 8, 4096, "flash41")
    for name in ("dim", "head_dim", "q_rank", "expert_ff", "index_dim", "index_topk", "candidate_blocks", "engram_dim"):
        assert getattr(shape, name) == getattr(WHOLE, name)
    specs = {spec.name: spec for spec in tensors(shape, "q2")}
    assert specs["blk.0.engram_embd.weight"].dims[0] == 264 and shape.engram_columns == 24
    assert 1.7e9 < sum(spec.nbytes for spec in specs.values()) < 1.8e9 and not shape.problems()
    with pytest.raises(UsageError, match="a slice of flash41 has 5 layers, experts 6 to 384"):
        slice_shape(4, 8, 4096, "flash41")
    small = replace(
        shape, dim=256, head_dim=128, n_heads=4, q_rank=32, o_rank=16, o_groups=2, expert_ff=256, hc=2, index_heads=4
    )
    write_model(tmp_path / "small.gguf", small)
    with Engine.open(tmp_path / "small.gguf", threads=1) as engine:
        session = engine.session(64)
        session.sync(list(range(40)))
        assert np.isfinite(session.logits).all() and engine.shape == small
