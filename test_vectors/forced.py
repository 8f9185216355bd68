"""``ds4-vectors check --teacher-forced``: check whether another engine's greedy answers are what ours would choose.

Our engine (the judge) is fed the tokens of each answer, and every token should be its most likely one. If only the
answer's text is known, our tokenizer splits it; where the judge's best token is a different beginning of the same text,
the text is split there as the judge prefers.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ds4ref.console.common import Progress
from ds4ref.console.tool import report_notes, rows, target_of
from ds4ref.errors import TargetError, UsageError
from ds4ref.targets import Finish, Prompt, Request, Step, Target
from ds4ref.targets.local import LocalTarget
from ds4ref.text.tokenizer import Tokenizer

from .cases import PromptCase, read_cases, read_prompts, selected, single_path
from .verdicts import DEFAULT_FLOOR, CaseResult, floor_of, forced_case
from .verifier import Judgement, weigh

ALTERNATIVES = 20
RECUTS = 16
"""Largest number of times that a text's rest is split again; each costs a forward pass."""
SHOWN = 10
"""Number of tokens listed in the table, those furthest below the judge's best first."""


@dataclass(frozen=True)
class Answer:
    """One greedy answer of the engine that is checked.

    text    the text, up to the first character whose bytes were lost
    tokens  bytes of every token; None if only the text is known
    ended   whether the end token follows the text
    before  number of prompt tokens that the engine reported; None if it reported none
    """

    id: str
    prompt: Prompt
    text: str = ""
    tokens: tuple[bytes, ...] | None = None
    ended: bool = False
    before: int | None = None


def of_tokens(name: str, prompt: Prompt, tokens: Sequence[bytes]) -> Answer:
    """Make the Answer ``name`` of recorded ``tokens`` (bytes), up to the first whose bytes the source did not give."""
    known = next((i for i, raw in enumerate(tokens) if not raw), len(tokens))
    return Answer(name, prompt, tokens=tuple(tokens[:known]))


def ask(engine: Target, name: str, prompt: Prompt, tokens: int, ctx: int | None) -> Answer:
    """Request a greedy answer of up to ``tokens`` tokens in a context of ``ctx``.

    Log probabilities are not requested, as servers may turn speculative decoding off for them.
    """
    done = engine.complete(Request(prompt, tokens, ctx=ctx))
    if done.reasoning or done.calls:
        kind = "reasoning" if done.reasoning else "tool calls"
        raise TargetError(f"{name}: {engine.name} answered with {kind}, whose tokens are not in its text")
    known, _, _ = done.text.partition("\ufffd")  # up to the first character whose bytes were lost
    ended = known == done.text and done.finish == Finish.STOP
    return Answer(name, prompt, known, ended=ended, before=done.usage.prompt)


def force(judge: LocalTarget, answer: Answer) -> list[Step]:
    """Feed an answer to the judge (our engine) and return the judge's steps.

    TargetError if the engine counts other prompt tokens than the judge.
    """
    before = judge.encode(answer.prompt)
    if answer.before and abs(answer.before - len(before)) > 1:  # a BOS may be counted or not
        raise TargetError(
            f"{answer.id}: cannot compare: the engine counts {answer.before} prompt tokens, the judge {len(before)}: "
            "another chat template, tokenizer or model"
        )
    if answer.tokens is not None:
        return judge.score(answer.prompt, answer.tokens, ALTERNATIVES)
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
        ids = [*ids[:at], *([] if best.id is None else [best.id]), *tokenizer.encode(rest), *end]
        steps = [*steps[:at], *judge.score_after([*before, *ids[:at]], ids[at:], ALTERNATIVES)]
    return _shown(steps[: _other_cut(steps[: len(steps) - len(end)])], tokenizer)


def _shown(steps: list[Step], tokenizer: Tokenizer) -> list[Step]:
    """Return the steps before the first at which the judge prefers a token that never shows in a text.

    Such a token is a control token that does not end an answer. If the engine chose it there, the rest of its text
    followed tokens that are unknown to us.
    """
    for at, step in enumerate(steps):
        best = step.top[0] if step.top else step.token
        if best.id in (None, step.token.id) or best.id in tokenizer.ends:
            continue
        if tokenizer.encode(best.raw) != [best.id]:  # no text is encoded so
            return steps[:at]
    return steps


def _other_cut(steps: Sequence[Step]) -> int | None:
    """Return the index of the first step at which the judge would split the rest of the text differently.

    There the judge's best token is another beginning of the text from this step on. None if there is no such step.
    """
    raws = [step.token.raw for step in steps]
    for at, step in enumerate(steps):
        best = step.top[0] if step.top else step.token
        if best.raw and best.raw != step.token.raw and b"".join(raws[at:]).startswith(best.raw):
            return at
    return None


# ------------------------------------------------------------------------------------------------------- the command


class Committed:
    """The check --teacher-forced: are an engine's greedy answers what our engine would choose?

    The answers are read from vectors, or with --committed-by requested from the engine.

    label  default label of the run in the run store
    """

    def __init__(self, args: Namespace):
        if args.profile != "margin":
            raise UsageError("--teacher-forced supports only --profile margin")
        self.args, self.floor = args, DEFAULT_FLOOR
        self.asked: list[PromptCase] = []
        self.answers: list[Answer] = []
        if args.committed_by:
            if args.path:
                raise UsageError(f"{args.path[0]} and --committed-by: choose one")
            self.asked = selected(read_prompts(args.prompts), args.only, lambda case: case.id)
        elif args.prompts:
            raise UsageError("--prompts needs --committed-by")
        else:
            path = single_path(args.path, "vectors of an engine, or --committed-by,")
            answers = [of_tokens(item.case.id, item.chat, item.tokens) for item in read_cases(path, args.allow_partial)]
            self.answers = selected(answers, args.only, lambda answer: answer.id)
        self.label = args.path[0] if args.path else args.committed_by

    @property
    def texts(self) -> list[str]:
        return [text for a in self.answers for text in (a.id, a.prompt.system, a.prompt.user or "")]

    @property
    def facts(self) -> dict[str, Any]:
        return {"committed_by": self.args.committed_by, "floor": self.floor}

    def results(self, judge: Target) -> Iterator[CaseResult]:
        """Yield the judgement of each answer; with --committed-by, first request the answers from that engine."""
        if not isinstance(judge, LocalTarget):
            raise UsageError("check --teacher-forced judges by this engine: --target local:MODEL.gguf")
        if self.args.committed_by:
            with target_of(self.args, self.args.committed_by) as engine, Progress("asking") as progress:
                for case in self.asked:
                    progress(len(self.answers), len(self.asked))
                    prompt, ctx = Prompt.chat(case.text), self.args.ctx or case.ctx
                    self.answers.append(ask(engine, case.id, prompt, self.args.tokens, ctx))
                self.floor = max(DEFAULT_FLOOR, floor_of(engine), floor_of(judge))
                report_notes("ds4-vectors", engine)
        self.floor = self.floor if self.args.floor is None else self.args.floor
        for answer in self.answers:
            try:
                yield forced_case(answer.id, force(judge, answer), self.floor)
            except TargetError as error:
                yield CaseResult(answer.id, "error", reason=str(error))

    def summary(self, results: Sequence[CaseResult]) -> tuple[bool, dict[str, Any], str]:
        """Return whether the check passed, the JSON object, and the table."""
        judgement = weigh(results, self.floor, self.args.floor is not None)
        passed = judgement.verdict == "right" and not any(r.failed for r in results)
        fields = {"committed_by": self.args.committed_by, "floor": self.floor, **asdict(judgement)}
        return passed, fields, _table(results, judgement)


def _table(results: Sequence[CaseResult], judgement: Judgement) -> str:
    """Return the report as text: a row per answer, the tokens furthest below the judge's best, and the verdict."""
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
