"""RoPE angles of one set of frequencies, scaled for longer contexts in one of four ways (Su et al. 2021;
docs/explanation/dense.md)."""

from __future__ import annotations

import math

import numpy as np

from ..angles import Angles
from .shape import DenseShape, Scaling, yarn_magnitude


class RopeTables(Angles):
    """cos, sin (T, head_dim / 2) of a model's RoPE angles at T positions.

    recipe    how angles are computed (``Numerics.rope``): "f32" computes frequencies and angles in float32, as Hugging
              Face does; any other value in float64, rounding only the result
    divisors  additional divisor of each frequency, float32 (head_dim / 2,), from the file's ``rope_freqs``
    theta     base; None: that of the shape
    """

    def __init__(self, shape: DenseShape, recipe: str, divisors: np.ndarray | None = None, theta: float | None = None):
        super().__init__()
        half = shape.head_dim // 2
        self.recipe = recipe
        theta = shape.rope_theta if theta is None else theta
        period = theta ** (np.arange(half) / half)
        if recipe == "f32":
            exponent = (np.arange(half, dtype=np.float32) / np.float32(half)).astype(np.float64)
            period = np.power(theta, exponent).astype(np.float32)
        freqs = (1 / period).astype(period.dtype)
        if divisors is not None:
            freqs = freqs / divisors.astype(freqs.dtype)
        self.freqs, self.magnitude = stretched(freqs, shape)

    def compute(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute cos and sin, float32 (T, head_dim / 2), of positions int (T,)."""
        angle = positions.astype(self.freqs.dtype)[:, None] * self.freqs
        cos, sin = (self.magnitude * part for part in (np.cos(angle), np.sin(angle)))
        return cos.astype(np.float32), sin.astype(np.float32)


def stretched(freqs: np.ndarray, shape: DenseShape) -> tuple[np.ndarray, float]:
    """Return frequencies (head_dim / 2,) scaled as the model's ``shape`` states, in their own dtype, and the factor
    that multiplies cos and sin.
    """
    s, kind = shape.scaling, freqs.dtype.type
    if s.kind == "none":
        return freqs, s.gain
    if s.kind == "linear":
        return freqs / kind(s.factor), s.gain
    if s.kind == "yarn":
        unscaled = kept_by_yarn(shape).astype(freqs.dtype)
        return freqs / kind(s.factor) * (1 - unscaled) + freqs * unscaled, yarn_magnitude(s.factor) * s.gain
    return as_llama3(freqs, s), s.gain


def as_llama3(freqs: np.ndarray, s: Scaling) -> np.ndarray:
    """Return frequencies (head_dim / 2,) scaled as Llama 3 does: those that make more than ``fast`` turns within the
    old context stay, those with fewer than ``slow`` turns are divided by the factor, others are interpolated."""
    kind = freqs.dtype.type
    turns = s.trained * freqs / kind(2 * math.pi)
    share = np.clip((turns - kind(s.slow)) / kind(s.fast - s.slow), 0, 1).astype(freqs.dtype)
    return (1 - share) * (freqs / kind(s.factor)) + share * freqs


def llama3_divisors(head_dim: int, theta: float, s: Scaling) -> np.ndarray:
    """Return the number by which Llama 3's scaling divides each frequency, float32 (head_dim / 2,): the contents of
    ``rope_freqs.weight`` in GGUF files."""
    freqs = theta ** -(2 * np.arange(head_dim // 2) / head_dim)
    return (freqs / as_llama3(freqs, s)).astype(np.float32)


def kept_by_yarn(shape: DenseShape) -> np.ndarray:
    """Return the weight of the unscaled frequency for each pair of channels, float64 (head_dim / 2,): 1 for high
    frequencies, 0 for low ones."""
    dim, half, s = shape.head_dim, shape.head_dim // 2, shape.scaling

    def correction(turns: float) -> float:
        return dim * math.log(s.trained / (2 * math.pi * turns)) / (2 * math.log(shape.rope_theta))

    low, high = max(math.floor(correction(s.fast)), 0), min(math.ceil(correction(s.slow)), dim - 1)
    return 1 - np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)
