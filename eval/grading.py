r"""Grade an answer: right, wrong, ambiguous or missing.

The rule. Only the text after the last ``</think>`` counts. The answer is stated by the last line that starts with
``Answer:`` or ``Final answer:``, or by the last ``\boxed{...}``, whichever comes later; if there is neither, by the
last line, if it is a value and nothing else, and the line before it is not a value. No letter or digit may follow the
statement, and what is stated must be one value of the kind that was asked for, and nothing else: a letter, a letter
with the text of its choice, or the text of exactly one choice; a number; lines. Markdown and LaTeX around line, marker
and value (bold, backticks, ``$...$``, ``\text{...}``, brackets) are ignored, and so is case. An answer that breaks this
rule, or which the token limit may have cut off, is "ambiguous": it is shown, and nobody guesses what was meant.
An output without a statement is "missing".

Answers to questions that are not asked in the form of an examination (kinds "exact" and "call") are right if the text
after the last ``</think>``, without the white space around it, is the key (the right answer of the pack), or exactly
one call of the right tool with the right arguments.

A text is right if it equals the key apart from case, white space, quotation marks around it and a full stop after it,
or if both are the same number. A number is digits with commas between thousands, a sign, a decimal point or a fraction
bar, compared exactly. Lines are numbers and ranges with commas between them; they are right if each of them is among
the key's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from ds4ref.text.dsml_parser import parse

from .calls import call_parts, call_text
from .log import Grade
from .packs import EXAM, LETTERS, Question, line_set

_STATEMENT = re.compile(
    r"^[ \t>#*_`$-]*(?:final[ \t]+)?answer[ \t*_`]*:(?P<line>.*[^\W_].*)$|\\boxed *\{(?P<box>(?:[^{}]|\{[^{}]*\})*)\}",
    re.IGNORECASE | re.MULTILINE,
)
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_LONGEST = 100
"""Maximum number of characters of a number or of line numbers; no right answer is longer."""
_SHOWN = 80
"""Maximum number of characters of an unclear answer that a grade shows."""


def grade(question: Question, text: str, *, reasoning: str = "", finish: str = "") -> Grade:
    """Grade the output ``text``, which may still contain its thinking.

    ``reasoning``: thinking that was separated from ``text``; it only helps to tell "nothing but thinking" from "empty".
    ``finish``: "length" if the token limit ended the output.
    """
    visible = text.rpartition("</think>")[2].partition("<think>")[0]
    if question.kind not in EXAM:
        return _verbatim(question, visible, (reasoning + text).strip() != "", finish)
    shown, right = question.choices, question.answer
    statement, source, follows = _last_statement(question.kind, visible, shown)
    if not statement:
        why = "no line 'Answer:', no box, no bare value at the end"
        if not visible.strip():
            why = "nothing but thinking" if (reasoning + text).strip() else "empty"
        return Grade("missing", "", why + (", cut off" if finish == "length" else ""))
    given = _READERS[question.kind](bare(statement), shown)
    unclear = ""
    if follows:
        unclear = "text follows it"
    elif finish == "length" and not visible.endswith("\n"):
        unclear = "the token limit may have cut it off"
    elif not given:
        unclear = f"not {_EXPECTED[question.kind]} and nothing else"
    if unclear:
        return Grade("ambiguous", given or statement[:_SHOWN], f"{source}: {unclear}")
    good = given == right
    if question.kind == "text":
        good = given == _text(bare(right))
        given = bare(statement)[:_SHOWN]
    if question.kind == "lines":
        good = (line_set(given) or set()) <= (line_set(right) or set())
    if question.kind == "choice" and given not in question.letters:
        source += f", none of {question.letters}"
    return Grade("right" if good else "wrong", given, source)


def _verbatim(question: Question, visible: str, spoke: bool, finish: str) -> Grade:
    """Grade an answer of kind "exact" or "call"; ``visible``: the output without thinking, ``spoke``: whether there was
    any output."""
    if not (given := visible.strip()):
        return Grade("missing", "", "nothing but thinking" if spoke else "empty")
    if question.kind == "call":
        return _call(visible, question.answer)
    if given != question.answer:
        return Grade("wrong", given[:_SHOWN], "another text")
    if finish == "length":
        return Grade("ambiguous", given, "the token limit may have cut it off")
    return Grade("right", given, "the same text")


def _call(visible: str, right: str) -> Grade:
    """Grade an answer that must be exactly one tool call and nothing else; ``right``: the right call."""
    reply = parse(visible, thinking=False)
    if not reply.calls:
        return Grade("wrong", "", "no call")
    given = call_text(reply.calls[0])
    tool, arguments = call_parts(given, right)
    alone = len(reply.calls) == 1 and not reply.content and not reply.trailing
    parts = (("tool", tool), ("arguments", arguments))
    why = ", ".join(f"{'right' if good else 'wrong'} {part}" for part, good in parts)
    return Grade("right" if tool and arguments and alone else "wrong", given, why + ("" if alone else ", not alone"))


def _last_statement(kind: str, text: str, shown: Sequence[str]) -> tuple[str, str, bool]:
    """Return the answer that ``text`` states ("" if none), where it states it, and whether more text follows.
    ``shown``: the texts of the choices."""
    statements = list(_STATEMENT.finditer(text))
    if statements:
        statement = statements[-1]
        source = "box" if statement["line"] is None else "answer line"
        follows = _LETTER_OR_DIGIT.search(text, statement.end()) is not None
        return statement[statement.lastgroup or 0].strip(), source, follows
    lines = [line.strip() for line in text.split("\n") if _LETTER_OR_DIGIT.search(line)][-2:]
    values = [line for line in lines if _READERS[kind](bare(line), shown)]
    if not lines or lines[-1] not in values or (kind == "text" and len(lines) > 1):
        return "", "", False
    return "; ".join(values), "last line" if len(values) == 1 else "last lines", False


# --------------------------------------------------------------------------------------------------------- values

_AROUND = " \t\r\n*_`$()[]"
_COMMAND = re.compile(r"\\(?:boxed|text\w*|math\w+) *\{(?P<inner>(?:[^{}]|\{[^{}]*\})*)\}")
_DASHES = str.maketrans("\u2010\u2011\u2012\u2013\u2014\u2212", "------")


def bare(text: str) -> str:
    """Return a value without the Markdown and LaTeX around it, and without a full stop at its end."""
    text = re.sub(r"\\[()\[\]]", " ", text).strip(_AROUND)
    text = text.removesuffix(".").strip(_AROUND)
    while command := _COMMAND.fullmatch(text):
        text = command["inner"].strip(_AROUND)
    return text


def _folded(text: str) -> str:
    r"""Return a choice's text in a form that is the same for its spellings, such as ``14.6\,\%`` and ``14.6 %``."""
    return re.sub(r"\\[,;: ]|[\s\\$]", "", bare(text).translate(_DASHES)).casefold()


def _choice(text: str, shown: Sequence[str]) -> str:
    """Return the letter of the choice that ``text`` states as a letter, a letter with the text of its choice, or the
    text of exactly one choice of ``shown``; "" for anything else."""
    text = re.sub(r"(?i)^(?:option|choice)\s+", "", text)
    if re.fullmatch("[A-Za-z]", bare(text)):
        return bare(text).upper()
    texts = [_folded(choice) for choice in shown]
    if texts.count(_folded(text)) == 1:
        return LETTERS[texts.index(_folded(text))]
    lettered = re.fullmatch(r"([A-Za-z])(?!\w)[\s*_`$)\].:,]*(?:[-\u2013\u2014]\s+)?(.*)", text, re.DOTALL)
    letter = lettered[1].upper() if lettered else ""
    position = LETTERS.find(letter or "?")
    own = lettered and 0 <= position < len(texts) and _folded(lettered[2]) == texts[position]
    return letter if own else ""


def _number(text: str, shown: Sequence[str] = ()) -> str:
    r"""Return a number such as 1,024, -5, 204.0, 33/19 or ``1{,}024`` in a uniform spelling; "" for anything else.
    ``shown`` is not used."""
    text = text.translate(_DASHES).replace("{,}", ",").replace("\\,", ",")
    pattern = r"[+-]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|[0-9]+/0*[1-9][0-9]*)"
    if len(text) > _LONGEST or not re.fullmatch(pattern, text):
        return ""
    text = text.replace(",", "")
    value = Fraction(text)
    return str(value) if value.denominator == 1 else text


def _lines(text: str, shown: Sequence[str] = ()) -> str:
    """Return line numbers and ranges such as 7, 4-6 or 3, 9-10 in a uniform spelling; "" for anything else. ``shown``
    is not used."""
    if len(text) > _LONGEST:
        return ""
    text = re.sub(r"(?i)^lines?\s+", "", text.translate(_DASHES))
    text = re.sub(r"\s*([,-])\s*", r"\1", text)
    return text if not re.search(r"\s", text) and line_set(text) else ""


def _text(text: str, shown: Sequence[str] = ()) -> str:
    """Return a text in a form that can be compared (a number in a uniform spelling); "" if it has no letter or digit.
    ``shown`` is not used."""
    text = " ".join(unicodedata.normalize("NFKC", text).translate(_DASHES).split())
    text = text.strip("\"'\u2018\u2019\u201c\u201d\u00ab\u00bb ").removesuffix(".").casefold()
    if number := _number(text):
        return str(Fraction(number))
    return text if _LETTER_OR_DIGIT.search(text) else ""


_READERS = {"choice": _choice, "integer": _number, "lines": _lines, "text": _text}
_EXPECTED = {"choice": "one choice", "integer": "one number", "lines": "numbers of lines", "text": "a text"}
