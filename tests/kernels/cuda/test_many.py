"""Kernels that many tokens get and few do not: their edges, and what they hand back to the kernels of few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.driver.launch import Launch
from ds4ref.kernels.cuda.products import matmat_half, mixing
from ds4ref.kernels.cuda.rows import attending_many, hyper, indexing, indexing_many, short_rows
from ds4ref.kernels.formats import Matrix

from .. import reference
from .lowering import hosted

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def cuda(cuda_driver: Any) -> Any:
    return CUDA()


def run(ops: Any, name: str, *args: Any) -> Any:
    """Call an op with operands from the host, and bring its results back."""
    placed = [
        ops.upload(a) if isinstance(a, np.ndarray) else ops.place(a) if isinstance(a, Matrix) else a for a in args
    ]
    found = getattr(ops, name)(*placed)
    return tuple(map(ops.host, found)) if isinstance(found, tuple) else ops.host(found)


def launched(function: Callable[[], Any]) -> tuple[Any, set[str]]:
    """Return what ``function`` returns, and the modules of the kernels that it launched."""
    before = dict(getattr(hosted, "LAUNCHED", {}))
    found = function()
    after = getattr(hosted, "LAUNCHED", {})
    return found, {k.py_func.__module__.rsplit(".", 1)[-1] for k, n in after.items() if n != before.get(k, 0)}


def halves(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return normal float32 numbers that binary16 holds."""
    return rng.standard_normal(shape).astype(np.float16).astype(np.float32)


@pytest.fixture
def any_many() -> Iterator[None]:
    """Few tokens count as many."""
    with (
        mock.patch.object(attending_many, "FEWEST", 1),
        mock.patch.object(indexing_many, "FEWEST", 1),
        mock.patch.object(indexing, "MANY", 1),
        mock.patch.object(short_rows, "FEWEST", 1),
        mock.patch.object(short_rows, "FEWEST_NORMS", 1),
    ):
        yield


# --- attention


def attention_operands(
    heads: int, dim: int, window: int, rows: int | None, picks: int | None, tokens: int = 2
) -> list[Any]:
    """Operands of ``attention``: rings that are full and wrap, rows that the first token does not see, picks that end
    in -1. ``rows``: None for layers without compressed rows."""
    rng = np.random.default_rng(heads + dim)
    q = rng.standard_normal((tokens, heads, dim)).astype(np.float32)
    raw = halves(rng, window, dim)
    comp = None if rows is None else rng.standard_normal((rows, dim)).astype(np.float16)
    first = np.arange(window - 1, window - 1 + tokens, dtype=np.int32)
    count = np.full(tokens, window, np.int32)
    count[0] = 1
    seen = np.full(tokens, rows or 0, np.int32)
    seen[0] = min(1, seen[0])
    chosen = None
    if picks is not None and rows is not None:
        chosen = np.sort([rng.permutation(rows)[:picks] for _ in range(tokens)], axis=1).astype(np.int32)
        chosen[0, 1:] = -1
    sinks = rng.standard_normal(heads).astype(np.float32)
    return [q, raw, first, count, comp, seen, chosen, sinks, dim**-0.5]


@pytest.mark.parametrize(
    ("heads", "dim", "window", "rows", "picks"),
    [
        (4, 64, 5, None, None),  # fewer rows than a tile, fewer heads than 16
        (33, 64, 32, 32, None),  # whole tiles, a group with one head
        (16, 128, 31, 34, None),  # a tile of both kinds of rows, a tile of one row
        (8, 256, 9, 60, 30),
        (32, 512, 33, 40, 36),
    ],
)
def test_attention_of_many(
    heads: int, dim: int, window: int, rows: int | None, picks: int | None, cuda: Any, any_many: None
) -> None:
    args = attention_operands(heads, dim, window, rows, picks)
    found, kernels = launched(lambda: run(cuda, "attention", *args))
    np.testing.assert_allclose(found, reference.attention(*args), rtol=0, atol=2e-6)
    assert "attending_many" in kernels


@pytest.mark.parametrize("what", ["not a half", "infinite", "float32 rows"])
def test_rows_that_are_no_halves_are_attended_to_as_by_few(what: str, cuda: Any, any_many: None) -> None:
    args = attention_operands(16, 64, 40, 40, None)
    if what == "float32 rows":
        args[4] = args[4].astype(np.float32) * np.float32(1.0001)
    else:
        args[1][3, 7] = {"not a half": 1 + 2.0**-12, "infinite": 1e9}[what]
    found = run(cuda, "attention", *args)
    with mock.patch.object(attending_many, "FEWEST", 1000):
        few = run(cuda, "attention", *args)
    np.testing.assert_array_equal(found.view(np.int32), few.view(np.int32))


def test_numbers_out_of_range_are_told_and_not_read(cuda: Any, any_many: None) -> None:
    for place, value in ((6, 40), (3, 41), (2, -1), (5, 41)):
        args = attention_operands(16, 64, 40, 40, None if place == 5 else 20)
        args[place][1] = value
        with pytest.raises(IndexError):
            run(cuda, "attention", *args)


def test_a_sink_takes_its_share(cuda: Any, any_many: None) -> None:
    """Of a token that sees nothing all of it."""
    args = attention_operands(16, 64, 8, 8, None)
    args[3][:], args[5][:] = 0, 0
    assert not run(cuda, "attention", *args).any()
    args[7][2] = np.nan
    found = run(cuda, "attention", *args)
    assert np.isnan(found[:, 2]).all() and not np.isnan(np.delete(found, 2, axis=1)).any()


def test_who_attends(cuda: Any) -> None:
    assert attending_many.fits(64, 512) and not attending_many.fits(63, 512)
    assert not attending_many.fits(64, 96) and not attending_many.fits(64, 1024)
    with mock.patch.object(attending_many, "shared_limit", lambda: 99 << 10):
        assert attending_many.fits(64, 256) and not attending_many.fits(64, 512)


# --- indexer


@pytest.mark.parametrize(
    ("tokens", "heads", "dim", "rows", "count"),
    [(1, 8, 32, 300, 257), (17, 8, 64, 40, 40), (2, 64, 128, 256, 256), (2, 16, 96, 5, 1), (2, 8, 32, 9, 0)],
)
def test_scores_of_many(tokens: int, heads: int, dim: int, rows: int, count: int, cuda: Any, any_many: None) -> None:
    """With values of E2M1, and with one that is no binary16."""
    rng = np.random.default_rng(tokens)
    iq = rng.integers(-12, 13, (tokens, heads, dim)).astype(np.float32) / 4
    keys = (rng.integers(-12, 13, (rows, dim)) / 8).astype(np.float16)
    w = rng.standard_normal((tokens, heads)).astype(np.float32)
    for nudge in (0.0, 1e-4):
        iq[0, 0, 0] += np.float32(nudge)
        args = iq, keys, w, np.array([count], np.int32)
        found, kernels = launched(lambda args=args: run(cuda, "index_scores", *args))
        np.testing.assert_allclose(found[:, :count], reference.index_scores(*args)[:, :count], rtol=2e-6, atol=2e-5)
        assert "indexing_many" in kernels


@pytest.mark.parametrize(("n", "k"), [(1, 1), (300, 7), (257, 256), (1500, 512)])
def test_choosing_rows_of_many(n: int, k: int, cuda: Any, any_many: None) -> None:
    """Ties, zeros of both signs, infinities; counts around k."""
    rng = np.random.default_rng(n)
    scores = rng.integers(-3, 4, (6, n)).astype(np.float32)
    scores[1] = rng.standard_normal(n)
    scores[2, ::2] = -0.0
    scores[3, 0], scores[3, -1] = np.inf, -np.inf
    visible = np.array([n, n, n, n, min(n, k), max(0, n - 1)], np.int32)
    args = scores, visible, k
    np.testing.assert_array_equal(run(cuda, "select_rows", *args), reference.select_rows(*args))


# --- streams


@pytest.mark.parametrize(("C", "D"), [(4, 8), (4, 1028), (1, 4), (3, 12)])
def test_streams_in_fours_are_those_one_by_one(C: int, D: int, cuda: Any) -> None:
    rng = np.random.default_rng(C)
    X, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, C, D), (3, D), (3, D)))
    pre, post, comb = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, C), (3, C), (3, C, C)))

    def expanded(ops: Any) -> np.ndarray:
        X_, a_, b_, post_, comb_ = map(ops.upload, (X, a, b, post, comb))
        return np.asarray(ops.host(ops.hc_expand(X_, ops.add(a_, b_), post_, comb_)))

    found, reduced = expanded(cuda), run(cuda, "hc_reduce", X, pre)
    np.testing.assert_allclose(found, reference.hc_expand(X, a + b, post, comb), rtol=0, atol=2e-6)
    np.testing.assert_allclose(reduced, reference.hc_reduce(X, pre), rtol=0, atol=2e-6)
    both, out = [cuda.upload(x) for x in (X, a, b, post, comb)], cuda.array(3, C, D)
    cuda.run(Launch(hyper.hc_leave, [out], both, (3, C, D)))
    np.testing.assert_array_equal(found, cuda.host(out))  # joining keeps bits
    with mock.patch.object(hyper, "in_fours", lambda C, D: False):
        np.testing.assert_allclose(found, expanded(cuda), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("tokens", "C", "D", "rows"), [(16, 4, 64, 24), (33, 4, 264, 24), (17, 2, 16, 4), (16, 1, 32, 40)]
)
def test_mixing_logits_of_many(tokens: int, C: int, D: int, rows: int, cuda: Any) -> None:
    """Of streams of very different sizes: each sum of 32 has its own scale."""
    rng = np.random.default_rng(tokens)
    X = (rng.standard_normal((tokens, C, D)) * np.exp(4 * rng.standard_normal((tokens, C, D)))).astype(np.float32)
    weights = rng.standard_normal((rows, C * D)).astype(np.float16)
    fn = Matrix("F16", weights.view(np.uint8).reshape(rows, -1), rows, C * D)
    found, kernels = launched(lambda: run(cuda, "hc_mix", X, fn, 1e-6))
    x = X.reshape(tokens, -1).astype(np.float64)
    x /= np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6)
    reach = np.abs(x) @ np.abs(weights.astype(np.float64)).T
    assert (np.abs(found - x @ weights.astype(np.float64).T) <= 3e-7 * reach).all()
    assert ("mixing" in kernels) == mixing.fits("F16", tokens, rows, C * D)


# --- F16 matrices


@pytest.mark.parametrize(("tokens", "n", "rows"), [(16, 64, 1), (65, 192, 70), (64, 256, 128), (80, 128, 65)])
def test_f16_matrices_of_many(tokens: int, n: int, rows: int, cuda: Any) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((tokens, n)) * np.exp(3 * rng.standard_normal((tokens, 1)))).astype(np.float32)
    weights = rng.standard_normal((rows, n)).astype(np.float16)
    x[3] = 0
    w = Matrix("F16", weights.view(np.uint8).reshape(rows, -1), rows, n)
    found, kernels = launched(lambda: run(cuda, "linear", x, w, "float"))
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    reach = np.abs(x.astype(np.float64)) @ np.abs(weights.astype(np.float64)).T
    assert (np.abs(found - exact) <= 1.5e-7 * reach).all()
    assert "matmat_half" in kernels
    x[5, 2] = np.inf
    found = run(cuda, "linear", x, w, "float")
    assert not np.isfinite(found[5]).any() and np.isfinite(np.delete(found, 5, axis=0)).all()


def test_which_f16_matrices(cuda: Any) -> None:
    def of(fmt: str, cols: int) -> Matrix:
        return Matrix(fmt, np.zeros((2, 2 * cols), np.uint8), 2, cols)

    assert matmat_half.fits(of("F16", 128), 1)
    assert not any(matmat_half.fits(*args) for args in ((of("F16", 96), 1), (of("BF16", 128), 1), (of("F16", 128), 2)))


# --- rows


CHAINS: dict[str, tuple[Callable[..., tuple[Any, ...]], bool]] = {
    "rms_norm": (lambda x, w, angles: (x, w, 1e-6), True),
    "hadamard": (lambda x, w, angles: (x,), True),
    "round_e4m3": (lambda x, w, angles: (x, x.shape[-1] - 64), True),
    "round_e2m1": (lambda x, w, angles: (x,), True),
    "round_f16": (lambda x, w, angles: (x,), True),
    "rope": (lambda x, w, angles: (x, *angles), False),
}
"""Operands of each op of short rows, and whether they get the bits of few."""


@pytest.mark.parametrize("n", short_rows.LENGTHS)
@pytest.mark.parametrize("name", CHAINS)
def test_short_rows_of_many(name: str, n: int, cuda: Any, any_many: None) -> None:
    """9 rows are a block and one more. Blocks of zeros, scales just above a power of two, infinities and NaNs."""
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((3, 3, n)) * np.exp(4 * rng.standard_normal((3, 3, 1)))).astype(np.float32)
    x[0, 0, :32] = 0
    x[0, 1, 5] = 2.0**-3 * 448
    x[2, 0] = 2.0 ** rng.integers(-20, 20, n) * (1 + rng.integers(0, 3, n) * 2.0**-23)
    # of blocks of E4M3 and of E2M1 the largest value is just above one for which a scale is exact
    x[2, 1:] /= np.abs(x[2, 1:]).max()
    x[2, 1] *= 448 * 2.0**-12
    x[2, 1, ::64] = np.nextafter(np.float32(448 * 2.0**-10), np.float32(1))
    x[2, 2, ::32] = np.nextafter(np.float32(6 * 2.0**9), np.float32(1e9))
    if name != "rms_norm" and name != "rope":
        x[1, 2, 40], x[1, 1, n - 1] = np.inf, np.nan
    angles = rng.uniform(-3, 3, (3, 24)).astype(np.float32)
    operands, same = CHAINS[name]
    args = operands(x, rng.standard_normal(n).astype(np.float32), (np.cos(angles), np.sin(angles)))
    found, kernels = launched(lambda: run(cuda, name, *args))
    assert "short_rows" in kernels
    with mock.patch.object(short_rows, "FEWEST", 1000):
        few = run(cuda, name, *args)
    if same:
        np.testing.assert_array_equal(found, few)
    else:
        assert (np.abs(found - few) <= 1e-6 * np.abs(few).max(axis=-1, keepdims=True)).all()


@pytest.mark.parametrize("n", [516, 1024, 4096])
@pytest.mark.parametrize("weighted", [True, False])
def test_norms_of_many_long_rows(n: int, weighted: bool, cuda: Any, any_many: None) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((3, n)) * np.array([[1e-3], [1], [1e6]])).astype(np.float32)
    args = x, rng.standard_normal(n).astype(np.float32) if weighted else None, 1e-6
    found, kernels = launched(lambda: run(cuda, "rms_norm", *args))
    assert "short_rows" in kernels
    np.testing.assert_allclose(found, reference.rms_norm(*args), rtol=3e-7, atol=0)


@pytest.mark.parametrize("weighted", [True, False])
def test_swiglu_in_fours(weighted: bool, cuda: Any) -> None:
    """1300 values are a block and a part of one."""
    rng = np.random.default_rng(1)
    gate, up = (4 * rng.standard_normal((13, 100)).astype(np.float32) for _ in range(2))
    args = gate, up, 3.0, rng.standard_normal(13).astype(np.float32) if weighted else None
    np.testing.assert_allclose(run(cuda, "swiglu", *args), reference.swiglu(*args), rtol=2e-6, atol=1e-6)
