"""Any OpenAI-compatible endpoint as a target: chat completions, completions, log probabilities, echo.

Images and several choices are not supported, on purpose. Whether a server supports a field shows only in its answers.
Therefore the declared abilities are those of the protocol, and an answer without something that was requested raises
TargetError. ``dialects`` handles the differences between servers.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from ..errors import Cancelled, TargetError, UsageError
from ..text.byte_level import to_bytes
from .answer import Completion, Delta, Finish, Step, Token, collect
from .base import Ability, Prompt, Request, Target
from .dialects import Dialect, calls_of, finish_of, likely, reasoning_of, usage_of
from .transport import NotJson, Refused, Transport
from .wire import printable, raw_bytes

Answer = TypeVar("Answer")
MAX_TOP = 20
MOST_FOR_A_LETTER = 3
"""Most tokens of a plain prompt of one letter: BOS, SentencePiece's leading space, the letter. A chat has more."""
_MOST_LISTED = re.compile(r"top_logprobs must be (?:at most|less than or equal to) (\d+)")
_TRUE_OR_FALSE = re.compile(r"logprobs must be .*bool")
_SPELLED = re.compile(r"bytes:(\\x[0-9a-f]{2})+")


class HttpTarget(Target):
    """An OpenAI-compatible endpoint as a target; ``base`` is its address up to ".../v1".

    Any number of streams may run at once, each with a connection of its own.

    model      model name to request; None asks the server, which must then serve exactly one model
    dialect    kind of server, a key of ``dialects.KINDS``
    prefill    how the chat endpoint is made to continue a given beginning of the answer, a key of
               ``dialects.PREFILLS``; None: as the dialect does it
    ids        the completions endpoint takes token ids as prompt, even if the dialect does not say so
    extra      further request fields, sent unchanged
    accept     other model names that an answer may carry; an answer that names any other model is refused
    transport  HTTP client; None makes one with ``options``, the keyword arguments of ``Transport``
    """

    kind = "http"
    max_top_logprobs = MAX_TOP

    def __init__(
        self,
        base: str,
        model: str | None = None,
        *,
        dialect: str = "probe",
        prefill: str | None = None,
        ids: bool = False,
        extra: dict[str, Any] | None = None,
        accept: Sequence[str] = (),
        transport: Transport | None = None,
        **options: Any,
    ):
        self.dialect = Dialect(dialect, prefill)
        self.transport = transport or Transport(base, **options)
        self.name = self.transport.base
        self.abilities = frozenset(Ability) - {Ability.FULL_LOGITS, Ability.TOKENIZE, Ability.GUIDE}
        if not (ids or self.dialect.kind.ids):
            self.abilities -= {Ability.TOKEN_IDS}
        self.extra, self.accept = dict(extra or {}), tuple(accept)
        self._model, self._owner = model, ""
        # as error replies have said: most alternatives that the server lists; completions ask for them as chats do
        self._listed, self._as_chat = MAX_TOP, False
        self.served: set[str] = set()

    @property
    def model(self) -> str:
        """Return the model name to request; if none was set, ask the server, which must have exactly one model."""
        if self._model is None:
            try:
                entries = _list(_dict(self.transport.get("/models")).get("data"))
            except (NotJson, Refused) as error:
                if isinstance(error, Refused) and error.status not in (404, 405, 501):
                    raise
                raise UsageError(f"{self.name} lists no models, choose one with --model-name") from None
            names = [str(entry.get("id")) for entry in entries]
            if len(names) != 1:
                raise UsageError(
                    f"{self.name} serves {len(names)} models, choose one with --model-name: {', '.join(names[:20])}"
                )
            self._model, self._owner = names[0], str(entries[0].get("owned_by") or "")
        return self._model

    def complete(self, request: Request) -> Completion:
        """Send one request without streaming, because every server returns log probabilities in this form.

        A cancelled request returns an empty completion.
        """
        done = collect(self._deltas(request, False))
        if request.top_logprobs and done.text and not done.steps:
            raise TargetError(
                f"{self.name} returned no log probabilities although {request.top_logprobs} were asked for"
            )
        return replace(done, arrivals=(), sizes=())

    def stream(self, request: Request) -> Iterator[Delta]:
        """Send a request and yield deltas from server-sent events, each with its arrival time."""
        return self._deltas(request, True)

    def _deltas(self, request: Request, stream: bool) -> Iterator[Delta]:
        """Yield the deltas of an answer; without ``stream``, the reply is treated like a stream of a single event."""
        start, reason, usage, model = time.perf_counter(), "", None, ""
        # a character may be split over two events: decoded alone, each half would become a replacement character
        whole = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]
        try:
            with ExitStack() as stack:

                def answered(*asked: Any) -> Iterable[Any]:
                    if stream:
                        return stack.enter_context(self.transport.events(*asked))
                    return [self.transport.post(*asked)]

                start, events = self._sent(request, answered, stream)
                for event in events:
                    now, event = time.perf_counter() - start, _dict(event)
                    self._check(event)
                    model = _text(event.get("model")) or model
                    if isinstance(event.get("usage"), dict):
                        usage = usage_of(event)
                    if stream and not event.get("choices"):
                        continue
                    choice = self._choice(event)
                    reason = _text(choice.get("finish_reason")) or reason
                    piece = _message(choice, "delta" if stream else "message")
                    texts = _bytes(piece.get("content")), reasoning_of(piece)
                    text, reasoning = (decoder.decode(data) for decoder, data in zip(whole, texts, strict=True))
                    steps = tuple(
                        self._steps(choice, request.top_logprobs, now if stream else None, request.temperature == 0)
                    )
                    delta = Delta(text, steps, now, reasoning=reasoning, calls=calls_of(piece))
                    if delta.brings:
                        yield delta
            if not reason:
                raise TargetError(f"{self.name}: the {'stream' if stream else 'answer'} ended without a finish reason")
            finish, error = finish_of(reason)
        except Cancelled:
            finish, error = Finish.CANCELLED, ""
        text, reasoning = (decoder.decode(b"", True) for decoder in whole)
        yield Delta(text, (), time.perf_counter() - start, finish, usage, model, reasoning, error=error)

    # --- teacher forcing

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """Score the continuation with one request per token, each with all text before the token as a given prefix."""
        if prompt.text is not None:
            self.require_raw_text()
        top = max(1, top_logprobs)
        steps = []
        for i, raw in enumerate(continuation):
            before = b"".join(continuation[:i])
            try:
                forced = before.decode()
            except UnicodeDecodeError:
                # a prefix that ends inside a character cannot be sent as text: this step stays unknown
                steps.append(Step(Token(raw)))
                continue
            if prompt.text is not None:
                longer = Prompt.plain(prompt.text + forced)
            else:
                longer = replace(prompt, answer=prompt.answer + forced)
            done = self.complete(Request(longer, 1, top_logprobs=top))
            best = done.steps[0].top if done.steps else ()
            token = next((t for t in best if t.raw == raw), None)
            if token is None and done.steps and done.steps[0].token.raw == raw:
                token = done.steps[0].token
            steps.append(Step(Token(raw, token.logprob if token else None, token.id if token else None), best))
        return steps

    def continues_text(self) -> bool | None:
        """Return whether the completions endpoint continues a text prompt as it is, instead of making it a chat.

        To find out, a prompt of one letter is sent once: if the server counts more than ``MOST_FOR_A_LETTER`` prompt
        tokens, it is a chat. None if the server does not count.
        """
        count = self._letter_tokens
        return None if count is None else count <= MOST_FOR_A_LETTER

    @cached_property
    def _letter_tokens(self) -> int | None:
        return self.complete(Request(Prompt.plain("a"), 1)).usage.prompt

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """Score a text through the completions endpoint with its ``echo`` option, which returns prompt tokens, too.

        Raise TargetError if the server does not return the prompt's log probabilities.
        """
        body = {
            "model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0, "echo": True,
            "logprobs": max(1, top_logprobs), **self.extra,
        }  # fmt: skip
        answer = _dict(self.transport.post("/completions", body))
        self._check(answer)
        steps = self._steps(self._choice(answer), top_logprobs or 1, None)
        # Counting from the end does not work: servers disagree on how many generated tokens they list. The prompt ends
        # where its text is complete. Before it there may be a BOS that the server added, with or without text.
        wanted, skip = text.encode("utf-8", "surrogateescape"), 0
        if steps and not wanted.startswith(steps[0].token.raw):
            skip = 1
        prefix = b""
        for count, step in enumerate(steps[skip:], skip + 1):
            prefix += step.token.raw
            if prefix == wanted:
                return steps[skip:count]
        raise TargetError(f"{self.name} does not return log probabilities of the prompt (echo)")

    def identity(self) -> dict[str, Any]:
        """Return the kind of target, its address, the requested model, and the model names that its answers carried."""
        return {"kind": self.kind, "name": self.name, "model": self.model, "served": sorted(self.served)}

    def server(self) -> dict[str, Any]:
        """Return the dialect in use, and those to try if the server ignored the thinking mode (``dialects.likely``)."""
        name = self.dialect.kind.name
        return {"dialect": name, "likely": likely(name, self._owner)}

    def notes(self) -> list[str]:
        """Return remarks on bytes that were not UTF-8, and on request fields left out because they were refused."""
        lost, refused = self.transport.undecodable, sorted(self.dialect.refused)
        notes = [f"{self.name}: {lost} bytes were not UTF-8 (split characters)"] if lost else []
        return notes + ([f"{self.name} rejects {', '.join(refused)}: not sent"] if refused else [])

    def close(self) -> None:
        """Close connections."""
        self.transport.close()

    # --- inside

    def _sent(self, request: Request, send: Callable[..., Answer], stream: bool) -> tuple[float, Answer]:
        """Send a request with ``send``, repeating it without the fields that the server refuses.

        Return the time at which it was last sent (``time.perf_counter``), and the answer.
        """
        while True:
            path, body = self._call(request, stream)
            start = time.perf_counter()
            try:
                answer = send(path, body, request.cancel)
            except Refused as refused:
                most = _MOST_LISTED.search(refused.reply)
                if most and int(most[1]) < int(body.get("top_logprobs") or 0):
                    self._listed = int(most[1])
                elif body.get("logprobs") and not self._as_chat and _TRUE_OR_FALSE.search(refused.reply):
                    self._as_chat = True
                elif not self.dialect.learns(body, refused.status, refused.reply):
                    raise
            else:
                self.dialect.answered(body)
                return start, answer

    def _call(self, request: Request, stream: bool) -> tuple[str, dict[str, Any]]:
        self.require(*request.needs, needed_for="this prompt")
        if request.top_logprobs > self.max_top_logprobs:
            raise UsageError(f"at most {self.max_top_logprobs} alternatives per step over HTTP")
        prompt = request.prompt
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        if request.temperature > 0:
            body["top_p"] = request.top_p
            if request.min_p:
                body["min_p"] = request.min_p
        if request.seed is not None:
            body["seed"] = request.seed
        if request.stop:
            body["stop"] = list(request.stop)
        if request.exact:
            body |= self.dialect.exactly(request.max_tokens)
        body["stream"] = stream
        if stream:
            body["stream_options"] = {"include_usage": True}
        if prompt.text is None and prompt.ids is None:
            path, body = "/chat/completions", body | self._chat(prompt)
            if request.top_logprobs:
                body |= self._listing(request)
        else:
            path = "/completions"
            body["prompt"] = prompt.text if prompt.text is not None else list(prompt.ids or ())
            # ds4's server turns a plain prompt into a chat; if it then thinks, it samples even at temperature 0
            body |= self.dialect.switch(prompt.thinking, chat=False)
            if request.top_logprobs:
                body |= self._listing(request) if self._as_chat else {"logprobs": request.top_logprobs}
        return path, self.dialect.fitted(body | self.extra)

    def _listing(self, request: Request) -> dict[str, Any]:
        """Return the fields that ask for alternatives as chats do."""
        return {"logprobs": True, "top_logprobs": min(request.top_logprobs, self._listed)}

    def _chat(self, prompt: Prompt) -> dict[str, Any]:
        """Return the request fields of a conversation."""
        body: dict[str, Any] = {"messages": [self.dialect.message(message) for message in prompt.messages]}
        if prompt.tools:
            body["tools"] = self.dialect.tools(prompt.tools)
        if prompt.answer:
            if self.dialect.prefill is None:
                raise TargetError(f"{self.name} cannot continue a given answer: no --prefill style chosen")
            fields, more = self.dialect.prefill
            body["messages"].append({"role": "assistant", "content": prompt.answer, **fields})
            body |= more
        return body | self.dialect.switch(prompt.thinking)

    def _check(self, answer: dict[str, Any]) -> None:
        """Raise TargetError if the answer is an error message, or comes from another model than the requested one."""
        if "error" in answer:
            error = answer["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise TargetError(f"{self.name}: {self.transport.clean(raw_bytes(str(message)))}")
        served = answer.get("model")
        if not served:
            return
        if served != self.model and served not in self.accept:
            name = self.transport.clean(raw_bytes(str(served)), 80)
            raise TargetError(
                f"{self.name}: requested model {self.model}, but {name} answered: nothing recorded (see --accept-model)"
            )
        self.served.add(str(served))

    def _choice(self, answer: dict[str, Any]) -> dict[str, Any]:
        choices = _list(answer.get("choices"))
        if not choices:
            raise TargetError(f"{self.name}: the answer has no choices")
        return choices[0]

    def _steps(self, choice: dict[str, Any], top: int, at: float | None, greedy: bool = True) -> list[Step]:
        """Return the steps in an answer's ``logprobs``; ``greedy``: each token is the likeliest one."""
        logprobs = choice.get("logprobs")
        if not top or not isinstance(logprobs, dict):
            return []
        try:
            if isinstance(entries := logprobs.get("content"), list):
                if any("id" in e and "bytes" not in e and e.get("top_logprobs") for e in entries):
                    return [_mlx_step(entry, at) for entry in entries] if greedy else []
                return [Step(_token(e), tuple(map(_token, e.get("top_logprobs") or ())), at) for e in entries]
            if isinstance(logprobs.get("tokens"), list):
                return _legacy_steps(logprobs, at)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise TargetError(f"{self.name}: malformed log probabilities") from None
        return []


def _token(entry: dict[str, Any]) -> Token:
    """Return a token from an entry of a chat answer's ``logprobs``; without ``bytes``, its text is encoded as UTF-8."""
    raw = entry.get("bytes")
    data = bytes(raw) if raw is not None else raw_bytes(entry["token"])
    number = entry.get("id")
    return Token(data, float(entry["logprob"]), number if isinstance(number, int) else None)


def _mlx_step(entry: dict[str, Any], at: float | None) -> Step:
    """Return a step of a greedy answer of mlx-lm's server, which sends ids and no bytes.

    It spells tokens as the vocabulary does, and the token that it names is the first of its unsorted alternatives, not
    the one that it chose (findings/mlx-lm-server-lists-another-token.sh).
    """
    best = [Token(to_bytes(e["token"]), float(e["logprob"]), int(e["id"])) for e in entry["top_logprobs"]]
    best.sort(key=lambda token: -(token.logprob or 0.0))
    return Step(best[0], tuple(best), at)


def _legacy_steps(logprobs: dict[str, Any], at: float | None) -> list[Step]:
    """Return the steps from log probabilities in the format of the completions endpoint, all with arrival time ``at``.

    The format is one list per field, with alternatives as {text: logprob}. Our own server adds a list of each token's
    bytes, and spells alternatives that are not UTF-8 as OpenAI did ("bytes:\\xe2").
    """
    tokens, values = logprobs["tokens"], logprobs.get("token_logprobs") or [None] * len(logprobs["tokens"])
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    listed = logprobs.get("bytes")
    exact = listed is not None
    raws = [bytes(raw) for raw in listed] if listed is not None else [raw_bytes(text) for text in tokens]
    steps = []
    for raw, value, best in zip(raws, values, tops, strict=True):
        alternatives = [Token(_spelled(other, exact), float(lp)) for other, lp in (best or {}).items()]
        alternatives.sort(key=lambda token: -(token.logprob or 0.0))
        steps.append(Step(Token(raw, None if value is None else float(value)), tuple(alternatives), at))
    return steps


def _spelled(text: str, spelled: bool) -> bytes:
    """Return the bytes of a token's text; if ``spelled``, \"bytes:\\xe2\\x82\" means the two bytes that it spells."""
    if spelled and _SPELLED.fullmatch(text):
        return bytes.fromhex(text.removeprefix("bytes:").replace("\\x", ""))
    return raw_bytes(text)


def _message(choice: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the message or delta (``name``) of a choice; on the completions endpoint, its text in the same form."""
    message = choice.get(name)
    return message if isinstance(message, dict) else {"content": choice.get("text")}


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TargetError("the answer is not a JSON object")
    return value


def _list(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _bytes(value: Any) -> bytes:
    return raw_bytes(value) if isinstance(value, str) else b""
