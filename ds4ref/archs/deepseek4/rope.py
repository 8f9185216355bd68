"""RoPE angles: two sets of frequencies, and three ways to compute the angles, which round differently
(docs/explanation/model.md 5)."""

from __future__ import annotations

import math

import numpy as np

from ..angles import Angles
from .shape import ModelShape


class RopeTables(Angles):
    """cos and sin of the RoPE angles of one set of frequencies, for R rotated channels (R / 2 pairs).

    compress=False: theta 10000, no scaling (layers without compression).
    compress=True: theta 160000 with YaRN: high frequencies stay, low ones are divided by the factor, those between are
    interpolated. Neither scales cos and sin themselves.
    recipe: how angles are computed (``Numerics.rope``): "f64", "f32" as Hugging Face, or else as ds4.
    """

    def __init__(self, shape: ModelShape, compress: bool, recipe: str):
        super().__init__()
        half = shape.rope_dim // 2
        theta = shape.compress_theta if compress else shape.rope_theta
        self.recipe = recipe
        self.ramp, self.factor = np.ones(half), 1.0
        if compress:
            self.ramp, self.factor = yarn_ramp(shape), shape.yarn_factor
        base = theta ** (-np.arange(half) / half)
        self.freqs = base / self.factor * (1 - self.ramp) + base * self.ramp
        self.freqs32 = float32_freqs(theta, self.factor, self.ramp)
        self.step = np.float32(theta) ** np.float32(-1 / half)

    def compute(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute cos and sin, float32 (T, R/2), of positions int (T,)."""
        if self.recipe == "f64":
            angle = positions.astype(np.float64)[:, None] * self.freqs
        elif self.recipe == "f32":
            angle = positions.astype(np.float32)[:, None] * self.freqs32
        else:
            # as ds4: each pair's float32 angle is the previous pair's times a constant, so rounding errors add up
            angle = np.empty((len(positions), len(self.freqs)), np.float32)
            angle[:, 0] = positions
            for i in range(1, angle.shape[1]):
                angle[:, i] = angle[:, i - 1] * self.step
            if self.factor != 1.0:
                ramp = self.ramp.astype(np.float32)
                low = np.float32(1 / self.factor) * angle
                angle = low * (1 - ramp) + angle * ramp
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def float32_freqs(theta: float, factor: float, ramp: np.ndarray) -> np.ndarray:
    """Return frequencies (R/2,) computed by the same float32 steps as Hugging Face.

    Rounding accurate frequencies to float32 instead gives a different last bit in a third of them, which a float32
    angle turns into an error of 3e-5 rad at position 700, 8e-3 rad at 100000.
    """
    half = len(ramp)
    exponent = np.arange(half, dtype=np.float32) / np.float32(half)
    period = np.power(theta, exponent.astype(np.float64)).astype(np.float32)
    fast, slow = np.float32(1) / period, np.float32(1) / (np.float32(factor) * period)
    share = np.float32(1) - (1 - ramp).astype(np.float32)
    return slow * (np.float32(1) - share) + fast * share


def yarn_ramp(shape: ModelShape) -> np.ndarray:
    """Return the weight of the unscaled frequency for each pair of channels, float64 (R/2,): 1 for high frequencies, 0
    for low ones."""
    dim, half = shape.rope_dim, shape.rope_dim // 2

    def correction(beta: float) -> float:
        return dim * math.log(shape.yarn_orig_ctx / (2 * math.pi * beta)) / (2 * math.log(shape.compress_theta))

    low = max(math.floor(correction(shape.yarn_beta_fast)), 0)
    high = min(math.ceil(correction(shape.yarn_beta_slow)), dim - 1)
    return 1 - np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)
