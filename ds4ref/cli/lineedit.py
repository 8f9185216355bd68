"""Reads lines from the user: a line editor on a terminal, plain lines otherwise.

On a terminal Enter sends, Alt-Enter starts a new line, pasted text keeps its lines, the arrow keys browse the history,
and Ctrl-Z suspends. If stdin is not a terminal, there is no prompt and each line is one message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..console.common import is_tty

if TYPE_CHECKING:
    from prompt_toolkit.history import History

HISTORY = ".ds4ref_history"

ReadLine = Callable[[], str | None]
"""Type of a function that returns the next line without its line feed, None at the end of input.

It raises KeyboardInterrupt for Ctrl-C while typing.
"""


def line_reader(prompt: str, commands: Iterable[str], history: str = HISTORY) -> ReadLine:
    """Return a function that reads lines from stdin. On a terminal it shows ``prompt``, Tab completes ``commands``, and
    lines are kept in the file ``history``."""
    if is_tty(sys.stdin) and is_tty(sys.stdout):
        return _editor(prompt, commands, history)
    return _plain(prompt if sys.stdin.isatty() else "")


def _plain(prompt: str) -> ReadLine:
    """Return a function that reads plain lines from stdin, after printing ``prompt`` if it is not empty."""

    def read() -> str | None:
        if prompt:
            sys.stdout.write(prompt)
            sys.stdout.flush()
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    return read


def _editor(prompt: str, commands: Iterable[str], history: str = HISTORY) -> ReadLine:
    """Return a function that reads lines with a line editor, for a terminal."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        prompt,
        history=open_history(Path(os.environ.get("HOME") or Path.home()) / history),
        key_bindings=keys,
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        enable_suspend=True,  # else Ctrl-Z is inserted into the message as a character
        prompt_continuation=" " * len(prompt),
    )

    def read() -> str | None:
        try:
            return session.prompt()
        except EOFError:
            return None

    return read


def open_history(path: Path) -> History:
    """Return the history of the line editor, kept in the file ``path`` that only the user can read.

    If the file cannot be written, the history lasts only as long as the process.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
