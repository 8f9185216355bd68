"""A model as it was published, presented as the GGUF of its family: same tensor names, same metadata keys.

``config.json`` names the family (``model_type``); the family's own module ``archs/NAME/published.py`` says which
metadata its config means and which published tensors each of its tensors is made of. So everything that reads a GGUF
reads a checkpoint, and there is no second path through the engine.

Tensors whose bytes are a storage format as they stand (F32, F16, BF16, I32) are views of the mapped files. All others
are laid out by ``raw`` anew at every call, and belong to the caller: FP8 and FP4 get their scales into their rows,
64-bit integers become 32-bit ones, experts are stacked. ``made_bytes`` says how much memory it takes to hold all of
them; ``piece`` makes one matrix of a stack at a time.

    with PublishedSource.open("folder") as source:
        source.metadata["general.architecture"], source.tensors["blk.0.attn_q_a.weight"].fmt.name
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from kernels.formats import Format

from ..errors import ModelFileError
from .config import Config
from .cursor import shown
from .layout import Layout, layout_of
from .safetensors import CONFIG, Checkpoint
from .source import Entries

if TYPE_CHECKING:
    from .safetensors import Stored

FAMILIES = {
    "deepseek_v4": "ds4ref.archs.deepseek4.published",
    "llama": "ds4ref.archs.llama.published",
    "qwen3": "ds4ref.archs.qwen3.published",
}
"""Module of each family, by the ``model_type`` of its config.json."""

Entry = tuple[str, str, Any]
"""Metadata key, type ("u32", "f32[]", "string", ...) and value, or a function that gives the value when asked for."""


class Part(NamedTuple):
    """A tensor of the engine.

    name   as in the family's GGUF
    of     the published tensors it is made of; several are stacked along a new outermost axis
    order  for every row, which published row it is; None: as they stand
    stack  stacked even if there is only one of them
    """

    name: str
    of: tuple[str, ...]
    order: np.ndarray | None = None
    stack: bool = False


class Family(Protocol):
    """What ``archs/NAME/published.py`` offers."""

    def metadata(self, config: Config, checkpoint: Checkpoint) -> list[Entry]:
        """The keys that the family's GGUF would have. ModelFileError."""

    def parts(self, config: Config, checkpoint: Checkpoint) -> list[Part]:
        """The tensors that the family's GGUF would have, as far as the checkpoint has them."""


class Info(NamedTuple):
    """See ``source.TensorInfo``; ``offset`` is where the data lies in its file, or what it is made of begins."""

    name: str
    fmt: Format
    dims: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """NumPy order: slowest-varying dimension first."""
        return self.dims[::-1]


class Metadata(Entries):
    """Key -> value, see ``source.Metadata``. Values given as functions are computed at their first use."""

    def __init__(self, entries: Sequence[Entry]):
        super().__init__({key: (kind, value) for key, kind, value in entries})

    def __getitem__(self, key: str) -> Any:
        kind, value = self._entries[key]
        if callable(value):
            value = value()
            self._entries[key] = kind, value
        return value

    def count(self, key: str) -> int:
        """Items of an array, 1 for a scalar; KeyError if there is no such key."""
        value = self[key]
        return len(value) if isinstance(value, list) else 1

    def first(self, key: str, count: int) -> Any:
        """The value, of an array only the first ``count`` items."""
        value = self[key]
        return value[:count] if isinstance(value, list) else value


@dataclass(frozen=True)
class _Made:
    """How one tensor is made: its pieces, all alike."""

    pieces: tuple[Layout, ...]
    order: np.ndarray | None

    @property
    def is_view(self) -> bool:
        return len(self.pieces) == 1 and self.order is None and self.pieces[0].is_view


class PublishedSource:
    """An open checkpoint of a known family; a ``source.TensorSource``."""

    def __init__(self, checkpoint: Checkpoint):
        """Use ``open``. Takes over ``checkpoint``."""
        # The folder, however it was opened: what tells models apart (runs, saved sessions) looks at all of it.
        self.checkpoint, self.path, self.size = checkpoint, os.fspath(checkpoint.folder), checkpoint.size
        config = Config(checkpoint.folder / CONFIG, checkpoint.config)
        family = _family(config)
        self.metadata = Metadata(family.metadata(config, checkpoint))
        self.tensors: dict[str, Info] = {}
        self._made: dict[str, _Made] = {}
        self.used: set[str] = set()
        for part in family.parts(config, checkpoint):
            self._add(part)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads config and headers, no weights. ModelFileError if this is no checkpoint of a known family."""
        checkpoint = Checkpoint.open(path)
        try:
            return cls(checkpoint)
        except BaseException:
            checkpoint.close()
            raise

    def _add(self, part: Part) -> None:
        pieces = tuple(self._layout(name) for name in part.of)
        first = pieces[0]
        for name, piece in zip(part.of, pieces, strict=True):
            if (piece.fmt.name, piece.shape) != (first.fmt.name, first.shape):
                what = f"{piece.fmt.name} {list(piece.shape)}, unlike {shown(part.of[0])}"
                raise ModelFileError(self.path, f"tensor {shown(name)} is {what}: they cannot be stacked")
        if part.order is not None and (len(first.shape) != 2 or sorted(part.order) != list(range(first.shape[0]))):
            raise ModelFileError(self.path, f"tensor {shown(part.of[0])} has rows {list(first.shape)}, another order of"
                                            f" {len(part.order)} is wanted")  # fmt: skip
        self._made[part.name] = _Made(pieces, part.order)
        stacked = (len(pieces),) if len(pieces) > 1 or part.stack else ()
        shape = (*stacked, *first.shape)
        nbytes = len(pieces) * first.nbytes
        self.tensors[part.name] = Info(part.name, first.fmt, shape[::-1], first.stored.offset, nbytes)

    def _layout(self, name: str) -> Layout:
        stored = self.checkpoint.tensors.get(name)
        if stored is None:
            raise ModelFileError(self.path, f"tensor {shown(name)} is missing")
        scale = self._scale(name)
        self.used.add(name)
        if scale is not None:
            self.used.add(scale.name)
        return layout_of(self.checkpoint, stored, scale)

    def _scale(self, name: str) -> Stored | None:
        stem = name.removesuffix(".weight")
        for other in (f"{stem}.scale", f"{name}_scale_inv"):
            if stem != name and other in self.checkpoint.tensors:
                return self.checkpoint.tensors[other]
        return None

    @property
    def made_bytes(self) -> int:
        """Memory that all tensors take which are not views of the files."""
        return sum(self.tensors[name].nbytes for name, made in self._made.items() if not made.is_view)

    def unused(self) -> list[str]:
        """Published tensors that no tensor of the engine is made of."""
        return [name for name in self.checkpoint.tensors if name not in self.used]

    def pieces(self, name: str) -> int:
        """Of how many matrices a tensor is made: the length of its outermost axis if it is a stack, else 1."""
        return len(self._made[name].pieces)

    def piece(self, name: str, index: int) -> np.ndarray:
        """The bytes of matrix ``index`` of a tensor, uint8 (nbytes / pieces,). KeyError, IndexError, ModelFileError."""
        made = self._made[name]
        data = made.pieces[index].bytes()
        if made.order is not None:
            data = data.reshape(len(made.order), -1)[made.order].reshape(-1)
        return data

    def raw(self, name: str) -> np.ndarray:
        """The bytes of a tensor, uint8 (nbytes,): a view of the file where it has them, else made now."""
        made = self._made[name]
        if len(made.pieces) == 1:
            return self.piece(name, 0)
        out = np.empty((len(made.pieces), made.pieces[0].nbytes), np.uint8)
        for index in range(len(made.pieces)):
            out[index] = self.piece(name, index)
        return out.reshape(-1)

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read a byte of every page of the files, as ``gguf.GGUFFile.touch``."""
        return self.checkpoint.touch()

    def close(self) -> None:
        """Give the files back; what ``raw`` returned stays valid."""
        self.checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _family(config: Config) -> Family:
    kind = config.text("model_type")
    if kind not in FAMILIES:
        raise config.fail("model_type", f"is {shown(kind, 40)}, not one of {', '.join(FAMILIES)}")
    return importlib.import_module(FAMILIES[kind])
