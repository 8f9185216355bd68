"""Sums of two numbers, answered at once or after written reasoning.

One in twenty pairs of operands, in either order, is held out for tests. A hash of the pair decides which, so that no
training run ever contains a held-out pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

from .base import Item, Skill, assistant, user

HELD_OUT = 20
"""One in this number of pairs of operands is held out for tests."""


def is_held_out(a: int, b: int) -> bool:
    """Return whether the sum of ``a`` and ``b`` is asked only in tests."""
    return crc32(f"{min(a, b)}+{max(a, b)}".encode()) % HELD_OUT == 0


def operands(rng: random.Random, digits: int, held_out: bool) -> tuple[int, int]:
    """Return two random numbers of ``digits`` digits, a pair that is held out or one that is not."""
    low, high = 10 ** (digits - 1), 10**digits - 1
    while True:
        a, b = rng.randint(low, high), rng.randint(low, high)
        if is_held_out(a, b) == held_out:
            return a, b


def working(a: int, b: int) -> str:
    """Return the written reasoning for a sum: its column additions from right to left, with a carry as third addend,
    such as "7+5=12, 4+2+1=7"."""
    steps, carry = [], 0
    for x, y in zip(reversed(str(a)), reversed(str(b)), strict=True):
        total = int(x) + int(y) + carry
        steps.append(f"{x}+{y}{'+1' if carry else ''}={total}")
        carry = total // 10
    return ", ".join(steps)


def _maker(name: str, digits: int, mode: str) -> Callable[..., list[Item]]:
    sums = 10**digits * 2 - 1 - 2 * 10 ** (digits - 1)  # number of different values that a sum can have

    def make(rng: random.Random, room: int, questions: int, held_out: bool = False) -> list[Item]:
        items = []
        for _ in range(questions):
            a, b = operands(rng, digits, held_out)
            thought = working(a, b)
            reply = assistant(str(a + b), thought if mode != "none" else "")
            items.append(Item(name, user(f"{a}+{b}="), reply, 1 / sums, mode, thought=thought))
        return items

    return make


def _skill(name: str, digits: int, mode: str, tokens: int) -> Skill:
    return Skill(name, _maker(name, digits, mode), 6, tokens, test={"held_out": True})


SKILLS = (
    _skill("sums2", 2, "none", 13),
    _skill("sums3", 3, "none", 15),
    _skill("think/sums2", 2, "high", 31),
    _skill("think/sums3", 3, "high", 42),
)
