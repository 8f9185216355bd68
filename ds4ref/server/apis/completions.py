"""/v1/completions: OpenAI's legacy completions (docs/server.md).

A text prompt is put into a chat, as ds4 does it, and the answer is everything that was generated, thinking and its tags
too. A prompt of token ids, and one that is echoed, is taken as it stands: no template, no BOS. Left out on purpose:
``n``, ``best_of``, ``suffix``.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...targets.answer import Delta, Step, Token
from ...text.chat import Message
from ...text.messages import array
from ...text.protocol import DEFAULT_SYSTEM
from ...text.rawjson import is_string, string
from ..api import About, Api, Refused, sse
from ..turn import Failed, Turn
from . import fields
from .common import Base, Said, compact, encoded, openai_error, openai_usage

MAX_TOP = 20
PROMPTS = 256
SAMPLING = ("temperature", "top_p", "min_p", "top_k", "seed")

Prompt = str | tuple[int, ...]


class Completions(Api):
    """The endpoint."""

    path = "/v1/completions"
    name = "completions"

    def read(self, body: bytes, about: About) -> tuple[Turn, CompletionsReply]:
        """A request's turn and the reply to it."""
        found = fields.Body(body)
        prompts = _prompts(found.needed("prompt"))
        model = fields.model(found, about)
        thinking = fields.thinking(found, about, model)
        echo, stream = found.flag("echo"), found.flag("stream")
        plain = Turn(
            "completions",
            model,
            thinking=thinking,
            max_tokens=fields.limit(found, about, "max_tokens"),
            sampling=fields.sampling(found, about, thinking, SAMPLING),
            stop=fields.stops(found, "stop"),
            top_logprobs=_top_logprobs(found.raw("logprobs")),
            echo=echo,
            raw=True,
            affinity=fields.affinity(found, about),
        )
        first, *more = [_asked(plain, prompt) for prompt in prompts]
        turn = replace(first, more=tuple(more))
        return turn, CompletionsReply(turn, about, stream, fields.include_usage(found))

    def error(self, refused: Refused) -> bytes:
        """The error document."""
        return openai_error(refused)


def _prompts(raw: str) -> list[Prompt]:
    """One prompt, or several: texts or token ids. What is neither is an empty text."""
    if is_string(raw):
        return [string(raw)]
    if not raw.startswith("["):
        return [""]
    with fields.reading():
        entries = array(raw, "prompt")
        if len(entries) > PROMPTS and not _is_number(entries[0]):
            raise fields.bad(f"prompt has more than {PROMPTS} entries")
        if entries and all(map(_is_number, entries)):
            return [_ids(entries)]
        if entries and all(entry.startswith("[") for entry in entries):
            return [_ids(array(entry, "an entry of prompt")) for entry in entries]
        return [string(entry) for entry in entries if is_string(entry)] or [""]


def _is_number(raw: str) -> bool:
    return raw[0] in "-0123456789"


def _ids(entries: Sequence[str]) -> tuple[int, ...]:
    try:
        found = tuple(int(entry) for entry in entries if len(entry) < 20)
    except ValueError:
        found = ()
    if not found or len(found) < len(entries):
        raise fields.bad("prompt is not an array of token ids")
    return found


def _asked(plain: Turn, prompt: Prompt) -> Turn:
    """The turn of one prompt."""
    if not isinstance(prompt, str):
        return replace(plain, ids=prompt, thinking="none")
    if not plain.echo:
        return replace(plain, messages=(Message("system", DEFAULT_SYSTEM), Message("user", prompt)))
    if not prompt:
        raise fields.bad("an empty prompt cannot be echoed: nothing precedes the first token")
    return replace(plain, text=prompt, thinking="none")


def _top_logprobs(raw: str | None) -> int | None:
    if raw is None:
        return None
    count = fields.value(raw, "logprobs")
    if not 0 <= count <= MAX_TOP:
        raise fields.bad(f"logprobs is not between 0 and {MAX_TOP}")
    return int(count)


class CompletionsReply(Base):
    """Chunks, or a completion. Each prompt has a choice of its own."""

    def __init__(self, turn: Turn, about: About, stream: bool, usage: bool):
        super().__init__(turn, about, stream)
        self._usage = usage
        self._done: list[Said] = []  # the choices before the one that is being generated
        self._steps: list[Step] = []
        self._offsets = _Offsets()

    @property
    def _index(self) -> int:
        return len(self._done)

    def answered(self, delta: Delta) -> bytes:
        """One of several prompts is answered."""
        out = self._pieces(delta) + self._last(self.said) if self.stream else b""
        self._done.append(self.said)
        self.said, self._steps, self._offsets = Said(), [], _Offsets()
        return out

    # --- a stream

    def delta(self, delta: Delta) -> bytes:
        """The chunks of a piece."""
        out = self._pieces(delta)
        if not delta.finish:
            return out
        out += self._last(self.said)
        if self._usage:
            counts = [said.counts for said in (*self._done, self.said)]
            usage = openai_usage(counts, thought=False)
            out += sse(compact(self._head() | {"choices": [], "usage": usage}))
        return out + sse("[DONE]")

    def _pieces(self, delta: Delta) -> bytes:
        self.begun = True
        self._steps += delta.steps
        return self._chunk(delta.text) if delta.text else b""

    def _last(self, said: Said) -> bytes:
        return self._chunk("", str(said.finish))

    def _chunk(self, text: str, finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"text": text, "index": self._index}
        if self.turn.top_logprobs is not None:
            choice["logprobs"], self._steps = _logprobs(self._steps, self._offsets), []
        return sse(compact(self._head() | {"choices": [choice | {"finish_reason": finish}]}))

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.number}",
            "object": "text_completion",
            "created": self.about.created,
            "model": self.turn.model,
        }

    def late_error(self, failed: Failed) -> bytes:
        """A chunk with an error."""
        return sse(compact({"error": {"message": failed.message, "type": "server_error"}}))

    # --- a document

    def document(self) -> bytes:
        """The completion."""
        self.whole()
        answers = [*self._done, self.said]
        choices = []
        for index, said in enumerate(answers):
            choice: dict[str, Any] = {"text": said.text, "index": index}
            if self.turn.top_logprobs is not None:
                choice["logprobs"] = _logprobs(said.steps, _Offsets())
            choices.append(choice | {"finish_reason": str(said.finish)})
        usage = openai_usage([said.counts for said in answers], thought=False)
        return encoded(compact(self._head() | {"choices": choices, "usage": usage}) + "\n")


class _Offsets:
    """Where in the text each token begins. One that ends inside a character leaves the next one where it began."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, raw: bytes) -> int:
        """The offset of this token, in characters."""
        at = self._at
        self._at += len(self._decoder.decode(raw))
        return at


def _logprobs(steps: Sequence[Step], offsets: _Offsets) -> dict[str, Any]:
    """Parallel lists, as OpenAI has them. ``bytes`` is ours: a token's text does not always say what it is."""
    return {
        "tokens": [_text(step.token) for step in steps],
        "token_logprobs": [step.token.logprob for step in steps],
        "top_logprobs": [_top(step) for step in steps],
        "text_offset": [offsets.next(step.token.raw) for step in steps],
        "bytes": [list(step.token.raw) for step in steps],
    }


def _top(step: Step) -> dict[str, float | None] | None:
    """Alternatives by their text, the best of those that share one."""
    if step.token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for token in step.top:
        found.setdefault(_text(token), token.logprob)
    return found


def _text(token: Token) -> str:
    """A token's text; its bytes where it is none, spelled as OpenAI spelled them."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
