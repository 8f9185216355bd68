"""A small API of our own, to test what is common to all: {"say": text, "stream": bool, ...}."""

from __future__ import annotations

import json

from ds4ref.server.api import Api, Refused, Reply, sse
from ds4ref.server.turn import Prefill, Sampling, Turn
from ds4ref.targets.answer import Delta
from ds4ref.text.chat import Message


class Echo(Api):
    """Answers with all that the worker says."""

    path = "/v1/echo"
    name = "chat"

    def read(self, body, about):
        found = json.loads(body)
        if not isinstance(found, dict):
            raise Refused(400, "invalid JSON request")
        if "bug" in found:
            raise KeyError(found["bug"])
        if not isinstance(found.get("say", ""), str):
            raise Refused(400, "say must be a string")
        if "say" not in found and "ids" not in found:
            raise Refused(400, "missing say", extra={"param": "say"})
        turn = Turn(
            "chat",
            about.model,
            (Message("user", found["say"]),) if "say" in found else (),
            thinking=found.get("thinking", "none"),
            max_tokens=found.get("max_tokens"),
            sampling=Sampling(0.0),
            client=found.get("client", ""),
            ids=tuple(found["ids"]) if "ids" in found else None,
        )
        return turn, EchoReply(turn, about, found)


class EchoReply(Reply):
    def __init__(self, turn, about, asked):
        super().__init__(turn, about, asked.get("stream"))
        self.asked = asked

    def feed(self, event):
        first = isinstance(event, Prefill) and self.prefill is None
        out = super().feed(event)
        if self.asked.get("bad_feed") and isinstance(event, Delta) and event.text:
            raise RuntimeError("a bug in feed")
        return out + sse(json.dumps({"begin": True})) if first and self.stream else out

    def delta(self, delta):
        out = sse(json.dumps({"text": delta.text})) if delta.text else b""
        return out + sse(json.dumps(self.end())) + sse("[DONE]") if delta.finish else out

    def end(self):
        usage = self.answer.usage
        return {"finish": str(self.answer.finish), "prompt": usage.prompt, "cached": usage.cached}

    def whole(self):
        return {"text": self.answer.text, **self.end()}

    def late_error(self, failed):
        return sse(json.dumps({"error": {"message": failed.message, "code": failed.code}}))
