"""What commands of tools share: a parser, options that open a target, and how results are printed."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ..backends import BACKENDS, DEFAULT_BACKEND
from ..errors import UsageError
from ..numerics import MODES
from ..targets import Target, open_target
from ..targets.dialects import KINDS, PREFILLS
from .common import columns, is_tty, say
from .flags import add
from .options import Parser, choice, integer, number
from .tables import Column, fitted

UNBOUNDED = 1000
"""Columns of a table that no terminal limits."""


def parser(prog: str, description: str, usage: str, *examples: str) -> Parser:
    """A parser with the project's rules; ``usage`` and ``examples`` without the program's name."""
    lines = "\n".join(["examples:", *(f"  {prog} {example}" for example in examples)]) if examples else ""
    made = Parser(prog, usage=f"{prog} {usage}", description=description, epilog=lines, unavailable={})
    add(made, "--help")
    return made


def required(args: Namespace, *names: str) -> None:
    """UsageError for the first option that is missing."""
    for name in names:
        if getattr(args, name.replace("-", "_")) is None:
            raise UsageError(f"--{name} is needed")


def add_engine(made: Parser, numerics: str | None = None) -> None:
    """Options of a local engine."""
    add(
        made, "--backend", default=DEFAULT_BACKEND, help=f"of a local engine: {', '.join(BACKENDS)} ({DEFAULT_BACKEND})"
    )
    add(made, "--gpu-memory")
    add(made, "--numerics", default=numerics, help=f"of a local engine: {', '.join(MODES)}")
    add(made, "--threads", help="of a local engine (all cores)")


def engine_options(args: Namespace) -> dict[str, Any]:
    """What ``Engine.open`` is told of where to compute: the options of ``add_engine`` but the numerics mode."""
    return {"backend": args.backend, "threads": args.threads, "gpu_memory": args.gpu_memory}


def add_target(made: Parser, default: str | None = "local") -> None:
    """Options that open a target."""
    says = f"local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS ({default or 'none'})"
    add(made, "--target", default=default, help=says)
    add_engine(made)
    add(made, "--ctx", help="context of a local or command target, tokens")
    add(made, "--model-name")
    made.add_argument("--accept-model", metavar="NAME", action="append", default=[],
                      help="HTTP: another name under which the same model may answer")  # fmt: skip
    made.add_argument("--id-prompts", action="store_true",
                      help="HTTP: the completions endpoint takes token ids (llama-server, vLLM)")  # fmt: skip
    add(
        made,
        "--dialect",
        type=choice(*KINDS),
        help=(f"HTTP: the kind of server decides what is sent: {', '.join(KINDS)} (probe)"),
    )
    made.add_argument("--prefill", metavar="STYLE", type=choice(*PREFILLS),
                      help=f"HTTP: how an answer is gone on with: {', '.join(PREFILLS)} (the dialect's)")  # fmt: skip
    add(made, "--key-env")
    made.add_argument("--per-minute", metavar="N", type=number(0.1, 1e6), help="HTTP: most requests a minute")
    made.add_argument("--attempts", metavar="N", type=integer(1, 100), default=6, help="HTTP: tries per request (6)")
    add(made, "--timeout", help="HTTP, command: seconds (120; 3600)")


def target_of(args: Namespace, spec: str) -> Target:
    """Open ``spec`` with the options of its kind."""
    kind = spec.partition(":")[0].partition("?")[0]
    options: dict[str, Any] = {}
    if kind in ("http", "https"):
        options = {
            "model": args.model_name, "accept": args.accept_model, "prefill": args.prefill, "ids": args.id_prompts,
            "dialect": args.dialect, "key_env": args.key_env, "per_minute": args.per_minute, "attempts": args.attempts,
        }  # fmt: skip
        if args.timeout is not None:
            options["timeout"] = args.timeout
    elif kind == "command":
        options = {k: v for k, v in (("timeout", args.timeout), ("ctx", args.ctx)) if v is not None}
    elif kind == "local":
        options = engine_options(args)
        options |= {k: v for k, v in (("numerics", args.numerics), ("ctx", args.ctx)) if v is not None}
    return open_target(spec, **options)


def told(prog: str, target: Target) -> list[str]:
    """What the target has to say about its answers, also said on stderr."""
    notes = target.notes()
    for note in notes:
        say(prog, note)
    return notes


def finish(result: dict[str, Any], as_json: bool, table: str) -> None:
    """What a command found: text for people, or one line of JSON and nothing else if that was asked for."""
    text = shown(result, as_json, table)
    if text:
        print(text)
    sys.stdout.flush()


def shown(result: dict[str, Any], as_json: bool, table: str) -> str:
    """What stdout gets."""
    return json.dumps(result, ensure_ascii=False) if as_json else table


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A plain table, columns of numbers to the right. On a terminal it fits: the last columns are left out first."""
    cells = [[str(cell) for cell in row] for row in body]
    numbers = [all(row[i][:1] in "0123456789+-." for row in cells) for i in range(len(head))]
    shown = [
        Column(name, max(0, i - 1), least=None if i and numbers[i] else 8, right=numbers[i])
        for i, name in enumerate(head)
    ]
    return fitted(shown, cells, columns(sys.stdout) if is_tty(sys.stdout) else UNBOUNDED)
