"""What serving costs, and what many clients do to it. The embedded model, our server, clients in another process.

    python -m benchmarks.serving overhead              tokens per second of one stream over HTTP and of the bare engine
    python -m benchmarks.serving warm                  time to the first token on 4096 tokens that are in memory
    python -m benchmarks.serving load --seconds 300    200 clients that stream, and some of whom leave

``overhead`` takes both in turn in one process, so that a machine that is busy is busy for both; the interval is of
their ratio over rounds. ``load`` compares every answer with the one that the same prompt had alone, and says how much
memory, files and threads the server has at the end against those after a tenth of the time.

Puts out a table, and a line of JSON. Leaves out: the network, and models whose token takes long enough to hide it all.
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
from contextlib import contextmanager
from typing import Any

import httpx2
import numpy as np

from ds4ref.engine import Engine
from ds4ref.generate import Generation, Timing, prefill
from ds4ref.nano import embedded_path
from ds4ref.runs import stats
from ds4ref.runs.provenance import stamp
from ds4ref.sampling import Sampler
from ds4ref.server.app import apis
from ds4ref.server.listen import Background
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker

PROMPT = "Tell me a story about number {}. " + "It may be long, but it should have an end. " * 4
PROMPTS = 12
CTX = 8192


@contextmanager
def serving(engine: Engine) -> Iterator[tuple[Service, str]]:
    """A server in this process."""
    service = Service(Worker(engine, ctx=CTX), apis())
    with Background(service) as url:
        yield service, url


def ask(kind: str, url: str, **what: Any) -> Any:
    """What the clients' process found."""
    command = [sys.executable, "-m", "benchmarks.serving", "client", json.dumps({"kind": kind, "url": url, **what})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------------- one stream


def bare(engine: Engine, tokens: int, seed: int) -> float:
    """Tokens per second of the decode loop, from the first token on."""
    session = engine.session(CTX)
    prefill(session, engine.tokenizer.encode(PROMPT.format(seed)), Timing())
    sampler = Sampler(1.0, seed=seed)
    made, first = 0, 0.0
    for _ in Generation(session, engine.tokenizer, sampler, limit=tokens):
        made += 1
        first = first or time.perf_counter()
    return (made - 1) / (time.perf_counter() - first)


def streamed(url: str, tokens: int, seed: int) -> float:
    """The same through HTTP, as the client sees it."""
    body = chat(PROMPT.format(seed), tokens, seed=seed, temperature=1.0)
    times, made = [], 0
    with httpx2.Client(timeout=60, trust_env=False) as client:
        with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                if '"content":"' in line:
                    times.append(time.perf_counter())
                if '"usage":{' in line:
                    made = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
    return (made - 1) / (times[-1] - times[0])


def chat(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    """A request."""
    return {
        "messages": [{"role": "user", "content": text}], "thinking": False, "max_tokens": tokens, "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0, **more,
    }  # fmt: skip


def overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Ratios of served to bare speed."""
    with Engine.open(embedded_path(), threads=args.threads) as engine, serving(engine) as (_, url):
        ratios, speeds = [], []
        for seed in range(args.rounds + 1):
            alone = bare(engine, args.tokens, seed + 1)
            served = ask("stream", url, tokens=args.tokens, seed=seed + 1)
            if seed:  # the first round warms up
                ratios.append(served / alone)
                speeds.append((alone, served))
    interval = stats.centre_interval(ratios)
    found = {"ratio": [interval.estimate, interval.low, interval.high], "rounds": len(ratios)}
    found |= {"bare": float(np.median([a for a, _ in speeds])), "served": float(np.median([b for _, b in speeds]))}
    print(f"bare {found['bare']:.0f} t/s, served {found['served']:.0f} t/s, "
          f"ratio {found['ratio'][0]:.3f} ({found['ratio'][1]:.3f} to {found['ratio'][2]:.3f})")  # fmt: skip
    return found


def warm(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds to the first token where all but a few tokens of the prompt are known."""
    with Engine.open(embedded_path(), threads=args.threads) as engine, serving(engine) as (service, url):
        some = "a word, another word, " * 100
        words = some * (1 + args.prefix // len(engine.tokenizer.encode(some)))
        ask("first", url, text=words)
        times = [1000 * ask("first", url, text=words) for _ in range(args.rounds)]
        cached = service.board.state()["recent"][0]["cached"]
    found = {"median": float(np.median(times)), "most": max(times), "cached": cached}
    print(f"first token after {found['median']:.1f} ms (at most {found['most']:.1f}), {cached} tokens cached")
    return found


def first(url: str, text: str) -> float:
    """Seconds to the first piece of content, over a connection that is there."""
    with httpx2.Client(timeout=60, trust_env=False) as client:
        client.get(f"{url}/health")
        begun = time.perf_counter()
        with client.stream("POST", f"{url}/v1/chat/completions", json=chat(text, 4)) as answer:
            for line in answer.iter_lines():
                if '"content":"' in line:
                    return time.perf_counter() - begun
    raise RuntimeError("no content came")


# --------------------------------------------------------------------------------------------------- many clients


def load(args: argparse.Namespace) -> dict[str, Any]:
    """Many clients for some time."""
    with Engine.open(embedded_path(), threads=args.threads) as engine, serving(engine) as (service, url):
        alone = ask("alone", url, tokens=args.tokens)
        many = {"tokens": args.tokens, "clients": args.clients, "alone": alone}
        half = ask("crowd", url, seconds=args.seconds / 10, seed=1, **many)
        before = resources()
        crowd = ask("crowd", url, seconds=args.seconds, seed=2, **many)
        end = time.monotonic() + 30
        while service.board.state()["live"] and time.monotonic() < end:
            time.sleep(0.05)
        after = resources()
        live = len(service.board.state()["live"])
    waits = np.array(crowd["waits"])
    found = {
        "answers": crowd["answers"], "left": crowd["left"], "wrong": crowd["wrong"] + half["wrong"],
        "failed": crowd["failed"] + half["failed"], "live": live, "before": before, "after": after,
        "wait": {"median": float(np.median(waits)), "p99": float(np.quantile(waits, 0.99)), "most": float(waits.max())},
    }  # fmt: skip
    print(f"{found['answers']} answers, {found['left']} clients left, {found['wrong']} answers wrong, "
          f"{found['failed']} failed, {live} still live")  # fmt: skip
    print(f"first token after {found['wait']['median']:.1f} s (median), {found['wait']['p99']:.1f} s (99 %), "
          f"{found['wait']['most']:.1f} s (most)")  # fmt: skip
    for name, value in before.items():
        print(f"{name}: {value} before, {after[name]} after")
    return found


def resources() -> dict[str, int]:
    """Memory, files and threads of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return {"MiB": resident >> 20, "files": files, "threads": threads}


async def crowd(url: str, tokens: int, clients: int, seconds: float, alone: list[str], seed: int) -> dict[str, Any]:
    """Clients that ask again and again; one in three leaves somewhere on the way."""
    found: dict[str, Any] = {"answers": 0, "left": 0, "wrong": 0, "failed": 0, "waits": []}
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        rng = random.Random(seed * 100_000 + number)
        headers = {"session-id": f"client {number}"}
        async with httpx2.AsyncClient(timeout=600, trust_env=False, headers=headers) as client:
            while time.monotonic() < end:
                which, patience = rng.randrange(PROMPTS), rng.choice([None, None, rng.uniform(0, 10)])
                try:
                    async with asyncio.timeout(patience):
                        text = await answer(client, which)
                    found["answers"] += 1
                    found["wrong"] += text != alone[which]
                except TimeoutError:
                    found["left"] += 1
                except (httpx2.HTTPError, AssertionError) as error:
                    print(repr(error), file=sys.stderr)
                    found["failed"] += 1

    async def answer(client: httpx2.AsyncClient, which: int) -> str:
        begun, text, ended = time.monotonic(), "", False
        body = chat(PROMPT.format(which), tokens)
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.status_code
            async for line in response.aiter_lines():
                if line.startswith('data: {"') and '"content":"' in line:
                    if not text:
                        found["waits"].append(time.monotonic() - begun)
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"]
                ended = ended or line == "data: [DONE]"
        assert ended, "the stream was cut"
        return text

    await asyncio.gather(*map(one, range(clients)))
    return found


def alone(url: str, tokens: int) -> list[str]:
    """The answer to each prompt when nobody else asks."""
    found = []
    with httpx2.Client(timeout=60, trust_env=False) as client:
        for which in range(PROMPTS):
            body = chat(PROMPT.format(which), tokens) | {"stream": False}
            del body["stream_options"]
            answer = client.post(f"{url}/v1/chat/completions", json=body)
            found.append(answer.json()["choices"][0]["message"]["content"])
    return found


def client(what: dict[str, Any]) -> Any:
    """The clients' side, in a process of its own."""
    kind = what.pop("kind")
    if kind == "crowd":
        return asyncio.run(crowd(**what))
    return {"stream": streamed, "first": first, "alone": alone}[kind](**what)


def main(argv: Sequence[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "warm", "load", "client"])
    parser.add_argument("request", nargs="?", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=None, help="of an answer (overhead: 400, load: 16)")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens of the prefix (warm)")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args(argv)
    if args.what == "client":
        print(json.dumps(client(json.loads(args.request))))
        return
    args.tokens = args.tokens or (16 if args.what == "load" else 400)
    found = {"overhead": overhead, "warm": warm, "load": load}[args.what](args)
    print(json.dumps({args.what: found, "tokens": args.tokens, "threads": args.threads, **stamp()}))


if __name__ == "__main__":
    main()
