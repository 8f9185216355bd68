"""Activation rounding of the vector kernels: the bits of the reference, whatever the inputs hold."""

import numpy as np
import pytest

from ds4ref.kernels.cpu.simd import quantize_a8, quantize_q8k
from tests.kernels import reference

RNG = np.random.default_rng(11)
NORMAL = RNG.standard_normal(8192)
INPUTS = {
    "normal": NORMAL,
    "wide": NORMAL * 10.0 ** RNG.integers(-25, 25, 8192),
    "ties": np.where(np.arange(8192) % 32, RNG.integers(-253, 254, 8192) / 2, 127),  # products that land on .5
    "both signs reach the maximum": RNG.choice([-2.0, 2.0, 0.5, -0.25], 8192),
    "zeros": np.where((np.arange(8192) >= 512) & (np.arange(8192) < 1100), 0, NORMAL),
    **{f"vanishing, {scale}": np.linspace(-1, 1, 256) * scale for scale in (1e-38, 1e-42, 1.5e-45)},
}
BAD = [[np.nan], [np.inf], [-np.inf], [-np.inf, np.inf], [np.inf, np.nan], [np.nan, 0, -np.inf]]
HARDLY = [[1e-42, -1e-45], [3.4e38, -3.4e38], [0.0, -0.0]]
for some in BAD + HARDLY:
    for rest in (0.0, 1.0):
        INPUTS[f"{some} among {rest}"] = np.r_[np.full(300, rest), some, np.full(724 - len(some), rest)]


def quantized(name, x):
    outs = [np.zeros_like(want[0]) for want in getattr(reference, name)(x[None])]
    {"quantize_a8": quantize_a8, "quantize_q8k": quantize_q8k}[name](
        x.ctypes.data, x.size, *(out.ctypes.data for out in outs)
    )
    return outs


@pytest.mark.parametrize("name", ["quantize_a8", "quantize_q8k"])
@pytest.mark.parametrize("kind", INPUTS)
def test_bit_for_bit(name, kind):
    x = INPUTS[kind].astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = getattr(reference, name)(x[None])
    found = quantized(name, x)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want[0], equal_nan=got.dtype.kind == "f")
    if not np.isfinite(x).all():
        assert np.isnan(found[1]).sum() == 1, "its block alone is marked"
