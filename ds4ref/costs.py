"""Lower bounds on time: bytes and operations against a machine's peak rates.

How many of them a token takes, each architecture counts for itself (``archs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

PREFILL_CHUNK = 512
"""Default tokens per prefill chunk; boundaries fall on absolute multiples of it."""

LIMBS = 3
"""Passes of int8 products that emulate one product with float activations."""


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a machine.

    read_gbs     GB/s (1e9) of memory reads
    int8_gops    1e9 operations/s of int8 dot products (a multiply-add is two)
    f32_gflops   the same in float32
    """

    read_gbs: float
    int8_gops: float
    f32_gflops: float


@dataclass(frozen=True)
class Bound:
    """A lower bound on time, and its bottleneck: "bytes" or "arithmetic"."""

    seconds: float
    binds: str


@dataclass(frozen=True)
class Work:
    """Bytes to read, and operations by kind of arithmetic.

    mixed_ops    quantized weights with float activations: in float32, or as three int8 passes over 24-bit activations
    """

    bytes: float
    int8_ops: float
    f32_ops: float
    mixed_ops: float = 0.0

    @property
    def ops(self) -> float:
        """All operations."""
        return self.int8_ops + self.f32_ops + self.mixed_ops

    def bound(self, peaks: Peaks) -> Bound:
        """Return the time bound, assuming that reading and computing overlap perfectly."""
        reading = self.bytes / (1e9 * peaks.read_gbs)
        mixed = max(peaks.f32_gflops, peaks.int8_gops / LIMBS)
        rates = (self.int8_ops, peaks.int8_gops), (self.f32_ops, peaks.f32_gflops), (self.mixed_ops, mixed)
        computing = sum(ops / (1e9 * rate) for ops, rate in rates)
        return Bound(max(reading, computing), "bytes" if reading >= computing else "arithmetic")


class Costs(Protocol):
    """Costs of a model's tokens, for any architecture."""

    shape: Any

    def weight_bytes(self, depth: int | None = None) -> int:
        """Return the bytes of weights read to decode one token, at a depth if it matters."""

    def decode(self, depth: int) -> Work:
        """Return the work of one token after ``depth`` tokens."""

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Return the work of tokens ``first`` to ``last`` in chunks (default: the session's chunk size)."""


def chunks(first: int, last: int, size: int) -> Iterable[tuple[int, int]]:
    """Yield ranges that end at absolute multiples of ``size``, like a session's chunks."""
    while first < last:
        end = min(last, (first // size + 1) * size)
        yield first, end
        first = end
