"""Vocabulary of a generated model: byte-level BPE learned from generated prose, in DeepSeek's layout.

Ids, in order: begin and end of sentence, padding, the 256 bytes, the merges, unused fill, and the five other protocol
tokens. Learning is exact integer counting with ties resolved by spelling, so every machine learns the same merges.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ..text.byte_level import ALPHABET, to_chars
from ..text.protocol import ASSISTANT, BOS, DSML, EOS, THINK_CLOSE, THINK_OPEN, USER

FIRST = (BOS, EOS, "<｜▁pad▁｜>")
LAST = (USER, ASSISTANT, THINK_OPEN, THINK_CLOSE, DSML)
MINIMUM = len(FIRST) + 256 + len(LAST)

# GGUF token types.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# DeepSeek's split, reduced to what occurs in ASCII text; merges never cross a piece.
_PIECES = re.compile(r"[0-9]{1,3}|[!-/:-@\[-`{-~][A-Za-z]+| ?[A-Za-z]+| ?[!-/:-@\[-`{-~]+\n*|\s*\n+|\s+")


@dataclass(frozen=True)
class Vocabulary:
    """Contents of the three tokenizer arrays of a GGUF: token strings, token types, merges."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def build_vocabulary(size: int, corpus: str) -> Vocabulary:
    """Build a vocabulary of exactly ``size`` tokens with merges learned from ``corpus``; raise ValueError below 264
    tokens."""
    if size < MINIMUM:
        raise ValueError(f"a vocabulary needs at least {MINIMUM} tokens, not {size}")
    merges = learn_merges(corpus, size - MINIMUM)
    # Two merges may give the same string ("ab" + "c", "a" + "bc"): one token.
    learned = list(dict.fromkeys(first + second for first, second in merges))
    unused = [f"<|unused_{i}|>" for i in range(size - MINIMUM - len(learned))]
    tokens = [*FIRST, *ALPHABET, *learned, *unused, *LAST]
    types = [CONTROL] * len(FIRST) + [NORMAL] * (256 + len(learned)) + [UNUSED] * len(unused)
    types += [CONTROL if token in (USER, ASSISTANT) else USER_DEFINED for token in LAST]
    return Vocabulary(tokens, types, [f"{first} {second}" for first, second in merges])


def learn_merges(corpus: str, count: int) -> list[tuple[str, str]]:
    """Learn merges of adjacent symbols, most frequent pair first, until they make ``count`` new symbols.

    Return fewer merges if no remaining pair occurs twice.
    """
    pieces = Counter(_PIECES.findall(corpus))
    words = [(list(to_chars(piece.encode())), n) for piece, n in sorted(pieces.items())]
    counts: Counter[tuple[str, str]] = Counter()
    users: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for index, (symbols, n) in enumerate(words):
        _count(symbols, n, index, counts, users)
    merges: list[tuple[str, str]] = []
    new_symbols: set[str] = set()
    while len(new_symbols) < count and counts:
        best = min(counts.items(), key=lambda item: (-item[1], item[0]))[0]
        if counts[best] < 2:
            break
        joined = best[0] + best[1]
        new_symbols.add(joined)
        merges.append(best)
        for index in sorted(users[best]):
            symbols, n = words[index]
            _count(symbols, -n, index, counts, None)
            symbols[:] = _merge(symbols, best, joined)
            _count(symbols, n, index, counts, users)
        counts.pop(best, None)
        del users[best]
    return merges


def _count(
    symbols: list[str],
    n: int,
    index: int,
    counts: Counter[tuple[str, str]],
    users: defaultdict[tuple[str, str], set[int]] | None,
) -> None:
    for pair in zip(symbols, symbols[1:], strict=False):
        counts[pair] += n
        if users is not None:
            users[pair].add(index)
        elif not counts[pair]:
            del counts[pair]


def _merge(symbols: Iterable[str], pair: tuple[str, str], joined: str) -> list[str]:
    out: list[str] = []
    for symbol in symbols:
        # ``joined`` cannot be the left half of ``pair`` again, so looking back one symbol is enough.
        if out and out[-1] == pair[0] and symbol == pair[1]:
            out[-1] = joined
        else:
            out.append(symbol)
    return out
