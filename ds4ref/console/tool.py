"""Parts shared by the tools: a parser, options that open a target, and the printing of results."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ..engine_options import KINDS, flags
from ..errors import UsageError
from ..targets import Target, open_target
from ..targets.dialects import PREFILLS
from .common import say
from .flags import add
from .model import announce, engine_options
from .options import Parser, choice, integer, number, parsed, printable
from .tables import Column, fitted, stdout_width


def parser(prog: str, description: str, usage: str, *examples: str) -> Parser:
    """Return a parser with this project's rules; ``usage`` and ``examples`` are given without the program's name."""
    lines = "\n".join(["examples:", *(f"  {prog} {example}" for example in examples)]) if examples else ""
    command_parser = Parser(prog, usage=f"{prog} {usage}", description=description, epilog=lines)
    add(command_parser, "--help")
    return command_parser


def folder_of_shards(
    prog: str, argv: Sequence[str], description: str, flag: str, **options: Any
) -> Namespace | None:  # fmt: skip
    """Return the options of a tool's ``merge``; None if the help was printed instead.

    ``folder`` is the one that the shards share; ``flag`` and ``options`` are of ``flags.add``: where the result goes.
    """
    made = parser(f"{prog} merge", description, f"FOLDER [{flag} PATH] [--json]", f"out {flag} results")
    made.add_argument("folder", nargs="*", metavar="FOLDER", help="the folder that the shards share")
    add(made, flag, **options)
    add(made, "--json")
    args = parsed(made, argv)
    if args is not None:
        if len(args.folder) != 1:
            raise UsageError("merge needs one folder: the one that the shards share")
        args.folder = args.folder[0]
    return args


def required(args: Namespace, *names: str) -> None:
    """Raise UsageError for the first of the options ``names`` that was not given."""
    for name in names:
        if getattr(args, name.replace("-", "_")) is None:
            raise UsageError(f"--{name} is needed")


def key_of(args: Namespace) -> str:
    """Return the API key from the environment variable that --key-env names, "" for none; raise UsageError if it is
    invalid."""
    if args.key_env is None:
        return ""
    key = os.environ.get(args.key_env, "").strip()
    if not key:
        raise UsageError(f"--key-env: the environment variable {printable(args.key_env)} is empty")
    if not key.isascii() or not key.isprintable():
        raise UsageError("the API key must be printable ASCII")
    return key


def is_embedded(spec: str) -> bool:
    """Return whether the target ``spec`` is the local engine with the embedded model."""
    return spec.partition("?")[0] in ("local", "local:")


def add_target(parser: Parser, default: str | None = "local", action: str = "store") -> None:
    """Add the options that open a target; ``default``: the target if the user gives none; action ``append``: the option
    may be repeated."""
    engines = "local[:MODEL.gguf][?OPTION=VALUE&...], http(s)://HOST/v1 or command:BINARY ARGS"
    add(parser, "--target", default=default, action=action, help=f"{engines} ({default or 'none'})")
    for name in ("--backend", "--numerics", "--threads"):
        add(parser, name)
    add(parser, "--ctx", help="local or command target: context size in tokens")
    add(parser, "--model-name")
    parser.add_argument("--accept-model", metavar="NAME", action="append", default=[],
                      help="HTTP: also accept answers from this model name; repeatable")  # fmt: skip
    parser.add_argument("--id-prompts", action="store_true",
                      help="HTTP: send token ids to /completions (llama-server, vLLM)")  # fmt: skip
    add(parser, "--dialect")
    parser.add_argument("--prefill", metavar="STYLE", type=choice(*PREFILLS),
                      help=f"HTTP: continue partial answers as: {', '.join(PREFILLS)} (the dialect's)")  # fmt: skip
    add(parser, "--key-env")
    parser.add_argument("--per-minute", metavar="N", type=number(0.1, 1e6), help="HTTP: maximum requests per minute")
    parser.add_argument(
        "--attempts", metavar="N", type=integer(1, 100), default=6, help="HTTP: attempts per request (6)"
    )
    add(parser, "--timeout", help="HTTP, command: seconds to wait for a response (120; 3600)")


FLAGS = {
    "http": ("model_name", "accept_model", "prefill", "id_prompts", "dialect", "key_env", "per_minute", "attempts",
             "timeout"),
    "command": ("timeout", "ctx"),
    "local": ("ctx", "sessions"),
}  # fmt: skip
"""For each kind of target the flags that set options of it."""
OPTIONS = {"model_name": "model", "accept_model": "accept", "id_prompts": "ids"}
"""Names of a target's options, where they differ from the names of the flags."""


def target_of(args: Namespace, spec: str, **local: Any) -> Target:
    """Open the target ``spec`` with the options from the command line that apply to its kind; ``local``: further
    options for a local engine."""
    kind = re.split("s?[:?]", spec)[0]
    options = _given(args, kind)
    if kind == "local":
        spec, _, query = spec.partition("?")
        options |= engine_options(args, is_embedded(spec)) | local
        asked = queried(query)
        options |= engine_options(asked, is_embedded(spec)) | _given(asked, kind)
    target = open_target(spec, **options)
    announce("ds4", getattr(target, "engine", None))
    return target


def queried(query: str) -> Namespace:
    """Return the options after the ``?`` in the spec of a local target: ``numerics=exact&draft=lookup``, flags without
    their dashes."""
    options = parser("target local", "", "")
    for each in flags(*KINDS):
        add(options, each.metadata["flag"], default=None)
    add(options, "--ctx")
    options.add_argument("--sessions", type=integer())
    return options.parse([f"--{part}" for part in query.split("&") if part])


def _given(args: Namespace, kind: str) -> dict[str, Any]:
    """Return the options of this kind of target for which the command line has values."""
    values = {OPTIONS.get(flag, flag): getattr(args, flag, None) for flag in FLAGS.get(kind, ())}
    return {name: value for name, value in values.items() if value is not None}


def report_notes(prog: str, target: Target) -> list[str]:
    """Print the target's notes on its answers to stderr; return them."""
    notes = target.notes()
    for note in notes:
        say(prog, note)
    return notes


def finish(result: dict[str, Any], as_json: bool, table: str) -> None:
    """Print a result on stdout: ``result`` as one line of JSON if ``as_json``, else the text ``table``."""
    if text := json.dumps(result, ensure_ascii=False) if as_json else table:
        print(text)
    sys.stdout.flush()


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a plain table of headings ``head`` and rows ``body``, with numbers aligned right; on a narrow terminal the
    last columns are dropped first."""
    cells = [[str(cell) for cell in row] for row in body]
    numbers = [all(row[i][:1] in "0123456789+-." for row in cells) for i in range(len(head))]
    specs = [
        Column(name, max(0, i - 1), least=None if i and numbers[i] else 8, right=numbers[i])
        for i, name in enumerate(head)
    ]
    return fitted(specs, cells, stdout_width())
