"""/v1/completions: OpenAI's legacy completions (docs/reference/server.md).

A prompt is continued as it is, without a chat template, with or without ``echo``. A BOS is put before it only for a
model that has no chat protocol of its own and whose texts start with one. The answer is all generated text, including
reasoning and its tags. Left out on purpose: ``best_of``, ``suffix``.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...targets.answer import Completion, Delta, Step, Token
from ..api import About, Api, Refused, bad
from ..turn import Turn
from . import fields
from .common import Choices, finish_of, several
from .requests import LENGTHS, CompletionRequest

PROMPTS = 256

Prompt = str | tuple[int, ...]


class Completions(Api):
    """The endpoint /v1/completions."""

    path = "/v1/completions"
    name = "completions"

    def read(self, body: bytes, about: About) -> tuple[Turn, CompletionsReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request: CompletionRequest = fields.read(body, self.name, about)
        prompts, choices = _prompts(request.prompt), request.n or 1
        if choices * len(prompts) > PROMPTS:
            raise bad(f"prompts and n ask for more than {PROMPTS} choices")
        if request.echo and "" in prompts:
            raise bad("an empty prompt cannot be echoed: nothing precedes the first token")
        plain = Turn(
            "completions",
            request.model or "",
            thinking="none",
            max_tokens=request.limit(about, *LENGTHS[1:]),
            sampling=request.sampling(),
            stop=request.stops,
            top_logprobs=request.logprobs,
            echo=bool(request.echo),
            token_ids=bool(request.return_token_ids),
        )
        turns = [replace(plain, text=one) if isinstance(one, str) else replace(plain, ids=one) for one in prompts]
        turn = several(turns, choices)
        return turn, CompletionsReply(turn, about, request.stream, request.usage, choices)


def _prompts(prompt: str | list[str | int | list[int]] | None) -> list[Prompt]:
    """Return the prompts of a request, each a text or a tuple of token ids."""
    if prompt is None:
        raise Refused(400, "missing prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise bad("prompt is empty")
    kinds = {type(one) for one in prompt}
    if len(kinds) > 1:
        raise bad("the entries of prompt are neither all strings, nor all token ids, nor all arrays of them")
    if kinds == {int}:
        return [tuple(prompt)]  # type: ignore[arg-type]
    return [one if isinstance(one, str) else tuple(one) for one in prompt]  # type: ignore[arg-type]


class CompletionsReply(Choices):
    """Formats an answer as chunks, or as one ``text_completion`` document with one choice per prompt."""

    id_prefix, kind, chunk_kind, reasoned = "cmpl", "text_completion", "text_completion", False

    def begin(self) -> None:
        """Begin the next choice."""
        super().begin()
        self._offsets = _Offsets()

    def pieces(self, delta: Delta) -> bytes:
        """Return the chunk of the present choice that carries ``delta``."""
        self.begun = True
        super().pieces(delta)
        self._steps += delta.steps
        return self._chunk(delta.text) if delta.text else b""

    def close(self) -> bytes:
        """Return the chunk that ends the present choice."""
        return self._chunk("", str(finish_of(self.answer)))

    def _chunk(self, text: str, finish: str | None = None) -> bytes:
        choice = self.with_ids({"text": text, "index": self.choice})
        if self.turn.top_logprobs is not None:
            choice["logprobs"], self._steps = _logprobs(self._steps, self._offsets), []
        return self.event({"choices": [choice | {"finish_reason": finish}]})

    def one(self, number: int, answer: Completion) -> dict[str, Any]:
        """Return choice ``number`` of a document."""
        choice: dict[str, Any] = {"text": answer.text, "index": number}
        if self.turn.top_logprobs is not None:
            choice["logprobs"] = _logprobs(answer.steps, _Offsets())
        return choice | {"finish_reason": str(finish_of(answer))}


class _Offsets:
    """Counter of the character offset of each token in the text.

    A token that begins inside a character has the offset of that character's start.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, raw: bytes) -> int:
        """Return the offset in characters of the next token, whose bytes are ``raw``."""
        at = self._at
        self._at += len(self._decoder.decode(raw))
        return at


def _logprobs(steps: Sequence[Step], offsets: _Offsets) -> dict[str, Any]:
    """Return the ``logprobs`` object of a choice: OpenAI's parallel lists, one entry per token, and our own ``bytes``.

    ``bytes`` holds each token's bytes, since a token may not be valid UTF-8.
    """
    return {
        "tokens": [_text(step.token) for step in steps],
        "token_logprobs": [step.token.logprob for step in steps],
        "top_logprobs": [_top(step) for step in steps],
        "text_offset": [offsets.next(step.token.raw) for step in steps],
        "bytes": [list(step.token.raw) for step in steps],
    }


def _top(step: Step) -> dict[str, float | None] | None:
    """Return the log probabilities of a token's alternatives by their text; the likeliest of those with equal text.

    None for a token without a log probability.
    """
    if step.token.logprob is None:
        return None
    logprobs: dict[str, float | None] = {}
    for token in step.top:
        logprobs.setdefault(_text(token), token.logprob)
    return logprobs


def _text(token: Token) -> str:
    """Return a token's text; bytes that are not UTF-8 are spelled ``bytes:\\xe2``, as by OpenAI."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
