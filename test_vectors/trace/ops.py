"""The graph of the pass: for every point its input points, formula, weight tensors and section of model.md (ops.toml).

A *point* is a named intermediate (``ds4ref.archs.deepseek4.hooks``). If some points were not dumped, an error can only
be located in a span of ops that begins at the nearest dumped points upstream.

    Graph(shape).span(("Qcur", 3), {("attn_norm", 3)})  ->  q_lora, q_lora_norm, Qraw, Qnorm, rope_tables, Qcur
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any

import msgspec

BEFORE = "<"
"""Prefix of an input that is a point of the previous layer."""


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one point (named intermediate) is computed.

    inputs   points it is computed from; a name prefixed with BEFORE is a point of the previous layer; of names with |
             between them, the first that the layer has
    formula  formula in the notation of docs/explanation/model.md
    section  heading in docs/explanation/``page``
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
    page: str = "model.md"


def _read(file: str) -> dict[str, Op]:
    return msgspec.toml.decode(resources.files(__package__).joinpath(file).read_bytes(), type=dict[str, Op])


OPS = _read("ops.toml")
"""Every point of the pass by name, in the order in which a layer reaches them: V4's formulas, and points that only V4.1
has."""
LATER = OPS | _read("ops41.toml")
"""The same with V4.1's formulas."""

HEAD_POINTS = frozenset(name for name in OPS if name.startswith("result_"))
CHOICES = {"ffn_moe_topk": "experts", "indexer_topk": "rows", "candidates": "blocks"}
"""Points that hold ids of what a top-k chose; compared as sets, and another choice between near ties is not wrong."""

STORED = {"KVcur", "KVcompress", "indexer_KVcompress"}
"""Points that are stored in the KV cache; an engine may dump them before or after rounding them to the cache format."""

Key = tuple[str, int]
"""Point and layer; the layer of the head's points is -1."""


class Graph:
    """Which points are computed from which, in a model of one shape.

    shape  the model's; a number: that of the layers of a V4 model
    """

    def __init__(self, shape: Any):
        self.n_layers: int = getattr(shape, "n_layers", shape)
        self.later = shape if hasattr(shape, "kv_sources") else None
        """The shape of a V4.1 model."""
        self.ops = OPS if self.later is None else LATER

    def entering(self, layer: int) -> dict[str, str]:
        """Return the points at which a layer's input can be set -> points of the layer before that are the same."""
        if self.later is None:
            return {"hc_attn_in": "hc_ffn_post"}
        streams = "engram_in" if layer in self.later.engram_layers else "hc_attn_in"
        return {streams: "hc_ffn_post", "hc_attn_read": "hc_ffn_pre_weights"}

    def shared(self, layer: int) -> dict[str, int]:
        """Return the points of earlier layers that a layer of V4.1 reads -> these layers."""
        s = self.later
        if s is None or layer < 0 or not s.ratios[layer]:
            return {}
        source = {} if s.candidate_source is None else {"candidates": min(layer, s.candidate_source)}
        rows, chosen = s.kv_source[layer], s.index_source[layer]
        return {"KVcompress": rows, "indexer_KVcompress": rows, "indexer_topk": chosen} | source

    def upstream(self, key: Key, reached: Collection[Key] | None = None) -> list[Key]:
        """Return the points that ``key`` is directly computed from; ``reached`` as in ``span``."""
        name, layer = key
        keys, shared = [], self.shared(layer)
        for source in self.ops[name].inputs:
            several = [self._at(each, name, layer, shared) for each in source.split("|")]
            known = [each for each in several if each is not None and (reached is None or each in reached)]
            keys += known[:1] if reached is not None else known[-1:]
        return keys

    def _at(self, source: str, name: str, layer: int, shared: Mapping[str, int]) -> Key | None:
        if not source.startswith(BEFORE):
            return source, shared.get(source, layer)
        return None if layer == 0 else (source[1:], (self.n_layers if name in HEAD_POINTS else layer) - 1)

    def span(
        self, key: Key, dumped: Collection[Key], reached: Collection[Key] | None = None
    ) -> tuple[list[Key], list[Key]]:
        """Return (nearest dumped points upstream of ``key``, undumped points between them and ``key``, and ``key``
        itself).

        Both are in the order of the pass. ``reached``: points that this pass computes, as not every layer has all
        (None: all of them).
        """
        start: set[Key] = set()
        bridged: set[Key] = {key}
        waiting = [key]
        while waiting:
            for source in self.upstream(waiting.pop(), reached):
                if source in dumped:
                    start.add(source)
                elif source not in bridged:
                    bridged.add(source)
                    waiting.append(source)
        return self.ordered(start), self.ordered(bridged)

    def ordered(self, keys: Collection[Key]) -> list[Key]:
        """Sort keys in the order of the pass."""
        rank = {name: i for i, name in enumerate(OPS)}
        return sorted(keys, key=lambda key: (self.n_layers if key[1] < 0 else key[1], rank[key[0]]))


def anchor(op: Op) -> str:
    """Return a link to the heading of an op, with the anchor as GitHub forms it."""
    slug = "".join(c for c in op.section.lower() if c.isalnum() or c in " -")
    return f"docs/explanation/{op.page}#" + slug.replace(" ", "-")


def describe_point(key: Key) -> str:
    """Return a point's name for the report: "Qcur of layer 3"."""
    name, layer = key
    return f"{name} of the head" if layer < 0 else f"{name} of layer {layer}"
