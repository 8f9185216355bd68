"""The loop of an interactive conversation: reads lines until the input ends; a line "/name" is a command, any other
line a message to the model."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

from ..console.common import is_tty, say
from ..console.options import printable
from ..errors import Ds4Error
from .lineedit import HISTORY, line_reader

MODES = {"/think": "high", "/think-low": "low", "/think-max": "max", "/nothink": "none"}


class Talk(ABC):
    """An interactive conversation; subclasses define the answer to a message (``turn``) and their ``commands``.

    done   whether the user asked to quit
    code   exit code of the last answer
    """

    def __init__(self, prog: str, help: str):
        self.prog, self.help = prog, help
        self.done, self.code = False, 0

    @abstractmethod
    def commands(self) -> Mapping[str, Callable[[str], None]]:
        """Return the commands that this kind of conversation has in addition, by name; each receives the text after its
        name."""

    @abstractmethod
    def think(self, mode: str) -> None:
        """Run /think and the like: set the thinking mode of later answers."""

    @abstractmethod
    def turn(self, text: str) -> object:
        """Answer one message of the user."""

    def read_lines(self, prompt: str, history: str = HISTORY, first: str | None = None) -> int:
        """Run the chat loop: read lines until the input ends, run /commands, send all other lines to the model.

        Returns the exit code of the last answer.

        prompt    shown before each line on a terminal
        history   name of the history file
        first     a message to answer before the first line is read
        """
        read = line_reader(prompt, self.all_commands(), history)
        if is_tty(sys.stdin):
            print(self.help, file=sys.stderr)
        if first is not None:
            self.turn(first)
        while not self.done:
            try:
                line = read()
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                continue  # Ctrl-C while typing only clears the line
            if line is None:
                break
            self.line(line)
        return self.code

    def line(self, line: str) -> None:
        """Run ``line`` as a command if it starts with "/", else answer it; print an error as one line."""
        text = line.strip()
        if not text:
            return
        if not text.startswith("/"):
            self.turn(line)
            return
        name, _, rest = text.partition(" ")
        commands = self.all_commands()
        if name not in commands:
            say(self.prog, f"unknown command: {printable(name)} (/help lists them)")
            return
        try:
            commands[name](rest.strip())
        except (Ds4Error, MemoryError) as error:
            say(self.prog, f"{name}: {error or 'not enough memory'}")

    def leave(self, _: str) -> None:
        """Run /quit: end the loop."""
        self.done = True

    def all_commands(self) -> dict[str, Callable[[str], None]]:
        """Return all commands by name."""
        return {
            "/help": lambda _: print(self.help, file=sys.stderr),
            **{name: partial(self._think, mode) for name, mode in MODES.items()},
            **self.commands(),
            **dict.fromkeys(("/quit", "/exit"), self.leave),
        }

    def _think(self, mode: str, _: str) -> None:
        self.think(mode)
