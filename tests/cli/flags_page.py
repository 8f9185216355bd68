"""Print docs/reference/flags.md, made of the commands' own parsers.

python -m tests.cli.flags_page > docs/reference/flags.md
"""

from __future__ import annotations

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


def page() -> str:
    """The whole page as Markdown."""
    parts = ["# All flags\n\nMade of the parsers (`python -m tests.cli.flags_page`); a test holds it to them.\n"]
    for name, parser in parsers():
        rows = []
        for action in parser._actions:
            if action.help in (None, "==SUPPRESS==") or not action.option_strings:
                continue
            takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
            text = (action.help or "").replace("|", "\\|").replace("%%", "%")
            rows.append(f"| `{', '.join(action.option_strings)}{takes}` | {' '.join(text.split())} |")
        if rows:
            parts.append("\n".join([f"\n## {name}\n", "| flag | |", "|---|---|", *rows, ""]))
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
