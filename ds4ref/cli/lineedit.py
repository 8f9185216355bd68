"""Reads lines from the user: a line editor on a terminal, plain lines otherwise.

On a terminal Enter sends, Alt-Enter starts a new line, pasted text keeps its lines, the arrow keys browse the history,
and Ctrl-Z suspends. If stdin is not a terminal, there is no prompt and each line is one message.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..console.common import is_tty

if TYPE_CHECKING:
    from prompt_toolkit.history import History

HISTORY, HISTORY_ENTRIES = ".ds4_history", 512

ReadLine = Callable[[], str | None]
"""Type of a function that returns the next line without its end, None at the end of input.

It raises KeyboardInterrupt for Ctrl-C while typing.
"""


def history_path(name: str = HISTORY) -> Path:
    """Return the path of a history file in the home folder."""
    return Path(os.environ.get("HOME") or Path.home()) / name


def line_reader(prompt: str, commands: Iterable[str], history: str = HISTORY) -> ReadLine:
    """Return a function that reads lines from stdin; on a terminal, Tab completes ``commands``."""
    if is_tty(sys.stdin) and is_tty(sys.stdout):
        return _editor(prompt, commands, history)
    return _plain(prompt if sys.stdin.isatty() else "")


def _plain(prompt: str) -> ReadLine:
    def read() -> str | None:
        if prompt:
            sys.stdout.write(prompt)
            sys.stdout.flush()
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    return read


def _editor(prompt: str, commands: Iterable[str], history: str = HISTORY) -> ReadLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        prompt,
        history=open_history(history_path(history)),
        key_bindings=keys,
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        enable_suspend=True,  # else Ctrl-Z becomes a character of the message
        prompt_continuation=" " * len(prompt),
    )

    def read() -> str | None:
        try:
            return session.prompt()
        except EOFError:
            return None

    return read


def open_history(path: Path) -> History:
    """Open the history file ``path`` for the line editor: the newest 512 entries.

    The file has one entry per line, oldest first, with line breaks escaped; it is saved after each entry. Errors are
    ignored: an unreadable history is empty, an unwritable one is lost.
    """
    from prompt_toolkit.history import History

    class LineHistory(History):
        def load_history_strings(self) -> Iterable[str]:
            return reversed(load_history(path))

        def store_string(self, string: str) -> None:
            save_history(path, [*load_history(path), string])

    return LineHistory()


def load_history(path: Path) -> list[str]:
    """Return the entries of a history file, oldest first; [] if there is none."""
    try:
        lines = path.read_text("utf-8", "replace").split("\n")
    except OSError:
        return []
    return [_unescape(line) for line in lines if line][-HISTORY_ENTRIES:]


def save_history(path: Path, entries: list[str]) -> None:
    """Write the newest 512 entries to a history file that only the user can read."""
    text = "".join(f"{_escape(entry)}\n" for entry in entries[-HISTORY_ENTRIES:])
    with contextlib.suppress(OSError):
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as out:
            out.write(text)
        os.replace(temporary, path)


def _escape(entry: str) -> str:
    return entry.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _unescape(line: str) -> str:
    out, chars = [], iter(line)
    for c in chars:
        if c == "\\":
            c = {"n": "\n", "r": "\r"}.get(c := next(chars, "\\"), c)
        out.append(c)
    return "".join(out)
