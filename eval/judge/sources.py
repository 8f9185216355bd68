"""Find which program made a file of answers, and read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ds4ref.errors import DataError

from . import ds4, inspect_ai, lm_eval
from .answers import Source

_TASK = re.compile(r"samples_(.+)_[0-9]{4}-[0-9]{2}-[0-9]{2}T.*")
"""Name of a file of lm-evaluation-harness, with its task."""
READERS = (ds4, lm_eval, inspect_ai)
HEAD = 4096


def read_all(paths: Sequence[Path]) -> Source:
    """Read files of answers as one; with several, names of scores begin with the file's task, or its own name."""
    found = [read(path) for path in paths]
    if len(found) == 1:
        return found[0]
    answers = []
    for path, source in zip(paths, found, strict=True):
        task = _TASK.fullmatch(path.stem)
        name = task[1] if task else path.stem
        answers += [
            replace(answer, where=f"{path.name}, {answer.where}",
                    theirs={f"{name}: {score}": value for score, value in answer.theirs.items()})
            for answer in source.answers
        ]  # fmt: skip
    programs, fields = (
        ", ".join(dict.fromkeys(names)) for names in zip(*((s.program, s.field) for s in found), strict=True)
    )
    return Source(programs, fields, answers, tuple(dict.fromkeys(note for source in found for note in source.notes)))


def read(path: Path) -> Source:
    """Read a file of answers; DataError if it is none, or empty, or damaged."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
        if not head:
            raise DataError(f"{path}: empty")
        reader = next((reader for reader in READERS if reader.fits(path, head)), None)
        if reader is None:
            what = "not a log of inspect_ai, samples of lm-evaluation-harness or a trace of ds4"
            raise DataError(f"{path}: {what}")
        source = reader.read(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not source.answers:
        raise DataError(f"{path}: no answers" + "".join(f"; {note}" for note in source.notes))
    return source
