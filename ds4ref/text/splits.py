"""DeepSeek's pre-tokenizers: cut text into the pieces that byte-pair merges never cross (docs/explanation/text.md 2).

``split_unicode`` is the model's original pre-tokenizer: digits in groups of up to three, then runs of Chinese and
Japanese kana, then words, punctuation and white space by Unicode category. The published tokenizer makes three passes,
each of which cuts out its matches, so that a later pattern never looks across an earlier match; here the three are
combined into one regular expression whose character classes exclude the matches of earlier passes. (The `tokenizers`
library is not used for this: its regex engine fails on a run of ten million spaces. This expression is linear.)

``split_ds4`` follows ds4: rules on bytes, where every byte above 0x7F counts as a letter. The two agree on ASCII text
except for control characters that are not white space: ``split_unicode`` keeps a run of them in one piece where ds4
cuts it up, and separates the last of several blanks before the run from the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, AnyStr

STRIDE = 1 << 18
"""Number of characters or bytes that are split at a time: meanwhile no other thread runs, and all pieces are in
memory."""
_BEHIND = 4
"""Number of characters or bytes that must follow a piece for its end to be certain."""

_PUNCT = r"!-/:-@\[-`{-~"  # the 32 ASCII punctuation characters
_CJK = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"


@cache
def _unicode_pattern() -> Any:
    import regex

    taken = rf"\p{{N}}{_CJK}"  # matched by the first two passes: no look-ahead goes beyond it
    letter = rf"[[\p{{L}}\p{{M}}]--[{_CJK}]]"
    symbol = rf"[[\p{{P}}\p{{S}}]--[{_CJK}]]"
    space = r"\p{White_Space}"
    other = rf"[^{space}\p{{L}}\p{{M}}\p{{P}}\p{{S}}{taken}]"  # control, format, unassigned, private use
    # The last pass also cuts up the second's matches: "・" and voicing marks by themselves are punctuation.
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
        rf"{other}+(?!{letter})",  # runs that no pattern matches stay together
    )
    return regex.compile("|".join(alternatives), regex.DOTALL | regex.VERSION1)


def split_unicode(text: str) -> Iterator[str]:
    """Yield the pieces of ``text``, whose concatenation is ``text``. Lone surrogates count as unassigned characters."""
    return _strides(_unicode_pattern(), text)


@cache
def _ds4_pattern() -> Any:
    import regex  # ``re`` before Python 3.11.5 keeps what a possessive group passed before it failed (gh-106052)

    # The lead byte gives a character's length; continuation bytes are not checked. An incomplete last character is cut
    # into single bytes.
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
    """Yield the matches of ``pattern`` in ``text``, searching ``STRIDE`` characters or bytes at a time.

    Text after the end of a stride can change the stride's last piece, and white space before that piece, whose end
    depends on newlines further on. These pieces are left to the next stride; a stride that has no others is doubled.
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
