"""One of each kind of run with invented figures, to view and test the report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..runs.simulate import arms, run

MACHINE = {
    "cpu": "A Processor With A Rather Long Name 9000 @ 2.95GHz", "cores": 2, "cores_total": 2, "affinity": "0-1",
    "memory_bytes": 24 << 30, "governor": None, "huge_pages": "madvise", "system": "Linux 6.1 x86_64", "load": 0.4,
}  # fmt: skip
FACTS = {
    "engine": "ds4ref 0.1.0", "backend": "cpu", "threads": 2, "machine": MACHINE, "seed": 1, "commit": "0123abc" * 5,
    "versions": {"python": "3.11.7", "numpy": "2.4.6", "numba": "0.68.1"},
    "peaks": {"read_gbs": 24.7, "int8_gops": 612.0, "f32_gflops": 171.0, "threads": 2},
}  # fmt: skip


def runs():
    """Return two bench arms, a vector run, and two graded runs of different days."""
    rng = np.random.default_rng(8)
    samples = []
    for side, name in zip(arms(4, slower=0.06, noise=0.012, reps=7), ("main", "int8 scores, <b>&amp;"), strict=True):
        for row in side.rows:
            row |= {
                "prefill_share": 0.61 + rng.normal(0, 0.01), "prefill_binds": "arithmetic",
                "decode_share": 0.84 - row["ctx_tokens"] / 1e5, "decode_binds": "bytes",
            }  # fmt: skip
        model = {"model": {"sha256": "a" * 64, "name": "DeepSeek V4 Flash slice, 4 layers"}}
        command = {"command": ["ds4-bench", "--label", name, "--csv", f"{name}.csv"]}
        samples.append(run(name, side.rows, facts=FACTS | side.run.facts | model | command))
    vectors = [
        {"id": f"vector {i}", "tokens": 64 * i, "nll": 80.0 * i, "top1": 1 - 0.01 * i, "max_abs": 0.01 * i,
         "verdict": "match" if i < 5 else "mismatch", "passed": i < 5}
        for i in range(1, 6)
    ]  # fmt: skip
    samples.append(run("official vectors", vectors, kind="vectors", facts=FACTS))
    for day, (name, p) in enumerate((("exact", 0.8), ("ds4", 0.74))):
        samples.append(
            evaluation(f"questions, {name}", rng, p, f"2026-11-2{day + 1}T10:00:00Z", seconds=14.0 - 6 * day)
        )
    return samples


def evaluation(
    name, rng, p, created="2026-11-21T10:00:00Z", count=93, epochs=2, model="DeepSeek V4 <Flash>", seconds=9.0
):  # fmt: skip
    """Return a graded run of three sources and five domains, with harder and easier questions."""
    rows = []
    for i in range(count):
        share = rng.beta(4 * p, 4 * (1 - p))
        for epoch in range(1, epochs + 1):
            wrong = ("wrong", "ambiguous", "missing")[int(rng.choice(3, p=[0.8, 0.1, 0.1]))]
            outcome = "right" if rng.random() < share else wrong
            rows.append({
                "id": f"q{i}", "question": f"{i:032x}", "source": ("maths", "science", "security")[i % 3],
                "domain": ("number theory", "geometry", "physics/optics", "physics/heat", "memory")[i % 5],
                "epoch": epoch, "status": "done", "outcome": outcome, "given": "A", "expected": "B",
                "prompt_tokens": 90, "tokens": 250 + i,
                "reasoning_tokens": 200, "ttft": 1.0, "seconds": seconds + i / 40, "close": "natural",
                "finish": "length" if i % 7 == 0 else "stop",
            })  # fmt: skip
    rows[5] |= {"status": "failed", "outcome": None}
    facts = FACTS | {
        "numerics": "ds4", "model": {"name": model, "bytes": 1000}, "epochs": epochs,
        "command": ["ds4-eval", "-o", "x.jsonl"],
        "pack": {"pack": "made", "version": 1, "digest": "d" * 64, "questions": count},
        "settings": {"think": "high", "tokens": 16000, "temperature": 0.0, "system": "Think."},
    }  # fmt: skip
    made = run(name, rows, kind="eval", facts=facts)
    return replace(made, run=replace(made.run, created=created))
