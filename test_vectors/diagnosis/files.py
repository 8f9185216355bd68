"""Compare two model files: a wrong conversion gives the same numbers as a wrong engine.

    differences("ours.gguf", "theirs.gguf").lines     metadata and tensors that differ
    metadata("ours.gguf", "theirs.gguf")              metadata alone, which takes no time whatever the size

If our engine on *their* file gives their numbers, their engine reads that file correctly, and the files differ.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ds4ref.weights.gguf import GGUFFile

SHOWN = 12
SEQUENCE = (list, tuple, np.ndarray)


@dataclass(frozen=True)
class FileDifferences:
    """Differences of two model files in human-readable lines.

    metadata  one line per metadata key with different values
    tensors   one line per tensor that is missing or differs in shape, type or bytes
    """

    metadata: tuple[str, ...]
    tensors: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """Return up to ``SHOWN`` lines of both kinds, and the number of further differences."""
        every = [*self.metadata, *self.tensors]
        more = [f"and {len(every) - SHOWN} more differences"] if len(every) > SHOWN else []
        return every[:SHOWN] + more


def metadata(ours: str, theirs: str) -> list[str]:
    """Compare the metadata of two model files by path, without the tokenizer's: a line for each key that differs.

    A file that cannot be read raises DataError (a ModelError of the reader).
    """
    with GGUFFile.open(ours) as a, GGUFFile.open(theirs) as b:
        return _metadata(a, b)


def _metadata(a: GGUFFile, b: GGUFFile) -> list[str]:
    lines = []
    for key in sorted({*a.metadata, *b.metadata}):
        mine, other = a.metadata.get(key), b.metadata.get(key)
        if key.startswith("tokenizer.") or key == "general.name" or _same(mine, other):
            continue
        if isinstance(mine, SEQUENCE) and isinstance(other, SEQUENCE) and len(mine) == len(other):
            at = next(i for i, (x, y) in enumerate(zip(mine, other, strict=True)) if x != y)
            key, mine, other = f"{key}[{at}]", mine[at], other[at]
        lines.append(f"metadata {key}: {_shown(mine)} here, {_shown(other)} there")
    return lines


def differences(ours: str, theirs: str) -> FileDifferences:
    """Compare two model files by path; a file that cannot be read raises DataError (a ModelError of the reader)."""
    with GGUFFile.open(ours) as a, GGUFFile.open(theirs) as b:
        digests = {_digest(a, name): name for name in a.tensors}
        tensors = []
        for name in a.tensors:
            if name not in b.tensors:
                tensors.append(f"tensor {name} is missing there")
                continue
            x, y = a.tensors[name], b.tensors[name]
            if x.fmt.name != y.fmt.name or tuple(x.dims) != tuple(y.dims):
                tensors.append(f"tensor {name}: {x.fmt.name} {list(x.dims)} here, {y.fmt.name} {list(y.dims)} there")
                continue
            digest = _digest(b, name)
            if digest == _digest(a, name):
                continue
            source = digests.get(digest)
            tensors.append(f"tensor {name}: " + (f"has the contents of {source}" if source else _share(a, b, name)))
        tensors += [f"tensor {name} is not here" for name in b.tensors if name not in a.tensors]
        return FileDifferences(tuple(_metadata(a, b)), tuple(tensors))


def _same(a: object, b: object) -> bool:
    if isinstance(a, SEQUENCE) and isinstance(b, SEQUENCE):
        return list(a) == list(b)
    return a == b


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"  # float32 as it was meant: 1e-06, not 9.99999997475e-07
    text = "absent" if value is None else str(list(value) if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 40 else text[:37] + "..."


def _bytes(file: GGUFFile, name: str) -> np.ndarray:
    return np.ascontiguousarray(file.raw(name)).reshape(-1).view(np.uint8)


def _digest(file: GGUFFile, name: str) -> bytes:
    tensor = file.tensors[name]
    head = f"{tensor.fmt.name} {tuple(tensor.dims)}".encode()
    return hashlib.blake2b(_bytes(file, name), digest_size=16, person=hashlib.sha256(head).digest()[:16]).digest()


def _share(a: GGUFFile, b: GGUFFile, name: str) -> str:
    x, y = _bytes(a, name), _bytes(b, name)
    return f"{100 * float((x != y).mean()):.3g} % of its bytes differ"
