"""Find which program made a file of answers, and read it."""

from __future__ import annotations

from pathlib import Path

from ds4ref.errors import DataError

from . import ds4, inspect_ai, lm_eval
from .answers import Source

READERS = (ds4, lm_eval, inspect_ai)
HEAD = 4096


def read(path: Path) -> Source:
    """Read a file of answers; DataError if it is none, or empty, or damaged."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
        if not head:
            raise DataError(f"{path}: empty")
        reader = next((reader for reader in READERS if reader.fits(path, head)), None)
        if reader is None:
            what = "neither a log of inspect_ai, nor samples of lm-evaluation-harness, nor a trace of ds4"
            raise DataError(f"{path}: {what}")
        source = reader.read(path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not source.answers:
        raise DataError(f"{path}: no answer in it" + "".join(f"; {note}" for note in source.notes))
    return source
