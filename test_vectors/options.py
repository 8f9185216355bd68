"""Options that several ``ds4-vectors`` commands share, and how a target is opened from them."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ds4ref.backends import BACKENDS, DEFAULT_BACKEND
from ds4ref.cli.common import say
from ds4ref.cli.options import Parser, choice, integer, number
from ds4ref.errors import UsageError
from ds4ref.numerics import MODES
from ds4ref.targets import Target, open_target
from ds4ref.targets.dialects import KINDS, PREFILLS


def parser(prog: str, description: str, usage: str, *examples: str) -> Parser:
    """A parser with the project's rules; ``usage`` and ``examples`` without the program's name."""
    lines = "\n".join(["examples:", *(f"  {prog} {example}" for example in examples)]) if examples else ""
    made = Parser(prog, usage=f"{prog} {usage}", description=description, epilog=lines, unavailable={})
    made.add_argument("-h", "--help", action="store_true", help="this text")
    return made


def parsed(made: Parser, argv: Sequence[str]) -> Namespace | None:
    """The options, or None after help was printed."""
    args = made.parse(argv)
    if args.help:
        sys.stdout.write(made.format_help())
        return None
    return args


def required(args: Namespace, *names: str) -> None:
    """UsageError for the first option that is missing."""
    for name in names:
        if getattr(args, name.replace("-", "_")) is None:
            raise UsageError(f"--{name} is needed")


def add_engine(made: Parser, numerics: str | None = None) -> None:
    """Options of a local engine."""
    made.add_argument("--backend", metavar="NAME", type=choice(*BACKENDS), default=DEFAULT_BACKEND,
                      help=f"of a local engine: {', '.join(BACKENDS)} ({DEFAULT_BACKEND})")  # fmt: skip
    made.add_argument("--numerics", metavar="MODE", type=choice(*MODES), default=numerics,
                      help=f"of a local engine: {', '.join(MODES)}")  # fmt: skip
    made.add_argument("-t", "--threads", metavar="N", type=integer(), help="of a local engine (all cores)")


def add_target(made: Parser, default: str | None = "local") -> None:
    """Options that open a target."""
    says = f"local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS ({default or 'none'})"
    made.add_argument("--target", metavar="SPEC", default=default, help=says)
    add_engine(made)
    made.add_argument("-c", "--ctx", metavar="N", type=integer(), help="context of a local or command target, tokens")
    made.add_argument("--model-name", metavar="NAME", help="HTTP: model to ask for (the server's only one)")
    made.add_argument("--accept-model", metavar="NAME", action="append", default=[],
                      help="HTTP: another name under which the same model may answer")  # fmt: skip
    made.add_argument("--id-prompts", action="store_true",
                      help="HTTP: the completions endpoint takes token ids (llama-server, vLLM)")  # fmt: skip
    made.add_argument("--dialect", metavar="KIND", type=choice(*KINDS), default="probe",
                      help=f"HTTP: the kind of server decides what is sent: {', '.join(KINDS)} (probe)")  # fmt: skip
    made.add_argument("--prefill", metavar="STYLE", type=choice(*PREFILLS),
                      help=f"HTTP: how an answer is gone on with: {', '.join(PREFILLS)} (the dialect's)")  # fmt: skip
    made.add_argument("--key-env", metavar="NAME", default="DS4_API_KEY",
                      help="HTTP: environment variable with the API key (DS4_API_KEY)")  # fmt: skip
    made.add_argument("--per-minute", metavar="N", type=number(0.1, 1e6), help="HTTP: most requests a minute")
    made.add_argument("--attempts", metavar="N", type=integer(1, 100), default=6, help="HTTP: tries per request (6)")
    made.add_argument("--timeout", metavar="S", type=number(0.1, 1e6), help="HTTP, command: seconds (120; 3600)")


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
        options = {"backend": args.backend, "threads": args.threads}
        options |= {k: v for k, v in (("numerics", args.numerics), ("ctx", args.ctx)) if v is not None}
    return open_target(spec, **options)


def told(target: Target) -> list[str]:
    """What the target has to say about its answers, also said on stderr."""
    notes = target.notes()
    for note in notes:
        say("ds4-vectors", note)
    return notes


def finish(result: dict[str, Any], as_json: bool, table: str) -> None:
    """The table for people unless only JSON is wanted, then the result as the last line of stdout."""
    if not as_json and table:
        print(table)
    print(json.dumps(result, ensure_ascii=False))
    sys.stdout.flush()


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A plain table: first column left, the others right."""
    widths = [max(len(str(row[i])) for row in (head, *body)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([line(head), line(["-" * w for w in widths]), *map(line, body)])
