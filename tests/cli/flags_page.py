"""Print docs/reference/flags.md, made of the commands' own parsers.

python -m tests.cli.flags_page > docs/reference/flags.md
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import io
import re
from collections.abc import Iterator

from ds4ref.console import options

TOOLS = {
    "ds4": "ds4ref.cli.ds4", "ds4-bench": "ds4ref.speed_bench.cli", "ds4-vectors": "ds4ref.test_vectors.cli",
    "ds4-report": "ds4ref.reports.cli", "ds4-eval": "ds4ref.eval.cli", "ds4-server": "ds4ref.cli.server",
    "ds4-kv": "ds4ref.cli.kv", "ds4-quantize": "ds4ref.cli.quantize",
}  # fmt: skip


def parsers() -> Iterator[tuple[str, options.Parser]]:
    """The parser behind the help of every command, in the order in which the usage lists them."""
    made: list[options.Parser] = []
    seen: set[str] = set()
    parse = options.Parser.parse

    def remember(self, argv):
        made.append(self)
        return parse(self, argv)

    options.Parser.parse = remember  # type: ignore[method-assign]
    try:
        for tool, module in TOOLS.items():
            main, shown = importlib.import_module(module).main, io.StringIO()
            with contextlib.redirect_stdout(shown):
                main(["--help"])
            listed = re.findall(rf"^  ([a-z]+)  +\S|\b{tool} ([a-z]+)\b", shown.getvalue(), re.MULTILINE)
            names = [first or second for first, second in listed]
            commands = [[], *([name] for name in dict.fromkeys(names))]
            if tool == "ds4":
                commands += [["steer", "build"], ["steer", "measure"]]
            if tool == "ds4-vectors":
                commands += [["trace", "record"], ["trace", "blame"]]
            for command in commands:
                made.clear()
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    main([*command, "--help"])
                if made and made[-1].prog not in seen:  # a word of the usage that is no command
                    seen.add(made[-1].prog)
                    yield made[-1].prog, made[-1]
    finally:
        options.Parser.parse = parse  # type: ignore[method-assign]


SHARED = 2
"""A flag with one text in so many commands or more is described once, at the top of the page."""


def page() -> str:
    """The whole page as Markdown."""
    rows: dict[str, dict[str, str]] = {}
    for command, parser in parsers():
        rows[command] = {}
        for action in parser._actions:
            if action.help not in (None, "==SUPPRESS==") and action.option_strings:
                takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
                text = (action.help or "").replace("|", "\\|").replace("%%", "%")
                rows[command][f"`{', '.join(action.option_strings)}{takes}`"] = " ".join(text.split())
    count = collections.Counter(row for flags in rows.values() for row in flags.items())
    names = {flag: max((row for row in count if row[0] == flag), key=lambda row: count[row]) for flag, _ in count}
    shared = [row for row in count if count[row] >= SHARED and names[row[0]] == row]
    parts = ["# All flags\n\nMade of the parsers (`python -m tests.cli.flags_page`); a test holds it to them.\n"]
    parts.append("\n## In several commands\n\n| flag | |\n|---|---|\n")
    parts += [f"| {flag} | {text} |\n" for flag, text in shared]
    for command, flags in rows.items():
        own = [row for row in flags.items() if row not in shared]
        also = ", ".join("`" + re.split("[ `]", flag)[-3 if " " in flag else -2].rstrip(",") + "`"
                         for flag, text in flags.items() if (flag, text) in shared)  # fmt: skip
        parts.append(f"\n## {command}\n\n")
        if own:
            parts += ["| flag | |\n|---|---|\n", *(f"| {flag} | {text} |\n" for flag, text in own), "\n"]
        parts.append(f"Also: {also}.\n" if also else "")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
