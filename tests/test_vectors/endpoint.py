"""A real OpenAI-compatible server of the diagnostic model on this machine, with bugs that tests switch on.

    with Endpoint(engine, "nan") as server:
        cli.main(["doctor", server.url])

What it can do wrong: see ``MISBEHAVIOURS``. It decodes as a server does: prompts in one piece, answers token by token.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.sampling import top_logprobs
from ds4ref.test_vectors.diagnosis.prompts import MISTAKES
from ds4ref.text.chat import Message
from ds4ref.text.prompts import prompt_of

MISBEHAVIOURS = {
    "": "nothing: it is right",
    "fork": "the first token of every answer is drawn among the best, by the request's number",
    "counts": "prompt_tokens is one too many",
    "cut": "five alternatives, however many are asked for",
    "nan": "a log probability that is not a number",
    "over": "probabilities add up to more than 1",
    "unsorted": "alternatives from worst to best",
    "no_logprobs": "log probabilities are left out",
    "decode": "while decoding, logits are a little off from the eighth token on",
    "crowd": "answers depend on whether two other requests are running: two copies of a prompt show nothing of it",
    "batch": "the same, by as little as kernels chosen by the size of a batch make",
    "cache": "a prompt seen before is computed otherwise, by as little as kernels chosen by its uncached tokens make",
    "drift": "every answer differs from the one before by as little",
    "greedy": "the second best token is taken",
    "chatless": "no chat endpoint",
    "foreign": "tokens of another vocabulary",
    "key": "errors repeat the request's Authorization header",
    "thinks": "as ds4's: it thinks unless told not to, and samples while it thinks",
    "always thinks": "as before, and cannot be told",
    "texts": "alternatives as llama-cpp-python lists them: a dict by text, bytes that are no text left out of it",
    "early": "an echo lists each token with the distribution after it, as llama-cpp-python's does",
    "verifier": "passes of 4 rows, drafts held against the runners-up of row 0, the worst drafts for that",
    "parses": "control strings in plain prompts become control tokens",
} | {m.name: m.says for m in MISTAKES}


def runners_up(engine: Engine, ids: list[int], tokens: int) -> list[int]:
    """Return the tokens that an old bug of ds4's speculative decoding gave: after each token, the 3 best of that row,
    instead of the best token of each of 3 rows."""
    session = engine.session(len(ids) + tokens + 8)
    row, out = session.extend(ids)[-1], []
    while len(out) < tokens:
        first = int(np.argmax(row))
        drafts = np.argsort(-session.extend([first])[0], kind="stable")[:3].tolist()
        out += [first, *drafts]
        row = session.extend(drafts)[-1]
    return out[:tokens]


class Endpoint:
    """The server.

    wrong  its bug, a key of MISBEHAVIOURS
    echo   whether it returns the log probabilities of a prompt
    ids    whether prompts may be token ids
    ctx    context size in tokens
    """

    def __init__(self, engine: Engine, wrong: str = "", echo: bool = False, ids: bool = False, ctx: int = 4096):
        assert wrong in MISBEHAVIOURS
        self.engine, self.wrong, self.echo, self.ids, self.ctx = engine, wrong, echo, ids, ctx
        self.lock, self.running, self.requests = threading.Lock(), 0, 0
        self.seen: set[tuple[int, ...]] = set()
        self.arrived = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(200, {"data": [{"id": "diagnostic", "max_model_len": outer.ctx}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if outer.wrong == "key":
                    self.reply(400, {"error": {"message": f"bad key: {self.headers.get('Authorization')}"}})
                    return
                try:
                    self.reply(*outer.answer(self.path, body))
                except Exception as error:
                    self.reply(400, {"error": {"message": str(error)}})

            def reply(self, status: int, content: dict[str, Any]) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self) -> Endpoint:
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    # --- one request

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if self.wrong == "chatless" and "chat" in path:
            return 404, {"error": {"message": "no such endpoint"}}
        ids = self.encode(path, body)
        if len(ids) + body["max_tokens"] > self.ctx:
            return 400, {"error": {"message": f"context is {self.ctx}"}}
        with self.arrived:
            self.running += 1
            self.arrived.notify_all()
            # a batch forms only if others have time to arrive
            beside = {"crowd": 2, "batch": 1}.get(self.wrong)
            crowd = beside is not None and self.arrived.wait_for(lambda: self.running > beside, 0.05)
        try:
            with self.lock:
                self.requests += 1
                return 200, self.computed(path, body, ids, crowd)
        finally:
            with self.arrived:
                self.running -= 1

    def encode(self, path: str, body: dict[str, Any]) -> list[int]:
        tok = self.engine.tokenizer
        if "chat" in path:
            messages = [Message(m["role"], m["content"]) for m in body["messages"]]
            thinking = "high" if body.get("thinking", {}).get("type") == "enabled" else "none"
            ids = prompt_of(tok.profile, messages, (), thinking, answer=True).encode(tok)
        elif isinstance(body["prompt"], list):
            if not self.ids:
                raise ValueError("prompt must be a string")
            return list(body["prompt"])
        else:
            ids = tok.encode_rendered(body["prompt"]) if self.wrong == "parses" else tok.encode(body["prompt"])
        mistake = next((m for m in MISTAKES if m.name == self.wrong), None)
        return mistake.make(tok, ids) if mistake else ids

    def computed(self, path: str, body: dict[str, Any], ids: list[int], crowd: bool) -> dict[str, Any]:
        session = self.engine.session(len(ids) + body["max_tokens"] + 1)
        rows = session.extend(ids)
        top = body.get("top_logprobs") or body.get("logprobs") or 0
        top = 0 if self.wrong == "no_logprobs" else min(top, 5) if self.wrong == "cut" else top
        steps, row = [], rows[-1]
        changed = {"cache": tuple(ids) in self.seen, "drift": self.requests % 5}.get(self.wrong, 0)
        self.seen.add(tuple(ids))
        if body.get("echo"):
            if not self.echo:
                raise ValueError("echo is not supported")
            shift = self.wrong != "early"
            steps.append((ids[0], None))
            steps += [(ids[i], rows[i - shift]) for i in range(1, len(ids))]
        thinking_off = body.get("thinking") == {"type": "disabled"}
        thinks = self.wrong == "always thinks" or (self.wrong == "thinks" and not thinking_off)
        committed = self.committed(ids, body["max_tokens"])
        for i in range(body["max_tokens"]):
            row = row.copy()
            if self.wrong == "decode" and i >= 8:
                row[::2] += 0.8
            if crowd:
                row[1::2] += 4.0 if self.wrong == "crowd" else 0.01  # beyond the nat that passes for unknown rounding
            row[1::2] += 0.01 * changed
            best = np.argsort(-row, kind="stable")
            drawn = (self.wrong == "fork" or thinks) and i == 0
            rank = self.requests % 3 if drawn else int(self.wrong == "greedy")
            chosen = committed[i] if committed else int(best[rank])
            steps.append((chosen, row))
            row = session.eval(chosen)
        generated = steps[len(ids) :] if body.get("echo") else steps
        raw = self.engine.tokenizer.token_bytes
        text = b"".join(raw(token) for token, _ in (steps if body.get("echo") else generated)).decode(
            "utf-8", "replace"
        )
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if top:
            content = [self.step(token, row, top) for token, row in steps]
            choice["logprobs"] = self.by_text(content) if self.wrong == "texts" else {"content": content}
        thought = {"reasoning_content": "Hm."} if thinks else {}
        choice |= {"message": {"role": "assistant", "content": text} | thought} if "chat" in path else {"text": text}
        count = len(ids) + (self.wrong == "counts")
        usage = {"prompt_tokens": count, "completion_tokens": len(generated)}
        return {"model": "diagnostic", "choices": [choice], "usage": usage}

    def committed(self, ids: list[int], tokens: int) -> list[int]:
        """Return the tokens that it generates with the bug "verifier"; none without that bug."""
        return runners_up(self.engine, ids, tokens) if self.wrong == "verifier" else []

    def step(self, token: int, row: np.ndarray | None, top: int) -> dict[str, Any]:
        if row is None:
            return {**self.token(token), "logprob": 0.0, "top_logprobs": []}
        best = [(i, lp) for i, _, lp in top_logprobs(row, self.engine.shape.vocab)]
        own = dict(best)[token]
        listed = best[:top]
        if self.wrong == "nan":
            listed[2] = (listed[2][0], float("nan"))
        if self.wrong == "over":
            listed = [(i, lp + 1.0) for i, lp in listed]
            own += 1.0
        if self.wrong == "unsorted":
            listed = listed[::-1]
        return {
            **self.token(token),
            "logprob": own,
            "top_logprobs": [{**self.token(i), "logprob": p} for i, p in listed],
        }

    @staticmethod
    def by_text(content: list[dict[str, Any]]) -> dict[str, Any]:
        def text(token: dict[str, Any]) -> str:
            return bytes(token["bytes"]).decode("utf-8", "ignore")

        best = [{text(token): token["logprob"] for token in step["top_logprobs"]} for step in content]
        listed = [
            {"token": text(step), "bytes": None, "logprob": step["logprob"], "top_logprobs": [
                {"token": name, "bytes": None, "logprob": value} for name, value in top.items()
            ]} for step, top in zip(content, best, strict=True)
        ]  # fmt: skip
        return {"content": listed}

    def token(self, number: int) -> dict[str, Any]:
        raw = self.engine.tokenizer.token_bytes(number)
        if self.wrong == "foreign":
            raw = b"zq%dx" % number
        return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw)}
