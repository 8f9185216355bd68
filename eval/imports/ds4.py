"""Read ds4's own questions from a copy of its C source.

A record has the texts source, id, domain, title, question and answer, and up to ten choices. With choices its kind is
"choice"; without, "lines" for the source COMPSEC and "integer" for every other source. The title is the beginning of
the question and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ds4ref.errors import DataError

from ..packs import LETTERS, Kind, Question, line_set
from .literals import Node, Value, groups, items, struct
from .records import NOT_STATED, Found, Skip, choices_of, identity, integer_of, letter_of

NAME, TITLE = "ds4", "the question table of ds4's C source"
SUFFIXES = (".c", ".h", ".inc", ".cc", ".cpp")
LARGEST = 16 << 20
"""Largest size of a C file in bytes."""
FIELDS = ("source", "id", "domain", "title", "question", "choice", "answer")
LICENCES = {"GPQA": "CC BY 4.0", "SuperGPQA": "ODC-BY", "AIME": "MIT (of the mirror)"}
"""Licences of ds4's sources as ds4 states them, by the beginning of the source's name."""


def questions(path: Path) -> Iterator[Found]:
    """Yield every element of the question tables in the file; DataError if there is none."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path}: larger than {LARGEST >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    empty = True
    for group in groups(data):
        elements = [_element(item) for item in items(group.children)]
        if any(isinstance(fields, dict) and fields.get("question") and fields.get("answer") for _, fields in elements):
            empty = False
            yield from (_found(line, fields) for line, fields in elements if fields)
    if empty:
        raise DataError(f"{path}: no table of questions: an array of structs with the fields {', '.join(FIELDS)}")


def _element(item: list[Node]) -> tuple[int, dict[str, Value] | Skip]:
    """Read one element: the line it begins on, and the fields that are not NULL, or why they cannot be read."""
    line = item[0].line if item else 0
    try:
        return line, {name: value for name, value in struct(item, FIELDS).items() if value and value != [None]}
    except Skip as wrong:
        return line, wrong


def _found(line: int, fields: dict[str, Value] | Skip) -> Found:
    if isinstance(fields, Skip):
        return Found(line, fields)
    label = str(fields.get("id", ""))
    try:
        return Found(line, _question(fields), label)
    except Skip as wrong:
        return Found(line, wrong, label)


def _question(fields: dict[str, Value]) -> Question:
    def text(name: str) -> str:
        value = fields.get(name) or ""
        if not isinstance(value, str):
            raise Skip(f"{name} is a list")
        return value

    for name in ("source", "question", "answer"):
        if not text(name).strip():
            raise Skip(f"no {name}")
    source, answer = text("source"), text("answer").strip()
    listed = fields.get("choice") or []
    if isinstance(listed, str):
        raise Skip("choice is one text, not a list")
    while listed and listed[-1] is None:
        listed = listed[:-1]
    choices: tuple[str, ...] = ()
    kind: Kind
    if listed:
        if None in listed:
            raise Skip("a choice is missing before others")
        kind, choices = "choice", choices_of(listed)
        right = letter_of(answer, choices)
        if right is None:
            raise Skip("the answer is not the letter of a choice", answer)
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
