"""Cost of a token: bytes that must be read and operations that must be done (docs/explanation/model.md 13).

They give a lower bound on time, not a prediction: every weight byte is read once and every multiply-add is done once,
both at the machine's best rates and at the same time. Norms, softmax, Sinkhorn iterations, sampling and thread start-up
are not counted; they are part of why a measured speed stays below the bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ds4ref.kernels.formats import FORMATS

from ..costs import PREFILL_CHUNK, Work, chunks
from .binding import Slot

if TYPE_CHECKING:
    from ..weights.source import TensorInfo

FLOAT_FORMATS = ("F32", "F16", "BF16", "F8_E4M3", "F8_E4M3_32", "MXFP4")
"""Storage formats whose matrix inputs stay float instead of being rounded to int8."""

TABLES = ("embedding", "hash", "lookup")
"""Components of which a token reads single rows and multiplies none."""


class Stored(NamedTuple):
    """A tensor of a model file, with what costs depend on: slot, bytes, storage format, number of elements."""

    slot: Slot
    nbytes: int
    fmt: str
    elements: int


class Costs:
    """The cost model of one model file.

    act_quant: whether inputs of quantized matrices are rounded to int8 (numerics mode ds4).
    shape: dimensions of the model, with methods for the cost of its caches: ``kv_read_bytes``, ``kv_chunk_bytes``,
    ``attention_ops`` and, with an indexer, ``selects``.
    """

    chunk = PREFILL_CHUNK
    halved = False
    """Whether cached values are counted as float16 with ``act_quant``."""

    def __init__(self, shape: Any, tensors: Iterable[Stored], act_quant: bool = True):
        self.shape, self.act_quant, self._all = shape, act_quant, list(tensors)
        self._itemsize = 2 if self.halved and act_quant else 4
        if not any(t.slot.part == "lm_head" for t in self._all):  # the embedding is also the output matrix
            (tied,) = (t for t in self._all if t.slot.part == "embedding")
            self._all.append(tied._replace(slot=tied.slot.counted("lm_head")))

    @classmethod
    def of_tensors(cls, filled: list[tuple[Slot, TensorInfo]], shape: Any, act_quant: bool) -> Self:
        """Return the costs of a model file, given its tensors with their slots."""
        tensors = [Stored(slot, info.nbytes, info.fmt.name, prod(info.dims)) for slot, info in filled]
        return cls(shape, tensors, act_quant)

    def weight_bytes(self, depth: int | None = None) -> int:
        """Return the weight bytes that decoding one token reads.

        depth: number of tokens before it; while these are too few for the indexer to select, its weights are not
        counted. None: count all weights.
        """
        read = (t for t in self._all if depth is None or self._used(t, depth))
        return sum(t.slot.bytes_per_token(t.nbytes, self.shape) for t in read)

    def decode(self, depth: int) -> Work:
        """Return the work of decoding one token after ``depth`` tokens."""
        int8, f32, mixed = self._matrix_ops(depth, 1.0)
        nbytes = self.weight_bytes(depth) + self.shape.kv_read_bytes(depth, self._itemsize)
        return Work(nbytes, int8, f32 + self.shape.attention_ops(depth), mixed)

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Return the work of prefilling tokens ``first`` to ``last`` in chunks of ``chunk`` tokens (None: the session's
        own chunk size).

        Each matrix is read once per chunk; an expert only if a token of the chunk uses it, assuming that all experts
        are equally likely; the output matrix only in the last chunk.
        """
        nbytes = int8 = f32 = mixed = 0.0
        for start, end in chunks(first, last, chunk or self.chunk):
            count, head = end - start, 1 / (end - start) if end == last else 0.0
            read = (t for t in self._all if self._used(t, end) and (head or t.slot.part != "lm_head"))
            nbytes += sum(self._chunk_bytes(t, count) for t in read)
            nbytes += self.shape.kv_chunk_bytes(end, count, self._itemsize)
            ops = self._matrix_ops(end, head)
            int8, mixed = int8 + count * ops[0], mixed + count * ops[2]
            f32 += count * (ops[1] + self.shape.attention_ops((start + end) // 2))
        return Work(nbytes, int8, f32, mixed)

    def _used(self, t: Stored, depth: int) -> bool:
        return t.slot.part != "indexer" or self.shape.selects(depth)

    def _chunk_bytes(self, t: Stored, count: int) -> float:
        if t.slot.part in TABLES:
            return count * t.slot.bytes_per_token(t.nbytes, self.shape)
        if t.slot.part == "experts":
            return t.nbytes * (1 - (1 - self.shape.n_used / self.shape.n_experts) ** count)
        return t.nbytes

    def _matrix_ops(self, depth: int, head: float) -> tuple[float, float, float]:
        """Return the number of matrix operations of one token after ``depth`` tokens: int8, float32, and quantized
        weights with float inputs; ``head``: share of the output matrix's operations to count."""
        int8 = f32 = mixed = 0.0
        for t in self._all:
            part, share = t.slot.part, 1.0
            if part in (*TABLES, "rest") or len(t.slot.dims) < 2 or t.slot.attr.endswith("_ape"):
                continue
            if part == "experts":
                share = self.shape.n_used / self.shape.n_experts
            elif part == "lm_head":
                share = head
            ops = 2 * share * t.elements * self._used(t, depth)
            if t.fmt in FLOAT_FORMATS:
                f32 += ops
            elif self.act_quant and FORMATS[t.fmt].activation != "float":
                int8 += ops
            else:
                mixed += ops
        return int8, f32, mixed
