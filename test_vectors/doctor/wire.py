"""Raw requests of the API's stage, their answers, and the table of results that becomes a finding.

    wire = Wire(case)
    reply = wire.chat("Say hello.", max_tokens=8)      Reply(text, reasoning, calls, finish, prompt, tokens, ...)
    with Subject(wire, stage, "stop strings", next="...") as rows:
        rows.check("one string", lambda attempt: ...)

A check raises Wrong with what was observed, NotOffered if the server refuses what was asked for, Skip if nothing can be
told. What is Wrong is asked a second time and counts only if it is wrong again, so that an answer that changes from
request to request accuses nobody. Rate limits and overload are waited for (``targets.transport``), then skipped.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any

import httpx2

from ds4ref.conformance.checks.said import REFUSALS
from ds4ref.conformance.talk import Answer, NotOffered, Skip, Talk, Wrong, shown
from ds4ref.errors import Cancelled, TargetError
from ds4ref.targets import Usage
from ds4ref.targets.dialects import calls_of, reasoning_of, usage_of
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.transport import Refused

from ..finding import Outcome
from .case import ExamContext
from .examination import Stage
from .limits import OutOfTime

Json = dict[str, Any]
PATH = "/v1/chat/completions"
BUSY = (408, 425, 429, 502, 503, 504, 529)
"""HTTP statuses that say nothing about the request."""
INVALID = re.compile(r"validation error|invalid[_ ]request|not (?:supported|implemented)|unsupported", re.IGNORECASE)
"""Wordings of errors that are about the request, whatever their status."""
OFF: tuple[Json, ...] = (
    {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}},
    {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}, {},
)  # fmt: skip
"""Request fields that switch reasoning off, by server; the first ones after which there is no reasoning are used."""
HELD, UNSURE, REFUSED, BROKEN, SKIPPED = "held", "cannot tell", "refused", "broken", "not run"
OUTCOMES = {BROKEN: Outcome.WRONG, UNSURE: Outcome.UNSURE, HELD: Outcome.OK, REFUSED: Outcome.IMPOSSIBLE,
            SKIPPED: Outcome.SKIPPED}  # fmt: skip
"""Outcome of a finding by the worst of its rows, worst first."""


class Unsure(Exception):
    """Raised by a check for a deviation that may be allowed; the message says which."""


@dataclass(frozen=True)
class Reply:
    """The content of a chat completion, a document or a stream, read as leniently as clients do.

    calls    (id, name, arguments as JSON text) of each tool call
    entries  entries of ``logprobs.content``, None without log probabilities
    total    ``usage.total_tokens``
    choices  number of choices
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    finish: str = ""
    usage: Usage = Usage()
    total: int | None = None
    entries: tuple[Json, ...] | None = None
    choices: int = 1

    @property
    def raw(self) -> bytes | None:
        """Return the bytes of all tokens that have log probabilities; None if there are none."""
        if not self.entries:
            return None
        return b"".join(token_bytes(entry) for entry in self.entries)

    @property
    def sampled(self) -> tuple[str, str, list[tuple[str, Any]]]:
        """Return what the model wrote: text, reasoning, and calls with their arguments parsed."""
        return self.text, self.reasoning, [(name, _loaded(arguments)) for _, name, arguments in self.calls]


def token_bytes(entry: Json) -> bytes:
    """Return the bytes of a token in ``logprobs``; without ``bytes``, those of its text."""
    listed = entry.get("bytes")
    return bytes(listed) if isinstance(listed, list) else str(entry.get("token") or "").encode("utf-8", "replace")


def read(answer: Answer) -> Reply:
    """Read a chat completion; raise Wrong if it has no message, or a stream is malformed."""
    if answer.kind == "text/event-stream":
        pieces = [event.json for event in answer.events() if event.data != "[DONE]"]
    else:
        pieces = [answer.document()]
    texts, calls, finish, entries, choices = ["", ""], dict[int, list[str]](), "", None, set[int]()
    used: Json = next((piece for piece in reversed(pieces) if isinstance(piece.get("usage"), dict)), {})
    for piece in pieces:
        if "error" in piece and not piece.get("choices"):
            raise Wrong(f"an error inside the answer: {shown(piece['error'])}")
        for choice in piece.get("choices") or ():
            choices.add(choice.get("index") or 0)
            if choice.get("index"):
                continue
            message = choice.get("message") or choice.get("delta") or {}
            texts[0] += message.get("content") or ""
            texts[1] += reasoning_of(message).decode("utf-8", "replace")
            for delta in calls_of(message):
                call = calls.setdefault(delta.index, ["", "", ""])
                call[0], call[1], call[2] = delta.id or call[0], call[1] + delta.name, call[2] + delta.arguments
            listed = (choice.get("logprobs") or {}).get("content")
            entries = (entries or ()) + tuple(listed) if listed else entries
            finish = choice.get("finish_reason") or finish
    if not choices:
        raise Wrong(f"no choices: {shown(answer.text)}")
    total = used.get("usage", {}).get("total_tokens")
    listed_calls = tuple((one[0], one[1], one[2]) for _, one in sorted(calls.items()))
    return Reply(texts[0], texts[1], listed_calls, finish, usage_of(used), total, entries, len(choices))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Wire(Talk):
    """The tester's connection, over the target's own: with its key, retries, limits, and the stage's time limit.

    off     request fields that switch reasoning off, as ``settle`` has found them
    prompt  prompt with the longest answer, ``base``, as a server with a warm cache gives it
    salts   numbers for prompts that must be new to the server
    failed  what the server says of requests that it refuses with a 5xx, which belongs to its own failures
    """

    def __init__(self, case: ExamContext):
        assert isinstance(case.target, HttpTarget)
        self.case, self.target = case, case.target
        super().__init__(case.target.name, case.target.model, tokens=48)
        self.off: Json = {}
        self.prompt, self.base = "", Reply()
        self.salts = count(1)
        self.failed: dict[str, str] = {}

    @contextmanager
    def _opened(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        transport = self.target.transport
        with transport.opened(method, path.removeprefix("/v1"), data or None, self.case.limit) as response:
            yield response

    def _read(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request; raise OutOfTime at the end of the stage, Skip if the server is overloaded or silent."""
        self.case.limit.check()
        start, answer, watch = time.monotonic(), None, self.target.transport.watch
        try:
            answer = super()._read(method, path, data, headers)
            return answer
        except Refused as refused:
            if refused.status in BUSY:
                raise Skip(f"the server is busy or slow: {refused}") from None
            return Answer(refused.status, {"content-type": "application/json"}, refused.reply.encode())
        except Cancelled:
            self.case.limit.check()
            raise
        except TargetError as error:
            raise Skip(f"no answer: {error}") from None
        finally:
            if watch is not None:
                reply = _loaded(answer.body.decode("utf-8", "replace")) if answer is not None else None
                watch(json.loads(data or b"{}"), reply, time.monotonic() - start)

    def leave(self, path: str, body: Mapping[str, Any]) -> str:
        """Request a stream and leave it after its first bytes, which are returned; raise as ``chat`` does."""
        try:
            return super().leave(path, body)
        except Refused as refused:
            if refused.status in BUSY:
                raise Skip(str(refused)) from None
            self._taken(body, refused.status, refused.reply)
            raise Wrong(str(refused)) from None
        except TargetError as error:
            raise Skip(f"no answer: {error}") from None

    def body(self, content: Any, **more: Any) -> Json:
        """Return a greedy request without reasoning.

        content: the user's message or all messages; more: members that take precedence, left out where they are None.
        """
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        fields = {"model": self.model, "messages": messages, "max_tokens": self.tokens, "temperature": 0, **self.off}
        fields |= {**self.target.extra, **more}
        return self.target.dialect.fitted({name: value for name, value in fields.items() if value is not None})

    def chat(self, content: Any, again: bool = False, **more: Any) -> Reply:
        """Return the answer to the request ``body(content, **more)``; equal requests are sent once unless ``again``.

        Raise NotOffered if the server refuses the request, Wrong if it fails (5xx) or its answer is malformed.
        """
        return self.reply(self.body(content, **more), again)

    def reply(self, body: Json, again: bool = False) -> Reply:
        """Return the answer to a request, as ``chat`` does."""
        answer = self.again(PATH, body) if again else self.ask(PATH, body)
        self._taken(body, answer.status, answer.body.decode("utf-8", "replace"))
        return read(answer)

    def _taken(self, body: Mapping[str, Any], status: int, reply: str) -> None:
        """Raise NotOffered if a status, or else the words of an error, say that the server does not take a request."""
        said = f"HTTP {status}: {shown(reply)[:120]}"
        if status in REFUSALS:
            raise NotOffered(said)
        if status >= 500 and INVALID.search(reply):
            self.failed[json.dumps(body)] = said
            raise NotOffered(said)

    def known(self, field: str, wrong: Any = "x") -> bool:
        """Return whether the server knows a request field: it refuses a value of a wrong type for it."""
        try:
            self.chat("Hi", max_tokens=1, **{field: wrong})
        except NotOffered:
            return True
        except Wrong:
            return True
        return False

    def settle(self) -> None:
        """Find out how reasoning is switched off; raise NotOffered, Wrong or Skip if no request is answered."""
        for self.off in OFF:
            try:
                if not self.chat("Name three rivers.", max_tokens=8).reasoning:
                    return
            except (NotOffered, Wrong):
                if not self.off:
                    raise

    def forget(self) -> None:
        """Send requests again even if they were sent before."""
        self._asked.clear()


Check = Callable[[int], str | None]
"""A check of one row, called with the number of the attempt (0, 1); returns a remark."""


class Subject:
    """A context manager that collects the results of one subject's checks and adds them as one finding at its end.

    next   what to do if something is broken
    more   further fields of the finding
    """

    def __init__(self, wire: Wire, stage: Stage, name: str, next: str = "", **more: str):
        self.wire, self.stage, self.name, self.next, self.more = wire, stage, name, next, more
        self.rows: dict[str, tuple[str, str]] = {}

    def __enter__(self) -> Subject:
        self.wire.case.progress(self.name)
        return self

    def check(self, row: str, run: Check) -> str:
        """Run one check, a second time if it is wrong; store and return its result."""
        self.wire.case.limit.check()
        self.wire.case.progress(f"{self.name}: {row}")
        wrong = ""
        for attempt in range(2):
            try:
                state, note = HELD, run(attempt) or ""
                if wrong:
                    state, note = UNSURE, f"once in two tries: {wrong}"
                break
            except Wrong as error:
                state, note = BROKEN, str(error)
                wrong = note
                self.wire.forget()
            except NotOffered as error:
                state, note = REFUSED, str(error)
                break
            except Unsure as error:
                state, note = UNSURE, str(error)
                break
            except Skip as error:
                state, note = SKIPPED, str(error)
                break
            except (LookupError, TypeError, AttributeError, ValueError) as error:
                state, note = BROKEN, f"another shape ({type(error).__name__}: {shown(str(error))})"
                break
        if wrong and state not in (BROKEN, UNSURE):
            state, note = UNSURE, f"once, and then {note}: {wrong}"
        self.rows[row] = state, note
        return state

    def names(self, state: str) -> list[str]:
        """Return the rows with one result."""
        return [row for row, (result, _) in self.rows.items() if result == state]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self.rows:
            if kind is not None and issubclass(kind, OutOfTime):
                self.stage.add(self.name, Outcome.SKIPPED, "out of time")
            return
        worst = next(state for state in OUTCOMES if self.names(state))
        counts = [f"{len(self.names(state))} {state}" for state in OUTCOMES if state != HELD and self.names(state)]
        says = f"{len(self.names(HELD))} of {len(self.rows)} held" + "".join(f", {one}" for one in counts)
        if worst in (BROKEN, UNSURE):
            first = self.names(worst)[0]
            says += f": {', '.join(self.names(worst)[:6])} ({first}: {self.rows[first][1]})"
        figures = {row: state + (f": {note}" if note else "") for row, (state, note) in self.rows.items()}
        steps = [self.next] if self.next and worst == BROKEN else []
        if kind is not None and issubclass(kind, OutOfTime):
            says += "; out of time"
        self.stage.add(self.name, OUTCOMES[worst], says, figures=figures, next=steps, **self.more)


def names_of(tools: Sequence[Json]) -> list[str]:
    """Return the names of declared tools."""
    return [str(tool["function"]["name"]) for tool in tools]
