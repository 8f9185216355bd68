"""Ops over many tokens, through the prefill GEMM, against the reference and against single tokens."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cpu import gemm
from tests.kernels import cpu, reference
from tests.kernels.test_cpu_ops import matrix

FLOATS = ("F16", "BF16", "F8_E4M3", "MXFP4")
PAIRS = [(f, a) for f in ("Q8_0", "Q4_K", "Q2_K", "IQ2_XXS", *FLOATS) for a in ("float", "a8", "q8k")]
PAIRS = [p for p in PAIRS if p[1] == "float" or p[1] == ("a8" if p[0] == "Q8_0" else "q8k") and p[0] not in FLOATS]


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, atol=3e-6 * np.abs(wanted).max(), rtol=1e-5)


@pytest.mark.parametrize(("fmt", "act"), PAIRS)
@pytest.mark.parametrize(("tokens", "rows", "cols"), [(gemm.MIN_TOKENS, 5, 256), (13, 64, 768), (130, 33, 512)])
def test_linear(fmt: str, act: str, tokens: int, rows: int, cols: int) -> None:
    rng = np.random.default_rng(tokens)
    w = matrix(fmt, rows, cols)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    if gemm.parts(fmt, act) is not None:
        assert gemm.parts_for(tokens, w, act) is not None
    got = cpu.linear(x, w, act)
    assert_close(got, reference.linear(x, w, act))
    np.testing.assert_array_equal(cpu.linear(x[: gemm.MIN_TOKENS], w, act), got[: gemm.MIN_TOKENS])


@pytest.mark.parametrize(("fmt", "act"), PAIRS)
def test_an_input_that_is_no_number_spoils_its_own_token_and_no_other(fmt: str, act: str) -> None:
    """Wherever in a block it stands, and whichever token of a tile has it: a NaN that is packed as some small number
    would be a wrong answer instead of an error."""
    w, rng = matrix(fmt, 12, 512), np.random.default_rng(3)
    clean = rng.standard_normal((10, 512)).astype(np.float32)
    wanted = cpu.linear(clean, w, act)
    for token, place in ((0, 0), (3, 37), (4, 255), (9, 256), (9, 511)):
        for bad in (np.nan, np.inf, -np.inf):
            x = clean.copy()
            x[token, place] = bad
            with np.errstate(all="ignore"):
                got = cpu.linear(x, w, act)
            assert not np.isfinite(got[token]).any(), (token, place, bad)
            np.testing.assert_array_equal(np.delete(got, token, axis=0), np.delete(wanted, token, axis=0))


@pytest.mark.parametrize(("fmt", "act"), [("Q8_0", "a8"), ("Q8_0", "float")])
def test_grouped_linear(fmt: str, act: str) -> None:
    rng = np.random.default_rng(1)
    w = matrix(fmt, 4 * 24, 512)
    x = rng.standard_normal((19, 4, 512)).astype(np.float32)
    assert_close(cpu.grouped_linear(x, w, act), reference.grouped_linear(x, w, act))


@pytest.mark.parametrize(
    ("fmt", "act"), [("IQ2_XXS", "q8k"), ("Q2_K", "q8k"), ("Q4_K", "q8k"), ("IQ2_XXS", "float"), ("MXFP4", "float")]
)
@pytest.mark.parametrize("ids", ["spread", "one expert", "twice the same"])
def test_experts(fmt: str, act: str, ids: str) -> None:
    rng = np.random.default_rng(2)
    experts, K, tokens, rows = 5, 3, 21, 70
    w = matrix(fmt, rows, 512, experts)
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :K].astype(np.int32)
    if ids == "one expert":
        chosen[:] = [4, 0, 1]
    if ids == "twice the same":
        chosen[:, 1] = chosen[:, 0]
    x = rng.standard_normal((tokens, 512)).astype(np.float32)
    mid = rng.standard_normal((tokens, K, 512)).astype(np.float32)
    assert_close(cpu.expert_linear(x, chosen, w, act), reference.expert_linear(x, chosen, w, act))
    assert_close(cpu.expert_sum(mid, chosen, w, act), reference.expert_sum(mid, chosen, w, act))
