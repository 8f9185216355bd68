"""Lower bounds on the engine's time: bytes to read and operations to do, divided by a machine's peak rates.

Each architecture counts the bytes and operations of its own tokens (``archs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

PREFILL_CHUNK = 512
"""Default number of tokens per prefill chunk, for backends that set none; chunks end at absolute multiples of it."""


def prefill_chunk(ops: Any) -> int:
    """Return the default number of tokens per prefill chunk of the backend ``ops``."""
    return int(getattr(ops, "prefill_chunk", PREFILL_CHUNK))


LIMBS = 3
"""Number of int8 passes that emulate one product of quantized weights with float activations."""


@dataclass(frozen=True)
class Peaks:
    """Peak rates of a machine.

    read_gbs     GB/s (1e9) of memory reads
    int8_gops    1e9 operations/s of int8 dot products (a multiply-add counts as two)
    f32_gflops   1e9 operations/s of float32 dot products (a multiply-add counts as two)
    """

    read_gbs: float
    int8_gops: float
    f32_gflops: float


@dataclass(frozen=True)
class Bound:
    """A lower bound on time, and the resource that sets it (``binds``): "bytes" or "arithmetic"."""

    seconds: float
    binds: str


@dataclass(frozen=True)
class Work:
    """Bytes to read, and operations by kind of arithmetic (a multiply-add counts as two).

    int8_ops     quantized weights with int8 activations
    f32_ops      float32 weights and activations
    mixed_ops    quantized weights with float activations: in float32, or as three int8 passes over 24-bit activations
    """

    bytes: float
    int8_ops: float
    f32_ops: float
    mixed_ops: float = 0.0

    @property
    def ops(self) -> float:
        """Return the number of operations of all kinds."""
        return self.int8_ops + self.f32_ops + self.mixed_ops

    def bound(self, peaks: Peaks) -> Bound:
        """Return the lower bound on time, assuming that reading and computing overlap perfectly."""
        reading = self.bytes / (1e9 * peaks.read_gbs)
        mixed = max(peaks.f32_gflops, peaks.int8_gops / LIMBS)
        rates = (self.int8_ops, peaks.int8_gops), (self.f32_ops, peaks.f32_gflops), (self.mixed_ops, mixed)
        computing = sum(ops / (1e9 * rate) for ops, rate in rates)
        return Bound(max(reading, computing), "bytes" if reading >= computing else "arithmetic")


class Costs(Protocol):
    """Interface of an architecture's cost model: how many bytes and operations its tokens take."""

    shape: Any
    chunk: int
    """The session's chunk size."""

    def weight_bytes(self, depth: int | None = None) -> int:
        """Return the weight bytes read to decode one token after ``depth`` tokens (None: the largest value)."""

    def decode(self, depth: int) -> Work:
        """Return the work of decoding one token after ``depth`` tokens."""

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Return the work of prefilling tokens ``first`` to ``last`` in chunks (default: the session's chunk size)."""


def chunks(first: int, last: int, size: int) -> Iterable[tuple[int, int]]:
    """Yield the ranges (first, end) of the chunks of [first, last) that end at absolute multiples of ``size``, as a
    session's chunks do."""
    while first < last:
        end = min(last, (first // size + 1) * size)
        yield first, end
        first = end
