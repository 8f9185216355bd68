"""Random tensor contents: the spread that was asked for, the same on every run, in bounded pieces."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from ds4ref.nano import fill
from ds4ref.nano.fill import Noise, random_experts, random_tensor
from ds4ref.weights.container import TensorSpec


def values(fmt, std, mean=0.0, dims=(2048, 256)):
    spec = TensorSpec("t", fmt, dims)
    raw = np.concatenate(list(random_tensor(spec, Noise(1, "t"), std, mean)))
    assert raw.nbytes == spec.nbytes
    if fmt in ("F32", "F16"):
        return raw.view(fmt.lower().replace("f32", "<f4").replace("f16", "<f2")).astype(np.float64)
    return dequantize(raw.reshape(dims[1], -1), GGMLQuantizationType[fmt]).astype(np.float64).reshape(-1)


@pytest.mark.parametrize("fmt", ["F32", "F16", "Q8_0", "IQ2_XXS", "Q2_K", "Q4_K"])
@pytest.mark.parametrize("std", [1.0, 1 / 64])
def test_spread_as_gguf_py_reads_it(fmt, std):
    w = values(fmt, std)
    assert np.isfinite(w).all()
    assert w.std() == pytest.approx(std, rel=0.02)
    assert abs(w.mean()) < 0.02 * std
    assert np.abs(w).max() < 6 * std


def test_pieces_are_bounded(monkeypatch):
    monkeypatch.setattr(fill, "PIECE_BYTES", 10_000)
    for fmt in ("F16", "IQ2_XXS"):
        spec = TensorSpec("t", fmt, (1024, 100))
        pieces = list(random_tensor(spec, Noise(1, "t"), 1.0))
        assert len(pieces) > 2
        assert max(piece.nbytes for piece in pieces) <= 10_000
        assert sum(piece.nbytes for piece in pieces) == spec.nbytes


@pytest.mark.parametrize(("used", "experts"), [(1, 1), (4, 16), (6, 6), (6, 256)])
def test_hash_routing_draws_different_experts_evenly(used, experts):
    table = np.concatenate(list(random_experts(5000, used, experts, Noise(1, "t"))))
    assert table.shape == (5000, used) and table.dtype == np.int32
    assert all(len(set(row)) == used for row in table.tolist())
    counts = np.bincount(table.ravel(), minlength=experts)
    assert len(counts) == experts
    expected = 5000 * used / experts
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected) + 1
