"""Random tensor contents with a chosen standard deviation, in every storage format of the recipes.

Quantized blocks are random bits with a chosen block scale: any bit pattern is valid, and the spread of its values is
known for each format. Only raw words of the generator, integers and single IEEE operations are used, so the bytes are
the same on every machine. Data comes in pieces of a few megabytes, whatever the size of the tensor.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ..weights.container import TensorSpec

PIECE_BYTES = 4 << 20

# _RMS: root mean square of a weight in a block of random bits, for a block scale ``d`` of 1. _DMIN: the ratio of
# ``dmin`` to ``d`` that makes the mean 0. Both are measured by tests/nano/test_fill.py.
_RMS = {"Q8_0": 73.9, "IQ2_XXS": 53.4, "Q2_K": 13.85, "Q4_K": 259.0}
_DMIN = {"Q2_K": 1.5, "Q4_K": 7.5}

# Relative block scales, with mean square 1: blocks have different scales, as in real files.
_STEPS = np.linspace(0.8, 1.2, 16)
_STEPS = _STEPS / np.sqrt(np.mean(_STEPS**2))

# The sum of four random bytes is bell-shaped with this mean and standard deviation.
_SUM_MEAN, _SUM_STD = 510, 147.79


class Noise:
    """The random numbers for one tensor; they depend on ``seed`` and the tensor's name only."""

    def __init__(self, seed: int, name: str):
        self._generator = np.random.PCG64([seed, zlib.crc32(name.encode())])

    def words(self, count: int) -> np.ndarray:
        """Return random words, uint64 (count,)."""
        return self._generator.random_raw(count)

    def bytes(self, count: int) -> np.ndarray:
        """Return random bytes, uint8 (count,)."""
        return self.words(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]

    def bell(self, count: int) -> np.ndarray:
        """Return roughly normally distributed values, float32 (count,), of mean 0 and standard deviation 1, all within
        +-3.5."""
        x = self.bytes(4 * count).view("<u4")
        total = (x & 0xFF) + (x >> 8 & 0xFF) + (x >> 16 & 0xFF) + (x >> 24)
        return (total.astype(np.int32) - _SUM_MEAN).astype(np.float32) * np.float32(1 / _SUM_STD)


def random_tensor(spec: TensorSpec, noise: Noise, std: float, mean: float = 0.0) -> Iterator[np.ndarray]:
    """Yield the bytes of a tensor of random values in pieces; ``spec``: its name, format and dimensions; ``std`` and
    ``mean`` of the values. Quantized formats always have mean 0.

    Raise ValueError for a format that cannot be generated.
    """
    fmt = FORMATS[spec.fmt]
    step = max(1, PIECE_BYTES // fmt.block_bytes)
    blocks = spec.nbytes // fmt.block_bytes
    for start in range(0, blocks, step):
        count = min(step, blocks - start)
        if spec.fmt in ("F32", "F16"):
            values = noise.bell(count) * np.float32(std) + np.float32(mean)
            yield values.astype("<f4" if spec.fmt == "F32" else "<f2").view(np.uint8)
        elif spec.fmt in _RMS:
            yield _random_blocks(spec.fmt, noise, count, std)
        else:
            raise ValueError(f"no recipe for random {spec.fmt} blocks")


def _random_blocks(fmt: str, noise: Noise, count: int, std: float) -> np.ndarray:
    layout = FORMATS[fmt].layout
    assert layout is not None
    raw = noise.bytes(count * layout.itemsize).copy()
    blocks = raw.view(layout)
    scales = (_STEPS * (std / _RMS[fmt])).astype("<f2")[blocks["d"].view("<u2") & 15]
    blocks["d"] = scales
    if fmt in _DMIN:
        blocks["dmin"] = (scales.astype(np.float32) * np.float32(_DMIN[fmt])).astype("<f2")
    if fmt == "Q8_0":
        np.maximum(blocks["q"], -127, out=blocks["q"])  # quantizers never produce -128
    return raw


def random_experts(tokens: int, used: int, experts: int, noise: Noise) -> Iterator[np.ndarray]:
    """Yield a hash routing table in pieces, int32 (tokens, used): for every token id, ``used`` distinct experts out of
    ``experts``."""
    step = max(1, PIECE_BYTES // (8 * experts))
    for start in range(0, tokens, step):
        count = min(step, tokens - start)
        keys = noise.words(count * experts).reshape(count, experts)
        # the order that sorts random keys is a random permutation; its first elements are distinct random experts
        yield np.ascontiguousarray(np.argsort(keys, axis=1, kind="stable")[:, :used]).astype("<i4")
