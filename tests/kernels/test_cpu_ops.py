"""Every compiled op against the NumPy reference, over odd sizes and real Flash widths, with stated tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cpu import gemm
from ds4ref.kernels.formats import FORMATS, Matrix
from tests.kernels import cpu, reference

TOKENS = [1, 2, 3, 5, 17]
INTEGER = [("Q8_0", "a8"), ("Q2_K", "q8k"), ("Q4_K", "q8k"), ("IQ2_XXS", "q8k")]
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


def matrix(fmt: str, rows: int, cols: int, experts: int = 0, seed: int = 1) -> Matrix:
    """Random blocks with sane scales: any bytes are valid weights once the float fields are."""
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
    blocks = raw.reshape(-1).view(kind.layout)
    for field in kind.scale_fields:
        blocks[field] = (rng.uniform(0.001, 0.02, blocks.shape)).astype(np.float16)
    if not kind.scale_fields:  # powers of two
        blocks["e"] = rng.integers(112, 122, blocks.shape)
    if fmt == "F8_E4M3":
        blocks["codes"][blocks["codes"] % 128 == 127] = 5  # no NaN
    return Matrix(fmt, raw, rows, cols)


# ---- matrix products ----


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("fmt", "act"), ROUNDED + FLOAT)
def test_linear(fmt: str, act: str, tokens: int):
    w = matrix(fmt, 37, 512)
    x = normal(tokens, tokens, 512)
    assert_close(cpu.linear(x, w, act), reference.linear(x, w, act), 2e-6)


@pytest.mark.parametrize("cols", [1024, 2048, 4096])
@pytest.mark.parametrize(("fmt", "act"), INTEGER + [("F16", "float")])
def test_linear_at_flash_widths(fmt: str, act: str, cols: int):
    w = matrix(fmt, 131, cols)
    x = normal(3, 2, cols)
    assert_close(cpu.linear(x, w, act), reference.linear(x, w, act), 3e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("fmt", "act"), [("Q8_0", "a8"), ("Q8_0", "float"), ("Q4_0", "a8")])
def test_grouped_linear(fmt: str, act: str, tokens: int):
    w = matrix(fmt, 8 * 33, 256)
    x = normal(tokens, tokens, 8, 256)
    assert_close(cpu.grouped_linear(x, w, act), reference.grouped_linear(x, w, act), 2e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("fmt", "act"), [("IQ2_XXS", "q8k"), ("Q4_K", "q8k"), ("Q2_K", "float"), ("Q6_K", "q8k")])
def test_experts(fmt: str, act: str, tokens: int):
    up, down = matrix(fmt, 70, 512, experts=11), matrix(fmt, 45, 256, experts=11, seed=2)
    ids = np.random.default_rng(tokens).integers(0, 11, (tokens, 6)).astype(np.int32)
    x, mid = normal(5, tokens, 512), normal(6, tokens, 6, 256)
    assert_close(cpu.expert_linear(x, ids, up, act), reference.expert_linear(x, ids, up, act), 2e-6)
    assert_close(cpu.expert_sum(mid, ids, down, act), reference.expert_sum(mid, ids, down, act), 2e-6)


def test_a_row_does_not_depend_on_its_neighbours_or_on_the_batch():
    """Chunked and token-by-token prefill agree bit for bit only if these do (the GEMM takes over at 8 tokens)."""
    for fmt, act in ROUNDED + FLOAT:
        w = matrix(fmt, 67, 512)
        x = normal(9, 7, 512)
        whole = cpu.linear(x, w, act)
        for t in range(7):
            assert np.array_equal(cpu.linear(x[t : t + 1], w, act), whole[t : t + 1]), (fmt, act)
        part = Matrix(fmt, w.data[5:28], 23, 512)
        assert np.array_equal(cpu.linear(x, part, act), whole[:, 5:28]), (fmt, act)
    w = matrix("IQ2_XXS", 50, 512, experts=5)
    down = matrix("Q2_K", 50, 256, experts=5)
    ids = np.random.default_rng(0).integers(0, 5, (7, 3)).astype(np.int32)
    x, mid = normal(1, 7, 512), normal(2, 7, 3, 256)
    many, total = cpu.expert_linear(x, ids, w, "q8k"), cpu.expert_sum(mid, ids, down, "q8k")
    for t in range(7):
        one = slice(t, t + 1)
        assert np.array_equal(cpu.expert_linear(x[one], ids[one], w, "q8k"), many[one])
        assert np.array_equal(cpu.expert_sum(mid[one], ids[one], down, "q8k"), total[one])


@pytest.mark.parametrize("tokens", range(1, 10))
def test_tokens_in_one_pass_have_the_bits_of_decode(tokens: int):
    """Rows of 1 to 9 tokens in every format; from 8 on only where no GEMM takes over."""
    for fmt, act in ROUNDED + FLOAT:
        w = matrix(fmt, 67, 768)
        if gemm.parts_for(tokens, w, act) is None:
            x = normal(tokens, tokens, 768)
            one = np.concatenate([cpu.linear(row[None], w, act) for row in x])
            assert np.array_equal(cpu.linear(x, w, act), one), (fmt, act)
    groups = matrix("Q8_0", 3 * 33, 256)
    if gemm.parts_for(tokens, groups, "a8") is None:
        x = normal(tokens, tokens, 3, 256)
        one = np.concatenate([cpu.grouped_linear(row[None], groups, "a8") for row in x])
        assert np.array_equal(cpu.grouped_linear(x, groups, "a8"), one)


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


@pytest.mark.parametrize("tokens", [15, 16, 17, 21, 64])
def test_many_tokens_by_row_kernels(tokens: int):
    """More inputs than a call of a row kernel takes, on tiers without a GEMM."""
    w = matrix("Q4_K", 67, 512)
    if gemm.parts_for(tokens, w, "q8k") is not None:
        pytest.skip("this tier has a GEMM")
    x = normal(tokens, tokens, 512)
    whole = cpu.linear(x, w, "q8k")
    for t in range(tokens):
        assert np.array_equal(cpu.linear(x[t : t + 1], w, "q8k"), whole[t : t + 1]), t


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
    with pytest.raises(TypeError, match="x must be float32, not float64"):
        cpu.linear(normal(1, 2, 256).astype(np.float64), w, "a8")
    with pytest.raises(TypeError, match="rows must be float32 or float16, not int32"):
        cpu.store_rows(normal(1, 2, 4), np.zeros((8, 4), np.int32), np.zeros(1, np.int64))
    with pytest.raises(IndexError, match=r"expert_linear: ids outside 0\.\.3"):
        cpu.expert_linear(normal(1, 1, 256), np.array([[0, 4]], np.int32), matrix("Q8_0", 40, 256, experts=4), "a8")
    with pytest.raises(ValueError, match="no kernel for Q8_0 weights with activation rounding 'q9'"):
        cpu.linear(normal(1, 2, 256), w, "q9")
    with pytest.raises(ValueError, match="'q8k' works in blocks of 256, not on 288 inputs"):
        cpu.linear(normal(1, 2, 288), matrix("Q8_0", 40, 288), "q8k")


def test_embed():
    for fmt in ("F16", "F32", "Q8_0"):
        table = matrix(fmt, 50, 64)
        ids = np.array([3, 49, 0, 3], np.int32)
        assert np.array_equal(cpu.embed(table, ids), reference.embed(table, ids))


# ---- norms and hyper-connections ----


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 512), (1, 4096), (2, 16384)])
def test_rms_norm(shape: tuple[int, ...]):
    x, weight = normal(1, *shape), normal(2, shape[-1])
    assert_close(cpu.rms_norm(x, None, 1e-6), reference.rms_norm(x, None, 1e-6), 2e-6)
    assert_close(cpu.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), 2e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("C", "D"), [(4, 256), (4, 4096), (2, 31), (1, 5)])
def test_hyper_connections(C: int, D: int, tokens: int):
    X, y = normal(1, tokens, C, D), normal(2, tokens, D)
    mix = normal(3, tokens, 2 * C + C * C)
    scale, base = np.float32([1.1, 0.9, 1.4]), normal(4, 2 * C + C * C)
    got, want = cpu.hc_split(mix, scale, base, 20, 1e-6), reference.hc_split(mix, scale, base, 20, 1e-6)
    for g, w in zip(got, want, strict=True):
        assert_close(g, w, 2e-6)
    pre, post, comb = want
    assert_close(cpu.hc_reduce(X, pre), reference.hc_reduce(X, pre), 1e-6)
    assert_close(cpu.hc_expand(X, y, post, comb), reference.hc_expand(X, y, post, comb), 1e-6)
    head = (mix[:, :C], scale[:1], base[:C], 1e-6)
    assert_close(cpu.hc_head_weights(*head), reference.hc_head_weights(*head), 1e-6)


def test_hc_mix():
    fn = matrix("F16", 24, 4 * 512)
    X = normal(1, 3, 4, 512)
    assert_close(cpu.hc_mix(X, fn, 1e-6), reference.hc_mix(X, fn, 1e-6), 3e-6)


# ---- rope, rounding, activations ----


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "width", "half"), [(64, 512, 32), (1, 128, 32), (3, 10, 5)])
@pytest.mark.parametrize("inverse", [False, True])
def test_rope(heads: int, width: int, half: int, tokens: int, inverse: bool):
    angle = normal(1, tokens, half) * 10
    x, cos, sin = normal(2, tokens, heads, width), np.cos(angle), np.sin(angle)
    assert_close(cpu.rope(x, cos, sin, inverse), reference.rope(x, cos, sin, inverse), 1e-6)


@pytest.mark.parametrize("name", ["round_e4m3", "round_e2m1", "round_f16", "round_i8", "hadamard"])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e4])
def test_rounding_is_exact(name: str, spread: float):
    x = normal(3, 50, 3, 128) * np.float32(spread) * np.exp(normal(4, 50, 3, 1) * 3)
    x[0] = 0
    x[1, 0, 5] = -0.0
    if name == "round_e4m3":
        assert np.array_equal(cpu.round_e4m3(x, 64), reference.round_e4m3(x, 64))
        assert np.array_equal(cpu.round_e4m3(x, 64)[..., 64:], x[..., 64:])
    assert np.array_equal(getattr(cpu, name)(x), getattr(reference, name)(x))


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
def test_int8_in_groups_is_that_of_runq(ops: Any):
    """Its quantize(): the scale is amax / 127, C's round takes halves away from zero; a group of zeros stays."""
    x = np.zeros((1, 24), np.float32)
    x[0, :8] = [127, 0.5, -0.5, 1.5, -2.5, 2.49, -126.5, 0.49999997]
    x[0, 16:20] = [-254, 1, 3, -1]
    wanted = [127, 1, -1, 2, -3, 2, -127, 0, *[0] * 8, -254, 2, 4, -2, *[0] * 4]
    assert ops.round_i8(x, 8).tolist() == [wanted]
    assert not np.signbit(ops.round_i8(x, 8)[0, 7:16]).any()
    for group in (1, 3, 4, 24):
        groups = normal(5, 2, 24).reshape(2, -1, group)
        scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
        got = ops.round_i8(groups.reshape(2, 24), group).reshape(groups.shape)
        assert np.abs(got - groups).max() <= 0.5001 * scale.max() and np.abs(got / scale).max() < 127.001


def test_activation_codes_are_exact():
    x = normal(3, 7, 1024) * np.exp(normal(4, 7, 1) * 3)
    x[2, :256] = 0
    x[3, 40:60] = np.float32([7.5, -7.5] * 10)  # equal magnitudes: the first one decides
    for name in ("quantize_a8", "quantize_q8k"):
        for got, want in zip(getattr(cpu, name)(x), getattr(reference, name)(x), strict=True):
            assert got.dtype == want.dtype and np.array_equal(got, want), name


# ---- compressor, indexer, attention ----


@pytest.mark.parametrize(("n", "m", "c"), [(1, 8, 512), (3, 128, 512), (2, 8, 128), (5, 3, 70)])
def test_pool(n: int, m: int, c: int):
    kv, score = normal(1, n, m, c), normal(2, n, m, c) * 3
    score[0, : m // 2] = -1e30
    assert_close(cpu.pool(kv, score), reference.pool(kv, score), 2e-6)
    score[0, : m // 2] = -np.inf
    assert_close(cpu.pool(kv, score), reference.pool(kv, score), 2e-6)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "dim", "n"), [(64, 128, 700), (4, 128, 9), (70, 32, 1), (3, 5, 6), (64, 128, 0)])
def test_index_scores(heads: int, dim: int, n: int, tokens: int):
    iq, rows, w = normal(1, tokens, heads, dim), normal(2, n, dim), normal(3, tokens, heads)
    for count in {n, n // 2}:
        args = iq, rows, w, np.array([count], np.int32)
        assert_close(cpu.index_scores(*args)[:, :count], reference.index_scores(*args)[:, :count], 4e-6)


def attention_case(seed: int, tokens: int, heads: int, dim: int, window: int, comp: int):
    raw = normal(seed, window + tokens, dim)
    first = np.arange(tokens, dtype=np.int32)
    count = np.full(tokens, window, np.int32)
    rows = normal(seed + 1, comp, dim) if comp else None
    visible = np.minimum(np.arange(tokens) + comp - tokens + 1, comp).clip(0).astype(np.int32)
    q, sinks = normal(seed + 2, tokens, heads, dim), normal(seed + 3, heads)
    return q, raw, first, count, rows, visible, sinks, 1 / np.sqrt(dim)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("heads", "dim", "window", "comp"),
    [(64, 512, 128, 0), (64, 512, 128, 300), (8, 192, 16, 5), (6, 100, 1, 0), (1, 8, 3, 70), (3, 20, 7, 64)],
)
def test_attention(heads: int, dim: int, window: int, comp: int, tokens: int):
    q, raw, first, count, rows, visible, sinks, scale = attention_case(7, tokens, heads, dim, window, comp)
    args = (q, raw, first, count, rows, visible, None, sinks, scale)
    assert_close(cpu.attention(*args), reference.attention(*args), 4e-6)


@pytest.mark.parametrize("tokens", [1, 3])
def test_attention_over_selected_rows(tokens: int):
    q, raw, first, count, rows, visible, sinks, scale = attention_case(3, tokens, 64, 512, 128, 1500)
    selected = cpu.select_rows(normal(4, tokens, 1500), visible, 512)
    selected[0, 500:] = -1
    args = (q, raw, first, count, rows, visible, selected, sinks, scale)
    assert_close(cpu.attention(*args), reference.attention(*args), 4e-6)


@pytest.mark.parametrize("tokens", TOKENS)
def test_attention_of_a_token_does_not_depend_on_the_batch(tokens: int):
    q, raw, first, count, rows, visible, sinks, scale = attention_case(5, tokens, 8, 192, 16, 90)
    whole = cpu.attention(q, raw, first, count, rows, visible, None, sinks, scale)
    for t in range(tokens):
        one = slice(t, t + 1)
        alone = cpu.attention(q[one], raw, first[one], count[one], rows, visible[one], None, sinks, scale)
        assert np.array_equal(alone, whole[one])


# ---- routing ----


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("experts", "k"), [(256, 6), (16, 2), (5, 5)])
@pytest.mark.parametrize("floor", [True, False])
def test_route(experts: int, k: int, floor: bool, tokens: int):
    logits, bias = normal(1, tokens, experts) * 3, normal(2, experts)
    hash_ids = np.random.default_rng(3).integers(0, experts, (tokens, k)).astype(np.int32)
    for args in [(logits, None, None), (logits, bias, None), (logits, bias, hash_ids)]:
        got, want = cpu.route(*args, k, 1.5, floor), reference.route(*args, k, 1.5, floor)
        assert_close(got[0], want[0], 1e-6)
        assert np.array_equal(got[1], want[1]) and got[1].dtype == np.int32
        assert_close(got[2], want[2], 2e-6)


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
def test_geglu(ops):
    """Values of 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), and no overflow far out."""
    gate = np.float32([0, 1, -1, 3, -3, 30, -30, 1e30, -1e30, np.nan])
    wanted = np.float32([0, 0.8411920, -0.1588080, 2.9963627, -0.003637392, 30, 0, 1e30, 0, np.nan])
    np.testing.assert_allclose(ops.geglu(gate, np.ones_like(gate)), wanted, rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(ops.geglu(gate, np.full_like(gate, -2)), -2 * wanted, rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("tokens", TOKENS)
def test_swiglu(tokens: int):
    gate, up, weight = normal(1, tokens, 6, 300) * 8, normal(2, tokens, 6, 300) * 8, normal(3, tokens, 6)
    assert_close(cpu.swiglu(gate, up, 10.0, weight), reference.swiglu(gate, up, 10.0, weight), 1e-6)
    assert_close(cpu.swiglu(gate[0], up[0], 10.0), reference.swiglu(gate[0], up[0], 10.0), 1e-6)


# ---- attention over keys and values of their own ----


@pytest.mark.parametrize("half", [np.float32, np.float16])
@pytest.mark.parametrize(("shared", "sharing", "dim"), [(3, 1, 64), (2, 2, 128), (1, 3, 70), (2, 8, 16), (1, 11, 33)])
def test_tokens_that_share_rows_get_what_each_gets_alone(half, shared, sharing, dim):
    """Tiles of tokens meet blocks of rows together: the sums are those of a token by itself, to the bit."""
    tokens, rows = 21, 300
    q = normal(1, tokens, shared * sharing, dim)
    keys, values = normal(2, rows, shared, dim).astype(half), normal(3, rows, shared, dim).astype(half)
    rng = np.random.default_rng(4)
    for seen in (np.arange(140, 140 + tokens), np.arange(tokens) + 1, rng.integers(1, rows + 1, tokens)):
        for first in (np.zeros(tokens), np.full(tokens, 290), rng.integers(0, 3, tokens), np.arange(tokens)):
            first, seen = first.astype(np.int32), seen.astype(np.int32)
            found = cpu.attend(q, keys, values, first, seen, 0.11)
            assert_close(found, reference.attend(q, keys, values, first, seen, 0.11), 3e-6)
            alone = [
                cpu.attend(q[i : i + 1], keys, values, first[i : i + 1], seen[i : i + 1], 0.11) for i in range(tokens)
            ]
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
