"""Dimensions and constants of a DeepSeek V4 model, read from metadata and checked.

``ModelShape.from_metadata`` accepts any consistent dimensions, so that tiny models can test the code that runs the real
ones. ``check_published`` also checks that they are those of DeepSeek V4 Flash, Vision-Exp or Pro, and names the keys
that differ (docs/explanation/model.md 2.1; where Pro's values are from: docs/explanation/pro.md). Integer keys must be
stored as u32, as in ds4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...weights.accounting import Account, inert
from ...weights.inert import METADATA
from ...weights.source import DEEPSEEK
from ..keys import EMBEDDING, MERGES_KEY, TOKENS_KEY, Keys, check, decimal, out_of_bounds

if TYPE_CHECKING:
    from ...weights.source import TensorSource

ARCHITECTURE = DEEPSEEK
PREFIX = ARCHITECTURE + "."
PLAIN, CSA, HCA = RATIOS = (0, 4, 128)
"""Compression ratios of layers, in tokens per compressed row; CSA and HCA are the names in DeepSeek's report.

PLAIN: no compression. CSA (compressed sparse attention): windows overlap, and an indexer selects the rows that a token
attends to. HCA (heavily compressed attention): a token attends to all rows.
"""

# (field, key, smallest accepted value, largest accepted value)
_INTS = (
    ("n_layers", "block_count", 1, 1024),
    ("dim", "embedding_length", 256, 1 << 16),
    ("vocab", "vocab_size", 1, 1 << 20),
    ("n_heads", "attention.head_count", 1, 1 << 12),
    ("head_dim", "attention.key_length", 2, 1 << 12),
    ("rope_dim", "rope.dimension_count", 2, 1 << 12),
    ("q_rank", "attention.q_lora_rank", 32, 1 << 16),
    ("o_rank", "attention.output_lora_rank", 1, 1 << 16),
    ("o_groups", "attention.output_group_count", 1, 1 << 10),
    ("n_experts", "expert_count", 1, 1 << 14),
    ("n_used", "expert_used_count", 1, 64),
    ("expert_ff", "expert_feed_forward_length", 256, 1 << 18),
    ("n_shared", "expert_shared_count", 1, 16),
    ("n_hash_layers", "hash_layer_count", 0, 1024),
    ("window", "attention.sliding_window", 1, 1 << 20),
    ("index_heads", "attention.indexer.head_count", 1, 1 << 12),
    ("index_dim", "attention.indexer.key_length", 32, 1 << 10),
    ("index_topk", "attention.indexer.top_k", 1, 1 << 20),
    ("hc", "hyper_connection.count", 1, 16),
    ("sinkhorn_iters", "hyper_connection.sinkhorn_iterations", 1, 1000),
)

# (field, key, lower limit, upper limit), both limits excluded
_FLOATS = (
    ("rope_theta", "rope.freq_base", 1.0, 1e12),
    ("compress_theta", "attention.compress_rope_freq_base", 1.0, 1e12),
    ("yarn_factor", "rope.scaling.factor", 0.0, 1e6),
    ("yarn_beta_fast", "rope.scaling.yarn_beta_fast", 0.0, 1e6),
    ("yarn_beta_slow", "rope.scaling.yarn_beta_slow", 0.0, 1e6),
    ("route_scale", "expert_weights_scale", 0.0, 1e6),
    ("rms_eps", "attention.layer_norm_rms_epsilon", 0.0, 1.0),
    ("hc_eps", "hyper_connection.epsilon", 0.0, 1.0),
)

_RATIOS_KEY = "attention.compress_ratios"
_LIMITS_KEY = "swiglu_clamp_exp"
_ORIG_CTX_KEY = "rope.scaling.original_context_length"
_NORM_KEY = "expert_weights_norm"

KEYS = {field: PREFIX + key for field, key, *_ in (*_INTS, *_FLOATS)} | {
    "ratios": PREFIX + _RATIOS_KEY, "swiglu_limit": PREFIX + _LIMITS_KEY, "yarn_orig_ctx": PREFIX + _ORIG_CTX_KEY,
    "norm_weights": PREFIX + _NORM_KEY,
}  # fmt: skip
"""Field of ``ModelShape`` -> metadata key."""
CONSTANTS = (
    "window", "index_topk", "sinkhorn_iters", "rope_theta", "compress_theta", "yarn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_orig_ctx", "route_scale", "rms_eps", "hc_eps", "swiglu_limit",
)  # fmt: skip
"""Fields that no tensor's dimensions depend on, so a wrong value would otherwise go unnoticed."""

INERT_KEYS = (
    *METADATA,
    inert("the longest context in training", PREFIX + "context_length"),
    inert("the only way there is in this family", PREFIX + "rope.scaling.type", "yarn"),
    inert("the only way there is in this family", PREFIX + "expert_gating_func", 4),
    inert("the drafter is a model of its own", PREFIX + "nextn_predict_layers " + PREFIX + "dspark.*"),
    inert("which checkpoint it is", PREFIX + "checkpoint_variant"),
    inert("images are not read", PREFIX + "vision.*"),
    inert("every layer has experts", PREFIX + "leading_dense_block_count", 0),
    inert("how the file was made", PREFIX + "rope.scaling.finetuned"),
)
"""Metadata keys that have no effect in this family."""

_U32, _FLOAT_TYPES = ("u32",), ("f32", "f64", "u32", "i32")


@dataclass(frozen=True)
class ModelShape:
    """All dimensions and constants of a model; ``KEYS`` names the metadata key of each field. ``ratios`` and
    ``swiglu_limit`` have one entry per layer."""

    payload_magic: ClassVar[int] = 0x34565344
    """First word of saved sessions: "DSV4"."""
    gate_temp: ClassVar[float] = 1.0
    """Temperature of the router's logits."""

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
    n_hash_layers: int
    window: int
    index_heads: int
    index_dim: int
    index_topk: int
    hc: int
    sinkhorn_iters: int
    ratios: tuple[int, ...]
    swiglu_limit: tuple[float, ...]
    rope_theta: float
    compress_theta: float
    yarn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    route_scale: float
    rms_eps: float
    hc_eps: float
    norm_weights: bool
    name: str = ""

    @classmethod
    def from_metadata(cls, source: TensorSource) -> ModelShape:
        """Read the shape that a file declares; raise ShapeError naming the first missing, mistyped or inconsistent
        keys."""
        shape, account = metadata_account(source)
        check(source, account.problems())
        return shape

    def part(self, layers: range) -> ModelShape:
        """Return the shape of a model that consists only of the given consecutive layers, renumbered from 0."""
        of_layers = slice(layers.start, layers.stop)
        hashed = min(max(self.n_hash_layers - layers.start, 0), len(layers))
        return replace(
            self, n_layers=len(layers), n_hash_layers=hashed, ratios=self.ratios[of_layers],
            swiglu_limit=self.swiglu_limit[of_layers],
        )  # fmt: skip

    def metadata(self) -> list[tuple[str, str, Any]]:
        """Return the (key, type, value) entries that declare this shape, for ``weights.writer.write_gguf``."""
        ints = [(PREFIX + key, "u32", getattr(self, field)) for field, key, _, _ in _INTS]
        floats = [(PREFIX + key, "f32", getattr(self, field)) for field, key, _, _ in _FLOATS]
        return [
            ("general.architecture", "string", ARCHITECTURE),
            ("general.name", "string", self.name),
            *ints,
            (PREFIX + "attention.head_count_kv", "u32", 1),
            (PREFIX + "attention.value_length", "u32", self.head_dim),
            (PREFIX + _RATIOS_KEY, "i32[]", list(self.ratios)),
            (PREFIX + _LIMITS_KEY, "f32[]", list(self.swiglu_limit)),
            (PREFIX + _ORIG_CTX_KEY, "u32", self.yarn_orig_ctx),
            (PREFIX + "rope.scaling.type", "string", "yarn"),
            *floats,
            (PREFIX + _NORM_KEY, "bool", self.norm_weights),
        ]

    def problems(self) -> list[str]:
        """Return one sentence per reason why these dimensions are unusable; empty if they fit together."""
        problems = out_of_bounds(self, PREFIX, _INTS, _FLOATS)
        return problems or [text for text, broken in self._rules() if broken]

    def _rules(self) -> Iterable[tuple[str, bool]]:
        """Return (description, whether it is violated) of each constraint between dimensions."""
        plain, group, index = self.plain_dim, self.n_heads * self.head_dim, self.index_dim
        limits = self.swiglu_limit
        bad_ratio = next((ratio for ratio in self.ratios if ratio not in RATIOS), None)
        bad_limit = next((limit for limit in limits if not 0 < limit < math.inf), None)
        return (
            (f"embedding_length {self.dim} is not a multiple of 256", self.dim % 256 != 0),
            (f"expert_feed_forward_length {self.expert_ff} is not a multiple of 256", self.expert_ff % 256 != 0),
            (f"rope.dimension_count {self.rope_dim} is odd", self.rope_dim % 2 != 0),
            (f"key_length {self.head_dim} must exceed rope.dimension_count {self.rope_dim} by a multiple of 64",
             plain <= 0 or plain % 64 != 0),
            (f"q_lora_rank {self.q_rank} is not a multiple of 32", self.q_rank % 32 != 0),
            (f"{self.n_heads} heads of {self.head_dim} do not split into {self.o_groups} groups of whole 32-blocks",
             group % (32 * self.o_groups) != 0),
            (f"{self.o_groups} groups x output_lora_rank {self.o_rank} is not a multiple of 32",
             self.o_groups * self.o_rank % 32 != 0),
            ("expert_weights_norm is false: weights that are not normalised are not supported", not self.norm_weights),
            (f"{self.n_used} experts used of only {self.n_experts}", self.n_used > self.n_experts),
            (f"{self.n_hash_layers} hash layers of only {self.n_layers}", self.n_hash_layers > self.n_layers),
            (f"indexer.key_length {index} is not a power of two", index & (index - 1) != 0),
            (f"indexer.key_length {index} is less than rope.dimension_count {self.rope_dim}", index < self.rope_dim),
            (f"indexer.key_length equals key_length {self.head_dim}", index == self.head_dim),
            (f"{len(self.ratios)} compress_ratios for {self.n_layers} layers", len(self.ratios) != self.n_layers),
            (f"compress_ratios holds {bad_ratio}, wanted 0, 4 or 128", bad_ratio is not None),
            (f"{len(limits)} swiglu_clamp_exp entries for {self.n_layers} layers", len(limits) != self.n_layers),
            (f"swiglu_clamp_exp holds {bad_limit}, wanted a positive number", bad_limit is not None),
            (f"yarn_beta_slow {self.yarn_beta_slow:g} exceeds yarn_beta_fast {self.yarn_beta_fast:g}",
             self.yarn_beta_slow > self.yarn_beta_fast),
            (f"original_context_length is {self.yarn_orig_ctx}", not 1 <= self.yarn_orig_ctx <= 1 << 32),
        )  # fmt: skip

    @property
    def plain_dim(self) -> int:
        """Return the number of channels of an attention row that rope does not rotate."""
        return self.head_dim - self.rope_dim

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
        """Return the number of values that a hyper-connection computes per token: C pre weights, C post weights and a
        C x C matrix, for C streams (model.md 3)."""
        return 2 * self.hc + self.hc * self.hc

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

    def row_values(self, layer: int) -> int:
        """Return the number of values that a layer caches per compression window: one attention row, and one indexer
        row for ratio 4."""
        return {PLAIN: 0, CSA: self.head_dim + self.index_dim, HCA: self.head_dim}[self.ratios[layer]]

    def kv_values_per_token(self) -> float:
        """Return the average number of cached values added per token once the sliding window is full (model.md
        11.4)."""
        return sum(self.row_values(layer) / ratio for layer, ratio in enumerate(self.ratios) if ratio)

    def state_bytes(self) -> int:
        """Return the bytes that the compressors of all layers keep for incomplete windows: float32 values and scores
        (model.md 11.1)."""
        total = 0
        for layer, ratio in enumerate(self.ratios):
            index = 2 * self.index_dim if ratio == CSA else 0
            total += 2 * self.state_rows(layer) * (self.comp_width(layer) + index) * 4
        return total

    def cache_rows(self, ctx: int) -> tuple[int, int]:
        """Return the number of uncompressed cache rows of a layer in a context of ``ctx`` tokens, and that of
        compressed rows of a layer of ratio 4."""
        return min(self.window, ctx), ctx // CSA + 2

    def kv_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes after ``tokens`` tokens: rows of values of ``itemsize`` bytes, and what compressors
        keep for incomplete windows."""
        raw = self.n_layers * min(tokens, self.window) * self.head_dim
        compressed = sum(tokens // ratio * self.row_values(layer) for layer, ratio in enumerate(self.ratios) if ratio)
        return (raw + compressed) * itemsize + self.state_bytes()

    def kv_read_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes read to decode one token after ``tokens`` tokens (model.md 13).

        Counted are the sliding window, the compressed rows that the token attends to, and all indexer rows if rows are
        selected.
        """
        values = self.n_layers * min(tokens, self.window) * self.head_dim
        for ratio in self.ratios:
            rows = tokens // ratio if ratio else 0
            values += (min(rows, self.index_topk) if ratio == CSA else rows) * self.head_dim
            values += rows * self.index_dim if ratio == CSA and rows > self.index_topk else 0
        return values * itemsize

    def kv_chunk_bytes(self, end: int, count: int, itemsize: int = 4) -> int:
        """Return the cache bytes that a chunk of ``count`` tokens, the last one at ``end`` - 1, reads: assumed to be
        all rows, each once."""
        return self.kv_bytes(end, itemsize) - self.state_bytes()

    def selects(self, tokens: int) -> bool:
        """Return whether, after ``tokens`` tokens, there are more compressed rows than the indexer selects."""
        return CSA in self.ratios and tokens // CSA > self.index_topk

    def attention_ops(self, tokens: int) -> float:
        """Return the number of float32 operations for attention scores, weighted values and indexer scores of one token
        after ``tokens`` tokens."""
        rows, scored = self.n_layers * min(tokens, self.window), 0
        for ratio in self.ratios:
            compressed = tokens // ratio if ratio else 0
            if ratio == CSA and compressed > self.index_topk:
                scored += compressed
                compressed = self.index_topk
            rows += compressed
        return 4.0 * rows * self.n_heads * self.head_dim + 2.0 * scored * self.index_heads * self.index_dim

    def payload_bytes(self, tokens: int) -> int:
        """Return the size in bytes of a saved session of ``tokens`` tokens (model.md 12): header, token ids, logits,
        row counts and cache."""
        return 13 * 4 + 4 * tokens + 4 * self.vocab + 8 * self.n_layers + self.kv_bytes(tokens)


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
    if shape.dim == FLASH.dim and _matches(shape.rms_eps, VISION_EXP.rms_eps):
        return VISION_EXP
    return next((model for model in PUBLISHED.values() if model.dim == shape.dim), FLASH)


def check_published(source: TensorSource) -> ModelShape:
    """Return the shape of ``source`` if it is exactly that of a published model; else raise ShapeError naming the keys
    that differ from the nearest one, with both values.

    Floats must match to one part in a million. (ds4 allows 1e-6 absolute, so it accepts any small epsilon.)
    """
    reader = _Keys(source, PREFIX)
    shape = reader.shape()
    model = nearest(shape)
    got, want = asdict(shape), asdict(model)
    problems = list(reader.faults.values())
    for field, key in KEYS.items():
        if key not in reader.faults and not _matches(got[field], want[field]):
            problems.append(f"{key} is {_brief(got[field])}, wanted {_brief(want[field])}")
    for key in (TOKENS_KEY, MERGES_KEY):
        kind = source.metadata.type_of(key)
        if kind is None:
            problems.append(f"{key} is missing")
        elif kind != "string[]" and key not in reader.faults:
            problems.append(f"{key} has type {kind}, wanted string[]")
    check(source, problems, f"not {model.name}: ")
    return shape


def metadata_account(source: TensorSource) -> tuple[ModelShape, Account]:
    """Return the shape that a file declares, and which of its metadata keys are used, have no effect or are refused;
    raise ShapeError for a missing key or a wrong value."""
    reader = _Keys(source, PREFIX)
    shape = reader.shape()
    return shape, reader.account(shape, INERT_KEYS)


def unlike_published(shape: ModelShape) -> dict[str, tuple[str, str]]:
    """Return the constants that differ from those of the nearest published model: metadata key -> (value, value of the
    published model), as text."""
    different, model = {}, nearest(shape)
    for field in CONSTANTS:
        got, want = ({*value} if isinstance(value := getattr(s, field), tuple) else {value} for s in (shape, model))
        if not _matches(tuple(sorted(got)), tuple(sorted(want))):
            different[KEYS[field]] = _brief(tuple(sorted(got))), _brief(tuple(sorted(want)))
    return different


def _matches(got: Any, want: Any) -> bool:
    if isinstance(want, tuple):
        return len(got) == len(want) and all(_matches(g, w) for g, w in zip(got, want, strict=True))
    if isinstance(want, float):
        return abs(got - want) <= 1e-6 * abs(want)
    return got == want


def _brief(value: Any) -> str:
    text = ",".join(f"{item:.10g}" for item in value) if isinstance(value, tuple) else f"{value}"
    return text if len(text) <= 40 else text[:37] + "..."


class _Keys(Keys):
    """Reads the metadata keys of this family."""

    def shape(self) -> ModelShape:
        self._check_architecture()
        values: dict[str, Any] = {field: self.typed(key, _U32, 0) for field, key, _, _ in _INTS if field != "vocab"}
        values["n_layers"] -= self._drafting_layers(values["n_layers"])
        values["vocab"] = self._vocab()
        values |= {field: self.number(key, _FLOAT_TYPES) for field, key, _, _ in _FLOATS}
        self._expect("attention.head_count_kv", 1)
        self._expect("attention.value_length", values["head_dim"])
        for key in ("expert_group_count", "expert_group_used_count"):
            if self.has(key):
                self._expect(key, 0)
        layers = min(values["n_layers"], _INTS[0][3])
        values["ratios"] = tuple(self._array(_RATIOS_KEY, ("i32[]", "u32[]"), layers))
        values["swiglu_limit"] = self._limits(_LIMITS_KEY, layers)
        shared = "swiglu_clamp_shexp"  # of the shared expert: the same here
        if self.has(shared) and self._limits(shared, layers) != values["swiglu_limit"]:
            self.faults.setdefault(PREFIX + shared, f"{PREFIX}{shared} differs from {_LIMITS_KEY}")
        values["yarn_orig_ctx"] = self.typed(_ORIG_CTX_KEY, ("u32", "u64"), 0)
        values["norm_weights"] = self.typed(_NORM_KEY, ("bool",), False)
        return ModelShape(**values, name=self.text("general.name")[:200])

    def _check_architecture(self) -> None:
        key = "general.architecture"
        got = self.metadata[key] if self.metadata.type_of(key) == "string" else None
        if key in self.metadata and got != ARCHITECTURE:
            self.faults[key] = f"{key} is {str(got)[:40]!r}, wanted {ARCHITECTURE!r}"

    def _drafting_layers(self, blocks: int) -> int:
        """Return how many of the last blocks are not layers of the model but blocks for multi-token prediction, which
        llama.cpp appends to the layers. If the file does not contain their tensors, the key is ignored: return 0."""
        key = "nextn_predict_layers"
        count = self.typed(key, _U32, 0) if self.has(key) else 0
        if count and f"blk.{blocks - count}.nextn.eh_proj.weight" in self.source.tensors:
            return count
        return 0

    def _limits(self, key: str, layers: int) -> tuple[float, ...]:
        """Return the SwiGLU limit of each layer; the key holds an array, or one number for all layers."""
        if self.metadata.type_of(PREFIX + key) in ("f32", "f64"):
            return (self.number(key, _FLOAT_TYPES),) * layers
        return tuple(self._array(key, ("f32[]", "f64[]"), layers))

    def _vocab(self) -> int:
        """Return the size of the vocabulary. If it is declared, it may exceed the number of tokens in the file. If not
        (llama.cpp's converter), it is the number of rows of the embedding, which must equal the number of tokens."""
        key, listed = KEYS["vocab"], self.listed()
        if key in self.metadata:
            vocab: int = self.typed("vocab_size", _U32, 0)
            if listed is not None and not 1 <= listed <= vocab:
                self.faults[TOKENS_KEY] = f"{TOKENS_KEY} has {listed} tokens, {key} is {vocab}"
            return vocab
        info = self.source.tensors.get(EMBEDDING)
        if info is None or len(info.dims) != 2:
            self.faults[key] = f"{key} is missing, and {EMBEDDING} " + ("too" if info is None else "is no matrix")
            return 0
        rows: int = info.dims[1]
        if listed not in (None, rows):
            self.faults[key] = f"{key} is missing, {TOKENS_KEY} has {listed} tokens and {EMBEDDING} {rows} rows"
        return rows

    def _expect(self, key: str, want: int) -> None:
        got = self.typed(key, _U32, want)
        if got != want:
            self.fault(key, f"is {got}, wanted {want}")

    def _array(self, key: str, kinds: tuple[str, ...], count: int) -> list[Any]:
        if not self.accepts(key, kinds):
            return []
        length = self.metadata.count(PREFIX + key)
        if length < count:
            self.fault(key, f"has {length} entries, wanted one for each of {count} layers")
        values = self.metadata.first(PREFIX + key, count)
        return [decimal(value) for value in values] if self.metadata.type_of(PREFIX + key) == "f32[]" else values
