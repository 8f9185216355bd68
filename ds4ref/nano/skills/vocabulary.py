"""The vocabulary of the skills, in DeepSeek's layout (nano/vocab.py).

Merges are learned from words and runs of punctuation without the blanks before them; then everything that follows a
blank gets one more merge. " lamp" is a blank and "lamp", so both forms together cost little more than one. Digits are
never merged.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

from ...text.byte_level import ALPHABET
from ...text.protocol import DEFAULT_SYSTEM, SPECIALS
from ...text.splits import split_unicode
from ...text.tokenizer import Tokenizer
from ..vocab import CONTROL, FIRST, LAST, MINIMUM, NORMAL, UNUSED, USER_DEFINED, Vocabulary, learn_merges
from . import arithmetic, choice, english, lists, recall, tools, topic, world
from .base import Skill, no_questions
from .lexicon import FLAGS, PARAMETERS, TOWN_ENDS, TOWN_STARTS, VERBS, WORDS

SIZE = 2048
_SPACED = 580
"""Most merges for words after a blank."""
_EPISODES = 60
_LEXICON, _OTHER = 40, 2
"""How often a word of the lexicon counts, and any other; learning drops what counts less than 2."""

SKILLS: dict[str, Skill] = {
    skill.name: skill
    for module in (recall, arithmetic, world, choice, tools, english, lists, topic)
    for skill in module.SKILLS
}
"""All skills by name."""

_BREAK = re.compile("|".join([*map(re.escape, SPECIALS), "[0-9]+"]))
_TOWN = re.compile(f"({'|'.join(TOWN_STARTS)})({'|'.join(TOWN_ENDS)})")


GRADED = tuple(name for name, skill in SKILLS.items() if skill.raw is None and name != "story")
"""Names of the skills whose answers are right or wrong."""


@cache
def vocabulary() -> Vocabulary:
    """Return the tokenizer tables of the trained model: 2,048 tokens."""
    bare, spaced = _pieces()
    # A zero byte belongs to no piece of the pre-tokenizer, so it keeps the pieces apart.
    corpus = "\0".join(piece for piece, count in sorted(bare.items()) for _ in range(count))
    merges = learn_merges(corpus, SIZE - MINIMUM - _SPACED)
    learned = list(dict.fromkeys(first + second for first, second in merges))
    blank, known = ALPHABET[0x20], {*ALPHABET, *learned}
    heads = [piece for piece, _ in sorted(spaced.items(), key=lambda entry: (-entry[1], entry[0])) if piece in known]
    heads = heads[: SIZE - MINIMUM - len(learned)]
    merges += [(blank, head) for head in heads]
    return _layout(learned + [blank + head for head in heads], merges)


@cache
def tokenizer() -> Tokenizer:
    """Return the tokenizer of ``vocabulary``."""
    tables = vocabulary()
    return Tokenizer(tables.tokens, tables.merges)


def _pieces() -> tuple[Counter[str], Counter[str]]:
    """Return the weights of all pieces without the blank before them, and of those that follow a blank.

    Only which pieces occur in the skills' texts matters, not how often: changes of a generator that bring no new words
    leave the vocabulary as it is. Towns are two pieces, a start and an end.
    """
    texts: set[str] = {f" {letter}" for letter in "abcdefghijklmnopqrstuvwxyzABCD"} | {DEFAULT_SYSTEM}
    for name, skill in SKILLS.items():
        if skill.make is no_questions:  # an exercise has no words of its own
            continue
        rng = random.Random(f"vocabulary {name}")
        for _ in range(_EPISODES):
            texts.update(_BREAK.split(_TOWN.sub("\\1\0\\2", skill.train(rng, 300).text)))
    bare: Counter[str] = Counter()
    spaced: Counter[str] = Counter()
    for piece in {piece for text in texts for part in text.split("\0") for piece in split_unicode(part)}:
        stripped = piece.removeprefix(" ")
        bare[stripped] = _OTHER
        if stripped and stripped != piece:
            spaced[stripped] = _OTHER
    starts = [*WORDS, *PARAMETERS, *FLAGS, *TOWN_STARTS]
    bare.update(dict.fromkeys([*starts, *(verb.capitalize() for verb in VERBS), *TOWN_ENDS], _LEXICON))
    spaced.update(dict.fromkeys(starts, _LEXICON))
    return bare, spaced


def _layout(learned: list[str], merges: list[tuple[str, str]]) -> Vocabulary:
    """Return the tables: first protocol tokens, bytes, merges, unused fill, last protocol tokens."""
    unused = [f"<|unused_{i}|>" for i in range(SIZE - MINIMUM - len(learned))]
    types = [CONTROL] * len(FIRST) + [NORMAL] * (256 + len(learned)) + [UNUSED] * len(unused)
    types += [CONTROL] * 2 + [USER_DEFINED] * (len(LAST) - 2)
    return Vocabulary([*FIRST, *ALPHABET, *learned, *unused, *LAST], types, [f"{a} {b}" for a, b in merges])
