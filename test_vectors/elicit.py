"""Getting observations for a diagnosis out of a running engine.

A local engine gives full logits. Over HTTP, an endpoint that takes token ids or echoes prompt log probabilities is
asked about every position at once; any other one is asked to continue a text greedily, which gives one position a
generated token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4ref.engine import Engine
from ds4ref.errors import TargetError, UsageError
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.prose import prose
from ds4ref.targets import Ability, Prompt, Request, Step, Target
from ds4ref.text.chat import encode_chat_prompt

from .observation import Observation, from_logits, from_top

GENERATED = 32
LENGTHS = {"short": 24, "mixed": 120, "text": 199, "long": 199}
"""Tokens of prose that stand in for a prompt of the set where only text can be sent."""


def elicit(target: Target, engine: Engine, ids: Sequence[int] | None, prompt: str, chat: bool = False) -> Observation:
    """What ``target`` computes on ``ids`` or on a prompt of the diagnostic set. ``engine`` has the same model: its
    tokenizer turns bytes back into ids. ``chat`` sends prose as a user message, so that the template is tested too."""
    if ids is not None and chat:
        raise UsageError("token ids cannot be sent as a chat")
    chat = chat or not (target.can(Ability.TEXT) or target.can(Ability.TOKEN_IDS) or target.can(Ability.FULL_LOGITS))
    if target.can(Ability.FULL_LOGITS) and not chat:
        tokens = list(PROMPTS[prompt]() if ids is None else ids)
        return from_logits(tokens, target.logits(tokens))
    target.require(Ability.TOP_LOGPROBS, what="diagnose")
    top = min(20, target.max_top_logprobs)
    if ids is not None:
        if not target.can(Ability.TOKEN_IDS):
            raise UsageError(f"{target.kind} target {target.name} takes text, not --token-ids (see --id-prompts)")
        tokens, ask = list(ids), Prompt.tokens(ids)
    else:
        text = _text(engine, prompt)
        if chat:
            target.require(Ability.CHAT, what="diagnose --chat")
            ask, tokens = Prompt.chat(text), encode_chat_prompt(engine.tokenizer, "", text, "none")
        else:
            ask, tokens = Prompt.plain(text), engine.tokenizer.encode(text)
            if target.can(Ability.SCORE):
                try:
                    return _echoed(engine, tokens, target.score_text(text, top))
                except TargetError:
                    pass  # no echo here: continue the text instead
    done = target.complete(Request(ask, GENERATED, top_logprobs=top))
    return _continued(engine, tokens, done.steps)


def _text(engine: Engine, prompt: str) -> str:
    """The beginning of a piece of prose: as many tokens as the name says."""
    ids = engine.tokenizer.encode(prose(2000, seed=7))
    return engine.tokenizer.decode(ids[: LENGTHS[prompt]]).decode("utf-8", "ignore").strip()


def _id_of(engine: Engine) -> dict[bytes, int]:
    tok = engine.tokenizer
    return {tok.token_bytes(i): i for i in reversed(range(len(tok))) if tok.token_bytes(i)}


def _entry(known: dict[bytes, int], position: int, step: Step) -> tuple[int, list[tuple[int, float]]]:
    pairs = [(known[t.raw], t.logprob) for t in step.top if t.raw in known and t.logprob is not None]
    return position, list(dict(pairs).items())


def _echoed(engine: Engine, tokens: list[int], steps: list[Step]) -> Observation:
    """Position t is described by the step of the token behind it. A leading BOS of the server's own is not one of ours.
    Where the server splits the text otherwise, the places where both have a border remain."""
    known, tokenizer = _id_of(engine), engine.tokenizer
    seen = [step for step in steps if step.token.raw]
    text, theirs = tokenizer.decode(tokens), b"".join(step.token.raw for step in seen)
    if len(theirs) > len(text) and seen and theirs[len(seen[0].token.raw) :] == text:
        seen, theirs = seen[1:], text
    if theirs != text:
        raise TargetError("the server does not echo the text that it was sent")
    ends = {int(end): t for t, end in enumerate(np.cumsum([len(tokenizer.token_bytes(t)) for t in tokens]))}
    starts = np.cumsum([len(step.token.raw) for step in seen])[:-1].tolist()
    return from_top(
        tokens, [_entry(known, ends[at], step) for at, step in zip(starts, seen[1:], strict=True) if at in ends]
    )


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
