"""Run a model with injected bugs (faults), noise or an engine's roundings on a whole prompt at once.

runner = Runner(engine)
logits, margin = runner.run(ids, "exact", [LIBRARY["no_sink"]], noise=np.random.default_rng(1))
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ..archs.deepseek4.forward import Model
from ..archs.deepseek41.forward import Model as Model41
from ..archs.dense.forward import Model as DenseModel
from ..backends import private_backend
from ..engine import Engine
from ..session.session import Session
from .dense import dense_families
from .families import FAMILIES, LATER, Family
from .faults import Fault
from .forced import resumed
from .library import LIBRARY, V41, applicable
from .rounding import ROUNDING, SAYS41, SETS, RoundingSet, products
from .scoped import ScopedFault, first_half

AnyFault = Fault | ScopedFault

NOISE = 2 * 2.0**-23
"""Relative noise added to the inputs of blocks: two units in the last place of float32. Correct builds of ds4's C code
differ from our mode ds4 without noise as much as our runs with 1 to 2 units do (docs/reference/vectors.md). 16 units
flip roundings that no correct build flips, and would hide bugs of that size."""

BRIEF = 32
"""A run of at most so many tokens from where its faults begin continues a snapshot, which lacks the oldest rows of what
compressors keep; that is near enough to tell whether the faults would be noticed."""

SHARED, STREAMS = 3, 48 << 20
"""Number of runs whose residual streams are kept, for runs that differ only in later layers; largest number of their
bytes."""

SMALL = 256 << 20
"""Bytes of weights below which a pass is too short to share among threads, so that several passes run in parallel."""

_NOISY = frozenset({"attn_norm", "ffn_norm", "KVnorm", "q_lora_norm", "result_norm"})


class _Hooks:
    """Session hooks that apply a rounding set, faults and optional noise, and record in ``margins`` how close the
    choices of indexer and router were: one value per token, by the chunk's first position."""

    def __init__(
        self, rounding: RoundingSet, faults: Sequence[AnyFault], noise: np.random.Generator | None, model: Model,
        since: int, louder: float = 1.0,
    ):  # fmt: skip
        self.faults, self.since, self.level = faults, since, louder * NOISE
        self.parts: list[Any] = []
        self.at = 0
        self.rounding, self.noise, self.model = rounding, noise, model
        self.margins: dict[int, np.ndarray] = {}
        self.halves: list[np.ndarray] | None = None
        """If a list, the margins when each half layer and the output head begin are appended to it."""

    def begin(self, chunk: Any) -> None:
        if self.rounding.begin is not None:
            self.rounding.begin(chunk)
        if self.noise is not None and self.rounding.step:  # errors in place of the rounding of the weights
            products(chunk, None, self._dithered, None)
        self.parts = [fault.hooks() for fault in self.faults] if chunk.pos0 >= self.since else []
        for part in self.parts:
            part.begin(chunk)
        self.at = chunk.pos0
        self.margins.setdefault(self.at, np.full(len(chunk.ids), np.inf))

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if self.noise is not None and self.rounding.step:
            value = self._dithered(value)
        elif self.noise is not None and name in _NOISY:
            value = value * (1 + self.level * self.noise.standard_normal(value.shape)).astype(np.float32)
        for part in self.parts:
            value = part.tap(name, layer, value, chunk)
        if self.halves is not None and name in ("hc_attn_in", "hc_ffn_in", "result_hc_pre", "result_hc_read"):
            self.halves.append(self.margins[self.at].copy())
        if name == "indexer_scores":
            self._indexer(value, chunk)
        elif name == "ffn_moe_probs" and self.model.weights.layers[layer].ffn_gate_tid2eid is None:
            bias = self.model.weights.layers[layer].exp_probs_b
            self._closest(value if bias is None else value + bias, chunk.shape.n_used)
        return value

    def _dithered(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._dithered(each) for each in value)
        floats = isinstance(value, np.ndarray) and value.dtype == np.float32
        return self.rounding.dithered(value, self.noise) if floats and self.noise is not None else value

    def _indexer(self, scores: np.ndarray, chunk: Any) -> None:
        visible, k, known = chunk.visible(chunk.ratio), chunk.shape.index_topk, scores
        if chunk.narrowed:
            visible, known = chunk.listed(), scores[np.isfinite(scores)]
        hidden = np.arange(scores.shape[1]) >= visible[:, None]
        self._closest(np.where(hidden, -np.inf, scores), k, known.std() + 1e-30)

    def _closest(self, scores: np.ndarray, k: int, unit: float = 1.0) -> None:
        """Record each token's gap between the k-th and the next best score, divided by ``unit``, if it is the smallest
        so far."""
        if scores.shape[1] <= k:
            return
        best = -np.partition(-scores, k, axis=1)[:, : k + 1]
        kth, following = best[:, :k].min(axis=1), best[:, k]
        with np.errstate(invalid="ignore"):
            gap = np.where(np.isfinite(following), (kth - following) / unit, np.inf)
        margin = self.margins[self.at]
        margin[: len(gap)] = np.minimum(margin[: len(gap)], np.abs(gap))


class Runner:
    """Computes logits of one model with any rounding set, faults and float noise.

    formats  storage formats of the model's tensors
    many     whether the model is so small that several runs should be made in parallel (``beside``)
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.formats = {tensor.fmt.name for tensor in engine.source.tensors.values()}
        size = sum(tensor.nbytes for tensor in engine.source.tensors.values())
        self.small = size < SMALL and engine.backend != "cuda"
        self.many = engine.backend == "cpu" and engine.threads > 1 and self.small
        self.own = isinstance(engine.model, Model)
        """Whether the model is DeepSeek V4, the architecture whose faults are in ``LIBRARY``."""
        self.later = isinstance(engine.model, Model41)
        """Whether the model is DeepSeek V4.1."""
        self.has_points = self.own or self.later
        """Whether it is one of both, whose intermediates have names."""
        self.library = V41 if self.later else LIBRARY
        self.usual = () if self.has_points else ("llama.cpp",)
        """Rounding sets beside our modes that engines of this model usually have."""
        self._models: dict[tuple[str, int], Any] = {}
        self._own, self._lock = threading.local(), threading.Lock()
        self._shared: dict[Any, Any] = {}
        self._prefix: dict[int, Any] = {}

    def faults(self, mode: str, tokens: int) -> list[Fault]:
        """Return the faults that can have an effect with rounding set ``mode`` on a prompt of ``tokens`` tokens."""
        return applicable(SETS[mode].numerics, self.formats, tokens, self.library) if self.has_points else []

    def families(self) -> dict[str, Family]:
        """Return the families of faults that apply to this model's architecture, by name."""
        if self.has_points:
            return dict(LATER if self.later else FAMILIES)
        return dense_families(self.engine.model)

    def says(self, mode: str) -> str:
        """Return a one-line description of a rounding set for this model."""
        return SAYS41.get(mode, SETS[mode].says) if self.later else SETS[mode].says

    def sets(self) -> list[str]:
        """Return the names of the rounding sets that differ for this model: inputs of matrices in a float type are not
        rounded, and a dense decoder has no FP8 cache and no indexer to round."""
        if self.own:
            rounds = any(FORMATS[name].activation != "float" for name in self.formats)
            return [name for name, each in ROUNDING.items() if rounds or not each.numerics.act_quant]
        if self.later:  # whose values are never stored in 16 bits, and whose inputs are not known to be rounded
            return ["exact", "qat", "kv_fp8", "indexer_fp4", "f16", "bf16", "bf16_qat"]
        kept: dict[Any, str] = {}
        # llama.cpp rounds as our mode ds4 does, except inputs of 16-bit matrices: then ds4 is no set of its own
        same = () if self.formats & {"F16", "BF16"} else ("ds4", "int8", "int8_kv_f16")
        for name, each in ROUNDING.items():
            if name in same:
                continue
            kept.setdefault((each.numerics.act_quant, self._kv_f16(name), each.begin), name)
        return list(kept.values())

    @staticmethod
    def _kv_f16(mode: str) -> bool:
        """Return whether a dense decoder rounds cached rows to float16 in rounding set ``mode``; not in ``qat``."""
        flags = SETS[mode].numerics
        return flags.kv_f16 and (flags.act_quant or not flags.kv_fp8)

    def run(
        self,
        ids: Sequence[int],
        mode: str,
        faults: Sequence[AnyFault] = (),
        noise: np.random.Generator | None = None,
        since: int = 0,
        louder: float = 1.0,
        beside: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return logits (T, V) float32, and for each token (T,) the smallest margin of its top-k choices.

        A margin is the gap between the last chosen and the best rejected score of a router or indexer: where it is
        small, noise can change the choice.

        mode    name of the rounding set
        faults  bugs to inject: faults of the library, faults of families, or scoped faults
        noise   random generator for float noise on the inputs of blocks; None: a run without noise
        since   first position at which the faults apply
        louder  factor on the noise
        beside  compute on this thread alone, so that other threads can run at the same time
        """
        model = self._model(mode, beside)
        hooks = _Hooks(SETS[mode], faults, noise, model, since, louder)
        if faults and noise is None and self.has_points and self.small:
            if since and len(ids) - since <= BRIEF:
                return self._continued(model, ids, hooks, since)
            half = 0 if since else model.restart(min(first_half(fault, model.shape) for fault in faults))
            streams = 8 * model.shape.n_layers * model.shape.hc * model.shape.dim * len(ids)
            if half and streams < STREAMS:
                return self._resumed(model, mode, ids, hooks, half)
        session = Session(model, len(ids) + 1)
        session.hooks = hooks
        parts = [piece for piece in (ids[:since], ids[since:]) if len(piece)]
        with np.errstate(all="ignore"):
            logits = [session.extend(piece, chunk=len(piece)) for piece in parts]
        return np.concatenate(logits), np.concatenate(list(hooks.margins.values()))

    def _resumed(
        self, model: Any, mode: str, ids: Sequence[int], hooks: _Hooks, half: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the results of a run whose faults change nothing before a half layer, from there on."""
        key = mode, tuple(ids)
        with self._lock:
            shared = self._shared.pop(key, None)
        if shared is None:
            plain = _Hooks(SETS[mode], (), None, model, 0)
            plain.halves = []
            with np.errstate(all="ignore"):
                streams = resumed(model, ids, plain)[1]
            shared = streams, plain.halves
        with self._lock:
            self._shared[key] = shared  # as the newest
            while len(self._shared) > SHARED:
                del self._shared[next(iter(self._shared))]
        hooks.margins[0] = shared[1][half].copy()
        with np.errstate(all="ignore"):
            logits, _ = resumed(model, ids, hooks, half, shared[0][half])
        return np.asarray(logits), np.concatenate(list(hooks.margins.values()))

    def _continued(
        self, model: Any, ids: Sequence[int], hooks: _Hooks, since: int
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return the results of a run whose faults begin at position ``since``, from a snapshot taken there."""
        key = id(model), tuple(ids[:since])
        kept = self._prefix.get(threading.get_ident())
        if kept is None or kept[0] != key:
            plain = _Hooks(hooks.rounding, (), None, model, 0)
            session = Session(model, len(ids) + 1)
            session.hooks = plain
            with np.errstate(all="ignore"):
                logits = session.extend(ids[:since], chunk=since)
            if len(self._prefix) > 2 * self.engine.threads:  # of threads that have ended
                self._prefix.clear()
            kept = self._prefix[threading.get_ident()] = key, session.snapshot(), logits, plain.margins
        _, snapshot, logits, margins = kept
        session = Session(model, len(ids) + 1)
        session.hooks = hooks
        session.restore(snapshot)
        hooks.margins.update({at: margin.copy() for at, margin in margins.items()})
        with np.errstate(all="ignore"):
            after = session.extend(ids[since:], chunk=len(ids) - since)
        return np.concatenate((logits, after)), np.concatenate(list(hooks.margins.values()))

    def _model(self, mode: str, beside: bool) -> Any:
        model = self.engine.model
        if beside and not hasattr(self._own, "ops"):
            self._own.ops = private_backend(self.engine.backend)
        key = mode, threading.get_ident() if beside else 0
        if key not in self._models:
            ops = self._own.ops if beside else model.ops
            numerics = SETS[mode].numerics
            kind = Model if self.own else Model41 if self.later else DenseModel
            self._models[key] = made = kind(model.shape, model.weights, ops, numerics)
            if isinstance(made, DenseModel):
                made.numerics = made.numerics._replace(kv_f16=self._kv_f16(mode))
            made.steering = model.steering
        return self._models[key]


def code_files() -> list[Path]:
    """Return every Python module that the results of a run depend on."""
    from ds4ref import kernels

    house = Path(__file__).parents[1]
    rooms = [house / name for name in ("archs", "residency", "session", "variants", "weights")] + [
        Path(kernels.__file__ or "").parent
    ]
    single = [house / f"{name}.py" for name in ("backends", "decode", "engine", "engine_options", "numerics")]
    return single + [path for room in rooms for path in sorted(room.rglob("*.py"))]


@cache
def code_digest() -> str:
    """Return the SHA-256 of ``code_files`` and of the numeric libraries' versions."""
    digest = hashlib.sha256(f"{np.__version__} {version('numba')}".encode())
    for path in code_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()
