"""Matrix products of the CUDA backend: what the draws of the op table are too small or too tame to reach.

Every layout of every mat-vec, rows that start anywhere, tensor-core tiles that are not full, experts nobody wants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.products import (
    decoding,
    dispatch,
    dots,
    embedding,
    grouping,
    layouts,
    matmat,
    matvec,
    packing,
    plain,
    widening,
)
from ds4ref.kernels.cuda.products.operands import Routing, Weights
from ds4ref.kernels.cuda.products.units import BY_HAND, GENERATED, UNITS
from ds4ref.kernels.cuda.products.widening import WIDE, placed_bytes, widened
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.kernels.formats.format import Plane
from ds4ref.kernels.reference import Reference
from tests.marking import sampled

from .device import cuda

pytestmark = pytest.mark.cuda

REFERENCE = Reference()
BOTH = [(fmt, act) for fmt, unit in UNITS.items() for act in dict.fromkeys(("float", unit.activation))]
TILED = [fmt for fmt in UNITS if matmat.has(fmt, UNITS[fmt].activation)]
FAILURE = 7


def drawn(fmt: str, rows: int, n: int, experts: int = 0, seed: int = 0) -> Matrix:
    """Random bytes with scales of a size that real weights have, both signs."""
    rng = np.random.default_rng([seed, rows, n])
    f = FORMATS[fmt]
    shape = ((experts,) if experts else ()) + (rows, f.row_bytes(n))
    raw = rng.integers(0, 256, shape, dtype=np.uint8)
    blocks = raw.reshape(-1).view(f.layout)
    for name in f.scale_fields:
        blocks[name] = rng.uniform(0.001, 0.02, blocks[name].shape) * rng.choice([-1, 1], blocks[name].shape)
    if "e" in (f.layout.names or ()):
        blocks["e"] = rng.integers(115, 125, blocks.shape)
    elif not f.scale_fields:
        values = rng.standard_normal(blocks.size).astype(np.float32)
        blocks[...] = values.view(np.uint32) >> 16 if fmt == "BF16" else values
    return Matrix(fmt, raw, rows, n)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


_kept: list[tuple[Any, Any]] = []
"""What kernels take for an array, and the array, which has to live as long."""


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Any:
    yield
    _kept.clear()


def uploaded(values: np.ndarray) -> Any:
    """A copy on the device, as kernels take it."""
    array = cuda.backend.upload(np.ascontiguousarray(values).reshape(-1))
    _kept.append((array.flat(), array))
    return _kept[-1][0]


def host(flat: Any) -> np.ndarray:
    """The values of what ``uploaded`` gave."""
    values: np.ndarray = cuda.backend.host(next(array for known, array in _kept if known is flat))
    return values


def stream() -> Any:
    return cuda.backend.driver.stream


def placed(w: Matrix) -> Matrix:
    return Matrix(w.fmt, uploaded(w.data), w.rows, w.cols)


def unwritten(size: int) -> Any:
    return uploaded(np.full(size, np.nan, np.float32))


def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory full of what would be seen in a result."""
    return uploaded(np.full(shape, 0x7F, np.uint8).repeat(np.dtype(dtype).itemsize).view(dtype))


def close(got: Any, want: np.ndarray) -> None:
    values = host(got).reshape(want.shape)
    assert np.linalg.norm(values - want) <= 1e-6 * np.linalg.norm(want), (values, want)


@pytest.mark.parametrize(("fmt", "act"), sampled(BOTH, 5, pytest.mark.slow))
def test_every_layout_of_a_format_multiplies_the_same(fmt: str, act: str) -> None:
    """Rows that start anywhere, and rows of whole chunks at multiples of 16 bytes, for which kernels are special; two
    matrices at once, neither of which has full groups of rows; warps that share rows."""
    unit, block = UNITS[fmt], FORMATS[fmt].block_elems
    for layout in layouts.LAYOUTS.get(fmt, layouts.ANY_FORMAT[: 2 if fmt == "Q6_K" else 1]):
        if act == "float" and layout.rows > layouts.FLOAT_ROWS:
            continue
        chunk = 1024 * layout.passes
        for n, split_bits in ((block * (3 if unit.per_block > 1 else 35), 0), (chunk, 0), (2 * chunk, 1)):
            whole = layouts.is_whole(unit, layout, n)
            assert whole or n % chunk
            w, more, x = drawn(fmt, 5, n), drawn(fmt, 3, n, seed=1), normal(1, n)
            here = [placed(w), placed(more)]
            inputs = dispatch.pack(stream(), uploaded(x), 1, n, fmt, act, scratch)
            outs = unwritten(5), unwritten(3)
            made = matvec.kernel(fmt, act, layout, whole, split_bits)
            routing = Routing(inputs.codes, 0, 1, 1, 1, inputs.codes, 0)
            parts = [Weights(m.data, m.rows, out) for m, out in zip(here, outs, strict=True)]
            matvec.launch(stream(), made, parts, w.row_bytes, n, routing, inputs, 1)
            for m, out in zip((w, more), outs, strict=True):
                close(out, REFERENCE.linear(x, m, act))


def test_a_split_is_taken_where_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU of 132 multiprocessors: all warps of a large product take rows of their own, those of the sum over few
    experts' rows share them, and never more warps than there are turns."""
    monkeypatch.setattr(layouts, "multiprocessors", lambda: 132)
    monkeypatch.setattr(layouts, "shared_limit", lambda: 227 << 10)
    head, split_bits = layouts.choose("Q8_0", "a8", [129280], 4096, 1)
    assert split_bits == 0 and head == layouts.LAYOUTS["Q8_0"][0]
    summed, split_bits = layouts.choose("Q2_K", "q8k", [4096], 2048, 1, slots=6)
    assert split_bits > 0 and summed.rows == 4
    for rows in (1, 7, 100, 1000, 5000):
        for slots in (1, 3):
            layout, split_bits = layouts.choose("Q2_K", "q8k", [rows], 2048, 1, slots)
            assert 1 << split_bits <= max(1, slots * -(-2048 // (1024 * layout.passes)))


@pytest.mark.parametrize("fmt", UNITS)
def test_every_format_has_a_layout_for_every_gpu(fmt: str) -> None:
    """99 KB of shared memory are what the smaller ones give a block, 228 KB what the larger ones have."""
    assert layouts.shared_bytes(UNITS[fmt], layouts.layouts_of(fmt)[-1]) <= 99 << 10
    for layout in layouts.layouts_of(fmt):
        assert layout.warps * layout.blocks * 32 * layout.registers <= 65536
        assert layout.blocks * (layouts.shared_bytes(UNITS[fmt], layout) + 1024) <= 228 << 10


@pytest.mark.parametrize("fmt", [*UNITS, *plain.VALUE_BYTES])
def test_rows_of_a_table_come_out_as_the_dequantizer_has_them(fmt: str) -> None:
    n = FORMATS[fmt].block_elems * 5
    w, ids = drawn(fmt, 7, n), np.array([3, 0, 6, 6], np.int32)
    out, error = unwritten(4 * n), uploaded(np.zeros(1, np.int32))
    dispatch.embed(stream(), out, error, uploaded(ids), placed(w), 4, FAILURE, scratch=scratch)
    assert np.array_equal(host(out).reshape(4, n), w.rows_at(ids))
    assert host(error)[0] == 0
    dispatch.embed(stream(), out, error, uploaded(ids + 1), placed(w), 4, FAILURE, scratch=scratch)
    assert host(error)[0] == FAILURE


def difficult() -> np.ndarray:
    """Blocks of zeros, of next to nothing, with ties, with an infinity, with a NaN."""
    x = normal(6, 512)
    x[0, 40] = -9
    x[0, 50] = 9
    x[1, :256] = 0
    x[2, 300] = np.inf
    x[3, 70] = np.nan
    x[4, 256:] = 1e-42
    x[5, :32] = np.arange(32) - 0.5
    return x


def test_packed_inputs_are_those_of_the_reference_bit_for_bit() -> None:
    x = difficult()
    codes, scales, _ = dispatch.pack(stream(), uploaded(x), 6, 512, "Q8_0", "a8", scratch)
    want = REFERENCE.quantize_a8(x)
    assert np.array_equal(host(codes).view(np.int8).reshape(x.shape), want[0])
    assert np.array_equal(host(scales).reshape(6, -1), want[1], equal_nan=True)
    codes, scales, sums = dispatch.pack(stream(), uploaded(x), 6, 512, "Q2_K", "q8k", scratch)
    wanted = REFERENCE.quantize_q8k(x)
    assert np.array_equal(host(codes).view(np.int8).reshape(x.shape), wanted[0])
    assert np.array_equal(host(scales).reshape(6, -1), wanted[1], equal_nan=True)
    assert np.array_equal(host(sums).view(np.int16).reshape(6, -1), wanted[2])


def test_sums_of_float_inputs() -> None:
    x = normal(3, 512)
    sums = unwritten(3 * 32)
    packing.pack_sums(stream(), sums, uploaded(x), 3, 512)
    close(sums, x.reshape(3, 32, 16).sum(axis=2))


@pytest.mark.parametrize(("fmt", "act"), [("Q8_0", "a8"), ("Q8_0", "float"), ("Q2_K", "q8k"), ("F16", "float")])
def test_an_infinite_input_is_never_a_plausible_number(fmt: str, act: str) -> None:
    w, x = drawn(fmt, 3, 512), normal(2, 512)
    x[1, 77] = np.inf
    out = unwritten(6)
    dispatch.linear(stream(), out, uploaded(x), placed(w), 2, 1, act, scratch=scratch)
    got = host(out).reshape(2, 3)
    assert np.isfinite(got[0]).all()
    assert not np.isfinite(got[1]).any()


@pytest.mark.parametrize("fmt", TILED)
def test_tiles_that_are_not_full(fmt: str) -> None:
    """18 inputs of 64, two rows of 64, groups whose rows begin inside a tile."""
    n, act, tokens = 256 + FORMATS[fmt].block_elems, UNITS[fmt].activation, 18
    w, x = drawn(fmt, 4, n), normal(tokens, 2, n)
    out = unwritten(4 * tokens)
    dispatch.linear(stream(), out, uploaded(x), placed(w), tokens, 2, act, scratch=scratch)
    close(out, REFERENCE.grouped_linear(x, w, act))


@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "IQ2_XXS", "Q5_K"])
def test_experts_by_tiles(fmt: str) -> None:
    """Expert 1 of 3 is wanted by nobody, expert 2 by more than a tile holds."""
    n, act, tokens, slots, experts = 256, UNITS[fmt].activation, 36, 2, 3
    w, mid = drawn(fmt, 3, n, experts), normal(tokens, slots, n)
    ids = np.full((tokens, slots), 2, np.int32)
    ids[::9, 0] = 0
    assert dispatch.worth_sorting(ids.size, experts)
    assert (ids == 2).sum() > grouping.TILE
    out, error = unwritten(3 * tokens), uploaded(np.zeros(1, np.int32))
    args = placed(w), tokens, slots, experts, act, FAILURE
    dispatch.expert_sum(stream(), out, error, uploaded(mid), uploaded(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_sum(mid, ids, w, act))
    out = unwritten(3 * tokens * slots)
    dispatch.expert_linear(stream(), out, error, uploaded(mid[:, 0]), uploaded(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_linear(np.ascontiguousarray(mid[:, 0]), ids, w, act))
    assert host(error)[0] == 0


def test_the_sort_puts_every_pair_into_one_tile_of_its_expert() -> None:
    rng = np.random.default_rng(0)
    ids = rng.choice([0, 1, 1, 1, 1, 4], 300).astype(np.int32)
    error = uploaded(np.zeros(1, np.int32))
    tiles = grouping.tiles(stream(), uploaded(ids), 300, 5, error, FAILURE, scratch)
    order, experts, starts, sizes = (host(array) for array in tiles[:4])
    assert sorted(order) == list(range(300))
    assert len(sizes) == tiles.most
    assert sizes.sum() == 300
    assert sizes.max() <= grouping.TILE
    for expert, start, size in zip(experts, starts, sizes, strict=True):
        assert (ids[order[start : start + size]] == expert).all()
    ids[17] = 5
    grouping.tiles(stream(), uploaded(ids), 300, 5, error, FAILURE, scratch)
    assert host(error)[0] == FAILURE


@pytest.mark.parametrize("many", [False, True])
def test_an_id_out_of_range_is_reported(many: bool) -> None:
    tokens = 8 if many else 1
    w, x = drawn("Q8_0", 3, 64, 2), normal(tokens, 64)
    ids = np.zeros((tokens, 2), np.int32)
    for bad in (2, -1):
        ids[0, 1] = bad
        out, error = unwritten(6 * tokens), uploaded(np.zeros(1, np.int32))
        args = placed(w), tokens, 2, 2, "a8", FAILURE
        dispatch.expert_linear(stream(), out, error, uploaded(x), uploaded(ids), *args, scratch=scratch)
        assert host(error)[0] == FAILURE


@pytest.mark.parametrize("fmt", list(plain.VALUE_BYTES))
@pytest.mark.parametrize("n", [13, 1304])
def test_plain_weights(fmt: str, n: int) -> None:
    """Rows at multiples of 16 bytes, long enough for loads in fours and a rest; and rows that start anywhere."""
    w, x = drawn(fmt, 3, n), normal(2, n)
    out = unwritten(6)
    dispatch.linear(stream(), out, uploaded(x), placed(w), 2, 1, "float", scratch=scratch)
    close(out, REFERENCE.linear(x, w))
    out = unwritten(6)
    dispatch.hc_mix(stream(), out, uploaded(x), placed(w), 2, 1e-6, scratch=scratch)
    close(out, REFERENCE.hc_mix(x[:, None], w, 1e-6))


GENERATED_ONLY = [fmt for fmt in UNITS if fmt not in BY_HAND]


@pytest.mark.parametrize("fmt", GENERATED_ONLY)
def test_experts_of_formats_that_only_their_declaration_knows(fmt: str) -> None:
    """One token, several slots, rows that start anywhere."""
    w, mid = drawn(fmt, 5, 3 * FORMATS[fmt].block_elems, 4), normal(1, 3, 3 * FORMATS[fmt].block_elems)
    ids = np.array([[3, 0, 3]], np.int32)
    for act in dict.fromkeys(("float", UNITS[fmt].activation)):
        wanted = REFERENCE.expert_sum(mid, ids, w, act), REFERENCE.expert_linear(mid[:, 0], ids, w, act)
        got = cuda.expert_sum(mid, ids, w, act), cuda.expert_linear(mid[:, 0].copy(), ids, w, act)
        for g, want in zip(got, wanted, strict=True):
            assert np.linalg.norm(g - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("fmt", sorted(BY_HAND.keys() & GENERATED.keys()))
def test_decoders_by_hand_give_what_generated_ones_do(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a table bit for bit; products up to the order of sums."""
    n, act = 3 * FORMATS[fmt].block_elems, UNITS[fmt].activation
    w, x, ids = drawn(fmt, 5, n), normal(2, n), np.arange(5, dtype=np.int32)
    caches = embedding._blocks, matvec.kernel, matvec._kernel, dots.dot_of
    by_hand = cuda.embed(w, ids), cuda.linear(x, w, act), cuda.linear(x, w, "float")
    with monkeypatch.context() as patches:
        patches.setitem(UNITS, fmt, GENERATED[fmt])
        patches.delitem(dots.OWN, fmt)
        for cache in caches:
            cache.cache_clear()
        generated = cuda.embed(w, ids), cuda.linear(x, w, act), cuda.linear(x, w, "float")
    for cache in caches:
        cache.cache_clear()
    assert np.array_equal(by_hand[0], generated[0])
    assert np.array_equal(by_hand[0], w.dequantize())
    for a, b in zip(by_hand[1:], generated[1:], strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(
    "pair", [("F16", "a8"), ("F16", "q8k"), ("Q8_0", "q8k"), ("Q2_K", "a8"), ("MXFP4", "a8"), ("Q6_K", "a8")]
)
def test_roundings_that_have_no_kernel_come_before_the_float_product(pair: tuple[str, str]) -> None:
    fmt, act = pair
    assert not dispatch.rounds(fmt, act)
    w, x, ids = drawn(fmt, 3, 512, 2), difficult()[[0, 1, 4]], np.array([[0], [1], [1]], np.int32)
    one = w.expert(1)
    for got, want in (
        (cuda.linear(x, one, act), REFERENCE.linear(x, one, act)),
        (cuda.expert_linear(x, ids, w, act), REFERENCE.expert_linear(x, ids, w, act)),
        (cuda.expert_sum(x[:, None], ids, w, act), REFERENCE.expert_sum(x[:, None], ids, w, act)),
        (cuda.grouped_linear(x[:, None], one, act), REFERENCE.grouped_linear(x[:, None], one, act)),
    ):
        assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)
    assert not np.allclose(cuda.linear(x, one, act), REFERENCE.linear(x, one), rtol=1e-4, atol=1e-6)


def test_a_rounding_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown activation rounding 'none'"):
        cuda.linear(normal(1, 64), drawn("Q8_0", 3, 64), "none")


def test_declarations_without_a_decoder_are_told() -> None:
    """A codebook, codes that are no signed bytes, numbers that lie across bytes, places that no few terms give."""
    for name in ("IQ2_XXS", "F8_E4M3", "F16", "Q4_1"):
        with pytest.raises(decoding.Unsupported):
            decoding.unit_of(FORMATS[name])
    with pytest.raises(decoding.Unsupported, match="across bytes"):
        decoding._places(Plane(6, 1, ((0, 0), (0, 6))))
    with pytest.raises(decoding.Unsupported, match="sums over the bits"):
        decoding._steps([0, 1, 2, 4])


@pytest.mark.parametrize("fmt", WIDE)
def test_formats_without_kernels_are_widened_exactly(fmt: str) -> None:
    """Every weight of a stack as bfloat16, or as float32 if it is a sum, and the products with it."""
    w = drawn_bytes(fmt, 6, 256, 3)
    wide = widened(w)
    assert (wide.fmt, wide.rows, wide.cols, wide.experts) == ("F32" if fmt in ("Q4_1", "Q5_1") else "BF16", 6, 256, 3)
    np.testing.assert_array_equal(wide.dequantize(), w.dequantize())
    assert placed_bytes(w) == wide.nbytes and placed_bytes(wide) == wide.nbytes and widened(wide) is wide
    x, ids = normal(2, 256), np.array([[2, 0], [1, 1]], np.int32)
    np.testing.assert_allclose(
        cuda.expert_linear(x, ids, w, "float"), REFERENCE.expert_linear(x, ids, w, "float"), rtol=1e-4, atol=1e-4
    )
    one = w.expert(1)
    np.testing.assert_allclose(cuda.linear(x, one, "float"), REFERENCE.linear(x, one, "float"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fmt", WIDE)
def test_widened_piece_by_piece(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widening, "_STEP", 2 * 256)
    w = drawn_bytes(fmt, 5, 256, 3)
    np.testing.assert_array_equal(widened(w).dequantize(), w.dequantize())


def drawn_bytes(fmt: str, rows: int, n: int, experts: int) -> Matrix:
    """Random codes under exponents of a size that real weights have, no NaN."""
    f, rng = FORMATS[fmt], np.random.default_rng(5)
    if f.scale_fields:
        return drawn(fmt, rows, n, experts)
    raw = rng.integers(0, 256, (experts, rows, f.row_bytes(n)), dtype=np.uint8)
    blocks = raw.reshape(-1).view(f.layout)
    blocks["e"] = rng.integers(112, 122, blocks.shape)
    if fmt == "F8_E4M3":
        blocks["codes"][blocks["codes"] % 128 == 127] = 3
    return Matrix(fmt, raw, rows, n)
