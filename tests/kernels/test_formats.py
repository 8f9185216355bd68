"""Dequantizers against gguf-py, bit for bit, on random bytes and on hostile scales; sizes against its whole table.

The kinds of F8_E4M3, which gguf-py does not have, are decoded here number by number from the definition of its parts.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache

import numpy as np
import pytest

from ds4ref.kernels.formats import BY_ID, FORMATS
from ds4ref.kernels.formats.codebooks import GRID, SIGNS

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")

DECODED = [name for name, fmt in FORMATS.items() if fmt.decodes]
BLOCKED = [name for name in DECODED if FORMATS[name].block_elems > 1]
SCALED = [name for name in BLOCKED if FORMATS[name].scale_fields]
"""Blocks whose scales are IEEE numbers."""


def oracle(raw: np.ndarray, name: str) -> np.ndarray:
    if name in ("I32", "I64"):
        return raw.view(np.int32 if name == "I32" else np.int64).astype(np.float32)
    if name.startswith("F8_E4M3"):
        rows = raw.reshape(-1, FORMATS[name].block_bytes).tolist()
        if name == "F8_E4M3_ROW264":
            values = [[e8m0(row[256 + i // 32]) * e4m3(row[i]) for i in range(256)] for row in rows]
        else:
            values = [[e8m0(row[0]) * e4m3(code) for code in row[1:]] for row in rows]
        with np.errstate(over="ignore"):
            return np.array(values).astype(np.float32)
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, gguf.GGMLQuantizationType[name])


@lru_cache(maxsize=256)
def e4m3(code: int) -> float:
    """OCP E4M3: bias 7, no infinities, NaN where exponent and fraction are all ones."""
    sign, exponent, fraction = (-1.0 if code >= 128 else 1.0), (int(code) >> 3) % 16, int(code) % 8
    if (exponent, fraction) == (15, 7):
        return math.nan
    return sign * (2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8)


@lru_cache(maxsize=256)
def e8m0(code: int) -> float:
    return math.nan if code == 255 else 2.0 ** (int(code) - 127)


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bit patterns, except that any NaN equals any NaN."""
    assert got.dtype == np.float32 and got.shape == want.shape
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def random_blocks(name: str, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, FORMATS[name].block_bytes), dtype=np.uint8)


def test_sizes_are_those_of_gguf_py():
    ours = {fmt.ggml_id: (fmt.name, fmt.block_elems, fmt.block_bytes) for fmt in FORMATS.values()}
    theirs = {int(t): (t.name, *size) for t, size in gguf.constants.GGML_QUANT_SIZES.items()}
    common = ours.keys() & theirs.keys()  # neither an older nor a newer gguf-py is a failure
    assert len(common) >= 30
    assert {i: ours[i] for i in common} == {i: theirs[i] for i in common}
    numbers = {name: number for number, (name, *_) in theirs.items()}
    assert all(fmt.ggml_id == numbers[name] for name, fmt in FORMATS.items() if name in numbers)
    own = {name for name, fmt in FORMATS.items() if fmt.ggml_id < 0}
    assert own and not own & numbers.keys()  # formats of our own have no number that a file could name
    assert len(BY_ID) + len(own) == len(ours) == len(FORMATS)  # no two share a name or a number
    assert all(fmt.name == name for name, fmt in FORMATS.items())
    assert all(BY_ID[fmt.ggml_id] is fmt for name, fmt in FORMATS.items() if name not in own)


@pytest.mark.parametrize("name", DECODED)
def test_random_bytes(name):
    """Any bit pattern decodes; about one scale in 32 is infinite or NaN, and some are subnormal."""
    raw = random_blocks(name, 3000, seed=1)
    assert_same_bits(FORMATS[name].dequantize(raw), oracle(raw, name))


@pytest.mark.parametrize("name", SCALED)
def test_hostile_scales(name):
    for scale in (0.0, -0.0, 6e-8, -5.9e-5, 1.0, 65504.0, np.inf, -np.inf, np.nan):
        raw = random_blocks(name, 64, seed=2)
        for field in FORMATS[name].scale_fields:
            raw.reshape(-1).view(FORMATS[name].layout)[field] = scale
        got = FORMATS[name].dequantize(raw)
        assert_same_bits(got, oracle(raw, name))
        assert np.isfinite(got).all() == bool(np.isfinite(scale)), scale


@pytest.mark.parametrize("name", DECODED)
def test_shapes_and_read_only_views(name):
    fmt = FORMATS[name]
    for lead in ((1,), (7,), (3, 5), (2, 3, 2)):
        raw = random_blocks(name, int(np.prod(lead)) * 3, seed=3).reshape(*lead, 3 * fmt.block_bytes)
        raw.flags.writeable = False
        got = fmt.dequantize(raw)
        assert got.shape == (*lead, 3 * fmt.block_elems)
        assert_same_bits(got, oracle(raw, name).reshape(got.shape))


def test_codebook_and_signs_are_the_published_tables():
    quants.IQ2_XXS.init_grid()
    np.testing.assert_array_equal(GRID, quants.IQ2_XXS.grid[0, 0])
    published = np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)
    np.testing.assert_array_equal(SIGNS < 0, (published[:, None] >> np.arange(8)) & 1)
    assert (np.prod(SIGNS, axis=1) == 1).all()


@pytest.mark.parametrize("name", BLOCKED)
def test_ragged_rows_are_refused(name):
    fmt = FORMATS[name]
    with pytest.raises(ValueError, match=name):
        fmt.dequantize(np.zeros(fmt.block_bytes + 1, np.uint8))
    with pytest.raises(ValueError, match="multiples"):
        fmt.row_bytes(fmt.block_elems + 1)
    with pytest.raises(ValueError, match="multiples"):
        fmt.row_bytes(0)
    assert fmt.row_bytes(3 * fmt.block_elems) == 3 * fmt.block_bytes


@pytest.mark.parametrize("name", [*SCALED, "F32", "F16", "BF16"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_non_finite_scales_are_found(name, scale):
    """The scan agrees with decoding: it names the first block whose weights are not all finite."""
    fmt = FORMATS[name]
    raw = np.zeros((40, fmt.block_bytes), np.uint8)
    records = raw.reshape(-1).view(fmt.layout)
    assert fmt.first_non_finite(raw.reshape(-1)) is None
    for field in fmt.scale_fields or (None,):
        records[:] = np.zeros(1, fmt.layout)[0]
        target = records if field is None else records[field]
        value = np.float32(scale).view(np.uint32) >> 16 if name == "BF16" else scale
        target[17] = target[31] = value
        assert fmt.first_non_finite(raw.reshape(-1)) == 17
        assert not np.isfinite(fmt.dequantize(raw)[31]).all()


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E4M3_32", "MXFP4"])
def test_a_scale_that_is_a_byte_is_found_in_a_later_step(name, monkeypatch):
    fmt = FORMATS[name]
    monkeypatch.setattr(sys.modules[type(fmt).__module__], "_STEP", 4 * fmt.block_elems)
    raw = np.zeros((20, fmt.block_bytes), np.uint8)
    raw[[11, 18]] = 255
    assert fmt.first_non_finite(raw.reshape(-1)) == 11


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E4M3_32", "MXFP4"])
def test_every_code_under_every_scale_that_is_a_byte(name):
    fmt = FORMATS[name]
    raw = np.zeros((256, 256, fmt.block_bytes), np.uint8)
    raw[:, :, 0] = np.arange(256)[:, None]
    raw[:, :, 1] = np.arange(256)
    raw = raw.reshape(-1, fmt.block_bytes)
    got = fmt.dequantize(raw)
    assert_same_bits(got, oracle(raw, name))
    finite = np.isfinite(got).all(axis=1)
    assert fmt.first_non_finite(raw[finite].reshape(-1)) is None
    for bad in np.flatnonzero(~finite)[::97]:
        assert fmt.first_non_finite(np.concatenate([raw[finite][:5], raw[bad : bad + 1]]).reshape(-1)) == 5
    assert 0 < (~finite).sum() < len(raw)
