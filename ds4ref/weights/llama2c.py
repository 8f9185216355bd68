"""Checkpoints of llama2.c, presented like the GGUF file of a Llama model: same tensor names, same metadata keys.

    legacy      seven int32 (dim, hidden, layers, heads, key-value heads, vocabulary, context; a negative vocabulary
                means that the output head is separate from the embedding), then float32 tensors, with tables of rope
                angles among them that are not used
    version 1   magic "ak42", the same numbers, one byte: 1 if embedding and output head share their weights, float32
                tensors from byte 256 on
    version 2   the same with int8 codes in groups; the float32 scales of all groups follow the codes of each tensor

Float tensors are views of the mapped file. Version 2 tensors become Q8_0 where that is exact (the group size is a
multiple of 32 and float16 can hold every scale), else float32; they are converted at every access, and the caller owns
the result. Nothing in the file is trusted: its size must be exactly what the header's numbers imply.

The vocabulary is in a second file in the same folder (``tokenizer.bin``), which ``ds4ref.text.pieces`` reads.

    with Llama2cFile.open("stories15M.bin") as source:
        source.metadata["llama.block_count"], source.tensors["blk.0.attn_q.weight"].dims
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from ds4ref.kernels.formats import FORMATS, Format

from ..errors import ModelFileError
from .mapped import MappedFile, touch
from .source import Metadata, TensorInfo

MAGIC = 0x616B3432
HEADER_BYTES = 256
TOKENIZER = "tokenizer.bin"
RMS_EPS, ROPE_THETA = 1e-5, 10000.0
"""Constants of the llama2.c program that its files do not record."""

_LEGACY = struct.Struct("<7i")
_VERSIONED = struct.Struct("<Ii7iB")
_GROUP = struct.Struct("<i")
_STEP = 1 << 20
Q8_BLOCK = 32

# name, smallest and largest plausible value of each number of the header
_BOUNDS = (
    ("dim", 1, 1 << 16),
    ("hidden", 1, 1 << 20),
    ("layers", 1, 1024),
    ("heads", 1, 1 << 12),
    ("key-value heads", 1, 1 << 12),
    ("vocabulary", 1, 1 << 22),
    ("context", 1, 1 << 30),
)


Tensors = list[tuple[str, tuple[int, ...]]]
"""Tensor names and ``dims``, in file order."""


class Llama2cHeader(NamedTuple):
    """The numbers of a header.

    dim      channels of a token's hidden state
    hidden   channels inside the feed-forward network
    shared   number of key-value heads, each of which several query heads share
    vocab    number of tokens
    context  largest number of positions
    tied     the output head uses the embedding's weights
    version  0 for the legacy layout
    group    number of weights that share a scale, 0 for float files
    """

    dim: int
    hidden: int
    layers: int
    heads: int
    shared: int
    vocab: int
    context: int
    tied: bool
    version: int = 0
    group: int = 0

    @property
    def head_dim(self) -> int:
        """Return the number of channels of a head."""
        return self.dim // self.heads

    @property
    def start(self) -> int:
        """Return the byte offset of the first tensor."""
        return HEADER_BYTES if self.version else _LEGACY.size


class TensorPlace(NamedTuple):
    """Location of a tensor in the file: int8 codes at byte ``offset`` and their float32 scales at byte ``scales``, or
    float32 values at ``offset`` if ``scales`` is 0."""

    dims: tuple[int, ...]
    offset: int
    scales: int = 0


class Llama2cFile:
    """An open llama2.c checkpoint; implements ``source.TensorSource``.

    sampling     name of the sampler to use, that of the llama2.c program
    input_group  number of activations that share a scale when they are quantized to int8 before a matrix product, as
                 the llama2.c program does for version 2 files; 0: they stay floats
    """

    sampling = "llama2.c"

    def __init__(self, file: MappedFile):
        """Take ownership of ``file``; use ``open`` instead."""
        self.path, self.size, self._file = file.path, file.size, file
        self.header = h = read_header(file)
        self.input_group = h.group
        end, self._stored = laid_out(h)
        if end != file.size:
            reason = f"{file.size} bytes, but a llama2.c checkpoint of these dimensions takes {end}"
            raise ModelFileError(self.path, reason)
        self._exact: dict[str, bool] = {}
        self.tensors: dict[str, TensorInfo] = {name: self._info(name, where) for name, where in self._stored.items()}
        self.metadata = Metadata(
            [
                ("general.architecture", "string", "llama"),
                ("general.name", "string", Path(self.path).stem),
                ("llama.vocab_size", "u32", h.vocab),
                ("llama.context_length", "u32", h.context),
                ("llama.block_count", "u32", h.layers),
                ("llama.embedding_length", "u32", h.dim),
                ("llama.feed_forward_length", "u32", h.hidden),
                ("llama.attention.head_count", "u32", h.heads),
                ("llama.attention.head_count_kv", "u32", h.shared),
                ("llama.attention.layer_norm_rms_epsilon", "f64", RMS_EPS),
                ("llama.rope.freq_base", "f64", ROPE_THETA),
                ("llama.rope.dimension_count", "u32", h.head_dim),
            ]
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a checkpoint: read the header and, in version 2, the scales, which decide the tensors' formats.

        Raise ModelFileError if the file is not a valid checkpoint.
        """
        file = MappedFile(path)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    @property
    def vocabulary(self) -> Path:
        """Return the path at which the tokenizer file should be, next to the checkpoint; it may not exist."""
        return Path(self.path).with_name(TOKENIZER)

    @property
    def made_bytes(self) -> int:
        """Return the bytes of memory that the converted tensors (those that are not views of the file) take."""
        return sum(self.tensors[name].nbytes for name, where in self._stored.items() if where.scales)

    @property
    def used_bytes(self) -> int:
        """Return the size of all tensors in the file in bytes, scales included."""
        group = self.header.group
        sizes = ((prod(where.dims), bool(where.scales)) for where in self._stored.values())
        return sum(count + 4 * (count // group) if coded else 4 * count for count, coded in sizes)

    def _info(self, name: str, where: TensorPlace) -> TensorInfo:
        fmt: Format = FORMATS["F32"]
        if where.scales and self._exactly_q8_0(where):
            fmt = FORMATS["Q8_0"]
        nbytes = fmt.row_bytes(where.dims[0]) * prod(where.dims[1:])
        return TensorInfo(name, fmt, where.dims, where.offset, nbytes)

    def _scales(self, where: TensorPlace) -> np.ndarray:
        return self._file.view(where.scales, 4 * (prod(where.dims) // self.header.group)).view("<f4")

    def _exactly_q8_0(self, where: TensorPlace) -> bool:
        if self.header.group % Q8_BLOCK or where.dims[0] % Q8_BLOCK:
            return False
        scales = self._scales(where)
        for start in range(0, scales.size, _STEP):
            part = scales[start : start + _STEP]
            with np.errstate(over="ignore", invalid="ignore"):
                if not np.array_equal(part.astype(np.float16).astype(np.float32), part):
                    return False
        return True

    def raw(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor, uint8 (nbytes,): a view of the file for float tensors, else converted by this
        call."""
        where, info = self._stored[name], self.tensors[name]
        if not where.scales:
            return self._file.view(where.offset, info.nbytes)
        codes, scales, group = (
            self._file.view(where.offset, prod(where.dims)).view(np.int8),
            self._scales(where),
            self.header.group,
        )
        if info.fmt.name == "Q8_0":
            out = np.empty(codes.size // Q8_BLOCK, FORMATS["Q8_0"].layout)
            out["d"] = np.repeat(scales, group // Q8_BLOCK)
            out["q"] = codes.reshape(-1, Q8_BLOCK)
            return out.view(np.uint8)
        values = np.empty(codes.size, np.float32)
        groups = max(1, _STEP // group)
        for start in range(0, scales.size, groups):
            part = scales[start : start + groups, None]
            at = slice(start * group, (start + len(part)) * group)
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(codes[at].reshape(-1, group), part, out=values[at].reshape(-1, group))
        return values.view(np.uint8)

    def touch(self) -> Iterator[tuple[int, int]]:
        """Read one byte of every page of the file, to load it from disk; yield (bytes covered, sum of those read)."""
        return touch(self._file.view(0, self.size))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_llama2c(file: MappedFile) -> bool:
    """Return whether a file starts with llama2.c's magic number or has the size that a legacy header implies."""
    try:
        head = file.read(0, min(file.size, 4))
        return head == struct.pack("<I", MAGIC) or laid_out(read_header(file))[0] == file.size
    except ModelFileError:
        return False


def read_header(file: MappedFile) -> Llama2cHeader:
    """Read the header of a checkpoint of any version; raise ModelFileError naming the first implausible number."""
    head = file.read(0, min(file.size, HEADER_BYTES))
    if len(head) < _LEGACY.size:
        raise ModelFileError(file.path, f"{file.size} bytes, too short for a llama2.c checkpoint")
    if struct.unpack_from("<I", head)[0] != MAGIC:
        numbers = _LEGACY.unpack_from(head)
        dim, hidden, layers, heads, shared, vocab, context = numbers
        return _checked(file.path, Llama2cHeader(dim, hidden, layers, heads, shared, abs(vocab), context, vocab > 0), 0)
    if len(head) < HEADER_BYTES:
        raise ModelFileError(file.path, f"{file.size} bytes, too short for a llama2.c header")
    _, version, dim, hidden, layers, heads, shared, vocab, context, tied = _VERSIONED.unpack_from(head)
    if version not in (1, 2):
        raise ModelFileError(file.path, f"llama2.c version {version}; supported: 1 and 2", 4)
    if tied > 1:
        raise ModelFileError(file.path, f"the flag of a shared head is {tied}", _VERSIONED.size - 1)
    group = _GROUP.unpack_from(head, _VERSIONED.size)[0] if version == 2 else 0
    return _checked(
        file.path, Llama2cHeader(dim, hidden, layers, heads, shared, vocab, context, bool(tied), version, group), 8
    )


def _checked(path: str, h: Llama2cHeader, start: int) -> Llama2cHeader:
    for number, (label, low, high) in enumerate(_BOUNDS):
        if not low <= h[number] <= high:
            raise ModelFileError(path, f"llama2.c checkpoint with {label} {h[number]}, wanted {low} to {high}",
                                 start + 4 * number)  # fmt: skip
    if h.dim % h.heads or h.head_dim % 2 or h.heads % h.shared:
        raise ModelFileError(path, f"{h.dim} channels, {h.heads} heads and {h.shared} key-value heads are inconsistent")
    if h.version == 2 and (h.group < 1 or h.dim % h.group or h.hidden % h.group):
        reason = f"groups of {h.group} weights do not divide rows of {h.dim} and {h.hidden}"
        raise ModelFileError(path, reason, _VERSIONED.size)
    return h


def laid_out(h: Llama2cHeader) -> tuple[int, dict[str, TensorPlace]]:
    """Return the size of the checkpoint in bytes, and the location of every tensor by its GGUF name."""
    kv, angles = h.shared * h.head_dim, ""

    def of_layers(**kinds: tuple[int, ...]) -> Tensors:
        return [(f"blk.{i}.{kind}.weight", dims) for kind, dims in kinds.items() for i in range(h.layers)]

    first, second = of_layers(attn_norm=(h.dim,)), of_layers(ffn_norm=(h.dim,))
    last: Tensors = [("output_norm.weight", (h.dim,))]
    table: Tensors = [("token_embd.weight", (h.dim, h.vocab))]
    head: Tensors = [] if h.tied else [("output.weight", (h.dim, h.vocab))]
    square = (h.dim, h.dim)
    attention = of_layers(attn_q=square, attn_k=(h.dim, kv), attn_v=(h.dim, kv), attn_output=square)
    feed = of_layers(ffn_gate=(h.dim, h.hidden), ffn_down=(h.hidden, h.dim), ffn_up=(h.dim, h.hidden))
    if h.version:
        order = [*first, *second, *last, *table, *attention, *feed, *head]
    else:
        order = [*table, *first, *attention, *second, *feed, *last, (angles, (h.context, h.head_dim)), *head]
    at, places = h.start, {}
    for name, dims in order:
        count, coded = prod(dims), h.group and len(dims) == 2  # norms are floats in every version
        places[name] = TensorPlace(dims, at, at + count if coded else 0)
        at += count + 4 * (count // h.group) if coded else 4 * count
    places.pop(angles, None)
    return at, places
