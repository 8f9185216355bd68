"""What work costs at least: bytes and operations against a machine's best rates.

How many of them a token takes, each architecture counts for itself (``archs``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .engine import Engine
    from .weights.source import TensorSource

LIMBS = 3
"""Passes of int8 products that make one of float activations."""


@dataclass(frozen=True)
class Peaks:
    """What a machine can do at best.

    read_gbs     GB/s (1e9) of memory reads
    int8_gops    1e9 operations/s of int8 dot products (a multiply-add is two)
    f32_gflops   the same in float32
    """

    read_gbs: float
    int8_gops: float
    f32_gflops: float


@dataclass(frozen=True)
class Bound:
    """The least time, and what it is spent on: "bytes" or "arithmetic"."""

    seconds: float
    binds: str


@dataclass(frozen=True)
class Work:
    """Bytes to read, and operations by the kind of arithmetic they need.

    mixed_ops    quantized weights with float activations: in float32, or as three int8 passes over 24-bit activations
    """

    bytes: float
    int8_ops: float
    f32_ops: float
    mixed_ops: float = 0.0

    @property
    def ops(self) -> float:
        """All of them."""
        return self.int8_ops + self.f32_ops + self.mixed_ops

    def bound(self, peaks: Peaks) -> Bound:
        """Reading and computing overlap perfectly; the longer one counts."""
        reading = self.bytes / (1e9 * peaks.read_gbs)
        mixed = max(peaks.f32_gflops, peaks.int8_gops / LIMBS)
        rates = (self.int8_ops, peaks.int8_gops), (self.f32_ops, peaks.f32_gflops), (self.mixed_ops, mixed)
        computing = sum(ops / (1e9 * rate) for ops, rate in rates)
        return Bound(max(reading, computing), "bytes" if reading >= computing else "arithmetic")


class Costs(Protocol):
    """What the tokens of a model cost, whatever its architecture."""

    shape: Any

    def weight_bytes(self, depth: int | None = None) -> int:
        """Weights that decoding one token reads, at a depth if that matters."""

    def decode(self, depth: int) -> Work:
        """One token after ``depth`` tokens."""

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Tokens ``first`` to ``last`` in chunks (None: the session's own size)."""


def costs_of(source: TensorSource, act_quant: bool = True) -> Costs:
    """The costs of a model file as its architecture counts them; ``act_quant``: quantized matrices take int8 inputs.
    ModelFileError, ShapeError."""
    from .archs import arch_of

    arch = arch_of(source)
    costs: Costs = arch.costs(source, arch.read_shape(source), act_quant)
    return costs


def costs_of_engine(engine: Engine) -> Costs:
    """Those of a running engine: its file, its numerics mode."""
    return costs_of(engine.source, engine.model.numerics.act_quant)


def prefill_chunk() -> int:
    """Tokens that a session takes through the layers at a time."""
    from .session.session import PREFILL_CHUNK

    return PREFILL_CHUNK


def chunks(first: int, last: int, size: int) -> Iterable[tuple[int, int]]:
    """Pieces that end at absolute multiples of ``size``, as a session cuts them."""
    while first < last:
        end = min(last, (first // size + 1) * size)
        yield first, end
        first = end
