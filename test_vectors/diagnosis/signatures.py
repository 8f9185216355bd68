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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.files import file_digest
from ds4ref.nano.cache import cache_dir
from ds4ref.variants import LIBRARY, Fault, Runner, code_digest
from ds4ref.variants.runner import AnyFault

from ..observation import log_softmax

REPLICAS = 8
"""Clean runs with float noise per rounding set: their spread is what a right engine may differ by."""
CACHE_LIMIT = 2 << 30
LOUD = 32.0
"""Factor on the usual noise at which near ties of top-k decisions fall either way."""
MEMORY_LIMIT = 1 << 30
"""Bytes of results that are kept in memory besides."""


@dataclass(frozen=True)
class Signature:
    """Log probabilities (T, V) float32, and per token how close its closest top-k decision is to a tie (T,)."""

    logprobs: np.ndarray
    margin: np.ndarray


class Signatures:
    """All variants of one model on one token list."""

    def __init__(self, engine: Engine, ids: Sequence[int]):
        self.engine, self.ids = engine, np.asarray(ids, np.int32)
        self.runner = Runner(engine)
        key = hashlib.sha256()
        key.update(f"{_model(engine)} {code_digest()} {engine.backend}".encode() + self.ids.tobytes())
        self._folder = cache_dir() / "signatures" / key.hexdigest()[:24]
        self._memory: dict[str, Signature] = {}
        self._bytes = 0

    def faults(self, mode: str) -> list[Fault]:
        """The faults that can show here."""
        return self.runner.faults(mode, len(self.ids))

    def get(self, mode: str, fault: str | None = None) -> Signature:
        """Clean, or with one fault."""
        faults = [LIBRARY[fault]] if fault else []
        return self._kept(f"{mode}.{fault or 'clean'}", lambda: self._run(mode, faults, None, self.ids))

    def replicas(self, mode: str, fault: str | None = None, count: int = REPLICAS) -> list[Signature]:
        """Runs with float noise, clean or with one fault."""
        faults = [LIBRARY[fault]] if fault else []
        return [self.noisy(mode, faults, fault or "clean", i) for i in range(count)]

    def noisy(self, mode: str, faults: Sequence[AnyFault], name: str, i: int, since: int = 0) -> Signature:
        """Run ``i`` with float noise; ``name`` says which faults, for the cache."""
        noise = np.random.default_rng([i, 77])
        return self._kept(f"{mode}.{name}.noise{i}", lambda: self._run(mode, faults, noise, self.ids, since))

    def loud(self, mode: str, faults: Sequence[AnyFault], name: str, i: int, since: int = 0) -> Signature:
        """The same with so much noise that near ties fall either way."""
        noise = np.random.default_rng([i, 78])
        return self._kept(f"{mode}.{name}.loud{i}", lambda: self._run(mode, faults, noise, self.ids, since, LOUD))

    def made(self, mode: str, faults: Sequence[AnyFault], name: str, since: int = 0) -> Signature:
        """Any faults together; ``name`` identifies them, parameters, parts and ``since`` included."""
        return self._kept(f"{mode}.{name}", lambda: self._run(mode, faults, None, self.ids, since))

    def on(self, name: str, mode: str, ids: Sequence[int]) -> Signature:
        """Clean, on other tokens; ``name`` says which, and with their digest is part of the file name."""
        tokens = np.asarray(ids, np.int32)
        digest = hashlib.sha256(tokens.tobytes()).hexdigest()[:12]
        return self._kept(f"{mode}.{name}.{digest}", lambda: self._run(mode, [], None, tokens))

    def run(self, mode: str, faults: Sequence[AnyFault], seed: int | None = None, since: int = 0) -> np.ndarray:
        """Logits (T, V) of any combination, not kept: for tests and calibration. ``seed`` adds float noise."""
        noise = None if seed is None else np.random.default_rng(seed)
        return self.runner.run(self.ids.tolist(), mode, faults, noise, since)[0]

    # --- inside

    def _run(
        self, mode: str, faults: Sequence[AnyFault], noise: np.random.Generator | None, ids: np.ndarray, since: int = 0,
        louder: float = 1.0,
    ) -> Signature:  # fmt: skip
        logits, margin = self.runner.run(ids.tolist(), mode, faults, noise, since, louder)
        with np.errstate(all="ignore"):
            return Signature(log_softmax(logits).astype(np.float32), margin.astype(np.float32))

    def _path(self, name: str) -> Path:
        plain = (
            name if name.replace(".", "").replace("_", "").isalnum() else hashlib.sha256(name.encode()).hexdigest()[:24]
        )
        return self._folder / f"{plain}.npy"

    def _kept(self, name: str, compute: Callable[[], Signature]) -> Signature:
        if name not in self._memory:
            found = self._loaded(name, compute)
            self._bytes += found.logprobs.nbytes
            if self._bytes > MEMORY_LIMIT:
                self._memory.clear()
                self._bytes = found.logprobs.nbytes
            self._memory[name] = found
        return self._memory[name]

    def _loaded(self, name: str, compute: Callable[[], Signature]) -> Signature:
        path = self._path(name)
        try:
            table = np.load(path, allow_pickle=False)
            if table.dtype == np.float32 and table.ndim == 2 and table.shape[1] == self.engine.shape.vocab + 1:
                return Signature(table[:, :-1], table[:, -1])
        except (OSError, ValueError, EOFError):
            pass
        found = compute()
        try:
            if not self._folder.exists():
                _make_room(self._folder.parent)
                self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{path.stem}.{os.getpid()}.tmp.npy"
            np.save(temporary, np.column_stack((found.logprobs, found.margin)))
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


def _model(engine: Engine) -> str:
    """The model file; one that is too large to read whole is also known by its time of change."""
    digest = file_digest(engine.path)
    return digest if digest.startswith("sha256:") else f"{digest} {Path(engine.path).stat().st_mtime_ns}"
