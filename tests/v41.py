"""Tiny drawn models of DeepSeek V4.1 as published folders, and what another implementation computes with them
(``tests/data/README.md``)."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data" / "v41"
FOLDED = 97
"""Number of different tokens of the model "engram": ids from it on are those from 0 on in capitals."""


@functools.cache
def golden() -> dict[str, np.ndarray]:
    """Inputs, logits, streams and selected rows, by model and name."""
    with np.load(DATA / "golden.npz") as z:
        return {key: z[key] for key in z.files}


def config(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a model, with changed keys of its text model."""
    return {
        "model_type": "deepseek_v41",
        "text_config": json.loads((DATA / "configs.json").read_text())[name] | changes,
    }


def model(folder: Path, name: str, extra: tuple[str, ...] = (), **changes: Any) -> Path:
    """Write the model "a", "b" or "engram" (the model "a" with lookup tables) as a folder; return it.

    extra: names of further tensors. changes: keys of the text model's config that are changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(name, **changes)))
    shards = [(DATA / f"{file}.safetensors").read_bytes() for file in (["a", "engram"] if name == "engram" else [name])]
    if extra:
        header = json.dumps(
            {each: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, each in enumerate(extra)}
        ).encode()
        shards.append(len(header).to_bytes(8, "little") + header + bytes(4 * len(extra)))
    names = {}
    for number, data in enumerate(shards, 1):
        shard = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / shard).write_bytes(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        names |= dict.fromkeys(header.keys() - {"__metadata__"}, shard)
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if name == "engram":
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder


def tokenizer() -> dict[str, Any]:
    """The tokenizer.json of the model "engram"."""
    tokens = [f"w{i}" if i < FOLDED else f"W{i - FOLDED}" for i in range(128)]
    return {"model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}}
