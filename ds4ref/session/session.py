"""A session: one sequence of tokens with its caches and the logits of the next token.

Not thread-safe. A session is valid if caches and logits correspond exactly to ``tokens``. A failed evaluation leaves
the session at the last finished chunk (if cancelled) or invalid (after any other failure).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from .. import sampling
from ..archs import Model
from ..costs import prefill_chunk
from ..decode import MOST_RANKS, RANKS, Decoder, Rows, TokenOutputs
from ..errors import Cancelled, ContextError, SessionError, TokenError, TransientError

Progress = Callable[[int, int], None]
Cancel = Callable[[], bool]

LOGIT_BYTES = 64 << 20
"""Bytes of logits in memory at a time while a text is scored."""

STREAMS_KEPT = 32
"""Chunks of at most so many tokens keep the residual streams (hyper-connections) of every token, so that ``rewind``
need not compute logits again."""


CLOSED = "the engine is closed: open the model again"


@dataclass(frozen=True)
class Snapshot:
    """The state of a session after ``tokens``, held in memory.

    Any session of the same model can be restored to it, exactly and repeatedly.
    """

    model: Model
    tokens: tuple[int, ...]
    cache: Any
    logits: np.ndarray

    @property
    def own_bytes(self) -> int:
        """Return the bytes of memory that only this snapshot uses."""
        return self.cache.own_bytes + self.logits.nbytes + 8 * len(self.tokens)

    @property
    def shared(self) -> tuple[int, int]:
        """Return an id of the cache rows that other snapshots may share with this one, and the size of these rows in
        bytes."""
        return self.cache.shared


class Session:
    """One sequence of a model, created by ``Engine.session``. ``drafts.session`` has a subclass with speculative
    decoding."""

    @property
    def _window(self) -> int:
        """Return how many of the newest tokens always keep their residual streams."""
        return 1

    def __init__(self, model: Model, ctx: int):
        if ctx < 1:
            raise ContextError(f"a context must hold at least 1 token, got {ctx}")
        self.model, self.ctx = model, ctx
        self.chunk = prefill_chunk(model.ops)
        """Default tokens per prefill chunk."""
        self._hooks: Any = None
        self._tokens: list[int]
        self._streams: Any
        self._logits: np.ndarray | None
        self._replayed: TokenOutputs | None
        self._rows: Rows | None
        """Outputs of the last replayed pass, a row per token; the newest token of the sequence is row ``_row``."""
        self._row: int
        self._ahead: list[int]
        """Tokens evaluated ahead (drafted, or by ``look_ahead``), from row ``_row + 1`` on: in the cache, but not in
        the sequence unless ``append`` asks for them."""
        self._drafted: bool
        """Whether the last pass had drafted tokens of which it is not yet known how many are accepted."""
        self._stale: bool
        """Whether the cache still holds tokens that were dropped."""
        self.invalidate()

    # --- state

    def check_open(self) -> None:
        """Raise SessionError if the engine is closed, since its weights are gone then."""
        if self.model.closed:
            raise SessionError(CLOSED)

    def __repr__(self) -> str:
        state = "" if self.valid else ", nothing evaluated"
        return f"<Session: {self.pos} of {self.ctx} tokens{state}>"

    @property
    def hooks(self) -> Any:
        """Return the hooks, which record or edit intermediate values (``archs.NAME.hooks.Hooks``); assign them before
        the first token.

        With hooks every op runs on its own, and caches are float32.
        """
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: Any) -> None:
        self._hooks = hooks
        if not self._tokens:
            self.invalidate()

    @property
    def tokens(self) -> list[int]:
        """Return a copy of the list of tokens evaluated so far."""
        return list(self._tokens)

    @property
    def pos(self) -> int:
        """Return the number of tokens evaluated."""
        return len(self._tokens)

    @property
    def valid(self) -> bool:
        """Return whether there are logits to sample from."""
        return self._streams is not None or self._logits is not None

    @property
    def logits(self) -> np.ndarray:
        """Return the logits (V,) float32 of the next token; raise SessionError if the session is empty or invalid.

        The logits of a decoded token are copied to the host on first access.
        """
        if self._logits is None:
            self.check_open()
            if self._replayed is not None:
                self._logits = self.model.ops.host(self._replayed.logits)[0].copy()
            elif self._streams is not None:
                self._logits = self._head(self._streams[-1:], self.pos - 1)[0].copy()
            else:
                raise SessionError("the session holds no tokens: sync or load first")
        return self._logits

    @property
    def streams(self) -> np.ndarray:
        """Return the final residual streams (hyper-connections) of the last token, before the output head, float32 (1,
        C, D).

        Raise SessionError if they are unknown: an empty or restored session has only logits.
        """
        if self._streams is None:
            raise SessionError("the session has no hidden state yet: evaluate a token first")
        streams = self.model.ops.host(self._streams[-1:])
        return streams if self._replayed is None else streams.copy()

    def _head(self, X: Any, pos0: int) -> np.ndarray:
        return self.model.ops.host(self.model.logits(X, pos0, self.hooks))

    def invalidate(self) -> None:
        """Drop all tokens and caches."""
        self._start(self._new_cache(), [])

    def _give_up(self) -> None:
        """Invalidate the session after a failed pass, without hiding the pass's error.

        A device that is lost or full may not be able to make a new cache either; then the next use makes one
        (``_renew``).
        """
        self._tokens, self._stale = [], True
        self._set_outputs(None, None)
        with suppress(Exception):
            self.invalidate()

    def _renew(self) -> None:
        """Make a new cache if none could be made when the last pass failed."""
        self.check_open()
        if self._stale:
            self.invalidate()

    def _new_cache(self) -> Any:
        # hooks may edit rounded values, so only without hooks do cache rows surely fit a smaller type
        return self.model.cache(self.ctx, exact=self._hooks is not None)

    def _start(self, cache: Any, tokens: list[int], logits: np.ndarray | None = None) -> None:
        """Continue from another ``cache``, which holds ``tokens``; recordings of the old cache are dropped."""
        self._truncated(0)
        self._cache_ahead, self._decoder = cache, Decoder.of(self.model, cache)
        self._tokens, self._stale = tokens, False
        self._set_outputs(None, logits)

    @property
    def _cache(self) -> Any:
        """Return the cache, with the tokens evaluated ahead of the sequence's end dropped."""
        self.check_open()
        self._settle()
        return self._cache_ahead

    def _settle(self) -> None:
        """Drop the tokens evaluated ahead, and note how many drafted tokens were accepted."""
        if self._drafted:
            self._drafted = False
            self._settled(max(self._row, 0))
        if self._ahead:
            self._ahead = []
            self._cache_ahead.rewind(self.pos)

    def _set_outputs(self, streams: Any, logits: np.ndarray | None) -> None:
        """Set the outputs of the last token, with no tokens evaluated ahead."""
        self._streams, self._logits, self._replayed = streams, logits, None
        self._rows, self._row, self._ahead, self._drafted = None, 0, [], False

    def _set_row(self, number: int) -> None:
        """Set the outputs of the last token to those of a row of the last pass; they are valid until the next pass."""
        assert self._rows is not None
        self._row, self._logits, self._replayed = number, None, self._rows.row(number)
        self._streams = self._replayed.streams

    # --- evaluation

    def sync(
        self,
        tokens: Sequence[int],
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        chunk: int | None = None,
    ) -> None:
        """Bring the session to exactly ``tokens``.

        If ``tokens`` begin with all tokens evaluated so far, only the rest is evaluated, else all of them.
        progress(current, total) is called with absolute positions before the first and after every chunk; at that
        moment the session is valid at ``current``. cancel() is called between layers; when it returns true Cancelled is
        raised and the session stays at the last finished chunk. ContextError, TokenError and SessionError leave the
        session unchanged.
        """
        self._check(tokens, 0)
        if not len(tokens):
            raise SessionError("the prompt is empty: it needs at least one token")
        common = self.common_prefix(tokens)
        if common < self.pos:
            self.invalidate()
            common = 0
        total = len(tokens)
        if progress and common < total:
            progress(common, total)
        for start, end in _chunks(common, total, chunk or self.chunk):
            self._advance(tokens[start:end], cancel)
            if progress:
                progress(end, total)
        _ = self.logits

    def eval(self, token: int) -> np.ndarray:
        """Append one token and return the new logits (V,)."""
        self.append(token)
        return self.logits

    def append(self, token: int) -> None:
        """Append one token. Its logits stay on the device until read: ``argmax``, and ``logit`` of the best token, need
        no copy."""
        self._check((token,), self.pos)
        if self.hooks is not None or self._decoder is None:
            self._advance((token,), None)
            _ = self.logits
            return
        if not self._ahead or self._ahead[0] != token:
            self._settle()
            tokens = [token, *self._drafts(token, self._decoder.most_rows - 1)]
            made, begun = self._decoder.made, time.perf_counter()
            try:
                (rows,) = self._decoder.run(tokens)
            except TransientError:
                raise
            except BaseException:
                self._give_up()
                raise
            if made == self._decoder.made:
                self._passed(len(tokens), time.perf_counter() - begun)
            self.take(rows, tokens)
        self._tokens.append(self._ahead.pop(0))
        self._set_row(self._row + 1)

    # --- overridden by sessions with speculative decoding (``drafts.session``)

    def _drafts(self, token: int, most: int) -> list[int]:
        """Return at most ``most`` drafted tokens, to be evaluated in one pass with the next ``token`` because they may
        follow it."""
        return []

    def _passed(self, rows: int, seconds: float) -> None:
        """Note the time of a pass over ``rows`` tokens in which no recording had to be made."""

    def _settled(self, accepted: int) -> None:
        """Note how many drafted tokens of the last pass were accepted."""

    def _truncated(self, pos: int) -> None:
        """Note that the tokens from position ``pos`` on are gone."""

    # --- one pass for several sessions (``together``)

    def joins(self, token: int) -> bool:
        """Return whether ``token`` can be evaluated ahead: the context has a free slot, and no token is ahead yet."""
        if self.hooks is not None or self._decoder is None or self._ahead or not self.valid:
            return False
        return self.pos < self.ctx and 0 <= token < self.model.shape.vocab

    def lend(self) -> tuple[Any, int]:
        """Return the cache, which a pass over several sessions will advance by a token, and the number of top-ranked
        tokens that this session wants of it.

        That pass may overwrite the outputs of the session's last pass, so these are copied first.
        """
        self._settle()
        _ = self.logits
        if self._streams is not None:
            self._streams = self.model.last(self._streams, 1)
        self._rows = None
        return self._cache_ahead, RANKS if self._decoder is None else self._decoder.ranks

    def take(self, rows: Rows, tokens: Sequence[int]) -> None:
        """Take ``rows``, the outputs of a pass that has advanced the cache by ``tokens``; ``append`` of the first of
        them then computes nothing."""
        self._rows, self._row, self._ahead = rows, -1, [int(token) for token in tokens]
        self._drafted = len(tokens) > 1

    def prepare(self, positions: Iterable[int]) -> int:
        """Make in advance the recordings (``decode``) that ``append`` would make at ``positions``; return how many were
        made.

        None are made with hooks, or by a backend that does not record.
        """
        if self.hooks is not None or self._decoder is None or self.pos == self.ctx:
            return 0
        self._renew()
        self._settle()
        return self._decoder.prepare(positions)

    def extend(
        self,
        tokens: Sequence[int],
        chunk: int | None = None,
        one_by_one: bool = False,
        cancel: Cancel | None = None,
        streams: list[np.ndarray] | None = None,
    ) -> np.ndarray:
        """Append tokens and return the logits (T, V) after each of them.

        one_by_one: evaluate each token on its own instead of in chunks.
        streams: list to which the final residual streams of each chunk are appended, float32 (T, C, D), for a draft
        model.
        Chunks of fewer than 8 tokens give exactly the logits that ``eval`` would give.
        """
        self._check(tokens, self.pos)
        out = np.empty((len(tokens), self.model.shape.vocab), np.float32)
        for start, logits in self.passes(tokens, 1 if one_by_one else chunk, cancel, streams):
            out[start : start + len(logits)] = logits
        return out

    def passes(
        self,
        tokens: Sequence[int],
        chunk: int | None = None,
        cancel: Cancel | None = None,
        streams: list[np.ndarray] | None = None,
        rows: int | None = None,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Append tokens as ``extend`` does; yield the number of the first and their logits, a few tokens at a time.

        rows: greatest number of tokens whose logits are computed at once, fewer if they take more than LOGIT_BYTES
        (None: all those of a chunk).
        """
        self._check(tokens, self.pos)
        base = self.pos
        most = rows and min(rows, max(16, LOGIT_BYTES // (4 * self.model.shape.vocab)))
        for start, end in _chunks(base, base + len(tokens), chunk or self.chunk):
            X = self._advance(tokens[start - base : end - base], cancel)
            if streams is not None:
                streams.append(self.model.ops.host(X))
            step = most if most and isinstance(X, np.ndarray) else end - start
            for first in range(start, end, step):
                logits = self._head(X[first - start : first - start + step], first)
                if first + step >= end:
                    self._logits = logits[-1].copy()
                yield first - base, logits

    def common_prefix(self, tokens: Sequence[int]) -> int:
        """Return the number of leading tokens shared with the evaluated ones; 0 if invalid."""
        if not self.valid:
            return 0
        n = min(self.pos, len(tokens))
        differ = np.flatnonzero(np.asarray(tokens[:n], np.int64) != np.asarray(self._tokens[:n], np.int64))
        return int(differ[0]) if len(differ) else n

    def rewind(self, pos: int) -> None:
        """Drop the tokens from position ``pos`` on, 1 <= pos <= the current position.

        Nothing is computed unless the logits at ``pos`` are lost, which costs one token. Raise SessionError, with
        nothing changed, if the caches do not reach back that far: they reach back some tens of tokens, and not beyond
        the position at which the session was loaded.
        """
        if pos == self.pos and self.valid:
            return
        known = 0 if self._streams is None else len(self._streams) - (self.pos - pos)
        target = pos if known > 0 else pos - 1
        if not 0 < pos < self.pos or not self._cache.rewindable(target):
            raise SessionError(f"cannot rewind from {self.pos} to {pos} tokens: too far back")
        self._cache.rewind(target)
        again, self._tokens = self._tokens[target:pos], self._tokens[:target]
        self._truncated(target)
        self._set_outputs(self._streams[:known] if known > 0 else None, None)
        for token in again:
            self.append(token)

    def _advance(self, tokens: Sequence[int], cancel: Cancel | None) -> Any:
        """Evaluate one chunk and return its final residual streams (T, C, D)."""
        frontier = self._cache.snapshot() if cancel else None
        try:
            X = self.model.forward(np.asarray(tokens, np.int32), self._cache, self.hooks, cancel)
        except Cancelled:
            assert frontier is not None
            self._cache.reset(frontier)
            raise
        except TransientError:
            raise
        except BaseException:
            self._give_up()
            raise
        self._tokens.extend(int(t) for t in tokens)
        kept = len(X) if len(X) <= max(STREAMS_KEPT, self._window) else self._window
        # On the host the results of a pass are views of its memory, and keeping a view would keep all of it.
        own = kept == len(X) and not isinstance(X, np.ndarray)
        self._set_outputs(X if own else self.model.last(X, kept), None)
        return X

    def _check(self, tokens: Sequence[int], start: int) -> None:
        """Raise an error unless ``tokens``, from position ``start`` on, are token ids of the vocabulary and fit the
        context."""
        self._renew()
        vocab = self.model.shape.vocab
        ids = np.asarray(tokens)
        if len(ids) and ids.dtype.kind not in "iu":
            raise TokenError("token ids must be integers")
        bad = np.flatnonzero((ids < 0) | (ids >= vocab))
        if len(bad):
            at = int(bad[0])
            raise TokenError(f"token id {ids[at]} at position {start + at} is outside the vocabulary of {vocab}")
        if start + len(ids) > self.ctx - (start == 0):
            free = "; a prompt must leave one slot free" if start == 0 else ""
            raise ContextError(f"{start + len(ids)} tokens do not fit the context of {self.ctx}{free}")

    # --- reading the logits

    def argmax(self, exclude: int | None = None) -> int:
        """Return the most likely next token, lowest id on ties, never ``exclude``; raise TokenError if no id is
        left."""
        replayed = self._replayed
        if replayed is not None and len(replayed.best) > 1:
            return replayed.best[0] if replayed.best[0] != exclude else replayed.best[1]
        return sampling.argmax(self.logits, exclude)

    def ranked(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return ids (k,) int32 and logits (k,) float32 of the k most likely next tokens, in descending order.

        The arrays are shorter for a smaller vocabulary. Return None if the last pass did not rank k tokens: then read
        ``logits``. Later passes rank k tokens.
        """
        k = min(k, self.model.shape.vocab)
        if self._decoder is None or k > MOST_RANKS:
            return None
        self._decoder.ranks = max(self._decoder.ranks, k)
        if self._replayed is None or len(self._replayed.best) < k:
            return None
        return np.array(self._replayed.best[:k], np.int32), np.array(self._replayed.values[:k], np.float32)

    def logit(self, token: int) -> float:
        """Return the logit of ``token`` as the next token."""
        replayed = self._replayed
        if replayed is not None and token in replayed.best:
            return replayed.values[replayed.best.index(token)]
        return float(self.logits[token])

    def top_logprobs(self, k: int) -> list[tuple[int, float, float]]:
        """Return the k most likely next tokens as (id, logit, logprob), best first."""
        return sampling.top_logprobs(self.logits, k)

    # --- remembering

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current state. Cheap: long caches are shared until they diverge."""
        return Snapshot(self.model, tuple(self._tokens), self._cache.snapshot(), self.logits.copy())

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot of this or another session of the same engine; both sessions then continue
        independently.

        Raise SessionError for another engine's snapshot and ContextError for one that does not fit, with nothing
        changed.
        """
        if snapshot.model is not self.model:
            raise SessionError("a snapshot can be restored only in the engine it was taken from")
        if len(snapshot.tokens) > self.ctx:
            raise ContextError(f"a snapshot of {len(snapshot.tokens)} tokens does not fit the context of {self.ctx}")
        self._renew()
        self._cache.reset(snapshot.cache)
        self._truncated(self.common_prefix(snapshot.tokens))
        self._tokens = list(snapshot.tokens)
        self._set_outputs(None, snapshot.logits.copy())

    def payload_bytes(self) -> int:
        """Return the size in bytes of the payload that ``save`` writes (docs/explanation/model.md 12)."""
        return self.model.saved_bytes(self.pos)

    def save(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the session as a DSV4 payload; a path is written to a temporary file and renamed when complete."""
        self.model.save(file, self._tokens, self.logits, self._cache)

    def load(self, file: str | os.PathLike[str] | BinaryIO, check: Callable[[list[int]], None] | None = None) -> None:
        """Replace this session by a saved one.

        ``check`` is called with the loaded tokens. PayloadError, or any exception of ``check``, leaves the session
        unchanged.
        """
        self.check_open()
        cache = self._new_cache()
        tokens, logits = self.model.load(file, cache)
        if check is not None:
            check(tokens)
        self._start(cache, tokens, logits)

    @property
    def cache_bytes(self) -> int:
        """Return the size of the caches in bytes."""
        return self._cache.nbytes


def _chunks(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges (start, end) that result from cutting [start, end) at absolute multiples of ``size``."""
    if size < 1:
        raise SessionError(f"a prefill chunk holds at least 1 token, got {size}")
    cuts = [start, *range((start // size + 1) * size, end, size), end]
    return list(zip(cuts, cuts[1:], strict=False)) if start < end else []
