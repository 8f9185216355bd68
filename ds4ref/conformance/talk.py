"""Sends HTTP requests to the tested server, each only once, and parses the answers strictly.

    talk = Talk("http://127.0.0.1:8000")
    answer = talk.ask("/v1/chat/completions", {...})
    answer.document(), answer.events()          raise Wrong if the answer is malformed

Equal requests are sent once, since several checks use the same answer. Nothing is retried: a failure is a finding.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx2

from ..targets.transport import tls_context

SHOWN = 160
"""Maximum number of characters of an answer quoted in a message."""


class Wrong(Exception):
    """Raised by a check if an answer is not as expected; the message is the observed result."""


class Skip(Exception):
    """Raised by a check that cannot be run; the message says why."""


class NotOffered(Skip):
    """Raised by a check if the server refuses the tested feature or shows no sign of it; the message names it."""


def expect(true: object, got: object) -> None:
    """Raise Wrong with the observed value ``got`` unless ``true`` holds."""
    if not true:
        raise Wrong(shown(got))


def shown(value: object) -> str:
    """Format ``value`` as one line of at most SHOWN characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN]).split())
    return line if len(line) <= SHOWN and len(text) <= 4 * SHOWN else line[: SHOWN - 1] + "\u2026"


@dataclass(frozen=True)
class Event:
    """A server-sent event: its name ("" for none) and its data."""

    name: str
    data: str

    @cached_property
    def json(self) -> dict[str, Any]:
        """The data parsed as a JSON object; raises Wrong if it is not one."""
        value = parsed(self.data)
        expect(isinstance(value, dict), f"an event that is no object: {shown(self.data)}")
        return value


def parsed(text: str) -> Any:
    """Return the value of strict JSON text (without NaN); raises Wrong if it is malformed."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        raise Wrong(f"what is no JSON: {shown(text) or 'nothing'}") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)


@dataclass(frozen=True)
class Answer:
    """The response to a request.

    status   HTTP status, 0 if there was no response
    headers  response headers, names in lower case
    body     what was received of the body
    cut      why the connection broke before the end of the response, "" if it did not
    times    (bytes received so far, seconds since the request) after each piece of the body
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: str = ""
    times: tuple[tuple[int, float], ...] = ()

    @property
    def kind(self) -> str:
        """The content type, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def text(self) -> str:
        """The body as text; raises Wrong if it is not UTF-8."""
        try:
            return self.body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Wrong(f"what is no UTF-8: {error}") from None

    def arrived(self, status: int = 200) -> None:
        """Raise Wrong unless the response is complete and its status is ``status``."""
        expect(self.status, f"no answer: {self.cut}")
        expect(self.status == status, f"HTTP {self.status}: {shown(self.body.decode('utf-8', 'replace'))}")
        expect(not self.cut, f"an answer that breaks off: {self.cut}")

    def document(self, status: int = 200) -> dict[str, Any]:
        """Return the JSON object in the body; raises Wrong if there is none, or the status is not ``status``."""
        self.arrived(status)
        expect(self.kind == "application/json", f"content type {self.kind or 'none'}")
        value = parsed(self.text)
        expect(isinstance(value, dict), value)
        return value

    def events(self) -> list[Event]:
        """Return the events of a stream; raises Wrong if it is malformed or incomplete."""
        self.arrived()
        return list(_events(self.text))

    def timed(self) -> list[tuple[Event, float]]:
        """Return the events of a stream, each with the seconds from the request until it had arrived completely."""
        self.arrived()
        ends = [match.end() for match in _BLANK.finditer(self.body)]
        events, found, begun = [], iter(self.times), 0
        have, time = 0, 0.0
        for end in ends:
            while have < end:
                have, time = next(found)
            events += [(event, time) for event in _events(self.body[begun:end].decode("utf-8", "replace"))]
            begun = end
        return events


_BLANK = re.compile(rb"(?:\r\n|\n|\r){2}")


def _events(text: str) -> Iterator[Event]:
    """Yield the server-sent events in ``text``, whose lines may end in LF, CRLF or CR, as the standard says.

    Raises Wrong for a line that does not belong to an event, and for an event without the blank line that ends it.
    """
    name, data = "", list[str]()
    rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in rest:
        if not line:
            if data:
                yield Event(name, "\n".join(data))
            name, data = "", list[str]()
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        else:
            expect(field in ("", "id", "retry"), f"a line that is no part of an event: {shown(line)}")
    expect(not data, f"an event without the blank line behind it: {shown(' '.join(data))}")


class Talk:
    """The connection to one server, with a cache of its answers.

    url      the server's address
    model    model to request, "" for the first that the server lists
    key      API key, "" for none
    tokens   limit on the length of answers in tokens
    timeout  seconds for each request
    client   HTTP client to use, None for a new one
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        key: str = "",
        *,
        tokens: int = 200,
        timeout: float = 300.0,
        client: httpx2.Client | None = None,
    ):
        self.url, self.key, self.tokens = url.rstrip("/").removesuffix("/v1"), key, tokens
        headers = {"authorization": f"Bearer {key}", "x-api-key": key} if key else {}
        headers["anthropic-version"] = "2023-06-01"
        # Proxies of the environment are not used, since the server is local. Each request has its own connection: a
        # server may close an idle one at any time, which would look like a failure.
        alone = httpx2.Limits(max_keepalive_connections=0)
        self.client = client or httpx2.Client(timeout=timeout, verify=tls_context(), trust_env=False, limits=alone)
        self.client.headers.update(headers)
        self._model = model
        self._asked: dict[str, Answer] = {}

    def close(self) -> None:
        """Close the connection pool."""
        self.client.close()

    @cached_property
    def models(self) -> Answer:
        """The answer to GET /v1/models."""
        return self.ask("/v1/models")

    @cached_property
    def model(self) -> str:
        """The model to request: the one that the user chose, else the first that the server lists, else "default"."""
        if self._model:
            return self._model
        try:
            return str(self.models.document()["data"][0]["id"])
        except (Wrong, LookupError, TypeError):
            return "default"

    @cached_property
    def ctx(self) -> int | None:
        """Context length in tokens from the list of models, None if not reported."""
        try:
            entry = next(one for one in self.models.document()["data"] if one["id"] == self.model)
        except (Wrong, LookupError, TypeError, StopIteration):
            return None
        meta = entry.get("meta") or {}
        known = [entry.get(name) for name in ("context_length", "max_model_len", "context_window")] + [
            meta.get("n_ctx")
        ]
        return next((n for n in known if isinstance(n, int) and n > 0), None)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """Return the answer to a POST of ``body`` as JSON, or to a GET if it is None; equal requests are sent once."""
        key = f"{path} {json.dumps(body)}"
        if key not in self._asked:
            self._asked[key] = self._read("GET", path, b"", {}) if body is None else self.again(path, body)
        return self._asked[key]

    def again(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST ``body`` even if it was sent before, and return the new answer."""
        return self.raw(path, json.dumps(body, ensure_ascii=False).encode())

    def raw(self, path: str, body: bytes) -> Answer:
        """POST the bytes ``body``, which need not be valid JSON, and return the answer."""
        return self._read("POST", path, body, {"content-type": "application/json"})

    def offers(self, path: str) -> bool:
        """Return whether the server has an endpoint at ``path``: any status but 404, 405 or 501."""
        return self.ask(path, {}).status not in (404, 405, 501)

    def leave(self, path: str, body: Mapping[str, Any]) -> str:
        """Request a stream, disconnect after its first bytes, and return these bytes as text."""
        try:
            content = json.dumps(body, ensure_ascii=False).encode()
            with self._opened("POST", path, content, {"content-type": "application/json"}) as response:
                for data in response.iter_bytes():
                    if data:
                        return data.decode("utf-8", "replace")
        except httpx2.HTTPError as error:
            raise Wrong(f"no stream: {error}") from None
        raise Wrong("an empty stream")

    @contextmanager
    def _opened(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Send a request and open its response, whatever its status."""
        with self.client.stream(method, self.url + path, content=data or None, headers=headers) as response:
            yield response

    def _read(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        data_read, times, begun = b"", list[tuple[int, float]](), time.monotonic()
        try:
            with self._opened(method, path, data, headers) as response:
                status, answer_headers = response.status_code, {k.lower(): v for k, v in response.headers.items()}
                try:
                    for more in response.iter_bytes():
                        data_read += more
                        times.append((len(data_read), time.monotonic() - begun))
                except httpx2.HTTPError as error:
                    return Answer(status, answer_headers, data_read, f"{type(error).__name__}: {error}", tuple(times))
                return Answer(status, answer_headers, data_read, "", tuple(times))
        except httpx2.HTTPError as error:
            return Answer(0, {}, b"", f"{type(error).__name__}: {error}")
