"""How long ds4-vectors doctor takes against a slow server, and how long it said it would.

    python -m benchmarks.doctor_time [--tokens-per-second 50] [--latency 0.15] [--prefill 2000] [--concurrent 4]
                                     [-m MODEL.gguf] [DOCTOR'S OPTIONS: --quick, --only A,B ...]
    python -m benchmarks.doctor_time --costs        what each stage takes: COSTS of doctor/plan.py

The server is ds4-server in this process, behind a proxy that holds each answer back until a server of that speed would
have sent it: latency + prompt tokens / prefill + generated tokens / tokens per second; of more requests than
``--concurrent`` at once the later ones wait. Our own server must be faster than that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.server.app import apis
from ds4ref.server.constrain import guide_of
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Sequences
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker
from ds4ref.test_vectors import cli


class Throttle:
    """A proxy before ``url`` that answers as slowly as a server with these speeds; ``self.url`` is its address.

    latency   seconds per request
    prefill   prompt tokens per second
    tokens    generated tokens per second, of one answer
    abreast   number of requests that it computes at once
    """

    def __init__(self, url: str, latency: float, prefill: float, tokens: float, abreast: int = 4):
        self.target = urlsplit(url)
        self.latency, self.prefill, self.tokens = latency, prefill, tokens
        self.slots = threading.Semaphore(abreast)
        self.requests = self.prompt_tokens = self.generated = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.pass_on(b"")

            def do_POST(self) -> None:
                with outer.slots:
                    self.pass_on(self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def pass_on(self, body: bytes) -> None:
                start = time.monotonic()
                upstream = HTTPConnection(outer.target.hostname or "", outer.target.port)
                headers = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "authorization")}
                upstream.request(self.command, self.path, body or None, headers)
                reply = upstream.getresponse()
                data = reply.read()
                upstream.close()
                if self.command == "POST":
                    time.sleep(max(0.0, start + outer.seconds(data) - time.monotonic()))
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.getheader("Content-Type", "application/json"))
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}{self.target.path}"

    def seconds(self, data: bytes) -> float:
        """Return how long a server of these speeds takes for an answer, and count it; streams end with their usage."""
        prompt, generated = (int(each[-1]) if (each := re.findall(rb'"%s_tokens": ?(\d+)' % name, data)) else 0
                             for name in (b"prompt", b"completion"))  # fmt: skip
        self.requests, self.prompt_tokens = self.requests + 1, self.prompt_tokens + prompt
        self.generated += generated
        return self.latency + prompt / self.prefill + generated / self.tokens

    def __enter__(self) -> Throttle:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def served(model: str, threads: int = 1) -> Iterator[str]:
    """Context manager: the address of ds4-server in this process."""
    with Engine.open(model, threads=threads) as engine:
        worker = Worker(engine, ctx=32768, sequences=Sequences(engine.tokenizer, 64 << 20), constrain=guide_of)
        service = Service(worker, apis())
        with Background(service) as url:
            yield f"{url}/v1"


def examined(url: str, model: str, options: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Run the doctor; return (its doctor.json, seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        with redirect_stdout(StringIO()):
            cli.main(["doctor", url, "-m", model, "-o", folder, "--no-store", *options])
        seconds = time.monotonic() - start
        return json.loads(Path(folder, "doctor.json").read_bytes()), seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.doctor_time", description=__doc__.split("\n", 1)[0],
                                    allow_abbrev=False)  # fmt: skip
    flags.add_argument("--tokens-per-second", type=float, default=50.0)
    flags.add_argument("--latency", type=float, default=0.15)
    flags.add_argument("--prefill", type=float, default=2000.0)
    flags.add_argument("--concurrent", type=int, default=4)
    flags.add_argument("-m", "--model", default=str(diagnostic_path()))
    flags.add_argument("--costs", action="store_true", help="measure COSTS instead")
    args, options = flags.parse_known_args(argv)
    with served(args.model) as url:
        if args.costs:
            for form in [["--quick"], [], ["--long"]] if not options else [options]:
                with Throttle(url, 0.0, 1e9, 1e9, args.concurrent) as proxy:
                    whole, _ = examined(proxy.url, args.model, [*form, "--budget", "3000", "--total", "9000"])
                    print_costs(whole, " ".join(form))
            return 0
        with Throttle(url, args.latency, args.prefill, args.tokens_per_second, args.concurrent) as proxy:
            whole, seconds = examined(proxy.url, args.model, options)
            print(f"{seconds:.0f} s, estimated {whole['estimate'].get('seconds', 0):.0f} s; {proxy.requests} requests, "
                  f"{proxy.prompt_tokens} prompt tokens, {proxy.generated} generated; {whole['verdict']}")  # fmt: skip
            for stage in whole["stages"]:
                estimate = whole["estimate"].get("stages", {}).get(stage["name"], 0)
                print(f"  {stage['name']:12} {stage['seconds']:7.1f} s  estimated {estimate:7.1f} s  "
                      f"{stage['usage'].get('requests', 0):4d} requests  {stage['outcome']}")  # fmt: skip
    return 0


def print_costs(whole: dict[str, Any], form: str) -> None:
    """Print the cost of every stage, as its entry in ``COSTS``."""
    for stage in whole["stages"]:
        usage = stage["usage"]
        if usage and stage["name"] != "preflight":
            own = max(0.0, stage["seconds"] - usage["seconds"])
            print(f"{form} {stage['name']}: Cost({usage['requests']}, {usage['prompt']}, {usage['tokens']}, {own:.1f})")


if __name__ == "__main__":
    sys.exit(main())
