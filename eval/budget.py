"""Close a model's thinking while enough of its token limit is left for an answer.

ds4 feeds the text ``</think>``, which its tokenizer splits into ordinary tokens. Here the control token is forced,
through the generation loop's guiding hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .plan import Settings

if TYPE_CHECKING:
    import numpy as np


CLOSE_RANK = 3
"""Thinking is closed at the soft limit if </think> is among so many most likely tokens."""


class Budget:
    """Guiding hook of one answer (``generate.Guide``) that ends the thinking in time.

    With R tokens left, before each token while the model thinks: R <= hard limit closes the thinking; R <= soft limit
    closes it if </think> is among the ``CLOSE_RANK`` most likely tokens; otherwise the model decides. ``closed`` tells
    which limit closed it: "soft", "hard", or "" for neither.
    """

    def __init__(self, settings: Settings):
        self.settings, self.closed = settings, ""

    def __call__(self, generation: Any, logits: np.ndarray) -> int | None:
        """Return the id of </think>, or None to let the model choose."""
        if not generation.thinking:
            return None
        left = generation.limit - len(generation.tokens)
        close = generation.tokenizer.think_close
        if left <= self.settings.hard_limit:
            self.closed = "hard"
        elif left <= self.settings.soft_limit and (logits > logits[close]).sum() < CLOSE_RANK:
            self.closed = "soft"
        return close if self.closed else None
