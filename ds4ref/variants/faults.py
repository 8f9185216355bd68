"""Faults: typical bugs of engines, each injected into our forward pass by a small hook.

A fault replaces ops, shape or rope tables when a chunk of tokens begins, or edits named intermediates (``hooks.NAMES``)
during the pass. Tests inject faults to prove that the test suite would notice; the diagnosis compares other engines'
logits with them.

    session.hooks = FAULTS["hc_comb_transposed"].hooks()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..archs.deepseek4.cache import EMPTY_SCORE
from ..archs.deepseek4.chunk import Chunk
from ..archs.deepseek4.rope import RopeTables

Begin = Callable[[Chunk], None]
# edit(value, layer, chunk, taps) returns the value to continue with; taps: newest value of every intermediate by name
Edit = Callable[[Any, int, Chunk, dict[str, Any]], Any]


class FaultHooks:
    """Session hooks that apply one fault. An edit can also read the intermediates that came before it in the pass, by
    name."""

    def __init__(self, begin: Begin | None, edits: dict[str, Edit]):
        self._begin, self._edits = begin, edits
        self._taps: dict[str, Any] = {}

    def begin(self, chunk: Chunk) -> None:
        """Apply the fault's replacements of ops, shape or rope tables to a new chunk."""
        self._taps.clear()
        if self._begin is not None:
            self._begin(chunk)

    def tap(self, name: str, layer: int, value: Any, chunk: Chunk) -> Any:
        """Return an intermediate with the fault's edit applied, unchanged if the fault has no edit for it."""
        self._taps[name] = value
        edit = self._edits.get(name)
        return value if edit is None else edit(value, layer, chunk, self._taps)

    def goes_on(self, name: str, value: Any) -> None:
        """Record that another hook replaced the intermediate ``name`` by ``value``, so that later edits read that."""
        self._taps[name] = value


@dataclasses.dataclass(frozen=True)
class Fault:
    """One injected bug.

    name    short name, used in the diagnosis' verdicts
    says    one-line description
    begin   called when a chunk of tokens begins, to change its ops, shape or tables; None: nothing to change
    edits   functions that replace intermediates, by the intermediate's name
    quiet   whether its effect is below the noise of quantized activations, so that only float comparisons show it
    needs   field of Numerics that must be on for the bug to have an effect; "": it always has
    fmt     storage format whose decoding is wrong; "": the bug is not about a format
    tokens  longest prompt, in tokens, on which the bug has no effect
    ahead   whether it lets later tokens influence earlier ones
    """

    name: str
    says: str
    begin: Begin | None = None
    edits: dict[str, Edit] = dataclasses.field(default_factory=dict)
    quiet: bool = False
    needs: str = ""
    fmt: str = ""
    tokens: int = 0
    ahead: bool = False

    @property
    def touches(self) -> frozenset[str]:
        """Return the names of everything the bug changes: intermediates, ops, fields of the shape or the chunk."""
        return frozenset(self.edits) | getattr(self.begin, "touches", frozenset())

    def hooks(self) -> FaultHooks:
        """Return new session hooks that apply this fault."""
        return FaultHooks(self.begin, self.edits)


class Changed:
    """A backend with some ops replaced, given by keyword; all others are those of the backend ``ops``."""

    def __init__(self, ops: Any, **changes: Callable):
        self.__dict__.update(changes)
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def _op(name: str, make: Callable[[Any], Callable]) -> Begin:
    """Return a ``begin`` function that replaces op ``name`` by make(original op)."""

    def begin(chunk: Chunk) -> None:
        chunk.ops = Changed(chunk.ops, **{name: make(getattr(chunk.ops, name))})

    return _touching(begin, name)


def _shape(**changes: Any) -> Begin:
    """Return a ``begin`` function that replaces fields of the model shape."""

    def begin(chunk: Chunk) -> None:
        chunk.shape = dataclasses.replace(chunk.shape, **changes)

    return _touching(begin, *changes)


def _touching(begin: Begin, *names: str) -> Begin:
    """Record the names of what ``begin`` changes, for ``Fault.touches``, and return it."""
    begin.touches = frozenset(names)  # type: ignore[attr-defined]
    return begin


def _value(compute: Callable[[Any], Any]) -> Edit:
    return lambda value, layer, chunk, taps: compute(value)


# --- window, sinks, norms


def _window(extra: int) -> Edit:
    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        first, count = value
        full = count == chunk.shape.window
        if extra > 0:
            full &= first >= extra
        return (first - extra * full).astype(np.int32), (count + extra * full).astype(np.int32)

    return edit


# --- rope


def _half_split(rope: Callable) -> Callable:
    def wrong(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False) -> np.ndarray:
        half = cos.shape[1]
        order = np.arange(2 * half).reshape(2, half).T.ravel()
        out = x.copy()
        paired = x.copy()
        paired[..., -2 * half :] = x[..., -2 * half :][..., order]
        out[..., x.shape[-1] - 2 * half + order] = rope(paired, cos, sin, inverse)[..., -2 * half :]
        return out

    return wrong


def _rope_head(rope: Callable) -> Callable:
    def wrong(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, inverse: bool = False) -> np.ndarray:
        n = 2 * cos.shape[1]
        out = x.copy()
        out[..., :n] = rope(np.ascontiguousarray(x[..., :n]), cos, sin, inverse)
        return out

    return wrong


def _no_yarn(chunk: Chunk) -> None:
    plain = dataclasses.replace(chunk.shape, rope_theta=chunk.shape.compress_theta)
    chunk.rope = {**chunk.rope, True: RopeTables(plain, False, chunk.numerics.rope)}


def _swap_rope(kind: bool) -> Begin:
    def begin(chunk: Chunk) -> None:
        chunk.rope = {**chunk.rope, kind: chunk.rope[not kind]}

    return begin


def _magnitude(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
    if not chunk.shape.ratios[layer]:
        return value
    gain = np.float32(1 + 0.1 * np.log(chunk.shape.yarn_factor))
    return value[0] * gain, value[1] * gain


def _rotated(source: str, shift: int, inverse: bool = False) -> Edit:
    """Return an edit that applies rope to the intermediate ``source`` (T, ...) at positions shifted by ``shift``."""

    def edit(value: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
        tables = chunk.rope_tables(chunk.shape.ratios[layer] != 0, chunk.positions + shift)
        right = taps[source]
        return chunk.ops.rope(right.reshape(len(right), -1, value.shape[-1]), *tables, inverse=inverse).reshape(
            value.shape
        )

    return edit


def _row_shift(shift: Callable[[int], int]) -> dict[str, Edit]:
    """Return edits that apply rope to compressed cache rows at ``shift(ratio)`` positions after the first token of the
    window that they were made from; correct is 0."""

    def edit(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
        ratio = chunk.shape.ratios[layer]
        first = chunk.pos0 // ratio
        return chunk.rope_tables(True, np.arange(first, first + len(value[0])) * ratio + shift(ratio))

    return {"attn_comp_rope_tables": edit, "indexer_comp_rope_tables": edit}


# --- compressor


def _both(name: str, edit: Edit) -> dict[str, Edit]:
    return {f"attn_comp_{name}": edit, f"indexer_comp_{name}": edit}


def _ignore_previous(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
    kv, score = value
    if chunk.shape.ratios[layer] == 4:
        score = score.copy()
        score[:, :4] = EMPTY_SCORE
    return kv, score


def _zero_scored(value: tuple, layer: int, chunk: Chunk, taps: dict) -> tuple:
    kv, score = value
    return kv, np.where(score <= EMPTY_SCORE / 2, np.float32(0), score)


def _swap_halves(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    return np.roll(value, value.shape[1] // 2, axis=1) if chunk.shape.ratios[layer] == 4 else value


def _no_ape(prefix: str) -> dict[str, Edit]:
    return {f"{prefix}_comp_score_raw": lambda value, layer, chunk, taps: taps[f"{prefix}_comp_gate_raw"]}


def _late(chunk: Chunk) -> None:
    chunk.visible = lambda ratio: (chunk.positions // ratio).astype(np.int32)  # type: ignore[method-assign]


def _acausal(value: np.ndarray, layer: int, chunk: Chunk, taps: dict) -> np.ndarray:
    return np.full_like(value, value[-1]) if chunk.shape.ratios[layer] == 128 else value


# --- indexer


def _recent(value: np.ndarray | None, layer: int, chunk: Chunk, taps: dict) -> np.ndarray | None:
    if value is None:
        return None
    k = value.shape[1]
    visible = chunk.visible(chunk.ratio)[:, None]
    rows = np.maximum(visible - k, 0) + np.arange(k)
    return np.where(rows < visible, rows, -1).astype(np.int32)


def _no_relu(scores: Callable) -> Callable:
    return lambda iq, rows, w, n: np.einsum("thd,nd,th->tn", iq, rows, w, optimize=True).astype(np.float32)


# --- router: most engines have separate code for layers that pick experts by a hash of the token and by learned scores


def _router(change: Callable[..., tuple], hashed: bool) -> Begin:
    """Return a ``begin`` function that replaces the router's result by change(probs, ids, weights, logits, bias, k,
    scale), in layers whose experts follow from a hash of the token (``hashed``), or in all others."""

    def make(route: Callable) -> Callable:
        def wrong(logits, bias, hash_ids, k, scale, floor):
            routed = route(logits, bias, hash_ids, k, scale, floor)
            if (hash_ids is not None) != hashed:
                return routed
            return change(*routed, logits, bias, k, scale)

        return wrong

    return _op("route", make)


def _take(p: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return np.take_along_axis(p, ids, axis=1)


def _normalised(w: np.ndarray, scale: float) -> np.ndarray:
    return (w / w.sum(axis=1, keepdims=True) * scale).astype(np.float32)


def _softmax_route(probs, ids, weights, logits, bias, k, scale):
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs, ids, _normalised(_take(p, ids), scale)


def _biased_weights(probs, ids, weights, logits, bias, k, scale):
    return probs, ids, weights if bias is None else _normalised(_take(probs + bias, ids), scale)


def _unbiased_route(probs, ids, weights, logits, bias, k, scale):
    ids = np.argsort(-probs, axis=1, kind="stable")[:, :k].astype(np.int32)
    return probs, ids, _normalised(_take(probs, ids), scale)


def _clamp(routed: bool, limit: Callable[[float], float]) -> Begin:
    def make(swiglu: Callable) -> Callable:
        return lambda gate, up, bound, weight=None: swiglu(
            gate, up, limit(bound) if (gate.ndim == 3) == routed else bound, weight
        )

    return _op("swiglu", make)


def _clamp_below(swiglu: Callable) -> Callable:
    return lambda gate, up, limit, weight=None: swiglu(np.maximum(gate, np.float32(-limit)), up, limit, weight)


# --- hyper-connections


def _half_post(split: Callable) -> Callable:
    def wrong(*args):
        pre, post, comb = split(*args)
        return pre, post * np.float32(0.5), comb

    return wrong


def _transposed(expand: Callable) -> Callable:
    return lambda X, y, post, comb: expand(X, y, post, np.ascontiguousarray(comb.transpose(0, 2, 1)))


_HUGE = float(np.finfo(np.float32).max)

_LIST = [
    Fault("window_short", "window one row short", edits={"raw_window": _window(-1)}),
    Fault("window_long", "window one row long", edits={"raw_window": _window(1)}),
    Fault("no_sink", "no attention sink", edits={"attn_sinks": _value(lambda s: np.full_like(s, -np.inf))}),
    Fault("sink_zero", "attention sink logit 0 instead of the learned one",
          edits={"attn_sinks": _value(np.zeros_like)}),
    Fault("no_inverse_rope", "attention output not rotated back",
          edits={"kqv_back": lambda value, layer, chunk, taps: taps["kqv_out"]}),
    Fault("rope_half_split", "rope pairs half-split (NeoX) instead of adjacent", _op("rope", _half_split)),
    Fault("rope_first_dims", "rope on the first channels instead of the last", _op("rope", _rope_head)),
    Fault("yarn_magnitude", "YaRN magnitude applied to cos and sin",
          edits={"rope_tables": _magnitude} | _both("rope_tables", _magnitude)),
    Fault("no_yarn", "compressed layers without YaRN", _no_yarn),
    Fault("compressed_main_rope", "compressed layers with the main rope base", _swap_rope(True)),
    Fault("plain_compressed_rope", "layers without compression use the compressed rope", _swap_rope(False)),
    Fault("row_rope_end", "compressed rows rotated at their window's end", edits=_row_shift(lambda ratio: ratio - 1)),
    Fault("row_rope_late", "compressed rows rotated one window late", edits=_row_shift(lambda ratio: ratio)),
    Fault("no_previous_window", "ratio 4: previous window ignored", edits=_both("candidates", _ignore_previous)),
    Fault("halves_swapped", "ratio 4: first and second halves swapped",
          edits=_both("kv_raw", _swap_halves) | _both("score_raw", _swap_halves)),
    Fault("first_window_zero", "ratio 4: missing first half window scored 0", edits=_both("candidates", _zero_scored)),
    Fault("no_ape", "no position bias in the compressors", edits=_no_ape("attn") | _no_ape("indexer")),
    Fault("row_late", "compressed rows visible one token late", _late),
    Fault("acausal_128", "ratio 128: rows of the whole chunk visible early", edits={"comp_count": _acausal},
          ahead=True),
    Fault("indexer_all", "indexer ignored: all rows attended", edits={"indexer_topk": _value(lambda ids: None)}),
    Fault("indexer_recent", "indexer ignored: most recent rows attended", edits={"indexer_topk": _recent}),
    Fault("indexer_no_relu", "indexer scores without ReLU", _op("index_scores", _no_relu)),
    Fault("indexer_no_weights", "indexer head weights ignored",
          _op("index_scores", lambda op: lambda iq, rows, w, n: op(iq, rows, np.ones_like(w), n))),
    Fault("router_no_scale", "router: no route scale",
          _router(lambda p, i, w, *a: (p, i, w / np.float32(a[3])), False)),
    Fault("router_softmax", "router: softmax weights instead of sqrt(softplus)", _router(_softmax_route, False)),
    Fault("router_not_normalised", "router: weights not normalised",
          _router(lambda p, i, w, *a: (p, i, _take(p, i) * np.float32(a[3])), False)),
    Fault("router_biased_weights", "router: selection bias kept in the weights",
          _router(_biased_weights, False)),
    Fault("router_no_bias", "router: bias not used in selection", _router(_unbiased_route, False)),
    Fault("hash_uniform", "hash layers: uniform weights",
          _router(lambda p, i, w, *a: (p, i, np.full_like(w, a[3] / a[2])), True)),
    Fault("hash_no_scale", "hash layers: no route scale",
          _router(lambda p, i, w, *a: (p, i, w / np.float32(a[3])), True)),
    Fault("no_clamp_routed", "routed experts: no clamp", _clamp(True, lambda limit: _HUGE)),
    Fault("no_clamp_shared", "shared expert: no clamp", _clamp(False, lambda limit: _HUGE)),
    Fault("gate_clamped_below", "gate clamped below too", _op("swiglu", _clamp_below), quiet=True),
    Fault("hc_comb_transposed", "hyper-connections: comb not transposed", _op("hc_expand", _transposed)),
    Fault("hc_post_half", "hyper-connections: post without the factor 2", _op("hc_split", _half_post)),
    Fault("sinkhorn_1", "hyper-connections: 1 Sinkhorn iteration", _shape(sinkhorn_iters=1)),
    Fault("sinkhorn_short", "hyper-connections: one Sinkhorn iteration too few", quiet=True,
          begin=lambda chunk: _shape(sinkhorn_iters=chunk.shape.sinkhorn_iters - 1)(chunk)),
    Fault("hc_eps_0", "hyper-connections: eps 0", _shape(hc_eps=0.0), quiet=True),
    Fault("no_q_head_norm", "query head norm missing", edits={"Qnorm": lambda value, layer, chunk, taps: taps["Qraw"]}),
    Fault("rms_eps_1e5", "RMS norm eps 1e-5", _shape(rms_eps=1e-5), quiet=True),
]  # fmt: skip

FAULTS = {fault.name: fault for fault in _LIST}
"""All known single faults by name."""
