"""Read and write packs of questions: JSON Lines, checked against a schema. ``library`` finds them by name.

The first line of the file describes the pack, every other line is a question:

    {"pack": "ds4ref", "version": 1, "canary": "...", "licence": "MIT", "about": "..."}
    {"id": "maths-1f0c2a9e", "source": "maths", "domain": "number theory", "difficulty": "hard", "kind": "integer", ...}

The ids of this project's questions end with a digest of question and answer, so that a changed question has another id.
Questions from other data sets keep their ids (``own``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ds4ref.errors import DataError
from ds4ref.runs.store.rows import question_digest
from ds4ref.text.chat import MODES

DEFAULT, NANO = "ds4ref", "nano"
LETTERS = "ABCDEFGHIJ"
LONGEST_LINE = 4 << 20
"""Maximum size of a line of a pack in bytes."""

Kind = Literal["choice", "integer", "lines", "text", "exact", "call"]
EXAM: tuple[Kind, ...] = ("choice", "integer", "lines", "text")
"""Kinds of questions asked in the form of an examination, with instructions on how to answer; others are asked as they
are."""
T = TypeVar("T")


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """First line of a pack; ``settings``: default settings of a run with it (``plan.Settings``)."""

    pack: str
    version: int
    canary: str = ""
    licence: str = ""
    about: str = ""
    settings: dict[str, int | float | str] = {}


class Question(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """One question of a pack.

    id           identifies the question in the pack
    source       part of the pack: "science", "maths" and so on
    domain       subject
    kind         "choice" (a letter), "integer", "lines" (numbers of lines, "0" for none), "text" (one line, or a number
                 of any kind); without the form of an examination "exact" (the answer, word for word) and "call" (one
                 tool call)
    choices      texts of the choices in the order of their letters; empty for the other kinds
    answer       right answer: "C"; "204"; "7", "4-6" or "3,9-10"; "lamp"; {"name": "...", "arguments": {...}}
    distractors  for each wrong choice the mistake that leads to it
    explanation  why the answer is right
    verifier     name of the function (tests/eval/verify) that computes the answer, "" for none
    references   independent standard works that state the answer, where nothing computes it
    think        thinking mode for this question, which overrides the run's; "" for the run's
    tools        JSON text of each tool that the model may call
    called       a call that the assistant has already made in the conversation, written like an answer of kind "call";
                 "" for none
    result       the result of that call
    guess        probability of a right answer by guessing, 0 if not stated
    depth        maximum number of tokens between the fact that is asked for and the answer; 0 if not stated
    """

    id: str
    source: str
    domain: str
    difficulty: str
    kind: Kind
    question: str
    choices: tuple[str, ...]
    answer: str
    explanation: str = ""
    verifier: str = ""
    licence: str = ""
    distractors: tuple[str, ...] = ()
    think: str = ""
    tools: tuple[str, ...] = ()
    called: str = ""
    result: str = ""
    guess: float = 0.0
    depth: int = 0
    references: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return the question's text on one line."""
        return " ".join(self.question.split())

    @property
    def digest(self) -> str:
        """Return the SHA-256 of everything that the model is shown, and of the answer, in hexadecimal."""
        shown = (self.think, *self.tools, self.called, self.result)
        return question_digest(self.kind, self.question, self.choices, self.answer, shown)

    @property
    def chance(self) -> float:
        """Return the probability of a right answer by guessing: ``guess`` if stated, else 1 / number of choices, else
        0."""
        return self.guess or (1 / len(self.choices) if self.choices else 0.0)

    @property
    def letters(self) -> str:
        """Return the letters of the choices."""
        return LETTERS[: len(self.choices)]


class Pack(msgspec.Struct, frozen=True):
    """A header and its questions, in order."""

    header: Header
    questions: tuple[Question, ...]

    @property
    def name(self) -> str:
        """Return the pack's name, as in its header."""
        return self.header.pack

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all questions, in hexadecimal."""
        return hashlib.sha256("".join(q.digest for q in self.questions).encode()).hexdigest()


# ------------------------------------------------------------------------------------------------------- reading


def read(path: Path) -> Pack:
    """Read a pack from a file; DataError names the damaged line."""
    try:
        with open(path, "rb") as file:
            lines = [(i, line) for i, line in enumerate(_lines(path, file), 1) if line.strip()]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not lines:
        raise DataError(f"{path}: empty")
    header = _decode(path, *lines[0], Header)
    questions: dict[str, Question] = {}
    for number, line in lines[1:]:
        question = _decode(path, number, line, Question)
        wrong = problem(question)
        if wrong is None and question.id in questions:
            wrong = "is there twice"
        if wrong is not None:
            raise DataError(f"{path}:{number}: question {question.id}: {wrong}")
        questions[question.id] = question
    if not questions:
        raise DataError(f"{path}: no question")
    return Pack(header, tuple(questions.values()))


def write(pack: Pack, path: Path) -> None:
    """Write a pack to a file that ``read`` can read, atomically."""
    from ds4ref.console.common import atomic_output

    with atomic_output(str(path)) as out:
        for entry in (pack.header, *pack.questions):
            out.write(msgspec.json.encode(entry) + b"\n")


def _lines(path: Path, file: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(file, 1):
        if len(line) > LONGEST_LINE:
            raise DataError(f"{path}:{number}: longer than {LONGEST_LINE >> 20} MiB")
        yield line


def _decode(path: Path, number: int, line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}:{number}: {error}") from None


# ------------------------------------------------------------------------------------------------------ checking


def problem(q: Question) -> str | None:
    """Return what is wrong with a question; None if it is valid."""
    if not re.fullmatch(r"[\w.:+-]{1,100}", q.id):
        return "an id is up to 100 letters, digits and . : + - _"
    if not q.question.strip() or not q.source.strip():
        return "question and source must not be empty"
    if q.think and q.think not in MODES:
        return f"unknown thinking mode {q.think!r}"
    if not 0 <= q.guess < 1 or q.depth < 0:
        return "guess is a probability below 1, and depth is not negative"
    if q.kind in EXAM and (q.tools or q.called or q.result):
        return f"kind {q.kind} has no tools"
    if any(not isinstance(_json(tool), dict) for tool in q.tools) or (q.called and not is_call(q.called)):
        return "tools are JSON objects, and a call has a name and arguments"
    if q.kind == "choice":
        if not 2 <= len(q.choices) <= len(LETTERS):
            return f"2 to {len(LETTERS)} choices are needed, not {len(q.choices)}"
        if any(not choice.strip() for choice in q.choices) or len(set(q.choices)) < len(q.choices):
            return "choices must be different and not empty"
        if len(q.answer) != 1 or q.answer not in q.letters:
            return f"the answer must be one of the letters {q.letters}, not {q.answer!r}"
        if q.distractors and len(q.distractors) != len(q.choices):
            return "distractors must be as many as choices"
        return None
    if q.choices or q.distractors:
        return f"kind {q.kind} has no choices"
    if q.kind == "integer":
        return None if re.fullmatch(r"0|-?[1-9][0-9]{0,17}", q.answer) else f"{q.answer!r} is not an integer"
    if q.kind == "text":
        fits = len(q.answer.splitlines()) == 1 and q.answer.strip() == q.answer and re.search(r"[^\W_]", q.answer)
        return None if fits else "a text to be answered is one line with a letter or a digit"
    if q.kind == "exact":
        return (
            None
            if q.answer.strip() == q.answer != ""
            else "an exact answer must not be empty or have spaces at its ends"
        )
    if q.kind == "call":
        return None if q.tools and is_call(q.answer) else "tools are needed, and an answer with name and arguments"
    return None if line_set(q.answer) else f"{q.answer!r} names no lines"


def is_call(text: str) -> bool:
    """Return whether a text is a tool call: a JSON object with name and arguments."""
    call = _json(text)
    return isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), dict)


def _json(text: str) -> Any:
    """Return the value of a JSON text, None if it is malformed."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None


def line_set(spec: str) -> frozenset[int] | None:
    """Return the line numbers that a ``spec`` such as ``7``, ``4-6`` or ``3,9-10`` stands for; None for anything else,
    or if 0 (no line) is combined with others."""
    lines: set[int] = set()
    for part in spec.replace(" ", "").split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        lines.update(range(min(low, high), max(low, high) + 1))
    return frozenset(lines) if lines and (0 not in lines or lines == {0}) else None


def stamped(q: Question) -> str:
    """Return the id that a question of this project must have: its source and the beginning of its digest."""
    return f"{q.source}-{q.digest[:8]}"
