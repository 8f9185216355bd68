"""What the shapes have in common: records with named cells, what becomes of them, and why one is no question.

Nothing is guessed: a record that does not say beyond doubt what is asked and what is right raises ``Skip``, and is
counted by its reason. Texts are kept to the byte, spaces at their ends included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ds4ref.cli.options import printable

from ..packs import LETTERS, Question

NOT_STATED = "not stated in the imported file"
LONGEST_ID = 100


class Skip(Exception):
    """A record that is not taken. ``reason`` is the same for all of its kind, ``detail`` is what stood there."""

    def __init__(self, reason: str, detail: object = ""):
        super().__init__(reason)
        self.reason, self.detail = reason, str(detail)


class Found(NamedTuple):
    """One record of a file: where it begins (line from 1), and what it is."""

    line: int
    item: Question | Skip
    label: str = ""
    canary: str = ""


@dataclass(frozen=True)
class Record:
    """One row of a CSV file or one object of a JSON Lines file; names of cells are folded (``fold``). ``torn`` says
    what is wrong with a row whose cells cannot be told apart."""

    path: Path
    line: int
    cells: Mapping[str, Any]
    torn: str = ""

    @property
    def stem(self) -> str:
        """The name of the file without its last suffix."""
        return printable(self.path.stem)

    def value(self, *names: str) -> Any:
        """The first of these cells that is there and not null; None if none is."""
        return next((self.cells[name] for name in names if self.cells.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """A cell that has to be there, as it stands; Skip if it is missing, blank or no text."""
        found = self.value(*names)
        if found is None or found == "":
            raise Skip(f"no {names[0]}")
        if not isinstance(found, str):
            raise Skip(f"{names[0]} is not text", found)
        if not found.strip():
            raise Skip(f"{names[0]} is blank")
        return found

    def kept(self, *names: str) -> str:
        """A cell that may be missing, as it stands; "" for one that is no text."""
        found = self.value(*names)
        return found if isinstance(found, str) else ""

    def note(self, *names: str) -> str:
        """A cell that may be missing: its text or whole number, without spaces around; else ""."""
        found = self.value(*names)
        if isinstance(found, str):
            return found.strip()
        whole = isinstance(found, int) and not isinstance(found, bool)
        if whole or (isinstance(found, float) and found.is_integer()):
            return str(int(found))
        return ""


@dataclass(frozen=True)
class Shape:
    """A kind of file with records.

    name      what ``--source`` calls it
    title     what people call it
    licence   of its questions, unless file or user says otherwise
    needs     cells that a record has to have, each with its other names
    fits      whether records with these cells (folded) are of this shape
    question  reads one; raises Skip
    """

    name: str
    title: str
    licence: str
    needs: tuple[tuple[str, ...], ...]
    fits: Callable[[frozenset[str]], bool]
    question: Callable[[Record], Question]


def fold(name: str) -> str:
    """The name of a column or key without case, and with one space for spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]+", " ", name).strip().lower()


def identity(own: str) -> str:
    """The id of a question that its file calls ``own``: the same, as far as a pack can have it. "" stays ""."""
    plain = re.sub(r"[^\w.:+-]+", "-", own)
    if len(plain) <= LONGEST_ID:
        return plain
    return f"{plain[: LONGEST_ID - 9]}.{hashlib.sha256(own.encode('utf-8', 'replace')).hexdigest()[:8]}"


def choices_of(texts: Any) -> tuple[str, ...]:
    """Choices that can be told apart and have a letter each; Skip for others."""
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise Skip("the choices are no list of texts", texts)
    if not 2 <= len(texts) <= len(LETTERS):
        raise Skip(f"not 2 to {len(LETTERS)} choices", len(texts))
    if not all(text.strip() for text in texts):
        raise Skip("an empty choice")
    if len({text.strip() for text in texts}) < len(texts):
        raise Skip("two choices are equal")
    return tuple(texts)


def letter_of(text: str, choices: Sequence[str]) -> int | None:
    """Which choice ``C``, ``c`` or ``(C)`` names; None if the text is no letter of these choices."""
    match = re.fullmatch(r"\(([A-Za-z])\)|([A-Za-z])", text.strip())
    at = LETTERS.find((match[1] or match[2]).upper()) if match else -1
    return at if 0 <= at < len(choices) else None


_WRAPPED = re.compile(r"\$(?P<a>[^$]*)\$|\$\$(?P<b>[^$]*)\$\$|\\\((?P<c>.*)\\\)|\\boxed\{(?P<d>[^{}]*)\}", re.DOTALL)
_INTEGER = re.compile(r"([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.0*)?")


def integer_of(value: object) -> str:
    r"""The integer that is meant by 70, 70.0, ``070``, `` 204 ``, ``$204$``, ``\boxed{1,024}``, without zeros or plus
    in front; Skip if it is none, or has more than 18 digits."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise Skip("no answer" if value is None or value == "" else "the answer is no integer", value)
    text = value.strip()
    while match := _WRAPPED.fullmatch(text):
        text = str(match[match.lastgroup or 0]).strip()
    found = _INTEGER.fullmatch(text.replace("\N{MINUS SIGN}", "-").replace("{,}", ","))
    if found is None:
        raise Skip("the answer is no integer", value)
    digits = found[2].replace(",", "").lstrip("0") or "0"
    if len(digits) > 18:
        raise Skip("the answer has more than 18 digits", value)
    return ("-" if found[1] == "-" and digits != "0" else "") + digits
