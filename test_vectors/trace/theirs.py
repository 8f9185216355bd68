"""Another engine's values at the points of our pass, in our shapes and order of axes.

A point is a named intermediate. Our shape of a point is known only when our pass reaches it, so values are read,
reshaped and cached then. Values that cannot be brought into our shape are listed with the reason and treated as not
dumped. The storage precision is inferred from the values: if all are float16 numbers, they were stored as float16.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.errors import DataError
from ds4ref.variants.rounding import round_bf16, round_f16

from .dumps import Dump, DumpChunk
from .names import NameRule
from .ops import CHOICES, OPS, STORED, Key

HALF_STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest rounding error of a stored value, relative to the power of two below it."""
SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126}
"""Smallest normal value of the type."""


class Unfit(Exception):
    """Raised for values that cannot be brought into our shape; the message says why."""


@dataclass(frozen=True)
class Fit:
    """Another engine's values at one point, in our shape.

    values  the values
    rows    token indices of the rows of ``values``; None: all tokens
    """

    values: np.ndarray
    rows: np.ndarray | None = None

    def into(self, ours: np.ndarray) -> np.ndarray:
        """Return ``ours`` with the other engine's values substituted where they are known, in our dtype."""
        values = self.values.astype(ours.dtype)
        if self.rows is None:
            return values
        out = ours.copy()
        out[self.rows] = values
        return out


class Theirs:
    """Another engine's values by point and layer, brought into our shapes on demand.

    matches  (point, layer) -> (name in the dump, rule to read it)
    shape    the model's shape
    tokens   number of tokens
    """

    def __init__(self, dump: Dump, matches: dict[Key, tuple[str, NameRule]], shape: Any, tokens: int):
        self.dump, self.matches, self.shape, self.tokens = dump, dict(matches), shape, tokens
        self.unfit: dict[Key, str] = {}
        self.notes: list[str] = []
        self.sizes: dict[Key, tuple[np.ndarray, np.ndarray]] = {}
        """By point: rms of their values and rms of their storage error, by row."""
        self._fits: dict[Key, tuple[Fit, ...]] = {}
        self.stored, self.computed = self._precision()

    def keys(self) -> set[Key]:
        """Return the dumped points that could be, or may still be, brought into our shapes."""
        return set(self.matches) - set(self.unfit)

    def get(self, key: Key, ours: Any) -> tuple[Fit, ...] | None:
        """Return the other engine's values at ``key`` (point, layer), one Fit for each array of the point.

        ``ours``: our value, which has the shape to bring them into; None returns only values that were read before, or
        the ids of a top-k. None if they were not dumped or cannot be brought into our shape.
        """
        if key not in self.matches or key in self.unfit:
            return None
        if key not in self._fits:
            if ours is None and key[0] not in CHOICES:
                return None
            try:
                self._fits[key] = self._fitted(key, ours)
            except (Unfit, DataError) as error:
                self.unfit[key] = str(error)
                return None
        return self._fits[key]

    def half_step(self, values: np.ndarray, kind: str | None = None) -> np.ndarray | float:
        """Return the largest storage error of each of ``values``; 0 if they were stored as float32.

        ``kind``: their float type (None: that of the dump).
        """
        kind = kind or self.stored
        if kind not in HALF_STEP:
            return 0.0
        with np.errstate(invalid="ignore"):
            size = np.maximum(np.abs(np.nan_to_num(values, posinf=0, neginf=0)), SMALLEST[kind])
        return HALF_STEP[kind] * 2.0 ** np.floor(np.log2(size))

    def rounded(self, weights: Any) -> Any:
        """Return ``weights`` (LayerWeights or Weights) with their vectors rounded to the engine's 16-bit type.

        They are returned as they are if the engine computes in float32. Matrices are not rounded, as the error of that
        is like the error of rounding their inputs, which counts already.
        """
        if self.computed is None:
            return weights
        vectors = {n: v for n, v in vars(weights).items() if isinstance(v, np.ndarray) and v.dtype == np.float32}
        return replace(weights, **{name: as_type(value, self.computed) for name, value in vectors.items()})

    # --- fitting

    def _fitted(self, key: Key, ours: Any) -> tuple[Fit, ...]:
        name, source = self.matches[key]
        arrays = ours if isinstance(ours, tuple) else (ours,)
        names = [f"{name}.{i}" for i in range(len(arrays))] if source.parts > 1 else [name]
        if len(names) != len(arrays) or any(n not in self.dump.tensors for n in names):
            raise Unfit(f"{name} has not the {len(arrays)} parts of {key[0]}")
        return tuple(self._fit_array(key, n, source, like) for n, like in zip(names, arrays, strict=True))

    def _fit_array(self, key: Key, name: str, source: NameRule, like: Any) -> Fit:
        """Read one array of a point from the dump, and bring it into the shape of ``like``, our value.

        name    its name in the dump
        source  rule of the name table
        """
        pieces = self.dump.tensors[name]
        axes = OPS[key[0]].axes
        if key[0] in CHOICES:
            fits = [self._ids(piece, key[0]) for piece in pieces]
        else:
            assert isinstance(like, np.ndarray)
            fits = [fitted(piece.load(), source, axes, like.shape, name) for piece in pieces]
        values = fits[0] if len(fits) == 1 else np.concatenate(fits)
        if source.times:
            values = values * self._factor(key, source.times, values)
        factor = getattr(self.shape, source.scale) if isinstance(source.scale, str) else source.scale
        if factor != 1:
            values = values * factor
        rows = self._rows(pieces, fits, axes, name) if axes[0] == "T" else None
        if axes[0] != "T" and isinstance(like, np.ndarray) and len(values) != len(like):
            raise Unfit(f"{name} has {len(values)} rows where ours are {len(like)}")
        if like is not None and like.dtype.kind == "i" and values.dtype.kind == "f":
            values = np.rint(np.nan_to_num(values, nan=-1)).astype(np.int64)
        return Fit(values.astype(np.float32) if values.dtype.kind == "f" else values, rows)

    def _factor(self, key: Key, times: str, values: np.ndarray) -> np.ndarray:
        """Return the dumped tensor of point ``times`` in the same layer, shaped to multiply ``values`` by."""
        other = (times, key[1])
        if other not in self.matches:
            raise Unfit(f"{key[0]} needs {times}, which was not dumped")
        like = np.empty(values.shape[: len(OPS[times].axes)], np.float32)
        fit = self.get(other, like)
        if fit is None or fit[0].values.shape != like.shape:
            raise Unfit(f"{key[0]} needs {times}, which does not fit")
        factor = fit[0].values
        return factor.reshape(factor.shape + (1,) * (values.ndim - factor.ndim))

    def _ids(self, piece: DumpChunk, point: str) -> np.ndarray:
        values = piece.load()
        flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
        ids = np.rint(flat).astype(np.int64) if flat.dtype.kind == "f" else flat.astype(np.int64)
        wrong = ids[(ids < 0) | (ids >= self.shape.n_experts)]
        if point == "ffn_moe_topk" and len(wrong):
            raise Unfit(f"there is no expert {wrong[0]}")
        return ids

    def _rows(self, pieces: list[DumpChunk], fits: list[np.ndarray], axes: str, name: str) -> np.ndarray | None:
        """Return the token positions of an array's rows; None if it has all tokens in order.

        pieces  chunks of the array in the dump
        fits    their values in our shape
        """
        count = sum(len(fit) for fit in fits)
        if any(piece.first is not None for piece in pieces):
            spans = [np.arange(p.first or 0, (p.first or 0) + len(f)) for p, f in zip(pieces, fits, strict=True)]
            rows = np.concatenate(spans)
        elif count == self.tokens:
            return None
        elif self.dump.positions is not None:
            rows = np.asarray(self.dump.positions)
        elif count == 1:
            rows = np.array([self.tokens - 1])
            self._note(f"one row stands for the last token, {name} for one")
        else:
            raise Unfit(f"{name} has {count} tokens, there are {self.tokens} ids: say which with positions")
        if len(rows) != count:
            raise Unfit(f"{name} has {count} tokens, its positions are {len(rows)}")
        if rows.min() < 0 or rows.max() >= self.tokens or len(np.unique(rows)) != len(rows):
            raise Unfit(f"{name}: positions must be different and lie inside the {self.tokens} tokens")
        return None if np.array_equal(rows, np.arange(self.tokens)) else rows

    def _note(self, text: str) -> None:
        if not any(note.split(",")[0] == text.split(",")[0] for note in self.notes):
            self.notes.append(text)

    # --- precision

    def _precision(self) -> tuple[str, str | None]:
        """Infer (float type in which the dump stores values, 16-bit type in which the engine computes or None).

        An engine that computes in a 16-bit type may keep many values in float32. So it is assumed to if the values of
        more than one point in eight are all of that type.
        """
        counts = {"bfloat16": 0, "float16": 0, "float32": 0}
        for key, (name, _) in itertools.islice(sorted(self.matches.items()), 400):
            if key[0] in STORED or key[0] in CHOICES or sum(counts.values()) >= 60:
                continue
            pieces = self.dump.tensors.get(name) or self.dump.tensors.get(f"{name}.0") or []
            if not pieces or not pieces[0].dtype.startswith(("float", "bfloat")):
                continue
            try:
                kind = float_type(pieces[0].load())
            except DataError:
                continue
            if kind is not None:
                counts[kind] += 1
        judged = sum(counts.values())
        stored = next((kind for kind in HALF_STEP if judged and counts[kind] >= 0.8 * judged), "float32")
        computed = max(HALF_STEP, key=lambda kind: counts[kind])
        return stored, computed if counts[computed] > judged / 8 else None


def float_type(values: np.ndarray) -> str | None:
    """Return the narrowest float type that represents all of ``values``; None if too few of them are not integers."""
    sample = values.reshape(-1)[:: max(1, values.size // 2048)].astype(np.float32)
    sample = sample[np.isfinite(sample) & (sample != np.rint(sample))]
    if len(np.unique(sample)) < 16:
        return None
    for kind in ("bfloat16", "float16"):  # in this order: most bfloat16 values are float16 values, too
        if np.array_equal(as_type(sample, kind), sample):
            return kind
    return "float32"


def as_type(values: np.ndarray, kind: str) -> np.ndarray:
    """Return float32 ``values`` rounded to ``kind``, a key of HALF_STEP."""
    return round_bf16(values) if kind == "bfloat16" else round_f16(values)


def fitted(values: np.ndarray, source: NameRule, axes: str, like: tuple[int, ...], name: str) -> np.ndarray:
    """Bring ``values`` to our shape (n, *like[1:]), where n may be less than like[0]; Unfit if that is not possible.

    source  rule of the name table
    axes    letters of our axes (``ops.Op.axes``)
    name    of the tensor, for messages
    """
    tail = like[1:]
    width = int(np.prod(tail))
    if source.slice is not None:
        values = values[..., source.slice[0] : source.slice[1]]
    if source.axes:
        values = _reordered(values, source.axes, axes, name)
    if source.first and source.first in axes:
        at = axes.index(source.first)
        if values.ndim == len(like) and values.shape[at] >= like[at]:
            values = np.take(values, np.arange(like[at]), axis=at)
    if values.shape == like:
        return values
    problem = Unfit(f"{name} has shape {list(values.shape)}, which is not ours {list(like)}")
    if not values.size or not width:
        raise problem
    if len(tail) and values.ndim >= len(tail) and values.shape[values.ndim - len(tail) :] == tail:
        return values.reshape(-1, *tail)
    if values.ndim == 1 and values.size % width == 0:
        return values.reshape(-1, *tail)
    small = values.reshape([n for n in values.shape if n != 1] or [1])
    if small.shape[0] * width == values.size:
        return small.reshape(-1, *tail)
    if width == values.size:
        return small.reshape(1, *tail)
    slim = tuple(n for n in like if n != 1)
    orders = [
        order for order in itertools.permutations(range(small.ndim)) if tuple(small.shape[i] for i in order) == slim
    ]
    if len(orders) == 1:
        return np.ascontiguousarray(small.transpose(orders[0])).reshape(like)
    raise problem


def _reordered(values: np.ndarray, theirs: str, ours: str, name: str) -> np.ndarray:
    """Transpose axes named by ``theirs`` into our order; letters that ours lacks go before the axis they merge into.

    ``name``: of the tensor, for messages.
    """
    if len(theirs) != values.ndim:
        if values.ndim != len(theirs.replace("1", "")):
            raise Unfit(f"{name} has {values.ndim} axes, its table names {theirs}")
        theirs = theirs.replace("1", "")
    ones = tuple(i for i, letter in enumerate(theirs) if letter == "1")
    if any(values.shape[i] != 1 for i in ones):
        raise Unfit(f"{name} has shape {list(values.shape)}, its table says {theirs}")
    values, letters = values.squeeze(ones), theirs.replace("1", "")
    # our axis that each of theirs is, or is merged into
    targets = [letter if letter in ours else next((o for o in letters[at:] if o in ours and o not in "TN"), ours[-1])
               for at, letter in enumerate(letters)]  # fmt: skip
    order = sorted(range(len(letters)), key=lambda at: (ours.index(targets[at]), letters[at] in ours, at))
    return np.ascontiguousarray(values.transpose(order))
