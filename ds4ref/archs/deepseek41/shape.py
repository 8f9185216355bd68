"""Dimensions and constants of a DeepSeek V4.1 model, read from metadata and checked.

``ModelShape.from_metadata`` accepts any consistent dimensions, so that tiny models can test the code that runs the real
ones; ``FLASH`` are the published ones. Metadata keys are those of a GGUF file of the family (``deepseek41.*``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from ...weights.accounting import Account, inert
from ...weights.cursor import quote
from ...weights.inert import METADATA
from ..keys import TOKENS_KEY, Keys, check, decimal, out_of_bounds

if TYPE_CHECKING:
    from ...weights.source import TensorSource

ARCHITECTURE = "deepseek41"
PREFIX = ARCHITECTURE + "."
PLAIN, JOINT, PAIRS = RATIOS = (0, 1, 2)
"""Compression ratios of layers, in tokens per compressed row; PLAIN: the layer reads no compressed rows."""

# (field, key, smallest accepted value, largest accepted value)
_INTS = (
    ("n_layers", "block_count", 1, 1024),
    ("dim", "embedding_length", 2, 1 << 16),
    ("vocab", "vocab_size", 1, 1 << 20),
    ("n_heads", "attention.head_count", 1, 1 << 12),
    ("head_dim", "attention.key_length", 32, 1 << 12),
    ("rope_dim", "rope.dimension_count", 2, 1 << 12),
    ("q_rank", "attention.q_lora_rank", 1, 1 << 16),
    ("o_rank", "attention.output_lora_rank", 1, 1 << 16),
    ("o_groups", "attention.output_group_count", 1, 1 << 10),
    ("n_experts", "expert_count", 1, 1 << 14),
    ("n_used", "expert_used_count", 1, 64),
    ("expert_ff", "expert_feed_forward_length", 1, 1 << 18),
    ("n_shared", "expert_shared_count", 1, 16),
    ("window", "attention.sliding_window", 1, 1 << 20),
    ("index_heads", "attention.indexer.head_count", 1, 1 << 12),
    ("index_dim", "attention.indexer.key_length", 32, 1 << 10),
    ("index_topk", "attention.indexer.top_k", 1, 1 << 20),
    ("hc", "hyper_connection.count", 1, 16),
    ("sinkhorn_iters", "hyper_connection.sinkhorn_iterations", 1, 1000),
    ("candidate_blocks", "attention.candidate_topk_blocks", 0, 1 << 20),
    ("candidate_size", "attention.candidate_block_size", 1, 1 << 10),
    ("engram_grams", "engram.max_ngram_size", 2, 16),
    ("engram_heads", "engram.head_count", 0, 256),
    ("engram_dim", "engram.head_length", 0, 1 << 14),
    ("engram_vocab", "engram.compressed_vocab_size", 0, 1 << 20),
    ("engram_pad", "engram.pad_id", 0, 1 << 20),
)

# (field, key, lower limit, upper limit), both limits excluded
_FLOATS = (
    ("rope_theta", "rope.freq_base", 1.0, 1e12),
    ("compress_theta", "attention.compress_rope_freq_base", 1.0, 1e12),
    ("yarn_factor", "rope.scaling.factor", 0.0, 1e6),
    ("yarn_beta_fast", "rope.scaling.yarn_beta_fast", 0.0, 1e6),
    ("yarn_beta_slow", "rope.scaling.yarn_beta_slow", 0.0, 1e6),
    ("route_scale", "expert_weights_scale", 0.0, 1e6),
    ("gate_temp", "expert_gate_temperature", 0.0, 1e6),
    ("rms_eps", "attention.layer_norm_rms_epsilon", 0.0, 1.0),
    ("hc_eps", "hyper_connection.epsilon", 0.0, 1.0),
)

# (field, key)
_LISTS = (
    ("ratios", "attention.compress_ratios"),
    ("kv_sources", "attention.kv_source_layer_ids"),
    ("index_sources", "attention.index_source_layer_ids"),
    ("engram_layers", "engram.layer_ids"),
    ("engram_rows", "engram.rows"),
)
_CANDIDATES_KEY = "attention.candidate_source_layer_id"
_LIMITS_KEY = "swiglu_clamp_exp"
_ORIG_CTX_KEY = "rope.scaling.original_context_length"
_NORM_KEY = "expert_weights_norm"
TABLE_KEYS = ("engram.token_map", "engram.primes", "engram.multipliers")
"""Arrays that Engram's hash needs (``hashing.Hashing``): read when the weights are bound."""

_ENCODING_KEY, ENCODING = "engram.encoding", "e4m3_e8m0_32_row264"
"""How ds4's files store rows of Engram tables, and the only way that is read: ``tensors.ROW264``."""
ROW_WEIGHTS = 256

KEYS = {field: PREFIX + key for field, key, *_ in (*_INTS, *_FLOATS, *_LISTS)} | {
    "candidate_source": PREFIX + _CANDIDATES_KEY, "swiglu_limit": PREFIX + _LIMITS_KEY,
    "yarn_orig_ctx": PREFIX + _ORIG_CTX_KEY, "norm_weights": PREFIX + _NORM_KEY,
}  # fmt: skip
"""Field of ``ModelShape`` -> metadata key."""

INERT_KEYS = (
    *METADATA,
    inert("the longest context in training", PREFIX + "context_length"),
    inert("the only way there is in this family", PREFIX + "rope.scaling.type", "yarn"),
    inert("the only way there is in this family", PREFIX + "expert_gating_func", 4),
    inert("the drafter is a model of its own", PREFIX + "nextn_predict_layers " + PREFIX + "dspark.*"),
    inert("images are not read", PREFIX + "vision.*"),
    inert("how the file was made", f"{PREFIX}quantization* {PREFIX}calibration*"),
)
"""Metadata keys that have no effect in this family."""

_ARRAYS = ("i32[]", "u32[]", "i64[]", "u64[]")
_FLOAT_TYPES = ("f32", "f64", "u32", "i32")


@dataclass(frozen=True)
class ModelShape:
    """All dimensions and constants of a model; ``KEYS`` names the metadata key of each field.

    kv_sources        layers that make compressed rows and index keys; later layers read those of the last one
    index_sources     layers that select rows; later layers read the rows that the last one selected
    candidate_source  the layer that chooses candidate blocks for later index sources; None: there is none
    engram_grams      longest n-gram; engram_heads: columns for each length; engram_pad: id before the start
    """

    payload_magic: ClassVar[int] = 0x31345344
    """First word of saved sessions: "DS41"."""

    n_layers: int
    dim: int
    vocab: int
    n_heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_rank: int
    o_groups: int
    n_experts: int
    n_used: int
    expert_ff: int
    n_shared: int
    window: int
    index_heads: int
    index_dim: int
    index_topk: int
    hc: int
    sinkhorn_iters: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    candidate_source: int | None
    candidate_blocks: int
    candidate_size: int
    swiglu_limit: tuple[float, ...]
    rope_theta: float
    compress_theta: float
    yarn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    route_scale: float
    gate_temp: float
    rms_eps: float
    hc_eps: float
    norm_weights: bool
    engram_layers: tuple[int, ...] = ()
    engram_rows: tuple[int, ...] = ()
    engram_grams: int = 4
    engram_heads: int = 0
    engram_dim: int = 0
    engram_vocab: int = 0
    engram_pad: int = 0
    name: str = ""

    @classmethod
    def from_metadata(cls, source: TensorSource, strict: bool = False) -> ModelShape:
        """Read the shape that a file declares; raise ShapeError naming the first missing, mistyped or inconsistent
        keys or, if ``strict``, those that differ from V4.1 Flash."""
        shape, account = metadata_account(source)
        check(source, account.problems())
        if strict:
            check(source, [f"{key} is {got}, wanted {want}" for key, (got, want) in unlike_published(shape).items()])
        return shape

    def metadata(self) -> list[tuple[str, str, Any]]:
        """Return the (key, type, value) entries that declare this shape, for ``weights.writer.write_gguf``; those of
        ``TABLE_KEYS`` are not among them."""
        return [
            ("general.architecture", "string", ARCHITECTURE),
            ("general.name", "string", self.name),
            *((PREFIX + key, "u32", getattr(self, field)) for field, key, _, _ in _INTS),
            *((PREFIX + key, "f64", getattr(self, field)) for field, key, _, _ in _FLOATS),
            *((PREFIX + key, "u32[]", list(getattr(self, field))) for field, key in _LISTS),
            (PREFIX + _CANDIDATES_KEY, "i32", -1 if self.candidate_source is None else self.candidate_source),
            (PREFIX + "attention.head_count_kv", "u32", 1),
            (PREFIX + "attention.value_length", "u32", self.head_dim),
            (PREFIX + _LIMITS_KEY, "f64[]", list(self.swiglu_limit)),
            (PREFIX + _ORIG_CTX_KEY, "u32", self.yarn_orig_ctx),
            (PREFIX + "rope.scaling.type", "string", "yarn"),
            (PREFIX + _NORM_KEY, "bool", self.norm_weights),
        ]

    def problems(self) -> list[str]:
        """Return one sentence per reason why these dimensions are unusable; empty if they fit together."""
        problems = out_of_bounds(self, PREFIX, _INTS, _FLOATS)
        return problems or [text for text, broken in self._rules() if broken]

    def _rules(self) -> Iterable[tuple[str, bool]]:
        """Return (description, whether it is violated) of each constraint between dimensions."""
        kv, index, layers = self.kv_sources, self.index_sources, range(self.n_layers)
        limits, heads, ratios = self.swiglu_limit, self.n_heads * self.head_dim, self.ratios
        bad_ratio = next((ratio for ratio in ratios if ratio not in RATIOS), None)
        bad_limit = next((limit for limit in limits if not 0 < limit < math.inf), None)
        if len(ratios) != self.n_layers:
            return ((f"{len(ratios)} compress_ratios for {self.n_layers} layers", True),)
        lost = next((layer for layer in layers if ratios[layer] and not self._fed(layer)), None)
        fewest = (self.candidate_blocks - 1) * self.candidate_size + 1
        engram = self.engram_layers
        return (
            (f"key_length {self.head_dim} is not a multiple of 32", self.head_dim % 32 != 0),
            (f"indexer.key_length {self.index_dim} is not a multiple of 32", self.index_dim % 32 != 0),
            (f"rope.dimension_count {self.rope_dim} is odd or exceeds key_length or indexer.key_length",
             self.rope_dim % 2 != 0 or self.rope_dim > min(self.head_dim, self.index_dim)),
            (f"{self.n_heads} heads of {self.head_dim} do not split into {self.o_groups} groups",
             heads % self.o_groups != 0),
            ("expert_weights_norm is false: weights that are not normalised are not supported", not self.norm_weights),
            (f"{self.n_used} experts used of only {self.n_experts}", self.n_used > self.n_experts),
            (f"compress_ratios holds {bad_ratio}, wanted 0, 1 or 2", bad_ratio is not None),
            ("kv_source_layer_ids are not ascending layers with a ratio", not _layers(kv, ratios)),
            ("index_source_layer_ids are not ascending layers with a ratio", not _layers(index, ratios)),
            ("kv_source_layer_ids has a layer that index_source_layer_ids lacks", not {*kv} <= {*index}),
            (f"layer {lost} has ratio {ratios[lost or 0]}, but no kv source before it has", lost is not None),
            (f"candidate_source_layer_id {self.candidate_source} is no kv source",
             self.candidate_source is not None and self.candidate_source not in kv),
            (f"index sources after candidate_source_layer_id {self.candidate_source} have another ratio",
             self.candidate_source in kv and any(ratios[layer] != ratios[self.candidate_source]
                                                 for layer in index if layer > self.candidate_source)),
            (f"index_topk {self.index_topk} exceeds the {fewest} rows that candidate blocks surely have",
             self.candidate_source is not None and fewest < self.index_topk),
            (f"{len(limits)} swiglu_clamp_exp entries for {self.n_layers} layers", len(limits) != self.n_layers),
            (f"swiglu_clamp_exp holds {bad_limit}, wanted a positive number", bad_limit is not None),
            (f"yarn_beta_slow {self.yarn_beta_slow:g} exceeds yarn_beta_fast {self.yarn_beta_fast:g}",
             self.yarn_beta_slow > self.yarn_beta_fast),
            (f"original_context_length is {self.yarn_orig_ctx}", not 1 <= self.yarn_orig_ctx <= 1 << 32),
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

    # --- what the pass uses

    @property
    def attn_scale(self) -> float:
        """Return the factor by which attention scores are multiplied."""
        return self.head_dim**-0.5

    @property
    def index_scale(self) -> float:
        """Return the factor by which the indexer's head weights are multiplied."""
        return (self.index_dim * self.index_heads) ** -0.5

    @property
    def mix(self) -> int:
        """Return the number of values that a hyper-connection computes per token."""
        return 2 * self.hc + self.hc * self.hc

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

    def overlap(self, layer: int) -> int:
        """Return how many tokens before an incomplete row its compressor needs: none."""
        return 0

    def state_rows(self, layer: int) -> int:
        """Return the number of tokens that a compressor keeps at most."""
        return self.ratios[layer]

    def row_values(self, layer: int) -> int:
        """Return the number of values that a layer caches per compressed row."""
        return sum(self.row_widths(layer).values())

    def kv_values_per_token(self) -> float:
        """Return the average number of cached values added per token once the sliding window is full."""
        return sum(self.row_values(layer) / self.ratios[layer] for layer in self.kv_sources)

    def state_bytes(self) -> int:
        """Return the bytes that compressors keep for incomplete rows: float32 values and scores."""
        layers = range(self.n_layers)
        return sum(8 * self.state_rows(layer) * sum(self.ring_widths(layer).values()) for layer in layers)

    def cache_rows(self, ctx: int) -> tuple[int, int]:
        """Return the number of uncompressed cache rows of a layer in a context of ``ctx`` tokens, and the largest
        number of compressed rows of a layer."""
        ratios = [self.ratios[layer] for layer in self.kv_sources]
        return min(self.window, ctx), ctx // min(ratios, default=ctx + 1) + 2

    def kv_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes after ``tokens`` tokens, whose values have ``itemsize`` bytes."""
        raw = self.n_layers * min(tokens, self.window) * self.head_dim
        compressed = sum(tokens // self.ratios[layer] * self.row_values(layer) for layer in self.kv_sources)
        return (raw + compressed) * itemsize + self.state_bytes()

    def published_kv_bytes(self, tokens: int) -> float:
        """Return the cache bytes after ``tokens`` tokens in the formats that DeepSeek's engines store: E4M3 in blocks
        of 32, E2M1 in blocks of 16 (rows) and of 32 (index keys), a byte for each block's scale."""
        raw = self.n_layers * min(tokens, self.window) * self.head_dim * (1 + 1 / 32)
        row = self.head_dim * (1 / 2 + 1 / 16) + self.index_dim * (1 / 2 + 1 / 32)
        return raw + sum(tokens // self.ratios[layer] * row for layer in self.kv_sources)

    def _rows_read(self, tokens: int) -> tuple[int, int]:
        """Return how many attention rows one token reads after ``tokens`` tokens, and how many index keys."""
        rows, keys = self.n_layers * min(tokens, self.window), 0
        for layer, ratio in enumerate(self.ratios):
            stored = tokens // ratio if ratio else 0
            rows += min(stored, self.index_topk)
            if layer in self.index_sources and stored > self.index_topk:
                late = self.candidate_source is not None and layer > self.candidate_source
                keys += min(stored, self.candidate_blocks * self.candidate_size) if late else stored
        return rows, keys

    def kv_read_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes read to decode one token after ``tokens`` tokens."""
        rows, keys = self._rows_read(tokens)
        return (rows * self.head_dim + keys * self.index_dim) * itemsize

    def kv_chunk_bytes(self, end: int, count: int, itemsize: int = 4) -> int:
        """Return the cache bytes that a chunk of ``count`` tokens, the last one at ``end`` - 1, reads: assumed to be
        all rows, each once."""
        return self.kv_bytes(end, itemsize) - self.state_bytes()

    def selects(self, tokens: int) -> bool:
        """Return whether, after ``tokens`` tokens, some layer has more compressed rows than are selected."""
        return any(tokens // self.ratios[layer] > self.index_topk for layer in self.index_sources)

    def attention_ops(self, tokens: int) -> float:
        """Return the number of float32 operations for attention scores, weighted values and index scores of one token
        after ``tokens`` tokens."""
        rows, keys = self._rows_read(tokens)
        return 4.0 * rows * self.n_heads * self.head_dim + 2.0 * keys * self.index_heads * self.index_dim

    def payload_bytes(self, tokens: int) -> int:
        """Return the size in bytes of a saved session of ``tokens`` tokens (``archs.deepseek4.payload``)."""
        return 13 * 4 + 4 * tokens + 4 * self.vocab + 8 * self.n_layers + self.kv_bytes(tokens)


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


def metadata_account(source: TensorSource) -> tuple[ModelShape, Account]:
    """Return the shape that a file declares, and which of its metadata keys are used, have no effect or are refused;
    raise ShapeError for a missing key or a wrong value."""
    reader = _Keys(source, PREFIX)
    shape = reader.shape()
    return shape, reader.account(shape, INERT_KEYS)


CONSTANTS = (
    "window", "index_topk", "candidate_blocks", "candidate_size", "sinkhorn_iters", "rope_theta", "compress_theta",
    "yarn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_orig_ctx", "route_scale", "gate_temp", "rms_eps", "hc_eps",
)  # fmt: skip
"""Fields that no tensor's dimensions depend on, so a wrong value would otherwise go unnoticed."""


def unlike_published(shape: ModelShape, names: Iterable[str] = tuple(KEYS)) -> dict[str, tuple[str, str]]:
    """Return which of the fields ``names`` differ from those of V4.1 Flash: metadata key -> (value, Flash's)."""
    pairs = {name: (getattr(shape, name), getattr(FLASH, name)) for name in names}
    return {
        KEYS[field]: (str(got)[:40], str(want)[:40])
        for field, (got, want) in pairs.items()
        if not (math.isclose(got, want, rel_tol=1e-6) if isinstance(want, float) else got == want)
    }


class _Keys(Keys):
    """Reads the metadata keys of this family."""

    def shape(self) -> ModelShape:
        defaults = {field.name: field.default for field in fields(ModelShape) if field.name.startswith("engram_")}
        values: dict[str, Any] = {}
        for field, key, _, _ in _INTS:
            optional = field in defaults and not self.has(key)
            values[field] = defaults[field] if optional else self.typed(key, ("u32",), 0)
        for field, key, _, _ in _FLOATS:
            optional = field == "gate_temp" and not self.has(key)  # ds4's files do not have it
            values[field] = 1.0 if optional else self.number(key, _FLOAT_TYPES)
        layers = min(values["n_layers"], _INTS[0][3])
        for field, key in _LISTS:
            most = layers if field == "ratios" else _INTS[0][3]
            values[field] = tuple(self._array(key, most, _ARRAYS)) if field not in defaults or self.has(key) else ()
        source = self.typed(_CANDIDATES_KEY, ("i32", "u32"), -1)
        values["candidate_source"] = None if source < 0 else source
        if self.metadata.type_of(PREFIX + _LIMITS_KEY) in ("f32", "f64"):
            values["swiglu_limit"] = (self.number(_LIMITS_KEY, _FLOAT_TYPES),) * layers
        else:
            values["swiglu_limit"] = tuple(self._array(_LIMITS_KEY, layers, ("f32[]", "f64[]")))
        values["yarn_orig_ctx"] = self.typed(_ORIG_CTX_KEY, ("u32", "u64"), 0)
        values["norm_weights"] = self.typed(_NORM_KEY, ("bool",), False)
        for key, want in (("attention.head_count_kv", 1), ("attention.value_length", values["head_dim"])):
            got = self.typed(key, ("u32",), want)
            if got != want:
                self.fault(key, f"is {got}, wanted {want}")
        for key in TABLE_KEYS if values["engram_layers"] else ():
            self.accepts(key, _ARRAYS)
            self.metadata.read.add(PREFIX + key)
        if values["engram_layers"] and not self.faults:
            values |= self._of_tables(values)
        listed = self.listed()
        if listed is not None and not 1 <= listed <= values["vocab"]:
            self.faults[TOKENS_KEY] = f"{TOKENS_KEY} has {listed} tokens, {KEYS['vocab']} is {values['vocab']}"
        return ModelShape(**values, name=self.text("general.name")[:200])

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

    def _array(self, key: str, most: int, kinds: tuple[str, ...]) -> list[Any]:
        """Return the first ``most`` items of an array; its length is untrusted."""
        if not self.accepts(key, kinds):
            return []
        values = self.metadata.first(PREFIX + key, most)
        return [decimal(value) for value in values] if self.metadata.type_of(PREFIX + key) == "f32[]" else values
