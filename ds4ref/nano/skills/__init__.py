"""The tasks that the embedded model is trained on: generators of questions with exact graders, and the vocabulary.

SKILLS                     name -> generator of questions
held_out(skill, count)     test questions
mixture(weights, ...)      one training row of token ids, and their weights as targets
vocabulary(), tokenizer()  2,048 tokens, digits never merged
"""

from __future__ import annotations

from .base import Conversation, Item, Skill, thinking
from .rows import held_out, held_out_text, mixture, training_rng
from .vocabulary import GRADED, SKILLS, tokenizer, vocabulary

__all__ = [
    "GRADED",
    "SKILLS",
    "Conversation",
    "Item",
    "Skill",
    "held_out",
    "held_out_text",
    "mixture",
    "thinking",
    "tokenizer",
    "training_rng",
    "vocabulary",
]
