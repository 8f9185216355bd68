"""``ds4-vectors check --teacher-forced``: force a judge along what an engine committed greedily.

A JSON line of a file of answers has one kind of prompt and one of answer:

    {"id": "a", "prompt": "a user message", "system": "", "answer": "text", "finish": "stop"}
    {"id": "b", "text": "plain text to continue", "answer": "text", "finish": "length"}
    {"id": "c", "prompt_ids": [0, 71], "ids": [5, 6, 7]}

A text's tokens are not known: the judge's tokenizer cuts it, and where the judge's best token is another beginning of
the same text, the text is cut that way.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from ds4ref.console.common import Progress, read_text
from ds4ref.console.tool import finish, report_notes, rows, target_of
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.runs.store.rows import vector_row
from ds4ref.targets import Ability, Finish, Prompt, Request, Step, Target, Token
from ds4ref.targets.local import LocalTarget
from ds4ref.text.tokenizer import Tokenizer

from .cases import PromptCase, read_cases, read_prompts, single_path
from .junit import write_results
from .record import describe, keep, opened, text_digest
from .verdicts import DEFAULT_FLOOR, CaseResult, floor_of, forced_case
from .verifier import Judgement, weigh

ALTERNATIVES = 20
RECUTS = 16
"""How often a text is cut anew at most, since each time costs a pass."""
SHOWN = 10
"""Widest gaps that are listed."""


@dataclass(frozen=True)
class Answer:
    """One answer of an engine.

    text    the text, as far as its bytes are known
    tokens  bytes of every token; None if only the text is known
    ids     ids of the tokens; None if unknown
    ended   whether the end token follows the text
    before  tokens of the prompt as the engine counts them; None if it does not say
    """

    id: str
    prompt: Prompt
    text: str = ""
    tokens: tuple[bytes, ...] | None = None
    ids: tuple[int, ...] | None = None
    ended: bool = False
    before: int | None = None


Ids = list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


class _Line(msgspec.Struct):
    """A line of a file of answers."""

    id: str = ""
    prompt: str | None = None
    system: str = ""
    text: str | None = None
    prompt_ids: Ids | None = None
    answer: str | None = None
    ids: Ids | None = None
    finish: str = ""

    def to_answer(self, name: str) -> Answer:
        """Convert the line; ValueError says what is wrong with it."""
        for kinds in (("prompt", "text", "prompt_ids"), ("answer", "ids")):
            if sum(getattr(self, kind) is not None for kind in kinds) != 1:
                raise ValueError(f"give exactly one of {', '.join(kinds)}")
        if self.prompt is not None:
            prompt = Prompt.chat(self.prompt, self.system)
        else:
            prompt = Prompt.plain(self.text) if self.text is not None else Prompt.tokens(self.prompt_ids or [])
        if self.ids is not None:
            return Answer(self.id or name, prompt, ids=tuple(self.ids))
        text, whole = _whole(self.answer or "")
        return Answer(self.id or name, prompt, text, ended=whole and self.finish == Finish.STOP)


def read(path: str) -> list[Answer]:
    """Read a file of JSON lines; DataError names an invalid line."""
    answers = []
    for number, line in enumerate(read_text(path, "answers").split("\n"), 1):
        if line.strip():
            try:
                answers.append(msgspec.convert(json.loads(line), _Line).to_answer(f"line {number}"))
            except (ValueError, RecursionError) as error:
                why = "not JSON" if isinstance(error, (json.JSONDecodeError, RecursionError)) else error
                raise DataError(f"{path}: line {number}: {why}") from None
    if not answers:
        raise DataError(f"{path}: no answer")
    twice = {a.id for a in answers if sum(b.id == a.id for b in answers) > 1}
    if twice:
        raise DataError(f"{path}: id {min(twice)!r} is listed twice")
    return answers


def _whole(text: str) -> tuple[str, bool]:
    """Return the text up to the first character that was lost, and whether none was."""
    known, _, lost = text.partition("\ufffd")
    return known, known == text


def of_tokens(name: str, prompt: Prompt, tokens: Sequence[bytes]) -> Answer:
    """Return the answer of recorded tokens, up to the first whose bytes the source did not give."""
    known = next((i for i, raw in enumerate(tokens) if not raw), len(tokens))
    return Answer(name, prompt, tokens=tuple(tokens[:known]))


def ask(engine: Target, name: str, prompt: Prompt, tokens: int, ctx: int | None, with_tokens: bool) -> Answer:
    """Ask an engine greedily.

    ``with_tokens`` asks for log probabilities, which come with the tokens; servers may switch drafts off for it.
    """
    if prompt.text is not None:
        engine.require_raw_text()
    done = engine.complete(Request(prompt, tokens, top_logprobs=1 if with_tokens else 0, ctx=ctx))
    before = done.usage.prompt
    if done.steps:
        return replace(of_tokens(name, prompt, [step.token.raw for step in done.steps]), before=before)
    if done.reasoning or done.calls:
        kind = "reasoning" if done.reasoning else "tool calls"
        raise TargetError(f"{name}: {engine.name} answered with {kind}, whose tokens are not in its text")
    text, whole = _whole(done.text)
    return Answer(name, prompt, text, ended=whole and done.finish == Finish.STOP, before=before)


def force(judge: Target, answer: Answer) -> list[Step]:
    """Force the judge along an answer and return its steps; UsageError if it cannot be forced along such an answer."""
    judge.require(Ability.SCORE, needed_for="check --teacher-forced")
    if isinstance(judge, LocalTarget):
        return _forced_here(judge, answer)
    top = min(ALTERNATIVES, judge.max_top_logprobs)
    if answer.tokens is not None and answer.prompt.ids is None:
        return judge.score(answer.prompt, answer.tokens, top)
    if answer.prompt.text is not None and answer.ids is None:
        return _echoed(judge, answer.prompt.text, answer.text, top)
    raise UsageError(
        f"{answer.id}: {judge.kind} target {judge.name} can only score text after a plain prompt, or tokens with "
        "known bytes: use a local target"
    )


def _forced_here(judge: LocalTarget, answer: Answer) -> list[Step]:
    before, vocab = judge.encode(answer.prompt), judge.engine.shape.vocab
    if answer.before and abs(answer.before - len(before)) > 1:  # a BOS may be counted or not
        raise TargetError(
            f"{answer.id}: cannot compare: the engine counts {answer.before} prompt tokens, the judge {len(before)}: "
            "another chat template, tokenizer or model"
        )
    if answer.tokens is not None:
        return judge.score(answer.prompt, answer.tokens, ALTERNATIVES)
    if answer.ids is not None:
        worst = max((*before, *answer.ids), default=0)
        if worst >= vocab:
            raise DataError(f"{answer.id}: token id {worst} is outside the vocabulary of {vocab}: another model?")
        return judge.score_after(before, answer.ids, ALTERNATIVES)
    tokenizer = judge.tokenizer
    end = [tokenizer.eos] if answer.ended else []
    ids = [*tokenizer.encode(answer.text), *end]
    steps = judge.score_after(before, ids, ALTERNATIVES)
    for _ in range(RECUTS):
        at = _other_cut(steps[: len(steps) - len(end)])
        if at is None:
            return _shown(steps, tokenizer)
        best = steps[at].top[0]
        rest = b"".join(step.token.raw for step in steps[at : len(steps) - len(end)])[len(best.raw) :]
        ids = [*ids[:at], _id(best), *tokenizer.encode(rest), *end]
        steps = [*steps[:at], *judge.score_after([*before, *ids[:at]], ids[at:], ALTERNATIVES)]
    return _shown(steps[: _other_cut(steps[: len(steps) - len(end)])], tokenizer)


def _shown(steps: list[Step], tokenizer: Tokenizer) -> list[Step]:
    """Return the steps before the first whose best token no text can show: a control token that ends no answer.

    The engine may have chosen it; what its text says next would then follow other tokens.
    """
    for at, step in enumerate(steps):
        best = step.top[0] if step.top else step.token
        if best.id in (None, step.token.id) or best.id in tokenizer.ends:
            continue
        if tokenizer.encode(best.raw) != [best.id]:  # no text is encoded so
            return steps[:at]
    return steps


def _id(token: Token) -> int:
    assert token.id is not None  # local engines know it
    return token.id


def _other_cut(steps: Sequence[Step]) -> int | None:
    """Return the index of the first step whose best token is another beginning of the same text; None without one."""
    raws = [step.token.raw for step in steps]
    for at, step in enumerate(steps):
        best = step.top[0] if step.top else step.token
        if best.raw and best.raw != step.token.raw and b"".join(raws[at:]).startswith(best.raw):
            return at
    return None


def _echoed(judge: Target, before: str, text: str, top: int) -> list[Step]:
    """Score the text through the judge's echo, without a token across the border to the prompt.

    The steps end where the text may have been cut otherwise: an echo shows one cut only.
    """
    start, at, steps = len(before.encode("utf-8", "surrogateescape")), 0, []
    for step in judge.score_text(before + text, top):
        if at >= start:
            steps.append(step)
        at += len(step.token.raw)
    return steps[: _other_cut(steps)]


# ------------------------------------------------------------------------------------------------------- the command


def check_forced(args: Namespace, argv: Sequence[str]) -> int:
    """Read or ask for what an engine committed, judge it, and return the exit code."""
    if args.profile != "margin":
        raise UsageError("--teacher-forced supports only --profile margin")
    asked: dict[str, PromptCase] = {}
    answers: Sequence[Answer] = []
    if args.committed_by:
        if args.path:
            raise UsageError(f"{args.path[0]} and --committed-by: choose one")
        asked = {case.id: case for case in read_prompts(args.prompts)}
    elif args.prompts or args.plain_text:
        raise UsageError("--prompts and --plain-text need --committed-by")
    else:
        path = single_path(args.path, "a file of an engine's answers, or --committed-by,")
        answers = (
            read(path)
            if path.endswith(".jsonl")
            else [of_tokens(item.case.id, item.chat, item.tokens) for item in read_cases(path, args.allow_partial)]
        )
    known = list(asked) or [answer.id for answer in answers]
    unknown = set(args.only) - set(known)
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
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
    judgement = weigh(results, floor, args.floor is not None)
    failed = [r.id for r in results if r.failed]
    passed = judgement.verdict == "right" and not failed
    source = args.path[0] if args.path else None
    result: dict[str, Any] = {
        "path": source, "committed_by": args.committed_by, "target": args.target, "floor": floor,
        "cases": len(results), "failed": failed, "passed": passed, **judgement.to_json(),
    }  # fmt: skip
    write_results(args, result, results)
    finish(result, args.json, _table(results, judgement))
    return 0 if passed else 1


def _asked(args: Namespace, engine: Target, judge: Target, asked: Mapping[str, PromptCase]) -> list[Answer]:
    """Ask for every answer, with log probabilities only if the judge cannot cut the text into tokens by itself."""
    chosen = [case for name, case in asked.items() if not args.only or name in args.only]
    answers: list[Answer] = []
    with Progress("asking") as progress:
        for case in chosen:
            progress(len(answers), len(chosen))
            prompt = Prompt.plain(case.text) if args.plain_text else Prompt.chat(case.text)
            with_tokens = not (args.plain_text or isinstance(judge, LocalTarget))
            answers.append(ask(engine, case.id, prompt, args.tokens, args.ctx or case.ctx, with_tokens))
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
