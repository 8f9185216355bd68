"""Model files that a conversion got wrong: good containers whose contents are not what their names say.

A wrong file is as common as a wrong engine. Each of these loads without complaint; only what the model says tells.

    changed = write_bad(good, target, BAD["gate_up_swapped"])      names of the tensors and keys that differ
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ds4ref.kernels.formats import FORMATS
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import TensorSpec, write_gguf


@dataclass
class Stored:
    """One tensor: its format, dims in ggml order, and its bytes as rows (rows, bytes of a row)."""

    fmt: str
    dims: tuple[int, ...]
    rows: np.ndarray

    @property
    def blocks(self) -> np.ndarray:
        """The rows as records of the format's layout, or as plain numbers; a view to write through."""
        plain = {"F32": "<f4", "F16": "<f2", "I32": "<i4"}
        return self.rows.view(np.dtype(plain.get(self.fmt, FORMATS[self.fmt].layout)))

    @property
    def experts(self) -> np.ndarray:
        """Rows by their slowest dimension, (experts, rows, bytes)."""
        return self.rows.reshape(self.dims[-1], -1, self.rows.shape[-1])


class Draft:
    """A file's contents, to be changed in place."""

    def __init__(self, path: str | os.PathLike[str]):
        with GGUFFile.open(path) as file:
            self.metadata = [[key, file.metadata.type_of(key), file.metadata[key]] for key in file.metadata]
            self.tensors = {
                t.name: Stored(t.fmt.name, t.dims, file.raw(t.name).reshape(-1, t.fmt.row_bytes(t.dims[0])).copy())
                for t in file.tensors.values()
            }
        self.prefix = next(value for key, _, value in self.metadata if key == "general.architecture") + "."
        self.layers: int = self["block_count"]

    def __getitem__(self, key: str) -> Any:
        """The value of a key of the file's family."""
        return next(value for name, _, value in self.metadata if name == self.prefix + key)

    def set(self, key: str, value: Any) -> None:
        """Another value under a key of the file's family."""
        entry = next(entry for entry in self.metadata if entry[0] == self.prefix + key)
        entry[2] = value

    def where(self, role: str, layer: int | None = None) -> list[str]:
        """Names of the tensors ``blk.N.ROLE.weight`` in all layers that have one, or in one."""
        layers = range(self.layers) if layer is None else [layer]
        return [name for n in layers if (name := f"blk.{n}.{role}.weight") in self.tensors]

    def every(self, role: str, layer: int | None = None) -> list[Stored]:
        """The tensors of ``where``; ValueError if this file has none."""
        found = [self.tensors[name] for name in self.where(role, layer)]
        if not found:
            raise ValueError(f"no tensor {role} in this file")
        return found

    def exchange(self, first: str, second: str) -> None:
        """Two tensors under each other's names."""
        one, other = self.tensors[first], self.tensors[second]
        if one.dims != other.dims:
            raise ValueError(f"{first} {one.dims} and {second} {other.dims} do not go into each other's place")
        self.tensors[first], self.tensors[second] = other, one

    def write(self, target: str | os.PathLike[str]) -> None:
        """As a file."""
        specs = [TensorSpec(name, tensor.fmt, tensor.dims) for name, tensor in self.tensors.items()]
        with write_gguf(target, [(key, kind, value) for key, kind, value in self.metadata], specs) as out:
            for name, tensor in self.tensors.items():
                out.write(name, tensor.rows)


@dataclass(frozen=True)
class BadFile:
    """One way to get a file wrong: ``change`` with its ``arguments``."""

    name: str
    says: str
    change: Callable[..., None]
    arguments: tuple[Any, ...] = ()


def write_bad(source: str | os.PathLike[str], target: str | os.PathLike[str], bad: BadFile) -> list[str]:
    """A wrong copy of ``source``; returns the names of tensors and keys that differ. ValueError if it cannot be."""
    good, draft = Draft(source), Draft(source)
    bad.change(draft, *bad.arguments)
    draft.write(target)
    found = [key for (key, _, old), (_, _, new) in zip(good.metadata, draft.metadata, strict=True) if old != new]
    for name, tensor in good.tensors.items():
        other = draft.tensors[name]
        if other.fmt != tensor.fmt or not np.array_equal(other.rows, tensor.rows):
            found.append(name)
    if not found:
        raise ValueError(f"{bad.name} changes nothing in {os.fspath(source)}")
    return found


# --- names exchanged


def _roles(draft: Draft, *pairs: tuple[str, str]) -> None:
    for one, other in pairs:
        draft.every(one)
        for n in range(draft.layers):
            if draft.where(one, n):
                draft.exchange(f"blk.{n}.{one}.weight", f"blk.{n}.{other}.weight")


def _alike(draft: Draft) -> tuple[int, int]:
    """The last two layers with the same tensors."""

    def kind(n: int) -> dict[str, tuple[int, ...]]:
        start = f"blk.{n}."
        return {name[len(start) :]: t.dims for name, t in draft.tensors.items() if name.startswith(start)}

    pairs = [(a, b) for a, b in combinations(range(draft.layers), 2) if kind(a) == kind(b)]
    if not pairs:
        raise ValueError("no two layers of this file are alike")
    return pairs[-1]


def _layers_exchanged(draft: Draft) -> None:
    a, b = _alike(draft)
    for name in [name for name in draft.tensors if name.startswith(f"blk.{a}.")]:
        draft.exchange(name, name.replace(f"blk.{a}.", f"blk.{b}.", 1))


def _wrong_layer(draft: Draft, role: str) -> None:
    """The last layer's tensor once more in the place of the one before it that has the same dims."""
    pairs = [(a, b) for a, b in combinations(draft.where(role), 2) if draft.tensors[a].dims == draft.tensors[b].dims]
    if not pairs:
        raise ValueError(f"no two layers have the same {role}")
    before, last = max(pairs, key=lambda pair: (draft.where(role).index(pair[1]), draft.where(role).index(pair[0])))
    draft.tensors[before] = draft.tensors[last]


# --- rows in another order


def _pairs_apart(draft: Draft, *roles: str) -> None:
    """Rows of each head with the rotary ones de-interleaved, as a conversion for half-split rope does."""
    rotary, head = draft["rope.dimension_count"], draft["attention.key_length"]
    order = np.arange(head)
    order[-rotary:] = order[-rotary:].reshape(-1, 2).T.ravel()
    for tensor in (tensor for role in roles for tensor in draft.every(role)):
        heads = len(tensor.rows) // head
        tensor.rows = tensor.rows[(np.arange(heads)[:, None] * head + order).ravel()]


def _compressor_halves(draft: Draft) -> None:
    for n, ratio in enumerate(draft["attention.compress_ratios"][: draft.layers]):
        for role in ("attn_compressor_kv", "attn_compressor_gate") if ratio == 4 else ():
            tensor = draft.every(role, n)[0]
            tensor.rows = np.roll(tensor.rows, len(tensor.rows) // 2, axis=0)


def _interleaved(draft: Draft) -> None:
    """A fused gate|up matrix taken apart by even and odd rows instead of by halves."""
    for gate, up in zip(draft.every("ffn_gate_exps"), draft.every("ffn_up_exps"), strict=True):
        fused = np.concatenate((gate.experts, up.experts), axis=1)
        gate.rows, up.rows = (fused[:, i::2].reshape(gate.rows.shape).copy() for i in (0, 1))


def _experts_rolled(draft: Draft, role: str) -> None:
    for tensor in draft.every(role):
        tensor.rows = np.roll(tensor.experts, 1, axis=0).reshape(tensor.rows.shape)


def _table_transposed(draft: Draft) -> None:
    for tensor in draft.every("ffn_gate_tid2eid"):
        tensor.rows = tensor.blocks.T.ravel().reshape(tensor.blocks.shape).copy().view(np.uint8)


def _top_rotated(draft: Draft, name: str) -> None:
    draft.tensors[name].rows = np.roll(draft.tensors[name].rows, 1, axis=0)


# --- values


def _scaled(draft: Draft, role: str, factor: float, layer: int, expert: int | None = None) -> None:
    """Block scales of one matrix, or of one expert of it."""
    tensor = draft.every(role, layer)[0]
    blocks = tensor.blocks
    if expert is not None:
        rows = len(tensor.rows) // tensor.dims[-1]
        blocks = blocks[expert * rows : (expert + 1) * rows]
    for field in {"d", "dmin"} & set(blocks.dtype.names or ()):
        blocks[field] = (blocks[field].astype(np.float32) * factor).astype("<f2")


def _values(draft: Draft, ending: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Plain numbers of every tensor with this end of its name through ``change``."""
    for name, tensor in draft.tensors.items():
        if name.endswith(ending):
            tensor.blocks[:] = change(tensor.blocks)


def _tail_missing(draft: Draft, role: str) -> None:
    """The last quarter of the last such tensor never arrived: zeros, as a download with holes leaves."""
    tensor = draft.every(role)[-1]
    tensor.rows[-(len(tensor.rows) // 4) :] = 0


# --- metadata


def _key(draft: Draft, key: str, change: Callable[[Any], Any]) -> None:
    draft.set(key, change(draft[key]))


def _one_expert_fewer(draft: Draft) -> None:
    """The count and, as the loaders check them, the columns of the hash layers' tables."""
    used = draft["expert_used_count"] - 1
    draft.set("expert_used_count", used)
    for name in draft.where("ffn_gate_tid2eid"):
        tensor = draft.tensors[name]
        kept = np.ascontiguousarray(tensor.blocks[:, :used]).view(np.uint8)
        draft.tensors[name] = Stored(tensor.fmt, (used, *tensor.dims[1:]), kept)


_LIST = [
    # names exchanged
    BadFile("gate_up_swapped", "routed experts: gate and up exchanged", _roles, (("ffn_gate_exps", "ffn_up_exps"),)),
    BadFile("norms_swapped", "attn_norm and ffn_norm exchanged", _roles, (("attn_norm", "ffn_norm"),)),
    BadFile("mixings_swapped", "hyper-connections of the two halves exchanged", _roles,
            tuple((f"hc_attn_{part}", f"hc_ffn_{part}") for part in ("fn", "base", "scale"))),
    BadFile("compressor_swapped", "compressor: values and gate exchanged", _roles,
            (("attn_compressor_kv", "attn_compressor_gate"),)),
    BadFile("layers_exchanged", "two layers of one kind exchanged", _layers_exchanged),
    *(
        BadFile(f"{role}_wrong_layer", f"{role} of one layer is that of another", _wrong_layer, (role,))
        for role in ("attn_sinks", "attn_output_b", "ffn_up_exps", "attn_compressor_ape", "hc_ffn_scale")
    ),
    # rows in another order
    BadFile("rope_rows_both", "query and key-value rows ordered for half-split rope", _pairs_apart,
            ("attn_q_b", "attn_kv")),
    BadFile("compressor_halves", "ratio 4: halves of the compressor's rows exchanged", _compressor_halves),
    BadFile("gate_up_interleaved", "fused gate|up taken apart by even and odd rows", _interleaved),
    BadFile("experts_rolled", "routed experts: gate matrices off by one expert", _experts_rolled, ("ffn_gate_exps",)),
    BadFile("hash_table_transposed", "routing table of the hash layers read in the other order", _table_transposed),
    BadFile("output_rolled", "output matrix off by one row", _top_rotated, ("output.weight",)),
    # values
    BadFile("q8_scale", "scales of one Q8_0 matrix x 1.1", _scaled, ("attn_output_b", 1.1, 1)),
    BadFile("expert_scale", "scales of one expert x 1.1", _scaled, ("ffn_down_exps", 1.1, 3, 2)),
    BadFile("ape_zero", "compressor position biases 0", _values, (".attn_compressor_ape.weight", np.zeros_like)),
    BadFile("bias_negated", "selection bias of the router with the other sign", _values,
            ("exp_probs_b.bias", np.negative)),
    BadFile("norm_minus_one", "key-value norm stored as weight - 1", _values,
            (".attn_kv_a_norm.weight", lambda w: w - 1)),
    BadFile("tail_missing", "the last quarter of one matrix is 0", _tail_missing, ("ffn_up_exps",)),
    # metadata
    BadFile("freq_base", "rope base x 10", _key, ("rope.freq_base", lambda base: base * 10)),
    BadFile("yarn_factor", "YaRN factor 4", _key, ("rope.scaling.factor", lambda _: 4.0)),
    BadFile("original_context", "YaRN original context 4096", _key,
            ("rope.scaling.original_context_length", lambda _: 4096)),
    BadFile("window", "sliding window + 8", _key, ("attention.sliding_window", lambda n: n + 8)),
    BadFile("expert_used", "one expert fewer", _one_expert_fewer),
    BadFile("route_scale_1", "route scale 1", _key, ("expert_weights_scale", lambda _: 1.0)),
    BadFile("clamp_one_layer", "expert clamp 7 in the first layer", _key,
            ("swiglu_clamp_exp", lambda limits: [7.0, *limits[1:]])),
]  # fmt: skip

BAD = {bad.name: bad for bad in _LIST}
"""All of them by name."""
