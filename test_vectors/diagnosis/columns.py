"""Compare a large vocabulary in some of its columns, so that a run costs megabytes and not hundreds of them.

Log probabilities are normalised over the whole vocabulary first; only then are columns chosen, so that those that
remain are unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..observation import Observation

MOST = 16384
"""Largest vocabulary that is compared whole."""
BLOCK, BLOCKS = 64, 64
"""Width and number of evenly spaced blocks of consecutive tokens that are compared in full logits; neighbours show
whether ids are shifted by one."""


def thinned(seen: Observation, vocab: int) -> tuple[Observation, np.ndarray | None]:
    """Return an observation of some columns of a vocabulary, and their token ids, ascending.

    In the result a token is named by its place among these ids. The columns of full logits are ``BLOCKS`` blocks and
    each row's likeliest token; those of lists of tokens are all that are listed. A small vocabulary is returned as it
    is, with None.
    """
    if vocab <= MOST:
        return seen, None
    if seen.support is None:
        starts = np.linspace(0, vocab - BLOCK, BLOCKS).astype(np.int64)
        best = np.nan_to_num(seen.logprobs, nan=-np.inf).argmax(axis=1)
        columns = np.unique(np.concatenate(((starts[:, None] + np.arange(BLOCK)).ravel(), best)))
        storage = None if seen.storage is None else seen.storage[:, columns]
        return replace(seen, logprobs=seen.logprobs[:, columns], storage=storage, table=None), columns
    known = (seen.support >= 0) & (seen.support < vocab)
    columns = np.unique(seen.support[known])
    support = np.where(known, np.searchsorted(columns, np.where(known, seen.support, 0)), -1)
    return replace(seen, support=support, logprobs=np.where(known, seen.logprobs, np.nan)), columns
