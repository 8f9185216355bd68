"""The command ``ds4-vectors doctor``: examine an engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import textwrap
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ds4ref.console.common import say
from ds4ref.console.flags import add
from ds4ref.console.model import engine_options
from ds4ref.console.options import number, parsed, printable
from ds4ref.console.page import line, without
from ds4ref.console.tables import stdout_width
from ds4ref.console.tool import add_target, finish, parser, target_of
from ds4ref.errors import DataError, Ds4Error, UsageError
from ds4ref.runs import shards
from ds4ref.targets.local import LocalTarget

from ..finding import OPEN
from ..record import add_store, opened
from . import changes
from .examination import Examination, failed
from .matrix import matrix, steps_of
from .page import prepare, write
from .saved import load, save, to_continue

if TYPE_CHECKING:
    from ds4ref.runs.store import Store

PROG = "ds4-vectors doctor"
SAYS = """Examine an engine: pre-flight, tokenizer, template, the numbers and their diagnosis, run to run, prefill
against decode, one request against many, long context. Every stage says what it found, what it could not test and what
to do next; -o DIR writes a report to attach to an issue (doctor.html, doctor.md, doctor.json).

The target should have loaded the diagnostic model (ds4-vectors model prints its file) or the one given with -m.
Exit code 0: nothing wrong found in what could be tested. 1: something is wrong or unexplained, a check hit an error,
or the logits could not be compared. 2: usage. 130: Ctrl-C, 143: SIGTERM; the report covers the finished checks."""


TOOL = "doctor"
QUICK = 600.0
"""Default of --total with --quick, in seconds."""


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
    flags = parser(PROG, SAYS, "TARGET ... [-m MODEL.gguf] [-o DIR] [options]",
                   "http://127.0.0.1:8080/v1 -o report      (a server that has loaded the diagnostic model)",
                   "http://127.0.0.1:8080/v1 -m model.gguf --id-prompts",
                   "http://one:8080/v1 http://two:8080/v1 -o report      (side by side)",
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
    add(flags, "--quick")
    flags.add_argument(
        "--long", action="store_true", help="also test long prompts: chunk boundaries at 2048, lengths to 64,000 tokens"
    )
    add(
        flags,
        "--budget",
        type=number(1, 1000000.0),
        default=300.0,
        help="time limit per stage in seconds; unfinished checks are reported as not run (300)",
    )
    flags.add_argument("--total", metavar="S", type=number(1, 1e6),
                       help="time limit of the whole examination in seconds; less valuable stages are left out "
                       "(600 with --quick)")  # fmt: skip
    add(flags, "--shard", help="examine only this share of the targets; auto: by Slurm, auto/N: Kubernetes")
    add(flags, "--json")
    add_store(flags)
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
    if len(specs) > 1 and not all(re.match("(local|command:|https?:)", spec) for spec in specs):
        raise UsageError(f"not a target: {printable(specs[-1])}; quote a command with its arguments: "
                         f"'command:./ds4 -m MODEL.gguf'")  # fmt: skip
    if args.quick and args.long:
        raise UsageError("--quick and --long cannot be combined")
    if args.total is None and args.quick:
        args.total = QUICK
    with ExitStack() as stack:
        share = None
        if args.shard is not None:
            if not args.out:
                raise UsageError("--shard needs -o DIR, which all shards share")
            share = stack.enter_context(shards.work(args.out, args.shard, TOOL, _plan(args), specs))
            args.out, specs = str(share.path), share.mine
            if share.done or not specs:
                share.finish()
                say(PROG, f"{share.path}: this shard is finished")
                return 0
        code = _run(args, specs, shlex.join([*PROG.split(), *argv]))
        if share is not None and code < 128:
            share.finish()
    return code


def merge(folder: str, output: str, as_json: bool) -> int:
    """Join the reports of all shards below ``folder`` into one in ``output``; return the exit code."""
    folders = shards.read(folder, TOOL)
    units = [name for each in folders for name in each.mine]
    examinations = [e for each in folders if each.mine for e in load(str(each.path))]
    if len(examinations) != len(units):
        raise DataError(f"{folder}: {len(examinations)} reports of {len(units)} targets; run the shards again")
    by_name = list(zip(units, examinations, strict=True))
    ordered = []
    for name in folders[0].entry["units"]:  # a target may be named twice
        ordered.append(by_name.pop(next(i for i, (each, _) in enumerate(by_name) if each == name))[1])
    prepare(output)
    return _report(ordered, write(ordered, output), as_json, "")


def _plan(args: Namespace) -> dict[str, object]:
    """Return what must be equal in all shards of an examination."""
    return {name: getattr(args, name) for name in ("model", "quick", "long", "only", "total", "budget")}


def _run(args: Namespace, specs: Sequence[str], command: str) -> int:
    """Examine the targets, write the report and print it; return the exit code."""
    if args.out:
        prepare(args.out)
    secret = os.environ.get(args.key_env, "").strip()
    with opened(args) as store:
        examinations = _examined(args, specs, command, store, secret)
    return _report(examinations, write(examinations, args.out, secret) if args.out else [], args.json, secret)


def _report(examinations: list[Examination], written: list[str], as_json: bool, secret: str) -> int:
    """Print what was found, without the API key ``secret``; return the exit code. ``written``: files of the report."""
    shown = [_shown(e) if len(examinations) == 1 else _labelled("", f"{at}. {e.target}: {e.verdict}")
             for at, e in enumerate(examinations, 1)]  # fmt: skip
    if len(examinations) > 1:
        heads = ("check", *(str(at) for at in range(1, len(examinations) + 1)), "")
        table = [(line(row.name)[:40], *row.results, "differ" if row.differ else "") for row in matrix(examinations)]
        shown += ["", _left_aligned(heads, table), "", *(_labelled("next", step) for step in steps_of(examinations))]
    shown += [f"report       {path}" for path in written]
    result = examinations[0].summary()
    if len(examinations) > 1:
        result = {"passed": all(e.passed for e in examinations), "complete": all(e.complete for e in examinations),
                  "servers": [e.summary() for e in examinations]}  # fmt: skip
    whole = json.dumps({**result, "files": written}, ensure_ascii=False)
    finish(json.loads(without(whole, secret)), as_json, without("\n".join(shown), secret))
    signum = next((e.signum for e in examinations if e.signum), 0)
    return 128 + signum if signum else int(not all(e.passed for e in examinations))


def _examined(
    args: Namespace, specs: Sequence[str], command: str, store: Store | None, secret: str
) -> list[Examination]:
    """Examine the targets one after another; Ctrl-C ends with those examined so far.

    command  command line to state in the report
    secret   API key, kept out of the report
    """
    examinations: list[Examination] = []
    earlier = load(args.out) if args.out else []
    for at, spec in enumerate(specs):
        if len(specs) > 1:
            say(PROG, f"target {at + 1} of {len(specs)}: {spec}")
        try:
            examinations.append(_examine_one(args, spec, command, store, secret, examinations, earlier))
        except Ds4Error as error:
            if len(specs) == 1 or isinstance(error, UsageError):
                raise
            examinations.append(failed(spec, command, str(error)))
        if examinations[-1].signum:
            break
    return examinations


def _examine_one(
    args: Namespace, spec: str, command: str, store: Store | None, secret: str,
    before: list[Examination], report: list[Examination],
) -> Examination:  # fmt: skip
    """Open target and model, and examine the target.

    before  the examinations of earlier targets, to save with it
    report  those of the report that was there when the command began
    """
    from ds4ref.engine import Engine
    from ds4ref.nano.diagnostic import diagnostic_path

    from .case import ExamContext
    from .run import examine, form_of

    with target_of(args, spec) as target:
        own = target.engine.path if isinstance(target, LocalTarget) else diagnostic_path()
        options = engine_options(args)
        options.pop("numerics", None)  # of the target
        with Engine.open(args.model or own, **options) as engine:
            case = ExamContext(target, engine, quick=args.quick, long=args.long, budget=args.budget, spec=spec)
            earlier, says = to_continue(report, form_of(case, args.only))
            if says:
                say(PROG, says)
            if earlier is not None and earlier.finished:
                return earlier

            def keep_so_far(examination: Examination) -> None:
                if args.out:
                    save(args.out, [*before, examination], secret)

            examination = examine(case, args.only, command, total=args.total, earlier=earlier, save=keep_so_far)
    if store is not None:
        examination.changes = changes.since(store, examination)
        number = changes.keep(store, examination, shlex.split(command), args.label or "", secret)
        say(PROG, f"saved as run {number}; {store.show(number)}")
    return examination


def _shown(e: Examination) -> str:
    """Return an examination as text: the verdict, the answers, the stages, what changed and what to do."""
    causes = [(a.cause, a.answer, line(a.says)) for a in e.answers]
    table = [(s.title, s.outcome.words, line(s.says)) for s in e.stages if s.name in e.evidence]
    unseen = [_labelled("not tested", f"{stage.title}: {check.name}: {check.says}")
              for stage, check in e.checks(*OPEN) if "(--only)" not in check.says]  # fmt: skip
    changed = [_labelled("changed", f"{c['stage']}, {c['check']}: {c['field']} {c['was']}, now {c['now']}")
               for c in e.changes.get("checks", ())]  # fmt: skip
    lines = [_labelled("", e.verdict), "", _left_aligned(("is it the", "answer", "why"), causes), "",
             *(_labelled("next", step) for step in e.steps[:5]), *changed, "",
             _left_aligned(("stage", "result", "finding"), table), "", *unseen]  # fmt: skip
    return "\n".join(lines)


def _labelled(label: str, text: str) -> str:
    """Return a line that begins with a label, "" for none; on a terminal it is wrapped to its width."""
    start = f"{label:<13}" if label else ""
    width = min(stdout_width() - 1, 10_000)
    return "\n".join(textwrap.wrap(start + line(text), width, subsequent_indent=" " * len(start),
                                   break_on_hyphens=False))  # fmt: skip


def _left_aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table with left-aligned columns; on a terminal the last one is wrapped to its width."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head) - 1)] + [len(head[-1])]
    room = max(24, stdout_width() - sum(widths[:-1]) - 2 * len(widths) + 1)
    lines = []
    for row in [head, ["-" * width for width in widths], *body]:
        first, *more = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        for cells in [(*row[:-1], first), *((*[""] * len(row[:-1]), each) for each in more)]:
            lines.append("  ".join(cell.ljust(n) for cell, n in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(lines)
