"""A GGUF file whose metadata has Llama 3's scaling of rope, presented as llama.cpp has it: divisors in a tensor.

``ds4-quantize`` wrote such files once, and llama.cpp aborts on them. Folders are presented so from the start
(``published``).

    source = as_llama_cpp_has_it(source)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ...weights.published import Metadata, PublishedInfo
from ...weights.source import architecture
from .. import ARCHS, arch_of
from .rope import llama3_divisors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import DenseShape

DIVISORS = "rope_freqs.weight"


def as_llama_cpp_has_it(source: TensorSource) -> TensorSource:
    """Return the source, or a view of it without Llama 3's scaling in its metadata; raise ShapeError if it is no model
    that is computed here."""
    key = f"{architecture(source)}.rope.scaling.type"
    written = source.metadata.type_of(key) == "string" and source.metadata[key] == "llama3"
    if not written or architecture(source) not in ARCHS:
        return source
    return Divided(source, arch_of(source).read_shape(source))


class Divided:
    """Implementation of ``weights.source.TensorSource`` on another one."""

    def __init__(self, source: TensorSource, shape: DenseShape):
        self.source, self.path, self.size = source, source.path, source.size
        prefix = f"{shape.family.name}.rope.scaling."
        keys = [key for key in source.metadata if not key.startswith(prefix)]
        self.metadata = Metadata([(key, source.metadata.type_of(key) or "", source.metadata[key]) for key in keys])
        self._divisors = llama3_divisors(shape.head_dim, shape.rope_theta, shape.scaling).astype("<f4")
        info = PublishedInfo(DIVISORS, FORMATS["F32"], self._divisors.shape, 0, self._divisors.nbytes)
        self.tensors = {**source.tensors, DIVISORS: info}

    def raw(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (nbytes,)."""
        return self._divisors.view(np.uint8) if name == DIVISORS else self.source.raw(name)

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the weights; yield (bytes touched, their sum)."""
        return self.source.touch()

    def close(self) -> None:
        """Close the file."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
