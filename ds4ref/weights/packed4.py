"""Matrices of GPTQ and AWQ folders, 4-bit codes with zero points and scales apart, as rows of a storage format.

A linear layer X of (out, in) weights, input k of which belongs to a group g, has

    w[n, k] = scales[g, n] * (q[n, k] - z[g, n])

    GPTQ   X.qweight I32 (in / 8, out), eight inputs a word; g of X.g_idx I32 (in,), without it k // group_size
    AWQ    X.qweight I32 (in, out / 8), eight outputs a word, in the order of ``AWQ_ORDER``; g = k // group_size
    both   X.qzeros I32 (groups, out / 8), packed as outputs are; X.scales F16, BF16 or F32 (groups, out)

GPTQ's checkpoint format "gptq" stores z - 1, "gptq_v2" and AWQ store z. What the rows are:

    Q4_0   all zero points are 8
    Q5_0   any others: q - z is from -15 to 15, and codes of five bits around 16 hold it
    F32    the inputs of a block of 32 are of several groups (an order, groups below 32), or F16 cannot hold the scales

All are exact (but for scales of float32's full precision, whose product rounds to float32): the product of scale and
difference is not rounded to float16, as the libraries' own kernels do. Other numbers of bits and other packings are
refused by name. Zero points and orders are read when a folder is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ds4ref.kernels.formats import FORMATS

from ..errors import ModelFileError
from .accounting import inert
from .cursor import quote
from .layout import Layout

if TYPE_CHECKING:
    from .config import Config
    from .safetensors import Checkpoint, Stored

METHODS = ("gptq", "awq")
CODES, ZEROS, SCALES, ORDER = "qweight", "qzeros", "scales", "g_idx"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output, of eight, whose code is nibble i of a word."""
PER_WORD = 8
BLOCK = 32
SCALE_DTYPES = ("F16", "BF16", "F32")
_STEP_WEIGHTS = 1 << 18
"""Weights converted at once: temporaries stay in the second-level cache."""
_NIBBLES = 0x11111111

INERT = (
    inert("the zero points say it", "quantization_config.sym"),
    inert("orders say it", "quantization_config.static_groups quantization_config.act_group_aware"),
    inert("tensors say which matrices are quantized",
          "quantization_config.lm_head quantization_config.block_name_to_quantize"
          " quantization_config.modules_in_block_to_quantize quantization_config.module_name_preceding_first_block"),
    inert("how the file was quantized",
          "quantization_config.damp_percent quantization_config.damp_auto_increment quantization_config.mse"
          " quantization_config.true_sequential quantization_config.dataset quantization_config.tokenizer"
          " quantization_config.batch_size quantization_config.pad_token_id quantization_config.model_seqlen"
          " quantization_config.cache_block_outputs quantization_config.model_name_or_path"
          " quantization_config.model_file_base_name quantization_config.meta.*"),
    inert("choice of kernels",
          "quantization_config.backend quantization_config.use_cuda_fp16 quantization_config.use_exllama"
          " quantization_config.disable_exllama quantization_config.exllama_config.*"
          " quantization_config.max_input_length quantization_config.do_fuse quantization_config.fuse_max_seq_len"
          " quantization_config.modules_to_fuse"),
    inert("another packing", "quantization_config.is_marlin_format", False),
    inert("AWQ has no order", "quantization_config.desc_act", False),
)  # fmt: skip
"""Keys of such a ``quantization_config`` without effect."""


class Packing(NamedTuple):
    """How the matrices of a folder are packed.

    method   "gptq" or "awq"
    group    inputs of a group; 0: all of them
    above    zero point less its stored value
    ordered  whether inputs of a group may lie anywhere
    """

    method: str
    group: int
    above: int
    ordered: bool


class _Parts(NamedTuple):
    """The tensors of a matrix of ``rows`` x ``cols`` weights, ``groups`` (cols,) the group of each input."""

    codes: Stored
    zeros: Stored
    scales: Stored
    rows: int
    cols: int
    groups: np.ndarray


def packing_of(config: Config) -> Packing | None:
    """Return how ``quantization_config`` packs matrices, None for other methods; ModelFileError for what cannot be
    read."""
    part = config.part("quantization_config")
    method = part.agreed("quant_method", "method", default="")
    if method not in METHODS:
        return None
    _only(part, "bits", part.integer("bits"), 4)
    _only(part, "pack_dtype", part.text("pack_dtype", "int32"), "int32")
    size = part.value("group_size", None)
    group = 0 if type(size) is int and size == -1 else part.integer("group_size", low=1)
    if method == "awq":
        _only(part, "version", part.agreed("version", "format", default="gemm").lower(), "gemm")
        _only(part, "zero_point", part.flag("zero_point", True), True)
        return Packing(method, group, 0, False)
    stored = part.agreed("checkpoint_format", "format", default="gptq")
    if stored not in ("gptq", "gptq_v2"):
        raise part.fail("checkpoint_format", f"is {quote(stored, 40)}, wanted 'gptq' or 'gptq_v2'")
    return Packing(method, group, int(stored == "gptq"), part.flag("desc_act", False))


def _only(part: Config, key: str, value: object, wanted: object) -> None:
    if value != wanted:
        shown = quote(value, 40) if isinstance(value, str) else str(value).lower()
        raise part.fail(key, f"is {shown}, wanted {str(wanted).lower() if wanted is True else repr(wanted)}")


def presented(names: Collection[str]) -> set[str]:
    """Return names of tensors, with X.weight for each packed matrix X."""
    return {*names, *(stem + ".weight" for stem in stems(names))}


def stems(names: Collection[str]) -> list[str]:
    """Return the names of all packed matrices, without their last part."""
    return [name.removesuffix("." + CODES) for name in names if name.endswith("." + CODES)]


def names_of(checkpoint: Checkpoint, packing: Packing, stem: str) -> list[str]:
    """Return the tensors that the matrix is made of."""
    parts = (CODES, ZEROS, SCALES, *((ORDER,) if packing.method == "gptq" else ()))
    names = [f"{stem}.{part}" for part in parts]
    return [name for name in names if name in checkpoint.tensors]


def zero_biases(checkpoint: Checkpoint) -> list[str]:
    """Return the biases of packed matrices that hold zeros alone: GPTQ writes one beside every matrix."""
    found = []
    for stem in stems(checkpoint.tensors):
        bias = checkpoint.tensors.get(stem + ".bias")
        if bias is not None and bias.dtype in SCALE_DTYPES:
            values = FORMATS[bias.dtype].dequantize(checkpoint.raw(bias.name))
            if not values.any():
                found.append(bias.name)
    return found


def packed_layout(checkpoint: Checkpoint, packing: Packing, stem: str) -> Layout:
    """Return the conversion of a matrix to rows; ModelFileError for parts that are missing or do not fit."""
    parts = _parts(checkpoint, packing, stem)
    codes, zeros, scales, rows, cols, groups = parts
    words = checkpoint.raw(zeros.name).view("<u4")
    # A stored 15 is read as 0, as 16, or with a carry into the next one, depending on the library.
    if packing.above and (words & words >> 1 & words >> 2 & words >> 3 & _NIBBLES).any():
        raise _fail(checkpoint, zeros, "holds a zero point of 15 + 1, which programs read in different ways")
    exact = scales.dtype == "F16" or _fits_half(checkpoint, scales)
    blocks = cols % BLOCK == 0 and bool((groups.reshape(-1, BLOCK) == groups[::BLOCK, None]).all())
    if not (exact and blocks):
        fmt = "F32"
    else:
        fmt = "Q4_0" if (words == (8 - packing.above) * _NIBBLES).all() else "Q5_0"
    return Layout(codes, FORMATS[fmt], (rows, cols), lambda: _rows(checkpoint, packing, parts, fmt))


def _parts(checkpoint: Checkpoint, packing: Packing, stem: str) -> _Parts:
    tensors = checkpoint.tensors
    codes = tensors[f"{stem}.{CODES}"]
    for part in (ZEROS, SCALES):
        if f"{stem}.{part}" not in tensors:
            raise _fail(checkpoint, codes, f"is without {quote(f'{stem}.{part}')}")
    if f"{stem}.weight" in tensors:
        raise _fail(checkpoint, codes, f"is beside {quote(stem + '.weight')}: one of them is too many")
    zeros, scales = tensors[f"{stem}.{ZEROS}"], tensors[f"{stem}.{SCALES}"]
    _check(checkpoint, codes, ("I32",), None)
    gptq = packing.method == "gptq"
    cols, rows = codes.shape[0] * (PER_WORD if gptq else 1), codes.shape[1] * (1 if gptq else PER_WORD)
    size = packing.group or cols
    if cols % size:
        raise _fail(checkpoint, codes, f"has {cols} inputs, which are no multiple of groups of {size}")
    if rows % PER_WORD:
        raise _fail(checkpoint, codes, f"has {rows} outputs, no multiple of {PER_WORD}")
    _check(checkpoint, zeros, ("I32",), (cols // size, rows // PER_WORD))
    _check(checkpoint, scales, SCALE_DTYPES, (cols // size, rows))
    groups = np.arange(cols) // size
    order = tensors.get(f"{stem}.{ORDER}")
    if order is None or not gptq:
        if packing.ordered:
            raise _fail(checkpoint, codes, f"is without {quote(f'{stem}.{ORDER}')}, and desc_act is true")
    else:
        groups = _order(checkpoint, packing, order, groups)
    return _Parts(codes, zeros, scales, rows, cols, groups)


def _order(checkpoint: Checkpoint, packing: Packing, order: Stored, plain: np.ndarray) -> np.ndarray:
    """Return the group of each input from a file, checked; ``plain``: their groups without an order."""
    _check(checkpoint, order, ("I32",), plain.shape)
    groups = checkpoint.raw(order.name).view("<i4").astype(np.int64)
    bad = np.flatnonzero((groups < 0) | (groups > plain[-1]))
    if bad.size:
        raise _fail(checkpoint, order, f"puts input {bad[0]} into group {groups[bad[0]]} of {plain[-1] + 1}")
    if not packing.ordered and not np.array_equal(groups, plain):
        raise _fail(checkpoint, order, "has an order, but desc_act is false")
    return groups


def _check(checkpoint: Checkpoint, stored: Stored, dtypes: tuple[str, ...], shape: tuple[int, ...] | None) -> None:
    """Refuse a tensor of another dtype or shape; None: any matrix that is not empty."""
    if stored.dtype not in dtypes:
        raise _fail(checkpoint, stored, f"is {stored.dtype}, wanted {' or '.join(dtypes)}")
    if shape is None and (len(stored.shape) != 2 or 0 in stored.shape):
        raise _fail(checkpoint, stored, f"is of {list(stored.shape)}, wanted a matrix")
    if shape is not None and stored.shape != shape:
        raise _fail(checkpoint, stored, f"is of {list(stored.shape)}, wanted {list(shape)}")


def _fail(checkpoint: Checkpoint, stored: Stored, reason: str) -> ModelFileError:
    return ModelFileError(checkpoint.files[stored.shard].path, f"tensor {quote(stored.name)} {reason}", stored.offset)


def _scales(checkpoint: Checkpoint, scales: Stored) -> np.ndarray:
    """Return scales as float32 (groups, rows)."""
    return FORMATS[scales.dtype].dequantize(checkpoint.raw(scales.name)).reshape(scales.shape)


def _fits_half(checkpoint: Checkpoint, scales: Stored) -> bool:
    values = _scales(checkpoint, scales)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((values.astype(np.float16).astype(np.float32) == values).all())


def _rows(checkpoint: Checkpoint, packing: Packing, parts: _Parts, fmt: str) -> np.ndarray:
    """Return the rows in ``fmt``, uint8, converted some outputs at a time."""
    rows, cols, groups = parts.rows, parts.cols, parts.groups
    words, zero_words = (
        checkpoint.raw(stored.name).view("<u4").reshape(stored.shape) for stored in (parts.codes, parts.zeros)
    )
    awq = packing.method == "awq"
    order = AWQ_ORDER if awq else tuple(range(PER_WORD))
    zeros = _along_outputs(zero_words, order) + np.uint8(packing.above)  # (rows, groups)
    scales = np.ascontiguousarray(_scales(checkpoint, parts.scales).T)
    out = np.empty((rows, FORMATS[fmt].row_bytes(cols)), np.uint8)
    step = max(1, _STEP_WEIGHTS // cols // PER_WORD) * PER_WORD
    for at in range(0, rows, step):
        some = slice(at, at + step)
        if awq:
            codes = _along_outputs(words[:, at // PER_WORD : (at + step) // PER_WORD], order)
        else:
            codes = _along_inputs(words[:, some])
        if fmt == "F32":
            values = codes.astype(np.float32)
            values -= zeros[some].take(groups, axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                values *= scales[some].take(groups, axis=1)
            out[some] = values.astype("<f4", copy=False).view(np.uint8)
        else:
            firsts = groups[::BLOCK]
            out[some] = _blocks(fmt, codes, zeros[some].take(firsts, axis=1), scales[some].take(firsts, axis=1))
    return out.reshape(-1)


def _along_inputs(words: np.ndarray) -> np.ndarray:
    """Unpack words of eight inputs: (in / 8, out) -> uint8 (out, in)."""
    pairs = np.ascontiguousarray(words.T, "<u4").view(np.uint8)
    out = np.empty((*pairs.shape, 2), np.uint8)
    out[..., 0] = pairs & 15
    out[..., 1] = pairs >> 4
    return out.reshape(len(pairs), -1)


def _along_outputs(words: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Unpack words of eight outputs, nibble i being output ``order[i]``: (n, out / 8) -> uint8 (out, n)."""
    words = np.ascontiguousarray(words.T)
    out = np.empty((len(words), PER_WORD, words.shape[1]), np.uint8)
    for i, place in enumerate(order):
        out[:, place] = words >> 4 * i & 15
    return out.reshape(-1, words.shape[1])


def _blocks(fmt: str, codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return rows of Q4_0 or Q5_0: codes uint8 (rows, cols), zero points and scales (rows, cols / 32) of blocks."""
    out = np.empty(scales.shape, FORMATS[fmt].layout)
    out["d"] = scales
    codes = codes.reshape(*scales.shape, BLOCK)
    if fmt == "Q5_0":
        codes = codes + (16 - zeros)[..., None]
        out["qh"] = np.packbits(codes >> 4, axis=-1, bitorder="little")
        codes &= 15
    out["qs"] = codes[..., :16] | codes[..., 16:] << 4
    return out.view(np.uint8)
