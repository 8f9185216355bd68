"""Constrained strings match their patterns and have their formats."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import FormatChecker

from ds4ref.server.constrain import Unsupported
from ds4ref.server.grammar import formats, matching, patterns

from .constrained import answers

PATTERNS = [
    "foo", r"^[^@]+@[^@]+\.[a-z]{2,4}$", r"\.(png|gif)$", r"x.*y",
    r"^a*b$", r"^\d+$", r"\d", r"[^\d]x", r"^\D{3}$", r"^\W\w\s\S$", r"^[\w.-]+@[^\s]+$", r"^.{3,5}$", "", r"^$", "^",
    "$", r"^^a$$", r"^(?:a|b|)+c?$", r"^[^\W_]+$", r"^\u00e9\x41\t$", r"^\/a\-b$", r"^x{2,}$", r"^[a\]b-]$",
    "^[가-힣]{2}$", r"^(a|^b)c", r"(^|,)ab(,|$)", r"^[\u0000-\u00ff]{2}$", r"^[^a]$", r"^a+?b*?$",
    r"^\^\$$", r"^[\d\-x]+$", r"^(?P<y>\d{2})-(\d\d)$", r"^a{0}b{1,1}$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_strings_match_their_patterns(pattern) -> None:
    found = answers({"type": "string", "pattern": pattern, "maxLength": 12}, 10)
    least = patterns.search(pattern).least
    for text in found:
        value = json.loads(text)
        assert re.search(pattern, value) and len(value) >= least, value
    example = patterns.search(pattern).example
    assert example is not None and re.search(pattern, example)


def test_patterns_with_words_of_one_dialect() -> None:
    for pattern, value in (
        (r"^(?<y>\d)$", "1"),
        (r"^[+--]$", ","),
        (r"^\p{Lu}$", "Ä"),
        (r"^\ud83d\ude00$", "\U0001f600"),
    ):
        assert matching.matches(matching.anchored(patterns.search(pattern).text), value)
    for pattern in ("[]a]", "[^]a]", "a{,3}", r"\q", "(?i)a", "a++", "(?>a)", "a**", "a?^b", "(a", "a)", "[z-a]", "[a",
                    r"\p{Greek}", r"[\d-x]", r"\u12", "+a", "^*", "(?#x)", r"\ud800"):  # fmt: skip
        with pytest.raises(Unsupported, match="pattern with"):
            patterns.search(pattern)


@pytest.mark.parametrize("name", formats.FORMATS)
def test_strings_have_their_formats(name) -> None:
    schema = {"type": "string", "format": name, "maxLength": 60}
    for text in answers(schema, 10):
        assert FormatChecker().conforms(json.loads(text), name) or name == "time"  # whose check is another draft's


def test_dates_are_dates() -> None:
    pattern = formats.format_pattern("date")
    assert pattern is not None
    for value in ("2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"):
        assert matching.matches(matching.anchored(pattern.text), value), value
    for value in ("2023-02-29", "1900-02-29", "0000-01-01", "2023-04-31", "2023-13-01", "2023-1-1"):
        assert not matching.matches(matching.anchored(pattern.text), value), value
