"""End a model's thinking while enough of its token limit is left for an answer.

Thinking is ended by forcing the control token ``</think>`` through the hook of the generation loop
(``generate.Guide``). ds4 instead feeds the text ``</think>``, which its tokenizer splits into ordinary tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .plan import Settings

if TYPE_CHECKING:
    import numpy as np


CLOSE_RANK = 3
"""At the soft limit thinking is ended if </think> is among so many most likely tokens."""


class Budget:
    """Hook (``generate.Guide``) for one answer that ends the thinking in time.

    It is called before each token. While the model thinks, with R tokens left: R <= hard limit ends the thinking; R <=
    soft limit ends it if </think> is among the ``CLOSE_RANK`` most likely tokens; otherwise the model decides.
    ``closed`` holds which limit ended it: "soft", "hard", or "" for neither.
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
