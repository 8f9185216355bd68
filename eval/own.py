"""Read a file of questions, ``{"question": ..., "answer": ...}`` a line (docs/how-to/ask-your-own-questions.md).

JSON Lines, one JSON list, or CSV with a header. The kind of a question follows from its answer: with choices a letter,
else an integer, else a text. Unlike an import, which leaves out what is unclear, every entry must be right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ds4ref.console.options import printable
from ds4ref.errors import DataError

from .imports import tables
from .imports.records import Record, Skip, choices_of, fold, identity, letter_of
from .packs import LETTERS, Header, Pack, Question, problem, stamped

NEEDS = (("question",), ("answer",))
CHOICES = ("choices", "options")
FIELDS = ("question", "answer", *CHOICES, "id", "source", "domain", "difficulty", "explanation")
ACCEPTED = '"question" and "answer" are needed; "choices" (a list), "id", "source", "domain", "difficulty" and ' \
           '"explanation" may be there'  # fmt: skip


def is_pack(path: Path) -> bool:
    """Return whether the first line that is not blank is the header of a pack."""
    first = next((line for _, line in tables.lines(path) if line.strip()), "")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "pack" in header


def read(path: Path) -> Pack:
    """Read a file of questions as a pack of the file's name; DataError names the first wrong line."""
    found: dict[str, tuple[str, Question]] = {}
    for where, record in _records(path):
        question = _question(where, record)
        if question.id in found:
            what = "question" if record.value("id") is None else f"id {question.id}"
            raise DataError(f"{where}: the same {what} as in {found[question.id][0]}")
        found[question.id] = (where, question)
    if not found:
        raise DataError(f"{path}: no question: {ACCEPTED}")
    name = identity(printable(path.stem)) or "questions"
    return Pack(Header(name, 1), tuple(question for _, question in found.values()))


def _records(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield each entry with its place."""
    first = next((line for _, line in tables.lines(path) if line.strip()), "")
    if not first.lstrip().startswith("["):
        yield from ((f"{path}:{record.line}", record) for record in tables.records(path, NEEDS))
        return
    try:
        entries = json.loads("".join(line for _, line in tables.lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    for number, entry in enumerate(entries, 1):
        where = f"{path}: entry {number}"
        if not isinstance(entry, dict):
            raise DataError(f"{where}: not a JSON object: {ACCEPTED}")
        yield where, Record(path, number, {fold(name): value for name, value in entry.items()})


def _question(where: str, record: Record) -> Question:
    def refuse(why: str) -> NoReturn:
        raise DataError(f"{where}: {why}")

    if record.torn:
        refuse(f"the row has not as many cells as the header: {record.torn}")
    if "kind" in record.cells:
        refuse('a line with "kind" belongs in a pack, whose first line is {"pack": NAME, "version": 1}')
    for name in record.cells.keys() - set(FIELDS):
        if near := get_close_matches(name, FIELDS, 1, 0.75):
            refuse(f'unknown field "{printable(name, 40)}" (did you mean "{near[0]}"?): {ACCEPTED}')
    for (name,) in NEEDS:
        if record.value(name) in (None, ""):
            has = ", ".join(sorted(record.cells)) or "nothing"
            refuse(f'no "{name}" (the fields here: {printable(has, 120)}): {ACCEPTED}')
    try:
        text, choices = record.text("question"), _choices(record)
    except Skip as skip:
        refuse(skip.reason + (f": {printable(skip.detail, 60)}" if skip.detail else ""))
    kind, answer = _answer(record.value("answer"), choices, refuse)
    source = record.note("source") or record.stem
    domain, difficulty = record.note("domain") or source, record.note("difficulty")
    question = Question(identity(record.note("id")), source, domain, difficulty, kind, text, choices, answer,
                        record.note("explanation"))  # fmt: skip
    question = msgspec.structs.replace(question, id=question.id or identity(stamped(question)))
    try:
        msgspec.json.encode(question)
    except UnicodeEncodeError:
        refuse("half a surrogate pair: not valid Unicode")
    if wrong := problem(question):
        refuse(wrong)
    return question


def _choices(record: Record) -> tuple[str, ...]:
    """Return the choices, () without any; in CSV they are a JSON list in one cell."""
    value = record.value(*CHOICES)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise Skip("the choices are no JSON list", value) from None
    if value in (None, "", []):
        return ()
    if isinstance(value, list):
        value = [_number(one) if isinstance(one, (int, float)) and not isinstance(one, bool) else one for one in value]
    return choices_of(value)


def _number(value: int | float) -> str:
    """Return a number as it is written, without the ``.0`` of a whole one."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def _answer(value: Any, choices: tuple[str, ...], refuse: Callable[[str], NoReturn]) -> tuple[Any, str]:
    """Return kind and answer; with choices the answer is a letter or the text of a choice."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        refuse(f'"answer" must be a text or a number, not {printable(json.dumps(value), 40)}')
    if isinstance(value, float) and not math.isfinite(value):
        refuse('"answer" is no number')
    answer = value.strip() if isinstance(value, str) else _number(value)
    if choices:
        texts, letter = [choice.strip() for choice in choices], letter_of(answer, choices)
        at = texts.index(answer) if answer in texts else None
        if at is not None and letter is not None and at != letter:
            refuse(f'the answer "{answer}" is the letter of one choice and the text of another')
        place = letter if at is None else at
        if place is None:
            refuse(f'the answer "{printable(answer, 60)}" is neither the letter nor the text of a choice')
        return "choice", LETTERS[place]
    if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", answer):
        return "integer", answer
    return "text", answer
