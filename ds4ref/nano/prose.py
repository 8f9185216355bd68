"""Deterministic English-looking prose of any length, for benchmarks and recall tests.

A benchmark of a mixture-of-experts model needs text rather than random token ids, because routing, sparse attention and
cache reuse depend on the content. One grammar serves two uses:

    prose(10_000)              a text of at least 10,000 characters; longer texts begin with the shorter ones
    story = tell(seed=1)       a long story with facts hidden in it, and a question about them at its end
    story.recalled(answer)     the names about which a model's answer is right

Of the random module only ``random.Random.random`` is used, because Python guarantees that its sequence never changes.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
WORDS: dict[str, list[str]] = {symbol: words.split() for symbol, words in _TABLES["words"].items()}
GRAMMAR: dict[str, list[str]] = _TABLES["grammar"]
NAMES = WORDS["name"]

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()

_SYMBOL = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])(?= (?:[aeiou]|honest)) ")


def spell(number: int) -> str:
    """Spell ``number``, 0 to 999,999, in words."""
    if not 0 <= number < 1_000_000:
        raise ValueError(f"only 0 to 999999 can be spelled, not {number}")
    if number < 20:
        return _UNITS[number]
    if number < 100:
        tens, rest = divmod(number, 10)
        return _TENS[tens] + (f"-{_UNITS[rest]}" if rest else "")
    size, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = divmod(number, size)
    return f"{spell(head)} {word}" + (f" {spell(rest)}" if rest else "")


class Writer:
    """Writes random text by expanding the grammar in ``prose.toml``; equal seeds give equal text."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        """Return a random integer from 0 to n - 1."""
        return int(self._random.random() * n)

    def expand(self, template: str, **fixed: str) -> str:
        """Return ``template`` with every ``{symbol}`` replaced by a random expansion, or by its value in ``fixed``."""

        def replace(match: re.Match[str]) -> str:
            symbol = match.group(1)
            if symbol in fixed:
                return fixed[symbol]
            lower = symbol.lower()
            text = self._one(lower, fixed)
            return text if symbol == lower else text[0].upper() + text[1:]

        return _ARTICLE.sub(r"\1n ", _SYMBOL.sub(replace, template))

    def _one(self, symbol: str, fixed: Mapping[str, str]) -> str:
        if symbol in WORDS:
            words = WORDS[symbol]
            # the smaller of two random indices: words at the front become frequent, others rare, as in natural text
            return words[min(self.below(len(words)), self.below(len(words)))]
        match symbol:
            case "number":
                return spell(2 + self.below(98))
            case "count":
                return str(3 + self.below(20_000) // (1 + self.below(40)))
            case "year":
                return str(1600 + self.below(320))
            case "ordinal":
                return _ORDINALS[self.below(len(_ORDINALS))]
        options = GRAMMAR[symbol]
        return self.expand(options[self.below(len(options))], **fixed)

    def paragraph(self) -> str:
        """Return three to seven sentences, sometimes with direct speech."""
        parts = []
        for _ in range(3 + self.below(5)):
            parts.append(self.expand("{speech}" if self.below(6) == 0 else "{sentence}"))
        return " ".join(parts)


def prose(characters: int, seed: int = 0) -> str:
    """Return whole paragraphs, separated by blank lines, of at least ``characters`` characters in total."""
    writer, parts, length = Writer(seed), [], 0
    while length < characters:
        parts.append(writer.paragraph() + "\n\n")
        length += len(parts[-1])
    return "".join(parts)


@dataclass(frozen=True)
class Fact:
    """A fact of a story: the person ``name`` was assigned ``number``; ``position``: character offset of the sentence
    that states it."""

    name: str
    number: int
    position: int


@dataclass(frozen=True)
class Story:
    """A long text with facts hidden among distractors, ending in the question that asks for the facts."""

    text: str
    facts: tuple[Fact, ...]

    def recalled(self, answer: str) -> list[str]:
        """Return the names for which an answer contains the right number, as ``name = number``."""
        return [fact.name for fact in self.facts if fact.number in statements(answer, fact.name)]


def statements(answer: str, name: str) -> list[int]:
    """Return the numbers of all ``name = number`` in ``answer``; the name must not be part of a longer identifier."""
    pattern = rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])[ \t]*=[ \t]*([0-9]{{1,18}})"
    return [int(digits) for digits in re.findall(pattern, answer)]


_OPENING = (
    "This is the chronicle of a register that was kept in {town}. Read it with attention. Many numbers occur in it: "
    "prices, years, rumours. Only one sentence binds a person to a number, the sentence which says that somebody "
    '"was assigned the number"; no other sentence counts, and the number is always written in words.'
)
_FACT = "On that day {who} was assigned the number {words}, and the clerk entered it in the register."
_TASK = (
    "The chronicle ends here. List every person who was assigned a number in it. Write one line for each, "
    "Name=number, with the number in digits and nothing else on the line."
)


def tell(seed: int = 0, *, scenes: int = 190, facts: int = 16) -> Story:
    """Return a story of ``scenes`` scenes (about 600 characters each) with a number of ``facts`` spread evenly over it.

    Names are distinct; every number has two digits. Between the facts there are rumours and prices with other numbers,
    as distractors. Raise ValueError if there are more facts than scenes or names.
    """
    writer = Writer(seed)
    if facts > len(NAMES):
        raise ValueError(f"there are {len(NAMES)} names, not {facts}")
    pool = list(NAMES)
    drawn = {pool.pop(writer.below(len(pool))): 10 + writer.below(90) for _ in range(facts)}
    if len(drawn) > scenes:
        raise ValueError(f"{len(drawn)} facts need at least as many scenes, not {scenes}")
    # each fact is in the middle of one of equally long stretches, so none is at the very start or end of a long story
    at = {(2 * i + 1) * scenes // (2 * len(drawn)): name for i, name in enumerate(drawn)}
    parts, placed = [writer.expand(_OPENING) + "\n\n"], []
    length = len(parts[0])
    for scene in range(scenes):
        lead = NAMES[writer.below(len(NAMES))]
        friend = NAMES[(NAMES.index(lead) + 1 + writer.below(len(NAMES) - 1)) % len(NAMES)]
        text = writer.expand("{scene}", lead=lead, friend=friend) + " "
        if scene in at:
            text += writer.expand("{bridge}") + " "
            who = at[scene]
            placed.append(Fact(who, drawn[who], length + len(text)))
            text += _FACT.format(who=who, words=spell(drawn[who])) + " "
        elif scene % 9 == 3:
            text += writer.expand("{rumour}") + " "
        elif scene % 11 == 6:
            text += writer.expand("{price}") + " "
        text += " ".join(writer.expand("{sentence}") for _ in range(2)) + "\n\n"
        parts.append(text)
        length += len(text)
    parts.append(_TASK)
    return Story("".join(parts), tuple(placed))
