"""Answers under way at once: time to the first token, and tokens per second of all, on the random model.

    python -m benchmarks.streams                   8 rounds, 1, 2, 4 and 8 streams
    python -m benchmarks.streams --rounds 3 --tokens 50

Each round asks, in an order of its own: N clients at the same moment, for N of 1, 2, 4, 8, of a server that runs all of
them in turns and of one that runs them one after the other; and four answers of 10 tokens beside one of 1,000, of both.
The four are also asked alone: their time to the first token is what a prefill takes. No prompt is like another, none
is cached. Every text is compared with the same request alone (temperature 0, and a seed at temperature 1).

Prints a table of medians and quartiles over rounds, and a line of JSON. Tokens per second of the server's processor
time tell what turns cost on a machine that does other things, too. The clients are a process of their own on the same
machine; excludes the network.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx2
import numpy as np

from ds4ref.engine import Engine
from ds4ref.nano import random_path
from ds4ref.runs.provenance import stamp
from ds4ref.server.app import apis
from ds4ref.server.listen import Background
from ds4ref.server.service import Service
from ds4ref.server.timelines import Timelines
from ds4ref.server.worker import SLICE, STREAMS, Worker

from .load import piece

CTX = 4096
COUNTS = (1, 2, 4, 8)
LONG, SHORT, BESIDE = 1000, 10, 4

ASK = "Tell me a story about number {}. It may be long, but it must have an end."


def body(number: int, tokens: int, seed: int | None) -> dict[str, Any]:
    """Return a streaming request; texts of random weights rarely end before ``tokens``."""
    how = {"temperature": 0} if seed is None else {"temperature": 1, "seed": seed}
    return {
        "messages": [{"role": "user", "content": ASK.format(number)}],
        "max_tokens": tokens, "stream": True, "thinking": False, **how,
    }  # fmt: skip


async def answer(client: httpx2.AsyncClient, what: dict[str, Any], begun: asyncio.Event | None = None) -> Any:
    """Return (seconds to the first token, seconds in all, tokens, text); ``begun`` is set at the first token."""
    start, first, texts, count = time.perf_counter(), 0.0, list[str](), 0
    asked = {**what, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        assert response.status_code == 200, response.status_code
        async for line in response.aiter_lines():
            if text := piece(line):
                first = first or time.perf_counter() - start
                texts.append(text)
                if begun is not None:
                    begun.set()
            elif line.startswith("data: {") and (usage := json.loads(line[6:]).get("usage")):
                count = usage["completion_tokens"]
    return first, time.perf_counter() - start, count, "".join(texts)


async def together(url: str, wanted: Sequence[dict[str, Any]], long: dict[str, Any] | None) -> Any:
    """Ask all of ``wanted`` at one moment, each as a client of its own, beside ``long`` once that has begun."""
    async with httpx2.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        tasks = list[Any]()
        if long is not None:
            begun = asyncio.Event()
            tasks.append(asyncio.create_task(answer(client, long, begun)))
            await begun.wait()
        start = time.perf_counter()
        found = await asyncio.gather(*(answer(client, one) for one in wanted))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "answers": found, "long": [await task for task in tasks]}


def ask(url: str, wanted: Sequence[dict[str, Any]], long: dict[str, Any] | None = None) -> Any:
    """Ask from another process, which is started anew: its start is not part of any time."""
    given = json.dumps({"url": url, "wanted": list(wanted), "long": long})
    command = [sys.executable, "-m", "benchmarks.streams", "--client"]
    return json.loads(subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(rounds: int, tokens: int, threads: int | None, model: str | None) -> dict[str, Any]:
    """Return what was measured: a list of values for each setting, and the number of texts that differed."""
    found: dict[str, Any] = {"first": {}, "speed": {}, "work": {}, "beside": {}, "ratio": [], "differ": 0, "texts": 0}
    fresh, rng = itertools.count(1), random.Random(0)
    with Engine.open(model or random_path(), threads=threads) as engine:
        worker = Worker(engine, ctx=CTX, timelines=Timelines(engine.tokenizer, 0))
        with Background(Service(worker, apis())) as url:
            ask(url, [body(next(fresh), 20, None)])
            for _ in range(rounds):
                jobs = [(count, streams) for count in (*COUNTS, 0) for streams in (1, STREAMS)]
                rng.shuffle(jobs)
                for count, worker.streams in jobs:
                    which = "in turns" if worker.streams > 1 else "one by one"
                    if count:
                        many = [body(next(fresh), tokens, None if n % 2 else n + 1) for n in range(count)]
                        work = time.process_time()
                        done = ask(url, many)
                        work = time.process_time() - work
                        said = sum(one[2] for one in done["answers"])
                        found["speed"].setdefault(f"{count} {which}", []).append(said / done["seconds"])
                        found["work"].setdefault(f"{count} {which}", []).append(said / work)
                        found["first"].setdefault(f"{count} {which}", []).extend(one[0] for one in done["answers"])
                    else:
                        many = [body(next(fresh), SHORT, None) for _ in range(BESIDE)]
                        done = ask(url, many, body(next(fresh), LONG, None))
                        found["beside"].setdefault(which, []).extend(one[0] for one in done["answers"])
                    worker.timelines.clear()
                    for what, (first, _, _, text) in zip(many, done["answers"], strict=True):
                        if worker.streams == 1:
                            break  # what is asked for is that turns change nothing
                        alone = ask(url, [what])["answers"][0]
                        worker.timelines.clear()
                        found["texts"] += 1
                        found["differ"] += alone[3] != text
                        if not count:
                            found["ratio"].append(first / (SLICE + alone[0]))
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """Return median and quartiles as text."""
    low, middle, high = (round(float(np.quantile(values, q)), digits) for q in (0.25, 0.5, 0.75))
    return f"{middle} ({low} to {high})"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark, or with --client its clients' side; print a table and JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", default=None)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.client:
        print(json.dumps(asyncio.run(together(**json.load(sys.stdin)))))
        return
    found = measure(args.rounds, args.tokens, args.threads, args.model)
    print("| streams | first token, in turns, s | one by one, s | tokens/s in turns | one by one | "
          "tokens per processor second in turns | one by one |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    for count in COUNTS:
        ways = [f"{count} in turns", f"{count} one by one"]
        cells = [spread(found[name][way], digits) for name, digits in (("first", 3), ("speed", 0), ("work", 0))
                 for way in ways]  # fmt: skip
        print("| " + " | ".join([str(count), *cells]) + " |")
    for way, values in found["beside"].items():
        print(f"{BESIDE} beside one of {LONG} tokens, {way}: first token after {spread(values, 3)} s, "
              f"at most {max(values):.3f}")  # fmt: skip
    print(
        f"in turns, over a slice and the prefill alone: {spread(found['ratio'], 2)}, at most {max(found['ratio']):.2f}"
    )
    print(f"{found['differ']} of {found['texts']} texts differ from those alone")
    print(json.dumps({"command": "benchmarks.streams", **stamp(), **found}))


if __name__ == "__main__":
    main()
