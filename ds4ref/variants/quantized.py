"""Measure the error of quantization op by op: run the same tokens through a model A and a requantized model B.

Every op of B gets the inputs that A computed, so errors do not add up: the error of an op's result comes from that op's
tensors alone. It is compared with the error of those tensors, B's dequantized weights against A's. If an op's error is
much larger, an engine or kernel has a bug. If the weights' error is larger than their format explains, the conversion
has a bug. Rows are also judged one by one: a mean over a whole matrix would hide a lost row.

A runs layer by layer, so that memory holds the intermediates of one layer only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS, ApartRows, Matrix

from ..engine import Engine
from ..errors import DataError
from ..weights.quantize.families import family_of
from .forced import HEAD, pass_of

HEAVY = 2.0
"""Allowed error of weights as a multiple of their format's usual loss: heavy-tailed weights, and formats weighted by an
importance matrix, lose more than usual."""
SLACK = 3.0
"""Allowed error of an op as a multiple of its weights' relative error: the largest inputs may meet the weights with the
largest errors."""
FLOOR = 3e-4
"""Allowed relative error of an op whose weights are equal: float32 sums may be computed in another order."""
MOST_WEIGHTS = 1 << 27
"""Number of weights of a tensor that are compared; of larger tensors (stacks of experts), evenly spaced rows."""
STEP = 1 << 22
"""Number of weights decoded at a time."""
FAINT = 1e-3
"""A weight row's error is relative to its size, but at least to this share of the mean row's: formats cannot represent
smaller rows well, and these hardly matter."""
LOST, ROW_SLACK = 0.9, 1.5
"""LOST: relative error from which a weight row counts as lost, however coarse its format (a row replaced by zeros has
1). ROW_SLACK: allowed error of the worst row, as a multiple of what is allowed for all rows together."""
_UNCOMPARED = ("indexer_scores", "indexer_topk", "ffn_moe_topk", "indexer_rows")


@dataclass(frozen=True)
class Reading:
    """Comparison of one op in two models, A (original) and B (requantized); B's op gets A's inputs.

    layer    number of the layer, HEAD for the output head
    point    name of the intermediate that the op computes
    tensors  names of the weights that the op multiplies with
    formats  storage formats of these weights in B
    family   family of the weights ("embedding", "dense" and so on; ``weights.quantize``), "" without weights
    error    |B - A| / |A| of the result over all tokens
    cosine   cosine between the results of A and B
    weights  |B - A| / |A| of the weights themselves
    allowed  largest ``error`` that quantizing to these formats can explain
    loss     largest value of ``weights`` that it can explain
    row      (tensor, row number) of the weight row whose error is largest relative to what its format may lose
    worst    relative error of that row
    lost     largest value of ``worst`` that quantization can explain
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
    row: tuple[str, int]
    worst: float
    lost: float

    @property
    def verdict(self) -> str:
        """Return what explains the difference: "weights" for a bug of the conversion, "engine" for a bug of an op,
        "quantization" for the usual loss of the format, "same" if there is none."""
        if not self.weights <= self.loss or not self.worst <= self.lost:
            return "weights"
        if not self.error <= self.allowed:
            return "engine"
        return "quantization" if self.error > FLOOR else "same"


class _Keep:
    """Hooks that copy all intermediates into ``values``, and replace some.

    entering  name of the intermediate that is a layer's input
    streams   value to use as that input; None: leave it
    held      values by (name, layer) that replace what the ops computed, after that was copied
    """

    def __init__(self, entering: str, streams: np.ndarray | None, held: Mapping[tuple[str, int], Any] | None = None):
        self.entering, self.streams, self.held = entering, streams, held or {}
        self.values: dict[tuple[str, int], Any] = {}

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if name == self.entering and self.streams is not None:
            value = self.streams
        self.values[name, layer] = deepcopy(value)
        return self.held.get((name, layer), value)


def compare(
    one: Engine, other: Engine, ids: Sequence[int], points: Mapping[str, Sequence[str]], progress: Callable[[int], None]
) -> Iterator[Reading]:
    """Yield the comparison of each op of two models, in the order in which the pass computes them.

    one       engine with the original model (A)
    other     engine with the requantized model (B)
    ids       tokens to run
    points    names of the weights that produce each intermediate, without "blk.N." and ".weight", if ``Pass.tensors``
              is None
    progress  called with each layer's number

    Raise DataError if the two are not the same model in different formats.
    """
    way = pass_of(one)
    if pass_of(other) is not way:
        raise DataError("the two are not the same model: they are of different families")
    a, b = one.model, other.model
    points = points if way.tensors is None else way.tensors
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
        hold = _Keep(way.entering, None, keep.values)
        way.run(b, ids, hold, layers)
        for (name, at), ours in hold.values.items():
            theirs = keep.values.get((name, at))
            if name in _UNCOMPARED or (name == way.entering and at > 0):  # set by these hooks, not computed by an op
                continue
            if not isinstance(ours, np.ndarray) or not isinstance(theirs, np.ndarray) or ours.dtype.kind != "f":
                continue
            if theirs.size and ours.shape == theirs.shape:
                yield _reading(one, other, at, name, ours, theirs, points.get(name, ()))
        streams = keep.values[way.leaving, layer]


def _reading(
    one: Engine, other: Engine, layer: int, name: str, ours: np.ndarray, theirs: np.ndarray, tensors: Sequence[str]
) -> Reading:
    error, cosine = distance(ours, theirs)
    found: dict[str, str] = {}
    square, loss, family = 0.0, 0.0, ""
    row, worst, lost = ("", 0), 0.0, FLOOR
    for tensor in tensors:
        attr = tensor.replace(".", "_")
        whole = not hasattr(one.model.weights.layers[0], attr)
        x, y = (getattr(e.model.weights if whole else e.model.weights.layers[layer], attr, None) for e in (one, other))
        if x is None or y is None:
            continue
        full = f"{attr}.weight"
        if not whole:
            stem = attr.replace("indexer_attn_q_b", "indexer.attn_q_b").replace("indexer_proj", "indexer.proj")
            full = f"blk.{layer}.{stem}.{'bias' if attr == 'exp_probs_b' else 'weight'}"
        # an output head that shares the embedding's weights has no tensor of its own; small tensors are kept as float32
        formats = [
            e.source.tensors[full].fmt.name if full in e.source.tensors else getattr(held, "fmt", "F32")
            for e, held in ((one, x), (other, y))
        ]
        found[full] = formats[1]
        apart, furthest, number = _apart(x, y)
        own_loss = HEAVY * sum(FORMATS[fmt].loss for fmt in formats) + FLOOR
        square, loss = square + apart**2, loss + own_loss**2
        of_a_row = min(ROW_SLACK * own_loss, max(LOST, own_loss))
        if furthest / of_a_row > worst / lost:
            row, worst, lost = (full, number), furthest, of_a_row
        rank = 1 if not isinstance(x, Matrix) else 3 if x.experts else 2
        family = family or family_of(full, rank)
    weights = square**0.5
    return Reading(layer, name, tuple(found), tuple(found.values()), family, error, cosine, weights,
                   FLOOR + SLACK * weights, loss**0.5 if found else FLOOR, row, worst, lost)  # fmt: skip


def _apart(one: Any, other: Any) -> tuple[float, float, int]:
    """Compare two versions of a weight tensor.

    Return the relative rms error of ``other`` against ``one``: of all rows together, of the worst row, and the number
    of that row. A plain array instead of a Matrix is compared as one; its worst row is reported as row 0 with error 0.
    """
    if not isinstance(one, Matrix):
        return distance(np.asarray(other), np.asarray(one))[0], 0.0, 0
    if one.fmt == other.fmt and isinstance(one.data, np.ndarray) and np.array_equal(one.data, other.data):
        return 0.0, 0.0, 0
    count, most = int(np.prod(one.data.shape[:-1])), max(1, MOST_WEIGHTS // one.cols)
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))
    step = max(1, STEP // one.cols)
    parts = []
    for at in range(0, len(chosen), step):
        a, b = (_rows(w, chosen[at : at + step]) for w in (one, other))
        with np.errstate(invalid="ignore", over="ignore"):
            parts.append([np.einsum("ij,ij->i", v, v, dtype=np.float64) for v in (b - a, a, b)])
    miss, size, own = np.concatenate(parts, axis=1)
    finite = np.isfinite(miss)
    least = FAINT**2 * size[np.isfinite(size)].mean() if finite.any() else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(miss == 0, 0.0, np.sqrt(miss / np.maximum(size, least)))
        errors[~finite] = np.inf
        whole = np.inf if not size.sum() or not own.sum() else np.sqrt(miss.sum() / size.sum())
    row = int(errors.argmax())
    return float(whole) if miss.any() else 0.0, float(errors[row]), int(chosen[row])


def _rows(w: Matrix, numbers: np.ndarray) -> np.ndarray:
    """Dequantize some rows of a matrix or of a stack of matrices, whose rows are numbered consecutively."""
    data = w.data.numbered(numbers) if isinstance(w.data, ApartRows) else w.data.reshape(-1, w.row_bytes)[numbers]
    return Matrix(w.fmt, data, len(numbers), w.cols).dequantize()


def distance(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Return the relative error |ours - theirs| / |theirs| and the cosine of two arrays.

    If both are zero, that is 0 and 1; if one is, infinity and 0. Non-finite values give infinity or NaN.
    """
    x, y = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        miss, size, own = np.sqrt(np.square(x - y).sum()), np.sqrt(np.square(y).sum()), np.sqrt(np.square(x).sum())
        if size == 0 or own == 0:
            return (0.0 if miss == 0 else float("inf")), (1.0 if miss == 0 else 0.0)
        return float(miss / size), float(x @ y / (size * own))


def divergence(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Return how far the logits (T, V) of two independent runs differ: statistics over the tokens of KL(a || b) in
    nats, and how often both rank the same token first."""
    p, q = (_log_softmax(x.astype(np.float64)) for x in (a, b))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    return {
        "kl_mean": float(kl.mean()), "kl_median": float(np.median(kl)), "kl_p99": float(np.quantile(kl, 0.99)),
        "kl_max": float(kl.max()), "same_top1": float((a.argmax(axis=1) == b.argmax(axis=1)).mean()),
    }  # fmt: skip


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))
