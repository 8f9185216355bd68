"""Row kernels against float64 products of the dequantized weights (gguf-py's dequantizer) with the rounded inputs.

The float tolerance is 3e-7 of sum |w||x|, a few float32 roundings; of max |w| sum |x| in formats with mins, where a
weight is itself a difference, and in IQ2_XXS and MXFP4, whose float inputs are fixed-point numbers by blocks. Integer
sums are exact, so on inputs whose scales are powers of two the integer kernels must be exact. ``test_simd_tiers`` runs
this file again in the other tiers.
"""

import os
import subprocess
import sys
import textwrap

import gguf
import numpy as np
import pytest

from ds4ref.kernels.cpu.simd import KERNELS, TIER, generated
from ds4ref.kernels.formats import FORMATS
from tests.marking import sampled

from .simd_cases import BYTE_SCALES, halves, random_rows, rounded, run, run_several

SIZES = {
    1: (1, 2, 31, 32, 33, 100, 1024),
    32: (32, 64, 96, 128, 160, 992, 4096),
    128: (128, 256, 384, 4096),
    256: (256, 512, 768, 1024, 4096),
}
CASES = [(fmt, act, n) for fmt, act in KERNELS for n in SIZES[FORMATS[fmt].block_elems]]
BLOCK_CASES = [(fmt, act) for fmt, act in KERNELS if FORMATS[fmt].block_elems > 1]


def dequantize(fmt, raw):
    if fmt == "F8_E4M3":  # not GGUF's; its dequantizer has tests of its own
        return FORMATS[fmt].dequantize(raw).astype(np.float64)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[fmt]).astype(np.float64)


def check(fmt, act, raw, x, tolerance=3e-7):
    weights, exact_inputs = dequantize(fmt, raw), rounded(act, x)
    out = run(KERNELS[fmt, act], raw, x)
    size = np.abs(weights)
    if FORMATS[fmt].minimum is not None or fmt in ("IQ2_XXS", "MXFP4"):
        size = np.broadcast_to(size.max(axis=1, keepdims=True), size.shape)
    bound = tolerance * (size @ np.abs(exact_inputs)) + 1e-37
    error = np.abs(out - weights @ exact_inputs)
    assert (error <= bound).all(), f"{fmt}/{act}: worst {np.max(error / bound):.2f} of the bound"


@pytest.mark.parametrize("fmt, act, n", CASES)
def test_product(fmt, act, n):
    rng = np.random.default_rng(n)
    check(fmt, act, random_rows(fmt, 5, n, rng), rng.standard_normal(n) * rng.choice([0.01, 1, 30], n))


@pytest.mark.parametrize("fmt, act, n", sampled(CASES, 4))
def test_several_inputs_have_the_bits_of_one(fmt, act, n):
    """Inputs of different sizes side by side, so that a mixed-up scale or sum shows in every row."""
    rng = np.random.default_rng(n)
    raw = random_rows(fmt, 5, n, rng)
    xs = (rng.standard_normal((4, n)) * [[1], [30], [0.01], [-1]]).astype(np.float32)
    one = np.stack([run(KERNELS[fmt, act], raw, x) for x in xs])
    assert np.isfinite(one).all()
    for count in KERNELS[fmt, act].rows:
        for first in range(0, 4, count):
            chosen = slice(first, first + count)
            np.testing.assert_array_equal(run_several(KERNELS[fmt, act], raw, xs[chosen]), one[chosen])
    most = max(KERNELS[fmt, act].rows)
    some = run_several(KERNELS[fmt, act], raw, xs[:most], 1, 4)
    np.testing.assert_array_equal(some[:, 1:4], one[:most, 1:4])
    assert np.isnan(some[:, [0, 4]]).all()


@pytest.mark.parametrize("fmt, act", KERNELS)
def test_what_is_not_finite_stays_with_its_input(fmt, act):
    rng = np.random.default_rng(6)
    raw, xs = random_rows(fmt, 3, 768, rng), rng.standard_normal((max(KERNELS[fmt, act].rows), 768))
    xs[1, 700] = np.nan
    out = run_several(KERNELS[fmt, act], raw, xs)
    assert np.isnan(out[1]).all() and np.isfinite(np.delete(out, 1, axis=0)).all()


@pytest.mark.parametrize("codes", [0x00, 0x7F, 0x80, 0xFF, 0xC3])
@pytest.mark.parametrize("fmt, act", BLOCK_CASES)
def test_extreme_codes_do_not_saturate(fmt, act, codes):
    rng = np.random.default_rng(codes)
    raw = random_rows(fmt, 2, 768, rng, codes)
    check(fmt, act, raw, np.ones(768))
    check(fmt, act, raw, -np.ones(768))
    check(fmt, act, raw, np.where(np.arange(768) % 2, 1.0, -1.0))


@pytest.mark.parametrize("fmt, act", KERNELS)
def test_outliers_and_zero_blocks(fmt, act):
    rng = np.random.default_rng(8)
    x = rng.standard_normal(1024) * 0.01
    x[[5, 300]] = 500, -800
    x[512:768] = 0
    check(fmt, act, random_rows(fmt, 4, 1024, rng), x)
    assert (run(KERNELS[fmt, act], random_rows(fmt, 4, 1024, rng), np.zeros(1024)) == 0).all()


@pytest.mark.parametrize("fmt, act", [key for key in BLOCK_CASES if key[1] != "float"])
def test_integer_sums_are_exact(fmt, act):
    """Codes themselves as inputs, scales powers of two: every product and sum is a float32 integer multiple."""
    rng = np.random.default_rng(4)
    raw = random_rows(fmt, 6, 768, rng).reshape(6, -1, FORMATS[fmt].block_bytes)
    for field in halves(fmt):
        raw[..., field : field + 2] = np.array([1.0], np.float16).view(np.uint8)
    raw = raw.reshape(6, -1)
    x = rng.integers(-126, 127, 768).astype(np.float64)
    x[::32] = 127
    x[::256] = -127  # the Q8_K scale of a block whose first largest element is -127 is exactly 1
    assert (run(KERNELS[fmt, act], raw, x) == dequantize(fmt, raw) @ x).all()


@pytest.mark.parametrize("fmt", BYTE_SCALES)
def test_every_code_and_every_scale(fmt):
    """One block a row, all codes under all exponents that leave finite products; NaN codes and scales give NaN."""
    kind = FORMATS[fmt]
    raw = np.zeros((256, 256, kind.block_bytes), np.uint8)
    raw[..., 0], raw[..., 1] = np.arange(256)[:, None], np.arange(256)
    raw = raw.reshape(-1, kind.block_bytes)
    x = np.zeros(kind.block_elems, np.float32)
    x[[0, kind.block_elems // 2]] = 1, 0.25  # the second one is the high nibble of MXFP4, and zero in F8_E4M3
    weights = kind.dequantize(raw)
    out = run(KERNELS[fmt, "float"], raw, x)
    with np.errstate(invalid="ignore", over="ignore"):
        want = weights[:, 0] + weights[:, kind.block_elems // 2] * np.float32(0.25)
    nan = np.isnan(weights).any(axis=1)
    assert np.isnan(out[nan]).all()
    plain = ~nan & np.isfinite(want) & (np.abs(want) < 1e37)
    np.testing.assert_allclose(out[plain], want[plain], rtol=2e-7, atol=1e-44)
    assert plain.sum() > 50_000


WITH_INTEGERS = [fmt.name for fmt in FORMATS.values() if fmt.activation != "float"]
WITH_OFFSETS = [name for name in WITH_INTEGERS if FORMATS[name].minimum and not FORMATS[name].minima]


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", [name for name in WITH_INTEGERS if name not in WITH_OFFSETS])
def test_integer_kernels_can_be_generated_for_every_format_of_integers(fmt):
    rng = np.random.default_rng(13)
    kind = FORMATS[fmt]
    raw, x = random_rows(fmt, 5, 768, rng), rng.standard_normal(768)
    weights, inputs = dequantize(fmt, raw), rounded(kind.activation, x)
    bound = 3e-7 * np.abs(weights).max(axis=1) * np.abs(inputs).sum()
    assert (np.abs(run(generated(fmt, kind.activation), raw, x) - weights @ inputs) <= bound).all()


GUARDED = """
    import ctypes, mmap, numpy as np
    from ds4ref.kernels.cpu.simd import KERNELS
    from ds4ref.kernels.formats import FORMATS
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    def guarded(size, at_end):
        '''An array of ``size`` bytes with unreadable memory right behind it, or right before it.'''
        room = -(-size // page) * page
        area = mmap.mmap(-1, room + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(area))
        for guard in (base, base + page + room):
            assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
        start = base + page + (room - size if at_end else 0)
        keep.append(area)
        return np.frombuffer((ctypes.c_char * size).from_address(start), np.uint8)
    keep = []
    for (fmt, act), kernel in KERNELS.items():
        layout = FORMATS[fmt]
        for blocks in (1, 2, 3, 4, 5, 33):
            n = layout.block_elems * blocks
            row = layout.block_bytes * blocks
            for at_end in (False, True):
                w, x = guarded(3 * row, at_end), guarded(4 * n, at_end)
                buffer, out = guarded(kernel.packed_bytes(n), at_end), guarded(12, at_end)
                kernel.pack(x.ctypes.data, n, buffer.ctypes.data)
                for count, rows in kernel.rows.items():
                    table = guarded(16 * count, at_end).view(np.int64)
                    table[:] = [buffer.ctypes.data, out.ctypes.data] * count
                    rows(w.ctypes.data, 0, 3, row, n, table.ctypes.data)
    print("inside")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_nothing_outside_the_arrays_is_touched():
    """Weights, inputs, buffer and result between unreadable pages: a stray access kills the child."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GUARDED)], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "inside", f"tier {TIER}: exit {done.returncode}\n{done.stderr[-2000:]}"
