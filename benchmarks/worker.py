"""One engine in a process of its own: ``python -m benchmarks.worker KIND MODEL THREADS``, driven over a pipe.

Threads of one program must not spin beside those of another while it is timed, so every engine has its own process and
runs only on request. A request is a JSON line {"op": ..., ...}, the answer a JSON line {"seconds": ...}:

    decode   {"tokens": n}                 seconds per token after 64 tokens; the first token is untimed, since cores
                                           that slept while the other engine ran are slow for a while
    prefill  {"tokens": n}                 seconds for n tokens from an empty context
    gemm     {"tokens": T, "rows": r, "n": c, "matrices": m}   seconds for m products (torch only)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

PAST, BATCH = 64, 512


class Ours:
    """This project's engine in mode ds4."""

    def __init__(self, model: str, threads: int):
        from ds4ref.engine import Engine

        self.engine = Engine.open(model, numerics="ds4", threads=threads)
        for _ in self.engine.source.touch():  # llama.cpp populates its map, too
            pass
        self.vocab = self.engine.shape.vocab
        self.session = self.engine.session(4096)
        self.session.sync(token_ids(PAST, self.vocab))

    def decode(self, tokens: int) -> float:
        frontier = self.session.snapshot()
        first, *ids = token_ids(1 + tokens, self.vocab)
        self.session.eval(first)
        started = time.perf_counter()
        for token in ids:
            self.session.eval(token)
        spent = time.perf_counter() - started
        self.session.restore(frontier)
        return spent / tokens

    def prefill(self, tokens: int) -> float:
        session = self.engine.session(tokens + 1)
        ids = token_ids(tokens, self.vocab)
        started = time.perf_counter()
        session.sync(ids)
        return time.perf_counter() - started


class LlamaCpp:
    """llama.cpp on the same file through its C interface, with its defaults except for the number of threads.

    mapped: no copies of weights in another layout, which need memory for the whole file.
    """

    def __init__(self, model: str, threads: int, ctx: int = 4096, mapped: bool = False):
        import llama_cpp as api

        self.api = api
        # llama.cpp logs while it loads; the pipe is for answers
        self._silent = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self._silent, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = not mapped
        loaded = api.llama_model_load_from_file(os.fsencode(model), params)
        if not loaded:
            raise ValueError(f"llama.cpp does not load {model}")
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
        context = api.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = ctx, BATCH, BATCH
        context.n_threads = context.n_threads_batch = threads
        context.no_perf = True
        self.context = api.llama_init_from_model(loaded, context)
        if not self.context:
            raise ValueError("llama.cpp makes no context for this model")
        self._restart()

    def _restart(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        self.pos = 0

    def evaluate(self, ids: list[int]) -> None:
        """Evaluate further tokens and wait for the logits of the last one."""
        batch = self.api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i] = token, self.pos + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = i == len(ids) - 1
            status = self.api.llama_decode(self.context, batch)
        finally:
            self.api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        self.api.llama_get_logits(self.context)[0]  # waits for the result
        self.pos += len(ids)

    def decode(self, tokens: int) -> float:
        self._restart()
        self.evaluate(token_ids(PAST, self.vocab))
        first, *ids = token_ids(1 + tokens, self.vocab)
        self.evaluate([first])
        started = time.perf_counter()
        for token in ids:
            self.evaluate([token])
        return (time.perf_counter() - started) / tokens

    def prefill(self, tokens: int) -> float:
        self._restart()
        ids = token_ids(tokens, self.vocab)
        started = time.perf_counter()
        for at in range(0, tokens, BATCH):
            self.evaluate(ids[at : at + BATCH])
        return time.perf_counter() - started


class Torch:
    """torch.nn.functional.linear in float32 on dequantized weights, without a model."""

    def __init__(self, model: str, threads: int):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.matrices: dict[tuple[int, int, int], list] = {}

    def gemm(self, tokens: int, rows: int, n: int, matrices: int) -> float:
        torch = self.torch
        key = rows, n, matrices
        if key not in self.matrices:
            self.matrices[key] = [torch.randn(rows, n) for _ in range(matrices)]
        x = torch.randn(tokens, n)
        with torch.inference_mode():
            started = time.perf_counter()
            for w in self.matrices[key]:
                torch.nn.functional.linear(x, w)
            return time.perf_counter() - started


class Gemm:
    """This project's products for many tokens; the arguments of ``Torch.gemm`` and a format."""

    def __init__(self, model: str, threads: int):
        from ds4ref.kernels.cpu import CPU

        self.cpu = CPU(threads)
        self.arms: dict[tuple[str, int], Callable[[], float]] = {}

    def gemm(self, tokens: int, rows: int, n: int, matrices: int, fmt: str) -> float:
        from .whole import gemm_arm

        if (rows, n) != (4096, 2048):
            raise ValueError("gemm_arm makes 4096 x 2048 weights")
        if (fmt, tokens) not in self.arms:
            self.arms[fmt, tokens], _ = gemm_arm(self.cpu, fmt, tokens, matrices)
        return self.arms[fmt, tokens]()


KINDS: dict[str, Callable[[str, int], Any]] = {"ours": Ours, "llama": LlamaCpp, "torch": Torch, "gemm": Gemm}


def token_ids(count: int, vocab: int) -> list[int]:
    """Return ``count`` token ids below ``vocab``, the same for every engine."""
    return [int(i) for i in np.random.default_rng(11).integers(3, vocab, count)]


class Worker:
    """Client of a worker process: a context manager that ends the process."""

    def __init__(self, kind: str, model: str = "-", threads: int = 2):
        self.kind = kind
        command = [sys.executable, "-m", "benchmarks.worker", kind, model, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()  # loaded

    def ask(self, op: str, **arguments: Any) -> float:
        """Send a request and return the answer's seconds; raises RuntimeError with the worker's message if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op} | arguments) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker for {self.kind} died with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.kind}: {answer['error']}")
        return answer["seconds"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


def main(kind: str, model: str, threads: int) -> None:
    """Open the engine and answer requests on standard input until it ends."""
    pipe = os.fdopen(os.dup(1), "w")  # redirect what libraries print to stderr
    os.dup2(2, 1)

    def answer(value: dict) -> None:
        pipe.write(json.dumps(value) + "\n")
        pipe.flush()

    try:
        engine = KINDS[kind](model, threads)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"seconds": 0.0})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer({"seconds": getattr(engine, request.pop("op"))(**request)})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
