"""Matrix products of the CUDA backend: what the draws of the op table are too small or too tame to reach.

Every layout of every mat-vec, rows that start anywhere, tensor-core tiles that are not full, experts nobody wants.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cuda import grouping, matmat, matvec, packing, plain, products, widening
from kernels.cuda import simulated_intrinsics as meaning
from kernels.cuda.units import UNITS
from kernels.cuda.widening import WIDE, placed_bytes, widened
from kernels.formats import FORMATS, Matrix
from kernels.reference import Reference

from . import cuda

REFERENCE = Reference()
BOTH = [(fmt, act) for fmt, unit in UNITS.items() for act in ("float", unit.activation)]
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
    if not f.scale_fields:
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


def there(values: np.ndarray) -> Any:
    """A copy on the device, as kernels take it."""
    array = cuda.backend.upload(np.ascontiguousarray(values).reshape(-1))
    _kept.append((array.flat(), array))
    return _kept[-1][0]


def host(flat: Any) -> np.ndarray:
    """The values of what ``there`` gave."""
    found: np.ndarray = cuda.backend.host(next(array for known, array in _kept if known is flat))
    return found


def stream() -> Any:
    return cuda.backend.driver.stream


def placed(w: Matrix) -> Matrix:
    return Matrix(w.fmt, there(w.data), w.rows, w.cols)


def unwritten(size: int) -> Any:
    return there(np.full(size, np.nan, np.float32))


def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    """Memory full of what would be seen in a result."""
    return there(np.full(shape, 0x7F, np.uint8).repeat(np.dtype(dtype).itemsize).view(dtype))


def close(got: Any, want: np.ndarray) -> None:
    values = host(got).reshape(want.shape)
    assert np.linalg.norm(values - want) <= 1e-6 * np.linalg.norm(want), (values, want)


@pytest.mark.parametrize(("fmt", "act"), BOTH)
def test_every_layout_of_a_format_multiplies_the_same(fmt: str, act: str) -> None:
    """Rows that start anywhere, and rows of whole chunks at multiples of 16 bytes, for which kernels are special; two
    matrices at once, neither of which has full groups of rows; warps that share rows."""
    unit, block = UNITS[fmt], FORMATS[fmt].block_elems
    for layout in matvec.LAYOUTS[fmt]:
        if act == "float" and layout.rows > matvec.FLOAT_ROWS:
            continue
        chunk = 1024 * layout.passes
        for n, split_bits in ((block * (3 if unit.per_block > 1 else 35), 0), (chunk, 0), (2 * chunk, 1)):
            whole = matvec.is_whole(unit, layout, n)
            assert whole or n % chunk
            w, more, x = drawn(fmt, 5, n), drawn(fmt, 3, n, seed=1), normal(1, n)
            here = [placed(w), placed(more)]
            inputs = products.pack(stream(), there(x), 1, n, fmt, act, scratch)
            outs = unwritten(5), unwritten(3)
            made = matvec.kernel(fmt, act, layout, whole, split_bits)
            operands = inputs.codes, 0, 1, 1, 1, *inputs
            parts = [matvec.Weights(m.data, m.rows, out) for m, out in zip(here, outs, strict=True)]
            matvec.launch(stream(), made, parts, operands, w.row_bytes, n, 1, inputs.codes, 0)
            for m, out in zip((w, more), outs, strict=True):
                close(out, REFERENCE.linear(x, m, act))


def test_a_split_is_taken_where_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU of 132 multiprocessors: all warps of a large product take rows of their own, those of the sum over few
    experts' rows share them, and never more warps than there are turns."""
    monkeypatch.setattr(matvec, "multiprocessors", lambda: 132)
    monkeypatch.setattr(matvec, "kernel", lambda *asked: asked)
    head = matvec.choose("Q8_0", "a8", [129280], 4096, 1)
    assert head[-1] == 0 and head[2] == matvec.LAYOUTS["Q8_0"][0]
    summed = matvec.choose("Q2_K", "q8k", [4096], 2048, 1, slots=6)
    assert summed[-1] > 0 and summed[2].rows == 4
    for rows in (1, 7, 100, 1000, 5000):
        for slots in (1, 3):
            _, _, layout, _, split_bits = matvec.choose("Q2_K", "q8k", [rows], 2048, 1, slots)
            assert 1 << split_bits <= max(1, slots * -(-2048 // (1024 * layout.passes)))


def test_every_format_has_a_layout_for_every_gpu() -> None:
    """99 KB of shared memory are what the smaller ones give a block, 228 KB what the larger ones have."""
    for fmt, layouts in matvec.LAYOUTS.items():
        assert matvec.shared_bytes(UNITS[fmt], layouts[-1]) <= 99 << 10
        for layout in layouts:
            assert layout.warps * layout.blocks * 32 * layout.registers <= 65536
            assert layout.blocks * (matvec.shared_bytes(UNITS[fmt], layout) + 1024) <= 228 << 10


@pytest.mark.parametrize("fmt", [*UNITS, *plain.VALUE_BYTES])
def test_rows_of_a_table_come_out_as_the_dequantizer_has_them(fmt: str) -> None:
    n = FORMATS[fmt].block_elems * 5
    w, ids = drawn(fmt, 7, n), np.array([3, 0, 6, 6], np.int32)
    out, error = unwritten(4 * n), there(np.zeros(1, np.int32))
    products.embed(stream(), out, error, there(ids), placed(w), 4, FAILURE, scratch=scratch)
    assert np.array_equal(host(out).reshape(4, n), w.rows_at(ids))
    assert host(error)[0] == 0
    products.embed(stream(), out, error, there(ids + 1), placed(w), 4, FAILURE, scratch=scratch)
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
    codes, scales, _ = products.pack(stream(), there(x), 6, 512, "Q8_0", "a8", scratch)
    want = REFERENCE.quantize_a8(x)
    assert np.array_equal(host(codes).view(np.int8).reshape(x.shape), want[0])
    assert np.array_equal(host(scales).reshape(6, -1), want[1], equal_nan=True)
    codes, scales, sums = products.pack(stream(), there(x), 6, 512, "Q2_K", "q8k", scratch)
    wanted = REFERENCE.quantize_q8k(x)
    assert np.array_equal(host(codes).view(np.int8).reshape(x.shape), wanted[0])
    assert np.array_equal(host(scales).reshape(6, -1), wanted[1], equal_nan=True)
    assert np.array_equal(host(sums).view(np.int16).reshape(6, -1), wanted[2])


def test_sums_of_float_inputs() -> None:
    x = normal(3, 512)
    sums = unwritten(3 * 32)
    packing.pack_sums(stream(), sums, there(x), 3, 512)
    close(sums, x.reshape(3, 32, 16).sum(axis=2))


@pytest.mark.parametrize(("fmt", "act"), [("Q8_0", "a8"), ("Q8_0", "float"), ("Q2_K", "q8k"), ("F16", "float")])
def test_an_infinite_input_is_never_a_plausible_number(fmt: str, act: str) -> None:
    w, x = drawn(fmt, 3, 512), normal(2, 512)
    x[1, 77] = np.inf
    out = unwritten(6)
    products.linear(stream(), out, there(x), placed(w), 2, 1, act, scratch=scratch)
    got = host(out).reshape(2, 3)
    assert np.isfinite(got[0]).all()
    assert not np.isfinite(got[1]).any()


@pytest.mark.parametrize("fmt", TILED)
def test_tiles_that_are_not_full(fmt: str) -> None:
    """18 inputs of 64, two rows of 64, groups whose rows begin inside a tile."""
    n, act, tokens = 256 + FORMATS[fmt].block_elems, UNITS[fmt].activation, 18
    w, x = drawn(fmt, 4, n), normal(tokens, 2, n)
    out = unwritten(4 * tokens)
    products.linear(stream(), out, there(x), placed(w), tokens, 2, act, scratch=scratch)
    close(out, REFERENCE.grouped_linear(x, w, act))


@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "IQ2_XXS"])
def test_experts_by_tiles(fmt: str) -> None:
    """Expert 1 of 3 is wanted by nobody, expert 2 by more than a tile holds."""
    n, act, tokens, slots, experts = 256, UNITS[fmt].activation, 36, 2, 3
    w, mid = drawn(fmt, 3, n, experts), normal(tokens, slots, n)
    ids = np.full((tokens, slots), 2, np.int32)
    ids[::9, 0] = 0
    assert products.many(ids.size, experts)
    assert (ids == 2).sum() > grouping.TILE
    out, error = unwritten(3 * tokens), there(np.zeros(1, np.int32))
    args = placed(w), tokens, slots, experts, act, FAILURE
    products.expert_sum(stream(), out, error, there(mid), there(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_sum(mid, ids, w, act))
    out = unwritten(3 * tokens * slots)
    products.expert_linear(stream(), out, error, there(mid[:, 0]), there(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_linear(np.ascontiguousarray(mid[:, 0]), ids, w, act))
    assert host(error)[0] == 0


def test_the_sort_puts_every_pair_into_one_tile_of_its_expert() -> None:
    rng = np.random.default_rng(0)
    ids = rng.choice([0, 1, 1, 1, 1, 4], 300).astype(np.int32)
    error = there(np.zeros(1, np.int32))
    tiles = grouping.tiles(stream(), there(ids), 300, 5, error, FAILURE, scratch)
    order, experts, starts, sizes = (host(array) for array in tiles[:4])
    assert sorted(order) == list(range(300))
    assert len(sizes) == tiles.most
    assert sizes.sum() == 300
    assert sizes.max() <= grouping.TILE
    for expert, start, size in zip(experts, starts, sizes, strict=True):
        assert (ids[order[start : start + size]] == expert).all()
    ids[17] = 5
    grouping.tiles(stream(), there(ids), 300, 5, error, FAILURE, scratch)
    assert host(error)[0] == FAILURE


@pytest.mark.parametrize("many", [False, True])
def test_an_id_out_of_range_is_reported(many: bool) -> None:
    tokens = 8 if many else 1
    w, x = drawn("Q8_0", 3, 64, 2), normal(tokens, 64)
    ids = np.zeros((tokens, 2), np.int32)
    for bad in (2, -1):
        ids[0, 1] = bad
        out, error = unwritten(6 * tokens), there(np.zeros(1, np.int32))
        args = placed(w), tokens, 2, 2, "a8", FAILURE
        products.expert_linear(stream(), out, error, there(x), there(ids), *args, scratch=scratch)
        assert host(error)[0] == FAILURE


@pytest.mark.parametrize("fmt", list(plain.VALUE_BYTES))
@pytest.mark.parametrize("n", [13, 1304])
def test_plain_weights(fmt: str, n: int) -> None:
    """Rows at multiples of 16 bytes, long enough for loads in fours and a rest; and rows that start anywhere."""
    w, x = drawn(fmt, 3, n), normal(2, n)
    out = unwritten(6)
    products.linear(stream(), out, there(x), placed(w), 2, 1, "float", scratch=scratch)
    close(out, REFERENCE.linear(x, w))
    out = unwritten(6)
    products.hc_mix(stream(), out, there(x), placed(w), 2, 1e-6, scratch=scratch)
    close(out, REFERENCE.hc_mix(x[:, None], w, 1e-6))


def test_roundings_that_have_no_kernel_are_refused() -> None:
    for fmt, act in (("F16", "a8"), ("Q8_0", "q8k"), ("Q2_K", "a8"), ("Q8_0", "none")):
        with pytest.raises(ValueError, match="no kernel"):
            products.check_act(fmt, act)


# --- what intrinsics mean


def test_words() -> None:
    """Against NumPy on random bytes."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        raw = rng.integers(0, 256, 12, dtype=np.uint8)
        a, b, c = (int(v) for v in raw.view(np.int32))
        signed = raw.view(np.int8).astype(np.int64)
        assert meaning.dp4a(a, b, 5) == signed[:4] @ signed[4:8] + 5
        halves = raw[:4].view(np.int16).astype(np.int64)
        assert meaning.dp2a_low(a, b, 5) == halves @ signed[4:6] + 5
        assert meaning.dp4a_codes(a, b, 5) == raw[:4].astype(np.int64) @ signed[4:8] + 5
        assert meaning.dp2a_codes(a, b, 5) == halves @ raw[4:6].astype(np.int64) + 5
        nibbles = [c >> (4 * i) & 7 for i in range(4)]
        selector = sum(n << (4 * i) for i, n in enumerate(nibbles))
        assert meaning.permute_bytes(a, b, selector) == raw[nibbles].view(np.int32)[0]
        pair = int(raw[:8].view(np.uint64)[0])
        for count in (0, 16, 31, 32, 40):
            shifted = np.array([pair >> min(count, 32) & 0xFFFFFFFF], np.uint32)
            assert meaning.funnel_right(a, b, count) == shifted.view(np.int32)[0]
    assert meaning.permute_bytes(np.int32(0x00008000), 0, 0x9999) == -1
    assert meaning.half_to_float(0x7C00) == np.inf
    assert meaning.float_to_half(1e9) == 0x7C00


def test_both_bodies_of_the_intrinsics_have_the_same_names() -> None:
    folder = Path(matvec.__file__).parent
    names = []
    for body in ("simulated", "compiled"):
        tree = ast.parse((folder / f"{body}_intrinsics.py").read_text())
        lists = [
            node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        names.append(ast.literal_eval(lists[0].value))
    assert names[0] == names[1]
    assert names[0] == sorted(names[0])


@pytest.mark.parametrize("fmt", WIDE)
def test_formats_without_kernels_are_widened_exactly(fmt: str) -> None:
    """Every weight of a stack as bfloat16, and the products with it."""
    w = drawn_bytes(fmt, 6, 256, 3)
    wide = widened(w)
    assert (wide.fmt, wide.rows, wide.cols, wide.experts) == ("BF16", 6, 256, 3)
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
    raw = rng.integers(0, 256, (experts, rows, f.row_bytes(n)), dtype=np.uint8)
    blocks = raw.reshape(-1).view(f.layout)
    blocks["e"] = rng.integers(112, 122, blocks.shape)
    if fmt == "F8_E4M3":
        blocks["codes"][blocks["codes"] % 128 == 127] = 3
    return Matrix(fmt, raw, rows, n)
