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
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.files import file_digest
from ds4ref.nano.cache import cache_dir
from ds4ref.variants import LIBRARY, Fault, Runner, code_digest

from .observation import log_softmax

REPLICAS = 4
CACHE_LIMIT = 2 << 30


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

    def faults(self, mode: str) -> list[Fault]:
        """The faults that can show here."""
        return self.runner.faults(mode, len(self.ids))

    def get(self, mode: str, fault: str | None = None) -> Signature:
        """Clean, or with one fault."""
        faults = [LIBRARY[fault]] if fault else []
        return self._kept(f"{mode}.{fault or 'clean'}", lambda: self._run(mode, faults, None, self.ids))

    def replicas(self, mode: str) -> list[Signature]:
        """Clean runs with float noise."""
        return [self._replica(mode, i) for i in range(REPLICAS)]

    def on(self, name: str, mode: str, ids: Sequence[int]) -> Signature:
        """Clean, on other tokens; ``name`` says which, and with their digest is part of the file name."""
        tokens = np.asarray(ids, np.int32)
        digest = hashlib.sha256(tokens.tobytes()).hexdigest()[:12]
        return self._kept(f"{mode}.{name}.{digest}", lambda: self._run(mode, [], None, tokens))

    def run(self, mode: str, faults: Sequence[Fault], seed: int | None = None) -> np.ndarray:
        """Logits (T, V) of any combination, not kept: for tests and calibration. ``seed`` adds float noise."""
        noise = None if seed is None else np.random.default_rng(seed)
        return self.runner.run(self.ids.tolist(), mode, faults, noise)[0]

    # --- inside

    def _replica(self, mode: str, i: int) -> Signature:
        noise = np.random.default_rng([i, 77])
        return self._kept(f"{mode}.noise{i}", lambda: self._run(mode, [], noise, self.ids))

    def _run(self, mode: str, faults: Sequence[Fault], noise: np.random.Generator | None, ids: np.ndarray) -> Signature:
        logits, margin = self.runner.run(ids.tolist(), mode, faults, noise)
        with np.errstate(all="ignore"):
            return Signature(log_softmax(logits).astype(np.float32), margin.astype(np.float32))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def _kept(self, name: str, compute: Callable[[], Signature]) -> Signature:
        path = self._path(name)
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as z:
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


def _model(engine: Engine) -> str:
    """The model file; one that is too large to read whole is also known by its time of change."""
    digest = file_digest(engine.path)
    return digest if digest.startswith("sha256:") else f"{digest} {Path(engine.path).stat().st_mtime_ns}"
