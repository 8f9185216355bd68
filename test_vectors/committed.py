"""Answers that an engine committed greedily, and a judge forced along them.

A JSON line of a file, of which only one kind of prompt and one of answer are needed:

    {"id": "a", "prompt": "a user message", "system": "", "answer": "text", "finish": "stop"}
    {"id": "b", "text": "plain text to continue", "answer": "text", "finish": "length"}
    {"id": "c", "prompt_ids": [0, 71], "ids": [5, 6, 7], "passes": [2, 1]}

``passes`` is how many tokens each pass of the engine committed. A text's tokens are not known: the judge's tokenizer
cuts it, and where the judge's best token is another beginning of the same text, the text is cut that way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ds4ref.console.common import read_text
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Ability, Completion, Finish, Prompt, Request, Step, Target, Token
from ds4ref.targets.local import LocalTarget
from ds4ref.text.tokenizer import Tokenizer

ALTERNATIVES = 20
RECUTS = 16
"""How often a text is cut anew at most, since each time costs a pass."""

_PROMPTS, _ANSWERS = ("prompt", "text", "prompt_ids"), ("answer", "ids")


@dataclass(frozen=True)
class Answer:
    """One answer of an engine.

    text    the text, as far as its bytes are known
    tokens  bytes of every token; None if only the text is known
    ids     ids of the tokens; None if unknown
    ended   whether the end token follows the text
    passes  number of tokens that each pass committed; () if unknown
    before  tokens of the prompt as the engine counts them; None if it does not say
    """

    id: str
    prompt: Prompt
    text: str = ""
    tokens: tuple[bytes, ...] | None = None
    ids: tuple[int, ...] | None = None
    ended: bool = False
    passes: tuple[int, ...] = ()
    before: int | None = None


def read(path: str) -> list[Answer]:
    """Read a file of JSON lines; DataError names an invalid line."""
    answers = []
    for number, line in enumerate(read_text(path, "answers").split("\n"), 1):
        if line.strip():
            try:
                answers.append(_answer(json.loads(line), f"line {number}"))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                why = error if isinstance(error, TypeError) else "not JSON with a prompt and an answer"
                raise DataError(f"{path}: line {number}: {why}") from None
    if not answers:
        raise DataError(f"{path}: no answer")
    twice = {a.id for a in answers if sum(b.id == a.id for b in answers) > 1}
    if twice:
        raise DataError(f"{path}: id {min(twice)!r} is listed twice")
    return answers


def _answer(entry: dict[str, Any], name: str) -> Answer:
    """Convert a line; TypeError says what is wrong with it."""
    if not isinstance(entry, dict):
        raise TypeError("not a JSON object")
    for kinds in (_PROMPTS, _ANSWERS):
        if sum(kind in entry for kind in kinds) != 1:
            raise TypeError(f"give exactly one of {', '.join(kinds)}")
    texts = [entry.get(key, "") for key in ("id", "prompt", "text", "system", "answer", "finish")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("id, prompt, text, system, answer and finish must be text")
    for key in ("prompt_ids", "ids", "passes"):
        values = entry.get(key, [])
        least = int(key == "passes")
        if not isinstance(values, list) or not all(type(i) is int and least <= i < 1 << 31 for i in values):
            raise TypeError(f"{key} must be a list of integers >= {least}")
    ids, passes = entry.get("ids"), tuple(entry.get("passes", ()))
    if ids is not None and passes and sum(passes) != len(ids):
        raise TypeError(f"passes sum to {sum(passes)} tokens, but there are {len(ids)} ids")
    if passes and ids is None:
        raise TypeError("passes also needs ids (token ids)")
    if "prompt" in entry:
        prompt = Prompt.chat(entry["prompt"], entry.get("system", ""))
    else:
        prompt = Prompt.plain(entry["text"]) if "text" in entry else Prompt.tokens(entry["prompt_ids"])
    text, whole = _whole(entry.get("answer", ""))
    return Answer(
        entry.get("id", name), prompt, text, None, None if ids is None else tuple(ids),
        whole and entry.get("finish") == Finish.STOP and ids is None, passes,
    )  # fmt: skip


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
    _text_alone(engine, name, done)
    text, whole = _whole(done.text)
    return Answer(name, prompt, text, ended=whole and done.finish == Finish.STOP, before=before)


def _text_alone(engine: Target, name: str, done: Completion) -> None:
    if done.reasoning or done.calls:
        kind = "reasoning" if done.reasoning else "tool calls"
        raise TargetError(f"{name}: {engine.name} answered with {kind}, whose tokens are not in its text")


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
