"""``ds4-vectors check``: compare an engine with recorded vectors."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ds4ref.console.common import Progress, atomic_output, check_output
from ds4ref.console.flags import add
from ds4ref.console.options import choice, integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import UsageError
from ds4ref.runs import shards
from ds4ref.runs.store.rows import vector_row
from ds4ref.targets import Target

from .capture import number_text
from .cases import read_cases, refuse_other_checkpoint, selected, single_path
from .forced import Committed
from .junit import write_results
from .record import PROG, add_store, describe, keep, opened, text_digest
from .verdicts import PROFILES, CaseResult, check_case

TOOL, RESULTS = "check", "results.json"


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors check PATH``; return the exit code."""
    flags = parser(
        "ds4-vectors check",
        "Compare an engine with recorded vectors, step by step. Exit 1 if a case fails. With --teacher-forced: is each "
        "token that another engine chose greedily, speculative or not, the target's best token?",
        "PATH [options]",
        "vectors/mine --target local:model.gguf --junit report.xml",
        "--teacher-forced --committed-by http://127.0.0.1:8080/v1 -n 200 --target local:model.gguf",
        'tests/test-vectors/official.vec --profile ds4 --target command:"./ds4 -m model.gguf"',
    )
    flags.add_argument("path", nargs="*", metavar="PATH", help="a directory of vectors, or official.vec")
    flags.add_argument("--profile", metavar="NAME", type=choice(*PROFILES), default="margin",
                       help="margin: judge by logprob margins; ds4: ds4's own rule (margin)")  # fmt: skip
    flags.add_argument(
        "--floor", metavar="NATS", type=number(0, 100), help="differences in nats to ignore as rounding (by mode)"
    )
    add(flags, "--only", metavar="ID", action="append", default=[], help="check only this case; repeatable")
    flags.add_argument("--allow-partial", action="store_true", help="accept a partial capture")
    flags.add_argument("--teacher-forced", action="store_true",
                       help="check that every greedily decoded token in PATH is the best of --target local; finds "
                       "faulty speculative decoding")  # fmt: skip
    flags.add_argument(
        "--committed-by",
        metavar="SPEC",
        help="with --teacher-forced: ask this target for answers instead of reading PATH",
    )
    add(
        flags,
        "--prompts",
        help='with --committed-by: prompts as JSON lines {"id": ..., "prompt": ...} (four of our own)',
    )
    add(flags, "--tokens", type=integer(1, 1 << 20), default=200, help="longest answer to ask for (200)")
    flags.add_argument("--junit", metavar="FILE", help="also write JUnit XML")
    add(flags, "--output", "--out", dest="out", help="also write every step as JSON")
    add(flags, "--shard")
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    for file in (args.junit, None if args.shard else args.out):
        if file:
            check_output(file)
    check = Committed(args) if args.teacher_forced else Recorded(args)
    results: list[CaseResult] = []
    with ExitStack() as stack:
        share = None
        if args.shard is not None:
            share = stack.enter_context(_shared(args, check))
            if share.done:
                finish({"folder": str(share.path), "complete": True}, args.json, f"{share.path}: nothing to do")
                return 0
        store, target = stack.enter_context(opened(args)), stack.enter_context(target_of(args, args.target))
        progress = stack.enter_context(Progress("checking"))
        refuse_other_checkpoint(args.path, target)
        begun = time.monotonic()
        for result in check.results(target):
            now = time.monotonic()
            result.seconds, begun = now - begun, now
            results.append(result)
            progress(len(results), max(len(check.texts) // 3, len(results)))
        progress.clear()
        report_notes(PROG, target)
        kept = [vector_row(r.to_json(), [r.id] if r.failed else []) for r in results]
        keep(store, ["check", *argv], describe(target, store) | check.facts, kept,
             prompt_sha256=text_digest(check.texts), label=args.label or check.label)  # fmt: skip
    passed, fields, table = check.summary(results)
    whole: dict[str, Any] = {"path": args.path[0] if args.path else None, "target": args.target, "cases": len(results),
                             "failed": [r.id for r in results if r.failed], "passed": passed, **fields}  # fmt: skip
    write_results(args, whole, results)
    if share is not None:
        share.finish()
    finish(whole, args.json, table)
    return 0 if passed else 1


@contextmanager
def _shared(args: Namespace, check: Recorded | Committed) -> Iterator[shards.ShardFolder]:
    """Context manager: the folder of a shard of the check, whose cases and output file become the shard's."""
    if not isinstance(check, Recorded) or not args.out or args.junit:
        raise UsageError("--shard needs -o FOLDER, which all shards share; no --junit and no --teacher-forced")
    plan = {"profile": args.profile, "floor": args.floor, "texts": text_digest(check.texts)}
    units = [item.case.id for item in check.cases]
    with shards.work(args.out, args.shard, TOOL, plan, units) as folder:
        args.out, args.no_store, args.store = str(folder.path / RESULTS), True, None
        check.cases = args.shard.mine(check.cases)
        yield folder


def merged(folder: str, output: str) -> dict[str, Any]:
    """Write the results of all shards below ``folder`` to the file ``output`` as the whole check would have; return
    them without their steps."""
    folders = shards.read(folder, TOOL)
    parts = [json.loads((each.path / RESULTS).read_bytes()) for each in folders]
    results = {result["id"]: result for part in parts for result in part["results"]}
    ordered = shards.in_order(folders, results)
    verdicts = [result["verdict"] for result in ordered]
    failed = [name for part in parts for name in part["failed"]]
    compared = any(step["verdict"] != "incomparable" for result in ordered for step in result["steps"])
    whole = {**parts[0], "cases": len(ordered), "failed": [each["id"] for each in ordered if each["id"] in failed],
             "passed": not failed and compared, "verdicts": {v: verdicts.count(v) for v in dict.fromkeys(verdicts)},
             "results": ordered}  # fmt: skip
    with atomic_output(output) as out:
        out.write((json.dumps(whole, indent=1) + "\n").encode())
    return {key: value for key, value in whole.items() if key != "results"}


class Recorded:
    """The check of a target against recorded vectors, without --teacher-forced.

    texts  case ids and prompts, whose digest identifies the prompts in the run store
    label  default label of the run in the run store
    """

    def __init__(self, args: Namespace):
        if args.committed_by or args.prompts:
            raise UsageError("--committed-by and --prompts need --teacher-forced")
        path = single_path(args.path, "vectors to check against")
        self.args, self.label = args, Path(path).stem
        self.cases = selected(read_cases(path, args.allow_partial), args.only, lambda item: item.case.id)
        self.texts = [text for item in self.cases for text in (item.case.id, item.system, item.prompt)]
        self.facts = {"profile": args.profile, "floor": args.floor}

    def results(self, target: Target) -> Iterator[CaseResult]:
        """Yield the comparison of each case."""
        for item in self.cases:
            yield check_case(target, item.chat, item.case, ctx=item.ctx, profile=self.args.profile,
                             floor=self.args.floor, divergence=item.divergence)  # fmt: skip

    def summary(self, results: Sequence[CaseResult]) -> tuple[bool, dict[str, Any], str]:
        """Return whether the check passed, the JSON object, and the table."""
        failed = any(r.failed for r in results)
        # a check in which no step could be compared does not pass
        passed = not failed and any(step.verdict != "incomparable" for r in results for step in r.steps)
        counts = {v: sum(r.verdict == v for r in results) for v in dict.fromkeys(r.verdict for r in results)}
        nothing = "" if passed or failed else "\nnot passed: no step could be compared"
        return passed, {"profile": self.args.profile, "verdicts": counts}, _table(results) + nothing


def _table(results: Sequence[CaseResult]) -> str:
    """Return the report as text: a row per case, then the reasons of all verdicts but matches."""
    table = []
    for r in results:
        worst = max((s.margin for s in r.steps if s.margin is not None), default=None)
        deltas = [abs(s.delta) for s in r.steps if s.delta is not None]
        kls = [s.kl for s in r.steps if s.kl is not None]
        hits = sum(s.verdict == "match" for s in r.steps)
        numbers = (worst, max(deltas, default=None), max(kls, default=None), r.noise)
        table.append((r.id, r.verdict, f"{hits}/{len(r.steps)}", *map(number_text, numbers)))
    lines = [rows(("case", "verdict", "match", "margin", "max delta", "max KL", "noise"), table)]
    for r in results:
        lines += [f"{r.id}: {r.verdict}: {r.reason}"] if r.reason else []
        lines += [f"{r.id} step {s.index}: {s.verdict}: {s.why}" for s in r.steps if s.verdict != "match" and s.why]
    return "\n".join(lines)
