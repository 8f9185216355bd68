"""What serving costs. The embedded model, our server, clients in another process.

    python -m benchmarks.serving overhead              tokens per second of one stream over HTTP and of the bare engine
    python -m benchmarks.serving warm                  time to the first token on 4096 tokens that are in memory

``overhead`` takes both in turn in one process, so that a machine that is busy is busy for both; the interval is of
their ratio over rounds. What many clients do to a server is in ``benchmarks.load``.

Puts out a table, and a line of JSON. Leaves out: the network, and models whose token takes long enough to hide it all.
"""

from __future__ import annotations

import argparse
import json
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


# ---------------------------------------------------------------------------------------------------- the command


def client(what: dict[str, Any]) -> Any:
    """The clients' side, in a process of its own."""
    return {"stream": streamed, "first": first}[what.pop("kind")](**what)


def main(argv: Sequence[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "warm", "client"])
    parser.add_argument("request", nargs="?", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=400, help="of an answer (overhead)")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens of the prefix (warm)")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args(argv)
    if args.what == "client":
        print(json.dumps(client(json.loads(args.request))))
        return
    found = {"overhead": overhead, "warm": warm}[args.what](args)
    print(json.dumps({args.what: found, "tokens": args.tokens, "threads": args.threads, **stamp()}))


if __name__ == "__main__":
    main()
