"""Prompts whose answers show where their content came from: each lists codes that occur in no other prompt.

made = Registers("chat", seed=1)
one = made.fresh()               a list of codes in prose, and the request to repeat it
near = made.near(one)            the same prompt, but for one code
longer = one.continued()         the conversation that goes on after its answer
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ds4ref.nano.prose import NAMES, prose
from ds4ref.targets import Prompt
from ds4ref.text.chat import Message

from .case import ExamContext

LINES = 3
PLACES = ("start", "middle", "end")
"""Where in the prompt the list is, and so where a near variant differs."""
HEAD = "List of codes:\n"
REPEAT, MORE = "Repeat the list of codes exactly, and nothing else.", "Repeat it once more, exactly."


@dataclass(frozen=True)
class Register:
    """A prompt that lists names with codes, and asks to repeat the list.

    kind    form of the prompt: "chat", "text" or "ids"
    number  number at its very beginning, so that no two families of prompts begin alike
    lines   (name, code) of each line
    where   index into PLACES
    family  seed of the prose
    size    characters of prose around the list
    longer  whether the list was repeated before, as in a conversation that goes on
    """

    kind: str
    number: int
    lines: tuple[tuple[str, str], ...]
    where: int = 1
    family: int = 0
    longer: bool = False
    size: int = 440

    @property
    def codes(self) -> tuple[str, ...]:
        """Return the codes that the answer should repeat."""
        return tuple(code for _, code in self.lines)

    @property
    def listed(self) -> str:
        """Return the list as the answer should repeat it."""
        return "\n".join(f"{name}: {code}" for name, code in self.lines)

    def continued(self) -> Register:
        """Return the prompt that goes on after the right answer to this one."""
        return replace(self, longer=True)

    def prompt(self, case: ExamContext) -> Prompt:
        """Return the prompt to send."""
        words = prose(self.size + 60, seed=self.family)[: self.size].split()
        cut = (0, len(words) // 2, len(words))[self.where]
        parts = " ".join(words[:cut]), HEAD + self.listed, " ".join(words[cut:])
        text = "\n\n".join([f"Note {self.number}.", *filter(None, parts)])
        if self.kind == "chat":
            first = Message("user", f"{text}\n\n{REPEAT}")
            later = (Message("assistant", self.listed), Message("user", MORE)) if self.longer else ()
            return Prompt.conversation([first, *later])
        text += f"\n\n{HEAD}" + (f"{self.listed}\n\n{HEAD}" if self.longer else "")
        if self.kind == "ids" and case.tokenizer is not None:
            return Prompt.tokens(case.tokenizer.encode(text))
        return Prompt.plain(text)


class Registers:
    """Makes prompts of one ``kind`` with codes drawn from ``seed``; ``owners``: the prompts' number of every code."""

    def __init__(self, kind: str, seed: int):
        self.kind, self._random = kind, random.Random(seed)
        self._numbers = iter(self._random.sample(range(1000, 10000), 9000))
        self.owners: dict[str, Register] = {}

    def fresh(self, where: int = 1, size: int = 440) -> Register:
        """Return a prompt that shares neither its beginning nor a code with any other."""
        names, number = self._random.sample(NAMES, LINES), next(self._numbers)
        lines = tuple((name, self._code()) for name in names)
        return self._known(Register(self.kind, number, lines, where, number, size=size))

    def numbered(self, one: Register, digit: int) -> Register:
        """Return the same prompt with another digit (from 0) in the number at its beginning: one token differs."""
        digits = [*str(one.number)]
        digits[digit] = str(int(digits[digit]) % 9 + 1)
        return replace(one, number=int("".join(digits)))

    def near(self, one: Register) -> Register:
        """Return the same prompt with another code in the second line, from its first letter on, so that all variants
        of a prompt share as many tokens with it."""
        lines = list(one.lines)
        code = next(code for code in iter(self._code, "") if code[0] != one.codes[1][0])
        lines[1] = lines[1][0], code
        return self._known(replace(one, lines=tuple(lines)))

    def _known(self, made: Register) -> Register:
        for code in made.codes:
            self.owners.setdefault(code, made)
        return made

    def _code(self) -> str:
        """Return a new code: no part of it is in the usual vocabulary, and it is not one digit away from another."""
        while True:
            pair = "".join(self._random.choices("BCDFGHJKLMNPQRSTVWXZ", k=2))
            code = f"{pair}-{self._random.randrange(1000, 10000)}"
            if all(sum(a != b for a, b in zip(code, other, strict=True)) > 2 for other in self.owners):
                return code
