"""Drafts: guesses of the next tokens, which a session verifies in one pass (speculative decoding).

Every output token is picked from the model's own logits, so drafts change only speed. The sampler draws a token t from
the model's probabilities p, as without drafts; if t equals the drafted token d, the logits that the pass computed after
d are valid too. That is rejection sampling (d is accepted with probability p(d)) with the random numbers of plain
decode.

    lookup.py       drafts what followed the same tokens earlier in the conversation; needs no weights
    mtp.py          drafts with the model's block for multi-token prediction
    dspark.py       drafts with a DSpark drafter, a whole block at once
    speculation.py  decides which source is tried, and how many tokens it drafts (the depth)
    estimates.py    running estimates of acceptance and of pass times, for this decision
    session.py      the session that verifies drafts
    setup.py        the drafts of an engine, made from its options
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Draft(Protocol):
    """A source of drafted tokens.

    An implementation may have more attributes: ``grade`` (int, default 0), how confident it is of the tokens that it
    returned last (``Speculation`` estimates acceptance separately for each grade); ``window`` (int, default 1), the
    number of newest tokens whose residual streams it can use after a prompt; ``whole`` (bool, default False), whether
    one call costs the same however many tokens it returns; ``chances`` (list of floats), the chance of each token that
    it returned last to be accepted if those before it are; and ``attach(cache)``, called with the session's cache
    whenever the session gets a new one.
    """

    name: str
    """Its name in reports: "lookup", "mtp", "given"."""

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return at most ``limit`` tokens that are likely to follow ``tokens``.

        tokens: the whole sequence, of which only the last token has not been evaluated yet; the session's own list, to
        be neither kept nor changed.
        streams: residual streams (k, C, D) that the last layer returned for the newest k >= 1 evaluated tokens, at
        positions len(tokens)-1-k .. len(tokens)-2: an array of the backend, valid only during the call; None if they
        are unknown (after a session was loaded or restored).
        """

    def truncate(self, pos: int) -> None:
        """Forget what was stored for positions ``pos`` and later.

        Called when the sequence was rewound to ``pos``, or replaced by another one with the same first ``pos`` tokens.
        """
