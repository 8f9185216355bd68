"""ds4's own questions, out of a user's copy of its C source.

A record has the texts source, id, domain, title, question and answer, and up to ten choices; which kind it is follows
from them: with choices it is "choice", without them "lines" for the source COMPSEC and "integer" for every other one.
The title is the beginning of the question, and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ds4ref.errors import DataError

from ..packs import LETTERS, Kind, Question, line_set
from .clexer import CError, read
from .ctable import Element, Field, tables
from .records import NOT_STATED, Found, Skip, choices_of, identity, integer_of, letter_of

NAME, TITLE = "ds4", "the question table of ds4's C source"
SUFFIXES = (".c", ".h", ".inc", ".cc", ".cpp")
LARGEST = 64 << 20
"""Bytes of a C file."""

FIELDS = (Field("source"), Field("id"), Field("domain"), Field("title"), Field("question"),
          Field("choice", 2, len(LETTERS)), Field("answer"))  # fmt: skip
LICENCES = {"GPQA": "CC BY 4.0", "SuperGPQA": "ODC-BY", "AIME": "MIT (of the mirror)"}
"""As ds4 states where its questions come from, by the beginning of their source."""


def questions(path: Path) -> Iterator[Found]:
    """Every element of the tables of questions in the file. DataError if there is none, or the file is no C."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not data:
        raise DataError(f"{path}: empty")
    if len(data) > LARGEST:
        raise DataError(f"{path}: larger than {LARGEST >> 20} MiB")
    if b"\0" in data:
        raise DataError(f"{path}:{data.count(10, 0, data.index(0)) + 1}: a zero byte: this is no C source")
    try:
        found = list(tables(read(data), FIELDS, ("question", "answer")))
    except CError as error:
        raise DataError(f"{path}:{error.line}: {error.reason}") from None
    if not found:
        fields = ", ".join(field.name for field in FIELDS)
        raise DataError(f"{path}: no table of questions: an array of structs with the fields {fields}")
    for table in found:
        for element in table:
            if not element.blank:
                yield _found(element)


def _found(element: Element) -> Found:
    label = str(element.fields.get("id", ""))
    try:
        return Found(element.line, element.wrong or _question(element), label)
    except Skip as wrong:
        return Found(element.line, wrong, label)


def _question(element: Element) -> Question:
    def text(name: str) -> str:
        return str(element.fields.get(name, ""))

    for name in ("source", "question", "answer"):
        if not text(name).strip():
            raise Skip(f"no {name}")
    source, answer = text("source"), text("answer").strip()
    held = element.fields.get("choice", {})
    choices: tuple[str, ...] = ()
    kind: Kind
    if isinstance(held, dict) and held:
        if sorted(held) != list(range(len(held))):
            raise Skip("a choice is missing before others")
        kind, choices = "choice", choices_of([held[i] for i in range(len(held))])
        right = letter_of(answer, choices)
        if right is None:
            raise Skip("the answer is no letter of the choices", answer)
        answer = LETTERS[right]
    elif source == "COMPSEC":
        kind = "lines"
        if line_set(answer) is None:
            raise Skip("the answer names no lines", answer)
    else:
        kind, answer = "integer", integer_of(answer)
    return Question(
        id=identity(text("id").strip()),
        source=source,
        domain=text("domain"),
        difficulty="",
        kind=kind,
        question=text("question"),
        choices=choices,
        answer=answer,
        licence=next((licence for begin, licence in LICENCES.items() if source.startswith(begin)), NOT_STATED),
    )
