"""Cost of a token of a dense decoder: bytes that must be read and operations that must be done.

A lower bound on time, not a model of the engine: every weight byte is read once, every multiply-add is done once, both
at the machine's best rates and at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ds4ref.kernels.formats import FORMATS

from ...costs import PREFILL_CHUNK, Work, chunks
from .shape import DenseShape

if TYPE_CHECKING:
    from ...weights.source import TensorSource


class _Tensor(NamedTuple):
    attr: str
    nbytes: int
    fmt: str
    elements: int
    rank: int


class Costs:
    """The cost model of one model file.

    act_quant: quantized matrices with an integer kernel take int8 inputs, and caches are binary16 (numerics mode ds4).
    """

    chunk = PREFILL_CHUNK

    def __init__(self, shape: DenseShape, tensors: Iterable[_Tensor], act_quant: bool = True):
        self.shape, self.act_quant = shape, act_quant
        found = list(tensors)
        tied = not any(t.attr == "output" for t in found)
        self._read = [t if t.attr != "token_embd" else t._replace(attr="output") for t in found
                      if t.attr != "token_embd" or tied]  # fmt: skip
        self._row = next(t.nbytes for t in found if t.attr == "token_embd") // shape.vocab

    @classmethod
    def of_file(cls, source: TensorSource, shape: DenseShape, act_quant: bool = True) -> Costs:
        """Return the costs of an open model file; raise ShapeError if its tensors do not fit ``shape``."""
        from .weights import check_tensors

        return cls(
            shape,
            [
                _Tensor(slot.attr, info.nbytes, info.fmt.name, info.nbytes // info.fmt.block_bytes
                        * info.fmt.block_elems, len(info.dims))
                for slot, info in check_tensors(source, shape)
            ],
            act_quant,
        )  # fmt: skip

    def weight_bytes(self, depth: int | None = None) -> int:
        """Return the weight bytes that decoding one token reads, at any depth: all matrices, of experts those
        of one token, and one row of the embedding."""
        return sum(int(t.nbytes * self._share(t)) for t in self._read) + self._row

    def _share(self, t: _Tensor, tokens: int = 1) -> float:
        """Return the part of a tensor that ``tokens`` tokens read: of experts those that any of them takes, all being
        as likely."""
        s = self.shape
        return 1 - (1 - s.n_used / s.n_experts) ** tokens if t.attr.endswith("_exps") else 1.0

    def decode(self, depth: int) -> Work:
        """Return the work of decoding one token after ``depth`` tokens."""
        return self._work(self.weight_bytes() + self._kv(depth), self._matrix_ops(1.0), self._attention_ops(depth))

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Return the work of prefilling tokens ``first`` to ``last`` in chunks (None: the session's own chunk size).

        Within a chunk a matrix is read once.
        """
        nbytes, ops, f32 = 0.0, [0.0, 0.0, 0.0], 0.0
        for start, end in chunks(first, last, chunk or self.chunk):
            count = end - start
            nbytes += sum(t.nbytes * self._share(t, count) for t in self._read if t.attr != "output" or end == last)
            nbytes += count * self._row + self._kv(end, count)
            one = self._matrix_ops(1 / count if end == last else 0.0)
            ops = [total + count * part for total, part in zip(ops, one, strict=True)]
            f32 += count * self._attention_ops((start + end) // 2)
        return self._work(nbytes, (ops[0], ops[1], ops[2]), f32)

    def _kv(self, depth: int, tokens: int = 1) -> int:
        """Return the cache bytes that ``tokens`` tokens up to ``depth`` read, a row once for all of them."""
        s = self.shape
        rows = sum(min(depth, (s.window_of(layer) or depth) + tokens - 1) for layer in range(s.n_layers))
        return 2 * s.kv_width * rows * (2 if self.act_quant else 4)

    def _work(self, nbytes: float, ops: tuple[float, float, float], f32: float) -> Work:
        return Work(nbytes, ops[0], f32 + ops[2], ops[1])

    def _matrix_ops(self, head: float) -> tuple[float, float, float]:
        """Return one token's matrix operations: int8 inputs, quantized weights with float inputs, and float weights."""
        int8 = mixed = f32 = 0.0
        for t in self._read:
            if t.rank < 2:
                continue
            ops = 2.0 * t.elements * (head if t.attr == "output" else self._share(t))
            if t.fmt in ("F32", "F16", "BF16"):
                f32 += ops
            elif self.act_quant and FORMATS[t.fmt].activation != "float":
                int8 += ops
            else:
                mixed += ops
        return int8, mixed, f32

    def _attention_ops(self, depth: int) -> float:
        """Return the operations of one token's attention scores and weighted values."""
        s = self.shape
        return 4.0 * s.rows_read(depth) * s.n_heads * s.head_dim
