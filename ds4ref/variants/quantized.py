"""Measure the error of quantization op by op: run the same tokens through a model A and a requantized model B.

Every op of B works on the values that A computed at that point, so errors do not add up: the error of an op's result
comes from that op's tensors alone. It is compared with the error of those tensors, B's against A's. An op whose result
errs much more than its weights is a bug of an engine or kernel. Weights that err more than their format explains are a
bug of a conversion; so is a single row that does.

The error of the weights is measured on dequantized values. So dequantizers are tested, too: rows of every matrix are
multiplied by the backend's own kernel and compared with the product of the dequantized rows, and normally distributed
weights go through quantizer and dequantizer. Where either differs, the engine misreads the format.

A runs layer by layer, so that memory holds the intermediates of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.kernels.cpu.quantize import QUANTIZERS, quantize
from ds4ref.kernels.formats import FORMATS, Matrix

from ..engine import Engine
from ..errors import DataError
from ..weights.quantize.families import family_of
from .forced import HEAD, pass_of
from .rowwise import compared, most_of_a_row

HEAVY = 2.0
"""Allowed error of weights as a multiple of their format's usual loss, for heavy-tailed weights and importance
matrices."""

SLACK = 3.0
"""Allowed error of an op as a multiple of its weights' relative error: inputs may be largest where the weights err
most."""

FLOOR = 3e-4
"""Allowed relative error of an op whose weights are equal: float sums in another order."""

PROBES = 12
"""Number of test inputs for a matrix: enough that the kernels for many inputs are used."""

_UNCOMPARED = ("indexer_scores", "indexer_topk", "ffn_moe_topk", "indexer_rows")


@dataclass(frozen=True)
class Reading:
    """Comparison of one op in two models, A (original) and B (requantized); B's op is run on A's values.

    layer    number of the layer, HEAD for the output head
    point    name of the op's result
    tensors  names of the weights that the op multiplies with
    formats  formats of these weights in B
    family   family of the weights ("embedding", "dense" and so on; ``weights.quantize``), "" without weights
    error    |B - A| / |A| of the result over all tokens
    cosine   cosine between the results of A and B
    weights  |B - A| / |A| of the weights themselves
    allowed  bound on ``error``: what quantizing to these formats can account for
    loss     bound on ``weights``, likewise
    misread  tensors that kernel, dequantizer and quantizer do not decode to the same values
    row      the row that errs most as measured by what its format may lose: tensor, number in it
    worst    error of that row
    lost     bound on ``worst``
    """

    layer: int
    point: str
    tensors: tuple[str, ...]
    formats: tuple[str, ...]
    family: str
    error: float
    cosine: float
    weights: float
    allowed: float
    loss: float
    misread: tuple[str, ...] = ()
    row: tuple[str, int] = ("", 0)
    worst: float = 0.0
    lost: float = FLOOR

    @property
    def verdict(self) -> str:
        """Return "engine" or "weights" for a bug of either, "quantization" for the format's loss, else "same"."""
        if self.misread:
            return "engine"
        if not self.weights <= self.loss or not self.worst <= self.lost:
            return "weights"
        if not self.error <= self.allowed:
            return "engine"
        return "quantization" if self.error > FLOOR else "same"


class _Keep:
    """Hooks that keep what passes, and put in the streams that a layer starts from."""

    def __init__(self, entering: str, streams: np.ndarray | None):
        self.entering, self.streams = entering, streams
        self.values: dict[tuple[str, int], Any] = {}

    def begin(self, chunk: Any) -> None:
        """Nothing to prepare."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if name == self.entering and self.streams is not None:
            value = self.streams
        self.values[name, layer] = tuple(v.copy() for v in value) if isinstance(value, tuple) else _copied(value)
        return value


class _Hold(_Keep):
    """Hooks that keep what the ops make of the values of ``held``, and go on with those."""

    def __init__(self, entering: str, held: Mapping[tuple[str, int], Any]):
        super().__init__(entering, None)
        self.held = held

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        super().tap(name, layer, value, chunk)
        return self.held.get((name, layer), value)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def compare(
    one: Engine, other: Engine, ids: Sequence[int], points: Mapping[str, Sequence[str]], progress: Callable[[int], None]
) -> Iterator[Reading]:
    """Yield the readings in the order of the pass; DataError if the two are not the same model in other formats.

    ``points``: tensors of each point, as names without "blk.N." and ".weight", for an architecture whose pass lacks
    them. ``progress`` is called with each layer's number.
    """
    way = pass_of(one)
    if pass_of(other) is not way:
        raise DataError("the two are not the same model: they are of different families")
    a, b = one.model, other.model
    points = points if way.tensors is None else way.tensors
    held = _Tensors(one), _Tensors(other)
    different = [name for name in vars(a.shape) if name != "name" and getattr(a.shape, name) != getattr(b.shape, name)]
    if different:
        raise DataError(f"the two are not the same model: {different[0]} differs")
    streams: np.ndarray | None = None
    last = a.shape.n_layers - 1
    for layer in range(a.shape.n_layers):
        progress(layer)
        layers = [layer, HEAD] if layer == last else [layer]
        keep = _Keep(way.entering, streams)
        way.run(a, ids, keep, layers)
        hold = _Hold(way.entering, keep.values)
        way.run(b, ids, hold, layers)
        for (name, at), ours in hold.values.items():
            theirs = keep.values.get((name, at))
            if name == way.entering and at > 0:
                continue  # put in, nobody's result
            if name not in _UNCOMPARED and _comparable(ours, theirs):
                yield _reading(held, at, name, ours, theirs, points.get(name, ()))
        streams = keep.values[way.leaving, layer]


def _comparable(ours: Any, theirs: Any) -> bool:
    return (
        isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray) and ours.dtype.kind == "f" and theirs.size > 0
        and ours.shape == theirs.shape
    )  # fmt: skip


class _Tensors:
    """The weights of an engine by name, their formats, and whether it reads them as their dequantizers do."""

    def __init__(self, engine: Engine):
        self.weights, self.ops = engine.model.weights, engine.model.ops
        self._formats = {name: info.fmt.name for name, info in engine.source.tensors.items()}
        self._sound: dict[str, bool] = {}

    def held(self, layer: int, attr: str) -> Any:
        """A Matrix, an array or None."""
        return getattr(self.weights if layer < 0 else self.weights.layers[layer], attr, None)

    def fmt(self, name: str, held: Any) -> str:
        """The format in the file; a head that is the embedding has that one's, and small ones are held as float32."""
        return self._formats.get(name, held.fmt if isinstance(held, Matrix) else "F32")

    def misread(self, held: Any) -> bool:
        """Whether the kernel makes something else of a matrix than the dequantizer, or the dequantizer of what the
        quantizer made than was put in."""
        if not isinstance(held, Matrix):
            return False
        rows = _sample(held, 16)
        x = np.random.default_rng(0).standard_normal((PROBES, held.cols)).astype(np.float32)
        wanted = x.astype(np.float64) @ rows.dequantize().astype(np.float64).T
        if not np.isfinite(wanted).all():
            return False  # what is wrong there is the weights
        placed = self.ops.place(rows)
        for some in (x, x[:1]):
            made = self.ops.host(self.ops.linear(self.ops.upload(some), placed, "float"))
            if not distance(made, wanted[: len(some)])[0] <= FLOOR:
                return True
        if held.fmt not in self._sound:
            self._sound[held.fmt] = _sound(held.fmt)
        return not self._sound[held.fmt]


def _sound(fmt: str) -> bool:
    """Whether normal weights come back from quantizer and dequantizer as the format allows; True if there is no
    quantizer to ask."""
    if fmt not in QUANTIZERS:
        return True
    x = np.random.default_rng(1).standard_normal((8, 1024)).astype(np.float32)
    return distance(FORMATS[fmt].dequantize(quantize(fmt, x)), x)[0] <= HEAVY * FORMATS[fmt].loss + FLOOR


def _reading(
    models: tuple[_Tensors, _Tensors], layer: int, name: str, ours: Any, theirs: Any, tensors: Sequence[str]
) -> Reading:
    a, b = models
    error, cosine = distance(ours, theirs)
    found, stored, misread, square, loss, family = [], [], [], 0.0, 0.0, ""
    row, worst, lost = ("", 0), 0.0, FLOOR
    for tensor in tensors:
        attr = tensor.replace(".", "_")
        place = -1 if not hasattr(a.weights.layers[0], attr) else layer
        one, other = a.held(place, attr), b.held(place, attr)
        if one is None or other is None:
            continue
        full = _tensor_name(attr, place)
        kept, fmt = a.fmt(full, one), b.fmt(full, other)
        found.append(full)
        stored.append(fmt)
        misread += [full] if a.misread(one) or b.misread(other) else []
        apart, own_loss = compared(one, other), HEAVY * (FORMATS[fmt].loss + FORMATS[kept].loss) + FLOOR
        square += apart.error**2
        loss += own_loss**2
        if apart.worst / most_of_a_row(own_loss) > worst / lost:
            row, worst, lost = (full, apart.row), apart.worst, most_of_a_row(own_loss)
        family = family or family_of(
            full, 3 if isinstance(one, Matrix) and one.experts else 1 + isinstance(one, Matrix)
        )
    weights = square**0.5
    return Reading(layer, name, tuple(found), tuple(stored), family, error, cosine, weights,
                   FLOOR + SLACK * weights, loss**0.5 if found else FLOOR, tuple(misread),
                   row, worst, lost)  # fmt: skip


def distance(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return relative error and cosine of two arrays.

    Both zero gives 0 and 1, one zero infinity and 0; values that are not finite give infinity or NaN.
    """
    x, y = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        miss, size, own = np.sqrt(np.square(x - y).sum()), np.sqrt(np.square(y).sum()), np.sqrt(np.square(x).sum())
        if size == 0 or own == 0:
            return (0.0 if miss == 0 else float("inf")), (1.0 if miss == 0 else 0.0)
        return float(miss / size), float(x @ y / (size * own))


def _sample(w: Matrix, rows: int) -> Matrix:
    """Rows spread over the matrix, or over some matrices of a stack."""
    if not w.experts:
        chosen = np.unique(np.linspace(0, w.rows - 1, min(rows, w.rows)).astype(int))
        return Matrix(w.fmt, np.ascontiguousarray(w.data[chosen]), len(chosen), w.cols)
    experts = np.unique(np.linspace(0, w.experts - 1, min(8, w.experts)).astype(int))
    inner = np.unique(np.linspace(0, w.rows - 1, min(max(1, rows // 4), w.rows)).astype(int))
    data = np.concatenate([w.data[int(expert)][inner] for expert in experts])
    return Matrix(w.fmt, data, len(data), w.cols)


def divergence(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Return how far logits (T, V) of two independent runs differ: KL(a || b) in nats, and agreement of the best
    token."""
    p, q = (_log_softmax(x.astype(np.float64)) for x in (a, b))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    return {
        "kl_mean": float(kl.mean()), "kl_median": float(np.median(kl)), "kl_p99": float(np.quantile(kl, 0.99)),
        "kl_max": float(kl.max()), "same_top1": float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
    }  # fmt: skip


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def _tensor_name(attr: str, layer: int) -> str:
    """Return a tensor's name in the file by field and layer; ``layer`` is negative for tensors of the whole model."""
    if layer < 0:
        return f"{attr}.weight"
    stem = attr.replace("indexer_attn_q_b", "indexer.attn_q_b").replace("indexer_proj", "indexer.proj")
    return f"blk.{layer}.{stem}.{'bias' if attr == 'exp_probs_b' else 'weight'}"
