"""Sampling of the next token, and log probabilities (docs/explanation/text.md 6).

The arithmetic is float32 in ds4's own order, so equal logits, settings and seed give equal tokens. Cumulative sums are
sequential, computed by NumPy's ``accumulate`` instead of a Python loop over the vocabulary. Two deliberate differences
from ds4, in cases where it picks an impossible token or depends on chance: a token whose weight underflowed to zero is
never drawn, and tokens with equal logits are always taken in id order.

Logits are (vocab,) float32. Tokens with non-finite logits are never drawn; greedy picking takes +inf and ignores NaN.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TokenError, UsageError

BLOCK = 128
"""Logits of which only the greatest is looked at first when the best are sought."""

FLOOR = -1.0e30
"""Greedy picking ignores logits at or below this value, which is also the log probability reported for non-finite
logits."""

MAX_TOP_K = 1024
_MASK = (1 << 64) - 1
_ZERO_STATE = 0x9E3779B97F4A7C15


def fresh_seed() -> int:
    """Return a seed from the operating system, never 0."""
    return int.from_bytes(os.urandom(8), "little") or 1


class Rng:
    """Random number generator xorshift64*, as in ds4. The seed is the initial state itself; 0 selects a fixed
    constant."""

    def __init__(self, seed: int):
        self.state = seed & _MASK

    def next(self) -> int:
        """Return 64 random bits."""
        x = self.state or _ZERO_STATE
        x ^= x >> 12
        x ^= (x << 25) & _MASK
        x ^= x >> 27
        self.state = x
        return (x * 0x2545F4914F6CDD1D) & _MASK

    def uniform(self) -> np.float32:
        """Return a float32 in [0, 1), a multiple of 2^-24."""
        return np.float32((self.next() >> 40) / 16777216.0)


class Sampler:
    """Picks the next token: applies temperature, top-k, softmax, min-p and top-p in this order, then draws one token.

    temperature  <= 0: always pick the most likely token (greedy)
    top_k        <= 0: keep the whole vocabulary; more than 1024 counts as 1024
    top_p        outside (0, 1] counts as 1
    min_p        negative counts as 0
    seed         of the random numbers, one per pick, none if greedy; None: a seed from the operating system, which is
                 ``rng.state`` before the first pick

    Raise UsageError for NaN.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.05,
        seed: int | None = None,
    ):
        for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
            if math.isnan(value):
                raise UsageError(f"{name} is not a number")
        self.temperature = np.float32(min(temperature, 3.0e38))
        self.top_k = min(top_k, MAX_TOP_K) if top_k > 0 else 0
        self.top_p = np.float32(top_p if 0 < top_p <= 1 else 1)
        self.min_p = np.float32(max(min_p, 0))
        self.rng = Rng(fresh_seed() if seed is None else seed)

    def choose(self, session: Any) -> int:
        """Return the next token id of a session.

        The logits are read only if needed: greedy and top-k sampling use the session's ranked tokens where available.
        """
        if self.temperature <= 0:
            return session.argmax()
        best = session.ranked(self.top_k) if self.top_k else None
        if best is not None:
            ids, values = best
            if np.isfinite(values).all() and values[-1] > np.float32(FLOOR):
                return self._draw_among(values, lambda count: ids[:count])
        return self.pick(session.logits)

    def pick(self, logits: np.ndarray, greedy: bool = False) -> int:
        """Return the next token id from logits (vocab,); ``greedy`` means temperature 0 for this pick."""
        logits = _checked(logits)
        if greedy or self.temperature <= 0:
            return argmax(logits)
        finite = np.isfinite(logits)
        if finite.all():
            best = int(logits.argmax())
        elif finite.any():
            best = int(np.where(finite, logits, -np.inf).argmax())
        else:
            return argmax(logits)
        if self.top_k == 0 and self.top_p >= 1:
            return self._draw_by_id(logits, best)
        if not finite.all():
            logits = np.where(finite, logits, np.float32(-np.inf))
        return self._draw_by_rank(logits, min(self.top_k or len(logits), int(np.count_nonzero(finite))))

    def _weights(self, logits: np.ndarray, top: np.float32) -> np.ndarray:
        """Return exp((logit - top) / T) of each logit, rounded once from float64, as a good expf does."""
        with np.errstate(over="ignore", under="ignore"):  # weights may round to zero, differences to -inf
            return np.exp(((logits - top) / self.temperature).astype(np.float64)).astype(np.float32)

    def _draw_by_id(self, logits: np.ndarray, best: int) -> int:
        """Draw from the whole vocabulary with min-p only, in id order (docs/explanation/text.md 6, step 3).

        best: the most likely token.
        """
        top = logits[best]
        if self.min_p > 0:
            # Select candidates with a safety margin first, to compute exp only for these.
            with np.errstate(over="ignore", invalid="ignore"):
                enough = (logits - top) / self.temperature >= np.float32(math.log(self.min_p) - 1e-3)
            ids = np.flatnonzero(enough & (logits <= top))
        else:
            ids = np.flatnonzero(np.isfinite(logits))
        weights = self._weights(logits[ids], top)
        likely = (weights >= self.min_p) & (weights > 0)
        ids, weights = ids[likely], weights[likely]
        return self._walk(ids, weights, fallback=best)

    def _draw_by_rank(self, logits: np.ndarray, candidates: int) -> int:
        """Draw from the best ``candidates`` tokens, best first, cut by min-p and top-p (docs/explanation/text.md 6,
        step 4)."""
        if candidates < len(logits):
            ranked = np.partition(logits, len(logits) - candidates)[len(logits) - candidates :]
        else:
            ranked = logits.copy()
        ranked.sort()  # values only: ids are looked up later, for the few tokens that survive min-p and top-p
        return self._draw_among(ranked[::-1], lambda count: _best_ids(logits, count))

    def _draw_among(self, values: np.ndarray, best_ids: Callable[[int], np.ndarray]) -> int:
        """Draw from candidates with logits ``values``, in descending order; ``best_ids(n)`` returns the ids of the
        first n."""
        weights = self._weights(values, values[0])
        cumulative = np.cumsum(weights, dtype=np.float32)
        total = cumulative[-1]
        if not (np.isfinite(total) and total > 0):
            return int(best_ids(1)[0])
        probs = weights / total
        count = max(1, int(np.count_nonzero(weights)))  # zero weights come last, and are never drawn
        low = np.flatnonzero(probs[1:] < probs[0] * self.min_p)
        reached = np.flatnonzero(cumulative / total >= self.top_p)
        if len(low):
            count = min(count, int(low[0]) + 1)
        if len(reached):
            count = min(count, int(reached[0]) + 1)
        ids = best_ids(count)
        return self._walk(ids, weights[:count], fallback=int(ids[-1]))

    def _walk(self, ids: np.ndarray, weights: np.ndarray, fallback: int) -> int:
        """Draw one of ``ids`` with probability proportional to its weight: subtract the weights in order from a random
        share of their sum, and return the token at which zero is reached, in sequential float32.

        fallback: token to return if rounding leaves more than zero, or if the sum is zero or not finite.
        """
        total = np.cumsum(weights, dtype=np.float32)[-1] if len(weights) else np.float32(0)
        if not (np.isfinite(total) and total > 0):
            return fallback
        start = np.concatenate(([self.rng.uniform() * total], weights)).astype(np.float32, copy=False)
        rest = np.subtract.accumulate(start)[1:]
        hit = np.flatnonzero(rest <= 0)
        return int(ids[hit[0]]) if len(hit) else fallback


def sampler_of(source: Any, temperature: float, **settings: Any) -> Sampler:
    """Return the sampler for a model file: ``Sampler``, or ``Llama2cSampler`` for llama2.c checkpoints.

    ``settings`` are the sampler's other parameters. llama2.c's sampler ignores min-p and raises UsageError for top-k.
    """
    if getattr(source, "sampling", "") == "llama2.c":
        from .llama2c import Llama2cSampler

        settings.pop("min_p", None)
        return Llama2cSampler(temperature, **settings)
    return Sampler(temperature, **settings)


def argmax(logits: np.ndarray, exclude: int | None = None) -> int:
    """Return the id of the greatest logit, the lowest id on ties; NaN never wins.

    If no logit exceeds -1e30, return the first id. ``exclude`` is an id that may not win. Raise TokenError if no id is
    left.
    """
    logits = _checked(logits)
    first = 0
    if exclude is not None and 0 <= exclude < len(logits):
        if len(logits) == 1:
            raise TokenError("the only token of the vocabulary is excluded")
        first = 1 if exclude == 0 else 0
        logits = logits.copy()
        logits[exclude] = -np.inf
    best = int(logits.argmax())
    if np.isnan(logits[best]):
        logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        best = int(logits.argmax())
    return best if logits[best] > np.float32(FLOOR) else first


def log_sum_exp(logits: np.ndarray) -> float:
    """Return ln of the sum of exp over the finite logits, in float64; -inf if no logit is finite."""
    top = logits.max() if len(logits) else np.float32(-np.inf)
    if not np.isfinite(top):
        logits = logits[np.isfinite(logits)]
        if not len(logits):
            return -math.inf
        top = logits.max()
    powers = np.subtract(logits, top, dtype=np.float64)
    return float(top + np.log(np.exp(powers, out=powers).sum()))


def token_logprob(logits: np.ndarray, token: int, total: float | None = None) -> float:
    """Return the natural log probability of ``token`` at temperature 1, rounded to float32; -1e30 if the token's logit
    is not finite.

    total: ``log_sum_exp(logits)`` if it is known.
    """
    logits = _checked(logits)
    if not 0 <= token < len(logits):
        raise TokenError(f"token {token} is outside the vocabulary (0..{len(logits) - 1})")
    if not np.isfinite(logits[token]):
        return FLOOR
    return float(np.float32(float(logits[token]) - (log_sum_exp(logits) if total is None else total)))


def top_logprobs(logits: np.ndarray, k: int, total: float | None = None) -> list[tuple[int, float, float]]:
    """Return the ``k`` best tokens as (id, logit, log probability), best first, equal logits by id.

    The list is shorter if fewer than ``k`` logits are finite. total: ``log_sum_exp(logits)`` if it is known.
    """
    logits = _checked(logits)
    ids = _best_ids(logits, k)
    if not len(ids):
        return []
    values = logits[ids].astype(np.float64)
    logprobs = (values - (log_sum_exp(logits) if total is None else total)).astype(np.float32)
    return [(int(i), float(v), float(p)) for i, v, p in zip(ids, values, logprobs, strict=True)]


def _checked(logits: np.ndarray) -> np.ndarray:
    logits = np.asarray(logits, dtype=np.float32)
    if logits.ndim != 1 or not len(logits):
        raise ValueError(f"logits must be a non-empty vector, not of shape {logits.shape}")
    return logits


def _best_ids(logits: np.ndarray, k: int) -> np.ndarray:
    """Return the ids of the ``k`` greatest finite logits, best first; ties go to the lower id."""
    if 0 < k <= len(logits) // BLOCK and np.isfinite(logits.max()):
        greatest = logits[: len(logits) // BLOCK * BLOCK].reshape(-1, BLOCK).max(axis=1)
        border = np.partition(greatest, len(greatest) - k)[len(greatest) - k]  # k logits at least reach it
        if border > -np.inf:
            return _descending(np.flatnonzero(logits >= border), logits)[:k]
    values = np.where(np.isfinite(logits), logits, np.float32(-np.inf))
    k = min(k, len(values))
    if k <= 0:
        return np.empty(0, dtype=np.int64)
    border = np.partition(values, len(values) - k)[len(values) - k]
    if border == -np.inf:  # fewer than k finite ones
        return _descending(np.flatnonzero(values > -np.inf), logits)
    above = np.flatnonzero(values > border)
    ties = np.flatnonzero(values == border)[: k - len(above)]
    return _descending(np.sort(np.concatenate((above, ties))), logits)


def _descending(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Sort ``ids``, given in ascending order, by descending logit; equal logits stay in id order."""
    return ids[np.argsort(-logits[ids], kind="stable")]
