"""HTTP that survives a public API: retries with backoff and jitter, Retry-After, timeouts, a rate limit, one secret.

The API key comes from an environment variable, travels in one header, and appears nowhere else: not in errors, logs,
representations or files.
"""

from __future__ import annotations

import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from ..errors import TargetError, UsageError
from .wire import decoded, events

RETRY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
MAX_WAIT = 60.0
MAX_BODY = 64 << 20
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Transport:
    """POST and GET JSON below ``base``.

    attempts      tries per request; only failures that another try can mend are repeated
    timeout       seconds to connect, and to wait for the next byte
    per_minute    most requests a minute, None for no limit
    key_env       environment variable with the bearer key; an empty or absent one means no key
    """

    def __init__(
        self,
        base: str,
        *,
        key_env: str = "DS4_API_KEY",
        attempts: int = 6,
        timeout: float = 120.0,
        per_minute: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        client: httpx2.Client | None = None,
    ):
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"not an http:// or https:// address: {parts.scheme}://{parts.hostname or ''}")
        if parts.username or parts.password:
            raise UsageError(f"no credentials in the address: put the key in the environment variable {key_env}")
        if parts.query or parts.fragment:
            # it would end up in stored results, and a key does not belong there
            raise UsageError("no query in the address: it ends with the path, as in http://HOST:PORT/v1")
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
        self.retries = 0
        self.undecodable = 0
        """Bytes of all answers that were no UTF-8: characters cut in two."""
        self._client = client or httpx2.Client(timeout=httpx2.Timeout(timeout, connect=min(timeout, 20.0)))

    def get(self, path: str) -> Any:
        """The JSON behind ``path``."""
        return self._json(lambda: self._client.build_request("GET", self.base + path, headers=self._headers()))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to ``body``."""
        return self._json(
            lambda: self._client.build_request("POST", self.base + path, headers=self._headers(), json=body)
        )

    @contextmanager
    def events(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[Any]]:
        """The data of server-sent events, decoded; ends at ``[DONE]``. Only the opening of the stream is retried."""
        response = self._send(
            lambda: self._client.build_request("POST", self.base + path, headers=self._headers(), json=body)
        )
        try:
            yield self._decoded(response)
        finally:
            response.close()

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"Transport({self.base!r})"

    # --- inside

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._secret}"} if self._secret else {}

    def _json(self, build: Callable[[], httpx2.Request]) -> Any:
        response = self._send(build)
        try:
            data = bytearray()
            for part in response.iter_bytes():
                data += part
                if len(data) > MAX_BODY:
                    raise TargetError(f"{self.base}: the answer is larger than {MAX_BODY >> 20} MiB")
            return self._parsed(bytes(data))
        except (ValueError, RecursionError):
            raise TargetError(f"{self.base}: the answer is not JSON: {self.clean(bytes(data[:80]))}") from None
        except httpx2.TransportError as error:
            raise TargetError(f"{self.base}: the answer broke off: {self._reason(error)}") from None
        finally:
            response.close()

    def _decoded(self, response: httpx2.Response) -> Iterator[Any]:
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise TargetError(f"{self.base}: asked for a stream, got {self.clean(kind.encode()) or 'no content type'}")
        try:
            for data in events(response.iter_bytes(), MAX_BODY):
                if data == b"[DONE]":
                    return
                if data:
                    yield self._parsed(data)
        except (ValueError, RecursionError):
            raise TargetError(f"{self.base}: an event of the stream is not JSON") from None
        except TargetError as error:
            raise TargetError(f"{self.base}: {error}") from None
        except httpx2.TransportError as error:
            raise TargetError(f"{self.base}: the stream broke off: {self._reason(error)}") from None

    def _parsed(self, data: bytes) -> Any:
        """JSON; bytes that are no UTF-8 come as lone surrogates (``wire``) and are counted."""
        try:
            return json.loads(data)
        except UnicodeDecodeError:
            text, lost = decoded(data)
            found = json.loads(text)
            self.undecodable += lost
            return found

    def _send(self, build: Callable[[], httpx2.Request]) -> httpx2.Response:
        """An open response with status 200; TargetError when ``attempts`` tries did not bring one."""
        for attempt in range(1, self.attempts + 1):
            self._pace()
            try:
                response = self._client.send(build(), stream=True)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                why, wait = self._reason(error), None
            else:
                if response.status_code == 200:
                    return response
                why, wait = self._failure(response), _retry_after(response)
                if response.status_code not in RETRY_STATUS:
                    raise TargetError(f"{self.base}: {why}")
            if attempt < self.attempts:
                self.retries += 1
                # full jitter: many clients that failed together must not come back together
                backoff = self._random.uniform(0, min(30.0, 0.5 * 2.0**attempt))
                self._sleep(min(MAX_WAIT, max(backoff, wait or 0.0)))
        raise TargetError(f"{self.base}: {why} ({self.attempts} attempts)")

    def _pace(self) -> None:
        wait = self._last + self.interval - time.monotonic()
        if wait > 0:
            self._sleep(wait)
        self._last = time.monotonic()

    def _failure(self, response: httpx2.Response) -> str:
        try:
            data = b"".join(response.iter_bytes())[:4096]
        except httpx2.TransportError:
            data = b""
        finally:
            response.close()
        try:
            error = json.loads(data)["error"]
            data = (error["message"] if isinstance(error, dict) else str(error)).encode()
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
            pass
        return f"HTTP {response.status_code}" + (f": {self.clean(data)}" if data.strip() else "")

    def _reason(self, error: Exception) -> str:
        if isinstance(error, httpx2.TimeoutException):
            return "no answer in time"
        return self.clean(str(error).encode()) or type(error).__name__

    def clean(self, data: bytes, limit: int = 200) -> str:
        """Foreign text fit for one line of an error: printable, short, and without the key even if it was echoed."""
        text = data.decode("utf-8", "replace")
        if self._secret:
            text = text.replace(self._secret, "***")
        text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return text if len(text) <= limit else text[: limit - 3] + "..."


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds that a Retry-After header asks for (a number or a date)."""
    value = response.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
