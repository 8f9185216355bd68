"""A server with one fault: it passes everything on to a right one, and spoils what comes back.

with faulty(server.url, FAULTS["no done"]) as url: ...

A fault is (path it spoils, function of (request, status, content type, body) -> the same three). Bodies are whole,
since most faults are about what arrives, not when. Streams whose pace is looked at (``shared.COUNT``) come in two
halves, or as ``holds`` passes them on.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from ds4ref.conformance.checks.shared import COUNT, SOON
from ds4ref.conformance.servers import THINKING
from ds4ref.server.constrain import guide_of
from ds4ref.targets.transport import tls_context

FORMED = partial(guide_of, max_reasoning=THINKING)
"""What the harness starts our server with."""
Reply = tuple[int, str, bytes]
Fault = Callable[[dict[str, Any], int, str, bytes], Reply]


def right(asked, status, kind, data):
    """No fault."""
    return status, kind, data


@contextmanager
def faulty(url, path="", fault=right, known=None, dropped=(), holds=None):
    """The URL of a server that has ``fault`` at ``path``, or acts as if it knew nothing of the fields ``dropped``.

    ``known`` keeps what the right server said, for the next fault: many are tried, and it is the same every time.
    ``holds``: function of (the stream's pieces, send) that paces streams.
    """
    inner = httpx2.Client(base_url=url, timeout=120.0, verify=tls_context(), trust_env=False)
    known = {} if known is None else known
    times = Counter()

    def right_answer(method, target, body, kind):
        key = method, target, body
        times[key] += 1
        key = *key, times[key]  # the second answer may tell of what was cached
        if key not in known:
            headers = {"content-type": kind} if body else {}
            found = inner.request(method, target, content=body or None, headers=headers)
            known[key] = found.status_code, found.headers.get("content-type", ""), found.content
        return known[key]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                asked = json.loads(body or b"{}")
            except ValueError:
                asked = {}
            here = self.path.partition("?")[0] == path
            if here and set(dropped) & set(asked):
                asked = {name: value for name, value in asked.items() if name not in dropped}
                body = json.dumps(asked).encode()
            paced = asked.get("stream") and COUNT.encode() in body
            if here and paced and holds is not None:
                self._paced(body)
                return
            begun = time.monotonic()
            status, kind, data = right_answer(self.command, self.path, body, self.headers.get("content-type") or "")
            if here:
                status, kind, data = fault(asked, status, kind, data)
            try:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                if paced:
                    half = len(data) // 2
                    self.wfile.write(data[:half])
                    time.sleep(1.2 * SOON + (time.monotonic() - begun) / 2)
                    data = data[half:]
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # who asked has left

        do_GET = do_POST = _pass

        def _paced(self, body):
            """A stream passed on piece by piece."""
            self.close_connection = True
            with inner.stream("POST", self.path, content=body, headers={"content-type": "application/json"}) as found:
                self.send_response(found.status_code)
                self.send_header("content-type", found.headers["content-type"])
                self.send_header("connection", "close")
                self.end_headers()
                with suppress(OSError):
                    holds(found.iter_bytes(), self.wfile.write)

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            """Who asked may leave at any time."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        inner.close()


# --- ways to spoil


def stream(spoil):
    """Spoil the events of a good stream, given as a list of blocks, without comments: a busy server sends some."""

    def fault(asked, status, kind, data):
        if status != 200 or "event-stream" not in kind:
            return status, kind, data
        blocks = [block for block in data.decode().split("\n\n") if block and not block.startswith(":")]
        return status, kind, "".join(block + "\n\n" for block in spoil(blocks)).encode()

    return fault


def document(spoil):
    """Spoil a good document in place."""

    def fault(asked, status, kind, data):
        if status != 200 or "json" not in kind:
            return status, kind, data
        found = json.loads(data)
        spoil(found)
        return status, kind, json.dumps(found).encode()

    return fault


def replaced(pattern, by):
    """Every match in each event."""
    return stream(lambda blocks: [re.sub(pattern, by, block) for block in blocks])


def always(status, body=b"{}"):
    """The same answer to whatever is asked."""
    return lambda *_: (status, "application/json", body)


def errors(status=None, body=None, kind=None):
    """Another answer where the right one is a refusal."""

    def fault(asked, was, told, data):
        return (was, told, data) if was < 400 else (status or was, kind or told, data if body is None else body)

    return fault


# --- ways to spoil events, and answers of one kind


def events(spoil):
    """Spoil the events of a good stream, given as a list of (name, data), data parsed where it is JSON."""

    def change(blocks):
        found = []
        for block in blocks:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            data = lines["data"]
            found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
        out = []
        for name, data in spoil(found):
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            out.append((f"event: {name}\n" if name else "") + f"data: {text}")
        return out

    return stream(change)


def each(spoil):
    """Spoil each event in place; it is dropped where that returns False."""

    def change(found):
        return [(name, data) for name, data in found if isinstance(data, str) or spoil(data) is not False]

    return events(change)


def both(of_document, of_event):
    """Spoil documents and the events of streams."""
    one, other = document(of_document), each(of_event)
    return lambda asked, *reply: other(asked, *one(asked, *reply))


def where(asks, fault):
    """A fault of those requests alone for which ``asks`` holds."""
    return lambda asked, *reply: fault(asked, *reply) if asks(asked) else reply


def choices(spoil):
    """A function that spoils each choice of a chat completion, or of a chunk."""
    return lambda found: [spoil(one) for one in found.get("choices", ())] and None


def of_type(kind, spoil):
    """Spoil the events of a type."""
    return each(lambda event: spoil(event) if event.get("type") == kind else None)


def without(pattern):
    """Events that match are never sent."""
    return stream(lambda blocks: [block for block in blocks if not re.search(pattern, block)])


def calls(spoil):
    """Spoil the calls of a chat completion."""
    return document(choices(lambda one: [spoil(call) for call in one["message"].get("tool_calls") or ()]))
