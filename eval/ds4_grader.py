"""Grade as ds4's own evaluation does, defects included, for ``--grader ds4`` and for comparison.

The rule works on the bytes behind the first ``</think>``, or on all of them. The first "answer" in them, in any case
and inside any word, opens a window; the first match in the window is the answer: a letter without an ASCII letter on
either side, a run of digits, or a list of line numbers. Without a match in the window the last match of the whole text
is taken. docs/reference/eval.md shows which answers this rule grades wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .log import Grade
from .packs import LETTERS, Question
from .prompt import key

KINDS = ("choice", "integer", "lines")
"""Kinds that ds4 knows."""
LETTER_WINDOW, NUMBER_WINDOW = 96, 160
"""Bytes of the window behind "answer", for a letter and for numbers."""
_SET = 256
"""Size of ds4's set of lines; larger numbers are in no set."""


def ds4_grade(question: Question, text: str, *, order: Sequence[int] = ()) -> Grade:
    """Grade a whole output: reasoning, ``</think>`` and answer. Never "ambiguous"; "missing" is ds4's "?"."""
    raw = text.encode("utf-8", "surrogatepass").partition(b"\0")[0]  # a C string ends there
    _, close, behind = raw.partition(b"</think>")
    visible = behind if close else raw
    found = re.search(rb"answer", visible, re.IGNORECASE)
    start = found.end() if found else None
    right = key(question, order)
    if question.kind == "choice":
        given = _letter(visible, start, LETTERS[len(question.choices) - 1])
        good = given == right
    elif question.kind == "integer":
        given = _integer(visible, start)
        good = given == _digits(right)
    else:
        given = _lines(visible, start)
        chosen = _expanded(given)
        good = bool(chosen) and chosen <= _expanded(right)
    if not given:
        return Grade("missing", "", "ds4: nothing of the right form")
    return Grade("right" if good else "wrong", given, "ds4")


def _letter(visible: bytes, start: int | None, last: str) -> str:
    letters = re.compile(rb"(?<![A-Za-z])[A-%c](?![A-Za-z])" % last.encode(), re.IGNORECASE)
    if start is not None:
        for m in letters.finditer(visible, start):
            if m.start() >= start + LETTER_WINDOW:
                break
            return m[0].decode().upper()
    every = letters.findall(visible)
    return every[-1].decode().upper() if every else ""


def _digits(text: str) -> str:
    """First run of digits, without leading zeros: how ds4 compares keys."""
    found = re.search("[0-9]+", text)
    return (found[0].lstrip("0") or "0") if found else ""


def _integer(visible: bytes, start: int | None) -> str:
    window = visible[start : start + NUMBER_WINDOW] if start is not None else b""
    return _digits(window.decode("latin-1")) or _digits((re.findall(rb"[0-9]+", visible) or [b""])[-1].decode())


def _lines(visible: bytes, start: int | None) -> str:
    window = visible[start : start + NUMBER_WINDOW] if start is not None else b""
    runs = re.findall(rb"[0-9]+(?:-[0-9]+)?", window.partition(b"\n")[0])
    return b",".join(runs).decode() or _integer(visible, start)


def _expanded(spec: str) -> set[int]:
    """Expand a specification of lines; a reversed range is swapped."""
    found: set[int] = set()
    for part in filter(None, spec.split(",")):
        low, _, high = part.partition("-")
        ends = sorted(min(int(end[:9]), 10**9) for end in (low, high or low))
        found.update(range(ends[0], min(ends[1] + 1, _SET)) or ((_SET,) if ends[0] >= _SET else ()))
    return found
