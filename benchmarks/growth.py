"""Costs of a long context: time of a token and of a prefill chunk at depth, and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.environment import anonymous_bytes

from .context import Context
from .depth import session_at
from .timing import OutOfTime, clocked, interleave
from .whole import decoding, operations_of

DEPTHS = {"2k": 2048, "32k": 32 << 10, "128k": 128 << 10, "512k": 512 << 10, "1M": 1 << 20}
CHUNK = 512


def decode(context: Context) -> None:
    """Measure the rows "growth decode" and "decode <depth>" of the CPU table."""
    engine = context.engine
    depths = {k: v for k, v in DEPTHS.items() if not context.quick or k in ("2k", "1M")}
    costs = Costs.of_file(engine.source, engine.shape)
    tokens = 2 if context.quick else 3
    samples = interleave({k: decoding(engine, pos, tokens) for k, pos in depths.items()}, context.rounds)
    for name in depths:
        if name != "2k":
            context.add(f"decode {name}", [1e3 * s for s in samples[name]])
    operations_growth = operations_of(costs.decode(DEPTHS["1M"])) / operations_of(costs.decode(DEPTHS["2k"]))
    growth = [deep / shallow / operations_growth for deep, shallow in zip(samples["1M"], samples["2k"], strict=True)]
    context.add("growth decode", growth, f"operations grow {operations_growth:.2f}-fold on this slice")


def prefill(context: Context) -> None:
    """Measure the row "growth prefill" of the CPU table: one chunk of 512 tokens after 2k and after 32k tokens."""
    engine = context.engine
    costs = Costs.of_file(engine.source, engine.shape)
    ids = [int(i) for i in np.random.default_rng(5).integers(0, engine.shape.vocab, CHUNK)]
    arms = {}
    for name in ("2k", "32k"):
        pos = DEPTHS[name] - CHUNK
        session = session_at(engine, pos, pos + CHUNK + 1)
        frontier = session.snapshot()

        def work(session=session, frontier=frontier) -> None:
            session.restore(frontier)
            session.sync([1] * session.pos + ids)

        arms[name] = clocked(work)
    samples = interleave(arms, 2 if context.quick else 7)
    counts = {k: operations_of(costs.prefill(DEPTHS[k] - CHUNK, DEPTHS[k], CHUNK)) for k in ("2k", "32k")}
    more = counts["32k"] / counts["2k"]
    growth = [deep / near / more for deep, near in zip(samples["32k"], samples["2k"], strict=True)]
    context.add("growth prefill", growth, f"operations grow {more:.2f}-fold on this slice")


def memory(context: Context) -> None:
    """Measure the rows "memory ..." of the CPU table, each in a process of its own."""
    for name, pos in (("32k", 32 << 10), ("128k", 128 << 10), ("1M", 1 << 20)):
        if anonymous_bytes() is None:
            context.skip(f"memory {name}", "only Linux tells memory without mapped files")
            continue
        if context.quick and name != "32k":
            context.skip(f"memory {name}", "not in a quick run")
            continue
        try:
            context.budget.need(6)
        except OutOfTime as late:
            context.skip(f"memory {name}", str(late))
            continue
        figures = _memory(context, pos)
        note = f"{figures['anonymous'] / 1e6:.0f} MB, of which caches {figures['caches'] / 1e6:.0f}"
        if name == "32k":
            context.add("memory 32k", [(figures["anonymous"] - figures["formula"]) / 1e6], note)
        else:
            context.add(f"memory {name}", [figures["anonymous"] / figures["formula"]], note)


def _memory(context: Context, pos: int) -> dict[str, int]:
    command = [sys.executable, "-m", "benchmarks.growth", context.model, str(pos), str(context.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _measure_memory(model: str, pos: int, threads: int) -> dict[str, int]:
    """Decode and prefill at ``pos``; return anonymous memory, allocated caches, and the formula of model.md 11.4."""
    from ds4ref.engine import Engine

    with Engine.open(model, numerics="ds4", threads=threads) as engine:
        session = session_at(engine, pos - CHUNK, pos + 64)
        session.sync([1] * (pos - CHUNK) + [7] * CHUNK)
        for token in range(4):
            session.eval(token)
        return {
            "anonymous": anonymous_bytes(),
            "caches": session.cache_bytes,
            "formula": engine.shape.kv_bytes(pos),
        }


if __name__ == "__main__":
    print(json.dumps(_measure_memory(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
