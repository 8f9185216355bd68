"""The graph of the pass: for every point its input points, formula, weight tensors and section of model.md (ops.toml).

A *point* is a named intermediate (``ds4ref.archs.deepseek4.hooks``). If some points were not dumped, an error can only
be located in a span of ops that begins at the nearest dumped points upstream.

    span(("Qcur", 3), {("attn_norm", 3)}, ...)  ->  q_lora, q_lora_norm, Qraw, Qnorm, rope_tables, Qcur
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources

import msgspec

BEFORE = "<"
"""Prefix of an input that is a point of the previous layer."""


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one point (named intermediate) is computed.

    inputs   points it is computed from; a name prefixed with BEFORE is a point of the previous layer
    formula  formula in the notation of docs/explanation/model.md
    section  heading in docs/explanation/model.md
    axes     one letter per axis: T token, N compressed cache row, W place in a window, H head, S slot (n-th chosen
             expert), E expert, C residual stream (hyper-connections), K source stream, R cache row that is scored,
             F channel
    tensors  weights it uses, as the file's names without "blk.N." and ".weight"
    carried  inputs of which the values at earlier tokens are read, too
    """

    inputs: tuple[str, ...]
    formula: str
    section: str
    axes: str
    tensors: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()


OPS = msgspec.toml.decode(resources.files(__package__).joinpath("ops.toml").read_bytes(), type=dict[str, Op])
"""Every point of the pass by name, in the order in which a layer reaches them."""

HEAD_POINTS = frozenset(name for name in OPS if name.startswith("result_"))
CHOICES = {"ffn_moe_topk": "experts", "indexer_topk": "rows"}
"""Points that hold ids of what a top-k chose; compared as sets, and another choice between near ties is not wrong."""

STORED = {"KVcur", "KVcompress", "indexer_KVcompress"}
"""Points that are stored in the KV cache; an engine may dump them before or after rounding them to the cache format."""

Key = tuple[str, int]
"""Point and layer; the layer of the head's points is -1."""


def upstream(key: Key, n_layers: int) -> list[Key]:
    """Return the points that ``key`` is directly computed from."""
    name, layer = key
    keys = []
    for source in OPS[name].inputs:
        if not source.startswith(BEFORE):
            keys.append((source, layer))
        elif layer != 0:
            keys.append((source[len(BEFORE) :], (n_layers if name in HEAD_POINTS else layer) - 1))
    return keys


def span(
    key: Key, dumped: Collection[Key], n_layers: int, reached: Collection[Key] | None = None
) -> tuple[list[Key], list[Key]]:
    """Return (nearest dumped points upstream of ``key``, undumped points between them and ``key``, and ``key`` itself).

    Both are in the order of the pass. ``reached``: points that this pass computes, as not every layer has all (None:
    all of them).
    """
    start: set[Key] = set()
    bridged: set[Key] = {key}
    waiting = [key]
    while waiting:
        for source in upstream(waiting.pop(), n_layers):
            if reached is not None and source not in reached:
                continue
            if source in dumped:
                start.add(source)
            elif source not in bridged:
                bridged.add(source)
                waiting.append(source)
    return ordered(start, n_layers), ordered(bridged, n_layers)


def ordered(keys: Collection[Key], n_layers: int) -> list[Key]:
    """Sort keys in the order of the pass."""
    rank = {name: i for i, name in enumerate(OPS)}
    return sorted(keys, key=lambda key: (n_layers if key[1] < 0 else key[1], rank[key[0]]))


def anchor(section: str) -> str:
    """Return a link to the heading ``section`` of docs/explanation/model.md, with the anchor as GitHub forms it."""
    slug = "".join(c for c in section.lower() if c.isalnum() or c in " -")
    return "docs/explanation/model.md#" + slug.replace(" ", "-")


def describe_point(key: Key) -> str:
    """Return a point's name for the report: "Qcur of layer 3"."""
    name, layer = key
    return f"{name} of the head" if layer < 0 else f"{name} of layer {layer}"
