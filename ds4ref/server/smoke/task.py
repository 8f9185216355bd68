"""The task of every agent: a file holds a secret word, which the answer has to repeat.

The word is nowhere but in that file, so who says it was given a call that it understood, made it, and sent its result.
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
    """A note in a folder, and what is asked about it."""

    note: Path
    word: str

    @property
    def prompt(self) -> str:
        """What the agent is asked."""
        return (
            f"Read the file {self.note} with one of your tools (for example: cat) and then tell me the secret word "
            "that is in it."
        )


def task(folder: Path) -> Task:
    """A new one in ``folder``."""
    note, word = folder / "secret-note.txt", f"MAGIC-{secrets.token_hex(4)}"
    note.write_text(f"The secret word is {word}.\n")
    return Task(note.resolve(), word)
