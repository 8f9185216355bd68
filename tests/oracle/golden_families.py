"""Logits of drawn models of every dense family by Hugging Face, stored for tests that run without it.

python -m tests.oracle.golden_families tests/data/families.npz
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from ..archs import families
from .conftest import missing


def theirs(path: Path, ids: list[int]) -> tuple[np.ndarray, float]:
    """Logits (T, V) by transformers in float64, but for what it converts to float32 itself, without fused kernels; and
    how far its float32 is from them."""
    try:
        import torch
        import transformers
    except ImportError:
        missing("transformers is not installed (pip install 'ds4ref[oracle]')")
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **plain)
    with torch.no_grad():
        single = model.eval()(torch.tensor([ids])).logits[0].numpy()
        double = model.double()(torch.tensor([ids])).logits[0].numpy()
    return double.astype(np.float32), float(np.abs(single - double).max())


def main(out: str) -> None:
    """Write the last rows of each golden model's logits, (families.GOLDEN_ROWS, V) float32 by kind."""
    found = {}
    for kind in families.KINDS:
        model = families.golden(kind)
        with tempfile.TemporaryDirectory() as folder:
            logits, _ = theirs(model.folder(Path(folder) / "m"), model.ids)
        found[kind] = logits[-families.GOLDEN_ROWS :]
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(sys.argv[1])
