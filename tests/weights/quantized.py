"""A small file without blocks, and what the quantizer makes of it, for the tests of `ds4-quantize`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ds4ref.kernels.formats import FORMATS
from ds4ref.weights import open_source
from ds4ref.weights.writer import TensorSpec

ROOT = Path(__file__).resolve().parents[2]
EXPERTS, FF, DIM = 3, 256, 512
SPECS = [
    TensorSpec("token_embd.weight", "F32", (DIM, 40)),
    TensorSpec("output_norm.weight", "F32", (DIM,)),
    TensorSpec("output.weight", "BF16", (DIM, 40)),
    *(
        spec
        for layer in range(2)
        for spec in (
            TensorSpec(f"blk.{layer}.ffn_gate_exps.weight", "F32", (DIM, FF, EXPERTS)),
            TensorSpec(f"blk.{layer}.ffn_up_exps.weight", "F16", (DIM, FF, EXPERTS)),
            TensorSpec(f"blk.{layer}.ffn_down_exps.weight", "F32", (FF, DIM, EXPERTS)),
            TensorSpec(f"blk.{layer}.attn_q_a.weight", "F32", (DIM, 96)),
            TensorSpec(f"blk.{layer}.attn_compressor_ape.weight", "F32", (96, 4)),
            TensorSpec(f"blk.{layer}.ffn_gate_tid2eid.weight", "I64", (2, 40)),
        )
    ),
]
METADATA = [("general.architecture", "string", "deepseek4"), ("quantize.imatrix.file", "string", "old.dat"),
            ("general.list", "i32[]", [1, 2])]  # fmt: skip


def tensor(path: Path, name: str) -> tuple[str, np.ndarray]:
    with open_source(path) as source:
        return source.tensors[name].fmt.name, source.raw(name).copy()


def values(path: Path, name: str, cols: int) -> np.ndarray:
    fmt, raw = tensor(path, name)
    return FORMATS[fmt].dequantize(raw.reshape(-1, FORMATS[fmt].row_bytes(cols)))
