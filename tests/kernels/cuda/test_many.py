"""Kernels that many tokens get and few do not: their edges, and what they hand back to the kernels of few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.rows import attending_many, indexing, indexing_many
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
