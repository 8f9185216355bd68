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
    if match is None:
        raise ValueError(f"no number in {text!r}")
    value = float(match["mantissa"].replace(",", "").replace("\u2212", "-"))
    power = match["power"] or match["exp"]
    if power:
        value *= 10.0 ** int(power.replace("\u2212", "-"))
    if match["denominator"]:
        value /= int(match["denominator"])
    return value / 100.0 if match["percent"] else value


def nearest(choices: Sequence[str], value: float, rel: float = 0.02) -> int:
    """Return the index of the only choice whose leading number is within the relative distance ``rel`` of ``value``."""
    hits = [i for i, text in enumerate(choices) if abs(leading_number(text) - value) <= rel * abs(value)]
    if len(hits) != 1:
        raise ValueError(f"{len(hits)} choices lie near {value:.6g}")
    return hits[0]


def with_words(choices: Sequence[str], *words: str) -> int:
    """Return the index of the only choice that contains all the words."""
    hits = [i for i, text in enumerate(choices) if all(word in text for word in words)]
    if len(hits) != 1:
        raise ValueError(f"{len(hits)} choices hold {words}")
    return hits[0]


def only(choices: Sequence[str], wanted: str) -> int:
    """Return the index of the only choice equal to ``wanted``."""
    hits = [i for i, text in enumerate(choices) if text == wanted]
    if len(hits) != 1:
        raise ValueError(f"{len(hits)} choices equal {wanted!r}")
    return hits[0]
