"""Our CPU engine against llama.cpp's library (llama-cpp-python), job by job: who needs less time.

    python -m benchmarks.llama                            SmolLM2 135M and Gemma 3 270M of the packages in dense_keys
    python -m benchmarks.llama --model FILE ...           other models
    python -m benchmarks.llama --clock cpu --threads 1    on a machine that is busy with something else
    python -m benchmarks.llama --numerics ds4             inputs of products rounded to 8 bits, as llama.cpp does

Every engine has a process of its own, because threads of one library that wait for work slow down the next. The jobs of
a row are run in turn; a row shows the median time of llama.cpp over ours, its range and the winner. llama.cpp runs as
it is installed, and with its weights repacked if it can be.

prefill     512 tokens, logits of the last
decode      32 tokens after them, one at a time
logits      256 tokens, logits of each (ours: and the log probability of the next token)
importance  prefill of 512 tokens (ours: importance of every weight's column collected)
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .dense_keys import model_path
from .harness import Target, interleave, ratios

PROMPT, STEPS, SCORED = 512, 32, 256
JOBS = "prefill", "decode", "logits", "importance"
ENGINES = {"ours": "ours", "llama": "llama.cpp", "repacked": "llama.cpp, repacked"}


def ours(path: str, threads: int, ids: Sequence[int], numerics: str) -> dict[str, Callable[[], object]]:
    """Return our engine's jobs by name; each returns the moment at which its measured part began, None for all of
    it."""
    from ds4ref.engine import Engine
    from ds4ref.importance import collect

    engine = Engine.open(path, threads=threads, numerics=numerics)

    def prefill() -> Any:
        session = engine.session(1024)
        session.sync(ids)
        return session

    def decode() -> float:
        session = prefill()
        session.eval(ids[0])  # records the pass
        begun = clock()
        for token in ids[:STEPS]:
            session.eval(token)
        return begun

    return {
        "prefill": lambda: prefill() and None, "decode": decode,
        "logits": lambda: engine.logprobs(ids[:SCORED]) is None,
        "importance": lambda: collect(engine, [list(ids)]) is None,
    }  # fmt: skip


def theirs(path: str, threads: int, ids: Sequence[int], repack: bool) -> dict[str, Callable[[], object]]:
    """Return llama.cpp's jobs by name, as ``ours`` does; ``repack`` allows it to store weights in another order."""
    import llama_cpp as api

    api.llama_backend_init()
    options = api.llama_model_default_params()
    options.n_gpu_layers, options.use_extra_bufts = 0, repack
    model = api.llama_model_load_from_file(path.encode(), options)
    settings = api.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = 1024, PROMPT, PROMPT
    settings.n_threads = settings.n_threads_batch = threads
    context = api.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp makes no context for this model")

    def run(tokens: Sequence[int], start: int, every: bool = False) -> None:
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, every or i + 1 == len(tokens)
        failed = api.llama_decode(context, batch)
        api.llama_synchronize(context)
        api.llama_batch_free(batch)
        if failed:
            raise SystemExit(f"llama_decode returned {failed}")

    def fresh(count: int, every: bool = False) -> None:
        api.llama_memory_clear(api.llama_get_memory(context), True)
        run(ids[:count], 0, every)

    def decode() -> float:
        fresh(PROMPT)
        begun = clock()
        for at, token in enumerate(ids[:STEPS]):
            run([token], PROMPT + at)
        return begun

    whole = lambda: fresh(PROMPT)  # noqa: E731
    return {"prefill": whole, "decode": decode, "logits": lambda: fresh(SCORED, True), "importance": whole}


clock = time.perf_counter


def serve(name: str, path: str, threads: int, numerics: str) -> None:
    """Run the jobs named on stdin; write the seconds of each to stdout."""
    ids = [7 + 13 * i % 9000 for i in range(PROMPT)]
    jobs = ours(path, threads, ids, numerics) if name == "ours" else theirs(path, threads, ids, name == "repacked")
    for line in sys.stdin:
        started = clock()
        begun = jobs[line.strip()]()
        print("SECONDS", clock() - (begun or started), flush=True)


class Process:
    """An engine in a process of its own; ``target(job)`` measures a job there."""

    def __init__(self, name: str, path: str, threads: int, *settings: str):
        command = [sys.executable, "-m", __spec__.name, "--serve", name, "--model", path, "--threads", str(threads)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, *settings], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )

    def target(self, job: str) -> Target:
        def once() -> float:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            stdin.write(job + "\n")
            for line in stdout:
                if line.startswith("SECONDS "):
                    return float(line.split()[1])
            raise RuntimeError(f"the process ended with status {self._process.wait()}")

        return once

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def compared(
    path: str, threads: int, settings: Sequence[str], rounds: int, jobs: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return rows of a model: job, other engine, median ratio, lowest, highest, and our median seconds."""
    rows: list[tuple[Any, ...]] = []
    engines = {name: Process(name, path, threads, *settings) for name in ENGINES}
    try:
        for name in list(engines):
            try:
                engines[name].target(jobs[0])()
            except (RuntimeError, OSError) as error:  # llama.cpp's repacked kernels do not run on every processor
                engines.pop(name).close()
                rows.append(("all", ENGINES[name], str(error)))
        for job in jobs:
            times = interleave({name: engine.target(job) for name, engine in engines.items()}, rounds, warm=False)
            for name in list(times)[1:]:
                each = ratios(times[name], times["ours"])
                rows.append((job, ENGINES[name], statistics.median(each), min(each), max(each),
                             statistics.median(times["ours"])))  # fmt: skip
    finally:
        for engine in engines.values():
            engine.close()
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    global clock
    parser = argparse.ArgumentParser(
        prog="benchmarks.llama", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", metavar="FILE", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--numerics", choices=["exact", "qat", "ds4"], default="qat", help="ours (qat)")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--serve", choices=list(ENGINES), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    if args.serve:
        serve(args.serve, args.model[0], args.threads, args.numerics)
        return 0
    settings = "--clock", args.clock, "--numerics", args.numerics
    with tempfile.TemporaryDirectory() as folder:
        packaged = [str(path) for name in ("smollm2", "gemma3") if (path := model_path(name, Path(folder)))]
        print("| model | job | against | llama.cpp's time / ours | range | ours, s | winner |")
        print("|---|---|---|---|---|---|---|")
        for path in args.model or packaged:
            for job, other, ratio, *rest in compared(path, args.threads, settings, args.rounds, args.jobs):
                if not rest:
                    print(f"| {Path(path).name} | {job} | {other} | not measured: {ratio} | | | |", flush=True)
                    continue
                low, high, seconds = rest
                cells = f"{ratio:.2f} x", f"{low:.2f} - {high:.2f}", f"{seconds:.2f}", "ours" if ratio > 1 else other
                print(f"| {Path(path).name} | {job} | {other} |", " | ".join(cells), "|", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
