"""What stands behind the word for an answer: a letter or a choice's text, an integer, lines.

A reader takes plain text and a position in it and gives what stands there, or None where that is no value. What stands
there may be several values, or one that is not worked out; ``Value.unclear`` says so. A reader looks at the rest of the
line, and at ``REACH`` characters of it at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import words

REACH = 300
"""Characters in which a value has to end."""
LONGEST = 40
"""Digits of a number; no key is longer, and a longer one is told as it stands."""
MOST = 8
"""Numbers of an enumeration that are read; more are several in any case."""
TOLD = 80
"""Characters of an expression that are told."""


class Value(NamedTuple):
    """``given``: what it is, one entry where it is clear. ``end``: where it ends in the text. ``unclear``: why it does
    not count as an answer. ``by``: how it was given, where that is worth telling."""

    given: tuple[str, ...]
    end: int
    unclear: str = ""
    by: str = ""


def rest_of_line(text: str, at: int) -> str:
    """From ``at`` to the end of its line."""
    end = text.find("\n", at, at + REACH)
    return text[at : at + REACH if end < 0 else end]


END = re.compile(r"[)\]}'>\x03 ]*+(?:$|[.;!?](?![0-9A-Za-z])|(?=\n)|[|\"])")
"""The end of a sentence or line."""
_BETWEEN = rf"[)\]}}\x03'\"]*+(?: ?[,;/&+|]| ?(?:{words.alternatives(words.AND + words.OR)}))++ ?"
_AND = re.compile(_BETWEEN)
BECAUSE = re.compile(rf"[ ,;:(.-]*+(?:{words.alternatives(words.BECAUSE)})")
_UNTENABLE = re.compile(
    r"[)\]}'\",]* ?(?:which )?(?:(?:is|was|are|seems|looks|would be)(?: all| both)? ?)?"
    r"(?:n't|not|wrong|incorrect|false|impossible|ruled out)\b"
    r"|[)\]}'\",]* ?(?:for|in) (?:the )?(?:part|case|step)\b",
    re.IGNORECASE,
)
"""Behind a value: it is denied, or holds for a part only."""
CONDITION = re.compile(rf"[)\]}}'\",]* ?(?:{words.alternatives(words.ONLY_IF)})")
_INSTEAD = re.compile(r"[)\]}'\",]* ?(?:not|nicht|pas) (?:the )?(?:option |choice |line )?[(]?[A-Z0-9]{1,3}\b")
"""Behind a value: another one is denied."""


def untenable(after: str) -> bool:
    """Whether what follows a value takes it away."""
    return bool(_UNTENABLE.match(after)) and not _INSTEAD.match(after)


# ---------------------------------------------------------------------------------------------- letters and choices

_LETTER = re.compile(
    r"[(\[{'\"<\x02 ]*+(?:(?:[Oo]ption|[Cc]hoice) )?[(\[\"]?([A-Za-z])"
    r"(?![A-Za-z0-9À-ɏḀ-ỿ_^°])(?!['.](?!dir|dır)[A-Za-z])(?!(?<=[nN])/[aA]\b)"
)
_BEHIND = re.compile(
    r"[)\]}>\x03'\"\\]| [(]"
    r"| ?(?:$|[|\n]|[,;!?:]|\.(?![0-9])|[/&](?= ?[A-Z](?![A-Za-z]))|-+>?(?= )|=>|[^\W\d_A-Za-zÀ-ɏḀ-ỿ])"
)
"""What may follow a letter that is one: an end, a mark, a letter of another script."""
_WORD = re.compile(r" ([A-Za-zÀ-ɏḀ-ỿ']+)")
_AFTER_A = frozenset((*words.BECAUSE, *words.AND, *words.OR, *words.IS, "rather", "instead", "over", "not"))
"""Only before these words A and I are letters and no words themselves."""
_ABBREVIATES = re.compile(r"\. [a-z]")
_LABEL = re.compile(r"[)\]}'\"\x03]*+ ?(?:[.:,)=(]|-(?= ))* ?")
_CUT = re.compile(
    rf"[.;!?)\"\x03|](?!\w)|[,:] | \(| - | (?:{words.alternatives(words.BECAUSE + words.AND + words.OR)})"
)
_AROUND = "\"'`.,;:!?()[]{}<> \x02\x03|"


def fold(text: str) -> str:
    """What two spellings of a choice's text have in common: neither case nor spaces nor what is around it."""
    return "".join(text.casefold().split()).strip(_AROUND)


def letter_at(rest: str, at: int, shown: Sequence[str]) -> tuple[str, int] | None:
    """The letter at ``at`` and its end, if its neighbours leave it one. One beyond those shown needs an end behind."""
    found = _LETTER.match(rest, at)
    if not found:
        return None
    one, end = found[1], found.end()
    if _BEHIND.match(rest, end):
        if one.isupper() and _ABBREVIATES.match(rest, end) and not BECAUSE.match(rest[end:].lower()):
            return None  # E. coli
        return one.upper(), end
    word = _WORD.match(rest, end)
    if one.islower() or not word or ord(one) - 65 >= len(shown):
        return None
    return (one, end) if one not in "AI" or word[1].lower() in _AFTER_A else None


def _text_at(rest: str, at: int, shown: Sequence[str]) -> tuple[list[str], int] | None:
    """The choices whose whole text stands at ``at``, up to the end of the line or of a clause, and its end."""
    line = fold(rest[at:])
    if not any(text and line.startswith(text) for text in shown):
        return None
    cuts = [len(rest), *(m.start() for _, m in zip(range(12), _CUT.finditer(rest, at), strict=False))]
    for cut in cuts:
        folded = fold(rest[at:cut])
        if folded and (named := [chr(65 + i) for i, text in enumerate(shown) if text == folded]):
            return named, cut
    return None


def _before_its_text(rest: str, shown: Sequence[str]) -> tuple[str, int] | None:
    """A letter with nothing between it and its own text, and its end."""
    found = _LETTER.match(rest)
    named = _text_at(rest, found.end(), shown) if found else None
    return (found[1], found.end()) if found and named and found[1] in named[0] else None


def choice(text: str, at: int, shown: Sequence[str]) -> Value | None:
    """A choice by its letter or its text. ``shown``: texts, folded, in the order of the letters."""
    rest = rest_of_line(text, at)
    named, lettered = _text_at(rest, 0, shown), letter_at(rest, 0, shown) or _before_its_text(rest, shown)
    if named and (not lettered or len(fold(rest[: named[1]])) > 1):
        given, end = list(named[0]), named[1]
        while (more := _AND.match(rest, end)) and (named := _text_at(rest, more.end(), shown)):
            given, end = given + named[0], named[1]
        by = "by its text"
    elif lettered:
        given, end, by = [lettered[0]], lettered[1], ""
        while (more := _AND.match(rest, end)) and (other := letter_at(rest, more.end(), shown)):
            if not (_BEHIND.match(rest, other[1]) or _AND.match(rest, other[1])):
                break
            given, end = [*given, other[0]], other[1]
        label = _LABEL.match(rest, end)
        if len(given) == 1 and label and (named := _text_at(rest, label.end(), shown)):
            given, end = given + (named[0] if given[0] not in named[0] else []), named[1]
    elif glued := re.match(r"[(\x02 ]*([A-J]{2,4})(?![A-Za-z0-9+#'-])", rest):
        given, end, by = list(glued[1]), glued.end(), ""
        if len(set(given)) < len(given) or max(given) > chr(64 + len(shown)):
            return None
    else:
        return None
    if untenable(rest[end:]):
        return None
    given = list(dict.fromkeys(given))
    return Value(tuple(given), at + end, "" if len(given) == 1 else "several choices", by)


# ---------------------------------------------------------------------------------------------------------- integers

_NUMBER = re.compile(
    r"[(\[{'\"<\x02 ]*+[~≈]? ?(?P<sign>[+±-]? ?)[#€£¥]?"
    r"(?P<whole>[0-9]{1,3}(?:([,' _])[0-9]{3})(?:\3[0-9]{3})*+(?![0-9])"
    r"|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])|[0-9]++)"
    r"(?:\.(?P<part>[0-9]++))?(?:e(?P<power>[+-]?[0-9]{1,3})(?![0-9A-Za-z.])| ?[×x·] ?10\^(?P<tens>[+-]?[0-9]{1,3}))?"
    r"(?: ?/ ?(?P<under>[0-9]{1,18})(?![0-9.]))?",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"[0-9]")
"""Every number has one: looked for first, since a line of nothing but signs has as many parts as signs."""
_MORE_DIGITS = re.compile(r" ?[,.'_]? ?[0-9]")
_OPERATES = re.compile(
    r" ?(?:[+×·÷√\\^]|/(?= ?[0-9A-Za-z(]))|:[0-9]|-[0-9A-Za-z]| - [0-9]"
    r"|(?!(?:[cmk]?m|k?g|m?s|th|st|nd|rd)(?![A-Za-z]))[A-Za-z]"
    r"| (?:pi|sqrt|log|ln|sin|cos|times|choose|hundred|thousand|million|billion|dozen|squared|cubed|factorial)\b",
    re.IGNORECASE,
)
"""Behind a number: it is part of an expression, or of a word."""
_SIGN = re.compile(r" ?([+×/·÷√^-]) ?")
_NOTE = re.compile(r"(?<=[0-9]) ?(?:\([^()]*+\)|\(?mod [0-9]++\)?(?! ?=))")
_REASON = re.compile(rf"[.?](?![0-9])|,? (?:{words.alternatives(words.BECAUSE)})| - (?=[A-Za-z])|[\x03\"]")
_LONGER = tuple(word for word in words.AND + words.OR if len(word) > 1 or not word.isascii())  # y may be a number
_ITEM = re.compile(rf"(?:[,;&](?![0-9])| (?:{words.alternatives(_LONGER)}))++")
_THUS = re.compile(rf"[,;]? (?:{words.alternatives(words.SO)})|,? (?:in total|altogether)(?= [0-9])|-+>|=>")
_EQUATES = re.compile(r"[=≡≈]")
_UNIT = re.compile(r"[ %°)\]}]*+(?:(?!is\b|was\b|are\b|has\b|can\b|if\b)[^\W\d_]++\^?+[0-9]?+ ?+){0,4}+[)\]}.]*+")


def _number(m: re.Match[str]) -> str:
    """Canonical form of a number that is an integer; the number as it stands, if it is not."""
    whole, part = re.sub(r"[^0-9]", "", m["whole"]), m["part"] or ""
    sign = "-" if m["sign"].strip() == "-" else ""
    shift = int(m["power"] or m["tens"] or 0)
    as_it_is = sign + (whole.lstrip("0") or "0") + (f".{part}" if part else "")
    if len(whole) + len(part) + abs(shift) > LONGEST:
        return as_it_is + (f"e{shift}" if shift else "")
    digits = whole + part + "0" * max(0, shift - len(part))
    point = len(whole) + shift
    if point < 0 or digits[point:].strip("0"):
        return as_it_is + (f"e{shift}" if shift else "")
    number = int(sign + (digits[:point] or "0"))
    if m["under"] is None:
        return str(number)
    under = int(m["under"])
    return str(number // under) if under and number % under == 0 else f"{number}/{under}"


def _spans(pattern: re.Pattern[str], line: str, start: int, stop: int) -> list[tuple[int, int]]:
    """What lies between the matches of ``pattern``."""
    found = []
    for m in pattern.finditer(line, start, stop):
        found.append((start, m.start()))
        start = m.end()
    return [*found, (start, stop)]


def _numbered(line: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those with a digit, the last one first."""
    return (span for span in reversed(spans) if _DIGIT.search(line, *span))


def _item(line: str, start: int, stop: int, first: bool) -> Value | None:
    """The number in one part of an enumeration: the last term of an equation that is a number and nothing else. The
    first part may go on behind its number."""
    terms = _spans(_EQUATES, line, start, stop)
    for low, high in _numbered(line, terms):
        m = _NUMBER.match(line, low, high)
        if m and _UNIT.fullmatch(line, m.end(), high) and not _OPERATES.match(line, m.end(), high):
            return _valued(m, stop)
    low, high = terms[0] if len(terms) == 1 else terms[-1]
    m = _NUMBER.match(line, low, high)
    if not m or not first:
        return None
    if _MORE_DIGITS.match(line, m.end(), high):
        return Value((line[low:high].strip(" .("),), high, "several numbers, or a decimal comma")
    if _OPERATES.match(line, m.end(), high):
        return Value(
            (_SIGN.sub(r"\1", line[low : min(high, low + TOLD)].strip(" .,:")),), high, "not worked out to a number"
        )
    return _valued(m, m.end()) if len(terms) == 1 else None


def _valued(m: re.Match[str], end: int) -> Value:
    if m["sign"].strip() == "±":
        return Value((m["whole"], "-" + m["whole"]), end, "two signs")
    part = m["part"] or ""
    if len(part) == 3 and part != "000" and 0 < len(m["whole"].lstrip("0")) < 4 and not (m["power"] or m["tens"]):
        return Value((f"{m['whole']}.{part}",), end, "a decimal, or thousands set apart by a point")
    return Value((_number(m),), end)


def integer(text: str, at: int, shown: Sequence[str] = ()) -> Value | None:
    """A number, or the last one of an equation. ``shown`` is not used."""
    line = rest_of_line(text, at)
    if not _DIGIT.search(line):
        return None
    line = _NOTE.sub(lambda m: " " * len(m[0]), line)
    alone = _NUMBER.match(line)
    if alone and untenable(line[alone.end() :]):
        return None
    if not alone and not _EQUATES.search(line):
        return None
    reason = _REASON.search(line)
    for start, stop in _numbered(line, _spans(_THUS, line, 0, reason.start() if reason else len(line))):
        items: list[Value] = []
        for low, high in _spans(_ITEM, line, start, stop):
            high = low + len(line[low:high].rstrip())
            low += len(line[low:high]) - len(line[low:high].lstrip())
            item = _item(line, low, high, not items)
            if item is None:
                break
            items.append(item)
            if len(items) > MOST:
                return Value((items[0].given[0], "..."), at + item.end, "several numbers")
        if items:
            given = tuple(dict.fromkeys(one for item in items for one in item.given))
            unclear = next((item.unclear for item in items if item.unclear), "")
            return Value(given, at + items[-1].end, unclear or ("several numbers" if len(given) > 1 else ""))
    return None


# ------------------------------------------------------------------------------------------------------------- lines

_NAME = r"(?:(?:on |from |at )?(?:lines? numbers?|lines?|zeilen?|ln?|#|no\.) ?#?)?"
_RANGE = re.compile(
    rf"[(\[{{'\"<\x02 ]*+{_NAME}([0-9]++)(?:st|nd|rd|th)?(?![A-Za-z]|-(?!{_NAME}[0-9])[A-Za-z]|\.[0-9])"
    rf"(?: ?(?:-{{1,3}}|~|\.\.| ?(?:to|through|thru|until|till|bis)\b|[至到]|から) ?{_NAME}([0-9]++))?",
    re.IGNORECASE,
)
_NEXT = re.compile(rf"(?: *+[,;&+/]| *+(?:{words.alternatives(words.AND)}))++ *+| (?=[0-9]++(?:[ ,;.)\]]|$))")
_OR = re.compile(rf" *+,? *+(?:{words.alternatives(words.OR)}) ?")
SAFE = "by words"
_SAFE = re.compile(
    r"[(\['\"\x02 ]*+(?:none|nothing|nil|n/a|zero|safe|secure|no lines? (?:is|are) (?:defective|vulnerable|unsafe)"
    r"|(?:there (?:is|are|seems to be) )?no (?:lines?|defects?|bugs?|vulnerabilit(?:y|ies)|flaws?|issues?|errors?)"
    r"|(?:the |this )?(?:function|code|snippet) (?:is|seems) (?:safe|secure|correct|fine)"
    r"|(?:it|this) is (?:safe|secure))"
    r"(?= ?(?:$|[.:;!,)(\]}\"'|\n\x03]|- )"
    r"| (?:found|at all|here|present|exists?|of (?:the|these)|in (?:the|this) \w+)\b)",
    re.IGNORECASE,
)
_NOT_A_LINE = re.compile(r"[(\['\"\x02 ]*+[0-9]++\.[0-9]++")


def lines(text: str, at: int, shown: Sequence[str] = ()) -> Value | None:
    """Lines and ranges of lines; 0 where it is said that there is none. ``shown`` is not used."""
    rest = _NOTE.sub(lambda m: " " * len(m[0]), rest_of_line(text, at))
    safe = _SAFE.match(rest)
    if safe:
        return None if untenable(rest[safe.end() :]) else Value(("0",), at + safe.end(), by=SAFE)
    end = 0
    groups: list[list[tuple[str, str]]] = [[]]
    step = _RANGE.match(rest)
    if not step:
        m = _NOT_A_LINE.match(rest)
        return Value((m[0].strip("(['\"\x02 "),), at + m.end(), "not the number of a line") if m else None
    while step:
        groups[-1].append((step[1].lstrip("0") or "0", (step[2] or step[1]).lstrip("0") or "0"))
        end = step.end()
        other = _OR.match(rest, end)
        more = other or _NEXT.match(rest, end)
        step = _RANGE.match(rest, more.end()) if more else None
        if other and step:
            groups.append([])
    if untenable(rest[end:]):
        return None
    given = tuple(dict.fromkeys(spelt(group) for group in groups))
    return Value(given, at + end, "" if len(given) == 1 else "several answers")


def spelt(ranges: Sequence[tuple[str, str]]) -> str:
    """Ranges in order and joined where they touch: "3,9-10". Numbers beyond any key stay at the end, as they are."""
    small = [sorted((int(a), int(b))) for a, b in ranges if max(len(a), len(b)) <= 15]
    large = [f"{a}-{b}" if a != b else a for a, b in ranges if max(len(a), len(b)) > 15]
    joined: list[list[int]] = []
    for low, high in sorted(small):
        if joined and low <= joined[-1][1] + 1 and (low > 1 or joined[-1][0] > 0):
            joined[-1][1] = max(high, joined[-1][1])
        else:
            joined.append([low, high])
    return ",".join([f"{a}-{b}" if a != b else str(a) for a, b in joined] + large)


def within(given: str, key: frozenset[int]) -> bool:
    """Whether the lines of ``spelt`` are lines of the key, all of them."""
    for part in given.split(","):
        low, _, high = part.partition("-")
        if len(low) > 15 or len(high) > 15 or int(high or low) - int(low) >= len(key):
            return False
        if not all(line in key for line in range(int(low), int(high or low) + 1)):
            return False
    return True


READERS = {"choice": choice, "integer": integer, "lines": lines}
