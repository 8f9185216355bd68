"""/v1/completions: OpenAI's legacy completions (docs/reference/server.md).

A prompt is continued as it is, with or without ``echo``: no chat template, and a BOS only before the text of a model
that has no chat protocol of its own and whose texts start with one. With ``apply_chat_template``, a field of ours, a
text becomes a user message, as in ds4, and the answer is all generated text, including reasoning and its tags.
Left out on purpose: ``best_of``, ``suffix``.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...targets.answer import Delta, Step, Token
from ...text.chat import Message
from ...text.fields import array
from ...text.protocol import DEFAULT_SYSTEM
from ...text.rawjson import is_string, string
from ..api import About, Api, Refused, sse
from ..deviations import on
from ..turn import Failed, Turn
from . import fields, known
from .common import Base, Collected, compact, encoded, ids_of, openai_error, openai_usage, per_prompt, several

MAX_TOP = 20
PROMPTS = 256
TEMPLATE = "apply_chat_template"
"""Request field, false by default: answer the prompt as a user's message."""

Prompt = str | tuple[int, ...]


class Completions(Api):
    """The endpoint /v1/completions."""

    path = "/v1/completions"
    name = "completions"

    def read(self, body: bytes, about: About) -> tuple[Turn, CompletionsReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request = fields.Body(body)
        known.check(request, self.name)
        prompts = _prompts(request.needed("prompt"))
        model = fields.model(request, about)
        thinking = fields.thinking(request, about, model)
        echo, stream = request.flag("echo"), request.flag("stream")
        chat = request.flag(TEMPLATE, not on(about.options, "raw-completions"))
        if echo and chat and TEMPLATE in request:
            raise fields.bad(f"echo returns a prompt as it is: it cannot be combined with {TEMPLATE}")
        plain = Turn(
            "completions",
            model,
            thinking=thinking,
            max_tokens=fields.limit(request, about, *fields.LENGTHS),
            sampling=fields.sampling(request, about, thinking),
            stop=fields.stops(request, "stop"),
            top_logprobs=_top_logprobs(request.raw("logprobs")),
            echo=echo,
            token_ids=request.flag("return_token_ids"),
            raw=True,
            affinity=fields.affinity(request, about),
        )
        choices = request.choices()
        if choices * len(prompts) > PROMPTS:
            raise fields.bad(f"prompts and n ask for more than {PROMPTS} choices")
        turn = several([_asked(plain, prompt, chat and not echo) for prompt in prompts], choices)
        return turn, CompletionsReply(turn, about, stream, fields.include_usage(request), choices)

    def error(self, refused: Refused) -> bytes:
        """Return the error as OpenAI's JSON document."""
        return openai_error(refused)


def _prompts(raw: str) -> list[Prompt]:
    """Return the prompts, each a text or token ids."""
    if is_string(raw):
        return [string(raw)]
    with fields.reading():
        entries = array(raw, "prompt")
        if len(entries) > PROMPTS and not _is_number(entries[0]):
            raise fields.bad(f"prompt has more than {PROMPTS} entries")
        if not entries:
            raise fields.bad("prompt is empty")
        if all(map(_is_number, entries)):
            return [_ids(entries)]
        if all(entry.startswith("[") for entry in entries):
            return [_ids(array(entry, "an entry of prompt")) for entry in entries]
        if not all(map(is_string, entries)):
            raise fields.bad("the entries of prompt are neither all strings, nor all token ids, nor all arrays of them")
        return [string(entry) for entry in entries]


def _is_number(raw: str) -> bool:
    return raw[0] in "-0123456789"


def _ids(entries: Sequence[str]) -> tuple[int, ...]:
    try:
        ids = tuple(int(entry) for entry in entries if len(entry) < 20)
    except ValueError:
        ids = ()
    if not ids or len(ids) < len(entries):
        raise fields.bad("prompt is not an array of token ids")
    return ids


def _asked(plain: Turn, prompt: Prompt, chat: bool) -> Turn:
    """Return the turn of one prompt; ``plain``: the request's turn without a prompt; ``chat``: apply the template."""
    if not isinstance(prompt, str):
        return replace(plain, ids=prompt, thinking="none")
    if chat:
        return replace(plain, messages=(Message("system", DEFAULT_SYSTEM), Message("user", prompt)))
    if plain.echo and not prompt:
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
    """Formats an answer as chunks, or as one ``text_completion`` document with one choice per prompt."""

    def __init__(self, turn: Turn, about: About, stream: bool, usage: bool, choices: int = 1):
        super().__init__(turn, about, stream)
        self._usage, self._choices = usage, choices
        self._done: list[Collected] = []  # the choices before the one that is being generated
        self._steps: list[Step] = []
        self._token_ids: list[int] = []
        self._offsets = _Offsets()

    @property
    def _index(self) -> int:
        return len(self._done)

    def answered(self, delta: Delta) -> bytes:
        """Finish the choice of one of several prompts; return the server-sent events that end that choice."""
        out = self._pieces(delta) + self._last(self.collected) if self.stream else b""
        self._done.append(self.collected)
        self.collected, self._steps, self._token_ids, self._offsets = Collected(), [], [], _Offsets()
        return out

    # --- a stream

    def delta(self, delta: Delta) -> bytes:
        """Return the chunks that carry ``delta``, as server-sent events."""
        out = self._pieces(delta)
        if not delta.finish:
            return out
        out += self._last(self.collected)
        if self._usage:
            usage = self._counted()
            out += sse(compact(self._head() | {"choices": [], "usage": usage}))
        return out + sse("[DONE]")

    def _pieces(self, delta: Delta) -> bytes:
        self.begun = True
        self._steps += delta.steps
        self._token_ids += ids_of(delta.steps)
        return self._chunk(delta.text) if delta.text else b""

    def _last(self, answer: Collected) -> bytes:
        return self._chunk("", str(answer.finish))

    def _chunk(self, text: str, finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"text": text, "index": self._index}
        if self.turn.token_ids:
            choice["token_ids"], self._token_ids = self._token_ids, []
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
        """Return a chunk with an ``error`` member."""
        return sse(compact({"error": {"message": failed.message, "type": "server_error"}}))

    # --- a document

    def document(self) -> bytes:
        """Return the whole answer as a ``text_completion`` JSON document."""
        self.whole()
        answers = [*self._done, self.collected]
        choices = []
        for index, answer in enumerate(answers):
            choice: dict[str, Any] = {"text": answer.text, "index": index}
            if self.turn.token_ids:
                choice["token_ids"] = ids_of(answer.steps)
            if self.turn.top_logprobs is not None:
                choice["logprobs"] = _logprobs(answer.steps, _Offsets())
            choices.append(choice | {"finish_reason": str(answer.finish)})
        return encoded(compact(self._head() | {"choices": choices, "usage": self._counted()}) + "\n")

    def _counted(self) -> dict[str, Any]:
        return openai_usage(per_prompt([*self._done, self.collected], self._choices), thought=False)


class _Offsets:
    """Character offsets of tokens in the text; a token that continues a character has the offset of its start."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, raw: bytes) -> int:
        """Return the offset of the next token in characters."""
        at = self._at
        self._at += len(self._decoder.decode(raw))
        return at


def _logprobs(steps: Sequence[Step], offsets: _Offsets) -> dict[str, Any]:
    """Return OpenAI's parallel lists, and ``bytes``, our addition, for tokens that are not valid UTF-8."""
    return {
        "tokens": [_text(step.token) for step in steps],
        "token_logprobs": [step.token.logprob for step in steps],
        "top_logprobs": [_top(step) for step in steps],
        "text_offset": [offsets.next(step.token.raw) for step in steps],
        "bytes": [list(step.token.raw) for step in steps],
    }


def _top(step: Step) -> dict[str, float | None] | None:
    """Return the alternatives by text; of several with the same text, the likeliest."""
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
