"""A published model (safetensors), presented like a GGUF file of its family: same tensor names, same metadata keys.

``config.json`` names the family (``model_type``); the family's module ``archs/NAME/published.py`` translates config to
metadata and lists the published tensors that make up each GGUF tensor. So code written for GGUF files also reads
published folders, and the engine needs no second loader.

Tensors already in a storage format (F32, F16, BF16, I32) are views of the mapped files. All others are converted by
``raw`` at every call, and the caller owns the result: the scales of FP8 and FP4 are moved into the weight rows, 64-bit
integers become 32-bit ones, the matrices of all experts are stacked. ``apart`` returns FP8 and FP4 tensors, and stacks
of them, without a copy, for kernels that read codes and scales from separate arrays. ``made_bytes`` is the memory that
all converted tensors take together; ``piece`` converts one matrix of a stack at a time.

    with PublishedSource.open("folder") as source:
        source.metadata["general.architecture"], source.tensors["blk.0.attn_q_a.weight"].fmt.name
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS, ApartRows

from ..errors import ModelFileError
from .accounting import Account, Inert, leaves, settle, settle_tensors
from .config import Config
from .cursor import quote
from .inert import CONFIG as INERT_CONFIG
from .layout import Layout, apart_rows, layout_of, made_layout
from .safetensors import CONFIG, Checkpoint
from .source import NOT_MODELS, Metadata, TensorInfo

if TYPE_CHECKING:
    from .safetensors import Stored

FAMILIES = {
    "deepseek_v4": "ds4ref.archs.deepseek4.published",
    "deepseek_v41": "ds4ref.archs.deepseek41.published",
    "gemma3_text": "ds4ref.archs.dense.families:GEMMA3_FOLDER",
    "llama": "ds4ref.archs.dense.families:LLAMA_FOLDER",
    "mistral": "ds4ref.archs.dense.families:MISTRAL_FOLDER",
    "mixtral": "ds4ref.archs.dense.families:MIXTRAL_FOLDER",
    "qwen2": "ds4ref.archs.dense.families:QWEN2_FOLDER",
    "qwen3": "ds4ref.archs.dense.families:QWEN3_FOLDER",
    "qwen3_moe": "ds4ref.archs.dense.families:QWEN3_MOE_FOLDER",
}
"""``model_type`` of a config.json -> the ``Family`` that reads it: a module, or "module:object"."""

MetadataEntry = tuple[str, str, Any]
"""(metadata key, type such as "u32", "f32[]" or "string", value or a function that computes it on first use)."""


class TensorParts(NamedTuple):
    """How one tensor of the engine is made of published tensors.

    name   tensor name in GGUF files of the family
    of     names of the published tensors; several are stacked along a new outermost axis
    order  for each row of the result, the index of the published row; None: rows in published order
    stack  add the outermost axis even for a single published tensor
    plus   number added to every value, after which the tensor is F32; 0: unchanged
    made   float32 values of a tensor that is computed from the config; ``of`` is then empty
    lookup whether single rows are looked up on the host, whatever the backend: codes and scales stay in the files
    """

    name: str
    of: tuple[str, ...]
    order: np.ndarray | None = None
    stack: bool = False
    plus: float = 0.0
    made: np.ndarray | None = None
    lookup: bool = False


class Family(Protocol):
    """Interface of a model family: the module ``archs/NAME/published.py``, or an object with the same attributes."""

    INERT: Sequence[Inert]
    """Keys of config.json that have no effect in this family, in addition to those of ``inert.CONFIG``."""

    INERT_TENSORS: Sequence[Inert]
    """Published tensors that are not weights of the model and have no effect."""

    def metadata(self, config: Config, checkpoint: Checkpoint) -> list[MetadataEntry]:
        """Return the metadata entries that a GGUF file of the family would have; raise ModelFileError for a config that
        they cannot express."""

    def parts(self, config: Config, checkpoint: Checkpoint) -> list[TensorParts]:
        """Return how each tensor of the family's GGUF files is made of the checkpoint's tensors."""


class _Conversion(NamedTuple):
    """The conversion of one tensor: the recipe ``part``, and the layout of each matrix, all of one shape."""

    part: TensorParts
    pieces: tuple[Layout, ...]

    @property
    def is_view(self) -> bool:
        part = self.part
        return len(self.pieces) == 1 and part.order is None and not part.plus and self.pieces[0].is_view

    @property
    def is_apart(self) -> bool:
        """Return whether codes and scales can be read directly from the file."""
        return self.part.order is None and all(piece.apart is not None for piece in self.pieces)


class PublishedSource:
    """An open checkpoint of a known family; implements ``source.TensorSource``.

    in_place  whether ``apart`` may return tensors; set it to False for a backend that cannot read codes and scales from
              separate arrays
    """

    def __init__(self, checkpoint: Checkpoint, mtp: bool = False, check: bool = True):
        """Take ownership of ``checkpoint``; use ``open`` instead."""
        # Always the folder, even if one of its files was opened: runs and saved sessions identify a model by all files.
        self.checkpoint, self.path, self.size = checkpoint, os.fspath(checkpoint.folder), checkpoint.size
        config = Config(checkpoint.folder / CONFIG, checkpoint.config)
        self._family = family = _family(config)
        self._config = config
        _check_quantization(config, getattr(family, "BLOCK", [128, 128]))
        entries = family.metadata(config, checkpoint)
        parts = family.parts
        if mtp:
            entries = [entry for entry in entries if not entry[0].startswith("tokenizer.")]
            entries += getattr(family, "mtp_metadata", lambda *_: [])(config)
            parts = getattr(family, "mtp_parts", lambda *_: [])
        self.metadata = Metadata(entries)
        self.tensors: dict[str, TensorInfo] = {}
        self._conversions: dict[str, _Conversion] = {}
        self.used: set[str] = set()
        self.in_place = True
        for part in parts(config, checkpoint):
            self._add(part)
        if mtp and not self.tensors:
            raise ModelFileError(self.path, "has no drafter (mtp.*)")
        if check and not mtp:
            self.config_account().check(config.path)
            self.tensor_account().check(self.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], mtp: bool = False, check: bool = True) -> Self:
        """Open a checkpoint: read config and headers, no weights.

        mtp: present only the checkpoint's drafter (a block for multi-token prediction, or DSpark), not the model.
        check: refuse keys and tensors that are neither used nor known to have no effect; False: for reports about them.
        Raise ModelFileError if ``path`` is not a checkpoint of a known family or, with ``mtp``, has none.
        """
        checkpoint = Checkpoint.open(path)
        try:
            return cls(checkpoint, mtp, check)
        except BaseException:
            checkpoint.close()
            raise

    def config_account(self) -> Account:
        """Sort every key of config.json into used, without effect or refused; nested keys have a dotted path."""
        return settle(dict(leaves(self._config.values)), self._config.read, (*INERT_CONFIG, *self._family.INERT))

    def tensor_account(self) -> Account:
        """Sort every published tensor into used, without effect or refused."""
        family = self._config.text("model_type")
        return settle_tensors(self.checkpoint.tensors, self.used, self._family.INERT_TENSORS, family)

    def _add(self, part: TensorParts) -> None:
        pieces = tuple(self._layout(name) for name in part.of)
        if part.made is not None:
            pieces = (made_layout(part.name, part.made),)
        first = pieces[0]
        for name, piece in zip(part.of, pieces, strict=False):
            if (piece.fmt.name, piece.shape) != (first.fmt.name, first.shape):
                layout = f"{piece.fmt.name} {list(piece.shape)}, unlike {quote(part.of[0])}"
                raise ModelFileError(self.path, f"tensor {quote(name)} is {layout}: they cannot be stacked")
        if part.order is not None and (len(first.shape) != 2 or sorted(part.order) != list(range(first.shape[0]))):
            raise ModelFileError(self.path, f"tensor {quote(part.of[0])} has shape {list(first.shape)}, expected "
                                            f"{len(part.order)} rows")  # fmt: skip
        self._conversions[part.name] = _Conversion(part, pieces)
        stacked = (len(pieces),) if len(pieces) > 1 or part.stack else ()
        shape = (*stacked, *first.shape)
        fmt, nbytes = first.fmt, len(pieces) * first.nbytes
        if part.plus:
            fmt = FORMATS["F32"]
            nbytes = 4 * math.prod(shape)
        self.tensors[part.name] = TensorInfo(part.name, fmt, shape[::-1], first.stored.offset, nbytes)

    def _layout(self, name: str) -> Layout:
        stored = self.checkpoint.tensors.get(name)
        if stored is None:
            raise ModelFileError(self.path, f"tensor {quote(name)} is missing")
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
        """Return the bytes of memory that the converted tensors take: those that cannot be read from the files."""
        return sum(
            self.tensors[name].nbytes
            for name, conversion in self._conversions.items()
            if not (conversion.is_view or self._stays(conversion))
        )

    def _stays(self, conversion: _Conversion) -> bool:
        """Return whether codes and scales of a tensor are used where they are in the files."""
        return conversion.is_apart and (self.in_place or conversion.part.lookup)

    @property
    def used_bytes(self) -> int:
        """Return the size in the files, in bytes, of all published tensors that the engine uses."""
        return sum(self.checkpoint.tensors[name].nbytes for name in self.used)

    def stored_bytes(self, name: str) -> int:
        """Return the size in the files, in bytes, of a tensor and its scales."""
        return sum(each.nbytes for each in self._parts(name))

    def _parts(self, name: str) -> list[Stored]:
        tensors = [self.checkpoint.tensors[part] for part in self._conversions[name].part.of]
        return [each for tensor in tensors for each in (tensor, self._scale(tensor.name)) if each is not None]

    def stored(self, name: str) -> list[np.ndarray]:
        """Return the bytes from which a tensor is made, as views of the files, uint8 each: weights and their scales, by
        matrix; for a tensor that is computed from the config its values."""
        return [self.checkpoint.raw(each.name) for each in self._parts(name)] or [self.raw(name)]

    def apart(self, name: str) -> ApartRows | None:
        """Return codes and scales of a tensor by row, as views of the files; None if it has to be converted."""
        conversion = self._conversions[name]
        if not self._stays(conversion):
            return None
        return apart_rows(conversion.pieces, stacked=len(self.tensors[name].dims) > 2)

    def pieces(self, name: str) -> int:
        """Return the number of matrices in a tensor: the length of the outermost axis of a stack, else 1."""
        return len(self._conversions[name].pieces)

    def piece(self, name: str, index: int) -> np.ndarray:
        """Return the bytes of matrix ``index`` of a tensor, uint8 (nbytes / pieces,).

        Raise KeyError for an unknown name, IndexError for a bad index, ModelFileError for unreadable data.
        """
        part, pieces = self._conversions[name]
        data = pieces[index].bytes()
        if part.order is not None:
            data = data.reshape(len(part.order), -1)[part.order].reshape(-1)
        if part.plus:
            data = (pieces[index].fmt.dequantize(data) + np.float32(part.plus)).reshape(-1).view(np.uint8)
        return data

    def raw(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (nbytes,): a view of the file where possible, else converted by this
        call."""
        count = self.pieces(name)
        if count == 1:
            return self.piece(name, 0)
        out = np.empty(self.tensors[name].nbytes, np.uint8)
        for index, rows in enumerate(out.reshape(count, -1)):
            rows[:] = self.piece(name, index)
        return out

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the weights, to load them from disk; yield (bytes covered, sum of those
        read)."""
        return self.checkpoint.touch()

    def close(self) -> None:
        """Close the files; arrays from ``raw`` stay valid."""
        self.checkpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _family(config: Config) -> Family:
    kind = config.text("model_type")
    if kind in NOT_MODELS:
        raise config.fail("model_type", f"is {quote(kind, 40)}: {NOT_MODELS[kind]}")
    if kind not in FAMILIES:
        raise config.fail("model_type", f"is {quote(kind, 40)}, not one of {', '.join(FAMILIES)}")
    return resolve_name(FAMILIES[kind])


def _check_quantization(config: Config, block: list[int]) -> None:
    """Refuse quantization settings other than FP8 E4M3 with blocks of rows and columns ``block``, and input scales
    computed at run time."""
    part = config.part("quantization_config")
    method = part.agreed("quant_method", "method", default="fp8")
    if method != "fp8":
        raise part.fail("quant_method", f"is {quote(method, 40)}, wanted 'fp8'")
    for key, value in {"fmt": "e4m3", "activation_scheme": "dynamic"}.items():
        if part.has(key) and part.text(key) != value:
            raise part.fail(key, f"is {quote(part.text(key), 40)}, wanted {value!r}")
    if part.has("weight_block_size") and part.integers("weight_block_size", 2) != block:
        raise part.fail("weight_block_size", f"is {part.integers('weight_block_size', 2)}, wanted {block}")
