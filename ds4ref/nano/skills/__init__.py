"""What the trained model learns: generators of questions with exact graders, and the vocabulary they need.

SKILLS                     generators by name
held_out(skill, count)     test questions
mixture(weights, ...)      one row of token ids and target weights to learn from
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
