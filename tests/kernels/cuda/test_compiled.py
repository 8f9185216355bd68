"""Every op of the CUDA backend as a GPU would run it: compiled for sm_90, its PTX run here, against the reference.

Operands are those of ``tests/kernels/op_cases.py``. Threads and blocks are as many as on a GPU. All orders of threads
have to give the same bits, or results depend on who is first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.formats import Matrix
from ds4ref.kernels.ops import OPS

from .. import reference
from ..op_cases import EXACT, Case, bits, drawn
from ..test_cpu_ops import assert_close, matrix

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def cuda(cuda_driver: Any) -> Any:
    return CUDA()


def placed(ops: Any, args: list[Any]) -> list[Any]:
    """Operands where ``ops`` can read them."""
    return [ops.place(v) if isinstance(v, Matrix) else ops.upload(v) if isinstance(v, np.ndarray) else v for v in args]


def results(case: Case, ops: Any, args: list[Any]) -> list[np.ndarray]:
    """What the op gives and writes, on the host."""
    return case.seen([ops.host(out) for out in case.run(ops, args)])


@pytest.mark.parametrize("name", sorted(OPS))
def test_op_against_the_reference(name: str, cuda: Any, cuda_driver: Any) -> None:
    from .lowering.fibers import ORDERS

    for case in drawn(name):
        wanted = case.seen(case.run(reference, case.copies()))
        found = []
        for order in ORDERS:
            cuda_driver.order = order
            found.append(results(case, cuda, placed(cuda, case.copies())))
        cuda_driver.order = ORDERS[0]
        for forward, backward, interleaved, w in zip(*found, wanted, strict=True):
            assert forward.shape == w.shape and forward.dtype == w.dtype
            assert bits(forward) == bits(backward) == bits(interleaved), "depends on the order of threads"
            if w.dtype.kind != "f" or name in EXACT:
                np.testing.assert_array_equal(forward, w)
            else:
                assert_close(forward, w, 6e-6)


EDGES = ("hadamard", "quantize_a8", "quantize_q8k", "round_e2m1", "round_e4m3", "round_f16", "round_i8")


@pytest.mark.parametrize("name", EDGES)
def test_rows_at_the_edges(name: str, cuda: Any) -> None:
    """Zeros, one value among zeros, tiny and subnormal values, halves between codes, magnitudes that end the range."""
    n = 128 if name == "hadamard" else 256
    rng = np.random.default_rng(3)
    x = np.zeros((12, n), np.float32)
    x[1, 5] = -3
    x[2:9] = rng.standard_normal((7, n)) * np.array([1e-4, 1e-30, 1e-37, 1e-41, 1e4, 65504, 1e36])[:, None]
    x[9] = np.arange(n) / 2 - n / 4
    x[10], x[10, 7] = np.ldexp(1.0, -(np.arange(n) % 140)), -2
    x[11] = rng.choice([448, -448, 6, -127, 127.5, 0.5], n)
    wanted = getattr(reference, name)(x)
    got = getattr(cuda, name)(cuda.upload(x))
    wanted, got = (out if isinstance(out, tuple) else (out,) for out in (wanted, got))
    for g, w in zip(got, wanted, strict=True):
        if name == "hadamard":
            assert_close(cuda.host(g), w, 6e-6)
        else:
            np.testing.assert_array_equal(cuda.host(g), w)


def larger(name: str) -> list[list[Any]]:
    """Operands that take several tiles, chunks or rounds of a kernel, which ``drawn`` ones are too small for."""
    rng = np.random.default_rng(8)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int32)

    if name == "attention":
        q, raw, comp, sinks = 3 * normal(2, 10, 40), normal(200, 40), normal(150, 40).astype(np.float16), normal(10)
        window = ints(5, 190), ints(200, 150)
        picks = rng.permuted(np.tile(np.arange(-10, 150), (2, 1)), axis=1)[:, :90].astype(np.int32)
        picks[picks < 0] = -1
        counts = ints(150, 100)
        # More rows than all runs together take at a time: a block goes on from tile to tile
        many = normal(100, 8), ints(7), ints(100), normal(4300, 8).astype(np.float16), ints(4290)
        return [
            [3 * normal(1, 5, 8), *many, None, normal(5), 0.3],
            [q, raw, *window, comp, counts, None, sinks, 0.3],
            [q, raw, *window, comp, counts, picks, sinks, 0.3],
            [q, raw, *window, None, ints(0, 0), None, sinks, 0.3],
        ]
    if name == "engram_gate":
        return [[normal(2, 3, 700), normal(2, 2800), normal(3, 700), 1e-20]]
    if name == "block_scores":
        return [[normal(2, 70, 40), normal(300, 40), normal(2, 70), ints(*range(0, 37, 2), 36).reshape(2, 10), 8]]
    if name == "attend":
        keys, values = normal(200, 2, 40), normal(200, 2, 40).astype(np.float16)
        many = normal(4300, 1, 8), normal(4300, 1, 8), ints(77), ints(4290)
        return [
            [3 * normal(2, 44, 40), keys, values, ints(5, 190), ints(200, 150), 0.3],
            [3 * normal(1, 5, 8), *many, 0.3],
        ]
    if name == "index_scores":
        return [[normal(2, 70, 48), normal(150, 48), normal(2, 70), ints(130)]]
    if name == "select_rows":
        scores = rng.integers(0, 400, (2, 3000)).astype(np.float32) / 7
        zeros = np.where(rng.integers(0, 2, (2, 600)), -0.0, 0.0).astype(np.float32)  # which are the same number
        return [[scores, ints(3000, 700), 512], [zeros, ints(600, 500), 100]]
    if name == "top":
        logits = (rng.integers(-900, 900, (2, 5000)) / np.float32(7)).astype(np.float32)  # with ties on every border
        logits[0, 100:200], logits[1, 7], logits[1, 4000:] = np.nan, np.inf, -np.inf
        # a maximum of maxima; two rounds, and three; runs that are half a tile; everything in order
        return [[logits, 1], [logits, 2], [logits, 40], [-abs(logits[:1]), 1000], [logits[1:, :1024].copy(), 1024]]
    if name == "route":
        tied = np.round(2 * normal(3, 300)) / 2
        least, odd = normal(2, 40) - 60, normal(2, 9)  # a sum that is below its floor; fewer numbers than are chosen
        odd[:, 1:8:2], odd[1, 2] = np.nan, np.nan
        return [
            [normal(3, 300), normal(300), None, 6, 1.5, False], [tied, None, None, 9, 1.0, True],
            [least, None, None, 3, 1.5, True], [odd, None, None, 7, 1.5, False],
        ]  # fmt: skip
    if name == "hc_split":  # more entries than a warp has lanes
        return [[normal(2, C * C + 2 * C), normal(3), normal(C * C + 2 * C), 5, 1e-6] for C in (7, 16)]
    if name == "round_i8":
        ties = np.zeros((3, 128), np.float32)
        ties[:, ::64], ties[:, 1:64] = 127, np.arange(-31, 32) / 2
        return [[ties, 64], [ties, 128], [normal(5, 300), 1]]
    if name == "rms_norm":
        return [[normal(3, 5000), normal(5000), 1e-6]]
    if name == "remove_along":
        return [[normal(3, 5000), normal(5000) / 70, -0.7]]
    if name == "rope":
        x, angles = normal(3, 2, 23), normal(3, 8)
        return [[x, np.cos(angles), np.sin(angles), inverse, halves] for inverse in (0, 1) for halves in (0, 1)]
    if name == "pool":
        return [[normal(3, 128, 200), normal(3, 128, 200)]]
    # experts whose bytes begin anywhere, of several chunks; and rows of whole chunks
    formats = [("Q8_0", "a8", 2560), ("Q8_0", "float", 2560), ("Q4_K", "q8k", 5120), ("IQ2_XXS", "float", 5120)]
    formats += [("F16", "float", 2000), ("F16", "float", 2001), ("Q2_K", "q8k", 4096), ("IQ2_XXS", "q8k", 8192)]
    ids = np.array([[4, 0, 2]], np.int32)
    return [[normal(1, 3, n), ids, matrix(fmt, 11, n, 5), act] for fmt, act, n in formats]


LARGER = (
    "attend",
    "attention",
    "block_scores",
    "engram_gate",
    "expert_sum",
    "hc_split",
    "index_scores",
    "pool",
    "remove_along",
    "rms_norm",
    "rope",
    "round_i8",
    "route",
    "select_rows",
    "top",
)


@pytest.mark.parametrize("name", LARGER)
def test_several_rounds_of_a_kernel(name: str, cuda: Any) -> None:
    for args in larger(name):
        wanted, got = getattr(reference, name)(*args), getattr(cuda, name)(*placed(cuda, args))
        wanted, got = (out if isinstance(out, tuple) else (out,) for out in (wanted, got))
        for g, w in zip(got, wanted, strict=True):
            values = cuda.host(g)
            if name == "index_scores":
                values, w = values[:, : int(args[3][0])], w[:, : int(args[3][0])]
            if w.dtype.kind == "f" and name not in EXACT:
                assert np.array_equal(np.isnan(values), np.isnan(w))
                assert_close(np.nan_to_num(values), np.nan_to_num(w), 2e-5)
            else:
                np.testing.assert_array_equal(values, w)
