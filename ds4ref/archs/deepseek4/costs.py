"""Cost of a token: bytes that must be read and operations that must be done (docs/explanation/model.md 13).

A lower bound on time, not a model of the engine: every weight byte is read once, every multiply-add is done once, both
at the machine's best rates and at the same time. Norms, softmax, Sinkhorn, sampling and thread start-up are not
counted; they are part of why a measured speed stays below the bound.

    costs = Costs.of_recipe(FLASH, "q2")
    costs.decode(8192).bound(Peaks(read_gbs=400, int8_gops=30e3, f32_gflops=14e3)).seconds
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...costs import PREFILL_CHUNK, Work, chunks
from ...errors import UsageError
from .shape import CSA
from .tensors import RECIPES, Slot, expected_tensors, slots

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import ModelShape

FLOAT_FORMATS = ("F32", "F16", "BF16", "F8_E4M3", "MXFP4")
"""Storage formats whose matrix inputs stay float instead of being rounded to int8."""


@dataclass(frozen=True)
class _Tensor:
    slot: Slot
    nbytes: int
    fmt: str
    elements: int


class Costs:
    """The cost model of one model file.

    act_quant: quantized matrices take int8 activations (numerics mode ds4).
    """

    chunk = PREFILL_CHUNK

    def __init__(self, shape: ModelShape, tensors: Iterable[_Tensor], act_quant: bool = True):
        self.shape, self.act_quant, self._all = shape, act_quant, tuple(tensors)

    @classmethod
    def of_recipe(cls, shape: ModelShape, recipe: str = "q2", act_quant: bool = True) -> Costs:
        """Return bytes and operations per token of a model of this shape in a quantization recipe; no file is needed.

        Raise UsageError for an unknown recipe.
        """
        if recipe not in RECIPES:
            raise UsageError(f"unknown recipe {recipe!r}: choose from {', '.join(RECIPES)}")
        places = {slot.name: slot for slot in slots(shape)}
        specs = expected_tensors(shape, recipe)
        tensors = [_Tensor(places[spec.name], spec.nbytes, spec.fmt, spec.elements) for spec in specs]
        return cls(shape, tensors, act_quant)

    @classmethod
    def of_file(cls, source: TensorSource, shape: ModelShape, act_quant: bool = True) -> Costs:
        """Return the costs of an open model file; raise ShapeError if its tensors do not fit ``shape``."""
        from .weights import check_tensors

        tensors = []
        for slot, info in check_tensors(source, shape):
            elements = info.nbytes // info.fmt.block_bytes * info.fmt.block_elems
            tensors.append(_Tensor(slot, info.nbytes, info.fmt.name, elements))
        return cls(shape, tensors, act_quant)

    def weight_bytes(self, depth: int | None = None) -> int:
        """Return the weight bytes that decoding one token reads.

        At a ``depth`` (tokens before) where all compressed rows fit the top k, the indexer's weights are not counted.
        """
        total = sum(t.slot.bytes_per_token(t.nbytes, self.shape) for t in self._all)
        if depth is not None and not self._selects(depth):
            total -= sum(t.nbytes for t in self._all if t.slot.part == "indexer")
        return total

    def decode(self, depth: int) -> Work:
        """Return the work of decoding one token after ``depth`` tokens."""
        quantized, f32 = self._matrix_ops(self._selects(depth), lm_head=1.0)
        nbytes = self.weight_bytes(depth) + self.shape.kv_read_bytes(depth)
        return self._work(nbytes, quantized, f32 + self._attention_ops(depth))

    def prefill(self, first: int, last: int, chunk: int | None = None) -> Work:
        """Return the work of prefilling tokens ``first`` to ``last`` in chunks (None: the session's own chunk size).

        Within a chunk a matrix is read once, and an expert if any token uses it (uniform routing is assumed).
        """
        chunk = chunk or self.chunk
        nbytes = quantized = f32 = 0.0
        for start, end in chunks(first, last, chunk):
            count, middle = end - start, (start + end) // 2
            selects = self._selects(end)
            nbytes += sum(self._chunk_bytes(t, count) for t in self._all if selects or t.slot.part != "indexer")
            nbytes += self.shape.kv_bytes(end) - self.shape.state_bytes()
            one, other = self._matrix_ops(selects, lm_head=1.0 / count if end == last else 0.0)
            quantized += count * one
            f32 += count * (other + self._attention_ops(middle))
        return self._work(nbytes, quantized, f32)

    def _work(self, nbytes: float, quantized: float, f32: float) -> Work:
        return Work(nbytes, quantized, f32) if self.act_quant else Work(nbytes, 0.0, f32, quantized)

    def _selects(self, depth: int) -> bool:
        return CSA in self.shape.ratios and depth // CSA > self.shape.index_topk

    def _chunk_bytes(self, tensor: _Tensor, count: int) -> float:
        part = tensor.slot.part
        if part in ("embedding", "hash"):
            return count * tensor.nbytes / self.shape.vocab
        if part == "experts":
            s = self.shape
            return tensor.nbytes * (1 - (1 - s.n_used / s.n_experts) ** count)
        return tensor.nbytes

    def _matrix_ops(self, selects: bool, lm_head: float) -> tuple[float, float]:
        """Return the operations of all matrices for one token: of quantized matrices, of float ones."""
        totals = {True: 0.0, False: 0.0}
        for t in self._all:
            part, share = t.slot.part, 1.0
            if part in ("embedding", "hash", "rest") or len(t.slot.dims) < 2 or t.slot.attr.endswith("_ape"):
                continue
            if part == "experts":
                share = self.shape.n_used / self.shape.n_experts
            elif part == "lm_head":
                share = lm_head
            elif part == "indexer" and not selects:
                share = 0.0
            totals[t.fmt not in FLOAT_FORMATS] += 2 * share * t.elements
        return totals[True], totals[False]

    def _attention_ops(self, depth: int) -> float:
        """Return the float32 operations of one token's attention scores, weighted values and indexer scores."""
        s = self.shape
        rows, scored = s.n_layers * min(depth, s.window), 0
        for ratio in s.ratios:
            compressed = depth // ratio if ratio else 0
            if ratio == CSA and compressed > s.index_topk:
                scored += compressed
                compressed = s.index_topk
            rows += compressed
        return 4.0 * rows * s.n_heads * s.head_dim + 2.0 * scored * s.index_heads * s.index_dim
