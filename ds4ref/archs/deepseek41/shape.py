"""Dimensions and constants of a DeepSeek V4.1 model, read from metadata and checked.

``ModelShape.from_metadata`` accepts any consistent dimensions, so that tiny models can test the code that runs the real
ones; ``FLASH`` are the published ones. Metadata keys are those of a GGUF file of the family (``deepseek41.*``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from ...weights.accounting import inert
from ...weights.cursor import quote
from ..deepseek4 import dimensions
from ..deepseek4.dimensions import FLOATS, INTS, DimensionKeys, Dimensions, differences, inert_keys, keys_of

ARCHITECTURE = "deepseek41"
PREFIX = ARCHITECTURE + "."
PLAIN, JOINT, PAIRS = RATIOS = (0, 1, 2)
"""Compression ratios of layers, in tokens per compressed row; PLAIN: the layer reads no compressed rows."""

_LEAST = {"head_dim": 32}
_INTS = (
    *((field, key, _LEAST.get(field, low), high) for field, key, low, high in INTS),
    ("candidate_blocks", "attention.candidate_topk_blocks", 0, 1 << 20),
    ("candidate_size", "attention.candidate_block_size", 1, 1 << 10),
    ("engram_grams", "engram.max_ngram_size", 2, 16),
    ("engram_heads", "engram.head_count", 0, 256),
    ("engram_dim", "engram.head_length", 0, 1 << 14),
    ("engram_vocab", "engram.compressed_vocab_size", 0, 1 << 20),
    ("engram_pad", "engram.pad_id", 0, 1 << 20),
)
_FLOATS = (*FLOATS, ("gate_temp", "expert_gate_temperature", 0.0, 1e6))

# (field, key)
_LISTS = (
    ("kv_sources", "attention.kv_source_layer_ids"),
    ("index_sources", "attention.index_source_layer_ids"),
    ("engram_layers", "engram.layer_ids"),
    ("engram_rows", "engram.rows"),
)
_CANDIDATES = ("candidate_source", "attention.candidate_source_layer_id")
TABLE_KEYS = ("engram.token_map", "engram.primes", "engram.multipliers")
"""Arrays that Engram's hash needs (``hashing.Hashing``): read when the weights are bound."""

_ENCODING_KEY, ENCODING = "engram.encoding", "e4m3_e8m0_32_row264"
"""How ds4's files store rows of Engram tables, and the only way that is read: ``tensors.ROW264``."""
ROW_WEIGHTS = 256

KEYS = keys_of(PREFIX, _INTS, _FLOATS, _LISTS, (_CANDIDATES,))
"""Field of ``ModelShape`` -> metadata key."""
CONSTANTS = (*dimensions.CONSTANTS, "candidate_blocks", "candidate_size", "gate_temp")
"""Fields that no tensor's dimensions depend on, so a wrong value would otherwise go unnoticed."""
_ARRAYS = ("i32[]", "u32[]", "i64[]", "u64[]")
_TABLES = ("engram_grams", "engram_heads", "engram_dim", "engram_vocab", "engram_pad", "engram_layers", "engram_rows")
"""Fields that a file without Engram lacks, and ds4's files in part."""


class _Keys(DimensionKeys):
    """Reads the metadata keys of this family."""

    def values(self, kind: type[Dimensions]) -> dict[str, Any]:
        values = super().values(kind)
        for field, key in _LISTS:
            known = field not in _TABLES or self.has(key)
            values[field] = tuple(self.array(key, _ARRAYS, INTS[0][3], 0)) if known else ()
        source = self.typed(_CANDIDATES[1], ("i32", "u32"), -1)
        values["candidate_source"] = None if source < 0 else source
        for key in TABLE_KEYS if values["engram_layers"] else ():
            self.accepts(key, _ARRAYS)
            self.metadata.read.add(PREFIX + key)
        return values | (self._of_tables(values) if values["engram_layers"] and not self.faults else {})

    def integer(self, field: str, key: str) -> int:
        """Return an integer, Engram's default if the file does not have it."""
        return getattr(ModelShape, field) if field in _TABLES and not self.has(key) else super().integer(field, key)

    def number(self, key: str, kinds: tuple[str, ...]) -> float:
        """Return a float; ds4's files have no temperature of the router."""
        return 1.0 if key == _FLOATS[-1][1] and not self.has(key) else super().number(key, kinds)

    def _of_tables(self, values: dict[str, Any]) -> dict[str, int]:
        """Return what ds4's files do not state about Engram, but arrays and encoding imply; note a fault if the
        encoding is another one."""
        implied: dict[str, int] = {}
        layers = len(values["engram_layers"])
        if not self.has("engram.max_ngram_size"):
            implied["engram_grams"] = self.metadata.count(f"{PREFIX}engram.multipliers") // layers
        if not self.has("engram.head_count"):
            lengths = max(1, implied.get("engram_grams", values["engram_grams"]) - 1)
            implied["engram_heads"] = self.metadata.count(f"{PREFIX}engram.primes") // layers // lengths
        if self.has(_ENCODING_KEY):
            encoding = self.typed(_ENCODING_KEY, ("string",), ENCODING)
            if encoding != ENCODING:
                self.fault(_ENCODING_KEY, f"is {quote(encoding, 40)}: only {ENCODING} is read")
            if not self.has("engram.head_length"):
                implied["engram_dim"] = ROW_WEIGHTS
        return implied


@dataclass(frozen=True, kw_only=True)
class ModelShape(Dimensions):
    """All dimensions and constants of a model; ``KEYS`` names the metadata key of each field. ``ratios`` has tokens per
    compressed row that a layer reads. There are no hash layers.

    kv_sources        layers that make compressed rows and index keys; later layers read those of the last one
    index_sources     layers that select rows; later layers read the rows that the last one selected
    candidate_source  the layer that chooses candidate blocks for later index sources; None: there is none
    engram_grams      longest n-gram; engram_heads: columns for each length; engram_pad: id before the start
    """

    payload_magic: ClassVar[int] = 0x31345344
    """First word of saved sessions: "DS41"."""
    prefix, ints, floats, float_type, ratio_kinds, reader = PREFIX, _INTS, _FLOATS, "f64", RATIOS, _Keys
    no_effect = inert_keys(PREFIX, inert("how the file was made", f"{PREFIX}quantization* {PREFIX}calibration*"))

    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    candidate_source: int | None
    candidate_blocks: int
    candidate_size: int
    gate_temp: float
    engram_layers: tuple[int, ...] = ()
    engram_rows: tuple[int, ...] = ()
    engram_grams: int = 4
    engram_heads: int = 0
    engram_dim: int = 0
    engram_vocab: int = 0
    engram_pad: int = 0

    def metadata(self) -> list[tuple[str, str, Any]]:
        """Return the (key, type, value) entries that declare this shape, for ``weights.writer.write_gguf``; those of
        ``TABLE_KEYS`` are not among them."""
        source = -1 if self.candidate_source is None else self.candidate_source
        lists = [(PREFIX + key, "u32[]", list(getattr(self, field))) for field, key in _LISTS]
        return [*super().metadata(), *lists, (PREFIX + _CANDIDATES[1], "i32", source)]

    def _own_rules(self) -> Iterable[tuple[str, bool]]:
        kv, index, engram, ratios = self.kv_sources, self.index_sources, self.engram_layers, self.ratios
        lost = next((layer for layer in range(self.n_layers) if ratios[layer] and not self._fed(layer)), None)
        fewest = (self.candidate_blocks - 1) * self.candidate_size + 1
        return (
            (f"key_length {self.head_dim} is not a multiple of 32", self.head_dim % 32 != 0),
            (f"indexer.key_length {self.index_dim} is not a multiple of 32", self.index_dim % 32 != 0),
            (f"rope.dimension_count {self.rope_dim} exceeds key_length", self.rope_dim > self.head_dim),
            (f"{self.n_heads} heads of {self.head_dim} do not split into {self.o_groups} groups",
             self.n_heads * self.head_dim % self.o_groups != 0),
            ("kv_source_layer_ids are not ascending layers with a ratio", not _layers(kv, ratios)),
            ("index_source_layer_ids are not ascending layers with a ratio", not _layers(index, ratios)),
            ("kv_source_layer_ids has a layer that index_source_layer_ids lacks", not {*kv} <= {*index}),
            (f"layer {lost} has ratio {ratios[lost or 0]}, but no kv source before it has", lost is not None),
            (f"candidate_source_layer_id {self.candidate_source} is no kv source",
             self.candidate_source is not None and self.candidate_source not in kv),
            (f"index sources after candidate_source_layer_id {self.candidate_source} have another ratio",
             self.candidate_source in kv and any(ratios[layer] != ratios[self.candidate_source]
                                                 for layer in index
                                                 if self.candidate_source < layer < self.n_layers)),
            (f"index_topk {self.index_topk} exceeds the {fewest} rows that candidate blocks surely have",
             self.candidate_source is not None and fewest < self.index_topk),
            ("engram.layer_ids are not ascending layers", not _layers(engram, (1,) * self.n_layers)),
            (f"engram.rows has {len(self.engram_rows)} entries for {len(engram)} layers",
             len(self.engram_rows) != len(engram)),
            ("engram.head_count, head_length or compressed_vocab_size is 0",
             bool(engram) and 0 in (self.engram_heads, self.engram_dim, self.engram_vocab)),
        )  # fmt: skip

    def _fed(self, layer: int) -> bool:
        """Return whether the last kv source up to a layer has its ratio."""
        sources = [source for source in self.kv_sources if source <= layer]
        return bool(sources) and sources[-1] < self.n_layers and self.ratios[sources[-1]] == self.ratios[layer]

    @property
    def engram_columns(self) -> int:
        """Return the number of table rows that a token reads in a layer with Engram."""
        return (self.engram_grams - 1) * self.engram_heads

    @cached_property
    def kv_source(self) -> tuple[int | None, ...]:
        """Return for each layer the layer that makes the compressed rows which it reads; None without any."""
        return self._last(self.kv_sources)

    @cached_property
    def index_source(self) -> tuple[int | None, ...]:
        """Return for each layer the layer that selects the compressed rows which it reads; None without any."""
        return self._last(self.index_sources)

    def _last(self, sources: Sequence[int]) -> tuple[int | None, ...]:
        before = lambda layer: [source for source in sources if source <= layer]  # noqa: E731
        return tuple(before(layer)[-1] if ratio else None for layer, ratio in enumerate(self.ratios))

    # --- caches (the interface of ``archs.deepseek4.shape``)

    @property
    def row_unit(self) -> int:
        """Return the number of tokens per row of the cache's store: 1, as it keeps the ids of all tokens, too."""
        return 1

    def row_widths(self, layer: int) -> dict[str, int]:
        """Return the width of each kind of compressed row that a layer makes: "attn" and "indexer" at kv sources."""
        return {"attn": self.head_dim, "indexer": self.index_dim} if layer in self.kv_sources else {}

    def ring_widths(self, layer: int) -> dict[str, int]:
        """Return the width of what each compressor of a layer keeps of a token until its row is complete."""
        return {"attn": self.head_dim} if layer in self.kv_sources and self.ratios[layer] > 1 else {}

    def rows_from(self, layer: int) -> int:
        """Return the layer whose compressed rows a layer reads."""
        source = self.kv_source[layer]
        return layer if source is None else source

    def needs(self, layer: int) -> set[int]:
        """Return the earlier layers whose rows, or choice of rows or of blocks, layers from ``layer`` on read."""
        later = [one for one in range(layer, self.n_layers) if self.ratios[one]]
        read = {source[one] for one in later for source in (self.kv_source, self.index_source)}
        if self.candidate_source is not None and any(
            (self.index_source[one] or 0) > self.candidate_source for one in later
        ):
            read.add(self.candidate_source)
        return {source for source in read if source is not None and source < layer}

    def part(self, layers: range) -> ModelShape:
        """Return the shape of a model that consists only of some consecutive layers, which begin at one of ``starts``,
        and of the layer before whose rows they read (``cached``); they are renumbered from 0."""
        kept = self.cached(layers)
        own = lambda some: tuple(kept.index(layer) for layer in some if layer in kept)  # noqa: E731
        tables = [at for at in zip(self.engram_layers, self.engram_rows, strict=True) if at[0] in layers]
        return replace(
            self, n_layers=len(kept), ratios=tuple(self.ratios[layer] for layer in kept),
            swiglu_limit=tuple(self.swiglu_limit[layer] for layer in kept),
            kv_sources=own(self.kv_sources), index_sources=own(self.index_sources),
            candidate_source=next(iter(own((self.candidate_source,))), None),
            engram_layers=own(layer for layer, _ in tables), engram_rows=tuple(rows for _, rows in tables),
        )  # fmt: skip

    def overlap(self, layer: int) -> int:
        """Return how many tokens before an incomplete row its compressor needs: none."""
        return 0

    def state_rows(self, layer: int) -> int:
        """Return the number of tokens that a compressor keeps at most."""
        return self.ratios[layer]

    def cache_rows(self, ctx: int) -> tuple[int, int]:
        """Return the number of uncompressed cache rows of a layer in a context of ``ctx`` tokens, and the largest
        number of compressed rows of a layer."""
        ratios = [self.ratios[layer] for layer in self.kv_sources]
        return min(self.window, ctx), ctx // min(ratios, default=ctx + 1) + 2

    def published_kv_bytes(self, tokens: int) -> float:
        """Return the cache bytes after ``tokens`` tokens in the formats that DeepSeek's engines store: E4M3 in blocks
        of 32, E2M1 in blocks of 16 (rows) and of 32 (index keys), a byte for each block's scale."""
        raw = self.n_layers * min(tokens, self.window) * self.head_dim * (1 + 1 / 32)
        row = self.head_dim * (1 / 2 + 1 / 16) + self.index_dim * (1 / 2 + 1 / 32)
        return raw + sum(tokens // self.ratios[layer] * row for layer in self.kv_sources)

    def rows_read(self, tokens: int) -> tuple[int, int]:
        """Return how many attention rows one token reads after ``tokens`` tokens, and how many indexer rows."""
        rows, keys = self.n_layers * min(tokens, self.window), 0
        for layer, ratio in enumerate(self.ratios):
            stored = tokens // ratio if ratio else 0
            rows += min(stored, self.index_topk)
            if layer in self.index_sources and stored > self.index_topk:
                late = self.candidate_source is not None and layer > self.candidate_source
                keys += min(stored, self.candidate_blocks * self.candidate_size) if late else stored
        return rows, keys

    @property
    def indexed_ratios(self) -> Collection[int]:
        """Return the ratios of the layers that have an indexer."""
        return {self.ratios[layer] for layer in self.index_sources}


def _layers(ids: Sequence[int], ratios: Sequence[int]) -> bool:
    """Return whether ``ids`` are ascending numbers of layers with a ratio."""
    return list(ids) == sorted({*ids}) and all(0 <= i < len(ratios) and ratios[i] > 0 for i in ids)


FLASH = ModelShape(
    n_layers=40, dim=5120, vocab=129280, n_heads=64, head_dim=512, rope_dim=64, q_rank=1280, o_rank=1024, o_groups=8,
    n_experts=384, n_used=6, expert_ff=2304, n_shared=1, window=128, index_heads=32, index_dim=128, index_topk=512,
    hc=4, sinkhorn_iters=20, ratios=(PLAIN,) * 2 + (PAIRS,) * 18 + (JOINT,) * 20, kv_sources=(2, 8, 14, 20),
    index_sources=(2, 8, 14, 20, 24, 28, 32, 36), candidate_source=20, candidate_blocks=2048, candidate_size=8,
    swiglu_limit=(10.0,) * 40, rope_theta=10000.0, compress_theta=160000.0, yarn_factor=16.0, yarn_beta_fast=32.0,
    yarn_beta_slow=1.0, yarn_orig_ctx=65536, route_scale=1.5, gate_temp=1.0, rms_eps=1e-20, hc_eps=1e-6,
    norm_weights=True, engram_layers=(1, 14), engram_rows=(384006168, 384016682), engram_grams=4, engram_heads=8,
    engram_dim=256, engram_vocab=99092, engram_pad=2, name="DeepSeek V4.1 Flash",
)  # fmt: skip


def unlike_published(shape: ModelShape, names: Iterable[str] = tuple(KEYS)) -> dict[str, tuple[str, str]]:
    """Return which of the fields ``names`` differ from those of V4.1 Flash: metadata key -> (value, Flash's)."""
    return differences(shape, FLASH, names, KEYS)
