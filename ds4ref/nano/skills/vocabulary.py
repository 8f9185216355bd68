"""All skills by name, and the vocabulary of 2,048 tokens that was learned from their texts, which is in the embedded
model's tokenizer.json.

" lamp" is made by merging a blank and "lamp", so having both forms takes one merge more than having one. Digits are
never merged.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ...text.published import vocabulary as published_vocabulary
from ...text.tokenizer import Tokenizer
from ...weights.safetensors import Checkpoint
from . import arithmetic, choice, english, lists, recall, tools, topic, world
from .base import Skill

SKILLS: dict[str, Skill] = {
    skill.name: skill
    for module in (recall, arithmetic, world, choice, tools, english, lists, topic)
    for skill in module.SKILLS
}
"""All skills by name."""

GRADED = tuple(name for name, skill in SKILLS.items() if skill.raw is None and name != "story")
"""Names of the skills whose answers can be graded as right or wrong."""


@cache
def vocabulary() -> tuple[list[str], list[str]]:
    """Return the tokens and the merges of the embedded model's vocabulary, which contains the words of all skills."""
    with Checkpoint.open(Path(__file__).parents[1] / "weights") as checkpoint:
        return published_vocabulary(checkpoint)


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer with this vocabulary."""
    return Tokenizer(*vocabulary())
