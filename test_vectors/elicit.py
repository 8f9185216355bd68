"""Getting observations for a diagnosis out of a running engine.

A local engine gives full logits. Over HTTP, an endpoint that takes token ids or echoes prompt log probabilities is
asked about every position at once; any other one is asked to continue a text greedily, which gives one position a
generated token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ds4ref.engine import Engine
from ds4ref.errors import TargetError, UsageError
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.targets import Ability, Prompt, Request, Step, Target

from .observation import Observation, from_logits, from_top

GENERATED = 32


def elicit(target: Target, engine: Engine, ids: Sequence[int] | None, prompt: str) -> Observation:
    """What ``target`` computes on ``ids`` or on a prompt of the diagnostic set. ``engine`` has the same model: its
    tokenizer turns bytes back into ids."""
    if target.can(Ability.FULL_LOGITS):
        tokens = list(PROMPTS[prompt]() if ids is None else ids)
        return from_logits(tokens, target.logits(tokens))
    target.require(Ability.TOP_LOGPROBS, what="diagnose")
    if ids is not None and not target.can(Ability.TOKEN_IDS):
        raise UsageError(f"{target.kind} target {target.name} takes text, not --token-ids")
    text = None if ids is not None else _text(engine, prompt)
    tokens = list(ids) if ids is not None else engine.tokenizer.encode(text or "")
    if text is not None and target.can(Ability.SCORE):
        try:
            return _echoed(engine, tokens, target.score_text(text, min(20, target.max_top_logprobs)))
        except TargetError:
            pass  # no echo here: continue the text instead
    if text is None:
        ask = Prompt.tokens(tokens)
    elif target.can(Ability.TEXT):
        ask = Prompt.plain(text)
    else:
        from ds4ref.text.chat import encode_chat_prompt

        ask, tokens = Prompt.chat(text), encode_chat_prompt(engine.tokenizer, "", text, "none")
    done = target.complete(Request(ask, GENERATED, top_logprobs=min(20, target.max_top_logprobs)))
    return _continued(engine, tokens, done.steps)


def _text(engine: Engine, prompt: str) -> str:
    """A text that our tokenizer and a server's encode alike: prose without its BOS."""
    ids = PROMPTS["text"]()[1:]
    if prompt != "text":
        ids = ids[: {"short": 24, "mixed": 120, "long": 199}[prompt]]
    return engine.tokenizer.decode(ids).decode("utf-8", "ignore").strip()


def _id_of(engine: Engine) -> dict[bytes, int]:
    tok = engine.tokenizer
    return {tok.token_bytes(i): i for i in reversed(range(len(tok))) if tok.token_bytes(i)}


def _entry(known: dict[bytes, int], position: int, step: Step) -> tuple[int, list[tuple[int, float]]]:
    pairs = [(known[t.raw], t.logprob) for t in step.top if t.raw in known and t.logprob is not None]
    return position, list(dict(pairs).items())


def _echoed(engine: Engine, tokens: list[int], steps: list[Step]) -> Observation:
    """Position t is described by the step of token t + 1. A leading BOS of the server's own is not one of ours."""
    known = _id_of(engine)
    seen = [step for step in steps if step.token.raw]
    ours = [engine.tokenizer.token_bytes(t) for t in tokens]
    raws = [step.token.raw for step in seen]
    if raws[1:] == ours or raws[-len(ours) :] == ours:
        seen = seen[-len(ours) :]
    elif raws != ours:
        raise TargetError("the server splits the text into other tokens than the model's own tokenizer does")
    return from_top(tokens, [_entry(known, t, step) for t, step in enumerate(seen[1:])])


def _continued(engine: Engine, tokens: list[int], steps: Sequence[Step]) -> Observation:
    known = _id_of(engine)
    entries, ids = [], list(tokens)
    for step in steps:
        entries.append(_entry(known, len(ids) - 1, step))
        number = step.token.id if step.token.id is not None else known.get(step.token.raw)
        if number is None:
            break
        ids.append(number)
    return from_top(ids, entries)
