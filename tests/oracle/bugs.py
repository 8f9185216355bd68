"""Hugging Face's model with one injected bug at a time: what a diagnosis of foreign engines is held against.

LIBRARY_BUGS  those that ``ds4ref.variants.LIBRARY`` names, made in other code
ROUNDED_BUGS  those of them that are about a rounding; they need a mode that has it
OUTSIDE_BUGS, DECODE_BUGS, FAMILIES: those that it does not have (``bugs_outside``)

Our engine takes no part in it: the weights are read by gguf-py, the bugs are edits of transformers (surgery), and
roundings, if any, are those of hf_rounded.

    python -m tests.oracle.bugs OUT --rounding ds4 --prompt text

writes OUT/library.npz, outside.npz, decode.npz and (with a rounding) rounded.npz; a rounding stands before the suffix
unless it is "exact". In each: ids (T,), names and says (n,), logits (n, T, V) float32, effect (n,) rms against
``clean`` (T, V), the same engine without a bug, and ``decode`` (T, V), that engine with all but the first PREFILL
tokens one by one.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from ds4ref.environment import usable_cores
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

from .bugs_library import LIBRARY_BUGS, ROUNDED_BUGS
from .bugs_outside import DECODE_BUGS, FAMILIES, OUTSIDE_BUGS, PREFILL
from .hf import Oracle
from .hf_rounded import rounded
from .surgery import Bug

__all__ = ["DECODE_BUGS", "FAMILIES", "LIBRARY_BUGS", "OUTSIDE_BUGS", "PREFILL", "ROUNDED_BUGS", "Bug", "bug_logits"]


def rounding(oracle: Oracle, name: str) -> AbstractContextManager[None]:
    """The roundings of a mode, put on from outside; enter it after a bug's own changes."""
    return nullcontext() if name == "exact" else rounded(oracle, activations=name == "ds4")


def bug_logits(oracle: Oracle, bug: Bug, ids: list[int], mode: str = "exact") -> np.ndarray:
    """(T, V) float32 of the model with the bug, in a rounding mode: one pass, or as a bug of decode needs it."""
    with bug.apply(oracle), rounding(oracle, mode):
        return oracle.decode(ids, PREFILL) if bug in DECODE_BUGS else oracle.logits(ids)


def archive(oracle: Oracle, bugs: list[Bug], ids: list[int], mode: str = "exact") -> dict[str, np.ndarray]:
    """The arrays of one archive (see above)."""
    with rounding(oracle, mode):
        decode = oracle.decode(ids, PREFILL)
        clean = decode if bugs[0] in DECODE_BUGS else oracle.logits(ids)
    logits = np.stack([bug_logits(oracle, bug, ids, mode) for bug in bugs])
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
    parser.add_argument("--rounding", default="exact", choices=("exact", "qat", "ds4"))
    options = parser.parse_args()
    oracle = Oracle.load(diagnostic_path(), threads=usable_cores())
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = "" if options.rounding == "exact" else f".{options.rounding}"
    lists = {"library": LIBRARY_BUGS, "outside": OUTSIDE_BUGS, "decode": DECODE_BUGS}
    for name, bugs in {**lists, **({"rounded": ROUNDED_BUGS} if suffix else {})}.items():
        arrays = archive(oracle, bugs, PROMPTS[options.prompt](), options.rounding)
        np.savez(options.out / f"{name}{suffix}.npz", **arrays)


if __name__ == "__main__":
    main()
