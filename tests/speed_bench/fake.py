"""A fake engine without weights on a fake clock: every operation takes an exactly known time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ds4ref import sampling
from ds4ref.archs import costs_of
from ds4ref.costs import PREFILL_CHUNK
from ds4ref.errors import Cancelled
from ds4ref.nano.train.shape import SHAPE
from ds4ref.numerics import MODES
from ds4ref.weights.gguf import GGUFFile

PREFILL_S, EVAL_S, PICK_S, SNAPSHOT_S, RESTORE_S, READY_S = 0.25, 0.5, 0.125, 1000.0, 5000.0, 32.0


class Clock:
    """A clock that advances only on request."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeSession:
    """Session whose prediction is a fixed function of the position, with EOS best; it logs all calls."""

    def __init__(self, clock: Clock, ctx: int, eos: int = 1, vocab: int = 50):
        self.clock, self.ctx, self.eos, self.vocab = clock, ctx, eos, vocab
        self.tokens: list[int] = []
        self.log: list[tuple] = []
        self.fail: dict[str, Exception] = {}
        self.dead = False
        self.prepared: set[int] = set()
        """Positions whose tokens the session has prepared; one more takes ``READY_S``."""

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def logits(self) -> np.ndarray:
        if self.dead:
            return np.full(self.vocab, np.nan, np.float32)
        logits = np.zeros(self.vocab, np.float32)
        logits[2 + (3 * self.pos) % (self.vocab - 2)] = 5
        logits[self.eos] = 9
        return logits

    def _called(self, name: str, *details, seconds: float) -> None:
        self.log.append((name, *details))
        if name in self.fail:
            raise self.fail[name]
        self.clock.now += seconds

    def sync(self, tokens, progress=None, cancel=None) -> None:
        assert tokens[: self.pos] == self.tokens, "the live tokens must be a prefix: nothing is computed twice"
        if cancel and cancel():
            raise Cancelled("stopped")
        self._called("sync", self.pos, len(tokens), seconds=PREFILL_S * (len(tokens) - self.pos))
        self.tokens = list(tokens)
        if progress:
            progress(len(tokens), len(tokens))

    def argmax(self, exclude=None) -> int:
        self.clock.now += PICK_S
        return sampling.argmax(self.logits, exclude)

    def logit(self, token: int) -> float:
        return float(self.logits[token])

    def prepare(self, positions) -> int:
        new = set(positions) - self.prepared
        self.prepared |= new
        self._called("prepare", len(new), seconds=READY_S if new else 0.0)
        return len(new)

    def append(self, token: int) -> None:
        self._called("append", token, seconds=EVAL_S)
        self.tokens.append(token)

    def snapshot(self):
        self._called("snapshot", seconds=SNAPSHOT_S)
        return list(self.tokens)

    def restore(self, snapshot) -> None:
        self._called("restore", seconds=RESTORE_S)
        self.tokens = list(snapshot)

    def payload_bytes(self) -> int:
        return 1000 + 10 * self.pos


class FakeEngine:
    """The part of an engine that the command uses, with the embedded model's vocabulary."""

    prefill_chunk = PREFILL_CHUNK
    steering = None
    also: dict[str, str] = {}
    cluster = None

    def __init__(self, path, clock: Clock, **options):
        self.path, self.clock, self.options = path, clock, options
        self.backend, self.threads, self.shape = options.get("backend", "cpu"), options.get("threads") or 2, SHAPE
        self.model = SimpleNamespace(numerics=MODES[options.get("numerics", "qat")])
        self.source = GGUFFile.open(path)
        self.sessions: list[FakeSession] = []

    def costs(self):
        return costs_of(self.source, self.model.numerics.act_quant)

    def session(self, ctx: int) -> FakeSession:
        self.sessions.append(FakeSession(self.clock, ctx))
        return self.sessions[-1]

    def close(self) -> None:
        self.source.close()
