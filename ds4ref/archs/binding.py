"""Binding, shared by all families: how the tensors of a model file become the weights that the forward pass uses.

A family lists the tensors that it expects as ``Slot``s; binding finds and checks the tensor of each slot, and
``placed`` moves the weights to the backend's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.formats import Matrix

from ..errors import ModelFileError
from ..weights.cursor import quote
from ..weights.source import matrix_rows

if TYPE_CHECKING:
    from ds4ref.kernels.ops import Backend

    from ..weights.source import TensorInfo, TensorSource

VERIFY_BYTES = 64 << 20
"""Files with at most this many bytes of tensors are scanned for NaN and infinity in all matrices by default."""

VECTORS = ("_ape", "_norm")
"""Ends of the names of tensors that are no matrices, though they may have two axes."""


@dataclass(frozen=True)
class Slot:
    """Describes one tensor that a model file should contain.

    name      tensor name in the file
    attr      attribute of the family's ``Weights``, or ``LayerWeights``, that will hold it
    dims      dimensions in ggml order, the contiguous one first
    fmts      storage formats that the engine accepts for it
    part      component of the model under which reports count its bytes, such as "experts" or "lm_head"
    layer     layer number, None for tensors outside the layers
    optional  whether a file may lack it
    """

    name: str
    attr: str
    dims: tuple[int, ...]
    fmts: tuple[str, ...]
    part: str
    layer: int | None = None
    optional: bool = False

    def counted(self, part: str) -> Slot:
        """Return a copy of the slot whose bytes are counted under the component ``part``."""
        return replace(self, part=part)

    def bytes_per_token(self, nbytes: int, shape: Any) -> int:
        """Return the bytes of this tensor, ``nbytes`` in all, that decoding one token reads (model.md 13)."""
        if self.part == "experts":
            return nbytes // shape.n_experts * shape.n_used
        if self.part in ("embedding", "hash"):
            return nbytes // shape.vocab
        if self.part == "lookup":
            return nbytes // self.dims[1] * shape.engram_columns
        return nbytes


def fill_slots(source: TensorSource, wanted: Iterable[Slot]) -> tuple[list[tuple[Slot, TensorInfo]], list[str]]:
    """Return each of the ``wanted`` slots that has a tensor in the file, with this tensor, and one sentence for each
    tensor that is missing or wrong. No tensor data is read."""
    filled, problems = [], []
    for slot in wanted:
        info = source.tensors.get(slot.name)
        if info is None:
            if not slot.optional:
                problems.append(f"{slot.name} is missing")
            continue
        if info.dims != slot.dims:
            problems.append(f"{slot.name} has dims {list(info.dims)}, wanted {list(slot.dims)}")
        elif info.fmt.name not in slot.fmts:
            known = " or ".join(slot.fmts) if len(slot.fmts) < 4 else "a format that matrix products support"
            problems.append(f"{slot.name} is {info.fmt.name}, wanted {known}")
        filled.append((slot, info))
    return filled, problems


def of_part(wanted: Iterable[Slot], shape: Any, layers: range) -> list[Slot]:
    """Return those of a model's slots that consecutive ``layers`` need; the embedding goes with the first layer of the
    model, the output head with the last."""
    edges = {"token_embd": 0 in layers}
    last = shape.n_layers - 1 in layers
    return [s for s in wanted if (edges.get(s.attr, last) if s.layer is None else s.layer in layers)]


def read_slots(
    source: TensorSource, filled: list[tuple[Slot, TensorInfo]], verify: bool | None = None
) -> Iterator[tuple[Slot, TensorInfo, Matrix | np.ndarray]]:
    """Yield every filled slot with its tensor and its weights: matrices as views of the file, vectors and position
    biases (``VECTORS``) as float32 arrays, hash routing tables as int32 arrays.

    verify  scan all tensors for NaN and infinity first; None: only if they have at most ``VERIFY_BYTES``
    """
    if verify or (verify is None and sum(info.nbytes for _, info in filled) <= VERIFY_BYTES):
        for _, info in filled:
            verify_finite(source, info)
    for slot, info in filled:
        if slot.part == "hash":
            yield slot, info, source.raw(info.name).view("<i4").reshape(info.shape)
        elif len(info.dims) > 1 and not slot.attr.endswith(VECTORS):
            yield slot, info, matrix(source, info)
        else:
            yield slot, info, values(source, info)


def fields_of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance of the dataclass ``kind`` with fields from ``values``, None for fields that it lacks."""
    return kind(**{field.name: values.get(field.name) for field in fields(kind)})


def matrix(source: TensorSource, info: TensorInfo) -> Matrix:
    """Return a tensor as a ``Matrix`` view of the file: one matrix, or one for each expert if it has three axes."""
    return Matrix(info.fmt.name, matrix_rows(source, info), info.dims[1], info.dims[0])


def verify_finite(source: TensorSource, info: TensorInfo) -> None:
    """Raise ModelFileError if a value of a tensor, or a block scale of a quantized one, is NaN or infinite."""
    bad = info.fmt.first_non_finite(source.raw(info.name))
    if bad is not None:
        kind = "value" if info.fmt.block_elems == 1 else "scale"
        where = info.offset + bad * info.fmt.block_bytes
        raise ModelFileError(source.path, f"tensor {quote(info.name)} holds a NaN or infinite {kind}", where)


def values(source: TensorSource, info: TensorInfo) -> np.ndarray:
    """Return a tensor's values as float32, for F32 a view of the file; raise ModelFileError for NaN and infinity."""
    verify_finite(source, info)
    raw = source.raw(info.name)
    return (raw.view("<f4") if info.fmt.name == "F32" else info.fmt.dequantize(raw)).reshape(info.shape)


def placed(weights: Any, ops: Backend, on_host: tuple[str, ...] = ()) -> Any:
    """Return the weights of a model moved to the memory of the backend ``ops``.

    A matrix that is used twice is moved once; weights named in ``on_host`` are not moved. A backend with its own memory
    first gets the total size (``ops.prepare``).
    """
    parts = [weights, *weights.layers]
    matrices = {
        id(w): w for part in parts for name, w in vars(part).items() if isinstance(w, Matrix) and name not in on_host
    }
    if hasattr(ops, "prepare"):
        size = getattr(ops, "placed_bytes", lambda w: w.nbytes)
        sizes = [(size(w), bool(w.experts)) for w in matrices.values()]
        ops.prepare(sum(n for n, _ in sizes), sum(n for n, routed in sizes if routed))
    known: dict[int, Any] = {}
    moved = [placed_values({k: v for k, v in vars(part).items() if k not in on_host}, ops, known) for part in parts]
    layers = [replace(part, **fields) for part, fields in zip(parts[1:], moved[1:], strict=True)]
    return replace(weights, **{**moved[0], "layers": layers})


def placed_values(values: Mapping[str, Any], ops: Backend, known: dict[int, Any] | None = None) -> dict[str, Any]:
    """Return ``values``, weights by attribute, moved to the memory of ``ops``.

    known: matrices that have been moved, by the id of the original; it is extended.
    """
    known = {} if known is None else known

    def place(value: Any) -> Any:
        if isinstance(value, Matrix):
            if id(value) not in known:
                known[id(value)] = ops.place(value)
            return known[id(value)]
        return ops.upload(value) if isinstance(value, np.ndarray) else value

    return {name: place(value) for name, value in values.items()}
