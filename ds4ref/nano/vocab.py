"""Vocabulary of the models of random weights: byte-level BPE in DeepSeek's layout.

Ids, in order: begin and end of sentence, padding, the 256 bytes, the merges, unused tokens, and the five other protocol
tokens. ``merges.txt`` lists the merges that byte-pair encoding learned from
``prose(200_000, 1)``: most frequent pair first, equally frequent ones by spelling, until no pair occurred twice. A
smaller vocabulary uses only the first ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..text.byte_level import ALPHABET
from ..text.keys import CONTROL, NORMAL, UNUSED
from ..text.keys import USER as USER_DEFINED
from ..text.protocol import ASSISTANT, BOS, DSML, EOS, THINK_CLOSE, THINK_OPEN, USER

FIRST = (BOS, EOS, "<｜▁pad▁｜>")
LAST = (USER, ASSISTANT, THINK_OPEN, THINK_CLOSE, DSML)
MINIMUM = len(FIRST) + 256 + len(LAST)


@dataclass(frozen=True)
class Vocabulary:
    """Contents of the three tokenizer arrays of a GGUF file: token strings, token types, merges."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def build_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of exactly ``size`` tokens; ``size`` must be at least ``MINIMUM``."""
    merges = Path(__file__).with_name("merges.txt").read_text().splitlines()[: size - MINIMUM]
    learned = [merge.replace(" ", "") for merge in merges]
    unused = [f"<|unused_{i}|>" for i in range(size - MINIMUM - len(learned))]
    types = [CONTROL] * len(FIRST) + [NORMAL] * (256 + len(learned)) + [UNUSED] * len(unused)
    types += [CONTROL if token in (USER, ASSISTANT) else USER_DEFINED for token in LAST]
    return Vocabulary([*FIRST, *ALPHABET, *learned, *unused, *LAST], types, merges)
