"""How often ``ds4-vectors identify`` is right: drawn servers of our engine and of llama.cpp, with faults.

    python -m benchmarks.identify                 40 servers of seed 1: right, wrong, cannot tell
    python -m benchmarks.identify --seed 7 -n 10  others

A server is a template, defaults of thinking and effort, drafts, escaping, and a fault: some in the server's own code,
some in a proxy before it. It is right if every property that is claimed is, and the template is claimed; "cannot tell"
if the template is not; wrong if any claim is. llama.cpp (package xllamacpp) gets the templates as Jinja.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.nano import embedded_path
from ds4ref.server.app import apis
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Sequences
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker
from ds4ref.targets import open_target
from ds4ref.test_vectors.doctor.identify.stage import Identification, candidates
from ds4ref.test_vectors.doctor.limits import Limit
from ds4ref.text.chat import MAX_PREFIX
from ds4ref.text.official import PROFILES
from ds4ref.text.protocol import SYSTEM

CTX = 2048
FAULTS = ("", "", "", "no usage", "one more", "one less", "no logprobs", "no usage, no logprobs", "double BOS",
          "strict", "deaf", "no model")  # fmt: skip
"""What is wrong with a server, "" for nothing. strict: 400 to fields it does not know; deaf: reasoning settings are
ignored; no model: the client does not know the tokenizer."""
JINJA = """{{%- set on = thinking if thinking is defined else {on} -%}}
{{%- set effort = reasoning_effort if reasoning_effort is defined else '{effort}' -%}}
{{{{ bos_token }}}}{{%- if on -%}}{{{{ {{'low': {low}, 'high': {high}, 'max': {max}}}[effort] }}}}{{%- endif -%}}
{{%- set ns = namespace(system='', last='') -%}}
{{%- for m in messages if m.role == 'system' -%}}
{{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + m.content -%}}{{%- endfor -%}}
{{{{ ns.system }}}}
{{%- for m in messages if m.role != 'system' -%}}
{{%- if m.role == 'user' -%}}{{{{ ('\\n\\n' if {joins} and ns.last == 'user' else '<｜User｜>') + m.content }}}}
{{%- else -%}}{{{{ '<｜Assistant｜></think>' + m.content + eos_token }}}}{{%- endif -%}}
{{%- set ns.last = m.role -%}}{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{ '<｜Assistant｜>' + ('<think>' if on else '</think>') }}}}{{%- endif -%}}"""


@dataclass(frozen=True)
class Server:
    """One drawn server."""

    engine: str
    template: str
    thinking: str
    effort: str
    draft: str
    escaping: str
    fault: str

    @property
    def truth(self) -> dict[str, set[str]]:
        """Return the right values of the properties that may be claimed."""
        effort = "high" if self.template == "may" and self.effort == "low" else self.effort
        if self.template == "may" and self.engine == "ours":
            effort = "high"  # the context is too small for "max"
        return {
            "profile": {self.template}, "thinking": {self.thinking}, "effort": {effort},
            "bos": {"2" if self.fault == "double BOS" else "1"}, "escaping": {self.escaping},
            "drafts": {"off" if self.draft == "off" else "on"}, "context": {str(CTX)},
            "checkpoint": set(),  # the embedded model's weights are of no published one
            "quantization": {"as the file (F16, F32, I32)"},
        }  # fmt: skip


def drawn(count: int, seed: int) -> list[Server]:
    """Draw servers; every third one is llama.cpp's."""
    rng = random.Random(seed)
    servers = []
    for number in range(count):
        theirs = number % 3 == 2
        template = rng.choice(("may", "0731") if theirs else ("may", "0731", "v4.1"))
        servers.append(Server(
            "llama.cpp" if theirs else "ours", template, rng.choice(("on", "on", "off")),
            rng.choice(("low", "high", "max")), "off" if theirs else rng.choice(("off", "lookup")),
            "control" if theirs else rng.choice(("text", "text", "control")), rng.choice(FAULTS),
        ))  # fmt: skip
    return servers


@contextmanager
def _ours(server: Server) -> Iterator[str]:
    """Serve the embedded model by our server, with the faults that lie in its code."""
    drafts = Drafting(kind=server.draft) if server.draft != "off" else None
    later = server.template == "v4.1"
    template = "may" if later else server.template
    with Engine.open(embedded_path(), threads=1, template=template, drafts=drafts) as engine:
        tokenizer = engine.tokenizer
        if later:  # the vocabulary has no such token: the padding token takes its place
            tokenizer._special_ids[SYSTEM] = 2
            engine.profile = tokenizer.profile = PROFILES["v4.1"]
        if server.escaping == "control":
            tokenizer.encode = tokenizer.encode_rendered  # type: ignore[method-assign]
        worker = Worker(engine, ctx=CTX, sequences=Sequences(tokenizer, 8 << 20))
        if server.fault == "double BOS":
            prompt = worker._prompt
            worker._prompt = lambda turn: (lambda made, ids: (made, [ids[0], *ids]))(*prompt(turn))  # type: ignore
        with Background(Service(worker, apis())) as url:
            yield url


@contextmanager
def _theirs(server: Server) -> Iterator[str]:
    """Serve the embedded model by llama.cpp's server."""
    import xllamacpp

    efforts = {"low": "", "high": "", "max": MAX_PREFIX} if server.template == "may" else PROFILES["0731"].efforts
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = embedded_path(), CTX, 1
    params.warmup, params.verbosity, params.port, params.use_jinja = False, 0, 0, True
    params.cpuparams.n_threads = 1
    params.chat_template = JINJA.format(
        on=str(server.thinking == "on").lower(), effort=server.effort, joins=str(server.template != "may").lower(),
        **{name: json.dumps(text, ensure_ascii=False) for name, text in efforts.items()},
    )  # fmt: skip
    if server.fault == "double BOS":
        params.chat_template = "{{ bos_token }}" + params.chat_template
    running = xllamacpp.Server(params)
    yield running.listening_address
    del running


class Proxy(ThreadingHTTPServer):
    """Passes requests on to ``url``, with the server's defaults and faults."""

    daemon_threads = True

    def __init__(self, url: str, server: Server):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url, self.drawn = url, server

    def changed(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the request as the server reads it; None if it refuses it."""
        server = self.drawn
        asked = {name: body.pop(name, None) for name in ("thinking", "reasoning_effort", "chat_template_kwargs")}
        template = asked["chat_template_kwargs"] or {}
        if server.fault == "strict" and (
            asked["chat_template_kwargs"] if server.engine == "ours" else asked["thinking"]
        ):
            return None
        if server.fault == "no logprobs" or server.fault == "no usage, no logprobs":
            body = {name: value for name, value in body.items() if "logprobs" not in name}
        switch = (asked["thinking"] or {}).get("type")
        on = {"enabled": True, "disabled": False}.get(switch or "", template.get("thinking"))
        effort = asked["reasoning_effort"] or template.get("reasoning_effort")
        if server.fault == "deaf":
            on = effort = None
        on = server.thinking == "on" if on is None else on
        effort = effort or server.effort
        if server.engine == "ours":
            body["thinking"] = {"type": "enabled" if on else "disabled"}
            return body | ({"reasoning_effort": effort} if on else {})
        return body | {"chat_template_kwargs": {"thinking": on, "reasoning_effort": effort}}

    def answered(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return an answer, or an event of one, with the server's faults."""
        usage, fault = event.get("usage"), self.drawn.fault
        if usage and fault.startswith("no usage"):
            del event["usage"]
        elif usage and fault in ("one more", "one less"):
            usage["prompt_tokens"] += 1 if fault == "one more" else -1
        return event


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *_: Any) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.server.drawn.fault:  # hidden by most proxies
            return self._reply(404, b"{}")
        self._pass(None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("count_tokens") and self.server.drawn.fault == "no usage, no logprobs":
            return self._reply(404, b"{}")
        if "messages" in body and "count_tokens" not in self.path and (body := self.server.changed(body)) is None:
            return self._reply(400, json.dumps({"error": {"message": "unknown field chat_template_kwargs"}}).encode())
        self._pass(json.dumps(body).encode())

    def _pass(self, data: bytes | None) -> None:
        request = urllib.request.Request(self.server.url + self.path, data, {"content-type": "application/json"})
        try:
            reply = urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            return self._reply(error.code, error.read())
        kind = reply.headers["content-type"]
        if not kind.startswith("text/event-stream"):
            text = reply.read()
            if "json" in kind:
                text = json.dumps(self.server.answered(json.loads(text))).encode()
            return self._reply(200, text)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for line in reply:
            if line.startswith(b"data: {"):
                line = b"data: " + json.dumps(self.server.answered(json.loads(line[6:]))).encode() + b"\n"
            self.wfile.write(line)
            self.wfile.flush()

    def _reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Run a drawn server; yield its address."""
    with (_ours if server.engine == "ours" else _theirs)(server) as url, Proxy(url, server) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}/v1"
        proxy.shutdown()


def identified(server: Server, engine: Engine, quick: bool = False) -> Identification:
    """Identify a drawn server."""
    with ExitStack() as stack:
        target = stack.enter_context(open_target(stack.enter_context(serving(server)), attempts=2))
        known = None if server.fault == "no model" else engine
        work = Identification(target, Limit(300), known, candidates(known), quick=quick)
        work.run()
        return work


def judged(server: Server, work: Identification) -> tuple[str, list[str]]:
    """Return "right", "wrong" or "cannot tell", and the wrong claims."""
    served = work.served
    wrong = [f"{name} {served.value(name)} ({served[name].probability:.3f})" for name, values in server.truth.items()
             if served.value(name) not in (None, *values)]  # fmt: skip
    wrong += [f"earlier turns: {work.turns}"] if work.turns else []
    return "wrong" if wrong else "right" if served.value("profile") else "cannot tell", wrong


def main(argv: Sequence[str] | None = None) -> None:
    """Identify the drawn servers and print what is claimed of each."""
    flags = argparse.ArgumentParser("python -m benchmarks.identify")
    flags.add_argument("-n", type=int, default=40)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--at", type=int, help="only this server, with all probabilities")
    flags.add_argument("--quick", action="store_true", help="without the context limit")
    args = flags.parse_args(argv)
    counts, claimed = Counter[str](), Counter[str]()
    with Engine.open(embedded_path(), threads=1) as engine:
        for number, server in enumerate(drawn(args.n, args.seed)):
            if args.at not in (None, number):
                continue
            start = time.perf_counter()
            work = identified(server, engine, args.quick)
            served, (result, wrong) = work.served, judged(server, work)
            counts[result] += 1
            claimed.update(name for name in served.properties if served.value(name))
            claims = " ".join(f"{name}={served.value(name)}" for name in server.truth if served.value(name))
            print(f"{number:2} {result:11} {' '.join(filter(None, vars(server).values()))}: {claims}"
                  f"{' WRONG ' + ', '.join(wrong) if wrong else ''} ({work.asker.requests} requests, "
                  f"{time.perf_counter() - start:.0f} s)", flush=True)  # fmt: skip
            if args.at is not None:
                print(json.dumps({name: each.to_json() for name, each in served.properties.items()}, indent=1))
    print(f"{dict(counts)}; claimed: {dict(claimed)}")


if __name__ == "__main__":
    main()
