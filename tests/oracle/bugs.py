"""Hugging Face's model with one injected bug at a time: what a diagnosis of foreign engines is held against.

LIBRARY_BUGS  those that ``ds4ref.variants.LIBRARY`` names, made in other code
OUTSIDE_BUGS, DECODE_BUGS, FAMILIES: those that it does not have (``bugs_outside``)

Our engine takes no part in it: the weights are read by gguf-py, the bugs are edits of transformers (surgery).

    python -m tests.oracle.bugs OUT --prompt text

writes OUT/library.npz, outside.npz and decode.npz. In each: ids (T,), names and says (n,), logits (n, T, V) float32,
effect (n,) rms against ``clean`` (T, V), the same engine without a bug, and ``decode`` (T, V), that engine with all but
the first PREFILL tokens one by one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ds4ref.environment import usable_cores
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

from .bugs_library import LIBRARY_BUGS
from .bugs_outside import DECODE_BUGS, FAMILIES, OUTSIDE_BUGS, PREFILL
from .hf import Oracle
from .surgery import Bug

__all__ = ["DECODE_BUGS", "FAMILIES", "LIBRARY_BUGS", "OUTSIDE_BUGS", "PREFILL", "Bug", "bug_logits"]


def bug_logits(oracle: Oracle, bug: Bug, ids: list[int]) -> np.ndarray:
    """(T, V) float32 of the model with the bug: one pass, or as a bug of decode needs it."""
    with bug.apply(oracle):
        return oracle.decode(ids, PREFILL) if bug in DECODE_BUGS else oracle.logits(ids)


def archive(oracle: Oracle, bugs: list[Bug], ids: list[int]) -> dict[str, np.ndarray]:
    """The arrays of one archive (see above)."""
    decode = oracle.decode(ids, PREFILL)
    clean = decode if bugs[0] in DECODE_BUGS else oracle.logits(ids)
    logits = np.stack([bug_logits(oracle, bug, ids) for bug in bugs])
    return {
        "ids": np.array(ids, np.int32), "names": np.array([bug.name for bug in bugs]),
        "says": np.array([bug.says for bug in bugs]), "logits": logits, "clean": clean, "decode": decode,
        "effect": np.sqrt(np.square(logits - clean, dtype=np.float64).mean(axis=(1, 2))),
    }  # fmt: skip


def main() -> None:
    """Write the archives of the diagnostic model."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.bugs", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompt", default="mixed", choices=sorted(PROMPTS))
    options = parser.parse_args()
    oracle = Oracle.load(diagnostic_path(), threads=usable_cores())
    options.out.mkdir(parents=True, exist_ok=True)
    for name, bugs in {"library": LIBRARY_BUGS, "outside": OUTSIDE_BUGS, "decode": DECODE_BUGS}.items():
        np.savez(options.out / f"{name}.npz", **archive(oracle, bugs, PROMPTS[options.prompt]()))


if __name__ == "__main__":
    main()
