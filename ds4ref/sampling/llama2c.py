"""llama2.c's sampler: with the same checkpoint, prompt and seed it reproduces the text of the llama2.c program.

It applies temperature, softmax over the whole vocabulary, then top-p (nucleus) sampling among tokens above a cutoff
probability, all in float32 and summed in that program's order. It has no top-k and no min-p.
"""

from __future__ import annotations

import numpy as np

from ..errors import UsageError
from . import Sampler, argmax


class Llama2cSampler(Sampler):
    """llama2.c's sampling: ``temperature`` 0 is greedy, ``top_p`` outside (0, 1) keeps the whole vocabulary.

    Raise UsageError for ``top_k``. If probabilities are not finite (a broken model), the pick is greedy, so that later
    checks of the picked token's logit report the problem.
    """

    def __init__(self, temperature: float = 1.0, top_k: int = 0, top_p: float = 0.9, seed: int | None = None):
        if top_k > 0:
            raise UsageError("llama2.c's sampler has no top-k")
        super().__init__(temperature, top_p=top_p, min_p=0.0, seed=seed)

    def pick(self, logits: np.ndarray, greedy: bool = False) -> int:
        """Return the next token id from logits (V,)."""
        logits = np.asarray(logits, np.float32)
        if greedy or self.temperature <= 0 or not np.isfinite(logits).any():
            return argmax(logits)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scaled = logits / self.temperature
            weights = np.exp((scaled - scaled.max()).astype(np.float64)).astype(np.float32)
            probs = weights / np.cumsum(weights, dtype=np.float32)[-1]
        if not np.isfinite(probs).all():
            return argmax(logits)
        coin = self.rng.uniform()
        if self.top_p <= 0 or self.top_p >= 1 or len(probs) == 1:
            return _first_above(np.cumsum(probs, dtype=np.float32), coin)
        cutoff = (np.float32(1) - self.top_p) / np.float32(len(probs) - 1)
        ids = np.flatnonzero(probs >= cutoff)
        ids = ids[np.argsort(-probs[ids], kind="stable")]
        sums = np.cumsum(probs[ids], dtype=np.float32)
        last = min(_first_above(sums, self.top_p), len(ids) - 1)
        return int(ids[_first_above(sums[: last + 1], coin * sums[last])])


def _first_above(sums: np.ndarray, value: np.float32) -> int:
    """Return the index of the first of the ascending ``sums`` that exceeds ``value``; the last index if none does."""
    return min(int(np.searchsorted(sums, value, side="right")), len(sums) - 1)
