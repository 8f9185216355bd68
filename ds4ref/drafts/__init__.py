"""Drafts: guesses of the next tokens, which a session verifies in one pass (speculative decoding).

Every committed token is picked from the target's own logits, so drafts change speed and nothing else: a draft that is
one certain token d needs no acceptance draw. The sampler draws t from the target's p as it does without drafts, and the
rows ahead stay valid if t == d. That is rejection sampling (accepted with p(d), otherwise drawn from the rest), with
the random numbers of plain decode.

    lookup.py       what followed the same tokens earlier in the conversation; needs no weights
    speculation.py  which draft is tried, and how deep
    estimates.py    running estimates of acceptance, and of the time of a pass, for that

    session.py      the session that verifies them; a pass of several rows is the decoder's
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Draft(Protocol):
    """A source of drafts.

    An implementation may have an attribute ``grade`` (int, default 0): a class of confidence of its last proposal, for
    which ``Speculation`` keeps estimates of acceptance of their own; and ``window`` (int, default 1): the number of the
    newest tokens whose streams it can use after a prompt.
    """

    name: str
    """What reports call it: "lookup", "mtp", "given"."""

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return at most ``limit`` tokens that are likely to follow ``tokens``.

        tokens: the sequence, the token about to be evaluated last; a live list: neither kept nor changed.
        (len(tokens) - 1 are evaluated.)
        streams: final streams (k, C, D) of the newest k >= 1 evaluated tokens, positions len(tokens)-1-k ..
        len(tokens)-2, an array of the backend valid only during the call; or None if unknown (after a load or restore).
        """

    def truncate(self, pos: int) -> None:
        """Forget what is known of positions from ``pos`` on.

        The sequence was rewound, or replaced by another (then ``pos`` is the common prefix, or 0).
        """
