"""A fake completions endpoint: four characters are a token, answers are numbers."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx2

CLIENT = httpx2.Client
TEMPLATE = 3
"""Tokens that the server adds to a prompt."""


class Endpoint:
    """Answers of a fake endpoint, and the requests it got.

    cached   share of a prompt that it reports as cached, None to report nothing
    usage    when it counts tokens: "always", "unstreamed" or "never"
    slots    streams served at once
    delay    seconds per token
    unknown  fields that it refuses with a 400
    reply    wording of the refusal; {} is the first such field
    """

    unknown: tuple[str, ...] = ()
    reply = "Unrecognized request argument supplied: {}"

    def __init__(self, cached=0.0, usage="always", slots=64, delay=0.002):
        self.cached, self.usage, self.delay = cached, usage, delay
        self.slots, self.bodies, self.lock = threading.Semaphore(slots), [], threading.Lock()

    def tokens(self, body):
        """Return the number of tokens of the prompt."""
        prompt = body["prompt"] if "prompt" in body else "".join(m["content"] for m in body["messages"])
        return len(prompt) // 4 + TEMPLATE

    def events(self, path, body, sleep=time.sleep):
        """Yield the events of a stream; ``sleep`` is called for the time that each takes."""
        with self.lock:
            self.bodies.append((path, body))
        count, generated = self.tokens(body), body["max_tokens"]
        with self.slots:
            sleep(1e-6 * count)
            for number in range(generated):
                sleep(self.delay)
                piece = {"text": f" {number}"} if "prompt" in body else {"delta": {"content": f" {number}"}}
                yield {"model": "fake", "choices": [piece]}
        yield {"model": "fake", "choices": [{"text": "", "delta": {}, "finish_reason": "length"}]}
        if self.usage == "always":
            yield {"model": "fake", "choices": [], "usage": self.counted(count, generated)}

    def whole(self, path, body, sleep=time.sleep):
        """Return the answer without streaming."""
        for _ in self.events(path, body, sleep):
            pass
        choice = {"text": " 0", "message": {"content": " 0"}, "finish_reason": "length"}
        usage = {} if self.usage == "never" else {"usage": self.counted(self.tokens(body), 1)}
        return {"model": "fake", "choices": [choice], **usage}

    def counted(self, count, count_generated):
        cached = {} if self.cached is None else {"prompt_tokens_details": {"cached_tokens": int(self.cached * count)}}
        return {"prompt_tokens": count, "completion_tokens": count_generated, **cached}


PREFILL, STEP = 1e-3, 2.45e-3
"""Seconds that a token of the prompt and one of the answer take."""
WORDS = ("The", " old", " mill", " stood", " by", " a", " river", " and", " ground", " its", " corn", ",", " slow", ".")


@dataclass
class Server(Endpoint):
    """A chat server that makes as many tokens as it is asked for, and tells the truth.

    prefill   seconds a prompt token takes
    before    seconds before anything else
    steps     seconds before each token, in turn
    group     tokens in a piece
    stops     tokens after which it stops by itself
    cap       most tokens that it makes; it calls that the limit
    pieces    function of the prompt's tokens and true pieces (seconds before it, text) to those that it sends: their
              texts, or the fields of their deltas; of None it sends nothing
    says      function of the tokens of prompt, answer and request to other fields of its usage, None for no usage
    streams   says it of streams alone
    """

    prefill: float = PREFILL
    before: float = 0.0
    steps: Sequence[float] = (STEP,)
    group: int = 1
    stops: int | None = None
    cap: int | None = None
    words: Sequence[str] = WORDS
    pieces: Callable = lambda prompt, whole: whole
    says: Callable = lambda *counts: {}
    streams: bool = False
    depths: str = "300,900"

    def __post_init__(self):
        super().__init__()

    def told(self, body):
        """Return the tokens that it makes and its usage."""
        prompt, asked = self.tokens(body), body["max_tokens"]
        made = min(asked, self.stops or asked, self.cap or asked)
        more = {} if self.streams and not body["stream"] else self.says(prompt, made, asked)
        return made, None if more is None else {"prompt_tokens": prompt, "completion_tokens": made, **more}

    def events(self, path, body, sleep):
        with self.lock:
            self.bodies.append((path, body))
        prompt, (made, usage) = self.tokens(body), self.told(body)
        sleep(self.before + self.prefill * prompt)
        steps, words = itertools.cycle(self.steps), itertools.cycle(self.words)
        tokens = [(next(steps), next(words)) for _ in range(made)]
        groups = [tokens[start : start + self.group] for start in range(0, made, self.group)]
        whole = [(sum(step for step, _ in group), "".join(word for _, word in group)) for group in groups]
        for seconds, fields in self.pieces(prompt, whole):
            sleep(seconds)
            if fields is not None:
                delta = {"content": fields} if isinstance(fields, str) else fields
                yield {"model": "fake", "choices": [{"delta": delta, "text": delta.get("content")}]}
        finish = "stop" if made == self.stops != body["max_tokens"] else "length"
        yield {"model": "fake", "choices": [{"delta": {}, "text": "", "finish_reason": finish}]}
        if usage is not None:
            yield {"model": "fake", "choices": [], "usage": usage}

    def whole(self, path, body, sleep):
        for _ in self.events(path, body, sleep):
            pass
        usage = self.told(body)[1] or {"prompt_tokens": self.tokens(body), "completion_tokens": 1}
        choice = {"message": {"content": "The"}, "text": "The", "finish_reason": "length"}
        return {"model": "fake", "choices": [choice], "usage": usage}


DONE = b"data: [DONE]\n\n"


def sse(event):
    return f"data: {json.dumps(event)}\n\n".encode()


@contextmanager
def served(endpoint):
    """Serve ``endpoint`` and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            self._head("application/json")
            self.wfile.write(b'{"data": [{"id": "fake"}]}')

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body["stream"]:
                self._head("text/event-stream")
                for event in endpoint.events(self.path, body):
                    self.wfile.write(sse(event))
                    self.wfile.flush()
                self.wfile.write(DONE)
                return
            answer = endpoint.whole(self.path, body)
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


def scripted(monkeypatch, lag=0.0, **endpoints):
    """``endpoints`` without a network, each at http://NAME/v1, on a clock that nothing but their delays moves. Returns
    the list into which each request writes its endpoint's name. ``lag``: seconds that the client wakes too late."""
    clock, asked = SimpleNamespace(now=100.0), []

    def sleep(seconds):
        clock.now += seconds

    def handle(request):
        if request.method == "GET":
            return httpx2.Response(200, json={"data": [{"id": "fake"}]})
        asked.append(request.url.host)
        endpoint, path, body = endpoints[request.url.host], request.url.path, json.loads(request.content)
        if refused := [name for name in endpoint.unknown if name in body]:
            return httpx2.Response(400, json={"error": {"message": endpoint.reply.format(refused[0])}})
        if not body["stream"]:
            return httpx2.Response(200, json=endpoint.whole(path, body, sleep))

        def stream():  # runs as far as the client reads
            yield from map(sse, endpoint.events(path, body, sleep))
            yield DONE

        return httpx2.Response(200, content=stream(), headers={"content-type": "text/event-stream"})

    monkeypatch.setattr(httpx2, "Client", lambda **_: CLIENT(transport=httpx2.MockTransport(handle)))
    still = SimpleNamespace(**vars(time) | {"perf_counter": lambda: clock.now})
    for module in ("targets.openai", "speed_bench.endpoint", "speed_bench.runner", "speed_bench.load"):
        monkeypatch.setattr(f"ds4ref.{module}.time", still)
    monkeypatch.setattr("ds4ref.speed_bench.waiting.Lag.seconds", lag)
    return asked
