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
        return turn, EchoReply(bool(found.get("stream")), found)


class EchoReply(Reply):
    def __init__(self, stream, asked):
        self.stream, self.asked = stream, asked
        self.text = ""
        self.last = None
        self.prefill = None

    def feed(self, event):
        if isinstance(event, Prefill):
            first, self.prefill = self.prefill is None, event
            return sse(json.dumps({"begin": True})) if first and self.stream else b""
        if not isinstance(event, Delta):
            return b""
        if self.asked.get("bad_feed") and event.text:
            raise RuntimeError("a bug in feed")
        self.text += event.text
        out = sse(json.dumps({"text": event.text})) if event.text else b""
        if event.finish:
            self.last = event
            out += sse(json.dumps(self.end())) + sse("[DONE]")
        return out if self.stream else b""

    def end(self):
        usage = self.last.usage
        return {"finish": str(self.last.finish), "prompt": usage.prompt, "cached": usage.cached}

    def document(self):
        return json.dumps({"text": self.text, **self.end()}).encode() + b"\n"

    def late_error(self, failed):
        return sse(json.dumps({"error": {"message": failed.message, "code": failed.code}}))
