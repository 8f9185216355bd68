"""A server under clients that mean no good: what it holds afterwards, and what it answers meanwhile.

300 connections idle, some send a byte at a time, some nonsense, some leave in the middle of an answer, and six hold
conversations. A request that is repeated throughout must get the same answer. Then signals end servers in every phase.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

IDLE, LIMIT_MB = 300, 64
FLAGS = ("-c", "4096", "--streams", "4", "--memory-mb", str(LIMIT_MB))
MOST_MB = 1.5 * LIMIT_MB + 128
"""What the server may grow by after one conversation: cached ones, with the pages that they fill in part; four sessions
with their recorded passes; connections."""
WORDS = "the stone sat on a hill and the wind of the sea came over old roads where men carried salt".split()
SAME = {"messages": [{"role": "user", "content": "Say the same again."}], "max_tokens": 8, "temperature": 0}
CHAT = "/v1/chat/completions"


class Load:
    """All clients of one server, and what they saw."""

    def __init__(self, url: str, pid: int, seed: int):
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port, self.pid, self.seed = int(port), pid, seed
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.health: list[float] = []
        self.answer: Any = None
        self.over = threading.Event()

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), 60)

    def post(self, body: Any) -> Any:
        """Return the text of a whole answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        self.counts["requests"] += 1
        if response.status == 503:  # the queue is full
            time.sleep(0.2)
            return None
        if response.status != 200:
            self.failures[f"status {response.status} for a good request"] += 1
            return None
        return json.loads(data)["choices"][0]["message"]["content"] or ""

    # --- kinds of clients; each does one thing

    def converse(self, rng: random.Random) -> None:
        history = []
        for _ in range(rng.randint(1, 5)):
            history.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(5, 150)))})
            text = self.post({"messages": history, "max_tokens": rng.randint(1, 12), "temperature": 0})
            history.append({"role": "assistant", "content": text or "x"})
        text = self.post(SAME)
        if text is not None and self.answer is None:
            self.answer = text
        if text is not None and text != self.answer:
            self.failures["another answer to the same request"] += 1

    def leave(self, rng: random.Random) -> None:
        body = json.dumps({**SAME, "max_tokens": 200, "stream": True, "seed": rng.randint(0, 9)}).encode()
        data = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        with self.connect() as sock:
            sock.sendall(data[: rng.choice((len(data), len(data), rng.randint(1, len(data))))])
            sock.settimeout(rng.random())
            with suppress(TimeoutError):
                sock.recv(rng.randint(1, 5000))
        self.counts["left"] += 1

    def talk_nonsense(self, rng: random.Random) -> None:
        from tests.server.hostile import LINES

        case = LINES[rng.choice(sorted(LINES))]
        data = bytearray(b"".join(case.pieces))
        if data and rng.random() < 0.5:
            data[rng.randrange(len(data))] = rng.randrange(256)
        with self.connect() as sock, suppress(OSError):
            sock.sendall(bytes(data)[:200_000])
            sock.shutdown(socket.SHUT_WR)
            status = sock.recv(100).split(b" ")[1:2]
            if status and status[0].startswith(b"5") and status[0] not in (b"501", b"503"):
                self.failures[f"status {status[0].decode()} for nonsense"] += 1
        self.counts["nonsense"] += 1

    def trickle(self, rng: random.Random) -> None:
        with self.connect() as sock, suppress(OSError):
            for byte in b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{":
                if self.over.wait(rng.random() / 10):
                    break
                sock.sendall(bytes([byte]))
        self.counts["slow"] += 1

    def poll(self, rng: random.Random) -> None:
        begun = time.monotonic()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            self.failures["not healthy"] += 1
        connection.close()
        self.health.append(time.monotonic() - begun)
        time.sleep(0.1)

    # --- all together

    def repeat(self, client: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(self.seed * 1000 + number)
        while not self.over.is_set():
            try:
                client(rng)
            except OSError as error:
                if not self.over.is_set():
                    self.counts[f"{client.__name__}: {type(error).__name__}"] += 1
                    time.sleep(0.05)

    def run(self, tries: int, seconds: float) -> None:
        """Run all clients until the server has answered ``tries`` requests or time is up."""
        self.converse(random.Random(0))
        start = self.holds()
        idle = [self.connect() for _ in range(IDLE)]
        kinds = [self.converse] * 6 + [self.leave] * 3 + [self.talk_nonsense] * 2 + [self.trickle] * 2 + [self.poll]
        threads = [threading.Thread(target=self.repeat, args=(kind, i)) for i, kind in enumerate(kinds)]
        for thread in threads:
            thread.start()
        end, peak = time.monotonic() + seconds, 0.0
        while time.monotonic() < end and self.counts["requests"] < tries and self.alive:
            time.sleep(1)
            peak = max(peak, self.holds()["MB"])
        self.over.set()
        for thread in threads:
            thread.join()
        for sock in idle:
            sock.close()
        if not self.alive:
            self.failures["the server is gone"] += 1
            return
        time.sleep(3)
        last = self.holds()
        for what in ("descriptors", "threads"):
            if last[what] > start[what] + 8:
                self.failures[f"{last[what] - start[what]} {what} more than before"] += 1
        if peak > start["MB"] + MOST_MB:
            self.failures[f"grew from {start['MB']:.0f} to {peak:.0f} MB"] += 1
        self.counts.update({"MB before": round(start["MB"]), "MB at most": round(peak), "MB after": round(last["MB"])})
        self.counts["health p99 ms"] = round(1000 * sorted(self.health)[int(0.99 * len(self.health))])
        if max(self.health) > 10:
            self.failures[f"/health took {max(self.health):.0f} s"] += 1

    @property
    def alive(self) -> bool:
        return "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()

    def holds(self) -> dict[str, float]:
        """Return what the server holds: memory in MB, descriptors, threads."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return {"MB": int(fields["VmRSS"].split()[0]) / 1000, "threads": int(fields["Threads"]),
                "descriptors": len(list(Path(f"/proc/{self.pid}/fd").iterdir()))}  # fmt: skip


def under_load(tries: int, seconds: float, seed: int) -> tuple[int, dict[str, int], dict[str, int]]:
    """Load one server; return requests answered, failures by kind, and figures."""
    from ds4ref.nano import random_path
    from tests.server.process import process

    with process(random_path(), *FLAGS) as server:
        load = Load(server.url, server.process.pid, seed)
        load.run(tries, seconds)
    figures = {name: count for name, count in load.counts.items() if name != "requests"}
    return load.counts["requests"], dict(load.failures), figures


def _long(load: Load) -> None:
    load.leave(random.Random(0))


PHASES: dict[str, Callable[[Load], object]] = {
    "idle": lambda load: None,
    "connections": lambda load: [load.connect() for _ in range(20)],
    "half a request": lambda load: load.connect().sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le"),
    "prefill": lambda load: load.post({**SAME, "messages": [{"role": "user", "content": "salt " * 2000}]}),
    "decode": lambda load: load.post({**SAME, "max_tokens": 1000}),
    "client gone": _long,
    "queue": lambda load: [threading.Thread(target=load.post, args=(SAME,), daemon=True).start() for _ in range(20)],
}


def signals(seed: int) -> tuple[int, dict[str, int], dict[str, int]]:
    """End servers by SIGTERM and SIGHUP in every phase; they must end by themselves, with 0."""
    from ds4ref.nano import random_path
    from tests.server.process import process

    tries, failures = 0, Counter[str]()
    for phase, begin in PHASES.items():
        for number in (signal.SIGTERM, signal.SIGHUP):
            with process(random_path(), *FLAGS) as server:
                load = Load(server.url, server.process.pid, seed)

                def beginning(begin: Any = begin, load: Load = load) -> None:
                    with suppress(OSError, http.client.HTTPException):
                        load.kept = begin(load)  # type: ignore[attr-defined]

                thread = threading.Thread(target=beginning, daemon=True)
                thread.start()
                thread.join(0.3)
                server.process.send_signal(number)
                try:
                    code = server.ends()
                except Exception:
                    code = -1
                tries += 1
                if code != 0:
                    failures[f"{phase}: {number.name} ended it with {code}"] += 1
    return tries, dict(failures), {}
