"""The task of every agent: repeat the secret word in a file.

The word is nowhere but in that file, so an answer with it proves that a tool call was received, executed and answered.
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
    """A task: the file ``note``, which holds the secret word ``word``, and the prompt that asks for it."""

    note: Path
    word: str

    @property
    def prompt(self) -> str:
        """The user's message to the agent."""
        return (
            f"Read the file {self.note} with one of your tools (for example: cat) and then tell me the secret word "
            "that is in it."
        )


def task(folder: Path) -> Task:
    """Write a file with a new secret word into ``folder``; return the task."""
    note, word = folder / "secret-note.txt", f"MAGIC-{secrets.token_hex(4)}"
    note.write_text(f"The secret word is {word}.\n")
    return Task(note.resolve(), word)
