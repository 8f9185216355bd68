"""The tiles of products for many tokens, by themselves."""

import re
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cfunc, int64, types

from ds4ref.kernels.cpu import gemm as gemm_parts
from ds4ref.kernels.cpu.gemm import parts
from ds4ref.kernels.cpu.library import KernelError
from ds4ref.kernels.cpu.simd import GEMMS, KERNELS, TIER, gemm_rows, tiers
from ds4ref.kernels.cpu.simd.gemm import float_gemm
from ds4ref.kernels.cpu.sizes import AMX, TILE_TOKENS, gemm_bytes
from ds4ref.kernels.formats import FORMATS
from tests.kernels import reference

from .test_cpu_ops import matrix
from .test_simd_asm import loops
from .test_simd_tiers import ROOT


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
    groups = -(-(tokens + gemm.group - TILE_TOKENS) // TILE_TOKENS)
    panel_bytes = groups * -(-n // gemm.chunk) * gemm.chunk_bytes
    sizes = panel_bytes, gemm_bytes(n, gemm.chunk, gemm.record, gemm.rows, gemm.tokens_at_once, gemm.rows_at_once)
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


def rounded(act, x):
    """Inputs as the kernel sees them, float64."""
    if act in ("float", "floats"):
        return x.astype(np.float64)
    codes, scales, *_ = getattr(reference, f"quantize_{act}")(x)
    return codes * np.repeat(scales.astype(np.float64), x.shape[1] // scales.shape[1], axis=1)


@pytest.mark.thorough
@pytest.mark.parametrize(("fmt", "act"), [key for key in GEMMS if not key[1].endswith(AMX)])
def test_tiles(fmt, act):
    """Odd sizes against float64, largest sums of a block, rows in parts, tokens alone, an input that is no number."""
    gemm, rng, kind = GEMMS[fmt, act], np.random.default_rng(4), FORMATS[fmt]

    def multiplied(w, x):
        weights, values = w.dequantize().astype(np.float64), rounded(act, x)
        bound = 6e-7 * np.abs(values).sum(axis=1)[:, None] * np.abs(weights).max(axis=1) + 1e-37
        got = product(gemm, w.data, x)
        assert (np.abs(got - values @ weights.T) <= bound).all()
        return got

    for blocks, tokens, rows in ((1, 1, 1), (2, 2, 12), (3, 7, 13), (6, 5, 4), (9, 132, 25)):
        n = blocks * {1: 37, 32: 96}.get(kind.block_elems, kind.block_elems)
        w = matrix(fmt, rows, n)
        x = (rng.standard_normal((tokens, n)) * rng.choice([0.01, 1, 30], n)).astype(np.float32)
        got = multiplied(w, x)
    for some in (slice(0, 1), slice(5, 8), slice(127, 130)):
        assert (product(gemm, w.data, np.ascontiguousarray(x[some])) == got[some]).all()
    part = product(gemm, w.data, x[:3], 4, 23)
    assert np.isnan(part[:, [*range(4), 23, 24]]).all() and (part[:, 4:23] == got[:3, 4:23]).all()
    x = np.stack([np.ones(768), -np.ones(768), np.where(np.arange(768) % 2, 1, -1)]).astype(np.float32)
    for codes in (0x00, 0x7E, 0x80, 0xFE, 0xFF) if kind.block_elems > 1 else ():
        multiplied(matrix(fmt, 4, 768, codes=codes), x)
    x[2, 300] = np.nan
    out = product(gemm, matrix(fmt, 4, 768).data, x)
    assert np.isnan(out[2]).all() and np.isfinite(out[:2]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", [fmt.name for fmt in FORMATS.values() if fmt.codes is not None])
def test_blocks_are_decoded_to_the_bit(fmt):
    """The generated decoders of the float tiles, which any processor can run, against the dequantizer."""
    n = max(128, FORMATS[fmt].block_elems)
    w = matrix(fmt, 64, n)
    weights, gemm = w.dequantize(), float_gemm(FORMATS[fmt])
    for i in range(0, n, 4):
        x = np.eye(n, dtype=np.float32)[i : i + 4]
        np.testing.assert_array_equal(product(gemm, w.data, x), weights[:, i : i + 4].T)


def test_tiers_with_tiles_have_them_for_every_pair_that_has_a_row_kernel():
    pairs = {
        "A": set(KERNELS),
        "N": {key for key in KERNELS if key[1] == "float"},
        "B": {("Q8_0", "a8"), *((fmt, "q8k") for fmt in ("IQ2_XXS", "Q2_K", "Q4_K"))},
    }
    assert {key for key in KERNELS if parts(*key)} == pairs.get(TIER, set())


@pytest.mark.thorough  # LLVM needs a minute for the plain operations
@pytest.mark.skipif(sys.platform != "linux" or TIER not in ("A", "B"), reason="code for AVX2, signals of Linux")
@pytest.mark.parametrize("fmt", ["Q8_0", "Q4_K", "Q2_K", "IQ2_XXS"])
def test_tiles_of_amx_equal_those_of_tier_a_to_the_bit(fmt):
    run = subprocess.run(
        [sys.executable, "-m", "tests.kernels.amx_model", fmt], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0 and run.stdout.startswith("2497 products"), run.stdout + run.stderr
    assert run.stdout.endswith("natively\n") or "tdp 624, tilezero 624, tileloadd 1248" in run.stdout


def test_tiles_of_amx_are_for_many_tokens_and_whole_chunks(monkeypatch):
    made = gemm_parts.Parts(0, np.zeros(0, np.int64), 512, *[0] * 7)
    monkeypatch.setattr(gemm_parts, "available", lambda name: name.endswith(AMX))
    monkeypatch.setattr(gemm_parts, "parts", lambda fmt, act: made if act == "q8k-amx" else None)
    monkeypatch.setattr(gemm_parts, "amx_permitted", lambda: True)
    whole, partial = (SimpleNamespace(layout="Q2_K", cols=n, experts=4) for n in (1024, 1280))
    assert [bool(gemm_parts.parts_for(n, whole, "q8k")) for n in (15, 16)] == [False, True]
    assert [bool(gemm_parts.expert_parts_for(n, 2, whole, "q8k")) for n in (31, 32)] == [False, True]
    assert not gemm_parts.parts_for(16, partial, "q8k") and not gemm_parts.expert_parts_for(32, 2, partial, "q8k")


@pytest.mark.skipif(tiers.FEATURES.get("amx-tile", False), reason="this processor has AMX")
def test_a_system_without_amx_says_so():
    with pytest.raises(KernelError, match="DS4_SIMD_TIER=X: the operating system does not permit AMX"):
        gemm_parts.amx_permitted()


@pytest.mark.skipif(TIER != "B", reason="checks x86-64 instructions of tier B")
@pytest.mark.parametrize("key", GEMMS, ids="/".join)
def test_only_sums_of_floats_leave_the_sixteen_registers(key):
    """At most the eight sums and four weights of a tile are written to the stack in a round."""
    multiply = GEMMS[key].multiply[-1]
    multiply.compile((int64,) * 7)
    hot = max(loops(multiply.inspect_asm()[(int64,) * 7]), key=len).splitlines()
    assert sum("vpmaddubsw" in line for line in hot) == 8 * GEMMS[key].chunk // 32
    assert sum(bool(re.search(r"mm\d+, \S*\(%rsp\)$", line)) for line in hot) <= 12


@pytest.mark.skipif(TIER != "A", reason="checks x86-64 instructions of tier A")
@pytest.mark.parametrize("key", [("Q8_0", "a8"), ("Q4_K", "q8k"), ("Q2_K", "q8k"), ("F16", "float")], ids="/".join)
def test_sums_of_a_tile_stay_in_registers(key):
    multiply = GEMMS[key].multiply[-1]
    multiply.compile((int64,) * 7)
    hot = max(loops(multiply.inspect_asm()[(int64,) * 7]), key=len).splitlines()
    word, count = ("vfmadd", 192) if key[1] == "float" else ("vpdpbusd", 96)
    assert sum(word in line for line in hot) == count
    moved = [line for line in hot if "mm" in line and ("(%rsp)" in line or re.search(r"mm\d+, -?\d*\(", line))]
    assert not moved, "\n".join(moved)
