"""Dimensions and constants of a DeepSeek V4 model, read from metadata and checked.

``ModelShape.from_metadata`` accepts any consistent dimensions, so that tiny models can test the code that runs the real
ones. ``check_published`` also checks that they are those of DeepSeek V4 Flash, Vision-Exp or Pro, and names the keys
that differ (docs/explanation/model.md 2.1; where Pro's values are from: docs/explanation/pro.md). Integer keys must be
stored as u32, as in ds4.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...weights.accounting import inert
from ...weights.source import DEEPSEEK
from ..keys import EMBEDDING, MERGES_KEY, TOKENS_KEY, check
from . import dimensions
from .dimensions import FLOATS, INTS, U32, DimensionKeys, Dimensions, differences, inert_keys, keys_of, matches

if TYPE_CHECKING:
    from ...weights.source import TensorSource

ARCHITECTURE = DEEPSEEK
PREFIX = ARCHITECTURE + "."
PLAIN, CSA, HCA = RATIOS = (0, 4, 128)
"""Compression ratios of layers, in tokens per compressed row; CSA and HCA are the names in DeepSeek's report.

PLAIN: no compression. CSA (compressed sparse attention): windows overlap, and an indexer selects the rows that a token
attends to. HCA (heavily compressed attention): a token attends to all rows.
"""

_LEAST = {"dim": 256, "q_rank": 32, "expert_ff": 256}
_COMMON = tuple((field, key, _LEAST.get(field, low), high) for field, key, low, high in INTS)
_INTS = (*_COMMON[:13], ("n_hash_layers", "hash_layer_count", 0, 1024), *_COMMON[13:])
KEYS = keys_of(PREFIX, _INTS, FLOATS)
"""Field of ``ModelShape`` -> metadata key."""
CONSTANTS = (*dimensions.CONSTANTS, "swiglu_limit")
"""Fields that no tensor's dimensions depend on, so a wrong value would otherwise go unnoticed."""


class _Keys(DimensionKeys):
    """Reads the metadata keys of this family."""

    def values(self, kind: type[Dimensions]) -> dict[str, Any]:
        values = super().values(kind)
        for key in ("expert_group_count", "expert_group_used_count"):
            if self.has(key):
                self.expect(key, 0)
        shared = "swiglu_clamp_shexp"  # of the shared expert: the same here
        if self.has(shared) and self.limits(shared, min(values["n_layers"], 1024)) != values["swiglu_limit"]:
            self.faults.setdefault(PREFIX + shared, f"{PREFIX}{shared} differs from swiglu_clamp_exp")
        return values

    def integer(self, field: str, key: str) -> int:
        """Return an integer. The last blocks may be no layers, but for multi-token prediction, which llama.cpp appends
        to the layers: they do not count. Without their tensors, the key of their number is ignored.

        A vocabulary that is declared may exceed the number of tokens in the file. If it is not (llama.cpp's converter),
        it is the number of rows of the embedding, which must equal the number of tokens.
        """
        if field == "vocab" and PREFIX + key not in self.metadata:
            return self._rows(PREFIX + key)
        value, more = super().integer(field, key), "nextn_predict_layers"
        count = self.typed(more, U32, 0) if field == "n_layers" and self.has(more) else 0
        return value - count if count and f"blk.{value - count}.nextn.eh_proj.weight" in self.source.tensors else value

    def _rows(self, key: str) -> int:
        info, listed = self.source.tensors.get(EMBEDDING), self.listed()
        if info is None or len(info.dims) != 2:
            self.faults[key] = f"{key} is missing, and {EMBEDDING} " + ("too" if info is None else "is no matrix")
            return 0
        rows: int = info.dims[1]
        if listed not in (None, rows):
            self.faults[key] = f"{key} is missing, {TOKENS_KEY} has {listed} tokens and {EMBEDDING} {rows} rows"
        return rows


@dataclass(frozen=True, kw_only=True)
class ModelShape(Dimensions):
    """All dimensions and constants of a model; ``KEYS`` names the metadata key of each field."""

    payload_magic: ClassVar[int] = 0x34565344
    """First word of saved sessions: "DSV4"."""
    gate_temp: ClassVar[float] = 1.0
    """Temperature of the router's logits."""
    prefix, ints, floats, ratio_kinds, reader = PREFIX, _INTS, FLOATS, RATIOS, _Keys
    no_effect = inert_keys(
        PREFIX,
        inert("which checkpoint it is", PREFIX + "checkpoint_variant"),
        inert("every layer has experts", PREFIX + "leading_dense_block_count", 0),
        inert("how the file was made", PREFIX + "rope.scaling.finetuned"),
    )

    def part(self, layers: range) -> ModelShape:
        """Return the shape of a model that consists only of the given consecutive layers, renumbered from 0."""
        of_layers = slice(layers.start, layers.stop)
        hashed = min(max(self.n_hash_layers - layers.start, 0), len(layers))
        return replace(
            self, n_layers=len(layers), n_hash_layers=hashed, ratios=self.ratios[of_layers],
            swiglu_limit=self.swiglu_limit[of_layers],
        )  # fmt: skip

    def _own_rules(self) -> Iterable[tuple[str, bool]]:
        plain, index = self.plain_dim, self.index_dim
        return (
            (f"embedding_length {self.dim} is not a multiple of 256", self.dim % 256 != 0),
            (f"expert_feed_forward_length {self.expert_ff} is not a multiple of 256", self.expert_ff % 256 != 0),
            (f"key_length {self.head_dim} must exceed rope.dimension_count {self.rope_dim} by a multiple of 64",
             plain <= 0 or plain % 64 != 0),
            (f"q_lora_rank {self.q_rank} is not a multiple of 32", self.q_rank % 32 != 0),
            (f"{self.n_heads} heads of {self.head_dim} do not split into {self.o_groups} groups of whole 32-blocks",
             self.n_heads * self.head_dim % (32 * self.o_groups) != 0),
            (f"{self.o_groups} groups x output_lora_rank {self.o_rank} is not a multiple of 32",
             self.o_groups * self.o_rank % 32 != 0),
            (f"{self.n_hash_layers} hash layers of only {self.n_layers}", self.n_hash_layers > self.n_layers),
            (f"indexer.key_length {index} is not a power of two", index & (index - 1) != 0),
            (f"indexer.key_length equals key_length {self.head_dim}", index == self.head_dim),
        )  # fmt: skip

    @property
    def plain_dim(self) -> int:
        """Return the number of channels of an attention row that rope does not rotate."""
        return self.head_dim - self.rope_dim

    # --- caches: which layers make compressed rows, how wide, and what they keep until a row is complete

    @property
    def row_unit(self) -> int:
        """Return the smallest number of tokens per compressed row, 0 if there are none."""
        return min((ratio for ratio in self.ratios if ratio), default=0)

    def row_widths(self, layer: int) -> dict[str, int]:
        """Return the width of each kind of compressed row that a layer makes: "attn" and, for ratio 4, "indexer"."""
        widths = {"attn": self.head_dim, "indexer": self.index_dim}
        return {kind: widths[kind] for kind in self.ring_widths(layer)}

    def ring_widths(self, layer: int) -> dict[str, int]:
        """Return the width of each compressor's projection of a token, which is kept until its row is complete."""
        widths = {"attn": self.comp_width(layer)} if self.ratios[layer] else {}
        return widths | ({"indexer": 2 * self.index_dim} if self.ratios[layer] == CSA else {})

    def rows_from(self, layer: int) -> int:
        """Return the layer whose compressed rows a layer reads: its own."""
        return layer

    def overlap(self, layer: int) -> int:
        """Return how many tokens before its own window a compressed row pools: a window of ratio 4 overlaps the one
        before."""
        return CSA if self.ratios[layer] == CSA else 0

    def comp_width(self, layer: int) -> int:
        """Return the width of the projection of a layer's attention compressor (model.md 6): twice head_dim for ratio
        4, head_dim for ratio 128, 0 without compression."""
        return {PLAIN: 0, CSA: 2 * self.head_dim, HCA: self.head_dim}[self.ratios[layer]]

    def state_rows(self, layer: int) -> int:
        """Return the number of tokens whose projections a layer's compressor keeps for incomplete windows: 8 for ratio
        4 (previous and current window), 128 for ratio 128 (current window), 0 without compression."""
        return {PLAIN: 0, CSA: 2 * CSA, HCA: HCA}[self.ratios[layer]]

    def cache_rows(self, ctx: int) -> tuple[int, int]:
        """Return the number of uncompressed cache rows of a layer in a context of ``ctx`` tokens, and that of
        compressed rows of a layer of ratio 4."""
        return min(self.window, ctx), ctx // CSA + 2

    @property
    def indexed_ratios(self) -> Collection[int]:
        """Return the ratios of the layers that have an indexer."""
        return {CSA} & {*self.ratios}

    def rows_read(self, tokens: int) -> tuple[int, int]:
        """Return how many attention rows one token reads after ``tokens`` tokens, and how many indexer rows."""
        rows, keys = self.n_layers * min(tokens, self.window), 0
        for ratio in self.ratios:
            stored = tokens // ratio if ratio else 0
            rows += min(stored, self.index_topk) if ratio == CSA else stored
            keys += stored if ratio == CSA and stored > self.index_topk else 0
        return rows, keys


_SCHEDULE = (PLAIN, PLAIN) + (CSA, HCA) * 20 + (CSA,)

FLASH = ModelShape(
    n_layers=43, dim=4096, vocab=129280, n_heads=64, head_dim=512, rope_dim=64, q_rank=1024, o_rank=1024, o_groups=8,
    n_experts=256, n_used=6, expert_ff=2048, n_shared=1, n_hash_layers=3, window=128, index_heads=64, index_dim=128,
    index_topk=512, hc=4, sinkhorn_iters=20, ratios=_SCHEDULE, swiglu_limit=(10.0,) * 43, rope_theta=10000.0,
    compress_theta=160000.0, yarn_factor=16.0, yarn_beta_fast=32.0, yarn_beta_slow=1.0, yarn_orig_ctx=65536,
    route_scale=1.5, rms_eps=1e-6, hc_eps=1e-6, norm_weights=True, name="DeepSeek V4 Flash",
)  # fmt: skip


PRO = replace(
    FLASH, n_layers=61, dim=7168, n_heads=128, q_rank=1536, o_groups=16, n_experts=384, expert_ff=3072, index_topk=1024,
    ratios=(HCA, HCA) + (CSA, HCA) * 29 + (CSA,), swiglu_limit=(10.0,) * 61, route_scale=2.5, name="DeepSeek V4 Pro",
)  # fmt: skip
"""Number of layers, width, number of experts and their width are those that ds4 states for its files. All other values
are assumed, from quotations of DeepSeek's config.json; they fit the published sizes (docs/explanation/pro.md)."""

PUBLISHED = {"flash": FLASH, "pro": PRO}
"""Published models by the name that ``--shape`` takes."""
VISION_EXP = replace(FLASH, rms_eps=1e-20, name=f"{FLASH.name} Vision-Exp")


def nearest(shape: ModelShape) -> ModelShape:
    """Return the shape of the published model that has the same width as ``shape``, Flash if none has."""
    if shape.dim == FLASH.dim and matches(shape.rms_eps, VISION_EXP.rms_eps):
        return VISION_EXP
    return next((model for model in PUBLISHED.values() if model.dim == shape.dim), FLASH)


def check_published(source: TensorSource) -> ModelShape:
    """Return the shape of ``source`` if it is exactly that of a published model; else raise ShapeError naming the keys
    that differ from the nearest one, with both values. (ds4 allows 1e-6 absolute, so it accepts any small epsilon.)"""
    reader = _Keys(source, PREFIX)
    shape = ModelShape(**reader.values(ModelShape))
    model = nearest(shape)
    different = differences(shape, model, KEYS, KEYS).items()
    problems = list(reader.faults.values())
    problems += [f"{key} is {got}, wanted {want}" for key, (got, want) in different if key not in reader.faults]
    for key in (TOKENS_KEY, MERGES_KEY):
        kind = source.metadata.type_of(key)
        if kind is None:
            problems.append(f"{key} is missing")
        elif kind != "string[]" and key not in reader.faults:
            problems.append(f"{key} has type {kind}, wanted string[]")
    check(source, problems, f"not {model.name}: ")
    return shape


def unlike_published(shape: ModelShape) -> dict[str, tuple[str, str]]:
    """Return the constants that differ from those of the nearest published model: metadata key -> (value, value of the
    published model), as text."""
    ours, model = (replace(s, swiglu_limit=tuple(sorted({*s.swiglu_limit}))) for s in (shape, nearest(shape)))
    return differences(ours, model, CONSTANTS, KEYS)
