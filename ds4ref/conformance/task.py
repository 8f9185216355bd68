"""The task of every agent: repeat the secret word in a file.

The word stands only in that file, so an answer with it proves that a call was received, executed and answered.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

FILE = re.compile(r"(/[^\s\"'`<>]*/secret-note\.txt)")
SECRET = re.compile(r"MAGIC-[0-9a-f]{8}")


@dataclass(frozen=True)
class Task:
    """A note with a secret word, and the prompt about it."""

    note: Path
    word: str

    @property
    def prompt(self) -> str:
        """The user's prompt."""
        return (
            f"Read the file {self.note} with one of your tools (for example: cat) and then tell me the secret word "
            "that is in it."
        )


def task(folder: Path) -> Task:
    """Write a new note into ``folder``."""
    note, word = folder / "secret-note.txt", f"MAGIC-{secrets.token_hex(4)}"
    note.write_text(f"The secret word is {word}.\n")
    return Task(note.resolve(), word)
