"""Whole models on the GPU against what others compute with them: golden logits, and our CPU backend.

Golden models (``tests/golden.py``) have logits of Hugging Face and of ds4; they are tried where they are. The embedded
model and a slice with the dimensions of Flash are generated, and compared with the CPU backend. In every mode a prompt
goes through in one piece, and tokens behind it one by one, as recordings are replayed.

Bars: of golden models those of the CPU backend. CPU and GPU add in different orders, which rounding to integers
amplifies in modes qat and ds4. How much, the CPU shows by itself, which adds in another order where it decodes: the
median divergence of CPU and GPU may be twice that of the CPU from itself. The mean belongs to a few tokens whose
experts fall the other way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.engine import Engine

if TYPE_CHECKING:
    from .gpu_check import Check

MODES = ("exact", "qat", "ds4")
SLICE: dict[str, Any] = {"experts": 8, "vocab": 4096, "recipe": "q2"}
"""Of slices in all parts: what a token reads does not depend on the number of experts, what a file takes does."""
EXACT_SHARE = 2e-4
"""Largest difference of logits in mode exact, as a share of their standard deviation, that orders of adding explain."""
TIMES, FLOOR = 2.0, {"exact": 1e-7, "qat": 1e-4, "ds4": 0.0068}
"""Median divergence of CPU and GPU: at most so many times that of the CPU from itself, or the floor. In mode qat
roundings that fall the other way are so rare that the CPU may have none; in ds4 a CPU without AVX-512 adds in one order
whether tokens come at once or not, and its floor is twice what one with it differs from itself (docs/LOG.md)."""
ENOUGH = 16
"""Tokens from which on a median says something."""

REHEARSED = 2
"""Tokens of a prompt in a rehearsal."""


class Length(NamedTuple):
    """Tokens of a prompt, and tokens decoded behind it."""

    prompt: int
    decoded: int


def logits(engine: Engine, ids: np.ndarray, length: Length) -> np.ndarray:
    """Logits after each token, (prompt + decoded, V): the prompt in one piece, then one recorded token at a time."""
    session = engine.session(length.prompt + length.decoded + 1)
    rows = [session.extend(ids[: length.prompt])] if length.prompt else []
    rows += [session.eval(int(token))[None] for token in ids[length.prompt :][: length.decoded]]
    return np.concatenate(rows)


def golden(check: Check) -> None:
    """Rows of the golden models."""
    from tests import golden as stored

    if not (stored.ROOT / "tiny.gguf").exists():
        check.add("golden models", None, note="not present (DS4_GOLDEN names their folder)")
        return
    names = ["t5"] if check.rehearsal else ["t5", "t40", "t200"]
    for mode in MODES[:1] if check.rehearsal else MODES:
        check.need(10)
        model, key = stored.AGAINST[mode]
        for how in ("prefill",) if check.rehearsal else ("prefill", "decode"):
            wanted, got = [], []
            for name in names:
                ids, rows = (stored.case(model, name)[part] for part in ("ids", "rows"))
                ids = ids[: REHEARSED if check.rehearsal else None]
                rows = rows[rows < len(ids)]
                length = Length(len(ids), 0) if how == "prefill" else Length(1, len(ids) - 1)
                got.append(logits(stored.engine(model, mode, "cuda"), ids, length)[rows])
                wanted.append(stored.case(model, name)[key][: len(rows)])
            for figure in stored.judged(mode, np.concatenate(wanted), np.concatenate(got), stored.BARS[names[-1]]):
                check.add(f"golden {model} {mode} {how}: {figure.what}", figure.value, "", figure.bar, figure.better)


def beside_the_cpu(check: Check, name: str, path: str, length: Length) -> None:
    """Rows of one model file on both backends."""
    from tests.golden import divergences

    for mode in MODES[-1:] if check.rehearsal else MODES:
        check.need(15)
        with Engine.open(path, backend="cpu", numerics=mode) as engine:
            ids = np.random.default_rng(7).integers(0, engine.shape.vocab, length.prompt + length.decoded)
            wanted, again = logits(engine, ids, length), logits(engine, ids, Length(1, len(ids) - 1))
        with Engine.open(path, backend="cuda", numerics=mode) as engine:
            got = logits(engine, ids, length)
        item = f"{name} {mode}"
        if mode == "exact":
            share = float(np.abs(got - wanted).max() / wanted.std())
            check.add(f"{item}: largest difference / std", share, "", EXACT_SHARE, "lower")
        own, theirs = (float(np.median(divergences(wanted, other))) for other in (again, got))
        bar = max(TIMES * own, FLOOR[mode]) if len(ids) >= ENOUGH else None
        check.add(f"{item}: median KL", theirs, "", bar, "lower", note=f"the CPU from itself: {own:.2g}")
        check.add(f"{item}: same first choice", float((got.argmax(1) == wanted.argmax(1)).mean()))


def measure(check: Check) -> None:
    """The part."""
    from ds4ref.nano import embedded_path
    from ds4ref.nano.cache import slice_path

    golden(check)
    beside_the_cpu(check, "embedded model", embedded_path(), Length(1, 1) if check.rehearsal else Length(150, 20))
    if check.rehearsal:
        check.add("slice of Flash", None, note="real dimensions are too much for a rehearsal")
        return
    beside_the_cpu(check, "slice of Flash", slice_path(4, **SLICE), Length(136, 8))
