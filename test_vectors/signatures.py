"""What the model computes on given tokens in each rounding set, with each fault, and with how much noise.

Results are kept on disk under a key of model, tokens and code, so that only the first diagnosis of a model is slow.

    library = Signatures(engine, ids)
    library.get("exact")                        clean, mode exact
    library.get("ds4", "no_sink")               one fault in mode ds4
    library.replicas("ds4")                     clean runs with float noise: what another correct engine may look like
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import kernels
from ds4ref.engine import Engine
from ds4ref.model.fault_library import LIBRARY, applicable
from ds4ref.model.faults import Fault
from ds4ref.model.forward import Model
from ds4ref.nano.cache import cache_dir
from ds4ref.session.session import Session

from .observation import log_softmax
from .rounding import ROUNDING, RoundingSet

NOISE = {False: 4 * 2.0**-23, True: 16 * 2.0**-23}
"""Relative noise put on block inputs for a replica, by RoundingSet.coarse: a few units in the last place, as another
summation order gives; more where steps amplify it, so that other recipes for angles and exponentials are covered."""

REPLICAS = 4
CACHE_LIMIT = 2 << 30
_NOISY = frozenset({"attn_norm", "ffn_norm", "KVnorm", "q_lora_norm", "result_norm"})


@dataclass(frozen=True)
class Signature:
    """Log probabilities (T, V) float32, and per token how close its closest top-k decision is to a tie (T,)."""

    logprobs: np.ndarray
    margin: np.ndarray


class _Hooks:
    """A rounding set, at most one fault, noise if asked for, and the record of margins."""

    def __init__(self, rounding: RoundingSet, fault: Fault | None, noise: np.random.Generator | None, model: Model):
        self.parts: list[Any] = [fault.hooks()] if fault else []
        self.rounding, self.noise, self.model = rounding, noise, model
        self.margin: np.ndarray | None = None

    def begin(self, chunk: Any) -> None:
        if self.rounding.begin is not None:
            self.rounding.begin(chunk)
        for part in self.parts:
            part.begin(chunk)
        if self.margin is None:
            self.margin = np.full(len(chunk.ids), np.inf)

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        if self.noise is not None and name in _NOISY:
            value = value * (1 + NOISE[self.rounding.coarse] * self.noise.standard_normal(value.shape)).astype(
                np.float32
            )
        for part in self.parts:
            value = part.tap(name, layer, value, chunk)
        if name == "indexer_scores":
            self._indexer(value, chunk)
        elif name == "ffn_moe_probs" and self.model.weights.layers[layer].ffn_gate_tid2eid is None:
            bias = self.model.weights.layers[layer].exp_probs_b
            self._closest(value if bias is None else value + bias, chunk.shape.n_used)
        return value

    def _indexer(self, scores: np.ndarray, chunk: Any) -> None:
        visible, k = chunk.visible(4), chunk.shape.index_topk
        hidden = np.arange(scores.shape[1]) >= visible[:, None]
        self._closest(np.where(hidden, -np.inf, scores), k, scores.std() + 1e-30)

    def _closest(self, scores: np.ndarray, k: int, unit: float = 1.0) -> None:
        """Gap between the k-th and the next best, in units of the scores' spread."""
        if scores.shape[1] <= k:
            return
        best = -np.partition(-scores, k, axis=1)[:, : k + 1]
        kth, following = best[:, :k].min(axis=1), best[:, k]
        with np.errstate(invalid="ignore"):
            gap = np.where(np.isfinite(following), (kth - following) / unit, np.inf)
        assert self.margin is not None
        self.margin[: len(gap)] = np.minimum(self.margin[: len(gap)], np.abs(gap))


class Signatures:
    """All variants of one model on one token list. ``compute`` False: only what is on disk already."""

    def __init__(self, engine: Engine, ids: Sequence[int], progress: Callable[[str], None] | None = None):
        self.engine, self.ids = engine, np.asarray(ids, np.int32)
        self.progress = progress or (lambda what: None)
        self.formats = {tensor.fmt.name for tensor in engine.gguf.tensors.values()}
        key = hashlib.sha256()
        key.update(f"{_model_digest(engine)} {_code_digest()} {engine.backend}".encode() + self.ids.tobytes())
        self._folder = cache_dir() / "signatures" / key.hexdigest()[:24]
        self._models: dict[str, Model] = {}

    def faults(self, mode: str) -> list[Fault]:
        """The faults that can show here."""
        return applicable(ROUNDING[mode].numerics, self.formats, len(self.ids))

    def get(self, mode: str, fault: str | None = None) -> Signature:
        """Clean, or with one fault."""
        return self._kept(f"{mode}.{fault or 'clean'}", lambda: self._run(mode, fault, None, self.ids))

    def replicas(self, mode: str) -> list[Signature]:
        """Clean runs with float noise."""
        return [self._replica(mode, i) for i in range(REPLICAS)]

    def _replica(self, mode: str, i: int) -> Signature:
        noise = np.random.default_rng([i, 77])
        return self._kept(f"{mode}.noise{i}", lambda: self._run(mode, None, noise, self.ids))

    def on(self, name: str, mode: str, ids: Sequence[int]) -> Signature:
        """Clean, on other tokens; ``name`` says which and is part of the file name."""
        return self._kept(f"{mode}.{name}", lambda: self._run(mode, None, None, np.asarray(ids, np.int32)))

    def known(self, mode: str, fault: str) -> bool:
        """Whether ``get`` would only read a file."""
        return self._path(f"{mode}.{fault}").exists()

    def run(self, mode: str, faults: Sequence[Fault], seed: int | None = None) -> np.ndarray:
        """Logits (T, V) of any combination, not kept: for tests and calibration. ``seed`` adds float noise."""
        session, hooks = self._session(mode, None, None if seed is None else np.random.default_rng(seed), self.ids)
        hooks.parts = [fault.hooks() for fault in faults]
        return session.extend(self.ids.tolist(), chunk=len(self.ids))

    # --- inside

    def _run(self, mode: str, fault: str | None, noise: np.random.Generator | None, ids: np.ndarray) -> Signature:
        self.progress(f"{mode} {fault or ''}".strip())
        session, hooks = self._session(mode, LIBRARY[fault] if fault else None, noise, ids)
        with np.errstate(all="ignore"):
            logits = session.extend(ids.tolist(), chunk=len(ids))
            logprobs = log_softmax(logits).astype(np.float32)
        assert hooks.margin is not None
        return Signature(logprobs, hooks.margin.astype(np.float32))

    def _session(
        self, mode: str, fault: Fault | None, noise: np.random.Generator | None, ids: np.ndarray
    ) -> tuple[Session, _Hooks]:
        if mode not in self._models:
            model = self.engine.model
            self._models[mode] = Model(model.shape, model.weights, model.ops, ROUNDING[mode].numerics)
        session = Session(self._models[mode], len(ids) + 1)
        hooks = _Hooks(ROUNDING[mode], fault, noise, self._models[mode])
        session.hooks = hooks
        return session, hooks

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def _kept(self, name: str, compute: Callable[[], Signature]) -> Signature:
        path = self._path(name)
        try:
            with np.load(path, allow_pickle=False) as z:
                return Signature(z["logprobs"], z["margin"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass
        found = compute()
        try:
            if not self._folder.exists():
                _make_room(self._folder.parent)
                self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{name}.{os.getpid()}.tmp.npz"
            np.savez(temporary, logprobs=found.logprobs, margin=found.margin)
            os.replace(temporary, path)
        except OSError:
            pass  # a cache that cannot be written costs time, nothing else
        return found


def _make_room(root: Path) -> None:
    """Forget the oldest models while the cache is over its limit."""
    if not root.is_dir():
        return
    folders = sorted((f for f in root.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime)
    sizes = {folder: sum(f.stat().st_size for f in folder.iterdir()) for folder in folders}
    total = sum(sizes.values())
    for folder in folders:
        if total <= CACHE_LIMIT:
            return
        total -= sizes[folder]
        shutil.rmtree(folder, ignore_errors=True)


def _model_digest(engine: Engine) -> str:
    """SHA-256 of the file; of its head, tail, size and time where reading all of it would take long."""
    path, digest = Path(engine.path), hashlib.sha256()
    with open(path, "rb") as file:
        if engine.gguf.size <= 1 << 30:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(file.read(16 << 20))
        file.seek(-(16 << 20), os.SEEK_END)
        digest.update(file.read())
    digest.update(f"{engine.gguf.size} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()


@cache
def _code_digest() -> str:
    """SHA-256 of every module that a signature depends on."""
    import ds4ref.model
    import ds4ref.session

    digest = hashlib.sha256(np.__version__.encode())
    for package in (ds4ref.model, ds4ref.session, kernels):
        for path in sorted(Path(package.__file__ or "").parent.rglob("*.py")):
            digest.update(path.read_bytes())
    for name in ("signatures.py", "rounding.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()
