"""HTTP client for public APIs: retries with backoff and jitter, Retry-After, timeouts, a rate limit, an API key.

The API key comes from an environment variable, is sent in one header, and appears nowhere else: not in errors, logs,
representations or files.
"""

from __future__ import annotations

import email.utils
import functools
import json
import os
import random
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ..cancellation import Cancellation
from ..errors import Cancelled, TargetError, UsageError
from .wire import decoded, events

RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
MAX_WAIT = 60.0
MAX_BODY = 64 << 20
_LOCAL = ("localhost", "127.0.0.1", "::1")


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the TLS context shared by all clients of this process, since loading certificate authorities is slow."""
    return httpx2.create_ssl_context()


class Refused(TargetError):
    """Raised for an error reply of the server; has its HTTP ``status`` and the text of its ``reply``."""

    def __init__(self, message: str, status: int, reply: str):
        super().__init__(message)
        self.status, self.reply = status, reply


class NotJson(TargetError):
    """Raised for an answer that is not JSON though its status is no error."""


class Connection:
    """An HTTP client with at most one connection, whose socket can be shut down to wake a waiting reader."""

    def __init__(self, client: httpx2.Client):
        self.client, self.session = client, secrets.token_hex(8)
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any], cancel: Cancellation) -> None:
        """Remember the socket of a new connection; the HTTP library calls this for each event of a request (``trace``).

        If the request was cancelled meanwhile, the connection is closed at once.
        """
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            stream = info["return_value"]
            self._socket = stream.get_extra_info("socket")
            if cancel.requested:
                stream.close()
                _stop_if(cancel)

    def cut(self) -> None:
        """Shut the connection down, which wakes a thread that waits for data on it; safe in a signal handler."""
        if self._socket is not None:
            with suppress(OSError, ValueError):
                # bypasses the TLS layer, which would begin with its own closing message
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Transport:
    """An HTTP client that sends and receives JSON, for addresses below ``base``.

    Any number of threads may use it; each request has a connection of its own.

    key_env       environment variable with the API key; if it is empty or missing, no key is sent
    attempts      number of tries per request; it is repeated only after failures that may pass
    timeout       seconds to wait for a connection (at most 20), and for the next byte
    per_minute    maximum number of requests per minute, None for no limit
    sleep         function called with the seconds to wait between requests; None: wait until then or until cancelled
    client        HTTP client to use for all requests; None creates one per connection

    Attribute ``sessions``: whether each connection names a session of its own, as several clients would. Attribute
    ``watch``: called after every POST with (body, JSON reply, seconds); no reply: a stream, or an error.
    """

    def __init__(
        self,
        base: str,
        *,
        key_env: str = "DS4_API_KEY",
        attempts: int = 6,
        timeout: float = 120.0,
        per_minute: float | None = None,
        sleep: Callable[[float], None] | None = None,
        client: httpx2.Client | None = None,
    ):
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"not an http:// or https:// address: {parts.scheme}://{parts.hostname or ''}")
        if parts.username or parts.password:
            raise UsageError(f"no credentials in the address: put the key in the environment variable {key_env}")
        if parts.query or parts.fragment:
            # it would end up in stored results, and a key does not belong there
            raise UsageError("the address must not contain a query string: use http://HOST:PORT/v1")
        self.base = base.rstrip("/")
        self.attempts, self.interval, self._sleep = attempts, 60.0 / per_minute if per_minute else 0.0, sleep
        self._secret = os.environ.get(key_env, "").strip()
        if not (self._secret.isascii() and self._secret.isprintable()):
            # the HTTP library would quote the whole header in its error
            raise UsageError(f"the key in {key_env} has characters that cannot be sent")
        if self._secret and parts.scheme == "http" and parts.hostname not in _LOCAL:
            raise UsageError(f"{key_env} is not sent over plain http to {parts.hostname}: use https")
        self._last = -1e9
        self._random = random.Random()
        self.retries, self.sessions = 0, False
        self.watch: Callable[[dict[str, Any], Any, float], None] | None = None
        self.undecodable = 0  # bytes in all answers that were not UTF-8 (characters cut in two)
        self.timeout = httpx2.Timeout(timeout, connect=min(timeout, 20.0))
        self._client = client
        self._free: list[Connection] = []

    def get(self, path: str) -> Any:
        """Send a GET request and return the JSON reply."""
        return self._json("GET", path, None, None)

    def post(self, path: str, body: dict[str, Any], cancel: Cancellation | None = None) -> Any:
        """Send ``body`` as JSON and return the JSON reply.

        Raise Cancelled if ``cancel`` is triggered meanwhile, Refused for an error reply.
        """
        start, reply = time.monotonic(), None
        try:
            reply = self._json("POST", path, body, cancel)
        finally:
            self._watched(body, reply, start)
        return reply

    @contextmanager
    def events(self, path: str, body: dict[str, Any], cancel: Cancellation | None = None) -> Iterator[Iterator[Any]]:
        """Open a stream of server-sent events and iterate over their decoded JSON, up to ``[DONE]``.

        Only opening the stream is retried; a stream that breaks off raises TargetError.
        """
        start = time.monotonic()
        try:
            with self.opened("POST", path, body, cancel) as response:
                yield self._decoded(response, cancel)
        finally:
            self._watched(body, None, start)

    def close(self) -> None:
        """Close all idle connections."""
        while self._free:
            self._free.pop().client.close()

    def __repr__(self) -> str:
        return f"Transport({self.base!r})"

    # --- inside

    def _watched(self, body: dict[str, Any], reply: Any, start: float) -> None:
        if self.watch is not None:
            self.watch(body, reply, time.monotonic() - start)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secret}"} if self._secret else {}

    def _connection(self) -> Connection:
        """Return an idle connection or a new one."""
        with suppress(IndexError):
            return self._free.pop()
        if self._client is not None:
            return Connection(self._client)
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
        return Connection(httpx2.Client(timeout=self.timeout, verify=tls_context(), limits=limits))

    @contextmanager
    def opened(
        self, method: str, path: str, body: dict[str, Any] | bytes | None, cancel: Cancellation | None
    ) -> Iterator[httpx2.Response]:
        """Send a request and open its response, which has status 200; triggering ``cancel`` raises Cancelled.

        path  below ``base``, or a whole address of the same server
        body  the JSON object to send, or its text as bytes. Raise Refused for any other status.
        """
        cancel, connection = cancel or Cancellation(), self._connection()
        try:
            with cancel.does(connection.cut):
                response = self._send(connection, method, path, body, cancel)
                try:
                    yield response
                finally:
                    response.close()
        except TargetError:
            _stop_if(cancel)
            raise
        except httpx2.TransportError as error:
            _stop_if(cancel)
            raise TargetError(f"{self.base}: connection lost during the answer: {self._reason(error)}") from None
        finally:
            if cancel.requested and self._client is None:
                connection.client.close()
            else:
                self._free.append(connection)

    def _json(self, method: str, path: str, body: dict[str, Any] | None, cancel: Cancellation | None) -> Any:
        data = bytearray()
        with self.opened(method, path, body, cancel) as response:
            for part in response.iter_bytes():
                data += part
                if len(data) > MAX_BODY:
                    raise TargetError(f"{self.base}: the answer is larger than {MAX_BODY >> 20} MiB")
            try:
                return self._parsed(bytes(data))
            except (ValueError, RecursionError):
                message = f"{self.base}: the answer is not JSON: {self.clean(bytes(data[:80])) or 'it is empty'}"
                raise NotJson(message) from None

    def _decoded(self, response: httpx2.Response, cancel: Cancellation | None) -> Iterator[Any]:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise TargetError(
                f"{self.base}: expected an event stream, got {self.clean(kind.encode()) or 'no content type'}"
            )
        try:
            for data in events(response.iter_bytes(), MAX_BODY):
                _stop_if(cancel)
                if data == b"[DONE]":
                    return
                if data:
                    yield self._parsed(data)
            _stop_if(cancel)  # a connection that was cut may look like one that was closed
        except (ValueError, RecursionError):
            raise TargetError(f"{self.base}: an event of the stream is not JSON") from None
        except TargetError as error:
            raise TargetError(f"{self.base}: {error}") from None
        except httpx2.TransportError as error:
            raise TargetError(f"{self.base}: the stream was interrupted: {self._reason(error)}") from None

    def _parsed(self, data: bytes) -> Any:
        """Parse JSON, counting bytes that are not UTF-8, which become lone surrogates (see ``wire``)."""
        try:
            return json.loads(data)
        except UnicodeDecodeError:
            text, lost = decoded(data)
            value = json.loads(text)
            self.undecodable += lost
            return value

    def _send(
        self, connection: Connection, method: str, path: str, body: dict[str, Any] | bytes | None, cancel: Cancellation
    ) -> httpx2.Response:
        """Send a request until it succeeds, and return the open response with status 200.

        Raise Refused for an error reply that a retry cannot fix or has not fixed, TargetError if there is no reply.
        """
        data: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        headers = self._headers() | ({"x-session-id": connection.session} if self.sessions else {})
        headers |= {"Content-Type": "application/json"} if isinstance(body, bytes) else {}
        for attempt in range(1, self.attempts + 1):
            self._pace(cancel)
            _stop_if(cancel)
            trace = functools.partial(connection.trace, cancel=cancel)
            url = path if "://" in path else self.base + path
            request = connection.client.build_request(method, url, headers=headers, **data, extensions={"trace": trace})
            try:
                response = connection.client.send(request, stream=True)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                failed: TargetError = TargetError(f"{self.base}: {self._reason(error)} ({self.attempts} attempts)")
                wait = None
            else:
                if response.status_code == 200:
                    return response
                reply, wait = self._error_text(response), _retry_after(response)
                why = f"HTTP {response.status_code}" + (f": {self.clean(reply)}" if reply.strip() else "")
                again = response.status_code in RETRY_STATUS
                tries = f" ({self.attempts} attempts)" if again else ""
                failed = Refused(f"{self.base}: {why}{tries}", response.status_code, self.clean(reply, 4096))
                if not again:
                    raise failed
            _stop_if(cancel)
            if attempt < self.attempts:
                self.retries += 1
                # a fully random delay: many clients that failed at the same time must not return at the same time
                backoff = self._random.uniform(0, min(30.0, 0.5 * 2.0**attempt))
                self._rest(min(MAX_WAIT, max(backoff, wait or 0.0)), cancel)
        raise failed

    def _pace(self, cancel: Cancellation) -> None:
        wait = self._last + self.interval - time.monotonic()
        if wait > 0:
            self._rest(wait, cancel)
        self._last = time.monotonic()

    def _rest(self, seconds: float, cancel: Cancellation) -> None:
        if self._sleep is not None:
            self._sleep(seconds)
        else:
            cancel.wait(seconds)
        _stop_if(cancel)

    def _error_text(self, response: httpx2.Response) -> bytes:
        """Return the message inside an error reply; if there is none, the beginning of the reply (4096 bytes)."""
        try:
            data = b"".join(response.iter_bytes())[:4096]
        except httpx2.TransportError:
            data = b""
        finally:
            response.close()
        with suppress(ValueError, KeyError, TypeError, RecursionError, AttributeError):
            error = json.loads(data)["error"]
            return (error["message"] if isinstance(error, dict) else str(error)).encode()
        return data

    def _reason(self, error: Exception) -> str:
        if isinstance(error, httpx2.TimeoutException):
            return "no answer in time"
        return self.clean(str(error).encode()) or type(error).__name__

    def clean(self, data: bytes, limit: int = 200) -> str:
        """Return text from the server in a form fit for one line of an error message.

        It is cut to ``limit`` characters, unprintable characters become blanks, and the API key, if the server echoes
        it, is masked.
        """
        text = data.decode("utf-8", "replace")
        if self._secret:
            text = text.replace(self._secret, "***")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= limit else text[: limit - 3] + "..."


def _stop_if(cancel: Cancellation | None) -> None:
    if cancel is not None and cancel.requested:
        raise Cancelled("stopped while an answer was awaited")


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds that a Retry-After header asks for (a number or a date)."""
    value = response.headers.get("retry-after", "").strip()
    with suppress(ValueError):
        return max(0.0, float(value))
    with suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
