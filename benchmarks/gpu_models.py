"""Whole models on the GPU against reference results: golden logits, and the CPU backend.

Golden models (``tests/golden.py``) have logits of Hugging Face and of ds4; they are used if present. The random model
and a slice with the dimensions of Flash are generated, and compared with the CPU backend. In every mode a prompt is
prefilled in one piece, and tokens after it are decoded one by one, by replaying recordings.

Bars: for golden models those of the CPU backend. CPU and GPU sum in different orders, which rounding to integers
amplifies in modes qat and ds4. The CPU itself shows how much, as its decode sums in another order than its prefill: the
median KL divergence of CPU and GPU may be twice that of the CPU's decode from its prefill. The mean would depend on a
few tokens that are routed to other experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.engine import Engine

if TYPE_CHECKING:
    from .gpu_check import Check

MODES = ("exact", "qat", "ds4")
SLICE: dict[str, Any] = {"experts": 8, "vocab": 4096, "recipe": "q2"}
"""Model slice used in all parts: the number of experts changes the file's size, but not the bytes a token reads."""
EXACT_SHARE = 2e-4
"""Maximum difference of logits in mode exact that the order of sums explains, as a share of their standard
deviation."""
TIMES, FLOOR = 2.0, {"exact": 1e-7, "qat": 1e-4, "ds4": 0.0068}
"""Bar for the median KL divergence of CPU and GPU: TIMES that of the CPU's decode from its prefill, at least FLOOR.

In mode qat roundings that flip are so rare that the CPU may have none; in ds4 a CPU without AVX-512 sums in one order
for prefill and decode, and its floor is twice the divergence measured on a CPU with AVX-512.
"""
ENOUGH = 16
"""Minimum number of tokens for a meaningful median."""

REHEARSED = 2
"""Number of prompt tokens in a rehearsal."""


class Length(NamedTuple):
    """Number of prompt tokens, and of tokens decoded after the prompt."""

    prompt: int
    decoded: int


def logits(engine: Engine, ids: np.ndarray, length: Length) -> np.ndarray:
    """Return the logits after each token, (prompt + decoded, V): the prompt in one prefill, then token by token."""
    session = engine.session(length.prompt + length.decoded + 1)
    rows = [session.extend(ids[: length.prompt])] if length.prompt else []
    rows += [session.eval(int(token))[None] for token in ids[length.prompt :][: length.decoded]]
    return np.concatenate(rows)


def golden(check: Check) -> None:
    """Compare the golden models on the GPU with their stored logits; add the rows."""
    from tests import golden as stored

    if not (stored.ROOT / "tiny.gguf").exists():
        check.add("golden models", None, note="not present (DS4_GOLDEN names their folder)")
        return
    names = ["t5"] if check.rehearsal else ["t5", "t40", "t200"]
    for mode in MODES[:1] if check.rehearsal else MODES:
        check.need(10)
        model, key = stored.AGAINST[mode]
        for how in ("prefill",) if check.rehearsal else ("prefill", "decode"):
            expected, got = [], []
            for name in names:
                ids, rows = (stored.case(model, name)[part] for part in ("ids", "rows"))
                ids = ids[: REHEARSED if check.rehearsal else None]
                rows = rows[rows < len(ids)]
                length = Length(len(ids), 0) if how == "prefill" else Length(1, len(ids) - 1)
                got.append(logits(stored.engine(model, mode, "cuda"), ids, length)[rows])
                expected.append(stored.case(model, name)[key][: len(rows)])
            for figure in stored.judged(mode, np.concatenate(expected), np.concatenate(got), stored.BARS[names[-1]]):
                check.add(f"golden {model} {mode} {how}: {figure.what}", figure.value, "", figure.bar, figure.better)


def beside_the_cpu(check: Check, name: str, path: str, length: Length) -> None:
    """Compare one model file on the GPU and the CPU backend; add the rows."""
    from tests.golden import divergences

    for mode in MODES[-1:] if check.rehearsal else MODES:
        check.need(15)
        with Engine.open(path, backend="cpu", numerics=mode) as engine:
            ids = np.random.default_rng(7).integers(0, engine.shape.vocab, length.prompt + length.decoded)
            on_cpu, decoded_on_cpu = logits(engine, ids, length), logits(engine, ids, Length(1, len(ids) - 1))
        with Engine.open(path, backend="cuda", numerics=mode) as engine:
            on_gpu = logits(engine, ids, length)
        item = f"{name} {mode}"
        if mode == "exact":
            share = float(np.abs(on_gpu - on_cpu).max() / on_cpu.std())
            check.add(f"{item}: largest difference / std", share, "", EXACT_SHARE, "lower")
        self_kl, kl = (float(np.median(divergences(on_cpu, other))) for other in (decoded_on_cpu, on_gpu))
        bar = max(TIMES * self_kl, FLOOR[mode]) if len(ids) >= ENOUGH else None
        check.add(f"{item}: median KL", kl, "", bar, "lower", note=f"the CPU from itself: {self_kl:.2g}")
        check.add(f"{item}: same first choice", float((on_gpu.argmax(1) == on_cpu.argmax(1)).mean()))


def measure(check: Check) -> None:
    """Run the part "models" of ``gpu_check``."""
    from ds4ref.nano import random_path
    from ds4ref.nano.cache import slice_path

    golden(check)
    beside_the_cpu(check, "random model", random_path(), Length(1, 1) if check.rehearsal else Length(150, 20))
    if check.rehearsal:
        check.add("slice of Flash", None, note="real dimensions are too much for a rehearsal")
        return
    beside_the_cpu(check, "slice of Flash", slice_path(4, **SLICE), Length(136, 8))
