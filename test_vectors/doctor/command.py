"""The command ``ds4-vectors doctor``: examine an engine."""

from __future__ import annotations

import json
import os
import shlex
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence

from ds4ref.console.flags import add
from ds4ref.console.model import engine_options
from ds4ref.console.options import number, parsed
from ds4ref.console.page import line, without
from ds4ref.console.tool import add_target, finish, parser, target_of
from ds4ref.errors import UsageError
from ds4ref.targets.local import LocalTarget

from ..finding import OPEN
from .examination import Examination

PROG = "ds4-vectors doctor"
SAYS = """Examine an engine: pre-flight, tokenizer, template, the numbers and their diagnosis, run to run, prefill
against decode, one request against many, long context. Every stage says what it found, what it could not test and what
to do next; -o DIR writes a report to attach to an issue (doctor.html, doctor.md, doctor.json).

The target should have loaded the diagnostic model (ds4-vectors model prints its file) or the one given with -m.
Exit code 0: nothing wrong found in what could be tested. 1: something is wrong or unexplained, a check hit an error,
or the logits could not be compared. 2: usage. 130: Ctrl-C, 143: SIGTERM; the report covers the finished checks."""


def stages(text: str) -> list[str]:
    """Parse a comma-separated list of stages; ArgumentTypeError for an unknown one."""
    from .run import NAMES

    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ArgumentTypeError(f"unknown stage {unknown[0] if unknown else text!r}: choose from {', '.join(NAMES)}")
    return names


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors doctor TARGET``; return the exit code."""
    flags = parser(PROG, SAYS, "TARGET [-m MODEL.gguf] [-o DIR] [options]",
                   "http://127.0.0.1:8080/v1 -o report      (a server that has loaded the diagnostic model)",
                   "http://127.0.0.1:8080/v1 -m model.gguf --id-prompts",
                   "local:model.gguf --quick",
                   "'command:./ds4 -m model.gguf' -m model.gguf",
                   "local --only numbers,ways --long")  # fmt: skip
    flags.add_argument("spec", nargs="*", metavar="TARGET",
                       help="local[:MODEL.gguf], http(s)://HOST/v1 or command:BINARY ARGS")  # fmt: skip
    add(flags, "--model", help="model the target has loaded (a local target's own, else the diagnostic model)")
    add(
        flags,
        "--output",
        "--out",
        metavar="DIR",
        dest="out",
        help="write doctor.html, doctor.md and doctor.json there",
    )
    add(flags, "--only", metavar="A,B", type=stages, default=[], help="run only these stages, after pre-flight")
    flags.add_argument("--quick", action="store_true", help="fewer and shorter requests, no long context")
    flags.add_argument(
        "--long", action="store_true", help="also test long prompts: chunk boundaries at 2048, recall in 110 KB"
    )
    add(
        flags,
        "--budget",
        type=number(1, 1000000.0),
        default=300.0,
        help="time limit per stage in seconds; unfinished checks are reported as not run (300)",
    )
    add(flags, "--json")
    add_target(flags, default=None)
    flags.set_defaults(attempts=3)
    args = parsed(flags, argv)
    if args is None:
        return 0
    specs = [*args.spec, *([args.target] if args.target else [])]
    if not specs:
        raise UsageError(
            "no target given. Use http://HOST:PORT/v1 for a server (load the file that `ds4-vectors model` "
            "prints there), local:MODEL.gguf for this engine, 'command:./ds4 -m MODEL.gguf' for a ds4 binary"
        )
    if len(specs) > 1:
        raise UsageError(f"expected one target, not {len(specs)}; quote a command with its arguments: "
                         f"'command:./ds4 -m MODEL.gguf'")  # fmt: skip
    if args.quick and args.long:
        raise UsageError("--quick and --long cannot be combined")
    if args.out:
        from .page import prepare

        prepare(args.out)
    examination = _examined(args, specs[0], shlex.join([*PROG.split(), *argv]))
    secret = os.environ.get(args.key_env, "").strip()
    written = []
    if args.out:
        from .page import write

        written = write(examination, args.out, secret)
    table = [(stage.title, stage.outcome.words, line(stage.says)) for stage in examination.stages]
    unseen = [f"not tested   {stage.title}: {line(check.name)}: {line(check.says)}"
              for stage, check in examination.checks(*OPEN)]  # fmt: skip
    lines = [examination.verdict, "", _left_aligned(("stage", "result", "finding"), table), "", *unseen,
             *(f"next         {line(step)}" for step in examination.steps[:5]),
             *(f"report       {path}" for path in written)]  # fmt: skip
    whole = json.dumps({**examination.summary(), "files": written}, ensure_ascii=False)
    finish(json.loads(without(whole, secret)), args.json, without("\n".join(lines), secret))
    if examination.signum:
        return 128 + examination.signum
    return 0 if examination.passed else 1


def _examined(args: Namespace, spec: str, command: str) -> Examination:
    """Open target and model, and examine the target.

    spec     the target, as on the command line
    command  command line to state in the report
    """
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    from .case import ExamContext
    from .run import examine

    with target_of(args, spec) as target:
        own = target.engine.path if isinstance(target, LocalTarget) else diagnostic_path()
        options = engine_options(args)
        options.pop("numerics", None)  # of the target
        with Engine.open(args.model or own, **options) as engine:
            case = ExamContext(target, engine, quick=args.quick, long=args.long, budget=args.budget, spec=spec)
            return examine(case, args.only, command)


def _left_aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table with left-aligned columns."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head) - 1)] + [len(head[-1])]
    lines = [head, ["-" * width for width in widths], *body]
    return "\n".join("  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in lines)
