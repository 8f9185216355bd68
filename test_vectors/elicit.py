"""Obtain an observation (log probabilities to diagnose) from a running engine.

A local engine gives full logits. An HTTP endpoint that echoes the log probabilities of a prompt gives every position at
once; any other one continues a text greedily, which gives one position per generated token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ds4ref.cancellation import Cancellation
from ds4ref.engine import Engine
from ds4ref.errors import TargetError, TextError, UsageError
from ds4ref.nano.diagnostic import PROMPTS
from ds4ref.nano.prose import prose
from ds4ref.targets import Ability, Prompt, Request, Step, Target
from ds4ref.text.chat import text_start
from ds4ref.text.prompts import encode_chat_prompt
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.text.vocabulary import ids_by_bytes

from .finding import distinct
from .observation import Observation, OtherModel, from_logits, from_top

FEWEST_KNOWN = 0.5
"""If less than this share of a server's tokens is in our model's vocabulary, it serves another model."""
PROBE = "The old mill by the river."
"""Text by which an echo is tested: its last step is compared with the step generated after it."""
SAME = 0.05
"""Two log probabilities of a token closer than this, in nats, count as the same; both come from prefill of one text."""
GENERATED = 32
"""Tokens to generate for a continuation."""
LENGTHS = {"short": 24, "mixed": 120, "text": 199, "long": 199}
"""Number of tokens of prose sent instead of each diagnostic prompt, to targets that take only text."""


def probed_echo(target: Target, top: int, cancel: Cancellation | None = None) -> tuple[list[Step], Step | None]:
    """Return the target's echo of ``PROBE``, and the step generated after that text.

    The step is None if the target echoed another text or no alternatives. ``top``: number of alternatives to request.
    """
    steps = target.score_text(PROBE, top)
    if b"".join(s.token.raw for s in steps) != PROBE.encode() or not steps[-1].top:
        return steps, None
    after = target.complete(Request(Prompt.plain(PROBE), 1, top_logprobs=top, cancel=cancel)).steps
    return steps, after[0] if after else None


def is_early(steps: Sequence[Step], after: Step | None) -> bool:
    """Whether an echo is off by one: each token comes with the distribution after it, which predicts the next token.

    ``steps``: the echo of a text; ``after``: the step generated after it.
    """
    return after is not None and _same(steps[-1], after) and not _same(steps[-2], steps[-1])


def _same(a: Step, b: Step) -> bool:
    """Whether most alternatives of two steps are the same tokens, with equal log probabilities (to within SAME)."""
    first, second = ({t.raw: t.logprob for t in step.top if distinct(t.raw)} for step in (a, b))
    shared = [(first[raw], second[raw]) for raw in first if raw in second]
    near = [x is not None and y is not None and abs(x - y) < SAME for x, y in shared]
    return 2 * len(shared) > len(first) and sum(near) > 0.8 * len(near)


def tokenizer_of(engine: Engine) -> Tokenizer | None:
    """Return the engine's tokenizer; None if its file has none."""
    try:
        return engine.tokenizer
    except TextError:
        return None


def elicit(
    target: Target, engine: Engine, ids: Sequence[int] | None, prompt: str, chat: bool = False, early: bool = False,
    cancel: Cancellation | None = None,
) -> Observation:  # fmt: skip
    """Observe the target's log probabilities on ``ids``, or on the named prompt of the diagnostic set.

    engine  our engine with the same model; its tokenizer maps bytes to ids
    chat    send prose as a user message, which tests the chat template, too
    early   the target's echo is off by one: each token comes with the next token's distribution

    UsageError if the target does not accept such a prompt. OtherModel if its tokens are those of another model.
    DataError if ``cancel`` ended the continuation.
    """
    if ids is not None and chat:
        raise UsageError("token ids cannot be sent as a chat")
    chat = chat or not (target.can(Ability.TEXT) or target.can(Ability.TOKEN_IDS) or target.can(Ability.FULL_LOGITS))
    if target.can(Ability.FULL_LOGITS) and not chat:
        tokens = list(PROMPTS[prompt]() if ids is None else ids)
        return from_logits(tokens, target.logits(tokens), vocab=engine.shape.vocab)
    target.require(Ability.TOP_LOGPROBS, needed_for="diagnose")
    top = min(20, target.max_top_logprobs)
    if ids is not None:
        if not target.can(Ability.TOKEN_IDS):
            raise UsageError(f"{target.kind} target {target.name} takes only text, not --token-ids (see --id-prompts)")
        tokens, request = list(ids), Prompt.tokens(ids)
    else:
        text = _text(engine, prompt)
        if chat:
            target.require(Ability.CHAT, needed_for="diagnose --chat")
            if not (engine.tokenizer.renders or engine.tokenizer.chats):
                raise UsageError("the model file has no chat template, so what a chat becomes is not known")
            request, tokens = Prompt.chat(text), encode_chat_prompt(engine.tokenizer, "", text, "none")
        else:
            start = text_start(engine.tokenizer, text)
            request, tokens = Prompt.plain(text), start + engine.tokenizer.encode(text)
            if target.can(Ability.SCORE):
                try:
                    return _echoed(engine, tokens, target.score_text(text, top), early, len(start))
                except TargetError:
                    target.require_raw_text()  # no echo here: continue the text instead
    answer = target.complete(Request(request, GENERATED, top_logprobs=top, cancel=cancel))
    return _continued(engine, tokens, answer.steps)


def _text(engine: Engine, prompt: str) -> str:
    """Return prose of LENGTHS[prompt] tokens, as text."""
    ids = engine.tokenizer.encode(prose(2000, seed=7))
    return engine.tokenizer.decode(ids[: LENGTHS[prompt]]).decode("utf-8", "ignore").strip()


def _entry(known: dict[bytes, int], position: int, step: Step) -> tuple[int, list[tuple[int, float]]]:
    pairs = [(known[t.raw], t.logprob) for t in step.top if t.raw in known and t.logprob is not None]
    return position, list(dict(pairs).items())


def unknown_tokens(known: Collection[bytes], steps: Iterable[Step]) -> tuple[list[bytes], int]:
    """Return (tokens in ``steps`` that are not ``known``, number of different tokens in ``steps``).

    Tokens whose bytes do not identify them (``finding.distinct``) are ignored.
    """
    raws = {t.raw for step in steps for t in (step.token, *step.top) if distinct(t.raw)}
    return sorted(raws.difference(known)), len(raws)


def _check_vocabulary(known: dict[bytes, int], steps: Sequence[Step]) -> None:
    """Raise OtherModel if most of the tokens in ``steps`` are not in our vocabulary (``known``: its bytes -> id)."""
    odd, count = unknown_tokens(known, steps)
    if count - len(odd) < FEWEST_KNOWN * count:
        raise OtherModel(
            f"not compared: the server serves another model: {len(odd)} of {count} of its tokens are not in the "
            "vocabulary; give its model with -m MODEL.gguf"
        )


def _echoed(engine: Engine, ids: list[int], steps: list[Step], early: bool, start: int = 0) -> Observation:
    """Make an observation from the echo ``steps`` of a text that our tokenizer splits into ``ids``.

    The first ``start`` ids, such as BOS, are not of the text. The distribution after position t is in the next token's
    step, or if ``early`` in its own. A BOS token that the server added is dropped. If the server splits the text
    differently, only positions at which a token ends in both remain.
    """
    known, tokenizer, tokens = ids_by_bytes(engine.tokenizer), engine.tokenizer, ids[start:]
    _check_vocabulary(known, steps)
    echoed = [step for step in steps if step.token.raw]
    text, theirs = tokenizer.decode(tokens), b"".join(step.token.raw for step in echoed)
    if len(theirs) > len(text) and echoed and theirs[len(echoed[0].token.raw) :] == text:
        echoed, theirs = echoed[1:], text
    if theirs != text:
        raise TargetError("the server echoed a different text from the one sent")
    ends = {int(end): t for t, end in enumerate(np.cumsum([len(tokenizer.token_bytes(t)) for t in tokens]))}
    until = np.cumsum([len(step.token.raw) for step in echoed]).tolist()
    listed = zip(until, echoed, strict=True) if early else zip(until, echoed[1:], strict=False)
    return from_top(ids, [_entry(known, start + ends[at], step) for at, step in listed if at in ends])


def _continued(engine: Engine, tokens: list[int], steps: Sequence[Step]) -> Observation:
    """Make an observation from ``steps``, the tokens generated after a prompt of ``tokens``."""
    known = ids_by_bytes(engine.tokenizer)
    _check_vocabulary(known, steps)
    entries, ids = [], list(tokens)
    for step in steps:
        entries.append(_entry(known, len(ids) - 1, step))
        number = step.token.id if step.token.id is not None else known.get(step.token.raw)
        if number is None:
            break
        ids.append(number)
    return from_top(ids, entries)
