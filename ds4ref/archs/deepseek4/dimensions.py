"""Dimensions and constants that the DeepSeek V4 families share: metadata keys, rules between them, sizes of caches.

``shape.ModelShape`` of each family adds its own fields. Floats match a published model's to one part in a million.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ...weights.accounting import Account, Inert, inert
from ...weights.inert import METADATA
from ..keys import TOKENS_KEY, Keys, check, decimal, out_of_bounds

if TYPE_CHECKING:
    from ...weights.source import TensorSource

# (field, key, smallest accepted value, largest accepted value)
INTS = (
    ("n_layers", "block_count", 1, 1024),
    ("dim", "embedding_length", 2, 1 << 16),
    ("vocab", "vocab_size", 1, 1 << 20),
    ("n_heads", "attention.head_count", 1, 1 << 12),
    ("head_dim", "attention.key_length", 2, 1 << 12),
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
)

# (field, key, lower limit, upper limit), both limits excluded
FLOATS = (
    ("rope_theta", "rope.freq_base", 1.0, 1e12),
    ("compress_theta", "attention.compress_rope_freq_base", 1.0, 1e12),
    ("yarn_factor", "rope.scaling.factor", 0.0, 1e6),
    ("yarn_beta_fast", "rope.scaling.yarn_beta_fast", 0.0, 1e6),
    ("yarn_beta_slow", "rope.scaling.yarn_beta_slow", 0.0, 1e6),
    ("route_scale", "expert_weights_scale", 0.0, 1e6),
    ("rms_eps", "attention.layer_norm_rms_epsilon", 0.0, 1.0),
    ("hc_eps", "hyper_connection.epsilon", 0.0, 1.0),
)
_SPECIAL = {
    "ratios": "attention.compress_ratios",
    "swiglu_limit": "swiglu_clamp_exp",
    "yarn_orig_ctx": "rope.scaling.original_context_length",
    "norm_weights": "expert_weights_norm",
}
CONSTANTS = (
    "window", "index_topk", "sinkhorn_iters", "rope_theta", "compress_theta", "yarn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "yarn_orig_ctx", "route_scale", "rms_eps", "hc_eps",
)  # fmt: skip
"""Fields that no tensor's dimensions depend on, so a wrong value would otherwise go unnoticed."""
U32, FLOAT_TYPES = ("u32",), ("f32", "f64", "u32", "i32")


def keys_of(prefix: str, *tables: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return field of a shape -> metadata key, for the fields in ``tables`` and those of a special type."""
    named = [(field, key) for table in tables for field, key, *_ in table]
    return {field: prefix + key for field, key in [*named, *_SPECIAL.items()]}


def inert_keys(prefix: str, *more: Inert) -> tuple[Inert, ...]:
    """Return the metadata keys that have no effect in a family whose keys begin with ``prefix``: ``more`` and those of
    all."""
    return (
        *METADATA,
        inert("the longest context in training", prefix + "context_length"),
        inert("the only way there is in this family", prefix + "rope.scaling.type", "yarn"),
        inert("the only way there is in this family", prefix + "expert_gating_func", 4),
        inert("the drafter is a model of its own", prefix + "nextn_predict_layers " + prefix + "dspark.*"),
        inert("images are not read", prefix + "vision.*"),
        *more,
    )


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Dimensions and constants of a model. ``ratios`` (tokens per compressed row; 0: the layer reads none) and
    ``swiglu_limit`` have one entry per layer."""

    prefix: ClassVar[str]
    ints: ClassVar[tuple[tuple[str, str, int, int], ...]]
    floats: ClassVar[tuple[tuple[str, str, float, float], ...]]
    ratio_kinds: ClassVar[tuple[int, ...]]
    float_type: ClassVar[str] = "f32"
    """The type in which floats are written."""
    reader: ClassVar[type[DimensionKeys]]
    no_effect: ClassVar[tuple[Inert, ...]]

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
    n_hash_layers: int = 0
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
    def account(cls, source: TensorSource) -> tuple[Self, Account]:
        """Return the shape that a file declares, and which of its metadata keys are used, have no effect or are
        refused; raise ShapeError for a missing key or a wrong value."""
        reader = cls.reader(source, cls.prefix)
        shape = cls(**reader.values(cls))
        return shape, reader.account(shape, cls.no_effect)

    @classmethod
    def from_metadata(cls, source: TensorSource) -> Self:
        """Read the shape that a file declares; raise ShapeError naming the first missing, mistyped or inconsistent
        keys."""
        shape, account = cls.account(source)
        check(source, account.problems())
        return shape

    def keys(self) -> dict[str, str]:
        """Return the metadata key of each field."""
        return keys_of(self.prefix, self.ints, self.floats)

    def metadata(self) -> list[tuple[str, str, Any]]:
        """Return the (key, type, value) entries that declare this shape, for ``weights.writer.write_gguf``."""
        prefix, kind = self.prefix, self.float_type
        return [
            ("general.architecture", "string", prefix[:-1]),
            ("general.name", "string", self.name),
            *((prefix + key, "u32", getattr(self, field)) for field, key, _, _ in self.ints),
            (prefix + "attention.head_count_kv", "u32", 1),
            (prefix + "attention.value_length", "u32", self.head_dim),
            (prefix + _SPECIAL["ratios"], "i32[]", list(self.ratios)),
            (prefix + _SPECIAL["swiglu_limit"], kind + "[]", list(self.swiglu_limit)),
            (prefix + _SPECIAL["yarn_orig_ctx"], "u32", self.yarn_orig_ctx),
            (prefix + "rope.scaling.type", "string", "yarn"),
            *((prefix + key, kind, getattr(self, field)) for field, key, _, _ in self.floats),
            (prefix + _SPECIAL["norm_weights"], "bool", self.norm_weights),
        ]

    def problems(self) -> list[str]:
        """Return one sentence per reason why these dimensions are unusable; empty if they fit together."""
        problems = out_of_bounds(self, self.prefix, self.ints, self.floats)
        if not problems and len(self.ratios) != self.n_layers:
            return [f"{len(self.ratios)} compress_ratios for {self.n_layers} layers"]
        return problems or [text for text, broken in (*self._rules(), *self._own_rules()) if broken]

    def _own_rules(self) -> Iterable[tuple[str, bool]]:
        """Return (description, whether it is violated) of each constraint that only this family has."""
        raise NotImplementedError

    def _rules(self) -> Iterable[tuple[str, bool]]:
        """Return (description, whether it is violated) of each constraint between dimensions."""
        limits, kinds = self.swiglu_limit, self.ratio_kinds
        bad_ratio = next((ratio for ratio in self.ratios if ratio not in kinds), None)
        bad_limit = next((limit for limit in limits if not 0 < limit < math.inf), None)
        return (
            (f"rope.dimension_count {self.rope_dim} is odd", self.rope_dim % 2 != 0),
            (f"indexer.key_length {self.index_dim} is less than rope.dimension_count {self.rope_dim}",
             self.index_dim < self.rope_dim),
            ("expert_weights_norm is false: weights that are not normalised are not supported", not self.norm_weights),
            (f"{self.n_used} experts used of only {self.n_experts}", self.n_used > self.n_experts),
            (f"compress_ratios holds {bad_ratio}, wanted {', '.join(map(str, kinds[:-1]))} or {kinds[-1]}",
             bad_ratio is not None),
            (f"{len(limits)} swiglu_clamp_exp entries for {self.n_layers} layers", len(limits) != self.n_layers),
            (f"swiglu_clamp_exp holds {bad_limit}, wanted a positive number", bad_limit is not None),
            (f"yarn_beta_slow {self.yarn_beta_slow:g} exceeds yarn_beta_fast {self.yarn_beta_fast:g}",
             self.yarn_beta_slow > self.yarn_beta_fast),
            (f"original_context_length is {self.yarn_orig_ctx}", not 1 <= self.yarn_orig_ctx <= 1 << 32),
        )  # fmt: skip

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
    def indexed_ratios(self) -> Collection[int]:
        """Return the ratios of the layers that have an indexer."""
        raise NotImplementedError

    def row_widths(self, layer: int) -> dict[str, int]:
        """Return the width of each kind of compressed row that a layer makes: "attn" and "indexer"."""
        raise NotImplementedError

    def ring_widths(self, layer: int) -> dict[str, int]:
        """Return the width of each compressor's projection of a token, which is kept until its row is complete."""
        raise NotImplementedError

    def state_rows(self, layer: int) -> int:
        """Return the number of tokens whose projections a layer's compressor keeps for incomplete rows."""
        raise NotImplementedError

    def rows_read(self, tokens: int) -> tuple[int, int]:
        """Return how many attention rows one token reads after ``tokens`` tokens, and how many indexer rows."""
        raise NotImplementedError

    def needs(self, layer: int) -> set[int]:
        """Return the earlier layers whose cache rows, or choice of rows, layers from ``layer`` on read: none, unless
        layers share them."""
        return set()

    @property
    def starts(self) -> list[int]:
        """Return the layers at which a part of the model can begin: those that need the rows of at most one earlier
        layer, which the part makes itself."""
        return [layer for layer in range(self.n_layers) if len(self.needs(layer)) < 2]

    def cached(self, layers: range) -> list[int]:
        """Return the layers whose rows a part of the model with these ``layers`` keeps: they, and before them the
        earlier one whose rows these layers or later ones read."""
        return [*self.needs(layers.start), *layers]

    def row_values(self, layer: int) -> int:
        """Return the number of values that a layer caches per compressed row."""
        return sum(self.row_widths(layer).values())

    def kv_values_per_token(self) -> float:
        """Return the average number of cached values added per token once the sliding window is full (model.md
        11.4)."""
        return sum(self.row_values(layer) / ratio for layer, ratio in enumerate(self.ratios) if ratio)

    def state_bytes(self) -> int:
        """Return the bytes that the compressors of all layers keep for incomplete rows: float32 values and scores
        (model.md 11.1)."""
        return sum(8 * self.state_rows(layer) * sum(self.ring_widths(layer).values()) for layer in range(self.n_layers))

    def kv_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes after ``tokens`` tokens: rows of values of ``itemsize`` bytes, and what compressors
        keep for incomplete rows."""
        raw = self.n_layers * min(tokens, self.window) * self.head_dim
        compressed = sum(tokens // ratio * self.row_values(layer) for layer, ratio in enumerate(self.ratios) if ratio)
        return (raw + compressed) * itemsize + self.state_bytes()

    def kv_read_bytes(self, tokens: int, itemsize: int = 4) -> int:
        """Return the cache bytes read to decode one token after ``tokens`` tokens (model.md 13): the sliding window,
        the compressed rows that the token attends to, and the indexer rows that are scored if rows are selected."""
        rows, keys = self.rows_read(tokens)
        return (rows * self.head_dim + keys * self.index_dim) * itemsize

    def kv_chunk_bytes(self, end: int, count: int, itemsize: int = 4) -> int:
        """Return the cache bytes that a chunk of ``count`` tokens, the last one at ``end`` - 1, reads: assumed to be
        all rows, each once."""
        return self.kv_bytes(end, itemsize) - self.state_bytes()

    def selects(self, tokens: int) -> bool:
        """Return whether, after ``tokens`` tokens, some layer has more compressed rows than its indexer selects."""
        return any(tokens // ratio > self.index_topk for ratio in self.indexed_ratios)

    def attention_ops(self, tokens: int) -> float:
        """Return the number of float32 operations for attention scores, weighted values and indexer scores of one token
        after ``tokens`` tokens."""
        rows, keys = self.rows_read(tokens)
        return 4.0 * rows * self.n_heads * self.head_dim + 2.0 * keys * self.index_heads * self.index_dim

    def payload_bytes(self, tokens: int) -> int:
        """Return the size in bytes of a saved session of ``tokens`` tokens (model.md 12): header, token ids, logits,
        row counts and cache."""
        return 13 * 4 + 4 * tokens + 4 * self.vocab + 8 * self.n_layers + self.kv_bytes(tokens)


class DimensionKeys(Keys):
    """Reads the metadata keys that the families share."""

    def values(self, kind: type[Dimensions]) -> dict[str, Any]:
        """Return the value of each field of the shape ``kind``."""
        key = "general.architecture"
        got, want = self.text(key), self.prefix[:-1]
        if key in self.metadata and got != want:
            self.faults[key] = f"{key} is {got[:40]!r}, wanted {want!r}"
        values: dict[str, Any] = {field: self.integer(field, key) for field, key, _, _ in kind.ints}
        values |= {field: self.number(key, FLOAT_TYPES) for field, key, _, _ in kind.floats}
        self.expect("attention.head_count_kv", 1)
        self.expect("attention.value_length", values["head_dim"])
        layers = min(values["n_layers"], INTS[0][3])
        values["ratios"] = tuple(self.array(_SPECIAL["ratios"], ("i32[]", "u32[]"), layers))
        values["swiglu_limit"] = self.limits(_SPECIAL["swiglu_limit"], layers)
        values["yarn_orig_ctx"] = self.typed(_SPECIAL["yarn_orig_ctx"], ("u32", "u64"), 0)
        values["norm_weights"] = self.typed(_SPECIAL["norm_weights"], ("bool",), False)
        return values | {"name": self.text("general.name")[:200]}

    def integer(self, field: str, key: str) -> int:
        """Return the value of an integer field."""
        value: int = self.typed(key, U32, 0)
        listed = self.listed() if field == "vocab" else None
        if listed is not None and not 1 <= listed <= value:
            self.faults[TOKENS_KEY] = f"{TOKENS_KEY} has {listed} tokens, {self.prefix}{key} is {value}"
        return value

    def limits(self, key: str, layers: int) -> tuple[float, ...]:
        """Return the SwiGLU limit of each layer; the key holds an array, or one number for all layers."""
        if self.metadata.type_of(self.prefix + key) in ("f32", "f64"):
            return (self.number(key, FLOAT_TYPES),) * layers
        return tuple(self.array(key, ("f32[]", "f64[]"), layers))

    def expect(self, key: str, want: int) -> None:
        """Note a fault if the value of a key is not ``want``."""
        got = self.typed(key, U32, want)
        if got != want:
            self.fault(key, f"is {got}, wanted {want}")

    def array(self, key: str, kinds: tuple[str, ...], most: int, fewest: int | None = None) -> list[Any]:
        """Return the first ``most`` items of an array, whose length is untrusted; note a fault if it has less than
        ``fewest`` (None: one for each of ``most`` layers)."""
        if not self.accepts(key, kinds):
            return []
        length = self.metadata.count(self.prefix + key)
        if length < (most if fewest is None else fewest):
            self.fault(key, f"has {length} entries, wanted one for each of {most} layers")
        values = self.metadata.first(self.prefix + key, most)
        return [decimal(value) for value in values] if self.metadata.type_of(self.prefix + key) == "f32[]" else values


def differences(shape: Any, model: Any, fields: Iterable[str], keys: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return which ``fields`` of two shapes differ: metadata key -> (value, value of ``model``), as text."""
    pairs = {field: (getattr(shape, field), getattr(model, field)) for field in fields}
    return {keys[name]: (brief(got), brief(want)) for name, (got, want) in pairs.items() if not matches(got, want)}


def matches(got: Any, want: Any) -> bool:
    """Return whether two values are equal, floats to one part in a million."""
    if isinstance(want, tuple):
        return len(got) == len(want) and all(matches(g, w) for g, w in zip(got, want, strict=True))
    return abs(got - want) <= 1e-6 * abs(want) if isinstance(want, float) else bool(got == want)


def brief(value: Any) -> str:
    """Return a value as text of at most 40 characters."""
    items = value if isinstance(value, tuple) else (value,)
    text = ",".join(f"{item:.10g}" if isinstance(item, float) else f"{item}" for item in items)
    return text if len(text) <= 40 else text[:37] + "..."
