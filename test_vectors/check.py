"""``ds4-vectors check``: compare an engine with recorded vectors."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import Progress, check_output
from ds4ref.console.flags import add
from ds4ref.console.options import choice, integer, number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import UsageError
from ds4ref.runs.store.rows import vector_row

from .capture import number_text
from .cases import VectorCase, read_cases, select, single_path
from .forced import check_forced
from .junit import write_results
from .record import add_store, describe, keep, opened, text_digest
from .verdicts import PROFILES, CaseResult, check_case

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors check PATH``; return the exit code."""
    flags = parser(
        "ds4-vectors check",
        "Compare an engine with recorded vectors, step by step. Exit 1 if a case fails. With --teacher-forced: is each "
        "token that another engine chose greedily, speculative or not, the target's best token?",
        "PATH [options]",
        "vectors/mine --target local:model.gguf --junit report.xml",
        "--teacher-forced answers.jsonl --target local:model.gguf",
        "--teacher-forced --committed-by http://127.0.0.1:8080/v1 -n 200 --target local:model.gguf",
        'tests/test-vectors/official.vec --profile ds4 --target command:"./ds4 -m model.gguf"',
    )
    flags.add_argument("path", nargs="*", metavar="PATH", help="a directory of vectors, official.vec, or JSON captures")
    flags.add_argument("--profile", metavar="NAME", type=choice(*PROFILES), default="margin",
                       help="margin: judge by logprob margins; ds4: ds4's own rule (margin)")  # fmt: skip
    flags.add_argument(
        "--floor", metavar="NATS", type=number(0, 100), help="differences in nats to ignore as rounding (by mode)"
    )
    add(flags, "--only", metavar="ID", action="append", default=[], help="check only this case; repeatable")
    flags.add_argument("--allow-partial", action="store_true", help="accept a partial capture")
    flags.add_argument("--teacher-forced", action="store_true",
                       help="check that every greedily decoded token in PATH (vectors, or JSON lines with text or "
                       "token ids) is the target's best; finds faulty speculative decoding")  # fmt: skip
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
    flags.add_argument("--plain-text", action="store_true", help="prompts are plain text to continue, not chats")
    flags.add_argument("--junit", metavar="FILE", help="also write JUnit XML")
    add(flags, "--output", "--out", dest="out", help="also write every step as JSON")
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    for file in (args.junit, args.out):
        if file:
            check_output(file)
    if args.teacher_forced:
        return check_forced(args, argv)
    if args.committed_by or args.prompts or args.plain_text:
        raise UsageError("--committed-by, --prompts and --plain-text need --teacher-forced")
    path = single_path(args.path, "vectors to check against")
    chosen = select(read_cases(path, args.allow_partial), args.only)
    with opened(args) as store:
        results, facts = _check_all(args, chosen, store)
        rows_ = [vector_row(r.to_json(), [r.id] if r.failed else []) for r in results]
        texts = [text for item in chosen for text in (item.case.id, item.system, item.prompt)]
        label = args.label or Path(path).stem
        keep(store, ["check", *argv], facts, rows_, prompt_sha256=text_digest(texts), label=label)
    counts = {v: sum(r.verdict == v for r in results) for v in dict.fromkeys(r.verdict for r in results)}
    failed = [r.id for r in results if r.failed]
    # a check that compared nothing has not been passed
    passed = not failed and any(step.verdict != "incomparable" for r in results for step in r.steps)
    result: dict[str, Any] = {"path": path, "target": args.target, "profile": args.profile, "cases": len(results),
                              "verdicts": counts, "failed": failed, "passed": passed}  # fmt: skip
    write_results(args, result, results)
    nothing = "" if passed or failed else "\nnot passed: no step could be compared"
    finish(result, args.json, _table(results) + nothing)
    return 0 if passed else 1


def _check_all(
    args: Namespace, chosen: Sequence[VectorCase], store: Store | None
) -> tuple[Sequence[CaseResult], dict[str, Any]]:
    results = []
    with target_of(args, args.target) as target, Progress("checking") as progress:
        for at, item in enumerate(chosen):
            progress(at, len(chosen))
            begun = time.monotonic()
            results.append(
                check_case(target, item.chat, item.case, ctx=item.ctx,
                           profile=args.profile, floor=args.floor, divergence=item.divergence)
            )  # fmt: skip
            results[-1].seconds = time.monotonic() - begun
        report_notes("ds4-vectors", target)
        return results, {**describe(target, store), "profile": args.profile, "floor": args.floor}


def _table(results: Sequence[CaseResult]) -> str:
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
