"""Products of every format on the CPU, and what a token gets whatever runs beside it; the op table: ``test_ops``."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cpu import gemm
from ds4ref.kernels.cpu.abi import SLOT, STEP_BYTES, STEP_WAIT
from ds4ref.kernels.cpu.simd.tiers import TIER
from ds4ref.kernels.formats import FORMATS, Matrix
from tests.blocks import set_scales
from tests.kernels import cpu, reference

FLOAT = [(fmt.name, "float") for fmt in FORMATS.values() if fmt.multiplies]
ROUNDED = [(fmt.name, fmt.activation) for fmt in FORMATS.values() if fmt.activation != "float"]
ROUNDED += [("MXFP4", "q8k"), ("F16", "a8"), ("Q4_K", "a8")]
"""Any format with any rounding: those without an integer kernel round their inputs and multiply floats."""


def assert_close(got: np.ndarray, want: np.ndarray, relative: float, floor: float = 1e-7) -> None:
    """Every difference within ``relative`` of the value plus the root mean square of ``want``."""
    assert got.shape == want.shape and got.dtype == want.dtype
    scale = float(np.sqrt(np.mean(np.square(want, dtype=np.float64)))) if want.size else 0.0
    error = np.abs(got.astype(np.float64) - want)
    assert np.isfinite(got).all()
    bad = error > relative * (np.abs(want) + scale) + floor
    assert not bad.any(), f"{bad.sum()} bad, first at {bad.argmax()}, max {error.max():.3g}, rms {scale:.3g}"


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(fmt: str, rows: int, cols: int, experts: int = 0, seed: int = 1, codes: int | None = None) -> Matrix:
    """Random blocks with sane scales: any bytes (or all ``codes``) are valid weights once the float fields are."""
    kind = FORMATS[fmt]
    rng = np.random.default_rng(seed)
    lead = (experts, rows) if experts else (rows,)
    if fmt in ("F32", "F16", "BF16"):
        values = rng.standard_normal((*lead, cols)).astype(np.float32) * np.float32(cols**-0.5)
        if fmt == "F16":
            raw = values.astype(np.float16).view(np.uint8)
        elif fmt == "BF16":
            raw = np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
        else:
            raw = values.view(np.uint8)
        return Matrix(fmt, raw, rows, cols)
    raw = rng.integers(0, 256, (*lead, kind.row_bytes(cols)), dtype=np.uint8)
    if codes is not None:
        raw[:] = codes
    blocks = raw.reshape(-1).view(kind.layout)
    for field in kind.scale_fields:
        blocks[field] = (rng.uniform(0.001, 0.02, blocks.shape)).astype(np.float16)
    if not kind.scale_fields:
        set_scales(fmt, blocks, rng)
    return Matrix(fmt, raw, rows, cols)


def attention_case(seed: int, tokens: int, heads: int, dim: int, window: int, comp: int):
    raw = normal(seed, window + tokens, dim)
    first = np.arange(tokens, dtype=np.int32)
    count = np.full(tokens, window, np.int32)
    rows = normal(seed + 1, comp, dim) if comp else None
    visible = np.minimum(np.arange(tokens) + comp - tokens + 1, comp).clip(0).astype(np.int32)
    q, sinks = normal(seed + 2, tokens, heads, dim), normal(seed + 3, heads)
    return q, raw, first, count, rows, visible, sinks, 1 / np.sqrt(dim)


def waits(recording: Any) -> np.ndarray:
    """For each step of a recording: 0, or 1 + the number of groups that it waits for, as it begins a phase."""
    return recording._table.view(np.int64)[STEP_WAIT // SLOT :: STEP_BYTES // SLOT][: recording.length]


@pytest.mark.parametrize(("fmt", "act"), ROUNDED + FLOAT)
def test_linear(fmt: str, act: str):
    """In every format; each of up to 8 tokens, and of any number where there is no GEMM, has the bits of decode."""
    w = matrix(fmt, 67, 768)
    for tokens in (*range(1, 10), 17, 33):
        x = normal(tokens, tokens, 768)
        found = cpu.linear(x, w, act)
        assert_close(found, reference.linear(x, w, act), 2e-6)
        assert np.array_equal(cpu.linear(x, Matrix(fmt, w.data[5:28], 23, 768), act), found[:, 5:28])
        if gemm.parts_for(tokens, w, act) is None or TIER == "B":
            assert np.array_equal(found, np.concatenate([cpu.linear(row[None], w, act) for row in x]))
        else:
            assert np.array_equal(cpu.linear(x[: gemm.MIN_TOKENS], w, act), found[: gemm.MIN_TOKENS])


@pytest.mark.skipif(TIER != "B", reason="in other tiers the GEMM sums in another order")
@pytest.mark.parametrize("cols", range(32, 32 * 13, 32))
def test_a_gemm_gives_the_bits_of_decode_where_blocks_fill_no_chunk(cols: int):
    w, x = matrix("Q8_0", 13, cols), normal(cols, 10, cols)
    found = cpu.linear(x, w, "a8")
    assert np.array_equal(found, np.concatenate([cpu.linear(row[None], w, "a8") for row in x]))
    assert_close(found, reference.linear(x, w, "a8"), 2e-6)


BLOCKED = [(fmt, act) for fmt, act in ROUNDED + FLOAT if FORMATS[fmt].block_elems > 1]


@pytest.mark.parametrize(("fmt", "act"), BLOCKED)
def test_extreme_values(fmt: str, act: str):
    """Codes that are all least or greatest do not saturate; outliers and blocks of zeros are as exact as others."""
    x = np.stack([np.ones(768), -np.ones(768), np.where(np.arange(768) % 2, 1, -1)] * 3).astype(np.float32)
    for codes in (0x00, 0x7E, 0x80, 0xFE, 0xFF):
        w = matrix(fmt, 5, 768, codes=codes)
        for some in (x[:3], x):
            with np.errstate(invalid="ignore"):
                want = reference.linear(some, w, act)
            np.testing.assert_allclose(cpu.linear(some, w, act), want, rtol=3e-6, atol=3e-7 * 768 * np.abs(want).max())
    x = normal(8, 2, 1024) * np.float32(0.01)
    x[:, 5], x[:, 300], x[:, 512:768], x[1] = 500, -800, 0, 0
    w = matrix(fmt, 7, 1024)
    got, want = cpu.linear(x, w, act), reference.linear(x, w, act)
    np.testing.assert_allclose(got[0], want[0], rtol=3e-6, atol=3e-7 * np.abs(w.dequantize()).max() * np.abs(x).sum())
    assert (got[1] == 0).all()


@pytest.mark.parametrize("fmt", ["MXFP4", "F8_E4M3"])
def test_every_code_under_every_scale(fmt: str):
    """One block a row, by row kernels and tiles; NaN codes and scales give NaN."""
    kind = FORMATS[fmt]
    raw = np.zeros((256, 256, kind.block_bytes), np.uint8)
    raw[..., 0], raw[..., 1] = np.arange(256)[:, None], np.arange(256)
    raw = raw.reshape(-1, kind.block_bytes)
    x = np.zeros((9, kind.block_elems), np.float32)
    x[:, [0, kind.block_elems // 2]] = 1, 0.25  # the second one is the high nibble of MXFP4, and zero in F8_E4M3
    weights, w = kind.dequantize(raw), Matrix(fmt, raw, len(raw), kind.block_elems)
    with np.errstate(invalid="ignore", over="ignore"):
        want = weights[:, 0] + weights[:, kind.block_elems // 2] * np.float32(0.25)
    nan = np.isnan(weights).any(axis=1)
    plain = ~nan & np.isfinite(want) & (np.abs(want) < 1e37)
    for out in (cpu.linear(x[:1], w)[0], cpu.linear(x, w)[8]):
        assert np.isnan(out[nan]).all()
        np.testing.assert_allclose(out[plain], want[plain], rtol=2e-7, atol=1e-44)
    assert plain.sum() > 50_000


@pytest.mark.parametrize("least", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33])
def test_an_expert_of_many_pairs_gives_each_the_bits_of_decode(least: int):
    """One expert has ``least`` pairs more than the others; from a mean of 4 on only where no GEMM takes over."""
    w, down = matrix("IQ2_XXS", 50, 512, experts=40), matrix("Q2_K", 50, 256, experts=40)
    ids = np.random.default_rng(least).integers(0, 40, (least, 2)).astype(np.int32)
    ids[:, 1] = 7
    x, mid = normal(1, least, 512), normal(2, least, 2, 256)
    assert gemm.expert_parts_for(least, 2, w, "q8k") is None
    many, total = cpu.expert_linear(x, ids, w, "q8k"), cpu.expert_sum(mid, ids, down, "q8k")
    for t in range(least):
        one = slice(t, t + 1)
        assert np.array_equal(cpu.expert_linear(x[one], ids[one], w, "q8k"), many[one])
        assert np.array_equal(cpu.expert_sum(mid[one], ids[one], down, "q8k"), total[one])


def test_expert_sum_adds_in_slot_order():
    w = matrix("Q8_0", 40, 256, experts=4)
    mid = normal(1, 1, 4, 256) * np.float32([1e4, 1, 1e-4, 1])[None, :, None]
    ids = np.array([[3, 1, 0, 2]], np.int32)
    parts = [cpu.linear(mid[:, k], w.expert(int(ids[0, k])), "float") for k in range(4)]
    assert np.array_equal(cpu.expert_sum(mid, ids, w, "float"), ((parts[0] + parts[1]) + parts[2]) + parts[3])


def test_a_misfit_names_op_dims_and_shapes():
    w = matrix("Q8_0", 40, 256)
    with pytest.raises(
        ValueError, match=r"linear: shapes do not fit: x \[T,n\] is \(2, 288\); w \[R,n\] is \(40, 256\)"
    ):
        cpu.linear(normal(1, 2, 288), w, "a8")
    with pytest.raises(ValueError, match=r"top: shapes do not fit 1 <= k <= min\(n, 1024\): .*\(1, 3\); k is 4"):
        cpu.top(normal(1, 1, 3), 4)
    with pytest.raises(TypeError, match="rows must be float32 or float16, not int32"):
        cpu.store_rows(normal(1, 2, 4), np.zeros((8, 4), np.int32), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="no kernel for Q8_0 weights with activation rounding 'q9'"):
        cpu.linear(normal(1, 2, 256), w, "q9")
    with pytest.raises(ValueError, match="'q8k' works in blocks of 256, not on 288 inputs"):
        cpu.linear(normal(1, 2, 288), matrix("Q8_0", 40, 288), "q8k")


def test_attention_of_a_token_does_not_depend_on_the_batch():
    q, raw, first, count, rows, visible, sinks, scale = attention_case(5, 17, 8, 192, 16, 90)
    whole = cpu.attention(q, raw, first, count, rows, visible, None, sinks, scale)
    for t in range(17):
        one = slice(t, t + 1)
        alone = cpu.attention(q[one], raw, first[one], count[one], rows, visible[one], None, sinks, scale)
        assert np.array_equal(alone, whole[one])


@pytest.mark.parametrize("half", [np.float32, np.float16])
@pytest.mark.parametrize(("shared", "sharing", "dim"), [(3, 1, 64), (1, 3, 70), (2, 8, 16), (1, 11, 33)])
def test_tokens_that_share_rows_get_what_each_gets_alone(half, shared, sharing, dim):
    """Tiles of tokens meet blocks of rows together: the sums are those of a token by itself, to the bit."""
    tokens, rows = 21, 300
    q = normal(1, tokens, shared * sharing, dim)
    keys, values = normal(2, rows, shared, dim).astype(half), normal(3, rows, shared, dim).astype(half)
    rng = np.random.default_rng(4)
    for first, seen in (
        (np.zeros(tokens), np.arange(140, 140 + tokens)),
        (np.full(tokens, 290), np.arange(tokens) + 1),
        (rng.integers(0, 3, tokens), rng.integers(1, rows + 1, tokens)),
    ):
        first, seen = first.astype(np.int32), seen.astype(np.int32)
        found = cpu.attend(q, keys, values, first, seen, 0.11)
        one = (slice(i, i + 1) for i in range(tokens))
        alone = [cpu.attend(q[i], keys, values, first[i], seen[i], 0.11) for i in one]
        np.testing.assert_array_equal(found, np.concatenate(alone))


def test_a_token_sees_nothing_of_rows_that_only_its_neighbours_see():
    """A later token's key or value may be anything: those before it do not meet it, not even with weight 0."""
    q = normal(1, 8, 2, 64)
    keys, values = normal(2, 80, 2, 64), normal(3, 80, 2, 64)
    first, seen = np.zeros(8, np.int32), np.arange(60, 68, dtype=np.int32)
    clean = cpu.attend(q, keys, values, first, seen, 0.1)
    keys[65:], values[64:] = np.inf, np.nan
    found = cpu.attend(q, keys, values, first, seen, 0.1)
    np.testing.assert_array_equal(found[:5], clean[:5])
    assert np.isnan(found[5:]).all()


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
def test_nothing_outside_the_arrays_is_touched():
    """Weights, inputs, buffer and result between unreadable pages: a stray access kills the child."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(GUARDED)], capture_output=True, text=True)
    assert done.stdout.strip() == "inside", f"exit {done.returncode}\n{done.stderr[-2000:]}"
