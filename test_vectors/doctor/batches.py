"""Compare requests sent alone and together. What differs little is no mistake: few engines promise batch invariance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ds4ref.nano.diagnostic import PROMPTS

from .case import ExamContext
from .findings import Outcome, Stage
from .repeat import (
    TOKENS,
    UNEQUAL,
    add_comparison,
    batch_effect,
    chunked_logits,
    compare_answers,
    compare_rows,
    prompt_of,
)
from .yardstick import fallback, measure

NO_PROMISE = (
    "Nothing to mend: llama.cpp, SGLang and vLLM (without its batch-invariant mode) choose kernels by the size of a "
    "batch and promise no equal answers. Compare such an engine with one request at a time"
)
CHUNK_SIZES = (7, 16, 100)
"""Chunk sizes for a local engine: below and above the size where it switches kernels, and no power of two."""


def batch(case: ExamContext, stage: Stage) -> None:
    """Compare requests sent alone and concurrently, or, for a local target, a prompt in chunks of several sizes."""
    if case.local is not None:
        ids = PROMPTS["mixed"]()[: 48 if case.quick else 200]
        whole = chunked_logits(case.local, ids, None)
        chunked = {size: chunked_logits(case.local, ids, size) for size in CHUNK_SIZES}
        differ = any(not np.array_equal(part, whole, equal_nan=True) for part in chunked.values())
        yard = measure(case.engine, ids, case.rounding) if differ else fallback()
        for size, part in chunked.items():
            compare_rows(
                case,
                stage,
                f"chunks of {size}",
                ids,
                part,
                whole,
                "Look at the first and last rows of a chunk: window, compressors, cache slots",
                yard,
            )
        return
    if case.target.kind != "http":
        stage.add("many at once", Outcome.IMPOSSIBLE, f"a {case.target.kind} target takes one request at a time")
        return
    chosen = [prompt_of(case, 120 + 90 * i, seed=20 + i) for i in range(2 if case.quick else 4)]
    prompts = [each[1] for each in chosen if each is not None]
    if not prompts:
        stage.add("many at once", Outcome.IMPOSSIBLE, "no request was answered")
        return
    case.progress("one after another")
    alone = [case.ask(prompt, TOKENS) for prompt in prompts]
    case.progress(f"{len(prompts)} at once")
    pool = ThreadPoolExecutor(len(prompts))
    try:
        together = list(pool.map(lambda prompt: case.ask(prompt, TOKENS), prompts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    seconds = sum(done.seconds for done in alone), max(done.seconds for done in together)
    figures = {
        "requests": len(prompts),
        "one after another, s": round(seconds[0], 2),
        "at once, s": round(seconds[1], 2),
    }
    worst = None
    comparisons = [compare_answers(*pair) for pair in zip(alone, together, strict=True)]
    for i, (prompt, comparison) in enumerate(zip(prompts, comparisons, strict=True)):
        check = add_comparison(case, stage, f"request {i + 1}", prompt, alone[i], [comparison], [together[i]], figures,
                                "Look at what rows of a batch share: masks, positions, cache slots")  # fmt: skip
        if check.outcome in UNEQUAL and (nats := batch_effect(comparison, comparisons)):
            check.outcome, check.next = Outcome.DEPENDS, [NO_PROMISE]
            check.says = f"alone and among {len(prompts)} it differs by at most {nats:.2g} nats rms"
            if comparison.fork is not None:
                check.says += f"; token {comparison.fork} becomes another one, as close as that"
        worst = check if worst is None or check.outcome is Outcome.WRONG else worst
    if worst is not None and worst.outcome is Outcome.OK:
        worst.sight = f"{worst.sight} a server that takes one request after another cannot fail this".strip()
