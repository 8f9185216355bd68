"""Model files for tests: small ones with random weights, full-size ones made of holes, and containers byte by byte."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.archs.deepseek4.weights import expected_tensors
from ds4ref.kernels.formats import FORMATS
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import TensorSpec, encode_string, encode_value, write_gguf
from tests.golden import ROOT as GOLDEN

# Every layer kind, every odd dimension different, about 1.5 MB.
SMALL = replace(
    FLASH,
    n_layers=4,
    dim=256,
    vocab=67,
    n_heads=2,
    head_dim=192,
    q_rank=64,
    o_rank=48,
    o_groups=2,
    n_experts=5,
    n_used=3,
    expert_ff=512,
    n_hash_layers=1,
    window=8,
    index_heads=3,
    index_topk=4,
    ratios=(0, 0, 4, 128),
    swiglu_limit=(10.0,) * 4,
    name="small",
)

TOKENS = [
    ("tokenizer.ggml.tokens", "string[]", [f"token {i}" for i in range(SMALL.vocab)]),
    ("tokenizer.ggml.merges", "string[]", ["a b", "c d"]),
]


def golden(name: str) -> Path:
    path = GOLDEN / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"golden model {name}.gguf is not beside this checkout")
    return path


def sane_bytes(spec: TensorSpec, rng: np.random.Generator, shape: ModelShape) -> np.ndarray:
    """Random blocks with small finite scales; expert ids in range."""
    if spec.fmt == "I32":
        return rng.integers(0, shape.n_experts, spec.elements, dtype="<i4").view(np.uint8)
    if spec.fmt in ("F32", "F16"):
        return (rng.standard_normal(spec.elements) * 0.1).astype(FORMATS[spec.fmt].layout).view(np.uint8)
    raw = rng.integers(0, 256, spec.nbytes, dtype=np.uint8)
    blocks = raw.view(FORMATS[spec.fmt].layout)
    for field in FORMATS[spec.fmt].scale_fields:
        blocks[field] = rng.uniform(0.001, 0.01, len(blocks))
    return raw


def write_model(path: Path, shape: ModelShape = SMALL, *, recipe="q2", metadata=None, specs=None, data=None) -> Path:
    """A model with random weights. ``data`` overrides the bytes of single tensors; True leaves holes everywhere."""
    metadata = shape.metadata() + TOKENS if metadata is None else metadata
    specs = expected_tensors(shape, recipe) if specs is None else specs
    rng = np.random.default_rng(7)
    with write_gguf(path, metadata, specs) as out:
        for spec in specs:
            if data is True:
                out.hole(spec.name)
            else:
                raw = sane_bytes(spec, rng, shape)
                out.write(spec.name, (data or {}).get(spec.name, raw))
    return path


def with_metadata(entries: list[tuple[str, str, object]], changes: dict[str, tuple[str, object] | None]):
    """``entries`` with the (type, value) of some keys replaced, or the key dropped where None. New keys are added."""
    changes = dict(changes)
    kept = [(key, *(changes.pop(key) if key in changes else rest)) for key, *rest in entries if changes.get(key, 1)]
    return kept + [(key, *change) for key, change in changes.items() if change]


def open_metadata(folder: Path, entries) -> GGUFFile:
    """A file of metadata alone, opened."""
    path = folder / "metadata.gguf"
    path.write_bytes(container(*(kv(*entry) for entry in entries)))
    return GGUFFile.open(path)


def kv(key: str | bytes, kind: str, value: object) -> bytes:
    return encode_string(key) + encode_value(kind, value)


def tensor(name: str | bytes, dims=(8,), type_id: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    rank = len(dims) if rank is None else rank
    return encode_string(name) + struct.pack(f"<I{len(dims)}QIQ", rank, *dims, type_id, offset)


def container(
    *keys: bytes, tensors: tuple[bytes, ...] = (), data: int = 64, magic=b"GGUF", version=3, n_keys=None, n_tensors=None
) -> bytes:
    """A file as bytes; counts may lie. ``data`` zero bytes follow the (32-aligned) directory."""
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    n_keys = len(keys) if n_keys is None else n_keys
    head = magic + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)
