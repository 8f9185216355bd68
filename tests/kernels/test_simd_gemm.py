"""Products for many tokens against float64, and against the row kernels (not bit for bit: sums run in other orders).

Tolerance: 3e-7 of max |w| sum |x|, as for the row kernels.
"""

import platform
import re
from functools import cache

import numpy as np
import pytest
from numba import cfunc, int64, types

from ds4ref.kernels.cpu.simd import GEMMS, KERNELS, TIER, gemm_rows
from ds4ref.kernels.cpu.simd.gemm import float_gemm
from ds4ref.kernels.cpu.sizes import TILE_TOKENS, gemm_bytes
from ds4ref.kernels.formats import FORMATS
from tests.marking import sampled

from .simd_cases import BYTE_SCALES, random_rows, rounded, run
from .test_simd_asm import loops

TILED = TIER in "AN"
needs_tiles = pytest.mark.skipif(not TILED, reason="the tiles belong to tiers A, N and I")


@cache
def compiled(function):
    """A part as a C function, whose address ``gemm_rows`` takes."""
    names = ", ".join(function.py_func.__code__.co_varnames[: function.py_func.__code__.co_argcount])
    space = {"function": function}
    exec(f"def entry({names}):\n    function({names})\n", space)  # numba needs the real parameter count
    return cfunc(types.void(*[int64] * (names.count(",") + 1)), error_model="numpy")(space["entry"])


def product(gemm, raw, x, first=0, last=None):
    """x (T, n) times rows first..last-1 of ``raw`` -> (T, rows), NaN where nothing may be written."""
    (tokens, n), rows = x.shape, len(raw)
    last = rows if last is None else last
    panel_bytes = -(-tokens // TILE_TOKENS) * -(-n // gemm.chunk) * gemm.chunk_bytes
    sizes = panel_bytes, gemm_bytes(n, gemm.chunk, gemm.record, gemm.rows, gemm.tokens_at_once)
    panel, scratch = (np.full(size + 64, 0x5A, np.uint8) for size in sizes)
    for token in range(tokens):
        gemm.pack(x[token].ctypes.data, n, panel.ctypes.data, token)
    out = np.full((tokens, rows + 3), np.nan, np.float32)
    products = np.array([compiled(function).address for function in gemm.multiply], np.int64)
    parts = compiled(gemm.decode_row).address, products.ctypes.data, *gemm[3:]
    addresses = panel.ctypes.data, tokens, out.ctypes.data, out.strides[0], scratch.ctypes.data
    gemm_rows(*parts, raw.ctypes.data, raw.ctypes.data, first, last, raw.shape[1], n, *addresses)
    for array, size in zip((panel, scratch), sizes, strict=True):
        assert (array[size:] == 0x5A).all(), "written beyond the stated size"
    assert np.isnan(out[:, rows:]).all()
    return out[:, :rows]


def inputs(tokens, n, rng):
    return (rng.standard_normal((tokens, n)) * rng.choice([0.01, 1, 30], n)).astype(np.float32)


SHAPES = [(1, 1, 1), (2, 2, 3), (3, 5, 7), (8, 4, 8), (16, 133, 5)]


@pytest.mark.thorough
@needs_tiles
@pytest.mark.parametrize("blocks, tokens, rows", SHAPES)
@pytest.mark.parametrize("fmt, act", GEMMS)
def test_product(fmt, act, blocks, tokens, rows):
    rng = np.random.default_rng(blocks)
    n = blocks * {1: 37, 32: 96, 128: 128, 256: 256}[FORMATS[fmt].block_elems]
    raw, x = np.ascontiguousarray(random_rows(fmt, rows, n, rng)), inputs(tokens, n, rng)
    weights = FORMATS[fmt].dequantize(raw).astype(np.float64)
    exact_inputs = np.stack([rounded(act, row) for row in x])
    out = product(GEMMS[fmt, act], raw, x)
    bound = 3e-7 * np.abs(exact_inputs).sum(axis=1)[:, None] * np.abs(weights).max(axis=1) + 1e-37
    error = np.abs(out - exact_inputs @ weights.T)
    assert (error <= bound).all(), f"worst {np.max(error / bound):.2f} of the bound"
    by_rows = np.stack([run(KERNELS[fmt, act], raw, row) for row in x])
    assert (np.abs(out - by_rows) <= 2 * bound).all()


@needs_tiles
@pytest.mark.parametrize("fmt, act", sampled(GEMMS, 4))
def test_a_token_does_not_depend_on_the_others(fmt, act):
    rng = np.random.default_rng(1)
    raw, x = np.ascontiguousarray(random_rows(fmt, 6, 768, rng)), inputs(140, 768, rng)
    together = product(GEMMS[fmt, act], raw, x)
    for some in (slice(0, 1), slice(5, 8), slice(127, 130), slice(134, 140), slice(139, 140)):
        assert (product(GEMMS[fmt, act], raw, np.ascontiguousarray(x[some])) == together[some]).all()


def small_floats(fmt):
    """Rows that have every code of a format at every scale, (256 or 512, a chunk); no code is NaN."""
    layout, count = FORMATS[fmt].layout, 128 // FORMATS[fmt].block_elems
    rows = []
    for first in (0, 128) if fmt == "F8_E4M3" else (0,):
        blocks = np.zeros((256, count), layout)
        blocks["e"] = np.arange(256)[:, None]
        if fmt == "F8_E4M3":
            codes = first + np.arange(128)
            blocks["codes"] = np.where(codes % 128 == 127, 0, codes)
        else:
            blocks["qs"] = 17 * np.arange(16)
        rows.append(blocks.view(np.uint8).reshape(256, -1))
    return np.ascontiguousarray(np.concatenate(rows))


@pytest.mark.parametrize("fmt", sampled([fmt.name for fmt in FORMATS.values() if fmt.codes is not None], 3))
def test_blocks_are_decoded_to_the_bit(fmt):
    """The generated decoders of the float tiles, which any processor can run, against the dequantizer."""
    kind = FORMATS[fmt]
    n = max(128, kind.block_elems)
    rng = np.random.default_rng(9)
    raw = small_floats(fmt) if fmt in BYTE_SCALES else np.ascontiguousarray(random_rows(fmt, 13, n, rng))
    weights = kind.dequantize(raw)
    finite = np.isfinite(weights).all(axis=1)
    assert 2 * finite.sum() > len(raw)
    for i in range(0, n, 4):
        x = np.zeros((4, n), np.float32)
        x[np.arange(4), np.arange(i, i + 4)] = 1
        out = product(float_gemm(kind), raw, x)
        np.testing.assert_array_equal(out[:, finite], weights[finite, i : i + 4].T)
        assert not np.isfinite(out[:, ~finite]).any()


READ = [("Q8_0", "a8"), ("Q4_K", "q8k"), ("Q2_K", "q8k"), ("F16", "float")]


@needs_tiles
@pytest.mark.skipif(platform.machine() != "x86_64", reason="checks x86-64 instructions")
@pytest.mark.parametrize("key", READ, ids="/".join)
def test_sums_of_a_tile_stay_in_registers(key):
    multiply = GEMMS[key].multiply[-1]
    multiply.compile((int64,) * 7)
    hot = max(loops(multiply.inspect_asm()[(int64,) * 7]), key=len).splitlines()
    product = "vfmadd" if key[1] == "float" else "vpdpbusd"
    assert sum(product in line for line in hot) == (192 if key[1] == "float" else 96)
    moved = [line for line in hot if "mm" in line and ("(%rsp)" in line or re.search(r"mm\d+, -?\d*\(", line))]
    assert not moved, "\n".join(moved)
