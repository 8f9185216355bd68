"""Quantizers: against gguf-py where it has one, against exhaustive search at the scales they chose, and odd input."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cpu.quantize import BLOCKED, SEARCHED, quantize
from ds4ref.kernels.formats import FORMATS, Format
from ds4ref.kernels.formats.codebooks import GRID, SIGNS

quants = pytest.importorskip("gguf.quants")
gguf = pytest.importorskip("gguf")


def weights(rows: int = 6, cols: int = 1024, seed: int = 0, kind: str = "normal") -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols))
    if kind == "heavy":
        x = x**3
    if kind == "shifted":
        x = x + 1.5
    return (0.03 * x).astype(np.float32)


def importance(cols: int, seed: int = 5) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).standard_normal(cols)).astype(np.float32)


def decoded(fmt: str, raw: np.ndarray) -> np.ndarray:
    return FORMATS[fmt].dequantize(raw)


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("kind", ["normal", "heavy", "shifted"])
def test_formats_without_a_search_are_those_of_gguf_py(fmt, kind):
    x = weights(9, 640, seed=3, kind=kind)
    x[0, :32] = 0
    x[1, :64] = np.float32(1e-30)
    x[2, 5] = 300
    x[3] = np.arange(-508, 132) / 4  # quarters of an integer scale: halves occur everywhere
    x[3, ::32] = 127
    wanted = quants.quantize(x, gguf.GGMLQuantizationType[fmt]).view(np.uint8).reshape(len(x), -1)
    np.testing.assert_array_equal(quantize(fmt, x), wanted)


@pytest.mark.parametrize(
    ("fmt", "budget"), [("Q8_0", 0.0065), ("Q4_K", 0.07), ("MXFP4", 0.12), ("Q2_K", 0.29), ("IQ2_XXS", 0.41)]
)
def test_errors_stay_within_the_budget_of_the_format_and_go_where_importance_is_not(fmt, budget):
    """Errors in the mean, relative to the rms: a little above what normal weights measure."""
    for kind in ("normal", "shifted"):
        x, given = weights(16, 1024, kind=kind), importance(1024)
        plain, weighed = (
            np.square(decoded(fmt, quantize(fmt, x, imp)).astype(np.float64) - x) for imp in (None, given)
        )
        if kind == "normal":
            rms = np.square(x.astype(np.float64)).mean()
            assert np.sqrt(plain.mean() / rms) < budget and np.sqrt(weighed.mean() / rms) < 1.25 * budget
        bar = {"MXFP4": 1, "Q8_0": 1.001}.get(fmt, 0.99)  # three scales a block leave little to choose, one nothing
        assert (weighed * given).sum() < bar * (plain * given).sum()


@pytest.mark.parametrize("fmt", BLOCKED)
def test_neither_threads_nor_neighbours_change_a_row(fmt):
    cols = 352 if FORMATS[fmt].block_elems == 32 else 2048
    x, given = weights(300, cols, seed=4, kind="heavy"), importance(cols)
    whole = quantize(fmt, x, given, threads=3)
    np.testing.assert_array_equal(whole, quantize(fmt, x, given))
    np.testing.assert_array_equal(whole[40:43], quantize(fmt, x[40:43], given))


@pytest.mark.parametrize("fmt", SEARCHED)
@pytest.mark.parametrize("given", [False, True])
def test_odd_blocks(fmt, given):
    """Zeros, constants, one outlier, tiny and large values: always finite, and no error above the largest weight."""
    rng = np.random.default_rng(6)
    rows = [np.zeros(256), np.full(256, 0.25), np.full(256, -0.25), np.eye(1, 256)[0], -np.eye(1, 256, 255)[0]]
    rows += [rng.standard_normal(256) * scale for scale in (1e-42, 1e-30, 1e-12, 1e-6, 1e4)]
    rows += [np.abs(rng.standard_normal(256)), -np.abs(rng.standard_normal(256)), np.arange(256) / 256]
    x = np.array(rows, np.float32)
    found = importance(256)
    found[64:128] = 0
    raw = quantize(fmt, x, found if given else None)
    values = decoded(fmt, raw)
    assert np.isfinite(values).all()
    assert (values[0] == 0).all()
    assert (np.abs(values - x).max(axis=1) <= 1.05 * np.abs(x).max(axis=1)).all()
    if fmt != "IQ2_XXS":  # whose three magnitudes only come close
        np.testing.assert_allclose(values[1:3], x[1:3], rtol=4e-3)


def nearest_codes(x: np.ndarray, scale: np.ndarray, minimum: np.ndarray, low: int, high: int) -> np.ndarray:
    """The value nearest to x of scale * code - minimum with an integer code low..high."""
    safe = np.where(scale != 0, scale, 1).astype(np.float64)
    codes = np.clip(np.rint((x + minimum) / safe), low, high)
    return scale * np.where(scale != 0, codes, 0) - minimum


def best_octet(x: np.ndarray, w: np.ndarray, scale: float) -> float:
    """The least weighted squared error of an octet over IQ2_XXS's codebook with every even number of minuses."""
    points = (scale * GRID[:, None, :].astype(np.float64) * SIGNS[None, :, :]).reshape(-1, 8)
    return (w * np.square(x - points)).sum(axis=1).min()


def _scales(kind: Format, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of every group, float32 (n, groups), of blocks uint8 (n, block_bytes)."""
    scale = kind.scale.values(blocks)[:, None] * kind.scales.values(blocks)
    return scale, kind.minimum.values(blocks)[:, None] * kind.minima.values(blocks)


@pytest.mark.parametrize("fmt", ["Q4_K", "Q2_K"])
def test_every_code_is_the_nearest_at_its_scale_and_neighbouring_scales_are_seldom_better(fmt):
    """On either side alike: a search that leaves one of them out shows there alone."""
    kind, better = FORMATS[fmt], []
    for x in (weights(8, 1024, seed=7, kind=name) for name in ("normal", "heavy", "shifted")):
        raw = quantize(fmt, x)
        blocks = raw.reshape(-1, kind.block_bytes)
        step, (scale, minimum) = kind.scale.values(blocks)[:, None], _scales(kind, blocks)
        values = x.reshape(len(blocks), -1, kind.group)

        def nearest(near, values=values, minimum=minimum):
            return nearest_codes(values, near[..., None], minimum[..., None], *kind.codes.range)

        ours, best = (np.abs(v.reshape(x.shape) - x) for v in (decoded(fmt, raw), nearest(scale)))
        assert (ours <= best + 1e-5 * np.abs(x).max()).all()
        cost = np.abs(values) + np.sqrt(np.square(values).mean(axis=2, keepdims=True))
        there, *around = (
            (cost * np.square(nearest(near) - values)).sum(axis=2) for near in (scale, scale - step, scale + step)
        )
        better.append([(error < 0.98 * there).mean() for error in around])
    assert np.mean(better, axis=0).max() < 0.01


@pytest.mark.parametrize("given", [False, True])
def test_a_power_of_two_is_the_best_of_all(given):
    """Of every exponent, not only of those tried."""
    x = np.concatenate([weights(4, 256, seed=3, kind=kind) for kind in ("normal", "heavy", "shifted")])
    cost = np.ones_like(x, np.float64)
    found = importance(256) if given else None
    if given:
        wide = np.square(x.astype(np.float64)).reshape(len(x), -1, 32)
        cost = found * np.sqrt(wide.mean(axis=2, keepdims=True) + wide).reshape(x.shape)
    form = FORMATS["MXFP4"]
    raw = quantize("MXFP4", x, found)
    ours = (cost * np.square(decoded("MXFP4", raw) - x)).reshape(-1, 32).sum(axis=1)
    values, costs = x.reshape(-1, 32, 1), cost.reshape(-1, 32)
    best = [
        (costs * np.square(values - np.ldexp(1.0, e - 128) * form.small.table).min(axis=-1)).sum(axis=1)
        for e in range(100, 140)
    ]
    np.testing.assert_allclose(ours, np.min(best, axis=0), rtol=1e-4)


@pytest.mark.parametrize("given", [False, True])
def test_every_octet_is_the_best_of_the_codebook_at_its_scale(given):
    x = weights(1, 1024, seed=8, kind="heavy")
    imp = importance(1024) if given else np.ones(1024, np.float32)
    raw = quantize("IQ2_XXS", x, imp if given else None)
    blocks = raw.reshape(-1).view(FORMATS["IQ2_XXS"].layout)
    scale = blocks["d"].astype(np.float64)[:, None] * (0.5 + (blocks["groups"]["word"] >> 28)) * 0.25
    wide = x.reshape(-1, 256).astype(np.float64)
    cost = np.ones_like(wide)
    if given:  # docs/reference/quantize.md: what the search weighs errors with
        cost = imp.reshape(-1, 256) * np.sqrt(3 * np.square(wide).mean(axis=1, keepdims=True) + np.square(wide))
    octets, costs = wide.reshape(-1, 8), cost.reshape(-1, 8)
    best = [*map(best_octet, octets, costs, np.repeat(scale.reshape(-1), 4))]
    ours = (costs * np.square(decoded("IQ2_XXS", raw).reshape(-1, 8) - octets)).sum(axis=1)
    np.testing.assert_allclose(ours, best, rtol=2e-4, atol=1e-9 * costs.max())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fmt": "Q4_1"}, "no quantizer for Q4_1"),
        ({"x": np.zeros((2, 256), np.float64)}, "float32"),
        ({"x": np.zeros(256, np.float32)}, "float32"),
        ({"x": np.zeros((2, 200), np.float32)}, "multiples of 256"),
        ({"x": np.full((2, 256), np.nan, np.float32)}, "finite"),
        ({"importance": np.ones(255, np.float32)}, "one value a column"),
        ({"importance": np.full(256, -1, np.float32)}, "not below zero"),
        ({"importance": np.full(256, np.inf, np.float32)}, "finite"),
    ],
)
def test_what_cannot_be_is_refused(change, says):
    given = {"fmt": "Q4_K", "x": np.zeros((2, 256), np.float32)} | change
    with pytest.raises(ValueError, match=says):
        quantize(**given)
