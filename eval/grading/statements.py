"""Statements of an answer in plain text: where, what, and how expressly.

A finder goes through the text in its own way and yields what it finds; the decision between statements is
``eval.grading``'s. What is looked at is bounded: the last ``RECENT`` places where something may be stated, ``LAST``
places in one sentence, ``values.REACH`` characters each. A statement that its own clause denies, supposes or calls
naive is none (``_hedged``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import plain, values, words
from .cues import Cue, Finder
from .values import Value

RECENT, LAST = 20, 5
ASKED, SAID, IMPLIED, LEFT = 3, 2, 1, 0
"""Ranks: the form that was asked for; a sentence, a box, a last line; a turn of phrase; a result at the end."""


class Statement(NamedTuple):
    """An answer stated. ``start``: where in the text, ``rank``: how expressly, ``how``: for people."""

    start: int
    rank: int
    value: Value
    how: str


class Output(NamedTuple):
    """What is graded.

    text     plain (``plain.plain``)
    low      the same in lower case, with spaces for underscores
    kind     of answer: "choice", "integer", "lines"
    shown    the choices' texts, folded, in the order of their letters
    cut      whether it broke off, without so much as a mark behind its last word
    """

    text: str
    low: str
    kind: str
    shown: tuple[str, ...]
    cut: bool

    def read(self, at: int) -> Value | None:
        """The value at a position."""
        return values.READERS[self.kind](self.text, at, self.shown)

    def ends(self, at: int, line: bool = False) -> bool:
        """Whether a sentence, or its line, ends at a position."""
        end = values.END.match(self.text, at)
        if end is None:
            return False
        return not (line and values.rest_of_line(self.text, end.end()).strip(" .)]}\x03\"'|"))

    def settles(self, at: int) -> bool:
        """Whether a sentence ends at a position, or its reason begins."""
        return self.ends(at) or values.BECAUSE.match(self.low, at) is not None


# ------------------------------------------------------------------------------------------- words for an answer

_NUMBERS = Finder(answer=words.ANSWER, result=words.RESULT)
_LETTERS = Finder(answer=words.ANSWER, result=words.RESULT, choose=words.CHOOSE)
_FILLERS = words.alternatives(words.FILLER)
_NOT_BUT = rf"(?:{words.alternatives(words.NOT)}) [^,.\n]{{1,30}},? (?:{words.alternatives(words.BUT)})(?= )"
_GAP = re.compile(
    r"(?:(?<=ans)\.)?+(?:\s?-{1,3}>?(?= )|(?<=[^\W_])-{1,3}(?=[\w(]))?+"  # a dash that separates: Answer - C, answer—C
    rf"(?:\([^()\n]{{1,40}}\)(?= ?[:=])|\n- |-+>|{_NOT_BUT}|[\s:=|\"'()\[\]<>,\x02]|{_FILLERS})*+"
)
"""Between the word for an answer and its value."""
_FILLED = re.compile(rf"(?:(?:{_FILLERS}) )*+")
_PARTS = re.compile(r"[:=|>\n-]")
_IS = re.compile(words.alternatives(words.IS))
_OPENING = re.compile(rf"(?:[\W_]|[0-9]{{1,2}}[.)]|{_FILLERS})*+")
_OTHER_SCRIPT = re.compile(r" ?[^\W\d_A-Za-zÀ-ɏḀ-ỿ]|'d[iı]r")
_WORD_BEGINS = re.compile(r"\b[^\W\d_]")

_CLAUSE = re.compile(r"[.,;:!?\n(\"|\x02]")
_HEDGE = re.compile(words.alternatives(words.HEDGE))
_DENIED = re.compile(
    rf"(?:{words.alternatives(words.NOT + words.IF)})(?:\s|{words.alternatives(words.BEFORE_A_STATEMENT)})*+$"
    rf"|(?:{words.alternatives(words.BELITTLED)})(?: to \w+(?: that)?(?: the| my| our)?)?$"
)
_PART = r"(?:part|case|step|exercise|question) (?:\(?[0-9a-d]\)?|one|two|three|i+)(?!\w)"
_OF_A_PART = re.compile(rf"\b{_PART}[^.,;:!?\n]*$|(?:^|[.!?\n] ?)(?:in|for) {_PART}[^.!?\n]*$")
_OTHERWISE = re.compile(
    words.alternatives(words.OTHERWISE) + r"|n't\b|\bat [a-z]\w{0,2} ?=? ?$|\bwhen\b(?!.*\bdivided\b)"
)
LOOKBACK = 120
"""Characters before a statement in which its clause begins."""


def _hedged(output: Output, at: int) -> bool:
    """Whether the clause before a position denies, supposes or belittles what follows, or speaks of a part."""
    before = output.low[max(0, at - LOOKBACK) : at].rstrip(" (\"'")
    clause = _CLAUSE.split(before)[-1]
    return bool(_HEDGE.search(clause) or _DENIED.search(clause) or _OF_A_PART.search(before))


def _doubted(output: Output, at: int) -> bool:
    """Like ``_hedged``, where other words than one for an answer precede: any negation or condition counts."""
    clause = _CLAUSE.split(output.low[max(0, at - LOOKBACK) : at])[-1]
    return _OTHERWISE.search(clause) is not None or _hedged(output, at)


def _behind_fillers(output: Output, at: int) -> int:
    """Where the words end that may stand before a value."""
    return m.end() if (m := _FILLED.match(output.low, at, at + values.REACH)) else at


def _opens_line(output: Output, at: int) -> bool:
    """Whether a line begins here, but for numbers, marks and words that announce an answer."""
    start = output.low.rfind("\n", 0, at) + 1
    return at - start <= LOOKBACK and _OPENING.fullmatch(output.low, start, at) is not None


def _read_behind(output: Output, start: int, at: int) -> Value | None:
    """The value at ``at``, or a choice whose text begins with some of the words from ``start`` to there."""
    for _, word in zip(range(8), _WORD_BEGINS.finditer(output.text, start, at), strict=False):
        if output.kind == "choice" and (value := output.read(word.start())) and value.by:
            return value
    return output.read(at)


def _last_of_lines(low: str, cues: list[Cue]) -> list[Cue]:
    """The last ``LAST`` of each line: each of them may be followed by as many values."""
    of_line: dict[int, list[Cue]] = {}
    for cue in cues:
        of_line.setdefault(low.rfind("\n", 0, cue.start), []).append(cue)
    return [cue for line in of_line.values() for cue in line[-LAST:]]


def by_word(output: Output) -> Iterator[Statement]:
    """A word for an answer, what separates or equates, a value."""
    finder = _LETTERS if output.kind == "choice" else _NUMBERS
    for start, end, kind in _last_of_lines(output.low, finder.last(output.low, RECENT)):
        gap = _GAP.match(output.low, end, end + values.REACH)
        at = gap.end() if gap else end
        between, opens = output.low[end:at], _opens_line(output, start)
        equates = _IS.search(between) is not None
        rank = ASKED if opens and kind == "answer" and not equates else SAID
        if rank < ASKED and _hedged(output, start):
            continue
        value, parted = _read_behind(output, end, at), equates or _PARTS.search(between) is not None
        if kind == "answer" and value is None and "\n" not in between:
            yield from _further_on(output, start, at, rank if parted else SAID)
        elif value is None or _listed(output, at):
            continue
        elif kind == "answer":
            bare = opens and (output.ends(value.end) or _OTHER_SCRIPT.match(output.text, value.end))
            asks = ":" not in between and output.text[value.end :][:4].lstrip(' )"').startswith("?")
            below = "\n" not in between or output.ends(value.end, line=True)
            if values.CONDITION.match(output.low, value.end):
                if "would" not in between:
                    yield Statement(start, rank, value._replace(unclear="under a condition"), "a sentence")
            elif (parted or bare) and below and not asks:
                yield Statement(start, rank, value, "a final line" if rank == ASKED else "a sentence")
        elif kind == "result":
            if opens and parted and output.ends(value.end, line=True):
                yield Statement(start, SAID, value, "a final line")
        elif "\n" not in between and not value.by and output.ends(value.end):
            yield Statement(start, IMPLIED, value, "a turn of phrase")


_LEAD = {
    "choice": re.compile(r"\b(?:is|be) "),
    "integer": re.compile(r"\b(?:is|are|be|equals|of|get|have|gives|yields|obtain|total) |= ?|\((?=[0-9,]{1,20}\))"),
    "lines": re.compile(r"(?=\blines? )|\b(?:is|are|on|at) (?=[0-9])"),
}
"""What may stand before a value in the midst of a sentence."""
_CAPITAL = re.compile(r"[A-J](?<![A-Za-z0-9À-ɏḀ-ỿ'+#-].)")
_SENTENCES = re.compile(r"(?<=[.;!?])[)\"]? +(?=[A-Z])")


def _further_on(output: Output, start: int, at: int, rank: int) -> Iterator[Statement]:
    """Other words come first: "Answer: I believe it is B", "the answer, modulo 1000, is 117". On a final line the only
    letter will do, too."""
    rest = values.rest_of_line(output.text, at)
    if output.kind == "integer" and rest[:1].isdigit():
        return  # a number is there, and it was said to be none
    if rank < ASKED:
        rest = _SENTENCES.split(rest, 1)[0]
    found = []
    for lead in deque(_LEAD[output.kind].finditer(rest), maxlen=LAST):
        value = output.read(_behind_fillers(output, at + lead.end()))
        if value and not value.unclear and output.settles(value.end) and not _doubted(output, at + lead.start()):
            found.append(value)
            if not output.ends(value.end):
                break  # what follows is the reason
    if rank == ASKED and output.kind == "choice" and not found:
        for m in _CAPITAL.finditer(rest):
            one = values.letter_at(rest, m.start(), output.shown)
            if one and one[0] in "ABCDEFGHIJ"[: len(output.shown)] and not values.untenable(rest[one[1] :]):
                found += [Value((one[0],), at + one[1])] * (not _doubted(output, at + m.start()))
    if found:
        given = tuple(dict.fromkeys(value.given[0] for value in found))
        several = output.kind == "choice" and len(given) > 1
        value = found[-1]._replace(given=given, unclear="several choices") if several else found[-1]
        yield Statement(start, SAID if rank == ASKED else IMPLIED, value, "the rest of the sentence")


_LABELLED = re.compile(r"\n*[(]?([A-J])[).:] ")


def _listed(output: Output, at: int) -> bool:
    """Whether the line is one of several labelled ones: the choices, told again."""
    if output.kind != "choice":
        return False
    start = output.text.rfind("\n", 0, at) + 1
    here, end = _LABELLED.match(output.text, start), output.text.find("\n", at)
    before = _LABELLED.match(output.text, output.text.rfind("\n", 0, max(0, start - 1)) + 1)
    behind = _LABELLED.match(output.text, end) if end >= 0 else None
    return here is not None and any(one and one[1] != here[1] for one in (before, behind))


# -------------------------------------------------------------------------------------------------- other statements

_RIGHT = r"(?:correct|right|best|proper|richtig|korrekt|correcte?|correcta|correto|corretta|juist|верно|правильно)"
_VERDICT = re.compile(
    r"([A-J]|[a-j](?<=\(.)(?=\)))(?<![A-Za-z0-9À-ɏḀ-ỿ'].)"
    r"(?:[)]?(?: and |, | or |, and )\(?([A-J]))?[)]?(?: ?[:(-] ?| )"
    r"(?:(?:(?:is|are|as|est|ist|es|è|é)(?: both| all| indeed| therefore| thus| clearly)? )?"
    r"(?:(?:the|our|my|la|die) )?(?:only |most )?"
    rf"(?:{_RIGHT}(?: (?:answer|option|choice|one|letter|statement))?|(?<=the )(?:answer|choice))"
    r"|(?:remains|survives|is left))(?!\w)"
)
_VERDICT_ENDS = re.compile(
    r"[)\]\"' ]*(?:$|[.:!?\n\x03|]|[,;](?! (?:but|only|if|though|except|unless) ))| (?:because|since|as|so) "
)
_VERDICT_TOUCHING = re.compile(r"([A-J])(?<![A-Za-z].)()[)]? ?(?:选项|選項|项|項)?[是为為が]?(?:正确|正確|正しい)")
_ROMAN = re.compile(r"(?:statement|claim|assertion|reaction|structure|compound|reason|type|class|phase|equation) $")
_FAULT = "defect|vulnerab|bug|flaw|fault|problem|error|culprit"
_IS_THE_ANSWER = re.compile(
    rf"\blines? (?=[0-9][0-9, and-]{{0,40}} (?:is|are) (?:the|a) (?:{_FAULT}))"
    r"|(?<![0-9A-Za-z.,/^-])(?=-?[0-9][0-9, and.-]{0,40}"
    r" (?:is|are) (?:then |thus |therefore )?(?:the|our|my) (?:final |correct |right )?answer\b)"
)


def by_verdict(output: Output) -> Iterator[Statement]:
    """ "C is correct", "B is the best choice"; "line 7 is the defect", "117 is the answer"."""
    patterns = (_VERDICT, _VERDICT_TOUCHING) if output.kind == "choice" else ()
    for m in deque((m for pattern in patterns for m in pattern.finditer(output.text)), maxlen=RECENT):
        if not _VERDICT_ENDS.match(output.text, m.end()):
            continue
        numeral = m[1] == "I" and _ROMAN.search(output.low, max(0, m.start() - 20), m.start())
        if not numeral and not _hedged(output, m.start()):
            given = tuple(one.upper() for one in m.groups() if one)
            value = Value(given, m.end(), "several choices" if len(given) > 1 else "")
            yield Statement(m.start(), IMPLIED, value, "a verdict")
    for m in deque(_IS_THE_ANSWER.finditer(output.low), maxlen=RECENT) if output.kind != "choice" else ():
        if (number := output.read(m.end())) and not _hedged(output, m.start()):
            yield Statement(m.start(), SAID, number, "a verdict")


_BOX, _BOX_ENDS = re.compile(plain.BOX), re.compile(rf"[).\s]*+(?:{plain.UNBOX}|$)")


def by_box(output: Output) -> Iterator[Statement]:
    """A box that holds a value."""
    for m in deque(_BOX.finditer(output.text), maxlen=RECENT):
        value = output.read(m.end())
        if value and _BOX_ENDS.match(output.text, value.end) and not _hedged(output, m.start()):
            yield Statement(m.start(), SAID, value, "a box")


_ARROW = re.compile(r"(?:[=-]*>+ ?)+")
_PROSE = re.compile(r"[^\W\d_]{2,}+[^\n]*?[^\W\d_]{2,}+")


def by_line(output: Output) -> Iterator[Statement]:
    """The last line is nothing but a value, or the first one is, perhaps with its reason."""
    last = output.text.rfind("\n") + 1
    for start, rank in ((0, IMPLIED), (last, SAID)):
        arrow = _ARROW.match(output.text, start)
        value = output.read(arrow.end() if arrow else start)
        if value is None or value.unclear or _listed(output, start) or (output.cut and start == last):
            continue
        ends = output.ends(value.end, line=True) or (start == 0 and output.settles(value.end))
        if ends and not (output.kind == "integer" and _PROSE.search(values.rest_of_line(output.text, start)[:80])):
            yield Statement(start, rank, value, "the last line" if start else "the first line")


def by_result(output: Output) -> Iterator[Statement]:
    """The last sentence ends with a result."""
    text = output.text
    if output.cut or output.kind == "choice":
        return
    start = max(text.rfind("\n"), text.rfind(". ", 0, max(0, len(text) - 2)) + 1) + 1
    begins = [start] if output.kind == "lines" else []
    for at in (*begins, *(m.end() for m in deque(_LEAD[output.kind].finditer(text, start), maxlen=LAST))):
        value = output.read(_behind_fillers(output, at))
        if value and not value.unclear and output.settles(value.end) and not _doubted(output, at):
            yield Statement(at, LEFT, value, "the last sentence")


FINDERS: tuple[Callable[[Output], Iterator[Statement]], ...] = (by_word, by_verdict, by_box, by_line, by_result)

# ------------------------------------------------------------------------------------------------------ taken back

_TAKEN_BACK = re.compile(words.alternatives(words.TAKEN_BACK))
_CORRECTION = re.compile(rf"(?:[\s,.:;!(\"-]|{words.alternatives((*words.TAKEN_BACK, *words.INSTEAD))})*+")
_IT_IS = re.compile(r"[^.!?\n]{0,60}\b(?:it is|it's|should be|must be) ")


def at_clauses(pattern: re.Pattern[str], low: str, start: int) -> list[re.Match[str]]:
    """Matches from ``start`` on that begin a clause."""
    found = []
    for m in pattern.finditer(low, start):
        before = low[max(start, m.start() - 4) : m.start()].rstrip(" \"'")
        if not before or before[-1] in ".!?;:,(\n-":
            found.append(m)
    return found


def taken_back(output: Output, start: int) -> tuple[list[int], list[Statement]]:
    """Where something is taken back from ``start`` on, and what is put in its place in passing: "B. No, wait, D"."""
    found, places = at_clauses(_TAKEN_BACK, output.low, start), []
    for m in found[-RECENT:]:
        chain = _CORRECTION.match(output.low, m.start(), m.start() + values.REACH)
        at = chain.end() if chain else m.end()
        value = output.read(at)
        if not (value and output.ends(value.end)) and (it := _IT_IS.match(output.low, m.end())):
            value = output.read(at := it.end())
        if value and not value.unclear and output.ends(value.end) and value.by != values.SAFE:
            places.append(Statement(at, ASKED, value, "a correction"))
    return [m.start() for m in found], places
