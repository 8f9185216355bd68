"""A server without a model: it renders and counts prompts, and answers with words drawn by the prompt's tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from ds4ref.text.messages import from_openai
from ds4ref.text.official import Profile
from ds4ref.text.prompts import prompt_of
from ds4ref.text.tokenizer import Tokenizer

WORDS = "the old mill by river and a miller came home late with flour for bread".split()


@dataclass
class Paper:
    """What the server does: its template (a profile, None for May's), defaults of thinking and effort, and faults.

    render   returns a prompt's token ids instead, from (messages, mode)
    refuses  request fields that are answered with status 400
    ignores  request fields without effect
    counted  changes the count of prompt tokens; None: no usage
    """

    tokenizer: Tokenizer
    profile: Profile | None = None
    thinks: bool = True
    effort: str = "high"
    ctx: int = 3000
    model: str = "served"
    render: Callable[[list[dict[str, Any]], str], list[int]] | None = None
    refuses: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    counted: Callable[[int], int | None] = lambda count: count
    metrics: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    def mode(self, body: dict[str, Any]) -> str:
        heeded = {name: value for name, value in body.items() if name not in self.ignores}
        template = heeded.get("chat_template_kwargs") or {}
        on = {"enabled": True, "disabled": False}.get(
            (heeded.get("thinking") or {}).get("type"), template.get("thinking")
        )
        effort = heeded.get("reasoning_effort") or template.get("reasoning_effort") or self.effort
        return effort if (self.thinks if on is None else on) else "none"

    def ids(self, body: dict[str, Any]) -> list[int]:
        messages, mode = body["messages"], self.mode(body)
        if self.render is not None:
            return self.render(messages, mode)
        tools = [json.dumps(tool["function"]) for tool in body.get("tools", ())]
        prompt = prompt_of(self.profile, from_openai(json.dumps(messages)), tools, mode, in_place=True, answer=True)
        return prompt.encode(self.tokenizer)

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.seen.append(body)
        if path.endswith("/models"):
            return 200, {"data": [{"id": self.model, "context_length": self.ctx}]}
        for name in self.refuses:
            if name in body:
                return 400, {"error": {"message": f"Unknown parameter: {name}"}}
        if not path.endswith("/chat/completions"):
            return 404, {}
        ids = self.ids(body)
        if len(ids) > self.ctx:
            return 400, {"error": {"message": f"maximum {self.ctx} tokens, but {len(ids)} in the messages"}}
        words = random.Random(str(ids)).choices(WORDS, k=body["max_tokens"])
        text = " ".join(words)
        message = {"reasoning_content": text} if self.mode(body) != "none" else {"content": text}
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "length"}
        count = self.counted(len(ids))
        usage = {} if count is None else {"usage": {"prompt_tokens": count, "completion_tokens": body["max_tokens"]}}
        return 200, {"model": self.model, "choices": [choice], **usage}

    def __enter__(self) -> str:
        paper = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                status, answer = paper.reply(self.path, json.loads(self.rfile.read(length) or b"{}"))
                data = json.dumps(answer).encode()
                if self.path == "/metrics":
                    status, data = 200, paper.metrics.encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
