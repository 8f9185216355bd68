"""How long a model may think: the limits that keep room for an answer, on token ids.

ds4 ends thinking by feeding the text ``</think>``, which its tokenizer splits into ordinary tokens that mean nothing to
the model. Here it is the control token, through the generation loop's steering hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .plan import Settings

if TYPE_CHECKING:
    import numpy as np


class Budget:
    """A ``generate.Steer`` for one answer. ``closed`` is how it ended the thinking: "soft", "hard" or "".

    With R tokens left, before each token while the model thinks: R <= hard limit closes; R <= soft limit closes if
    </think> is among the ``close_rank`` most likely tokens. At temperature 0 and in between the model decides.
    """

    def __init__(self, settings: Settings):
        self.settings, self.closed = settings, ""

    def __call__(self, generation: Any, logits: np.ndarray) -> int | None:
        """The id of </think>, or None where the choice is the model's."""
        if not generation.thinking:
            return None
        left = generation.limit - len(generation.tokens)
        close = generation.tokenizer.think_close
        if left <= self.settings.hard_limit:
            self.closed = "hard"
        elif left <= self.settings.soft_limit and (logits > logits[close]).sum() < self.settings.close_rank:
            self.closed = "soft"
        return close if self.closed else None
