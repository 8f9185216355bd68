"""The skills by name, and the vocabulary that was learned from their texts: the embedded model's tokenizer.json.

2,048 tokens. " lamp" is a blank and "lamp", so both forms together cost little more than one; digits are never merged.
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
"""Names of the skills whose answers are right or wrong."""


@cache
def vocabulary() -> tuple[list[str], list[str]]:
    """Return the tokens and merges that every skill's words are in."""
    with Checkpoint.open(Path(__file__).parents[1] / "weights") as checkpoint:
        return published_vocabulary(checkpoint)


@cache
def tokenizer() -> Tokenizer:
    """Return the tokenizer of ``vocabulary``."""
    return Tokenizer(*vocabulary())
