"""Log probabilities of our model on one token list, by rounding set, injected fault (bug) and float noise.

Results are cached on disk under a key of model, tokens and code, so that only the first diagnosis of a model is slow.

    library = Signatures(engine, ids)
    library.get("exact")                        mode exact without a fault
    library.of(run)                             any other run
    library.noisy(run)                          a run with float noise: how much correct engines differ
    library.ahead(runs)                         start runs in the background that will be requested later
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ds4ref.engine import Engine
from ds4ref.files import file_digest
from ds4ref.nano.cache import cache_dir
from ds4ref.variants import MODE_NAMES, Fault, Runner, code_digest
from ds4ref.variants.runner import AnyFault

from ..elicit import tokenizer_of
from ..observation import log_softmax
from .prompts import PromptBug

REPLICAS = 8
"""Number of runs with float noise per compared candidate; their differences are what correct engines may differ by."""
CACHE_LIMIT = 2 << 30
LOUD = 32.0
"""Factor on the noise in runs that decide near ties of a top-k (``case.TIE``) either way, about ``FOREIGN``."""
MEMORY_LIMIT = 64 << 20
"""Bytes of results kept in memory."""
PENDING = 4
"""Background runs that are started before they are requested, per thread: each keeps its result until then."""


@dataclass(frozen=True)
class Signature:
    """Result of one run of the model.

    logprobs  (T, V) float32, or (T, K) of the library's ``columns``
    margin    (T,) how near the token's closest top-k decision was to a tie; 0 is a tie
    """

    logprobs: np.ndarray
    margin: np.ndarray


@dataclass(frozen=True)
class Pass:
    """One run of the model, identified by its settings.

    mode    rounding set
    faults  bugs that are injected, from position ``since`` on
    name    identifies ``faults`` with their parameters and parts of the model
    noise   seed of the float noise, None for a run without
    louder  multiply the noise by ``LOUD``, so that near ties of a top-k are decided either way
    until   number of tokens to run; None for all
    """

    mode: str
    faults: tuple[AnyFault, ...] = ()
    name: str = "clean"
    since: int = 0
    noise: int | None = None
    louder: bool = False
    until: int | None = None

    @property
    def key(self) -> str:
        """Return the cache key of the run's result."""
        noise = "" if self.noise is None else f".{'loud' if self.louder else 'noise'}{self.noise}"
        return f"{self.mode}.{self.name}{noise}" + ("" if self.until is None else f".to{self.until}")


class Signatures:
    """Cached runs of one model on one token list.

    columns  ids of the tokens whose log probabilities are kept, ascending (``columns.thinned``); None: all
    """

    def __init__(self, engine: Engine, ids: Sequence[int], columns: np.ndarray | None = None):
        self.engine, self.ids, self.columns = engine, np.asarray(ids, np.int32), columns
        self.runner = Runner(engine)
        self.families = self.runner.families()
        """Families of faults (wrong constants) that are possible in this model, by name."""
        self.sets = self.runner.sets()
        """Names of the rounding sets that give different numbers for this model."""
        self.modes = [name for name in (*MODE_NAMES, *self.runner.usual) if name in self.sets]
        key = hashlib.sha256()
        key.update(f"{_model(engine)} {code_digest()} {engine.backend}".encode() + self.ids.tobytes())
        key.update(b"" if columns is None else columns.tobytes())
        self._folder = cache_dir() / "signatures" / key.hexdigest()[:24]
        self._memory: dict[str, Signature] = {}
        self._bytes = 0
        self.brief = False
        """Whether this is the ``head`` of another library."""
        self._coming: dict[str, Future[Signature]] = {}
        self._waiting: dict[str, Pass] = {}
        self._pool: ThreadPoolExecutor | None = None

    @cached_property
    def prompt_keys(self) -> list[PromptBug]:
        """Mistakes in the keys of the model's tokenizer; none for DeepSeek V4, or without a tokenizer."""
        from .prompt_keys import prompt_keys

        tokenizer = None if self.runner.own else tokenizer_of(self.engine)
        return [] if tokenizer is None else prompt_keys(self.engine, tokenizer)

    @property
    def width(self) -> int:
        """Return the number of log probabilities that are kept of each token."""
        return self.engine.shape.vocab if self.columns is None else len(self.columns)

    def faults(self, mode: str) -> list[Fault]:
        """Return the known faults that can change the numbers on these tokens in rounding set ``mode``."""
        return self.runner.faults(mode, len(self.ids))

    def get(self, mode: str) -> Signature:
        """Return the result of a rounding set without a fault."""
        return self.of(Pass(mode))

    def noisy(self, run: Pass, louder: bool = False, count: int = REPLICAS) -> list[Signature]:
        """Return the results of a run repeated ``count`` times with different float noise; ``louder``: see Pass."""
        runs = [replace(run, noise=i, louder=louder) for i in range(count)]
        self.ahead(runs)
        return [self.of(each) for each in runs]

    def of(self, run: Pass) -> Signature:
        """Return the result of a run, computed or loaded from the cache."""
        run = replace(run, until=len(self.ids)) if self.brief and run.until is None else run
        return self._kept(run.key, lambda: self._run(run), run.until is None)

    def ahead(self, runs: Iterable[Pass]) -> None:
        """Start runs in the background that will be requested later, as many at a time as the engine has threads.

        That is faster than one run on several threads, as a run is too short for these.
        """
        if not self.runner.many:
            return
        for run in runs:
            new = run.key not in self._memory and run.key not in self._coming
            if new and (run.until is not None or not self._path(run.key).exists()):
                self._waiting[run.key] = run
        self._start()

    def _start(self) -> None:
        """Start waiting runs in the background, up to ``PENDING`` per thread."""
        while self._waiting and len(self._coming) < PENDING * self.engine.threads:
            key = next(iter(self._waiting))
            run = self._waiting.pop(key)
            self._pool = self._pool or ThreadPoolExecutor(self.engine.threads, "ds4ref-runs")
            self._coming[key] = self._pool.submit(self._computed, key, partial(self._run, run, True), run.until is None)

    def close(self) -> None:
        """Cancel background runs that were not requested."""
        self._coming.clear()
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def on(self, name: str, mode: str, ids: Sequence[int]) -> Signature:
        """Return the result on other tokens, without a fault; ``name`` and the digest of ``ids`` form the cache key."""
        tokens = np.asarray(ids, np.int32)
        digest = hashlib.sha256(tokens.tobytes()).hexdigest()[:12]
        return self._kept(f"{mode}.{name}.{digest}", lambda: self._run(Pass(mode), ids=tokens), not self.brief)

    def head(self, count: int) -> Signatures:
        """Return this library for the first ``count`` tokens; its runs are not kept."""
        part = copy.copy(self)
        part.ids, part.brief = self.ids[:count], True
        return part

    def run(self, mode: str, faults: Sequence[AnyFault], seed: int | None = None, since: int = 0) -> np.ndarray:
        """Compute logits (T, V) with any faults, uncached, for tests and calibration.

        ``seed`` adds float noise; the faults begin at position ``since``.
        """
        noise = None if seed is None else np.random.default_rng(seed)
        return self.runner.run(self.ids.tolist(), mode, faults, noise, since)[0]

    # --- inside

    def _run(self, run: Pass, beside: bool = False, ids: np.ndarray | None = None) -> Signature:
        """Compute one run, on other tokens if ``ids`` is given; ``beside``: other runs are computed meanwhile."""
        noise = None if run.noise is None else np.random.default_rng([run.noise, 78 if run.louder else 77])
        tokens = (self.ids if ids is None else ids)[: run.until].tolist()
        logits, margin = self.runner.run(
            tokens, run.mode, run.faults, noise, run.since, LOUD if run.louder else 1.0, beside
        )
        logprobs = np.zeros((len(logits), self.width), np.float32)
        first = run.since if run.until else 0  # before it, a run of the first tokens predicts what a clean one does
        with np.errstate(all="ignore"):
            logprobs[first:] = self._logprobs(logits[first:])
            return Signature(logprobs, margin.astype(np.float32))

    def _logprobs(self, logits: np.ndarray) -> np.ndarray:
        """Return the log probabilities of logits (T, V), float32, of the library's columns."""
        if self.columns is None:
            return log_softmax(logits).astype(np.float32)
        total = np.empty(len(logits))
        for at, row in enumerate(logits):  # row by row, as the vocabulary is large
            top = float(row.max())
            total[at] = top + np.log(np.exp(row - np.float32(top)).sum(dtype=np.float64))
        return (logits[:, self.columns] - total[:, None]).astype(np.float32)

    def _path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.npy"

    def _kept(self, name: str, compute: Callable[[], Signature], lasting: bool = True) -> Signature:
        """Return the result ``name`` from memory, from a background run, from disk, or else by ``compute``.

        ``lasting``: keep it; a run of the first tokens is computed again as fast as it is read.
        """
        if name not in self._memory:
            self._waiting.pop(name, None)
            coming = self._coming.pop(name, None)
            try:
                signature = coming.result() if coming else self._loaded(name, compute) if lasting else compute()
            except BaseException:  # Ctrl-C above all: nobody waits for the rest
                self.close()
                raise
            self._start()
            if not lasting:
                return signature
            self._bytes += signature.logprobs.nbytes
            while self._bytes > MEMORY_LIMIT and self._memory:
                self._bytes -= self._memory.pop(next(iter(self._memory))).logprobs.nbytes
            self._memory[name] = signature
        return self._memory[name]

    def _loaded(self, name: str, compute: Callable[[], Signature]) -> Signature:
        path = self._path(name)
        try:
            table = np.load(path, allow_pickle=False)
            if table.dtype == np.float32 and table.ndim == 2 and table.shape[1] == self.width + 1:
                return Signature(table[:, :-1], table[:, -1])
        except (OSError, ValueError, EOFError):
            pass
        return self._computed(name, compute)

    def _computed(self, name: str, compute: Callable[[], Signature], lasting: bool = True) -> Signature:
        """Compute a result and, if ``lasting``, store it on disk under ``name``."""
        signature = compute()
        if lasting:
            self._save(self._path(name), signature)
        return signature

    def _save(self, path: Path, signature: Signature) -> None:
        """Write a result to the disk cache, atomically; errors are ignored."""
        try:
            if not self._folder.exists():
                _make_room(self._folder.parent)
                self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._folder / f".{path.stem}.{os.getpid()}.{threading.get_ident()}.tmp.npy"
            np.save(temporary, np.column_stack((signature.logprobs, signature.margin)))
            os.replace(temporary, path)
        except OSError:
            pass  # a cache that cannot be written costs time, nothing else


def _make_room(root: Path) -> None:
    """Delete cached runs in the folder ``root``, the oldest model's first, while they exceed ``CACHE_LIMIT``."""
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
    """Digest of the model file, with its modification time if it is too large to be hashed completely."""
    digest = file_digest(engine.path)
    return digest if digest.startswith("sha256:") else f"{digest} {Path(engine.path).stat().st_mtime_ns}"
