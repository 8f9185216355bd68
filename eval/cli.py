"""Entry point of ``ds4-eval``: run, report, exit code.

ds4-eval -m MODEL.gguf -o run.jsonl
ds4-eval compare before.jsonl after.jsonl
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Interrupt, run, say
from ds4ref.console.options import parsed
from ds4ref.errors import UsageError
from ds4ref.runs import shards

from .log import Log, Writer, header_of
from .options import ENDINGS, PROG, Job, build_parser, read_job
from .plan import Key, keys

if TYPE_CHECKING:
    from ds4ref.targets import Target

    from .runner import Event, Runner

COMMANDS = {"compare": "compare_command", "merge": "merge_command", "view": "view"}
"""Function of each subcommand, in the module of its name."""


def body(argv: Sequence[str]) -> int:
    """Run the subcommand that ``argv`` names; without one, ask the questions. Return the exit code."""
    if argv and argv[0] in COMMANDS:
        code: int = getattr(import_module(f".{argv[0]}", __package__), COMMANDS[argv[0]])(argv[1:])
        return code
    args = parsed(build_parser(), argv)
    if args is None:
        return 0
    if args.replay is not None:
        from .replay import replay

        return replay(args)
    if args.speed is not None:
        raise UsageError("--speed is for --replay LOG")
    job = read_job(args)
    return _list(job) if args.list else evaluate(job, args, [PROG, *argv])


# ------------------------------------------------------------------------------------------------------- a run


def evaluate(job: Job, args: Namespace, command: Sequence[str]) -> int:
    """Ask the questions whose answers the log lacks, print the report and store the run; return the exit code.
    ``command``: the command line, to be recorded."""
    from ds4ref.console.tool import target_of

    from .plain import follow
    from .runner import Runner, missing

    error: BaseException | None = None
    with ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt(*ENDINGS))
        sessions = {"sessions": args.concurrency} if args.concurrency > 1 else {}
        target = stack.enter_context(target_of(args, job.spec, **sessions))
        if args.shard is not None:
            job.path.parent.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context(_log(job, target, command))
        wanted, share = keys(job.asked, job.epochs), None
        if args.shard is not None:
            from . import merge

            share = stack.enter_context(shards.work(args.output, args.shard, merge.TOOL, merge.plan_of(log.header),
                                                    [merge.unit(key) for key in wanted]))  # fmt: skip
            wanted, args.no_store = args.shard.mine(wanted), True
        todo = missing(log, wanted, args.retry_incomplete)
        ctx = args.ctx or _ctx(target, job)
        _announce(job, target, len(wanted) - len(todo), len(wanted))

        def make(listen: Callable[[Event], Any]) -> Runner:
            return Runner(
                target, log, todo, settings=job.settings, questions=job.pack.questions, listen=listen,
                at_once=args.concurrency, ctx=ctx,
            )  # fmt: skip

        try:
            follow(make, job.asked, job.epochs, log, title=f"{job.pack.name} on {target.name}", interrupt=interrupt,
                   screen=not (args.plain or args.json), out=sys.stderr if args.json else sys.stdout,
                   total=len(wanted), done=len(wanted) - len(todo))  # fmt: skip
        except BaseException as failure:  # report the samples so far in any case
            error = failure
        for note in target.notes():
            say(PROG, note)
        code = _conclude(job, args, log, wanted, interrupt, error)
        if share is not None and not missing(log, wanted):
            share.finish()
        return code


def _log(job: Job, target: Target, command: Sequence[str]) -> Writer:
    """Create the log of a run, or open it again if the run is resumed."""
    from ds4ref.runs.provenance import stamp
    from ds4ref.targets.openai import HttpTarget

    identity = target.identity()  # before ``server``: it may have to ask the server for its model
    server = {"server": target.server()} if isinstance(target, HttpTarget) else {}
    facts = {**stamp(command), "selection": job.selection, **server}
    header = header_of(job.pack, job.settings, job.epochs, identity, facts)
    return Writer.resume(job.path, header) if job.goes_on else Writer.create(job.path, header)


def _ctx(target: Target, job: Job) -> int | None:
    """Return the context in tokens that the longest prompt and its answer need; None unless the target is local."""
    from ds4ref.targets.local import LocalTarget

    from .prompt import prompt

    if not isinstance(target, LocalTarget):
        return None
    longest = max(len(target.encode(prompt(q, job.settings.think, job.settings.system))) for q in job.asked)
    return longest + job.settings.tokens + 2


def _announce(job: Job, target: Target, done: int, total: int) -> None:
    from ds4ref.targets import Ability

    say(PROG, f"{total} samples of pack {job.pack.name}, {done} of them done; log: {job.path}")
    thinks = any(job.settings.thinking(q) != "none" for q in job.asked)
    if thinks and not target.can(Ability.GUIDE):
        limit = job.settings.tokens
        say(PROG, f"{target.name} cannot be steered: the model ends its thinking itself, or at {limit} tokens")


# ----------------------------------------------------------------------------------------------------- the end


def _conclude(
    job: Job, args: Namespace, log: Writer, wanted: Sequence[Key], interrupt: Interrupt, error: BaseException | None
) -> int:
    """Print the report, add the run to the store and return the exit code; raise ``error``, which ended the run early,
    unless it was an interrupt. wanted: the samples of the whole run."""
    from ds4ref.console.tables import stdout_width

    from .keep import notes as notes_of
    from .report import report
    from .runner import missing
    from .scores import score_text, summary

    whole = Log(str(log.path), log.header, [log.samples[key] for key in wanted if key in log.samples])
    scores, left = summary(whole), len(missing(log, wanted))
    status = "complete" if not left and error is None else "stopped" if error is None else "failed"
    number = _keep(args, whole, status)
    notes = notes_of(whole)
    for note in notes:
        log.note(note)
    if args.json:
        facts = {
            "pack": job.pack.name, "version": job.pack.header.version, "asked": len(job.asked), "epochs": job.epochs,
            "log": whole.path, "left": left, "run": number, "notes": notes,
        }  # fmt: skip
        print(json.dumps({**facts, **scores}, ensure_ascii=False))
        for note in notes:
            say(PROG, note)
    else:
        print(report(whole, stdout_width(120)))
        print(f"log: {job.path}" + (f" (saved as run {number})" if number is not None else ""))
    sys.stdout.flush()
    if left:
        say(PROG, f"{left} of {len(wanted)} samples are missing: {PROG} --resume {job.path} asks them")
    if error is not None and not (interrupt.requested and isinstance(error, (KeyboardInterrupt, SystemExit))):
        raise error
    if interrupt.requested:
        return interrupt.exit_code
    if scores["failed"]:
        say(PROG, f"{scores['failed']} samples failed: --resume {job.path} --retry-incomplete asks them again")
        return 1
    if left:
        return 1
    if args.fail_below is not None and (scores["score"] is None or 100 * scores["score"] < args.fail_below):
        say(PROG, f"{score_text(scores)} is below {args.fail_below:g} %")
        return 1
    return 0


def _keep(args: Namespace, log: Log, status: str) -> int | None:
    """Add the run to the run store; return its number, None with ``--no-store`` or without samples."""
    if args.no_store or not log.samples:
        return None
    from ds4ref.runs.store import Store

    from .keep import keep

    with Store.open(args.store) as store:
        return keep(store, log, args.label or "", status=status)


def _list(job: Job) -> int:
    from ds4ref.console.tool import rows

    body = [[q.id, q.source, q.kind, q.difficulty, q.domain, q.title[:60]] for q in job.asked]
    print(rows(("id", "source", "kind", "difficulty", "domain", "question"), body))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script; return the exit code."""
    return run(PROG, body, argv)


if __name__ == "__main__":
    sys.exit(main())
