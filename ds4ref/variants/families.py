"""Injected bugs with a parameter: a constant of the model has a wrong value. Each constant is a family of faults.

    family = FAMILIES["sinkhorn_rounds"]
    family.fault(3)                   the fault "Sinkhorn runs 3 rounds"
    family.neutral(shape)             20: the right value of the constant
    family.grid(shape)                wrong values to start a search with

The parameter is in the unit of the quantity itself (rounds, cache rows, epsilon), or a factor applied to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..archs.deepseek4.chunk import Chunk
from ..archs.deepseek4.rope import RopeTables
from ..archs.deepseek4.shape import ModelShape
from .faults import Begin, Edit, Fault, _clamp, _op, _rotated, _row_shift, _shape, _touching

FACTORS = (0.25, 0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 4.0)
NEAR = (-8, -4, -2, -1, 1, 2, 4, 8)


@dataclass(frozen=True)
class Family:
    """A constant of the model that an engine may have wrong.

    name    name of the family
    says    one-line description, a format string with {value} and {right}
    make    returns what the fault with a given value does: (function called when a chunk begins or None, edits of
            intermediates by name), as in ``Fault``
    right   returns the correct value for a model shape
    values  returns the values to start a search with, for a model shape
    whole   whether values are integers
    log     whether a search steps on a logarithmic scale
    most    returns the largest value worth trying for a model shape; None: four times the largest of ``values``
    """

    name: str
    says: str
    make: Callable[[float], tuple[Begin | None, dict[str, Edit]]]
    right: Callable[[ModelShape], float] = lambda shape: 1.0
    values: Callable[[ModelShape], tuple[float, ...]] = lambda shape: FACTORS
    whole: bool = False
    log: bool = True
    most: Callable[[ModelShape], float] | None = None

    def fault(self, value: float) -> Fault:
        """Return the fault in which the constant has this value."""
        begin, edits = self.make(value)
        return Fault(self.label(value), self.name, begin, edits)

    def label(self, value: float) -> str:
        """Return a unique name for the fault with this value: "sinkhorn_rounds=3"."""
        return f"{self.name}={int(value) if self.whole else float(f'{value:.7g}')}"

    def describe(self, value: float, shape: ModelShape) -> str:
        """Return a one-line description of the fault with this value."""
        text = str(int(value)) if self.whole else f"{value:.4g}"
        return self.says.format(value=text, right=f"{self.neutral(shape):g}")

    def neutral(self, shape: ModelShape) -> float:
        """Return the correct value of the constant."""
        return self.right(shape)

    def limits(self, shape: ModelShape) -> tuple[float, float]:
        """Return the smallest and largest value that a search may try; for parameters that are integers."""
        grid = self.grid(shape)
        right = self.neutral(shape)
        low = 1.0 if right > 0 else min(8 * min(grid), right)
        if self.name == "window_rows":
            low = 1.0 - shape.window
        return low, 4 * max(*grid, right) if self.most is None else self.most(shape)

    def grid(self, shape: ModelShape) -> tuple[float, ...]:
        """Return the wrong values to start a search with."""
        right = self.neutral(shape)
        return tuple(value for value in self.values(shape) if value != right)


# --- functions for ``Family.make``: each returns a function value -> (begin, edits), or is one

Made = tuple[Begin | None, dict[str, Edit]]


def _field(name: str, whole: bool = False) -> Callable[[float], Made]:
    return lambda value: (_shape(**{name: int(value) if whole else float(value)}), {})


def _scaled(*names: str) -> Callable[[float], Made]:
    """Return a maker of faults that multiply the intermediates ``names`` by the parameter."""

    def make(factor: float) -> Made:
        def edit(value: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
            return value * np.float32(factor)

        return None, dict.fromkeys(names, edit)

    return make


def _changed(op: str, change: Callable[[Callable, float], Callable]) -> Callable[[float], Made]:
    return lambda value: (_op(op, lambda original: change(original, value)), {})


def _window(extra: float) -> Made:
    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        first = np.maximum(chunk.positions - (chunk.shape.window + int(extra) - 1), 0)
        return first.astype(np.int32), (chunk.positions - first + 1).astype(np.int32)

    return None, {"raw_window": edit}


def _tables(chunk: Chunk, compress: bool, field: str, value: float) -> RopeTables:
    """Return the rope tables of compressed or other layers, computed with ``value`` in the shape's ``field``."""
    wrong: dict[str, Any] = {field: float(value)}
    return RopeTables(dataclasses.replace(chunk.shape, **wrong), compress, chunk.numerics.rope)


def _rope(compress: bool, field: str) -> Callable[[float], Made]:
    """Return a maker of faults that change a constant, ``field``, of the rope tables of compressed or other layers."""

    def make(value: float) -> Made:
        def begin(chunk: Chunk) -> None:
            chunk.rope = {**chunk.rope, compress: _tables(chunk, compress, field, value)}

        return _touching(begin, "rope"), {}

    return make


def _position(point: str, source: str, inverse: bool = False) -> Callable[[float], Made]:
    """Return a maker of faults that apply rope at a position shifted by the parameter.

    point: intermediate to replace; source: the same values before rope; inverse: rotate backwards.
    """
    return lambda shift: (None, {point: _rotated(source, int(shift), inverse)})


def _back_base(compress: bool, field: str) -> Callable[[float], Made]:
    """Return a maker of faults that rotate the attention output back with another rope base than that of queries and
    cached rows, in compressed or other layers."""

    def make(value: float) -> Made:
        def edit(current: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
            if (chunk.shape.ratios[layer] != 0) is not compress:
                return current
            return chunk.ops.rope(
                taps["kqv_out"], *_tables(chunk, compress, field, value)(chunk.positions), inverse=True
            )

        return None, {"kqv_back": edit}

    return make


def _pair(shape: ModelShape) -> float:
    """Return the factor on beta_fast, beta_slow or the original context that moves an end of YaRN's ramp by one pair of
    channels."""
    return shape.compress_theta ** (2 / shape.rope_dim)


def _pairs_off(field: str) -> Callable[[ModelShape], tuple[float, ...]]:
    """Return a function that lists values of ``field`` that move an end of YaRN's ramp by whole pairs of channels; less
    has no effect."""
    return lambda shape: tuple(getattr(shape, field) * _pair(shape) ** by for by in (-3, -2, -1, 1, 2, 3))


def _ape(factor: float) -> Made:
    def edit(prefix: str) -> Edit:
        def scaled(value: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
            gate = taps[f"{prefix}_comp_gate_raw"]
            return gate + (value - gate) * np.float32(factor)

        return scaled

    return None, {f"{prefix}_comp_score_raw": edit(prefix) for prefix in ("attn", "indexer")}


def _ape_phase(shift: float) -> Made:
    def change(bias: Callable) -> Callable:
        return lambda gate, ape, at: bias(gate, np.ascontiguousarray(np.roll(ape, -int(shift), axis=0)), at)

    return _op("position_bias", change), {}


def _engram(factor: float) -> Made:
    def edit(value: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
        before = taps["engram_in"]
        return before + (value - before) * np.float32(factor)

    return None, {"engram_out": edit}


def _bias(route: Callable, factor: float) -> Callable:
    def wrong(logits, bias, *rest):
        return route(logits, None if bias is None else bias * np.float32(factor), *rest)

    return wrong


def _weights(route: Callable, factor: float) -> Callable:
    def wrong(*args):
        probs, ids, weights = route(*args)
        return probs, ids, weights * np.float32(factor)

    return wrong


def _used(route: Callable, count: float) -> Callable:
    def wrong(logits, bias, hash_ids, k, scale, floor):
        return route(logits, bias, hash_ids, k if hash_ids is not None else int(count), scale, floor)

    return wrong


def _topk(select: Callable, count: float) -> Callable:
    def wrong(scores, visible, k):
        return select(scores, visible, min(int(count), scores.shape[1]))

    return wrong


def _clamped(routed: bool) -> Callable[[float], Made]:
    return lambda limit: (_clamp(routed, lambda bound: limit), {})


def _hc_scale(split: Callable, factor: float) -> Callable:
    return lambda mix, scale, *rest: split(mix, scale * np.float32(factor), *rest)


def _sink(change: Callable[[np.ndarray, float], np.ndarray]) -> Callable[[float], Made]:
    return lambda value: (
        None,
        {"attn_sinks": lambda s, layer, chunk, taps: change(s, value).astype(np.float32)},
    )


def _around(field: str, least: int = 1) -> Callable[[ModelShape], tuple[float, ...]]:
    return lambda shape: tuple(getattr(shape, field) + d for d in NEAR if getattr(shape, field) + d >= least)


def _steps(*values: float) -> Callable[[ModelShape], tuple[float, ...]]:
    return lambda shape: values


def _offsets(shape: ModelShape) -> tuple[float, ...]:
    return tuple(float(d) for d in NEAR if shape.window + d >= 1)


def _contexts(shape: ModelShape) -> tuple[float, ...]:
    """Return wrong original contexts for YaRN; two of them move its ramp by one pair of channels, the smallest step."""
    factors = (1 / 64, 1 / 16, 0.25, 0.5, 1 / _pair(shape), _pair(shape), 2.0, 4.0)
    return tuple(shape.yarn_orig_ctx * factor for factor in factors)


def _times(field: str) -> Callable[[ModelShape], tuple[float, ...]]:
    return lambda shape: tuple(getattr(shape, field) * f for f in FACTORS)


def _of(field: str) -> Callable[[ModelShape], float]:
    return lambda shape: float(getattr(shape, field))


_LIMITS = (lambda shape: float(shape.swiglu_limit[0])), _steps(1, 3, 5, 7, 9, 12, 20)
_LIST = [
    Family("sinkhorn_rounds", "Sinkhorn runs {value} rounds, not {right}", _field("sinkhorn_iters", True),
           _of("sinkhorn_iters"), _steps(1, 2, 3, 4, 6, 10, 15), whole=True),
    Family("rms_eps", "epsilon of the RMS norms is {value}, not {right}", _field("rms_eps"), _of("rms_eps"),
           _steps(1e-8, 1e-5, 1e-4, 1e-3, 1e-2)),
    Family("hc_eps", "epsilon of the hyper-connections is {value}, not {right}", _field("hc_eps"), _of("hc_eps"),
           _steps(1e-8, 1e-5, 1e-4, 1e-3, 1e-2)),
    Family("window_rows", "sliding window off by {value} rows", _window, lambda shape: 0.0, _offsets, whole=True,
           log=False),
    Family("indexer_topk", "indexer selects {value} rows, not {right}", _changed("select_rows", _topk),
           _of("index_topk"), _around("index_topk"), whole=True),
    Family("experts_used", "{value} experts a token, not {right}", _changed("route", _used), _of("n_used"),
           lambda shape: tuple(float(n) for n in range(1, min(shape.n_experts, shape.n_used + 3) + 1)), whole=True,
           most=_of("n_experts")),
    Family("routed_scale", "routed experts' weights times {value}", _changed("route", _weights)),
    Family("shared_scale", "shared expert's output times {value}", _scaled("ffn_shexp")),
    Family("attention_scale", "attention scores times {value}",
           _changed("attention", lambda op, v: lambda *a: op(*a[:-1], a[-1] * v))),
    Family("attention_output_scale", "attention output times {value}", _scaled("attn_out")),
    Family("row_scale", "cached rows times {value}", _scaled("KVnorm")),
    Family("sink_scale", "attention sinks times {value}", _sink(lambda s, v: s * np.float32(v))),
    Family("sink_offset", "attention sinks off by {value}", _sink(lambda s, v: s + np.float32(v)),
           lambda shape: 0.0, _steps(-4, -2, -1, -0.3, 0.3, 1, 2, 4), log=False),
    Family("sink_head", "each head takes the sink of the one {value} further",
           _sink(lambda s, v: np.roll(s, -int(v))), lambda shape: 0.0, _steps(-1, 1), whole=True, log=False),
    Family("router_bias_scale", "router's selection bias times {value}", _changed("route", _bias)),
    Family("swiglu_limit", "clamp of all experts at {value}, not {right}",
           _changed("swiglu", lambda op, v: lambda gate, up, bound, weight=None: op(gate, up, v, weight)),
           *_LIMITS),
    Family("clamp_routed", "clamp of the routed experts at {value}", _clamped(True), *_LIMITS),
    Family("clamp_shared", "clamp of the shared expert at {value}", _clamped(False), *_LIMITS),
    Family("rope_base", "rope base {value}, not {right}, in layers without compression",
           _rope(False, "rope_theta"), _of("rope_theta"), _times("rope_theta")),
    Family("compress_rope_base", "rope base {value}, not {right}, in compressed layers",
           _rope(True, "compress_theta"), _of("compress_theta"), _times("compress_theta")),
    Family("yarn_factor", "YaRN factor {value}, not {right}", _rope(True, "yarn_factor"), _of("yarn_factor"),
           _times("yarn_factor")),
    Family("yarn_original_context", "YaRN's original context {value}, not {right}, or its whole ramp pairs of channels "
           "off", _rope(True, "yarn_orig_ctx"), _of("yarn_orig_ctx"), _contexts),
    Family("yarn_beta_fast", "YaRN's beta_fast is {value}, not {right}: its ramp begins elsewhere",
           _rope(True, "yarn_beta_fast"), _of("yarn_beta_fast"), _pairs_off("yarn_beta_fast")),
    Family("yarn_beta_slow", "YaRN's beta_slow is {value}, not {right}: its ramp ends elsewhere",
           _rope(True, "yarn_beta_slow"), _of("yarn_beta_slow"), _pairs_off("yarn_beta_slow")),
    Family("inverse_rope_base", "attention output rotated back with base {value}, not {right}, in layers without "
           "compression", _back_base(False, "rope_theta"), _of("rope_theta"), lambda shape: (shape.compress_theta,)),
    Family("inverse_compress_rope_base", "attention output rotated back with base {value}, not {right}, in "
           "compressed layers", _back_base(True, "compress_theta"), _of("compress_theta"),
           lambda shape: (shape.rope_theta,)),
    Family("ape_scale", "position bias of the compressors times {value}", _ape),
    Family("ape_phase", "position bias of the compressors off by {value} phases", _ape_phase, lambda shape: 0.0,
           _steps(-1, 1, 2), whole=True, log=False),
    Family("hc_scale", "scale of the hyper-connections times {value}", _changed("hc_split", _hc_scale)),
    Family("embedding_scale", "embedding times {value}",
           _changed("embed", lambda op, v: lambda *a: op(*a) * np.float32(v))),
    Family("logit_scale", "logits times {value}, as by a temperature", _scaled("result_output")),
    Family("query_position", "queries rotated {value} positions off", _position("Qcur", "Qnorm"), lambda shape: 0.0,
           _steps(-2, -1, 1, 2), whole=True, log=False),
    Family("row_position", "cached rows rotated {value} positions off", _position("KVrope", "KVnorm"),
           lambda shape: 0.0, _steps(-2, -1, 2), whole=True, log=False),
    Family("compressed_position", "compressed rows rotated {value} positions off",
           lambda shift: (None, _row_shift(lambda ratio: int(shift))), lambda shape: 0.0, _steps(-1, 1), whole=True,
           log=False),
    Family("inverse_position", "attention output rotated back {value} positions off",
           _position("kqv_back", "kqv_out", True), lambda shape: 0.0, _steps(-2, -1, 1, 2), whole=True, log=False),
]  # fmt: skip
FAMILIES = {family.name: family for family in _LIST}
"""All families by name."""
LATER = {name: family for name, family in FAMILIES.items() if not name.startswith("ape_")} | {
    family.name: family
    for family in (
        Family("indexer_topk", "indexer selects {value} rows, not {right}", _field("index_topk", True),
               _of("index_topk"), _around("index_topk"), whole=True),
        Family("candidate_blocks", "{value} candidate blocks, not {right}", _field("candidate_blocks", True),
               _of("candidate_blocks"), _around("candidate_blocks"), whole=True),
        Family("query_position", "queries rotated {value} positions off", _position("Qcur", "Qraw"), lambda shape: 0.0,
               _steps(-2, -1, 1, 2), whole=True, log=False),
        Family("router_temperature", "router's logits divided by {value}, not {right}", _field("gate_temp"),
               _of("gate_temp"), _times("gate_temp")),
        Family("engram_scale", "value of Engram times {value}", _engram),
    )
}  # fmt: skip
"""The same of V4.1, which has no position bias."""
