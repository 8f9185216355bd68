"""Kernels under pytest-benchmark, to compare two versions of the code on one machine:

    pytest benchmarks --benchmark-save=before
    pytest benchmarks --benchmark-compare --benchmark-compare-fail=mean:5%

Whole-engine figures are in ``benchmarks.cpu``.
"""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cpu import CPU

from .goals import FORMATS
from .matvec import random_matrix
from .whole import gemm_arm

cpu = CPU()
RNG = np.random.default_rng(0)
ROUNDS = {"rounds": 15, "warmup_rounds": 2}


def normal(*shape: int) -> np.ndarray:
    """Draw float32 standard normal numbers of this shape."""
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("act", ["ds4", "float"])
@pytest.mark.benchmark(group="mat-vec, 64 MB")
def test_matvec(benchmark, fmt: str, act: str) -> None:
    w, x = random_matrix(fmt, 64), normal(1, 4096)
    benchmark.pedantic(cpu.linear, args=(x, w, FORMATS[fmt] if act == "ds4" else "float"), **ROUNDS)


@pytest.mark.parametrize("tokens", [8, 32, 128, 512])
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.benchmark(group="prefill GEMM, four of 4096 x 2048")
def test_gemm(benchmark, fmt: str, tokens: int) -> None:
    arm, _ = gemm_arm(cpu, fmt, tokens)
    benchmark.pedantic(arm, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [512, 8192])
@pytest.mark.benchmark(group="attention, one token, 64 heads of 512")
def test_attention(benchmark, rows: int, dtype: type) -> None:
    """Time the attention op for one token at these sizes."""
    comp: np.ndarray = normal(rows, 512).astype(dtype)
    first, count, comp_count = (np.array([n], np.int32) for n in (0, 128, rows))
    arguments = (normal(1, 64, 512), normal(128, 512), first, count, comp, comp_count, None, normal(64), 512**-0.5)
    benchmark.pedantic(cpu.attention, args=arguments, **ROUNDS)


@pytest.mark.parametrize("rows", [8192, 262144])
@pytest.mark.benchmark(group="indexer, one token, 64 heads of 128")
def test_index_scores(benchmark, rows: int) -> None:
    arguments = (normal(1, 64, 128), normal(rows, 128).astype(np.float16), normal(1, 64), np.array([rows], np.int32))
    benchmark.pedantic(cpu.index_scores, args=arguments, **ROUNDS)


@pytest.mark.parametrize("rows", [8192, 262144])
@pytest.mark.benchmark(group="top 512")
def test_select_rows(benchmark, rows: int) -> None:
    benchmark.pedantic(cpu.select_rows, args=(normal(1, rows), np.array([rows], np.int32), 512), **ROUNDS)


@pytest.mark.benchmark(group="small ops of one token")
@pytest.mark.parametrize("op", ["rms_norm", "round_e4m3", "round_f16", "quantize_a8", "quantize_q8k"])
def test_small_ops(benchmark, op: str) -> None:
    x = normal(1, 4096)
    arguments = (x, None, 1e-6) if op == "rms_norm" else (x,)
    benchmark.pedantic(getattr(cpu, op), args=arguments, rounds=50, iterations=20, warmup_rounds=1)
