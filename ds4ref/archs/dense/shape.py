"""Dimensions of a dense decoder, read from metadata and checked.

Keys are llama.cpp's GGUF keys, prefixed with the family's name: ``llama.block_count``, ``qwen3.embedding_length`` ...
Integers may have any integer type. Absent keys have llama.cpp's defaults. A file with a feature that this engine does
not compute (shared experts, layers of different sizes) is refused; features are never ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...weights.accounting import Account, Inert, inert
from ...weights.cursor import quote
from ...weights.inert import METADATA
from ..keys import EMBEDDING, TOKENS_KEY, Keys, check, out_of_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...weights.source import TensorSource

# (field, key, smallest accepted value, largest accepted value)
_INTS = (
    ("n_layers", "block_count", 1, 1024),
    ("dim", "embedding_length", 1, 1 << 16),
    ("ff", "feed_forward_length", 1, 1 << 20),
    ("n_heads", "attention.head_count", 1, 1 << 12),
    ("n_kv_heads", "attention.head_count_kv", 1, 1 << 12),
    ("head_dim", "attention.key_length", 2, 1 << 12),
    ("trained_ctx", "context_length", 1, 1 << 30),
)
_VOCAB_MOST = 1 << 22

# (field, key, lower limit, upper limit), both limits excluded
_FLOATS = (("rope_theta", "rope.freq_base", 1.0, 1e12), ("rms_eps", "attention.layer_norm_rms_epsilon", 0.0, 1.0))

_INT_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
_FLOAT_TYPES = ("f32", "f64", *_INT_TYPES)
_FOREIGN = (
    "attention.causal",
    "leading_dense_block_count",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
"""Keys of features that are not computed here: refused unless their value is 0 (``causal``: true)."""

EXPERTS, USED, DENSE_WIDTH = "expert_count", "expert_used_count", "feed_forward_length"
_LARGEST_GEMMA = 62
"""Number of layers of Gemma 3 27B, by which its GGUF files are recognized and refused: its attention is scaled by
dim / heads, not head_dim."""
_EXPERTS_MOST, _USED_MOST = 4096, 256
WINDOW, WINDOW_LAYERS = "attention.sliding_window", "attention.sliding_window_pattern"
WINDOW_THETA = "rope.freq_base_swa"
_WINDOW_MOST = 1 << 30

SCALINGS = ("none", "linear", "yarn", "llama3")


def inert_keys(prefix: str) -> tuple[Inert, ...]:
    """Return the keys of a dense GGUF file that have no effect on logits."""
    return (
        *METADATA,
        inert("how the file was made", f"{prefix}tensor_data_layout {prefix}rope.scaling.finetuned"),
        inert("embeddings of texts only", f"{prefix}pooling_type", 0),
    )


@dataclass(frozen=True)
class Family:
    """The properties by which a family differs from the others.

    name      value of ``general.architecture``, and the prefix of the family's metadata keys
    halves    RoPE pairs channel i with channel i + head_dim / 2 (GPT-NeoX); False: with the next one (RoFormer)
    qk_norm   each head of queries and keys is RMS-normed before RoPE
    biases    the projections of queries, keys and values add a bias
    experts   metadata key of the width of an expert, if files may have experts; "": the family has none
    gemma     embeddings times sqrt(dim), norms after attention and feed-forward, GELU instead of SiLU
    full      every so many layers one has no sliding window, the others do, with a RoPE base of their own; 0: the file
              states which layers have a window
    """

    name: str
    halves: bool
    qk_norm: bool
    biases: bool = False
    experts: str = ""
    gemma: bool = False
    full: int = 0


class Scaling(NamedTuple):
    """Scaling of RoPE's frequencies for longer contexts (docs/explanation/dense.md).

    kind     "none", "linear", "yarn" (Peng et al. 2023) or "llama3"
    factor   divisor of low frequencies
    trained  context length before scaling, in tokens
    fast     number of turns within ``trained`` tokens above which a frequency is unchanged (beta_fast of YaRN,
             high_freq_factor of Llama 3)
    slow     number of turns below which a frequency is divided by ``factor`` (beta_slow, low_freq_factor)
    gain     factor of cos and sin, in addition to YaRN's own
    """

    kind: str = "none"
    factor: float = 1.0
    trained: int = 0
    fast: float = 32.0
    slow: float = 1.0
    gain: float = 1.0


@dataclass(frozen=True)
class DenseShape:
    """All dimensions and constants of a model.

    window    length of the sliding window in tokens; 0: there is none
    windowed  for each layer, whether it has the window; empty: all layers have it
    window_theta  base of RoPE in layers with a window; 0: the same as in the others
    n_experts, n_used, expert_ff  number of routed experts of a layer, of those that a token uses, and width of each;
              all 0 for a plain feed-forward
    """

    family: Family
    n_layers: int
    dim: int
    ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    trained_ctx: int
    rope_theta: float
    rms_eps: float
    scaling: Scaling = Scaling()
    name: str = ""
    window: int = 0
    windowed: tuple[bool, ...] = ()
    n_experts: int = 0
    n_used: int = 0
    expert_ff: int = 0
    window_theta: float = 0.0

    def window_of(self, layer: int) -> int:
        """Return how many tokens, including itself, a token attends to in a layer; 0: all tokens before it."""
        return self.window if not self.windowed or self.windowed[layer] else 0

    @classmethod
    def from_metadata(cls, source: TensorSource, family: Family) -> DenseShape:
        """Read the shape that a file declares; raise ShapeError naming the first missing, mistyped or inconsistent
        keys."""
        shape, account = metadata_account(source, family)
        check(source, account.problems())
        return shape

    @property
    def kv_width(self) -> int:
        """Return the size of a token's keys in a layer, over all KV heads; its values have the same size."""
        return self.n_kv_heads * self.head_dim

    @property
    def attn_scale(self) -> float:
        """Return the factor by which attention scores are multiplied."""
        return self.head_dim**-0.5

    def cache_rows(self, ctx: int) -> tuple[int, int]:
        """Return the number of cache rows of a layer in a context of ``ctx`` tokens, and 0, as none is compressed."""
        return ctx, 0

    def kv_values_per_token(self) -> int:
        """Return the number of cached values added per token."""
        return 2 * self.n_layers * self.kv_width

    def kv_bytes(self, tokens: int, width: int = 4) -> int:
        """Return the cache bytes after ``tokens`` tokens, ``width`` bytes per value."""
        return self.kv_values_per_token() * tokens * width

    def kv_read_bytes(self, tokens: int, width: int = 4) -> int:
        """Return the cache bytes read to decode one token after ``tokens`` tokens: the rows that it attends to."""
        return 2 * self.kv_width * self.rows_read(tokens) * width

    def kv_chunk_bytes(self, end: int, count: int, width: int = 4) -> int:
        """Return the cache bytes that a chunk of ``count`` tokens, the last one at ``end`` - 1, reads, if each row is
        read once for the whole chunk."""
        rows = sum(min(end, (self.window_of(layer) or end) + count - 1) for layer in range(self.n_layers))
        return 2 * self.kv_width * rows * width

    def attention_ops(self, tokens: int) -> float:
        """Return the number of operations for attention scores and weighted values of one token after ``tokens``
        tokens."""
        return 4.0 * self.rows_read(tokens) * self.n_heads * self.head_dim

    def rows_read(self, tokens: int) -> int:
        """Return the number of cache rows, summed over all layers, that the token after ``tokens`` tokens attends
        to."""
        return sum(min(tokens, self.window_of(layer) or tokens) for layer in range(self.n_layers))

    def metadata(self) -> list[tuple[str, str, Any]]:
        """Return the (key, type, value) entries that declare this shape, for ``weights.writer.write_gguf``."""
        prefix = self.family.name + "."
        entries: list[tuple[str, str, Any]] = [
            ("general.architecture", "string", self.family.name),
            ("general.name", "string", self.name),
            (prefix + "vocab_size", "u32", self.vocab),
            *((prefix + key, "u32", getattr(self, field)) for field, key, _, _ in _INTS),
            (prefix + "attention.value_length", "u32", self.head_dim),
            (prefix + "rope.dimension_count", "u32", self.head_dim),
            *((prefix + key, "f32", getattr(self, field)) for field, key, _, _ in _FLOATS),
        ]
        entries += scaling_entries(prefix, self.scaling)
        entries += window_entries(prefix, self.window, () if self.family.full else self.windowed, self.window_theta)
        return entries + expert_entries(prefix, self.family, (self.n_experts, self.n_used, self.expert_ff))

    def problems(self) -> list[str]:
        """Return one sentence per reason why these dimensions are unusable; empty if they fit together."""
        prefix = self.family.name + "."
        problems = out_of_bounds(self, prefix, _INTS, _FLOATS)
        if not 1 <= self.vocab <= _VOCAB_MOST:
            problems.append(f"a vocabulary of {self.vocab}, wanted 1 to {_VOCAB_MOST}")
        return problems or [text for text, broken in self._rules(prefix) if broken]

    def _rules(self, prefix: str) -> Iterable[tuple[str, bool]]:
        """Return (description, whether it is violated) of each constraint between dimensions."""
        heads, shared, s = self.n_heads, self.n_kv_heads, self.scaling
        fits = math.isfinite(s.factor) and s.factor >= 1 and math.isfinite(s.fast) and 0 < s.slow < s.fast
        fits = fits and 0 < s.gain < 1e3
        return (
            (f"{heads} heads cannot share {shared} key-value heads evenly", heads % shared != 0),
            (f"{prefix}attention.key_length is {self.head_dim}, rope needs an even one", self.head_dim % 2 != 0),
            (f"{prefix}rope.scaling.type is {quote(s.kind, 20)}, not one of {', '.join(SCALINGS)}",
             s.kind not in SCALINGS),
            (f"{prefix}rope.scaling has factor {s.factor}, {s.fast} fast and {s.slow} slow turns", not fits),
            (f"{prefix}rope.scaling.original_context_length is {s.trained}",
             s.kind in ("yarn", "llama3") and not 1 <= s.trained <= 1 << 30),
            (f"{prefix}{WINDOW} is {self.window}, wanted 0 to {_WINDOW_MOST}", not 0 <= self.window <= _WINDOW_MOST),
            (f"{prefix}{WINDOW_LAYERS} has {len(self.windowed)} values for {self.n_layers} layers",
             len(self.windowed) not in (0, self.n_layers)),
            (f"{prefix}{WINDOW_THETA} is {self.window_theta}, wanted between 1 and 1e+12",
             self.window_theta != 0 and not 1 < self.window_theta < 1e12),
            *self._expert_rules(prefix),
        )  # fmt: skip

    def _expert_rules(self, prefix: str) -> Iterable[tuple[str, bool]]:
        if not self.n_experts and not self.n_used:
            return ()
        width, most, widest = prefix + self.family.experts, _EXPERTS_MOST, _INTS[2][3]
        return (
            (f"{prefix}{EXPERTS} is {self.n_experts}, wanted 1 to {most}", not 1 <= self.n_experts <= most),
            (f"{prefix}{USED} is {self.n_used}, wanted 1 to {min(self.n_experts, _USED_MOST)}",
             not 1 <= self.n_used <= min(self.n_experts, _USED_MOST)),
            (f"{width} is {self.expert_ff}, wanted 1 to {widest}", not 1 <= self.expert_ff <= widest),
        )  # fmt: skip


def metadata_account(source: TensorSource, family: Family) -> tuple[DenseShape, Account]:
    """Return the shape that a file declares, and which of its metadata keys are used, have no effect or are refused;
    raise ShapeError for a missing key or a wrong value."""
    reader = _Keys(source, family)
    shape = reader.shape()
    return shape, reader.account(shape, inert_keys(reader.prefix))


def yarn_magnitude(factor: float) -> float:
    """Return the factor by which YaRN multiplies cos and sin, for a scaling of the context by ``factor``."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def scaling_entries(prefix: str, s: Scaling) -> list[tuple[str, str, Any]]:
    """Return the metadata entries (key, type, value) of a RoPE scaling; none for kind "none" without a gain."""
    at = prefix + "rope.scaling."
    entries: list[tuple[str, str, Any]] = [] if s.gain == 1 else [(at + "attn_factor", "f32", s.gain)]
    if s.kind == "none":
        return entries
    entries += [(at + "type", "string", s.kind), (at + "factor", "f32", s.factor)]
    if s.kind == "linear":
        return entries
    entries.append((at + "original_context_length", "u32", s.trained))
    names = ("yarn_beta_fast", "yarn_beta_slow") if s.kind == "yarn" else ("high_freq_factor", "low_freq_factor")
    return [*entries, *((at + name, "f32", value) for name, value in zip(names, (s.fast, s.slow), strict=True))]


def every(full: int, layers: int) -> tuple[bool, ...]:
    """Return, for each layer, whether it has a window, if every ``full``-th layer has none."""
    return tuple((layer + 1) % full != 0 for layer in range(layers))


def window_entries(
    prefix: str, window: int, windowed: tuple[bool, ...], theta: float = 0.0
) -> list[tuple[str, str, Any]]:
    """Return the metadata entries (key, type, value) of a sliding window of ``window`` tokens, none if 0; ``windowed``
    and ``theta`` as in ``DenseShape``."""
    entries: list[tuple[str, str, Any]] = [(prefix + WINDOW, "u32", window)] if window else []
    entries += [(prefix + WINDOW_LAYERS, "bool[]", list(windowed))] if window and windowed else []
    return entries + ([(prefix + WINDOW_THETA, "f32", theta)] if theta else [])


def expert_entries(prefix: str, family: Family, sizes: tuple[int, int, int]) -> list[tuple[str, str, Any]]:
    """Return the metadata entries (key, type, value) of experts; ``sizes``: their number, the number that a token uses
    and their width. No entries if their number is 0."""
    keys = dict(zip((EXPERTS, USED, family.experts), sizes, strict=True)) if sizes[0] else {}
    return [(prefix + key, "u32", value) for key, value in keys.items() if key != DENSE_WIDTH]


class _Keys(Keys):
    """Reads the metadata keys of one family."""

    def __init__(self, source: TensorSource, family: Family):
        super().__init__(source, family.name + ".")
        self.family = family

    def shape(self) -> DenseShape:
        values: dict[str, Any] = {"n_layers": self._int("block_count"), "dim": self._int("embedding_length")}
        values["ff"] = self._int("feed_forward_length")
        heads = values["n_heads"] = self._int("attention.head_count")
        values["n_kv_heads"] = self._int("attention.head_count_kv", heads)
        even = values["dim"] // heads if heads > 0 else 0
        values["head_dim"] = self._int("attention.key_length", even)
        values["trained_ctx"] = self._int("context_length", 1 << 30)
        values["rope_theta"] = self._float("rope.freq_base", 10000.0)
        values["rms_eps"] = self._float("attention.layer_norm_rms_epsilon")
        for key in ("attention.value_length", "rope.dimension_count"):
            got = self._int(key, values["head_dim"])
            if got != values["head_dim"]:
                self.fault(key, f"is {got}, only {values['head_dim']} is supported here")
        values |= self._experts(values["ff"])
        values["window"], values["windowed"] = self._int(WINDOW, 0), self._windowed()
        if self.family.full:
            values |= self._fixed_windows(values["n_layers"])
        self._refuse_foreign()
        self.text("general.architecture")  # read: it chose this family
        name = self.text("general.name")[:200]
        return DenseShape(self.family, vocab=self._vocab(), scaling=self._scaling(), name=name, **values)

    def _vocab(self) -> int:
        """Return the number of rows of the embedding; ``vocab_size``, if it is there, must equal it, and the token list
        must not be longer."""
        info = self.source.tensors.get(EMBEDDING)
        if info is None or len(info.dims) != 2:
            self.faults[EMBEDDING] = f"{EMBEDDING} is missing or no matrix"
            return 0
        rows = info.dims[1]
        declared = self._int("vocab_size", rows)
        if declared != rows:
            self.fault("vocab_size", f"is {declared}, {EMBEDDING} has {rows} rows")
        listed = self.listed()
        if listed is not None and not 1 <= listed <= rows:
            self.faults[TOKENS_KEY] = f"{TOKENS_KEY} has {listed} tokens, {EMBEDDING} {rows} rows"
        return rows

    def _scaling(self) -> Scaling:
        """Return the RoPE scaling. As in llama.cpp, a factor without a type means linear scaling, a factor of 0 means
        none, and ``scale_linear`` is an older name of the factor."""
        at = "rope.scaling."
        old = not self.has(at + "factor")
        factor = self._float("rope.scale_linear" if old else at + "factor", 0.0) or 1.0
        kind = "linear" if factor != 1 else "none"
        if self.has(at + "type"):
            kind = self.typed(at + "type", ("string",), "none")
        gain = self._float(at + "attn_factor", 1.0)
        if kind not in SCALINGS[1:]:
            factor = factor if kind != "none" else 1.0
            return Scaling(str(kind), factor, gain=gain)  # none, or an unknown kind, which ``problems`` will name
        if kind == "linear":
            return Scaling(kind, factor, gain=gain)
        llama3 = kind == "llama3"
        names = ("high_freq_factor", "low_freq_factor") if llama3 else ("yarn_beta_fast", "yarn_beta_slow")
        fast, slow = (self._float(at + name, start) for name, start in zip(names, (32.0, 1.0), strict=True))
        trained = self._int(at + "original_context_length", self._int("context_length", 0))
        return Scaling(str(kind), factor, trained, fast, slow, gain)

    def _fixed_windows(self, layers: int) -> dict[str, Any]:
        """Return ``windowed`` and ``window_theta`` for a family in which every ``full``-th layer has no window; the
        file must declare a window."""
        if not self._int(WINDOW):
            self.fault(WINDOW, f"is 0, wanted 1 to {_WINDOW_MOST}")
        if self.has(WINDOW_LAYERS):
            self.fault(WINDOW_LAYERS, "is given, which is not supported here")
        if layers == _LARGEST_GEMMA:
            self.fault("block_count", f"is {layers}: a scale of attention that is not supported here")
        windowed = every(self.family.full, min(layers, _INTS[0][3]))
        return {"windowed": windowed, "window_theta": self._float(WINDOW_THETA, 10000.0)}

    def _experts(self, ff: int) -> dict[str, int]:
        if not self.family.experts:
            return {}
        count = self._int(EXPERTS, 0)
        used = self._int(USED, None if count else 0)
        if not count:
            return {"n_experts": 0, "n_used": used}
        width = ff if self.family.experts == DENSE_WIDTH else self._int(self.family.experts, ff // max(1, used))
        return {"n_experts": count, "n_used": used, "expert_ff": width}

    def _windowed(self) -> tuple[bool, ...]:
        kind = self.metadata.type_of(self.prefix + WINDOW_LAYERS)
        if kind is None:
            return ()
        if kind != "bool[]" or self.metadata.count(self.prefix + WINDOW_LAYERS) > _INTS[0][3]:
            self.fault(WINDOW_LAYERS, f"has type {kind}, wanted bool[], one for each layer")
            return ()
        return tuple(self.metadata[self.prefix + WINDOW_LAYERS])

    def _refuse_foreign(self) -> None:
        for key in _FOREIGN if self.family.experts else (*_FOREIGN, EXPERTS, USED):
            kind = self.metadata.type_of(self.prefix + key) or "[]"
            value = kind if kind.endswith("[]") else self.metadata[self.prefix + key]
            if self.has(key) and value != (True if key == "attention.causal" else 0):
                self.fault(key, f"is {quote(str(value), 20)}, which is not supported here")

    def _int(self, key: str, otherwise: int | None = None) -> int:
        """Return an integer, or ``otherwise`` if the key is absent; if ``otherwise`` is None, an absent key is a
        fault."""
        return otherwise if otherwise is not None and not self.has(key) else int(self.typed(key, _INT_TYPES, 0))

    def _float(self, key: str, otherwise: float | None = None) -> float:
        return otherwise if otherwise is not None and not self.has(key) else self.number(key, _FLOAT_TYPES)
