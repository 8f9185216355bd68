"""Load test of the server: the random model, our server in this process, many clients in another one.

    python -m benchmarks.load                      200 streaming clients for 5 minutes, some of which disconnect
    python -m benchmarks.load --seconds 20 --clients 50

Clients send requests continuously, through all four APIs; a third of their requests are abandoned: after a random time,
or after some pieces of the answer. A few greedy clients send several requests at once, which must slow down only
themselves. Every complete answer is compared with the answer to the same request on an idle server (temperature 0).

Prints, as a table or JSON: answers, wrong and broken ones; time to first token for polite and greedy clients; work done
for disconnected clients; and memory, files and threads of the server before and after. Excludes the network.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2

from ds4ref.engine import Engine
from ds4ref.nano import random_path
from ds4ref.server.app import apis
from ds4ref.server.job import Job
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Sequences
from ds4ref.server.service import Service
from ds4ref.server.turn import Delta, Prefill
from ds4ref.server.worker import Worker
from ds4ref.targets.transport import tls_context

from .harness import Row, add_json, row, show

CTX, TOKENS = 8192, 16
PROMPTS = 12
MEMORY = 8 << 20
"""Bytes for the server's cached sequences, so few that the cache is full when the measurement begins."""

GREEDY, AT_ONCE = 20, 8
"""One client in GREEDY is greedy: it sends AT_ONCE requests at the same time."""

SYSTEM = "You tell stories. They may be long, but they have an end. " * 6
ASK = "Tell me one about number {}."


# ----------------------------------------------------------------------------------------------------- the server


class Watched(Worker):
    """A worker that counts the tokens it computes for disconnected clients."""

    def __init__(self, *args: Any, **named: Any):
        self.left = 0
        self.late_tokens: list[int] = []
        self.late_seconds: list[float] = []
        self._pressed: dict[int, list[float]] = {}
        super().__init__(*args, **named)

    def submit(self, turn: Any, listen: Any, remember: Any = lambda message, choice: message) -> Job:
        """Submit the turn; its events are also recorded."""
        jobs: list[Job] = []

        def listener(event: Any) -> None:
            # Events that come after the cancellation were computed after it, or at that moment.
            if jobs and isinstance(event, (Delta, Prefill)) and not getattr(event, "finish", ""):
                pressed = self._pressed.get(id(jobs[0]))
                if pressed is not None:
                    pressed.append(time.monotonic())
            listen(event)

        job = super().submit(turn, listener, remember)
        jobs.append(job)
        return job

    def abandon(self, job: Job) -> None:
        """Record that the job's client disconnected, then abandon the job."""
        self.left += 1
        if job in self.running:
            self._pressed[id(job)] = [time.monotonic()]
        super().abandon(job)

    def _end(self, job: Job, finish: str) -> None:
        super()._end(job, finish)
        pressed = self._pressed.pop(id(job), None)
        if pressed is not None:
            self.late_tokens.append(len(pressed) - 1)
            self.late_seconds.append(time.monotonic() - pressed[0])


def resources() -> dict[str, int]:
    """Return memory in bytes, open files and threads of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return {"KiB": resident >> 10, "files": files, "threads": threads}


def ask(kind: str, url: str, **options: Any) -> Any:
    """Run a job of the clients (``client``) in another process, with ``options``; return its result."""
    command = [sys.executable, "-m", "benchmarks.load", "--client", json.dumps({"kind": kind, "url": url, **options})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def load(seconds: float, clients: int, tokens: int = TOKENS, threads: int | None = None, model: str = "") -> dict:
    """Start a server and run ``clients`` clients against it for ``seconds``, after a warm-up of a fifth of that; return
    the results."""
    with Engine.open(model or random_path(), threads=threads) as engine:
        worker = Watched(engine, ctx=CTX, sequences=Sequences(engine.tokenizer, MEMORY), queue_limit=4 * clients)
        service = Service(worker, apis())
        with Background(service) as url:
            many = {"tokens": tokens, "clients": clients, "alone": ask("alone", url, tokens=tokens)}
            first = ask("crowd", url, seconds=seconds / 5, seed=1, **many)
            settled(service)
            before = resources()
            crowd = ask("crowd", url, seconds=seconds, seed=2, **many)
            live, after = settled(service), resources()
    late = {
        "all": worker.left, "running": len(worker.late_tokens), "tokens": max(worker.late_tokens, default=0),
        "ms": 1000 * max(worker.late_seconds, default=0.0),
    }  # fmt: skip
    failures = {name: crowd[name] + first[name] for name in ("wrong", "failed")}
    return {**crowd, **failures, "live": live, "late": late, "before": before, "after": after}


def settled(service: Service, seconds: float = 30.0) -> int:
    """Wait up to ``seconds`` for all connections to end; return the number of turns still running."""
    end = time.monotonic() + seconds
    while (service.worker.running or len(service.worker.queue)) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1.5)  # the server still reads from connections for a second
    return len(service.worker.running) + len(service.worker.queue)


# ---------------------------------------------------------------------------------------------------- the clients


def request(api: str, prompt: int, tokens: int) -> tuple[str, dict[str, Any]]:
    """Return (path, JSON body) of a streaming request to one of the APIs, with prompt number ``prompt``."""
    text = ASK.format(prompt)
    users = [{"role": "user", "content": text}]
    how = {"stream": True, "temperature": 0}
    small = {"max_tokens": tokens, **how}
    return {
        "chat": (
            "/v1/chat/completions",
            {"messages": [{"role": "system", "content": SYSTEM}, *users], "thinking": False, **small},
        ),
        "completions": ("/v1/completions", {"prompt": SYSTEM + text, "thinking": False, **small}),
        "messages": ("/v1/messages", {"system": SYSTEM, "messages": users, **small}),
        "responses": (
            "/v1/responses",
            {"instructions": SYSTEM, "input": users, "reasoning": THOUGHTLESS, "max_output_tokens": tokens, **how},
        ),
    }[api]  # fmt: skip


THOUGHTLESS = {"effort": "none"}
APIS = ("chat", "completions", "messages", "responses")
ENDS = ("data: [DONE]", '"type":"message_stop"', '"type":"response.completed"', '"type":"response.incomplete"')


def piece(line: str) -> str:
    """Return the visible text in one line of any API's event stream, "" if it has none."""
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    if "error" in event or event.get("type") in ("error", "response.failed"):
        raise AssertionError(line)
    if choices := event.get("choices"):
        return choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
    if event.get("type") == "content_block_delta":
        return event["delta"].get("text", "")
    return event["delta"] if event.get("type") == "response.output_text.delta" else ""


class Left(Exception):
    """Raised when a client disconnects early on purpose."""


class Crowd:
    """All clients of the load test, their requests and their results."""

    def __init__(self, url: str, tokens: int, clients: int, seconds: float, alone: dict[str, list[str]], seed: int):
        self.url, self.tokens, self.clients, self.alone, self.seed = url, tokens, clients, alone, seed
        self.seconds, self.end = seconds, 0.0
        self.counts: dict[str, Any] = {"answers": 0, "left": 0, "wrong": 0, "failed": 0}
        self.waits: dict[str, list[float]] = {"polite": [], "greedy": []}
        self.shares: list[float] = []

    async def run(self) -> dict[str, Any]:
        """Run all clients until the time is over and the last answers have arrived; return the results."""
        self.end = time.monotonic() + self.seconds
        await asyncio.gather(*map(self.one, range(self.clients)))
        return {**self.counts, "waits": self.waits, "shares": self.shares}

    async def one(self, number: int) -> None:
        """Run one client, which sends one request at a time, or several if it is greedy."""
        greedy = number % GREEDY == 0
        headers = {"session-id": f"client {number}"}
        limits = httpx2.Limits(max_connections=None)
        # certificates are read once, because 200 times took longer than the warm-up, in which nothing was then asked
        shared: dict[str, Any] = {"timeout": 600, "trust_env": False, "limits": limits, "verify": tls_context()}
        async with httpx2.AsyncClient(headers=headers, **shared) as client:
            lines = [self.line(client, number * AT_ONCE + n, greedy) for n in range(AT_ONCE if greedy else 1)]
            served = sum(await asyncio.gather(*lines))
        if not greedy:
            self.shares.append(served)

    async def line(self, client: httpx2.AsyncClient, number: int, greedy: bool) -> int:
        """Send requests of client ``number`` one after the other until the time is over; return the number of
        answers."""
        rng, served = random.Random(self.seed * 1_000_000 + number), 0
        while time.monotonic() < self.end:
            api, prompt = rng.choice(APIS), rng.randrange(PROMPTS)
            patience = rng.choice([None, None, None, None, rng.uniform(0, 10), 0])
            pieces = rng.randrange(self.tokens) if patience == 0 else None
            try:
                async with asyncio.timeout(patience or None):
                    text = await self.answer(client, api, prompt, pieces, self.waits["greedy" if greedy else "polite"])
                self.counts["answers"] += 1
                served += 1
                if text != self.alone[api][prompt]:
                    self.counts["wrong"] += 1
                    print(f"{api} {prompt}: {text!r}, alone {self.alone[api][prompt]!r}", file=sys.stderr)
            except (TimeoutError, Left):
                self.counts["left"] += 1
            except (httpx2.HTTPError, AssertionError) as error:
                print(repr(error), file=sys.stderr)
                self.counts["failed"] += 1
        return served

    async def answer(
        self, client: httpx2.AsyncClient, api: str, prompt: int, pieces: int | None, waits: list[float]
    ) -> str:
        """Send a request and return the text of the answer; raise Left after ``pieces`` pieces of it (None: never)."""
        begun, texts, ended = time.monotonic(), list[str](), False
        path, body = request(api, prompt, self.tokens)
        async with client.stream("POST", self.url + path, json=body) as response:
            assert response.status_code == 200, response.status_code
            async for line in response.aiter_lines():
                if text := piece(line):
                    if not texts:
                        waits.append(time.monotonic() - begun)
                    texts.append(text)
                    if pieces is not None and len(texts) > pieces:
                        raise Left
                ended = ended or any(end in line for end in ENDS)
        assert ended, "the stream was cut"
        return "".join(texts)


def alone(url: str, tokens: int) -> dict[str, list[str]]:
    """Return the answers to every request on an idle server, with which later answers are compared."""
    answers: dict[str, list[str]] = {api: [] for api in APIS}
    with httpx2.Client(timeout=60, trust_env=False) as client:
        for api in APIS:
            for prompt in range(PROMPTS):
                path, body = request(api, prompt, tokens)
                answer = client.post(url + path, json=body)
                answers[api].append("".join(map(piece, answer.text.split("\n"))))
    assert all(map(any, answers.values())), "nothing was said"
    return answers


def client(options: dict[str, Any]) -> Any:
    """Do one job of the clients' process, as ``options`` say, and return its result."""
    if options.pop("kind") == "crowd":
        return asyncio.run(Crowd(**options).run())
    return alone(**options)


def rows(result: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of the table for the result of a load test."""
    late, before = result["late"], result["before"]
    yield Row("answers", result["answers"], note=f"{result['left']} requests were abandoned")
    for name, what in (("wrong", "other answers than alone"), ("failed", "broken answers"), ("live", "still running")):
        yield Row(what, result[name], bar=0, better="lower")
    for kind, waits in result["waits"].items():
        yield row(f"first token, {kind} clients", waits, "s", better="lower")
    yield row("answers of a client", result["shares"])
    note = f"of {late['all']} that left, {late['running']} were being answered; it ended within {late['ms']:.1f} ms"
    yield Row("most tokens or chunks told after that", late["tokens"], bar=1, better="lower", note=note)
    for name, value in before.items():
        yield Row(f"{name} of the server", result["after"][name], better="lower", note=f"{value} before")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the load test; print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", metavar="JSON", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=200)
    add_json(parser)
    args = parser.parse_args(argv)
    if args.client:
        print(json.dumps(client(json.loads(args.client))))
        return
    figures = list(rows(load(args.seconds, args.clients)))
    title = f"{args.clients} clients for {args.seconds:.0f} s"
    show(figures, title, args.json, clients=args.clients, seconds=args.seconds, tokens=TOKENS)


if __name__ == "__main__":
    main()
