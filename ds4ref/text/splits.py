"""Pre-tokenizers: cut text into the pieces that byte-pair merges never cross (docs/explanation/text.md 2).

``split_unicode`` is the model's original pre-tokenizer: digits in groups of up to three, then runs of Chinese and
Japanese kana, then words, punctuation and white space by Unicode category. The public tokenizer makes three passes,
each one isolating its matches, so a later pattern never looks across an earlier match; here the three are combined into
one expression whose classes exclude the matches of earlier passes. (The `tokenizers` library cannot run the passes
itself: its regex engine fails on a run of ten million spaces. This one is linear.)

``split_ds4`` follows ds4: rules on bytes, where every byte above 0x7F counts as a letter. The two agree on ASCII text
except for control characters that are not white space: ``split_unicode`` keeps a run of them in one piece where ds4
cuts the run up, and splits off the last blank of blanks before the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, AnyStr

STRIDE = 1 << 18
"""Characters, or bytes, that are split at once: no other thread runs meanwhile, and their pieces are in memory."""
_BEHIND = 4
"""How far behind a piece there must be text to know its end: the longest character, or look-ahead."""

_PUNCT = r"!-/:-@\[-`{-~"  # the 32 ASCII punctuation characters
_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"


@cache
def _unicode_pattern() -> Any:
    import regex

    taken = rf"\p{{N}}{_CJK}"  # what the first two passes have isolated: ends every look-ahead
    letter = rf"[[\p{{L}}\p{{M}}]--[{_CJK}]]"
    symbol = rf"[[\p{{P}}\p{{S}}]--[{_CJK}]]"
    space = r"\p{White_Space}"
    other = rf"[^{space}\p{{L}}\p{{M}}\p{{P}}\p{{S}}{taken}]"  # control, format, unassigned, private use
    # The last pass cuts up what the second has isolated, too: "・" and voicing marks by themselves are punctuation.
    kanji_or_kana = rf"[[{_CJK}]&&[\p{{L}}\p{{M}}]]"
    between = rf"[[{_CJK}]&&[\p{{P}}\p{{S}}]]"
    gap = rf"[[{_CJK}]--[\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]"
    alternatives = (
        r"\p{N}{1,3}",
        rf"{gap}?{kanji_or_kana}++",
        rf"{between}++",
        rf"{gap}+(?!{kanji_or_kana})",
        rf"[{_PUNCT}][A-Za-z]++",
        rf"[^\r\n\p{{L}}\p{{P}}\p{{S}}{taken}]?{letter}++",
        rf" ?{symbol}++[\r\n]*+",
        rf"{space}*[\r\n]++",
        rf"{space}+(?![^{space}{taken}])",
        rf"{space}++",
        rf"{other}+(?!{letter})",  # runs that no pattern wants stay together
    )
    return regex.compile("|".join(alternatives), regex.DOTALL | regex.VERSION1)


def split_unicode(text: str) -> Iterator[str]:
    """Yield the pieces of ``text``, whose concatenation is ``text``. Lone surrogates count as unassigned characters."""
    return _strides(_unicode_pattern(), text)


@cache
def _ds4_pattern() -> Any:
    import regex  # ``re`` before Python 3.11.5 keeps what a possessive group passed before it failed (gh-106052)

    # A character is as long as its lead byte says; continuation bytes are not checked. A cut-off tail is single bytes.
    char = r"(?>[\xC0-\xDF].|[\xE0-\xEF]..|[\xF0-\xF7]...|[\x80-\xFF])"
    letters = rf"(?:[A-Za-z]|{char})++"
    letter = r"[A-Za-z\x80-\xFF]"
    space = r" \t\n\v\f\r"
    kana = r"\xE3(?:\x81[\x80-\xBF]|[\x82\x83][\x80-\xBF])"  # U+3040-309F and U+30A0-30FF lie side by side
    han = r"\xE4[\xB8-\xBF][\x80-\xBF]|[\xE5-\xE8][\x80-\xBF]{2}|\xE9[\x80-\xBD][\x80-\xBF]|\xE9\xBE[\x80-\xA5]"
    alternatives = (
        r"[0-9]{1,3}",
        rf"(?:{kana}|{han})++",
        rf"[{_PUNCT}][A-Za-z]++",
        letters,
        rf"[^\r\n{_PUNCT}]{letters}",
        rf" ?[{_PUNCT}]++[\r\n]*+",
        rf"[{space}]*[\r\n]",
        rf"[{space}]+(?=[{space}](?:{letter}|[{_PUNCT}]))",
        rf"[{space}]++",
        rf"{char}|.",
    )
    return regex.compile("|".join(alternatives).encode("ascii"), regex.DOTALL)


def split_ds4(data: bytes) -> Iterator[bytes]:
    """Yield the pieces of ``data`` by ds4's rules, whose concatenation is ``data``."""
    return _strides(_ds4_pattern(), data)


def _strides(pattern: Any, text: AnyStr) -> Iterator[AnyStr]:
    """Yield the matches of ``pattern`` in ``text``, found a stride at a time.

    What lies behind the end of a stride may change its last piece, and white space in front of that: there newlines
    further on decide where a piece ends. These are found again, by the next stride; a stride without any other piece
    is made longer.
    """
    at, length = 0, STRIDE
    while at < len(text):
        end = at + length
        found: list[AnyStr] = pattern.findall(text, at, end)
        if end < len(text):
            known = sum(map(len, found))
            while found and (known > length - _BEHIND or found[-1].isspace()):
                known -= len(found.pop())
            if not found:
                length *= 2
                continue
        yield from found
        at, length = at + sum(map(len, found)), STRIDE
