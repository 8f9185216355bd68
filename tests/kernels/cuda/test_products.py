"""Matrix products of the CUDA backend: what the draws of the op table are too small or too tame to reach.

Every layout of every mat-vec, rows that start anywhere, tensor-core tiles that are not full, experts nobody wants, the
largest sums, what is no number, weights of more than 4 GiB.
"""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cuda.ops import products
from ds4ref.kernels.cuda.products import decoding, dots, embedding, grouping, layouts, matmat, matvec, plain
from ds4ref.kernels.cuda.products.filling import ROWS
from ds4ref.kernels.cuda.products.operands import Inputs, Routing, Weights
from ds4ref.kernels.cuda.products.units import BY_HAND, GENERATED, UNITS
from ds4ref.kernels.cuda.products.widening import WIDE, placed_bytes, widened
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.reference import Reference
from tests.blocks import set_scales
from tests.marking import sampled

from .device import cuda

pytestmark = pytest.mark.cuda

REFERENCE = Reference()
BOTH = [(fmt, act) for fmt, unit in UNITS.items() for act in dict.fromkeys(("float", unit.activation))]
BOTH += [(fmt, "float") for fmt in plain.VALUE_BYTES]
QUICK = {("Q8_0", "a8"), ("Q2_K", "q8k"), ("Q3_K", "q8k"), ("IQ2_XXS", "q8k"), ("Q8_0", "float"), ("Q2_K", "float"),
         ("F16", "float"), ("BF16", "float")}  # fmt: skip
"""One format of each way to multiply, and the one with tables."""
EACH = pytest.mark.parametrize(
    ("fmt", "act"), [each if each in QUICK else pytest.param(*each, marks=pytest.mark.slow) for each in BOTH]
)
MANY = products.MANY_TOKENS + 2


def drawn(fmt: str, rows: int, n: int, experts: int = 0, seed: int = 0) -> Matrix:
    """Random bytes with scales of a size that real weights have, both signs, no NaN."""
    rng = np.random.default_rng([seed, rows, n])
    f = FORMATS[fmt]
    raw = rng.integers(0, 256, (*([experts] if experts else []), rows, f.row_bytes(n)), dtype=np.uint8)
    blocks = raw.reshape(-1).view(f.layout)
    for name in f.scale_fields:
        blocks[name] = rng.uniform(0.001, 0.02, blocks[name].shape) * rng.choice([-1, 1], blocks[name].shape)
    if f.layout.names and not f.scale_fields:
        set_scales(fmt, blocks, rng, (115, 122))
    elif not f.scale_fields:
        values = rng.standard_normal(blocks.size).astype(np.float32)
        blocks[...] = values.view(np.uint32) >> 16 if fmt == "BF16" else values
    return Matrix(fmt, raw, rows, n)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want), (got, want)


def length(fmt: str) -> int:
    """Inputs of a vector: of blocks of 32 not a multiple of a step; of others two blocks, of which the second one's
    bytes begin elsewhere in a piece of 16."""
    return 512 if FORMATS[fmt].block_elems == 256 else 160


@pytest.mark.parametrize(("fmt", "act"), sampled([each for each in BOTH if each[0] in UNITS], 4, pytest.mark.slow))
def test_every_layout_of_a_format_multiplies_the_same(fmt: str, act: str) -> None:
    """Rows that start anywhere, and rows of whole chunks at multiples of 16 bytes, for which kernels are special; two
    matrices at once, neither of which has full groups of rows; warps that share rows."""
    unit, block, ops = UNITS[fmt], FORMATS[fmt].block_elems, cuda.backend
    for layout in layouts.LAYOUTS.get(fmt, layouts.ANY_FORMAT[: 2 if fmt == "Q6_K" else 1]):
        if act == "float" and layout.rows > layouts.FLOAT_ROWS:
            continue
        chunk = 1024 * layout.passes
        for n, split_bits in ((block * (3 if unit.per_block > 1 else 35), 0), (chunk, 0), (2 * chunk, 1)):
            assert layouts.is_whole(unit, layout, n) or n % chunk
            ws, x = [drawn(fmt, 5, n), drawn(fmt, 3, n, seed=1)], normal(1, n)
            packed = ops._packed(ops.upload(x), ws[0], act)
            codes, scales, sums = (each.flat() for each in packed)
            outs, here = [ops.array(w.rows) for w in ws], [ops.place(w) for w in ws]
            parts = [Weights(m.data.flat(), m.rows, out.flat()) for m, out in zip(here, outs, strict=True)]
            routing = Routing(ops.absent(np.int32).flat(), ops.error.flat())
            inputs = Inputs(codes, scales, sums)
            matvec.launch(ops.driver.stream, fmt, act, layout, split_bits, parts, n, routing, inputs, 1)
            for w, out in zip(ws, outs, strict=True):
                close(ops.host(out), REFERENCE.linear(x, w, act)[0])


def test_layouts_fit_every_gpu_and_fill_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """99 KB of shared memory are what the smaller ones give a block, 228 KB what the larger ones have. On one of 132
    multiprocessors warps share rows where there are few, and never more than there are turns."""
    for fmt, unit in UNITS.items():
        assert layouts.shared_bytes(unit, layouts.layouts_of(fmt)[-1]) <= 99 << 10
        for layout in layouts.layouts_of(fmt):
            assert layout.warps * layout.blocks * 32 * layout.registers <= 65536
            assert layout.blocks * (layouts.shared_bytes(unit, layout) + 1024) <= 228 << 10
    for fmt, act in BOTH:
        assert matmat.dynamic_bytes(fmt, act) + matmat.FIXED_BYTES <= 99 << 10
    monkeypatch.setattr(layouts, "multiprocessors", lambda: 132)
    monkeypatch.setattr(layouts, "shared_limit", lambda: 227 << 10)
    assert layouts.choose("Q8_0", "a8", [129280], 4096, 1) == (layouts.LAYOUTS["Q8_0"][0], 0)
    assert layouts.choose("Q2_K", "q8k", [4096], 2048, 1, slots=6)[1] > 0
    for rows in (1, 100, 5000):
        layout, split_bits = layouts.choose("Q2_K", "q8k", [rows], 2048, 1, 3)
        assert 1 << split_bits <= 3 * -(-2048 // (1024 * layout.passes))


@pytest.mark.parametrize("fmt", [*UNITS, *plain.VALUE_BYTES])
def test_rows_of_a_table_come_out_as_the_dequantizer_has_them(fmt: str) -> None:
    w, ids = drawn(fmt, 7, FORMATS[fmt].block_elems * 5), np.array([3, 0, 6, 6], np.int32)
    assert np.array_equal(cuda.embed(w, ids), w.rows_at(ids))


def difficult() -> np.ndarray:
    """Blocks of zeros, of next to nothing, with ties, with an infinity, with a NaN."""
    x = normal(6, 512)
    x[0, 40], x[0, 50], x[1, :256], x[2, 300], x[3, 70] = -9, 9, 0, np.inf, np.nan
    x[4, 256:], x[5, :32] = 1e-42, np.arange(32) - 0.5
    return x


@EACH
def test_groups_in_tiles_that_are_not_full(fmt: str, act: str) -> None:
    """18 inputs of 64, groups whose rows begin inside a tile, more rows than a block; and more inputs than a tile."""
    w, x = drawn(fmt, 2 * (ROWS + 5), length(fmt)), normal(MANY, 2, length(fmt))
    close(cuda.grouped_linear(x, w, act), REFERENCE.grouped_linear(x, w, act))
    w, x = drawn(fmt, 9, length(fmt)), normal(grouping.TILE + 1, length(fmt))
    close(cuda.linear(x, w, act), REFERENCE.linear(x, w, act))


@EACH
def test_experts_in_tiles_of_every_size(fmt: str, act: str) -> None:
    """Experts of 19 rows, whose bytes begin anywhere, with as many pairs as fill no, some and all groups of a tile."""
    sizes = (1, 0, 7, 8, 9, 63, 64, 66)
    w, pairs = drawn(fmt, 19, length(fmt), len(sizes)), sum(sizes)
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)).reshape(-1, 2)
    assert products.worth_sorting(pairs, len(sizes)) and max(sizes) > grouping.TILE
    x = normal(len(ids), 2, w.cols)
    close(cuda.expert_sum(x, ids, w, act), REFERENCE.expert_sum(x, ids, w, act))
    x = x[:, 0].copy()
    close(cuda.expert_linear(x, ids, w, act), REFERENCE.expert_linear(x, ids, w, act))
    ids[17] = len(sizes)
    with pytest.raises(IndexError):
        cuda.expert_linear(x, ids, w, act)


@pytest.mark.parametrize("n", [13, 75, 104, 1304])
@pytest.mark.parametrize("fmt", list(plain.VALUE_BYTES))
def test_plain_weights_from_any_place(fmt: str, n: int) -> None:
    """Rows that start anywhere, and rows at multiples of 16 bytes that end inside a unit; few inputs, and many."""
    w, x = drawn(fmt, 5, n), normal(MANY, n)
    np.testing.assert_allclose(cuda.linear(x, w, "float"), REFERENCE.linear(x, w), rtol=2e-5, atol=1e-5)
    close(cuda.linear(x[:2].copy(), w, "float"), REFERENCE.linear(x[:2], w))
    close(cuda.hc_mix(x[:2, None].copy(), w, 1e-6), REFERENCE.hc_mix(x[:2, None], w, 1e-6))


@pytest.mark.parametrize("fmt", sampled([fmt for fmt, act in BOTH if act != "float"], 4, pytest.mark.slow))
def test_the_largest_sums_are_exact(fmt: str) -> None:
    """Blocks whose codes, scales and minima have all bits set, or all but one; inputs of one size, with signs that add
    everything up or half of it. In float64 the same products are within a float32's precision."""
    f, n = FORMATS[fmt], 256
    raw = np.full((4, f.row_bytes(n)), 255, np.uint8)
    raw[1], raw[2] = 0x7F, 0x80
    blocks = raw.reshape(-1).view(f.layout)
    for name in f.scale_fields:
        blocks[name] = 1
    w, x = Matrix(fmt, raw, 4, n), np.ones((MANY, n), np.float32)
    x[1], x[2], x[3, n // 2 :] = -1, np.where(np.arange(n) % 2, 1, -1), -1
    weights = w.dequantize().astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(weights).T
    got = cuda.linear(x, w, UNITS[fmt].activation)
    assert (np.abs(got - x.astype(np.float64) @ weights.T) <= 4e-7 * size).all()


@pytest.mark.parametrize("fmt", ["Q4_K", "F16", "F32"])
@pytest.mark.parametrize("size", [3e35, 1e-33])
def test_float_inputs_near_both_ends_of_float32(fmt: str, size: float) -> None:
    w, x = drawn(fmt, 3, 256), normal(MANY, 256)
    x, x[2] = x / np.abs(x).max(), 0
    got = cuda.linear(x * np.float32(size), w, "float")
    want = w.dequantize().astype(np.float64) @ x.T.astype(np.float64)
    want[:, 2] = 0
    np.testing.assert_allclose(got.T / size, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [2, MANY])
@pytest.mark.parametrize(("fmt", "act"), sorted(QUICK))
def test_what_is_no_number_stays_where_it_is(fmt: str, act: str, tokens: int) -> None:
    """An infinity or a NaN in its vector; vectors beside them keep their bits."""
    w, x = drawn(fmt, 20, 512), normal(tokens, 512)
    clean = cuda.linear(x, w, act)
    for bad in (np.inf, np.nan, np.array(0x7F800001, np.uint32).view(np.float32)):
        x[1, 77] = bad
        got = cuda.linear(x, w, act)
        assert not np.isfinite(got[1]).any()
        np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(clean, 1, 0))


@pytest.mark.parametrize("fmt", sorted(BY_HAND.keys() & GENERATED.keys()))
def test_decoders_by_hand_give_what_generated_ones_do(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table bit for bit; products up to the order of sums."""
    n, act = 3 * FORMATS[fmt].block_elems, UNITS[fmt].activation
    w, x, ids = drawn(fmt, 5, n), normal(2, n), np.arange(5, dtype=np.int32)
    caches = embedding._blocks, matvec.kernel, dots.dot_of
    by_hand = cuda.embed(w, ids), cuda.linear(x, w, act), cuda.linear(x, w, "float")
    with monkeypatch.context() as patches:
        patches.setitem(UNITS, fmt, GENERATED[fmt])
        patches.delitem(dots.OWN, fmt)
        for cache in caches:
            cache.cache_clear()
        generated = cuda.embed(w, ids), cuda.linear(x, w, act), cuda.linear(x, w, "float")
    for cache in caches:
        cache.cache_clear()
    assert np.array_equal(by_hand[0], generated[0]) and np.array_equal(by_hand[0], w.dequantize())
    for a, b in zip(by_hand[1:], generated[1:], strict=True):
        close(a, b)


@pytest.mark.parametrize(("fmt", "act"), [("F16", "a8"), ("Q8_0", "q8k"), ("Q2_K", "a8"), ("MXFP4", "a8")])
def test_roundings_that_have_no_kernel_come_before_the_float_product(fmt: str, act: str) -> None:
    assert not products.rounds(fmt, act)
    w, x, ids = drawn(fmt, 3, 512, 2), difficult()[[0, 1, 4]], np.array([[0], [1], [1]], np.int32)
    close(cuda.linear(x, w.expert(1), act), REFERENCE.linear(x, w.expert(1), act))
    close(cuda.expert_linear(x, ids, w, act), REFERENCE.expert_linear(x, ids, w, act))
    with pytest.raises(ValueError, match="unknown activation rounding 'none'"):
        cuda.linear(x, w.expert(1), "none")


@pytest.mark.parametrize("fmt", [fmt for fmt in WIDE if not FORMATS[fmt].lookup])
def test_formats_without_kernels_are_widened_exactly(fmt: str) -> None:
    """Every weight of a stack as bfloat16 where its scale is a power of two, else as float32."""
    with pytest.raises(decoding.Unsupported) if fmt != "MXFP4" else pytest.MonkeyPatch.context():
        decoding.unit_of(FORMATS[fmt])
    w = drawn(fmt, 6, 256, 3)
    wide = widened(w)
    assert (wide.fmt == "BF16") == (fmt in ("F8_E4M3", "F8_E4M3_32", "MXFP4"))
    assert wide.fmt in ("BF16", "F32") and (wide.rows, wide.cols, wide.experts) == (6, 256, 3)
    np.testing.assert_array_equal(wide.dequantize(), w.dequantize())
    assert placed_bytes(w) == wide.nbytes and widened(wide) is wide


@pytest.mark.parametrize(
    ("fmt", "act", "in_tiles"),
    [("Q2_K", "q8k", True), ("Q8_0", "float", True), ("Q2_K", "q8k", False), ("F16", "float", False)],
)
def test_experts_beyond_four_gibibytes(fmt: str, act: str, in_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning, beyond 2^31 and beyond 2^32 bytes of an array that takes no memory but for what is written:
    large blocks of the tests' driver are zeros that nobody has touched."""
    monkeypatch.setattr(products, "worth_sorting", lambda pairs, experts: in_tiles)
    ops, n, far = cuda.backend, 8192, 9 << 29
    few = drawn(fmt, (5 << 20) // FORMATS[fmt].row_bytes(n), n, 3)
    size = few.rows * few.row_bytes
    numbers = np.array([0, (5 << 29) // size, far // size - 1], np.int32)
    data = ops.array(int(numbers[2]) + 1, few.rows, few.row_bytes, dtype=np.uint8)
    for number, values in zip(numbers, few.data, strict=True):
        ops.fill(data[number], values)
    x, ids = normal(2, n), np.array([[2, 1], [0, 2]], np.int32)
    w = Matrix(fmt, data, few.rows, n)
    got = ops.host(ops.expert_linear(ops.upload(x), ops.upload(numbers[ids]), w, act))
    close(got, REFERENCE.expert_linear(x, ids, few, act))
    if fmt == "F16":
        table = Matrix(fmt, data.reshape(-1, few.row_bytes), len(data) * few.rows, n)
        found = ops.host(ops.embed(table, ops.upload((numbers[[1, 2]] * few.rows + [0, 1]).astype(np.int32))))
        assert np.array_equal(found, np.stack([few.expert(1).dequantize()[0], few.expert(2).dequantize()[1]]))
