"""A target that says what a script has it say, and an HTTP endpoint that does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ds4ref.agent.tools import Result
from ds4ref.targets import Ability, CallDelta, Delta, Finish, Request, Target, Usage

Script = Sequence["list[Delta] | Exception | Callable[[Request], Iterator[Delta]]"]


def says(*texts: str, finish: str = Finish.STOP, **last: Any) -> list[Delta]:
    """An answer in words, in pieces as they come."""
    return [*(Delta(text) for text in texts), Delta(finish=finish, usage=Usage(10, len(texts)), **last)]


def calls(*wanted: tuple[str, Any], text: str = "", reasoning: str = "", finish: str = Finish.TOOL_CALLS,
          ids: bool = True, **last: Any) -> list[Delta]:  # fmt: skip
    """An answer that calls tools; arguments come in two pieces, and as JSON text if they are no text."""
    deltas = [Delta(reasoning=reasoning), Delta(text)]
    for at, (name, arguments) in enumerate(wanted):
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
        deltas.append(Delta(calls=(CallDelta(at, name, raw[:3], f"id{at}" if ids else ""),)))
        deltas.append(Delta(calls=(CallDelta(at, arguments=raw[3:]),)))
    return [*deltas, Delta(finish=finish, usage=Usage(10, 5), **last)]


class Scripted(Target):
    """Gives one answer of the script for each request; its last one again when it is over. An exception in it is
    raised, a function makes the answer. Remembers the requests."""

    kind, name = "scripted", "script"
    abilities = frozenset({Ability.CHAT, Ability.TOOLS, Ability.STREAM})

    def __init__(self, *script: Any):
        self.script, self.requests = list(script), []

    def stream(self, request: Request) -> Iterator[Delta]:
        self.requests.append(request)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if callable(answer):
            yield from answer(request)
            return
        for delta in [answer] if isinstance(answer, Exception) else answer:
            if isinstance(delta, Exception):
                raise delta
            if request.cancel is not None and request.cancel.requested:
                yield Delta(finish=Finish.CANCELLED)
                return
            yield delta


class Watched:
    """A view that remembers."""

    def __init__(self) -> None:
        self.text, self.events = "", []

    def delta(self, delta: Delta) -> None:
        self.text += delta.text

    def answered(self) -> None:
        self.events.append("answered")

    def call(self, title: str) -> None:
        self.events.append(title)

    def result(self, result: Result) -> None:
        self.events.append(f"{'!' if result.failed else ''}{result.note}")


class Endpoint:
    """An OpenAI-compatible server on loopback that streams the answers of a script: Deltas, or what makes them of a
    request's body. ``model``: what it says of its model."""

    def __init__(self, *script: Any, model: dict[str, str] | None = None):
        self.script, self.bodies, self.headers = list(script), [], []
        models = [model or {"id": "m"}]
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(json.dumps({"object": "list", "data": models}).encode(), "application/json")

            def do_POST(self) -> None:
                endpoint.headers.append(dict(self.headers))
                endpoint.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = endpoint.script.pop(0) if len(endpoint.script) > 1 else endpoint.script[0]
                events = [json.dumps(event(d)) for d in (answer(endpoint.bodies[-1]) if callable(answer) else answer)]
                self.reply("".join(f"data: {data}\n\n" for data in [*events, "[DONE]"]).encode(), "text/event-stream")

            def reply(self, data: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Endpoint:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def event(delta: Delta) -> dict[str, Any]:
    """One event of a stream of chat completions."""
    piece: dict[str, Any] = {"content": delta.text} if delta.text else {}
    if delta.reasoning:
        piece["reasoning_content"] = delta.reasoning
    if delta.calls:
        piece["tool_calls"] = [
            {
                "index": call.index,
                "function": {"arguments": call.arguments} | ({"name": call.name} if call.name else {}),
            }
            | ({"id": call.id, "type": "function"} if call.id else {})
            for call in delta.calls
        ]
    choice = {"index": 0, "delta": piece, "finish_reason": str(delta.finish) or None}
    usage = {"prompt_tokens": delta.usage.prompt, "completion_tokens": delta.usage.completion} if delta.usage else None
    return {"model": "m", "object": "chat.completion.chunk", "choices": [choice], "usage": usage}
