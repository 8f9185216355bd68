"""Matrices of GPTQ and AWQ dequantized by auto-gptq and autoawq, stored for tests that run without them.

python -m tests.oracle.golden_packed4 AUTO_GPTQ AUTOAWQ tests/data/packed4.npz

The first two are folders of the unpacked wheel of auto-gptq 0.7.1 and of autoawq 0.2.9's source. Only one module of
each is loaded, which needs no more than torch and transformers: the packages themselves want CUDA and older versions.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

ROWS, COLS = 32, 128
GPTQ = {"gptq": (32, False), "gptq 64": (64, False), "gptq ordered": (32, True)}
"""Group and order of each matrix."""
AWQ = {"awq": 32, "awq 128": 128}


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _words(rng: np.random.Generator, shape: tuple[int, int], most: int) -> np.ndarray:
    """Words of eight random nibbles up to ``most``."""
    nibbles = rng.integers(0, most + 1, (*shape, 8), dtype=np.uint32)
    return (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32).view(np.int32)


def main(auto_gptq: str, autoawq: str, out: str) -> None:
    """Write "NAME.part" of each matrix and "NAME.weight", its float16 values (COLS, ROWS)."""
    import torch

    linear: Any = _module(Path(auto_gptq) / "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear
    dequantize = _module(Path(autoawq) / "awq/utils/packing_utils.py").dequantize_gemm
    rng, found = np.random.default_rng(27), {}
    for name, (group, ordered) in GPTQ.items():
        groups = np.arange(COLS, dtype=np.int32) // group
        if ordered:
            rng.shuffle(groups)
        count = COLS // group
        parts = {
            "qweight": _words(rng, (COLS // 8, ROWS), 15), "qzeros": _words(rng, (count, ROWS // 8), 14),
            "scales": rng.uniform(-1, 1, (count, ROWS)).astype(np.float16), "g_idx": groups,
        }  # fmt: skip
        layer = linear(4, group, COLS, ROWS, False)
        layer.load_state_dict({part: torch.from_numpy(values) for part, values in parts.items()})
        parts["weight"] = layer(torch.eye(COLS, dtype=torch.float16)).numpy()
        found |= {f"{name}.{part}": values for part, values in parts.items()}
    for name, group in AWQ.items():
        count = COLS // group
        parts = {
            "qweight": _words(rng, (COLS, ROWS // 8), 15), "qzeros": _words(rng, (count, ROWS // 8), 15),
            "scales": rng.uniform(-1, 1, (count, ROWS)).astype(np.float16),
        }  # fmt: skip
        tensors = [torch.from_numpy(parts[part]) for part in ("qweight", "qzeros", "scales")]
        parts["weight"] = dequantize(*tensors, 4, group).numpy()
        found |= {f"{name}.{part}": values for part, values in parts.items()}
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
