"""Costs of a long context: time of a token and of a prefill chunk at depth."""

from __future__ import annotations

import numpy as np

from ds4ref.archs.deepseek4.costs import Costs

from .context import Context
from .depth import session_at
from .timing import clocked, interleave
from .whole import decoding

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
    operations_growth = costs.decode(DEPTHS["1M"]).ops / costs.decode(DEPTHS["2k"]).ops
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
    counts = {k: costs.prefill(DEPTHS[k] - CHUNK, DEPTHS[k], CHUNK).ops for k in ("2k", "32k")}
    more = counts["32k"] / counts["2k"]
    growth = [deep / near / more for deep, near in zip(samples["32k"], samples["2k"], strict=True)]
    context.add("growth prefill", growth, f"operations grow {more:.2f}-fold on this slice")
