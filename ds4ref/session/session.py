"""A session: one timeline of tokens with its caches and the logits that predict the next one.

Not thread-safe. Valid means: caches and logits correspond exactly to ``tokens``. Whatever goes wrong inside an
evaluation leaves the session either at the last finished chunk (cancelled) or invalid (any other failure).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from .. import sampling
from ..archs import Model
from ..decode import MOST_RANKS, Decoder, Left
from ..errors import Cancelled, ContextError, SessionError, TokenError

Progress = Callable[[int, int], None]
Cancel = Callable[[], bool]

PREFILL_CHUNK = 512
"""Tokens per prefill chunk unless the caller says otherwise; boundaries fall on absolute multiples of it."""

STREAMS_KEPT = 32
"""Chunks of up to so many tokens keep the streams of all of them, so that ``rewind`` finds its logits."""


@dataclass(frozen=True)
class Snapshot:
    """A frontier, held in memory; restoring it, in any session of the model, is exact and leaves it usable."""

    model: Model
    tokens: tuple[int, ...]
    cache: Any
    logits: np.ndarray

    @property
    def own_bytes(self) -> int:
        """Memory that only this snapshot needs."""
        return self.cache.own_bytes + self.logits.nbytes + 8 * len(self.tokens)

    @property
    def shared(self) -> tuple[int, int]:
        """Rows that other snapshots may count on as well: whose they are, and bytes of them."""
        return self.cache.shared


class Session:
    """One timeline of a model. Made by ``Engine.session``."""

    def __init__(self, model: Model, ctx: int):
        if ctx < 1:
            raise ContextError(f"a context must hold at least 1 token, got {ctx}")
        self.model, self.ctx = model, ctx
        self._hooks: Any = None
        self._tokens: list[int]
        self._streams: Any
        self._logits: np.ndarray | None
        self._left: Left | None
        self.invalidate()

    # --- state

    @property
    def hooks(self) -> Any:
        """What records or edits intermediates (the architecture's ``hooks.Hooks``); attach it before the first token.
        With hooks every op runs on its own, and caches keep float32."""
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: Any) -> None:
        self._hooks = hooks
        if not self._tokens:
            self.invalidate()

    @property
    def tokens(self) -> list[int]:
        """The tokens evaluated so far (a copy)."""
        return list(self._tokens)

    @property
    def pos(self) -> int:
        """Number of tokens evaluated."""
        return len(self._tokens)

    @property
    def valid(self) -> bool:
        """True when there are logits to sample from."""
        return self._streams is not None or self._logits is not None

    @property
    def logits(self) -> np.ndarray:
        """Logits (V,) float32 for the token at position ``pos``; SessionError if the session is empty or invalid.
        Those of a decoded token are brought to the host when they are first asked for."""
        if self._logits is None:
            if self._left is not None:
                self._logits = self.model.ops.host(self._left.logits)[0].copy()
            elif self._streams is not None:
                self._logits = self._head(self._streams[-1:], self.pos - 1)[0]
            else:
                raise SessionError("the session holds no tokens: sync or load first")
        return self._logits

    @property
    def streams(self) -> np.ndarray:
        """What the layers left of the last token, before the output head, float32 (1, C, D); SessionError if that is
        not known: an empty or restored session has only logits."""
        if self._streams is None:
            raise SessionError("the session knows no streams: evaluate a token first")
        found = self.model.ops.host(self._streams[-1:])
        return found if self._left is None else found.copy()

    def _last(self, X: Any) -> Any:
        """The last token's streams without the memory of the others."""
        ops = self.model.ops
        return ops.upload(ops.host(X[-1:]).copy())

    def _head(self, X: Any, pos0: int) -> np.ndarray:
        return self.model.ops.host(self.model.logits(X, pos0, self.hooks))

    def invalidate(self) -> None:
        """Forget everything."""
        self._start(self._new_cache(), [])

    def _new_cache(self) -> Any:
        # hooks may change what is rounded, so only without them are rows known to fit a smaller type
        return self.model.cache(self.ctx, exact=self._hooks is not None)

    def _start(self, cache: Any, tokens: list[int], logits: np.ndarray | None = None) -> None:
        """Go on from another cache; recordings of the old one go with it."""
        self._cache, self._decoder = cache, Decoder.of(self.model, cache)
        self._tokens = tokens
        self._know(None, logits)

    def _know(self, streams: Any, logits: np.ndarray | None, left: Left | None = None) -> None:
        """What is known of the last token: of one that was replayed what it ``left``, which holds until the next."""
        self._streams, self._logits, self._left = streams, logits, left

    # --- evaluation

    def sync(
        self,
        tokens: Sequence[int],
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        chunk: int | None = None,
    ) -> None:
        """Bring the session to exactly ``tokens``.

        If they extend what is there, only the rest is evaluated; otherwise everything is. progress(current, total) is
        called with absolute positions before the first and after every chunk; at that moment the session is valid at
        ``current``. cancel() is asked between layers; when it turns true Cancelled is raised and the session stays at
        the last finished chunk. ContextError, TokenError and SessionError leave the session as it was.
        """
        self._check(tokens, 0)
        if not len(tokens):
            raise SessionError("cannot sync to an empty prompt")
        common = self.common_prefix(tokens)
        if common < self.pos:
            self.invalidate()
            common = 0
        total = len(tokens)
        if progress and common < total:
            progress(common, total)
        for start, end in _chunks(common, total, chunk or PREFILL_CHUNK):
            self._advance(tokens[start:end], cancel)
            if progress:
                progress(end, total)
        _ = self.logits

    def eval(self, token: int) -> np.ndarray:
        """Append one token; returns the new logits (V,)."""
        self.append(token)
        return self.logits

    def append(self, token: int) -> None:
        """Append one token. Its logits are computed, but stay on the device until somebody asks for them: ``argmax``
        and ``logit`` of what it finds do not."""
        self._check((token,), self.pos)
        if self.hooks is not None or self._decoder is None:
            self._advance((token,), None)
            _ = self.logits
            return
        try:
            left = self._decoder.run(token)
        except BaseException:
            self.invalidate()
            raise
        self._tokens.append(int(token))
        self._know(left.streams, None, left)

    def extend(
        self,
        tokens: Sequence[int],
        chunk: int | None = None,
        one_by_one: bool = False,
        cancel: Cancel | None = None,
        streams: list[np.ndarray] | None = None,
    ) -> np.ndarray:
        """Append tokens; returns the logits (T, V) after each of them. one_by_one evaluates each on its own.

        Fewer than 8 tokens at a time get exactly what ``eval`` would give them. ``streams`` is appended to: what the
        layers left of each chunk, float32 (T, C, D), which is what a draft model starts from.
        """
        self._check(tokens, self.pos)
        out = np.empty((len(tokens), self.model.shape.vocab), np.float32)
        base = self.pos
        size = 1 if one_by_one else chunk or PREFILL_CHUNK
        for start, end in _chunks(base, base + len(tokens), size):
            X = self._advance(tokens[start - base : end - base], cancel)
            out[start - base : end - base] = self._head(X, start)
            if streams is not None:
                streams.append(self.model.ops.host(X))
            self._logits = out[end - base - 1].copy()
        return out

    def common_prefix(self, tokens: Sequence[int]) -> int:
        """Number of leading tokens shared with what is evaluated; 0 if invalid."""
        if not self.valid:
            return 0
        n = min(self.pos, len(tokens))
        differ = np.flatnonzero(np.asarray(tokens[:n], np.int64) != np.asarray(self._tokens[:n], np.int64))
        return int(differ[0]) if len(differ) else n

    def rewind(self, pos: int) -> None:
        """Drop the tokens from ``pos`` on, 1 .. the present position. Nothing is computed unless the logits there are
        lost, which costs one token. SessionError, with nothing changed, if caches do not reach back so far: they do
        for some tens of tokens evaluated since the session began, was restored or loaded."""
        if pos == self.pos and self.valid:
            return
        known = 0 if self._streams is None else len(self._streams) - (self.pos - pos)
        target = pos if known > 0 else pos - 1
        if not 0 < pos < self.pos or not self._cache.rewindable(target):
            raise SessionError(f"cannot go back to {pos} of {self.pos} tokens: it is out of reach")
        self._cache.rewind(target)
        again, self._tokens = self._tokens[target:pos], self._tokens[:target]
        self._know(self._streams[:known] if known > 0 else None, None)
        for token in again:
            self.append(token)

    def _advance(self, tokens: Sequence[int], cancel: Cancel | None) -> Any:
        """Run one chunk; returns its final streams (T, C, D)."""
        frontier = self._cache.snapshot() if cancel else None
        try:
            X = self.model.forward(np.asarray(tokens, np.int32), self._cache, self.hooks, cancel)
        except Cancelled:
            assert frontier is not None
            self._cache.reset(frontier)
            raise
        except BaseException:
            self.invalidate()
            raise
        self._tokens.extend(int(t) for t in tokens)
        self._know(X if len(X) <= STREAMS_KEPT else self._last(X), None)
        return X

    def _check(self, tokens: Sequence[int], start: int) -> None:
        vocab = self.model.shape.vocab
        ids = np.asarray(tokens)
        if len(ids) and ids.dtype.kind not in "iu":
            raise TokenError("token ids must be integers")
        bad = np.flatnonzero((ids < 0) | (ids >= vocab))
        if len(bad):
            at = int(bad[0])
            raise TokenError(f"token id {ids[at]} at position {start + at} is outside the vocabulary of {vocab}")
        if start + len(ids) > self.ctx - (start == 0):
            free = "; a prompt leaves one slot free" if start == 0 else ""
            raise ContextError(f"{start + len(ids)} tokens do not fit the context of {self.ctx}{free}")

    # --- reading the logits

    def argmax(self, exclude: int | None = None) -> int:
        """Most likely next token, lowest id on ties, never ``exclude``. TokenError if no id is left."""
        left = self._left
        if left is not None and len(left.best) > 1:
            return left.best[0] if left.best[0] != exclude else left.best[1]
        return sampling.argmax(self.logits, exclude)

    def ranked(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids (k,) int32 and logits (k,) float32 of the k most likely next tokens, falling, as the op ``top`` has them,
        fewer in a smaller vocabulary; None where only ``logits`` tell. Once asked for, they come with every decoded
        token."""
        k = min(k, self.model.shape.vocab)
        if self._decoder is None or k > MOST_RANKS:
            return None
        self._decoder.ranks = max(self._decoder.ranks, k)
        if self._left is None or len(self._left.best) < k:
            return None
        return np.array(self._left.best[:k], np.int32), np.array(self._left.values[:k], np.float32)

    def logit(self, token: int) -> float:
        """The logit of one next token."""
        left = self._left
        if left is not None and token in left.best:
            return left.values[left.best.index(token)]
        return float(self.logits[token])

    def top_logprobs(self, k: int) -> list[tuple[int, float, float]]:
        """The k most likely next tokens: (id, logit, logprob), best first."""
        return sampling.top_logprobs(self.logits, k)

    def token_logprob(self, token: int) -> float:
        """Natural log probability of one next token."""
        return sampling.token_logprob(self.logits, token)

    # --- remembering

    def snapshot(self) -> Snapshot:
        """Remember this frontier in memory. Cheap: long caches are shared until they would diverge."""
        return Snapshot(self.model, tuple(self._tokens), self._cache.snapshot(), self.logits.copy())

    def restore(self, snapshot: Snapshot) -> None:
        """To a snapshot taken from this session or from another one of the same engine, which go their own ways from
        there. SessionError for another engine's, ContextError for one that does not fit: nothing has changed then."""
        if snapshot.model is not self.model:
            raise SessionError("a snapshot can be restored only in the engine it was taken from")
        if len(snapshot.tokens) > self.ctx:
            raise ContextError(f"a snapshot of {len(snapshot.tokens)} tokens does not fit the context of {self.ctx}")
        self._cache.reset(snapshot.cache)
        self._tokens = list(snapshot.tokens)
        self._know(None, snapshot.logits.copy())

    def payload_bytes(self) -> int:
        """Size of ``save``'s output in bytes (docs/model.md 12)."""
        return self.model.saved_bytes(self.pos)

    def save(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the session as a DSV4 payload; a path is written beside and renamed when complete."""
        self.model.save(file, self._tokens, self.logits, self._cache)

    def load(self, file: str | os.PathLike[str] | BinaryIO, check: Callable[[list[int]], None] | None = None) -> None:
        """Replace this session by a saved one. PayloadError leaves it unchanged, and so does whatever ``check`` raises
        when it is given the tokens."""
        cache = self._new_cache()
        tokens, logits = self.model.load(file, cache)
        if check is not None:
            check(tokens)
        self._start(cache, tokens, logits)

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches take."""
        return self._cache.nbytes


def _chunks(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Cut [start, end) at absolute multiples of ``size``."""
    if size < 1:
        raise SessionError(f"a prefill chunk holds at least 1 token, got {size}")
    cuts = [start, *range((start // size + 1) * size, end, size), end]
    return list(zip(cuts, cuts[1:], strict=False)) if start < end else []
