"""A completions endpoint with an engine of no intelligence: four characters are a token, answers are numbers."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEMPLATE = 3
"""Tokens the server puts around a prompt."""


class Endpoint:
    """What it answers, and what it was asked.

    cached   the share of a prompt it claims to have known, None to claim nothing
    usage    it counts tokens "always", "unstreamed" or "never"
    slots    how many streams it serves at once
    delay    seconds a token takes
    """

    def __init__(self, cached=0.0, usage="always", slots=64, delay=0.002):
        self.cached, self.usage, self.delay = cached, usage, delay
        self.slots, self.bodies, self.lock = threading.Semaphore(slots), [], threading.Lock()

    def answer(self, path, body, write):
        with self.lock:
            self.bodies.append((path, body))
        prompt = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"])
        count = len(prompt) // 4 + TEMPLATE
        with self.slots:
            time.sleep(1e-6 * count)
            made = body["max_tokens"]
            for number in range(made):
                time.sleep(self.delay)
                piece = {"text": f" {number}"} if "prompt" in body else {"delta": {"content": f" {number}"}}
                write({"model": "fake", "choices": [piece]})
        write({"model": "fake", "choices": [{"text": "", "delta": {}, "finish_reason": "length"}]})
        if self.usage == "always":
            write({"model": "fake", "choices": [], "usage": self.counted(count, made)})
        return count

    def counted(self, count, made):
        cached = {} if self.cached is None else {"prompt_tokens_details": {"cached_tokens": int(self.cached * count)}}
        return {"prompt_tokens": count, "completion_tokens": made, **cached}


@contextmanager
def served(endpoint):
    """The address below which ``endpoint`` answers."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self._head("application/json")
            self.wfile.write(b'{"data": [{"id": "fake"}]}')

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            events = []

            def write(event):
                if not body["stream"]:
                    return events.append(event)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

            if body["stream"]:
                self._head("text/event-stream")
                endpoint.answer(self.path, body, write)
                self.wfile.write(b"data: [DONE]\n\n")
                return
            count = endpoint.answer(self.path, body, write)
            choice = {"text": " 0", "message": {"content": " 0"}, "finish_reason": "length"}
            answer = {"model": "fake", "choices": [choice]}
            if endpoint.usage != "never":
                answer["usage"] = endpoint.counted(count, 1)
            self._head("application/json")
            self.wfile.write(json.dumps(answer).encode())

        def _head(self, kind):
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()
