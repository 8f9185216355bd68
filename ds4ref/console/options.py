"""Command line parsing, the same for every command of this project.

A thin layer over argparse that adds rules of the ds4 tools:

* a flag that takes a value takes the next argument, whatever it looks like (``-p "--really?"``);
* no abbreviations; an unknown flag, command or value gets a suggestion; one line per error, exit code 2;
* integers, seeds and numbers are checked against the range that the help states;
* ``--help`` takes effect at once: flags after it are ignored.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..errors import UsageError, closest, did_you_mean, one_line
from ..version import __version__

INT_MAX = 2**31 - 1
SEED_MAX = 2**64 - 1
LONGEST_LIST = 10_000
MAX_TOP_K = 128
"""Maximum number of alternatives per step in a logprob dump."""


def integer(lo: int = 1, hi: int = INT_MAX) -> Callable[[str], int]:
    """Return an argparse type for decimal integers in lo..hi; the whole text must be digits."""

    def parse(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,20}", text) and lo <= int(text) <= hi:
            return int(text)
        span = f">= {lo}" if hi in (INT_MAX, SEED_MAX) else f"from {lo} to {hi}"
        raise argparse.ArgumentTypeError(f"expected an integer {span}")

    return parse


def integers(lo: int = 1, hi: int = INT_MAX) -> Callable[[str], list[int]]:
    """Return an argparse type for comma lists of integers and ranges in lo..hi.

    As in llama-bench, ``1-4`` counts by one, ``0-8192+2048`` by steps, ``1-64*2`` by factors.
    """
    one = integer(lo, hi)

    def parse(text: str) -> list[int]:
        values: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})(?:([+*])([0-9]{1,10}))?", part.strip())
            if match is None:
                values.append(one(part.strip()))
                continue
            at, last = one(match[1]), one(match[2])
            factor, by = match[3] == "*", int(match[4] or 1)
            if last < at or by < (2 if factor else 1) or (factor and not at):
                raise argparse.ArgumentTypeError(f"the range {part.strip()} has step 0")
            while at <= last and len(values) <= LONGEST_LIST:
                values.append(at)
                at = at * by if factor else at + by
        if len(values) > LONGEST_LIST:
            raise argparse.ArgumentTypeError(f"more than {LONGEST_LIST} values")
        return values

    return parse


def choices(*names: str) -> Callable[[str], list[str]]:
    """Return an argparse type for comma lists of ``names``."""
    one = choice(*names)
    return lambda text: [one(part.strip()) for part in text.split(",")]


def number(lo: float, hi: float) -> Callable[[str], float]:
    """Return an argparse type for finite decimal numbers in lo..hi."""

    def parse(text: str) -> float:
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text):
            value = float(text)
            if math.isfinite(value) and lo <= value <= hi:
                return value
        raise argparse.ArgumentTypeError(f"expected a number from {lo:g} to {hi:g}")

    return parse


SIZES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def size(*words: str) -> Callable[[str], int | str]:
    """Return an argparse type for sizes in bytes, such as 32GB or 512MiB, or one of ``words``."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", text)
        scale = SIZES.get(match[2].upper()) if match else None
        if match is None or scale is None or not float(match[1]):
            wanted = "".join(f", or {word}" for word in words) + did_you_mean(text, words)
            raise argparse.ArgumentTypeError(f"expected a size such as 32GB or 512MiB{wanted}")
        return int(float(match[1]) * scale)

    return parse


def choice(*names: str) -> Callable[[str], str]:
    """Return an argparse type for one of ``names``."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(names)}{did_you_mean(text, names)}")
        return text

    return parse


class Parser(argparse.ArgumentParser):
    """An argparse parser with the rules of this module.

    ``unavailable``: flags of the original ds4 tools that this project lacks, with the reason shown in the error.
    """

    def __init__(
        self, prog: str, *, usage: str, description: str, epilog: str = "", unavailable: Mapping[str, str] | None = None
    ):
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=27, width=100),
            add_help=False,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.unavailable = unavailable or {}

    def error(self, message: str):  # instead of argparse's, which prints the usage and exits
        raise UsageError(message)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse ``argv``; raises UsageError with the mistake in the first bad option."""
        self._check_command(argv)
        try:
            args, rest = self.parse_known_args(self._bind_values(argv))
        except argparse.ArgumentError as error:
            raise UsageError(f"{error.argument_name}: {error.message}") from None
        if rest:
            raise UsageError(self._unknown(rest[0]))
        return args

    def _check_command(self, argv: Sequence[str]) -> None:
        """Raise UsageError with a suggestion if the first argument is not a file, and looks like a misspelt command of
        the usage text."""
        if not argv or argv[0].startswith("-") or os.path.lexists(argv[0]):
            return
        words = rf"{re.escape(self.prog)} ((?:[a-z][a-z-]*)(?: \| [a-z][a-z-]*)*)(?= |$)"
        commands = [name for group in re.findall(words, self.usage or "", re.MULTILINE) for name in group.split(" | ")]
        if argv[0] not in commands and closest(argv[0], commands) is not None:
            raise unknown_command(argv[0], commands)

    def _bind_values(self, argv: Sequence[str]) -> list[str]:
        """Turn ``--flag value`` into a checked ``--flag=value``, so that argparse cannot take a value for a flag."""
        bound: list[str] = []
        rest = iter(argv)
        for arg in rest:
            name, equals, value = arg.partition("=")
            if name in self.unavailable:
                raise UsageError(f"{name} is not available here: {self.unavailable[name]}")
            action = self._option_string_actions.get(name)
            if action is not None and action.dest in ("help", "version"):
                return [arg]
            if action is None or action.nargs is not None:
                if name.startswith("-") and action is None:
                    raise UsageError(self._unknown(arg))
                bound.append(arg)
                continue
            if not equals:
                try:
                    value = next(rest)
                except StopIteration:
                    raise UsageError(f"missing value for {name}") from None
            try:
                if callable(action.type):
                    action.type(value)
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"invalid value for {name}: {printable(value)}: {error}") from None
            bound.append(f"{action.option_strings[-1]}={value}")
        return bound

    def _unknown(self, arg: str) -> str:
        name = arg.partition("=")[0]
        if not name.startswith("-"):
            hint = " (a prompt goes after -p)" if "-p" in self._option_string_actions and " " in arg else ""
            return f"unexpected argument: {printable(arg)}{hint}"
        return f"unknown option: {printable(name)}{did_you_mean(name, self._option_string_actions)}"


def parsed(parser: Parser, argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the parsed options; None if the help or the version was printed instead."""
    args = parser.parse(argv)
    if args.help:
        sys.stdout.write(parser.format_help())  # print_help would hide a failed write (full disk)
        return None
    if getattr(args, "version", False):
        print(f"{parser.prog} {__version__} (ds4ref)")
        return None
    return args


def chosen(
    build: Callable[[str], Parser], commands: Iterable[str], argv: Sequence[str]
) -> tuple[str, argparse.Namespace] | None:
    """Return (command, options) for a program with subcommands; None if the help or the version was printed instead.

    build      function that returns the parser of a command, or for "" the parser that shows the overview
    commands   names of the commands

    Raises UsageError if ``argv`` does not begin with one of them.
    """
    commands = list(commands)
    if argv and argv[0] in commands:
        args = parsed(build(argv[0]), argv[1:])
        return None if args is None else (argv[0], args)
    args = parsed(build(""), argv or ["--help"])
    if args is None:
        return None
    raise unknown_command(args.names[0] if args.names else "", commands)


def unknown_command(name: str, commands: Iterable[str]) -> UsageError:
    """Return the error for an unknown command, with a suggestion."""
    commands = list(commands)
    hint = did_you_mean(name, commands) or f": choose from {', '.join(commands)}"
    return UsageError((f"unknown command {printable(name, 40)!r}" if name else "missing command") + hint)


def printable(text: str, limit: int = 80) -> str:
    """Return ``text`` as one line for an error message: escaped control characters, at most ``limit`` characters."""
    escaped = one_line(text)
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."
