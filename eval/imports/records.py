"""Records with named cells, which all shapes of files share, and the reasons for leaving a record out.

Nothing is guessed: a record whose question or answer is unclear raises ``Skip`` and is counted by the reason. Texts are
kept unchanged, spaces at both ends included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.console.options import printable

from ..packs import LETTERS, Question

NOT_STATED = "not stated in the imported file"
LONGEST_ID = 100


class Skip(Exception):
    """Raised to leave a record out; ``reason``: the text by which it is counted; ``detail``: the offending text."""

    def __init__(self, reason: str, detail: object = ""):
        super().__init__(reason)
        self.reason, self.detail = reason, str(detail)


class Found(NamedTuple):
    """One record of a file.

    line    line on which it begins, from 1
    item    its question, or the reason for leaving it out
    label   the record's own id
    canary  marker against use as training data, if the record has one
    """

    line: int
    item: Question | Skip
    label: str = ""
    canary: str = ""


@dataclass(frozen=True)
class Record:
    """One row of a CSV file or one object of a JSON Lines file.

    path   the file
    line   line on which it begins, from 1
    cells  values by column name, folded (``fold``)
    torn   description of the mismatch if a row's length differs from the header's
    """

    path: Path
    line: int
    cells: Mapping[str, Any]
    torn: str = ""

    @property
    def stem(self) -> str:
        """Return the name of the file without its last suffix."""
        return printable(self.path.stem)

    def value(self, *names: str) -> Any:
        """Return the first of the named cells that is not null; None if there is none."""
        return next((self.cells[name] for name in names if self.cells.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """Return the first non-null of the named cells unchanged; Skip if it is missing, blank or not text."""
        found = self.value(*names)
        if found is None or found == "":
            raise Skip(f"no {names[0]}")
        if not isinstance(found, str):
            raise Skip(f"{names[0]} is not text", found)
        if not found.strip():
            raise Skip(f"{names[0]} is blank")
        return found

    def kept(self, *names: str) -> str:
        """Return the first non-null of the named cells unchanged; "" if it is missing or not text."""
        found = self.value(*names)
        return found if isinstance(found, str) else ""

    def note(self, *names: str) -> str:
        """Return the first non-null of the named cells as stripped text or integer; "" for anything else."""
        found = self.value(*names)
        if isinstance(found, str):
            return found.strip()
        whole = isinstance(found, int) and not isinstance(found, bool)
        if whole or (isinstance(found, float) and found.is_integer()):
            return str(int(found))
        return ""


@dataclass(frozen=True)
class Shape:
    """A file format with records that can be imported as questions, such as GPQA's CSV.

    name      value of ``--source``
    title     name in messages
    licence   licence of its questions, unless file or user names another
    needs     cells that a record must have, each with its alternative names
    fits      returns whether records with these cells (folded) have this shape
    question  converts a record to a question; raises Skip
    """

    name: str
    title: str
    licence: str
    needs: tuple[tuple[str, ...], ...]
    fits: Callable[[frozenset[str]], bool]
    question: Callable[[Record], Question]


def fold(name: str) -> str:
    """Return a column's name in lower case, with one space for each run of spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", name).strip().lower()


def identity(own: str) -> str:
    """Return a valid id made from the file's own one; "" stays ""."""
    plain = re.sub(r"[^\w.:+-]+", "-", own)
    if len(plain) <= LONGEST_ID:
        return plain
    return f"{plain[: LONGEST_ID - 9]}.{hashlib.sha256(own.encode('utf-8', 'replace')).hexdigest()[:8]}"


def choices_of(texts: Any) -> tuple[str, ...]:
    """Return choices as a tuple; Skip unless they are distinct texts and there is a letter for each."""
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise Skip("the choices are not a list of texts", texts)
    if not 2 <= len(texts) <= len(LETTERS):
        raise Skip(f"not 2 to {len(LETTERS)} choices", len(texts))
    if not all(text.strip() for text in texts):
        raise Skip("an empty choice")
    if len({text.strip() for text in texts}) < len(texts):
        raise Skip("two choices are equal")
    return tuple(texts)


def letter_of(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the choice that ``C``, ``c`` or ``(C)`` names; None for anything else."""
    match = re.fullmatch(r"\(([A-Za-z])\)|([A-Za-z])", text.strip())
    at = LETTERS.find((match[1] or match[2]).upper()) if match else -1
    return at if 0 <= at < len(choices) else None


_WRAPPED = re.compile(r"\$(?P<a>[^$]*)\$|\$\$(?P<b>[^$]*)\$\$|\\\((?P<c>.*)\\\)|\\boxed\{(?P<d>[^{}]*)\}", re.DOTALL)
_INTEGER = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.0*)?")


def integer_of(value: object) -> str:
    r"""Return the digits of an integer written as 70, 70.0, ``070``, `` 204 ``, ``$204$`` or ``\boxed{1,024}``.

    Raises Skip for anything else and for more than 18 digits.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise Skip("no answer" if value is None or value == "" else "the answer is not an integer", value)
    text = value.strip()
    while match := _WRAPPED.fullmatch(text):
        text = str(match[match.lastgroup or 0]).strip()
    found = _INTEGER.fullmatch(text.replace("\N{MINUS SIGN}", "-").replace("{,}", ","))
    if found is None:
        raise Skip("the answer is not an integer", value)
    digits = found[2].replace(",", "").lstrip("0") or "0"
    if len(digits) > 18:
        raise Skip("the answer has more than 18 digits", value)
    return ("-" if found[1] == "-" and digits != "0" else "") + digits
