"""Find the wrong ops of another engine: compare its dump with our ops run on its values.

1. Run one pass without rounding, and two with noise that measure the effect of float noise.
2. If float noise does not explain all differences, run one pass per rounding set (where and how an engine rounds); the
   one that explains most ops is the engine's. A kind of op that another set explains in all layers is reported as
   rounding like that set, not as wrong.
3. Every op whose result is off by more than ``budget`` allows is wrong, whatever came before it, as our op was run on
   the other engine's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.variants import ROUNDING, Fault, Runner
from ds4ref.variants.forced import HEAD, model_in

from .budget import Judgement, judge, limits
from .forcing import Forcing, Reading, difference, rms, run
from .ops import CHOICES, OPS, STORED, Graph, Key, Op
from .theirs import Theirs

RECIPES = ("f32", "iterated", "f64")
"""Ways to compute rope angles: float32, iterated multiplication, float64."""


@dataclass
class WrongOp:
    """An op, or a span of ops between two dumped points, whose error is larger than its budget allows.

    key        point (named intermediate, layer) at which the error was measured
    judgement  the measured error and its budget
    inputs     nearest dumped points upstream of ``key``
    bridged    points between ``inputs`` and ``key`` that were not dumped and that we computed
    rounding   rounding set in which our op was run
    rows       token positions of the point's rows
    op         how the point is computed
    where      sentences on where the error is
    causes     sentences on what would cause it
    """

    key: Key
    judgement: Judgement
    inputs: list[Key]
    bridged: list[Key]
    rounding: str
    rows: np.ndarray
    op: Op
    where: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)


@dataclass
class BlameResult:
    """Result of a blame run; a point is (name, layer).

    rounding    rounding set that the other engine seems to use
    wrong       ops beyond their budgets, in the order of the pass
    clean       points within their budgets
    unjudged    points that could not be judged, with the reason
    exceptions  kinds of op that round as another set does: name of the op -> that set
    missing     points that the dump does not have, with their layers if it has them in others
    causes      mistakes and tensors that explain wrong ops
    coarse      kinds of op with an error like a rounding that no set has: name of the op -> relative size of the error
    """

    rounding: str
    wrong: list[WrongOp] = field(default_factory=list)
    clean: list[Key] = field(default_factory=list)
    unjudged: dict[Key, str] = field(default_factory=dict)
    exceptions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    causes: list[Any] = field(default_factory=list)
    coarse: dict[str, float] = field(default_factory=dict)


class Blaming:
    """Passes of our model with the values of one dump substituted; passes that are needed again are cached.

    theirs  the other engine's values
    ids     token ids of the pass
    layers  layers to judge (None: all)
    cancel  called with each layer's number; may raise to end the pass
    """

    def __init__(
        self, engine: Engine, theirs: Theirs, ids: Sequence[int], layers: Collection[int] | None = None,
        cancel: Callable[[int], None] | None = None,
    ):  # fmt: skip
        self.engine, self.theirs, self.ids, self.cancel = engine, theirs, list(ids), cancel
        self.graph, self.runner = Graph(engine.shape), Runner(engine)
        self.n_layers: int = engine.shape.n_layers
        dumped = {layer for _, layer in theirs.matches}
        self.wanted = dumped if layers is None else dumped & set(layers)
        if not self.wanted:
            raise DataError("the dump has nothing of these layers")
        self._alias()
        self.layers = self.leading(self.wanted)
        self._rounded: dict[int, Any] = {}
        # each is computed once
        self.model, self.clean_pass, self.noise = cache(self._model), cache(self._clean_pass), cache(self._noise)
        self.float_limits = cache(self._float_limits)

    def _alias(self) -> None:
        """Use a layer's dumped output as the next layer's input where that was not dumped, so that it can run alone."""
        self.aliases: set[Key] = set()
        pairs = [(pair, layer) for layer in range(1, self.n_layers) for pair in self.graph.entering(layer).items()]
        for (name, before), layer in pairs:
            source, target = (before, layer - 1), (name, layer)
            if source in self.theirs.matches and target not in self.theirs.matches:
                self.theirs.matches[target] = self.theirs.matches[source]
                self.aliases.add(target)

    def leading(self, wanted: Collection[int]) -> list[int]:
        """Return the layers that a pass must run to judge the layers ``wanted``.

        These are ``wanted``, the layers whose rows and choices they read, and the layers before all these, back to the
        last one whose input was dumped in full.
        """
        needed, waiting, last = set(wanted), [layer for layer in wanted if layer != HEAD], self.n_layers - 1
        if HEAD in needed:
            needed.add(last)
            if not all(self._is_complete((name, last)) for name in self.graph.entering(0).values()):
                waiting.append(last)
        done: set[int] = set()
        while waiting:
            layer = waiting.pop()
            if layer in done:
                continue
            done.add(layer)
            if layer > 0 and not all(self._is_complete((name, layer)) for name in self.graph.entering(layer)):
                waiting.append(layer - 1)
            waiting += self.graph.shared(layer).values()
        return sorted(needed | done)

    def _is_complete(self, key: Key) -> bool:
        """Whether the dump seems to have a point at all tokens; its values may not have been read yet."""
        if key not in self.theirs.matches or key in self.theirs.unfit:
            return False
        pieces = self.theirs.dump.tensors.get(self.theirs.matches[key][0], [])
        return not any(p.first for p in pieces) and not self.theirs.dump.positions

    # --- passes

    def _model(self, name: str, recipe: str = "") -> Any:
        """Return our model in rounding set ``name``, with the set's recipe for rope angles or the given ``recipe``."""
        numerics = ROUNDING[name].numerics
        return model_in(self.engine, numerics._replace(rope=recipe or numerics.rope))

    def reading(
        self, name: str, faults: Sequence[Fault] = (), layers: Collection[int] | None = None, **options: Any
    ) -> Reading:
        """Run our pass on the other engine's values in rounding set ``name``.

        faults   bugs to inject
        layers   layers to run (None: ``self.layers``)
        options  further fields of ``Forcing``
        """
        hooks = Forcing(self.theirs, ROUNDING[name], faults, self.layers if layers is None else layers, **options)
        return run(self.model(name), self.ids, hooks, cancel=self.cancel)

    def _clean_pass(self, name: str) -> Reading:
        """Run the pass without faults or noise in rounding set ``name``, keeping our values."""
        return self.reading(name, keep=True)

    def _noise(self, name: str) -> dict[Key, list[np.ndarray]]:
        """Return how far two noisy passes are from the clean one: by point, a distance per row (n,) for each pass."""
        return self.noise_of(name, self.clean_pass(name), self.layers)

    def noise_of(
        self, name: str, quiet: Reading, layers: Collection[int], faults: Sequence[Fault] = (), late: bool = False
    ) -> dict[Key, list[np.ndarray]]:
        """Return how far two noisy passes are from ``quiet``, a noiseless pass with the same faults and kept values.

        name    rounding set
        layers  layers to run
        late    as in ``Forcing``
        """
        rounding = ROUNDING[name]
        recipes = [recipe for recipe in RECIPES if recipe != rounding.numerics.rope]
        distances: dict[Key, list[np.ndarray]] = {}
        for seed, recipe in enumerate(recipes):
            jitter = np.random.default_rng([seed, 10])
            hooks = Forcing(self.theirs, rounding, faults, layers, jitter, against=quiet.ours, late=late)
            model = self.model(name, recipe)
            for key, apart in run(model, self.ids, hooks, self.rounded(model.weights), self.cancel).apart.items():
                distances.setdefault(key, []).append(apart)
        return {key: values for key, values in distances.items() if len(values) == len(recipes)}

    def rounded(self, weights: Any) -> dict[int, Any] | None:
        """Return our weights by layer, rounded to the 16-bit type in which the other engine computes; None if none."""
        if self.theirs.computed is None:
            return None
        if not self._rounded:
            self._rounded = {n: self.theirs.rounded(w) for n, w in enumerate(weights.layers) if n in self.layers}
            self._rounded[HEAD] = self.theirs.rounded(weights)
        return self._rounded

    def flip(self, name: str, key: Key) -> np.ndarray | None:
        """Return how far rounding set ``name`` moves the op's result from the unrounded one, by row (n,).

        None for "exact", or if the two cannot be compared.
        """
        if name == "exact":
            return None
        rounded, plain = self.clean_pass(name).ours.get(key), self.clean_pass("exact").ours.get(key)
        if rounded is None or plain is None or rounded.shape != plain.shape:
            return None
        if key[0] in CHOICES:
            with np.errstate(invalid="ignore"):
                return np.nan_to_num(np.abs(rounded - plain), nan=0, posinf=0).max(axis=1, initial=0)
        return rms(difference(rounded, plain))

    def judge(self, name: str, key: Key, apart: np.ndarray, own: list[np.ndarray] | None = None) -> Judgement:
        """Judge whether a point is wrong: whether its distances by row, ``apart`` (n,), are beyond its budget.

        name  rounding set
        own   noise to use instead of that of the clean pass
        """
        reading = self.clean_pass(name)
        noise = own or self.noise(name).get(key) or [np.zeros(len(apart))] * 2
        flip = self.flip(name, key)
        if flip is not None and len(flip) != len(apart):
            flip = None
        return judge(apart, noise, reading.size[key], reading.lost[key], flip)

    def _float_limits(self, key: Key) -> np.ndarray:
        """Return the largest distance that float noise explains at a point, by row (n,), measured without rounding."""
        reading = self.clean_pass("exact")
        noise = self.noise("exact").get(key) or [np.zeros(len(reading.size[key]))] * 2
        return limits(noise, reading.size[key], reading.lost[key])

    def share_within(self, key: Key, apart: np.ndarray) -> float:
        """Return the share of rows whose distance ``apart`` (n,) is within float noise, measured without rounding."""
        known, limit = ~np.isnan(apart), self.float_limits(key)
        return float((apart[known] <= limit[known]).mean()) if known.any() and len(limit) == len(apart) else 1.0

    # --- what can be judged

    def rows_of(self, key: Key) -> np.ndarray:
        """Return the token positions of the point's rows (n,); the rows' indices if they are compressed cache rows."""
        fits = self.theirs.get(key, None)
        assert fits is not None
        rows = fits[0].rows
        return np.arange(len(fits[0].values)) if rows is None else rows

    def why_unjudged(self, key: Key, reached: Collection[Key]) -> str:
        """Return why a dumped point cannot be judged, "" if it can; ``reached``: all points that the pass computes."""
        inputs, bridged = self.graph.span(key, self.theirs.keys(), reached)
        incomplete = [k for k in (*inputs, key) if k in self.theirs.matches and self._has_gaps(k)]
        if incomplete and any(self.graph.ops[name].carried for name, _ in bridged):
            return f"it reads earlier tokens, and {incomplete[0][0]} was not dumped at all of them"
        return ""

    def _has_gaps(self, key: Key) -> bool:
        fits = self.theirs.get(key, None)
        if fits is None or fits[0].rows is None:
            return False
        rows = fits[0].rows
        return not np.array_equal(np.sort(rows), np.arange(len(rows)))


def choose(case: Blaming, numerics: str | None) -> tuple[str, dict[str, str]]:
    """Return (rounding set that explains most of the engine's ops, kinds of op that round as another set: that set).

    ``numerics``: name of a rounding set to use without a search (None: search).
    """
    if numerics is not None:
        return numerics, {}
    plain = case.clean_pass("exact")
    points = [key for key in plain.apart if key[1] in case.wanted and key not in case.aliases]
    shares = {"exact": {key: case.share_within(key, plain.apart[key]) for key in points}}
    if not any(share < 0.5 or _wrong(case, key) for key, share in shares["exact"].items()):
        return "exact", {}
    open_points = [key for key, share in shares["exact"].items() if share < 0.5 or _wrong(case, key)]
    some = _sample_layers(open_points, case)
    alone = case.reading("exact", layers=some).apart
    points = [key for key in points if key in alone]
    for name in case.runner.sets():
        if name != "exact":
            apart = case.reading(name, layers=some).apart
            shares[name] = {key: case.share_within(key, apart[key]) if key in apart else 0.0 for key in points}
    best = max(shares, key=lambda name: _merit(name, shares, points))
    exceptions = {}
    for kind in dict.fromkeys(name for name, _ in points):
        same_kind = [key for key in points if key[0] == kind]
        if all(shares[best][key] >= 0.5 for key in same_kind):
            continue
        fits = [name for name in shares if all(shares[name][key] >= 0.5 for key in same_kind)]
        if fits:
            name = max(fits, key=lambda name: sum(shares[name][key] for key in same_kind))
            full = case.clean_pass(name).apart
            if all(
                case.share_within(key, full[key]) >= 0.5 for key in full if key[0] == kind and key[1] in case.wanted
            ):
                exceptions[kind] = name
    return best, exceptions


def _merit(name: str, shares: dict[str, dict[Key, float]], points: Sequence[Key]) -> tuple[float, ...]:
    """Return how much the rounding set ``name`` explains, as a tuple to compare sets by.

    First the number of ops that it explains; then the share of explained rows in ops that no set explains, as these may
    be wrong in some rows only. Cached points (``STORED``) count after both, as they may have been dumped before they
    were rounded. Last, the share of all rows. ``shares``: explained share of rows, by set and point.
    """
    share = shares[name]
    stored = [key for key in points if key[0] in STORED]
    others = [key for key in points if key[0] not in STORED]
    wrong = [key for key in others if max(each[key] for each in shares.values()) < 0.5]
    counts = [sum(share[key] >= 0.5 for key in part) for part in (others, stored)]
    parts = [round(sum(share[key] for key in part), 3) for part in (wrong, points)]
    return counts[0], parts[0], counts[1], parts[1]


def _wrong(case: Blaming, key: Key) -> bool:
    return case.judge("exact", key, case.clean_pass("exact").apart[key]).wrong


def _sample_layers(points: Collection[Key], case: Blaming) -> list[int]:
    """Return the first layers that together have every kind of op among ``points``, and the layers to run for them."""
    kinds_covered: set[str] = set()
    layers = []
    for layer in case.layers:
        kinds = {name for name, where in points if where == layer}
        if kinds - kinds_covered:
            layers.append(layer)
            kinds_covered |= kinds
    return case.leading(layers)


def blame(case: Blaming, numerics: str | None = None) -> BlameResult:
    """Judge every point (named intermediate) of the other engine's dump, and return the wrong ops.

    ``numerics``: name of the engine's rounding set; None to infer it.
    """
    rounding, exceptions = choose(case, numerics)
    result = BlameResult(rounding, exceptions=exceptions)
    keys = [key for key in case.clean_pass(rounding).apart if key[1] in case.wanted and key not in case.aliases]
    passed = set(case.clean_pass(rounding).order)
    for key in case.graph.ordered(keys):
        name = exceptions.get(key[0], rounding)
        reading = case.clean_pass(name)
        reason = case.why_unjudged(key, passed)
        if reason or key not in reading.apart:
            result.unjudged[key] = reason or "not reached"
            continue
        judgement = case.judge(name, key, reading.apart[key])
        if judgement.wrong:
            inputs, bridged = case.graph.span(key, case.theirs.keys(), passed)
            op = case.graph.ops[key[0]]
            result.wrong.append(WrongOp(key, judgement, inputs, bridged, name, case.rows_of(key), op))
        else:
            result.clean.append(key)
    for key, reason in case.theirs.unfit.items():
        if key[1] in case.wanted and key not in case.aliases:
            result.unjudged[key] = reason
    reached = {key for key in passed if key[1] in case.wanted}
    judged = {*result.clean, *(wrong.key for wrong in result.wrong)}
    for name in OPS:
        layers = [key[1] for key in case.graph.ordered([k for k in reached - judged if k[0] == name])]
        if layers:
            everywhere = not any(key[0] == name for key in judged)
            where = "" if everywhere else f" ({', '.join('head' if n < 0 else str(n) for n in layers)})"
            result.missing.append(name + where)
    result.notes += case.theirs.notes
    return result
