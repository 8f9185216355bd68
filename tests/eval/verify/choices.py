"""Find the choice that states a number or contains given words."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(
    r"(?P<mantissa>[-+\u2212]?\d[\d,]*(?:\.\d+)?)"
    r"(?:\s*(?:\u00d7|\\times|x)\s*10\^?\{?(?P<power>[-+\u2212]?\d+)\}?|e(?P<exp>[-+]?\d+))?"
    r"(?:\s*/\s*(?P<denominator>\d+))?"
    r"(?P<percent>\s*\\?%)?"
)


def leading_number(text: str) -> float:
    """Return the first number in a choice; forms: plain, 3.2e-4, 3.2 x 10^-4, 7/12, 12 %, 34,500."""
    match = _NUMBER.search(text.replace("$", ""))
    assert match is not None, f"no number in {text!r}"
    value = float(match["mantissa"].replace(",", "").replace("\u2212", "-"))
    power = match["power"] or match["exp"]
    if power:
        value *= 10.0 ** int(power.replace("\u2212", "-"))
    if match["denominator"]:
        value /= int(match["denominator"])
    return value / 100.0 if match["percent"] else value


def _only(hits: Sequence[bool], what: object) -> int:
    assert sum(hits) == 1, f"{sum(hits)} choices fit {what}"
    return list(hits).index(True)


def nearest(choices: Sequence[str], value: float, rel: float = 0.02) -> int:
    """Return the index of the only choice whose leading number is within the relative distance ``rel`` of ``value``."""
    return _only([abs(leading_number(text) - value) <= rel * abs(value) for text in choices], value)


def with_words(choices: Sequence[str], *words: str) -> int:
    """Return the index of the only choice that contains all the words."""
    return _only([all(word in text for word in words) for text in choices], words)


def only(choices: Sequence[str], wanted: str) -> int:
    """Return the index of the only choice equal to ``wanted``."""
    return _only([text == wanted for text in choices], wanted)
