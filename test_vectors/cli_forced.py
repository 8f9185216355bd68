"""``ds4-vectors check --teacher-forced``: judge what an engine committed greedily."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds4ref.console.common import Progress, atomic_output, check_output
from ds4ref.console.tool import finish, report_notes, rows, target_of
from ds4ref.errors import TargetError, UsageError
from ds4ref.runs.store.rows import vector_row
from ds4ref.targets import Ability, Prompt, Target
from ds4ref.targets.local import LocalTarget

from .committed import Answer, ask, force
from .junit import report
from .record import describe, keep, opened, text_digest
from .verdicts import DEFAULT_FLOOR, CaseResult, floor_of, forced_case
from .verifier import Judgement, weigh

SHOWN = 10
"""Widest gaps that are listed."""


@dataclass(frozen=True)
class Question:
    """A prompt to ask, with the context to ask for, in tokens."""

    prompt: Prompt
    ctx: int


def check_committed(
    args: Namespace, argv: Sequence[str], asked: Mapping[str, Question], answers: Sequence[Answer]
) -> int:
    """Judge ``answers``, or those of the target --committed-by to the questions ``asked``; return the exit code."""
    known = list(asked) or [answer.id for answer in answers]
    unknown = set(args.only) - set(known)
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    for file in (args.junit, args.out):
        if file:
            check_output(file)
    with opened(args) as store, target_of(args, args.target) as judge:
        judge.require(Ability.SCORE, needed_for="check --teacher-forced")
        floor = DEFAULT_FLOOR
        if args.committed_by:
            with target_of(args, args.committed_by) as engine:
                answers = _asked(args, engine, judge, asked)
                floor = max(floor_of(engine), floor_of(judge))
                report_notes("ds4-vectors", engine)
        answers = [answer for answer in answers if not args.only or answer.id in args.only]
        floor = floor if args.floor is None else args.floor
        results = _forced(judge, answers, floor)
        report_notes("ds4-vectors", judge)
        facts = {**describe(judge, store), "committed_by": args.committed_by, "floor": floor}
        stored = [vector_row(r.to_json(), [r.id] if r.failed else []) for r in results]
        texts = [text for a in answers for text in (a.id, a.prompt.system, a.prompt.user or a.prompt.text or "")]
        label = args.label or (args.path[0] if args.path else str(args.committed_by))
        keep(store, ["check", *argv], facts, stored, prompt_sha256=text_digest(texts), label=label)
    judgement = weigh(results, floor, {a.id: a.passes for a in answers if a.passes}, args.floor is not None)
    failed = [r.id for r in results if r.failed]
    passed = judgement.verdict == "right" and not failed
    source = args.path[0] if args.path else None
    result: dict[str, Any] = {
        "path": source, "committed_by": args.committed_by, "target": args.target, "floor": floor,
        "cases": len(results), "failed": failed, "passed": passed, **judgement.to_json(),
    }  # fmt: skip
    if args.out:
        with atomic_output(args.out) as out:
            out.write((json.dumps({**result, "results": [r.to_json() for r in results]}, indent=1) + "\n").encode())
    if args.junit:
        with atomic_output(args.junit) as out:
            out.write(report(results, "ds4-vectors"))
    finish(result, args.json, _table(results, judgement))
    return 0 if passed else 1


def _asked(args: Namespace, engine: Target, judge: Target, asked: Mapping[str, Question]) -> list[Answer]:
    """Ask for every answer, with log probabilities only if the judge cannot cut the text into tokens by itself."""
    chosen = {name: question for name, question in asked.items() if not args.only or name in args.only}
    answers: list[Answer] = []
    with Progress("asking") as progress:
        for name, question in chosen.items():
            progress(len(answers), len(chosen))
            with_tokens = question.prompt.text is None and not isinstance(judge, LocalTarget)
            answers.append(ask(engine, name, question.prompt, args.tokens, args.ctx or question.ctx, with_tokens))
    return answers


def _forced(judge: Target, answers: Sequence[Answer], floor: float) -> list[CaseResult]:
    results: list[CaseResult] = []
    with Progress("forcing") as progress:
        for answer in answers:
            progress(len(results), len(answers))
            begun = time.monotonic()
            try:
                result = forced_case(answer.id, force(judge, answer), floor)
            except TargetError as error:
                result = CaseResult(answer.id, "error", reason=str(error))
            result.seconds = time.monotonic() - begun
            results.append(result)
    return results


def _table(results: Sequence[CaseResult], judgement: Judgement) -> str:
    table, gaps = [], []
    for r in results:
        off = [step for step in r.steps if step.verdict in ("flip", "mismatch")]
        gaps += [(step.lead or 0.0, r.id, step) for step in off]
        best = sum(step.verdict == "match" for step in r.steps)
        worst = max((step.lead or 0.0 for step in off), default=0.0)
        table.append((r.id, r.verdict, f"{best}/{len(r.steps)}", f"{worst:.3g}", f"{r.noise:.3g}"))
    lines = [rows(("case", "verdict", "best", "worst gap", "floor"), table)]
    lines += [f"{r.id}: {r.verdict}: {r.reason}" for r in results if r.reason]
    gaps.sort(key=lambda gap: -gap[0])
    for gap, name, step in gaps[:SHOWN]:
        committed, best_ = (raw.decode("utf-8", "replace") for raw in (step.expected, step.got or b""))
        least = "at least " if step.margin is None else ""
        lines.append(
            f"{name} token {step.index}: {step.verdict}: {committed!r}, best is {best_!r}, gap {least}{gap:.3g}"
        )
    if len(gaps) > SHOWN:
        lines.append(f"... and {len(gaps) - SHOWN} more tokens below the best (-o FILE lists all)")
    return "\n".join([*lines, f"{judgement.verdict}: {judgement.says}"])
