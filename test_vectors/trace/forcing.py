"""Run our pass with another engine's values substituted at every dumped point (named intermediate).

At each point our value has just been computed from the other engine's values at the nearest dumped points upstream. It
is compared with the other engine's value, which then replaces ours for the rest of the pass. So one pass gives, for
every op or span of ops, our result on their inputs, and an error does not spread to later ops. Points that were not
dumped are computed by our own ops. Cached rows are substituted in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4ref.errors import DataError
from ds4ref.variants import Fault, RoundingSet
from ds4ref.variants.forced import run_layers

from .ops import CHOICES, STORED, Graph, Key, describe_point
from .theirs import Theirs, float_type

EMPTY = -5e29
"""Scores below this mean "no candidate": engines write -1e30 or -inf, or leave them out."""

NOISE = 4 * 2.0**-23
"""Relative noise of a value summed in another order: a few units in the last place (see ds4ref.variants)."""

INSIDE = 2.0
"""Allowance for values that an engine which computes in a 16-bit type rounds inside an op, where no dump shows it: the
storage error of a row of n values counts 1 + INSIDE / sqrt(n) times."""


@dataclass
class Reading:
    """Comparison of our pass with another engine's values, by point (name, layer).

    ours     our op's result on their inputs, as one array (rows, ...); for a top-k, the scores it chose by
    apart    distance from the reference values, by row: rms over all other axes; for a top-k, how far from a tie the
             two choices are (``exchanged``). NaN: nothing to compare
    size     rms of the reference values, by row
    lost     rms of their largest storage error, by row
    order    points in the order in which the pass reached them
    """

    ours: dict[Key, np.ndarray] = field(default_factory=dict)
    apart: dict[Key, np.ndarray] = field(default_factory=dict)
    size: dict[Key, np.ndarray] = field(default_factory=dict)
    lost: dict[Key, np.ndarray] = field(default_factory=dict)
    order: list[Key] = field(default_factory=list)


class _ReachedEnd(Exception):
    """Raised to end a pass that has reached the point ``until``."""


@dataclass
class Forcing:
    """Hooks of one pass that substitute another engine's values for ours.

    rounding  rounding set of the pass
    theirs    the other engine's values
    rounding  rounding set of the pass
    faults    bugs to inject
    layers    layers to run (None: all)
    jitter    generator of noise on all inputs of ops: float noise, and the dump's storage error; None for no noise
    against   compare our values with these (``ours`` of another pass) instead of with theirs
    keep      keep our values in the reading, which takes as much memory as the dump
    until     end the pass after this point
    late      where a fault changes a dumped point, change their value before it is substituted, instead of ours
    """

    theirs: Theirs
    rounding: RoundingSet
    faults: Sequence[Fault] = ()
    layers: Collection[int] | None = None
    jitter: np.random.Generator | None = None
    against: Mapping[Key, np.ndarray] | None = None
    keep: bool = False
    until: Key | None = None
    late: bool = False

    def __post_init__(self) -> None:
        self.parts = [fault.hooks() for fault in self.faults]
        self.noise = None if self.jitter is None else self.jitter.standard_normal(1_000_003).astype(np.float32)
        self.reading, self.graph = Reading(), Graph(self.theirs.shape)
        self._used: dict[str, Any] = {}
        self._turn = 0

    def begin(self, chunk: Any) -> None:
        """Apply the changes of the rounding set and of the faults to a new chunk."""
        if self.rounding.begin is not None:
            self.rounding.begin(chunk)
        for part in self.parts:
            part.begin(chunk)

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Compare our value of an intermediate with the other engine's; return theirs if it was dumped, else ours."""
        if name == "ffn_moe_weights_scaled":
            value = self._weights(value, chunk)
        key = (name, layer)
        late = self.late and key in self.theirs.matches
        for part in () if late else self.parts:
            value = part.tap(name, layer, value, chunk)
        fits = self.theirs.get(key, value)
        self.reading.order.append(key)
        used = value
        if fits is not None:
            if name in CHOICES:
                used = self._choice(key, value, fits[0], chunk)
            elif self._compare(key, value, fits, chunk):
                arrays = value if isinstance(value, tuple) else (value,)
                forced = tuple(self._with_noise(fit.into(ours), "") for fit, ours in zip(fits, arrays, strict=True))
                if name == "indexer_scores":
                    forced = (np.where(_visible_scores(forced[0], chunk), forced[0], value),)
                used = forced if isinstance(value, tuple) else forced[0]
            if name in STORED:
                used = self._round_cached(name, used, chunk)
        elif self.noise is not None and isinstance(value, np.ndarray):
            used = self._with_noise(value, self.theirs.computed)
        for part in self.parts if late else ():
            used = part.tap(name, layer, used, chunk)
        if key == self.until:
            raise _ReachedEnd
        self._used[name] = used
        self._used[name + " ours"] = value
        for part in self.parts:
            part.goes_on(name, used)
        return used

    def finished(self) -> Reading:
        """Return the reading and drop all other arrays.

        Chunk and hooks may refer to each other, so the arrays would stay in memory until the garbage collector runs.
        """
        reading, self.reading = self.reading, Reading()
        self._used, self.parts, self.noise = {}, [], None
        return reading

    # --- comparison

    def _compare(self, key: Key, value: Any, fits: tuple, chunk: Any) -> bool:
        """Record the distance of our value from its reference; return False if theirs does not fit our shape."""
        arrays = value if isinstance(value, tuple) else (value,)
        mine = [ours if fit.rows is None else ours[fit.rows] for fit, ours in zip(fits, arrays, strict=True)]
        for fit, ours in zip(fits, mine, strict=True):
            if fit.values.shape != ours.shape:
                self.theirs.unfit[key] = f"their shape {list(fit.values.shape)} is not ours {list(ours.shape)}"
                return False
        if self.against is not None and key not in self.against:
            return True
        if (
            key[0] in self.graph.entering(key[1])
            and key[1] > 0
            and self.layers is not None
            and key[1] - 1 not in self.layers
        ):
            return True  # the previous layer was not run, so this input was not computed by us
        flat = _side_by_side([ours.reshape(len(ours), -1) for ours in mine])
        theirs = _side_by_side([fit.values.reshape(len(fit.values), -1) for fit in fits])
        gaps = key[0] == "indexer_scores"
        if gaps:
            theirs = np.where(_visible_scores(flat, chunk, fits[0].rows), theirs, np.nan)
        if key not in self.theirs.sizes:
            step = np.broadcast_to(self.theirs.half_step(theirs, float_type(theirs)), theirs.shape)
            with np.errstate(invalid="ignore"):
                plain = np.where((np.abs(theirs) < -EMPTY) | np.isnan(theirs), theirs, 0)
            lost = rms(step) if np.any(step) else np.zeros(len(step))
            if self.theirs.computed is not None:
                lost *= 1 + INSIDE / np.sqrt(theirs.shape[1])
            self.theirs.sizes[key] = rms(plain), lost
        self.reading.size[key], self.reading.lost[key] = self.theirs.sizes[key]
        if self.against is not None:
            theirs = np.where(np.isnan(theirs), np.nan, self.against[key]) if gaps else self.against[key]
        self.reading.apart[key] = distance(flat, theirs, gaps)
        if self.keep:
            self.reading.ours[key] = flat.copy()
        return True

    # --- choices

    def _choice(self, key: Key, value: Any, fit: Any, chunk: Any) -> Any:
        """Return the ids that their top-k chose instead of ours, and record how far the two choices are from a tie."""
        scores, visible = self._scores(key[0], chunk)
        rows = np.arange(len(visible)) if fit.rows is None else fit.rows
        theirs = _id_mask(fit.values, visible[rows])
        candidates = np.arange(theirs.shape[1]) < visible[:, None]
        ours = candidates if value is None else _id_mask(value, visible, theirs.shape[1])
        if self.keep and scores is not None:
            self.reading.ours[key] = scores
        self.reading.size[key], self.reading.lost[key] = np.ones(len(rows)), np.zeros(len(rows))
        if self.against is None:
            self.reading.apart[key] = exchanged(ours[rows], theirs, None if scores is None else scores[rows])
        elif key in self.against and scores is not None and self.against[key].shape == scores.shape:
            with np.errstate(invalid="ignore"):
                shift = np.abs(np.where(np.isfinite(scores), scores - self.against[key], 0))
            self.reading.apart[key] = np.nan_to_num(shift, posinf=0).max(axis=1, initial=0)[rows]
        if key[0] == "ffn_moe_topk":
            return value if fit.rows is not None and fit.values.shape[1] != value.shape[1] else fit.into(value)
        if value is None and np.array_equal(theirs, candidates[rows]):
            return None
        both = ours.copy()
        both[rows] = theirs
        s = chunk.shape
        return _mask_ids(both, s.index_topk if key[0] == "indexer_topk" else s.candidate_blocks)

    def _scores(self, name: str, chunk: Any) -> tuple[np.ndarray | None, np.ndarray]:
        """Return (scores (T, n) by which the top-k ``name`` chose, None without any; number of candidates (T,))."""
        if name in ("indexer_topk", "candidates"):
            visible = chunk.visible(chunk.ratio)
            scores = self._used.get("indexer_scores") if chunk.scored else None
            if scores is not None and chunk.narrowed:
                scores = _by_row(scores, chunk)
            elif scores is not None:
                scores = np.where(np.arange(scores.shape[1]) < visible[:, None], scores, -np.inf)
            if name == "candidates" and scores is not None:
                size = chunk.shape.candidate_size
                scores = chunk.ops.block_maxima(scores, visible, size, -(-scores.shape[1] // size))
                visible = chunk.visible_blocks()
            return scores, visible
        visible = np.full(len(chunk.ids), chunk.shape.n_experts)
        if chunk.w.ffn_gate_tid2eid is not None:
            return None, visible
        probs, bias = self._used["ffn_moe_probs"], chunk.w.exp_probs_b
        return (probs if bias is None else probs + bias), visible

    def _weights(self, value: np.ndarray, chunk: Any) -> np.ndarray:
        """Return our routing weights for *their* expert probabilities and ids (our op computes all three at once)."""
        probs, own_probs = self._used["ffn_moe_probs"], self._used["ffn_moe_probs ours"]
        ids, own = self._used["ffn_moe_topk"], self._used["ffn_moe_topk ours"]
        if probs is own_probs and ids is own:
            return value
        ops, s, bias = chunk.ops, chunk.shape, chunk.w.exp_probs_b
        table_ids = chunk.given.get(chunk.layer)
        logits = self._used["ffn_moe_logits"]
        if probs is not own_probs:
            p = np.square(probs.astype(np.float64))
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                logits = np.where(p > 30, p, np.log(np.expm1(p))).astype(np.float32)
            logits = np.nan_to_num(logits, neginf=-80.0)
        floor = chunk.numerics.route_floor
        k = ids.shape[1]
        _, chosen, weights = ops.route(
            logits, None if table_ids is not None else bias, table_ids, s.n_used, s.route_scale, floor
        )
        if ids.shape == own.shape and np.array_equal(ids, own):
            # a fault may have edited the ids after the choice; the weights stay with their slots
            return weights if np.array_equal(np.sort(chosen), np.sort(own)) or table_ids is not None else value
        out = ops.route(logits, None, np.ascontiguousarray(ids, np.int32), k, s.route_scale, floor)[2]
        if ids.shape == own.shape:
            match = ids[:, :, None] == own[:, None, :]
            same = match.any(axis=2).all(axis=1)
            source = weights if np.array_equal(chosen, own) else value
            out[same] = np.take_along_axis(source, match.argmax(axis=2), axis=1)[same]
        return out

    # --- substituted values

    def _round_cached(self, name: str, rows: np.ndarray, chunk: Any) -> np.ndarray:
        """Round cached rows to the rounding set's format; rows that were dumped after rounding do not change."""
        if name == "indexer_KVcompress":
            return chunk.store(chunk.ops.round_e2m1(rows) if chunk.numerics.indexer_qat else rows)
        return chunk.store((chunk.row_rounding if name == "KVcompress" else chunk.kv_rounding)(rows))

    def _with_noise(self, values: np.ndarray, kind: str | None) -> np.ndarray:
        """Return ``values`` with float noise, and with the error of storing or computing them in the type ``kind``.

        ``kind`` "": the 16-bit type that the engine computes in, else the type of the dump; None: float noise alone.
        """
        if self.noise is None or values.dtype.kind != "f":
            return values
        self._turn = (self._turn + 9973) % 400_009
        noise = self.noise[self._turn : self._turn + values.size]
        noise = noise.reshape(values.shape) if len(noise) == values.size else np.resize(noise, values.shape)
        step = 0.0 if kind is None else self.theirs.half_step(values, kind or self.theirs.computed)
        with np.errstate(invalid="ignore", over="ignore"):
            # an error uniform in +- half a step has a standard deviation of 0.577 half steps
            shaken = values * (1 + np.float32(NOISE) * noise) + (np.float32(0.577) * step * noise)
        return np.ascontiguousarray(np.where(np.abs(values) < -EMPTY, shaken, values), np.float32)


def _visible_scores(scores: np.ndarray, chunk: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the mask of the scores of cache rows that each token may see; the others are uninitialised memory."""
    visible = chunk.listed() if chunk.narrowed else chunk.visible(chunk.ratio)
    if rows is not None:
        visible = visible[rows]
    return np.arange(scores.shape[1]) < visible[:, None]


def _by_row(scores: np.ndarray, chunk: Any) -> np.ndarray:
    """Return scores of the rows of candidate blocks as scores of all rows (T, n), -inf for the others."""
    size, blocks = chunk.shape.candidate_size, chunk.candidates
    at = np.where(blocks < 0, chunk.scored, blocks * size)[:, :, None] + np.arange(size)
    every = np.full((len(scores), chunk.scored + 2 * size), -np.inf, np.float32)
    np.put_along_axis(every, at.reshape(len(scores), -1), scores, axis=1)
    visible = np.arange(chunk.scored) < chunk.visible(chunk.ratio)[:, None]
    return np.where(visible, every[:, : chunk.scored], -np.inf)


def _id_mask(ids: np.ndarray, visible: np.ndarray, width: int = 0) -> np.ndarray:
    """Convert the ids (T, k) that a top-k chose to a mask (T, n) over all candidates.

    ``visible`` (T,): number of candidates of each token, others are ignored; ``width``: smallest n.
    """
    mask = np.zeros((len(ids), max(int(visible.max(initial=0)), width) + 1), bool)
    inside = (ids >= 0) & (ids < visible[:, None])
    np.put_along_axis(mask, np.where(inside, ids, mask.shape[1] - 1), True, axis=1)
    return mask[:, :-1]


def _mask_ids(mask: np.ndarray, least: int) -> np.ndarray:
    """Convert a mask (T, n) to ids (T, k) int32, ascending, padded with -1; ``least``: smallest k."""
    width = max(least, int(mask.sum(axis=1).max(initial=0)))
    order = np.argsort(~mask, axis=1, kind="stable")[:, :width]
    ids = np.where(np.take_along_axis(mask, order, axis=1), order, -1)
    out = np.full((len(mask), width), -1, np.int32)
    out[:, : ids.shape[1]] = ids
    return out


def exchanged(ours: np.ndarray, theirs: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
    """Return, by token, how far two top-k choices are from a tie: our best score that they did not choose minus the
    worst score that only they chose.

    ours, theirs  masks of what was chosen (T, n)
    scores        our scores (T, n)

    0 for equal choices; infinite if the numbers chosen differ, or for different choices without scores.
    """
    only_ours, only_theirs = ours & ~theirs, theirs & ~ours
    differs = only_ours.any(axis=1) | only_theirs.any(axis=1)
    if scores is None:
        return np.where(differs, np.inf, 0.0)
    width = min(scores.shape[1], ours.shape[1])
    with np.errstate(invalid="ignore"):
        best = np.where(only_ours[:, :width], scores[:, :width], -np.inf).max(axis=1, initial=-np.inf)
        worst = np.where(only_theirs[:, :width], scores[:, :width], np.inf).min(axis=1, initial=np.inf)
        gap = np.where(only_ours.sum(axis=1) == only_theirs.sum(axis=1), best - worst, np.inf)
    gap = np.where(np.isfinite(gap), np.maximum(gap, 0), np.inf)
    return np.where(differs, gap, 0.0)


def _side_by_side(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def distance(ours: np.ndarray, theirs: np.ndarray, gaps: bool = False) -> np.ndarray:
    """Return the rms of ``difference(ours, theirs, gaps)`` over each row: (n,)."""
    if not gaps and ours.dtype == np.float32 and theirs.dtype == np.float32:
        with np.errstate(invalid="ignore", over="ignore"):
            apart = ours - theirs
            squares = np.einsum("ij,ij->i", apart, apart)
        if np.isfinite(squares).all() and (not len(squares) or 0 < squares.min() and squares.max() < 1e30):
            return np.sqrt(squares.astype(np.float64) / max(1, ours.shape[1]))
    return rms(difference(ours, theirs, gaps))


def difference(ours: np.ndarray, theirs: np.ndarray, gaps: bool = False) -> np.ndarray:
    """Return ours - theirs (n, m), with defined values for masked and missing numbers.

    0 where both are masked (below ``EMPTY``) or equal, infinite where only one is a number; with ``gaps``, NaN where
    theirs is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.subtract(ours, theirs, dtype=np.float64 if theirs.dtype == np.float64 else np.float32)
        if np.isfinite(apart).all() and np.abs(apart).max(initial=0) < -EMPTY:
            return apart
        none = (ours < EMPTY) & (theirs < EMPTY) | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        apart = np.where(none, 0, apart)
        apart[np.isnan(apart)] = np.inf
        if gaps:
            apart[np.isnan(theirs)] = np.nan
    return apart


def rms(values: np.ndarray) -> np.ndarray:
    """Return the rms of each row over its values that are not NaN; NaN if it has none."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isnan(values).any():
            return np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64) / max(1, values.shape[1]))
        known = ~np.isnan(values)
        count = known.sum(axis=1)
        squares = np.where(known, np.square(values, dtype=np.float64), 0).sum(axis=1)
        return np.where(count > 0, np.sqrt(squares / np.maximum(count, 1)), np.nan)


def run(
    model: Any, ids: Sequence[int], hooks: Forcing, weights: Mapping[int, Any] | None = None,
    cancel: Callable[[int], None] | None = None,
) -> Reading:  # fmt: skip
    """Run one pass with ``hooks`` and return its reading; DataError if an op rejects the dumped values."""
    try:
        with np.errstate(all="ignore"), suppress(_ReachedEnd):
            run_layers(model, ids, hooks, hooks.layers, weights, cancel)
    except (IndexError, ValueError) as error:  # ops reject ids, counts and positions outside their arrays
        at = f" after {describe_point(hooks.reading.order[-1])}" if hooks.reading.order else ""
        raise DataError(f"the dumped values cannot be computed with{at}: {error}") from error
    return hooks.finished()
