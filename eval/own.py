"""Read a file of the user's own questions, one ``{"question": ..., "answer": ...}`` per line
(docs/how-to/ask-your-own-questions.md).

The file is JSON Lines, one JSON list, or CSV with a header. The kind of a question follows from its answer: with
choices a letter, else an integer, else a text. GPQA, SuperGPQA and AIME name the same fields differently, which is
understood. Every entry must be valid: DataError names the first one that is not.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.options import printable
from ds4ref.errors import DataError

from .packs import LETTERS, Header, Kind, Pack, Question, problem, stamped

NAMES = {
    "question": ("question", "problem"), "answer": ("answer", "correct answer"), "choices": ("choices", "options"),
    "id": ("id", "record id", "uuid"), "source": ("source",), "explanation": ("explanation", "solution"),
    "domain": ("domain", "high level domain", "discipline", "subject"), "difficulty": ("difficulty",),
}  # fmt: skip
"""Names that files use for each field, in lower case, runs of blanks, hyphens and underscores replaced by one blank."""
WRONG = ("incorrect answer 1", "incorrect answer 2", "incorrect answer 3")
"""Fields of GPQA with the wrong choices."""
SEED = "ds4-eval import gpqa 1"
"""Determines the order of GPQA's choices: another text here would make other questions."""
ACCEPTED = '"question" and "answer" are needed; "choices" (a list), "id", "source", "domain", "difficulty" and ' \
           '"explanation" may be there'  # fmt: skip
LONGEST_ID = 100


def is_pack(path: Path) -> bool:
    """Return whether the first line that is not blank is the header of a pack."""
    with suppress(ValueError, RecursionError):
        header = json.loads(_text(path).lstrip().partition("\n")[0])
        return isinstance(header, dict) and "pack" in header
    return False


def read(path: Path) -> Pack:
    """Read a file of questions as a pack that has the file's name; DataError names the first invalid line."""
    questions: dict[str, tuple[str, Question]] = {}
    for where, record in _records(path, _text(path)):
        try:
            if not isinstance(record, dict):
                raise ValueError(f"not a JSON object: {ACCEPTED}")
            question = _question(record, printable(path.stem))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        if question.id in questions:
            raise DataError(f"{where}: the same question or id {question.id} as in {questions[question.id][0]}")
        questions[question.id] = (where, question)
    if not questions:
        raise DataError(f"{path}: no question: {ACCEPTED}")
    return Pack(Header(_identity(printable(path.stem)) or "questions", 1), tuple(q for _, q in questions.values()))


def _text(path: Path) -> str:
    """Return the text of a file; raise DataError if it cannot be read, is not UTF-8 or is empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}") from None
    if not text.strip():
        raise DataError(f"{path}: empty")
    return text


def _records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield (place in the file, for messages; entry) for each entry."""
    if text.lstrip().startswith("["):
        yield from ((f"{path}: entry {i}", entry) for i, entry in enumerate(_json(str(path), text), 1))
    elif text.lstrip().startswith("{"):
        lines = enumerate(text.split("\n"), 1)
        yield from ((f"{path}:{i}", _json(f"{path}:{i}", line)) for i, line in lines if line.strip())
    else:
        yield from _csv(path, text)


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None


def _csv(path: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (place in the file, cells by column name) for each row of a CSV file that is not blank."""
    rows = csv.DictReader(text.splitlines(keepends=True), strict=True)
    try:
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if not any(isinstance(cell, str) and cell.strip() for cell in row.values()):
                continue
            if None in row or None in row.values():
                raise DataError(f"{where}: not {len(rows.fieldnames or ())} cells, as the header has")
            yield where, row
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not CSV: {error}") from None


def _question(record: dict[str, Any], stem: str) -> Question:
    """Return the question that a record describes; raise ValueError with what is wrong with it. ``stem``: the file's
    name, used as source if the record has none."""
    cells: dict[str, Any] = {}
    for name, value in record.items():
        cells.setdefault(re.sub(r"[\s_-]+", " ", name).strip().lower(), value)
    if "kind" in cells:
        raise ValueError('a line with "kind" belongs in a pack, whose first line is {"pack": NAME, "version": 1}')
    known = [name for names in NAMES.values() for name in names]
    for name in cells.keys() - {*known, *WRONG, "answer letter"}:
        if near := get_close_matches(name, known, 1, 0.75):
            raise ValueError(f'unknown field "{printable(name, 40)}" (did you mean "{near[0]}"?): {ACCEPTED}')
    given = {field: next((cells[name] for name in names if cells.get(name) not in (None, "")), None)
             for field, names in NAMES.items()}  # fmt: skip
    for name in ("question", "answer"):
        if given[name] is None:
            has = printable(", ".join(sorted(cells)) or "nothing", 120)
            raise ValueError(f'no "{name}" (the fields here: {has}): {ACCEPTED}')
    text = given["question"]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"question is {'blank' if isinstance(text, str) else f'not text: {text}'}")
    right = str(given["answer"])
    if WRONG[0] in cells:
        every = [right, *(str(cells.get(name, "")) for name in WRONG)]
        given["choices"] = sorted(every, key=lambda one: hashlib.sha256(f"{SEED}\n{text}\n{one}".encode()).digest())
    choices = _choices(given["choices"])
    notes = ("id", "source", "domain", "difficulty", "explanation")
    name, source, domain, difficulty, why = (str(given[note] or "").strip() for note in notes)
    source = source or stem
    kind: Kind = "choice"
    if WRONG[0] in cells:
        answer = LETTERS[choices.index(right)]
    else:
        kind, answer = _answer(given["answer"], choices)
    question = Question(_identity(name), source, domain or source, difficulty, kind, text, choices, answer, why)
    try:
        msgspec.json.encode(question)
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair: not valid Unicode") from None
    question = msgspec.structs.replace(question, id=question.id or stamped(question))
    if wrong := problem(question):
        raise ValueError(wrong)
    return question


def _identity(own: str) -> str:
    """Return a valid question id made from the id in the file; "" if that is empty or too long."""
    plain = re.sub(r"[^\w.:+-]+", "-", own)
    return plain if len(plain) <= LONGEST_ID else ""


def _choices(value: Any) -> tuple[str, ...]:
    """Return the choices, () if there are none; in CSV they are a list in one cell, in the notation of JSON or
    Python."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(value.strip())
    if value in (None, "", []):
        return ()
    if not isinstance(value, list):
        raise ValueError(f"the choices are not a list of texts: {printable(str(value), 60)}")
    texts = [_number(one) if isinstance(one, (int, float)) and not isinstance(one, bool) else one for one in value]
    if not all(isinstance(one, str) and one.strip() for one in texts):
        raise ValueError("the choices are not a list of texts")
    if len({one.strip() for one in texts}) < len(texts):
        raise ValueError("two choices are equal")
    return tuple(texts)


def _number(value: int | float) -> str:
    """Return a number as it is written, without the ``.0`` of a whole number."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else str(value)


def _answer(value: Any, choices: Sequence[str]) -> tuple[Kind, str]:
    """Return (kind of question, answer); with choices the answer in the file is a letter or the text of a choice."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f'"answer" must be a text or a number, not {printable(json.dumps(value), 40)}')
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError('"answer" is no number')
    answer = value.strip() if isinstance(value, str) else _number(value)
    if not choices:
        whole = re.fullmatch(r"-?[0-9]{1,18}", answer) is not None
        return ("integer", str(int(answer))) if whole else ("text", answer)
    texts, letter = [choice.strip() for choice in choices], re.fullmatch(r"\(?([A-Za-z])\)?", answer)
    named = LETTERS[: len(choices)].find(letter[1].upper()) if letter else -1
    place = texts.index(answer) if answer in texts else named
    if place < 0:
        raise ValueError(f'the answer "{printable(answer, 60)}" is neither the letter nor the text of a choice')
    if named not in (-1, place):
        raise ValueError(f'the answer "{answer}" is the letter of one choice and the text of another')
    return "choice", LETTERS[place]
