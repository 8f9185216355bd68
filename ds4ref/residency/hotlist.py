"""The hot list of a model file: its routed experts, (layer, expert), in the order of how often a text used them.

    MODEL.gguf.experts.json    {"layers": 43, "experts": 256, "hottest": [[12, 7], [3, 91], ...]}

An engine with a cache of experts loads them in this order at the start. A list may be used with any file of the same
model, in whatever storage formats.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from ..files import atomic_write

MOST_BYTES = 64 << 20


def beside(model: str | os.PathLike[str]) -> Path:
    """Return the path of the hot list that belongs to a model file, in the same folder."""
    return Path(f"{os.fspath(model)}.experts.json")


def write_hot_list(path: str | os.PathLike[str], counts: np.ndarray) -> int:
    """Write a hot list of all experts used at least once, given ``counts`` of uses (layers, experts); return its
    length."""
    order = np.argsort(-counts, axis=None, kind="stable")
    used = order[: np.count_nonzero(counts)]
    pairs = [[int(i // counts.shape[1]), int(i % counts.shape[1])] for i in used]
    content = {"layers": counts.shape[0], "experts": counts.shape[1], "hottest": pairs}
    with atomic_write(path) as file:
        file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")
    return len(pairs)


def read_hot_list(path: str | os.PathLike[str], layers: int, experts: int) -> list[tuple[int, int]]:
    """Return the (layer, expert) pairs of a hot list, most used first.

    Raise DataError if the file is damaged, or belongs to a model with other numbers of layers or experts.
    """
    try:
        data = Path(path).read_bytes() if Path(path).stat().st_size <= MOST_BYTES else b""
        content: Any = json.loads(data)
        size = content["layers"], content["experts"]
        pairs = [(int(layer), int(expert)) for layer, expert in content["hottest"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{os.fspath(path)}: not a hot list of experts: {error}") from None
    if size != (layers, experts) or not all(0 <= a < layers and 0 <= b < experts for a, b in pairs):
        raise DataError(f"{os.fspath(path)}: a hot list of another model, not of {layers} layers of {experts} experts")
    return list(dict.fromkeys(pairs))
