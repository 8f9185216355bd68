"""Variants of the formulas of every op: rotations, windows, compressors, routers, activations, mixing (see ``edits``).

Each is (intermediate at which the mistake would be, what is changed, functions that replace intermediates).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from ..archs.deepseek4.forward import Base
from .faults import Edit
from .faults_parts import _gelu

Taps = dict[str, Any]
Alter = Callable[[np.ndarray], np.ndarray]
Made = Iterator[tuple[str, str, dict[str, Edit]]]

FEW = 8
"""Heads, experts and streams are changed one by one if there are no more than this; exchanged in pairs, half of it."""


def each(alter: Callable[..., np.ndarray], *more: Any) -> Edit:
    """Return an edit that replaces an intermediate by alter(it, *more)."""
    return lambda value, layer, chunk, taps: alter(value, *more).astype(value.dtype)


def without(axis: int, i: int, n: int) -> Alter:
    """Return a function that sets part ``i`` of ``n`` along an axis to zero."""

    def alter(v: np.ndarray) -> np.ndarray:
        size, at = v.shape[axis], axis % v.ndim
        part = np.arange(size) * n // size
        return v * (part != i).reshape([-1 if a == at else 1 for a in range(v.ndim)])

    return alter


def swaps(n: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield every pair of n (at most half of ``FEW``), with the order in which both are exchanged."""
    for i, j in combinations(range(n), 2) if n <= FEW // 2 else ():
        order = np.arange(n)
        order[[i, j]] = j, i
        yield i, j, order


def permuted(axis: int, order: np.ndarray) -> Alter:
    """Return a function that puts the values along an axis in another order."""
    return lambda v: np.take(v, order, axis) if v.shape[axis] == len(order) else v


def _computed(make: Callable[..., Any], *more: Any) -> Edit:
    """Return an edit that replaces an intermediate by make(chunk, intermediates so far, *more)."""
    return lambda value, layer, chunk, taps: make(chunk, taps, *more)


def _edited(make: Callable[..., Any], *more: Any) -> Edit:
    """Return an edit that replaces an intermediate by make(it, chunk, intermediates so far, *more)."""
    return lambda value, layer, chunk, taps: make(value, chunk, taps, *more)


def formulas(model: Base, layer: int) -> Made:
    """Yield the variants of all formulas of a layer."""
    yield from _norms(model)
    yield from _embeddings(model) if layer == 0 else ()
    yield from _rotations(model, layer)
    yield from _attending(model, layer)
    if model.shape.ratios[layer]:
        yield from _compressing(model, layer)
    yield from _routing(model, layer)
    yield from _activations(model)
    yield from _mixing(model)


def _norms(model: Base) -> Made:
    for name, source in (("attn_norm", "hc_attn_pre"), ("ffn_norm", "hc_ffn_pre"), ("q_lora_norm", "q_lora"),
                         ("Qnorm", "Qraw"), ("KVnorm", "KVraw")):  # fmt: skip
        yield name, "the norm is skipped", {name: _computed(lambda c, t, s: t[s], source)}
        weight = {"Qnorm": None, "KVnorm": "attn_kv_a_norm", "q_lora_norm": "attn_q_a_norm"}.get(name, name)
        for eps in (1e-5, 1e-3, 0.1):
            yield name, f"eps {eps:g}", {name: _computed(lambda c, t, s, w, e: c.ops.rms_norm(
                t[s], w and getattr(c.w, w), e), source, weight, eps)}  # fmt: skip
        yield name, "the mean is subtracted", {name: _computed(lambda c, t, s, w: c.ops.rms_norm(
            t[s] - t[s].mean(-1, keepdims=True), w and getattr(c.w, w), c.shape.rms_eps), source, weight)}  # fmt: skip
        yield name, "by the size of the row before", {name: _edited(_neighbour, source)}
    own = hasattr(model.shape, "kv_sources")  # V4.1's norm is an intermediate of its own
    for prefix, name in () if own else (("attn", "KVcompress"), ("indexer", "indexer_KVcompress")):
        yield name, "the norm is skipped", {name: _computed(lambda c, t, p: c.ops.rope(
            c.ops.pool(*t[f"{p}_comp_candidates"])[:, None], *t[f"{p}_comp_rope_tables"])[:, 0], prefix)}  # fmt: skip


def _embeddings(model: Base) -> Made:
    vocab = model.shape.vocab
    for by in (1, -1):
        for part, least in (("", 0), (" in the upper half of the vocabulary", vocab // 2)):

            def made(c: Any, _taps: Taps, by: int = by, least: int = least) -> Any:
                ids = np.where(c.ids >= least, np.clip(c.ids + by, 0, vocab - 1), c.ids).astype(c.ids.dtype)
                return c.ops.streams(c.ops.embed(model.weights.token_embd, ids), model.shape.hc)

            yield "hc_attn_in", f"embeddings of the id {by:+d}{part}", {"hc_attn_in": _computed(made)}


def _neighbour(value: np.ndarray, _c: Any, t: Taps, source: str) -> np.ndarray:
    """Return the result of a norm that divides each row by the size of the row before."""
    size = np.sqrt(np.square(t[source]).mean(-1, keepdims=True))
    return value * size / np.maximum(np.concatenate((size[:1], size[:-1])), 1e-30)


POSITIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "position 0": lambda p, w: 0 * p, "one position later": lambda p, w: p + 1,
    "one position earlier": lambda p, w: np.maximum(p - 1, 0), "position modulo the window": lambda p, w: p % w,
    "positions of the window's ring": lambda p, w: np.where(p < w, p, p - w), "twice the position": lambda p, w: 2 * p,
    "half the position": lambda p, w: p // 2, "the negative position": lambda p, w: -p,
    "16 positions later": lambda p, w: p + 16, "64 positions later": lambda p, w: p + 64,
}  # fmt: skip


def _rotations(model: Base, layer: int) -> Made:
    ratio, window = model.shape.ratios[layer], model.shape.window
    for says, move in POSITIONS.items():

        def tables(c: Any, m: Any = move) -> Any:
            return c.rope_tables(bool(ratio), m(c.positions, window))

        yield from _rotated(says, tables)
    yield from _rotated("the other frequencies", lambda c: c.rope_tables(not ratio, c.positions))
    pairs = model.shape.rope_dim // 2
    for i in range(pairs - 1 if pairs <= 2 * FEW else 0):
        yield "rope_tables", f"pair {i} by the angles of pair {i + 1}", {"rope_tables": _computed(_exchanged, i)}
    yield "Qcur", "pairs in halves", {"Qcur": _computed(lambda c, t: _halves(c, _heads(t), t["rope_tables"]))}
    yield "KVrope", "pairs in halves", {"KVrope": _computed(lambda c, t: _halves(c, t["KVnorm"], t["rope_tables"]))}


def _exchanged(c: Any, _taps: Taps, i: int) -> Any:
    """Return the rope tables with the angles of pair ``i`` + 1 for pair ``i``."""
    tables = [np.array(table) for table in c.rope_tables()]
    for table in tables:
        table[:, i] = table[:, i + 1]
    return tuple(tables)


def _heads(t: Taps) -> np.ndarray:
    """Return the query heads before rope (T, H, hd); V4.1 has no norm of theirs."""
    heads: np.ndarray = t["Qnorm"] if "Qnorm" in t else t["Qraw"]
    return heads


def _rotated(says: str, tables: Callable[[Any], Any]) -> Made:
    yield "Qcur", says, {"Qcur": _computed(lambda c, t: c.ops.rope(_heads(t), *tables(c)))}
    yield "KVrope", says, {"KVrope": _computed(lambda c, t: c.ops.rope(t["KVnorm"][:, None], *tables(c))[:, 0])}
    yield "kqv_back", says, {"kqv_back": _computed(lambda c, t: c.ops.rope(t["kqv_out"], *tables(c), inverse=True))}
    yield "rope_tables", says, {"rope_tables": _computed(lambda c, t: tables(c))}


def _halves(c: Any, x: np.ndarray, tables: Any) -> np.ndarray:
    half, width = tables[0].shape[1], x.shape[-1]
    flat = x.reshape(len(x), -1, width).copy()
    a, b = flat[..., width - 2 * half : width - half].copy(), flat[..., width - half :].copy()
    cos, sin = (each[:, None] for each in tables)
    flat[..., width - 2 * half : width - half], flat[..., width - half :] = a * cos - b * sin, a * sin + b * cos
    return flat.reshape(x.shape)


def _attending(model: Base, layer: int) -> Made:
    heads = model.shape.n_heads
    for h in range(heads if heads <= FEW else 0):
        yield (
            "attn_sinks",
            f"head {h} has no sink",
            {"attn_sinks": _edited(lambda v, c, t, h: np.where(np.arange(len(v)) == h, np.float32(-1e30), v), h)},
        )
    yield "attn_sinks", "no sinks", {"attn_sinks": _edited(lambda v, c, t: np.full_like(v, -1e30))}
    for factor in (0.5, 0.7, 1.4, 2.0):
        yield "kqv_out", f"scores times {factor:g}", {"Qcur": each(lambda v, f: v * f, factor)}
    for says, change in {
        "a window of one row fewer": lambda f, n, w: (np.where(n == w, f + 1, f), np.minimum(n, w - 1)),
        "half the window": lambda f, n, w: (f + n - np.minimum(n, w // 2), np.minimum(n, w // 2)),
        "a window of one row more": lambda f, n, w: (np.maximum(f - (n == w), 0), n + ((n == w) & (f > 0))),
        "all rows": lambda f, n, w: (0 * f, f + n),
        "without the token's own row": lambda f, n, w: (f, np.maximum(n - 1, 1)),
        "without the oldest rows": lambda f, n, w: (f + np.minimum(n - 1, 4), np.maximum(n - 4, 1)),
        "the next token's row": lambda f, n, w: (f, np.minimum(n + 1, len(f) - f)),
        "only rows from a multiple of 16 on": lambda f, n, w: (f + -f % 16 * (n > 16), n - -f % 16 * (n > 16)),
    }.items():
        yield "raw_window", says, {"raw_window": _edited(lambda v, c, t, g: tuple(
            np.asarray(each, np.int32) for each in g(*v, c.shape.window)), change)}  # fmt: skip
    for back in (1, 2, 8):
        yield "raw_window", f"without the row {back} before", {"kqv_out": _computed(_hidden, back)}


def _hidden(c: Any, t: Taps, back: int) -> np.ndarray:
    """Return attention outputs (T, H, hd) of queries that do not see the row ``back`` positions before theirs.

    The rows after it are attended to like compressed rows that the query selected.
    """
    first, count = t["raw_window"]
    own, visible = t["KVcur"], t.get("comp_count", np.zeros(len(count), np.int32))
    chosen = c.selected if hasattr(c, "selected") else t.get("indexer_topk")
    if chosen is None:
        chosen = np.arange(visible.max(initial=0))
        chosen = np.where(chosen < visible[:, None], chosen, -1)
    comp = c.cache.comp if c.ratio else None
    rows = own if comp is None else np.concatenate((comp[: visible.max(initial=0)], own))
    newer = np.arange(len(own))[:, None] - np.arange(back)
    newer = np.where((newer >= 0) & (np.arange(back) < count[:, None]), newer + len(rows) - len(own), -1)
    selected = np.concatenate((chosen, newer), 1).astype(np.int32)
    fewer = np.maximum(count - back - 1, 0).astype(np.int32)
    rows = np.ascontiguousarray(rows, np.float32)
    return c.ops.attention(
        t["Qcur"], c.cache.raw, first, fewer, rows, visible, selected, t["attn_sinks"], c.shape.attn_scale
    )


def _compressing(model: Base, layer: int) -> Made:
    ratio = model.shape.ratios[layer]
    for says, count in {
        "one row late": lambda n, c: np.maximum(n - 1, 0),
        "no rows": lambda n, c: 0 * n,
        "a row early": lambda n, c: np.minimum(n + 1, (int(c.positions[-1]) + 1) // ratio),
        "no rows inside the window": lambda n, c: np.maximum(c.positions + 1 - c.shape.window, 0) // ratio,
        "a row only after its window": lambda n, c: c.positions // ratio,
    }.items():
        yield "comp_count", says, {"comp_count": _edited(lambda v, c, t, g: np.asarray(g(v, c), np.int32), count)}
    for p, name in (("attn", "KVcompress"), ("indexer", "indexer_KVcompress")):
        tables = f"{p}_comp_rope_tables"
        for says, at in {"position 0": lambda n: 0 * n, "the window's last position": lambda n: n * ratio + ratio - 1,
                         "row numbers as positions": lambda n: n, "the next window": lambda n: (n + 1) * ratio,
                         "the window before": lambda n: np.maximum(n - 1, 0) * ratio}.items():  # fmt: skip
            yield (
                name,
                f"rotated by {says}",
                {tables: _edited(lambda v, c, t, g: c.rope[True](g(np.arange(len(v[0])))), at)},
            )
        yield (
            name,
            "rotated by the other frequencies",
            {tables: _edited(lambda v, c, t: c.rope[False](np.arange(len(v[0])) * ratio))},
        )
        candidates = f"{p}_comp_candidates"
        for says, pair in _POOLS.items():
            if ratio == 4 or "half" not in says:
                yield candidates, says, {candidates: _edited(lambda v, c, t, g: tuple(
                    np.ascontiguousarray(each, np.float32) for each in g(*v)), pair)}  # fmt: skip
    k = model.shape.index_topk
    for says, choose in {
        "one row fewer": lambda c, t: c.ops.select_rows(t["indexer_scores"], c.visible(c.ratio), k - 1),
        "half the rows": lambda c, t: c.ops.select_rows(t["indexer_scores"], c.visible(c.ratio), k // 2),
        "the rows of least score": lambda c, t: c.ops.select_rows(-t["indexer_scores"], c.visible(c.ratio), k),
        "the first rows": lambda c, t: c.ops.select_rows(0 * t["indexer_scores"], c.visible(c.ratio), k),
        "the newest rows": lambda c, t: c.ops.select_rows(
            0 * t["indexer_scores"] + np.arange(t["indexer_scores"].shape[1], dtype=np.float32), c.visible(c.ratio), k
        ),
        "all rows": lambda c, t: c.ops.select_rows(
            t["indexer_scores"], c.visible(c.ratio), t["indexer_scores"].shape[1]
        ),
        "chosen for the token before": lambda c, t: np.concatenate((t["indexer_topk"][:1], t["indexer_topk"][:-1])),
    }.items():
        yield "indexer_topk", says, {"indexer_topk": _edited(lambda v, c, t, g: _selected(v, c, t, g), choose)}


def _selected(value: Any, c: Any, t: Taps, choose: Callable[[Any, Taps], np.ndarray]) -> Any:
    return value if value is None or c.narrowed else choose(c, {**t, "indexer_topk": value}).astype(np.int32)


_POOLS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "a plain mean": lambda kv, s: (kv, np.where(s > -1e29, 0, s)),
    "scores negated": lambda kv, s: (kv, np.where(s > -1e29, -s, s)),
    "of the window before": lambda kv, s: (np.concatenate((kv[:1], kv[:-1])), np.concatenate((s[:1], s[:-1]))),
    "values moved by one token": lambda kv, s: (np.roll(kv, 1, 1), s),
    "scores moved by one token": lambda kv, s: (kv, np.roll(s, 1, 1)),
    "the last token missing": lambda kv, s: (kv, np.concatenate((s[:, :-1], np.full_like(s[:, -1:], -1e30)), 1)),
    "the first half missing": lambda kv, s: (kv, np.where(np.arange(s.shape[1])[:, None] < s.shape[1] // 2, -1e30, s)),
    "the last half missing": lambda kv, s: (kv, np.where(np.arange(s.shape[1])[:, None] >= s.shape[1] // 2, -1e30, s)),
    "halves exchanged": lambda kv, s: (np.roll(kv, kv.shape[1] // 2, 1), s),
}


def _routing(model: Base, layer: int) -> Made:
    s, hashed = model.shape, model.weights.layers[layer].ffn_gate_tid2eid is not None
    k, E = s.n_used, s.n_experts

    def probs(t: Taps) -> np.ndarray:
        return np.sqrt(np.logaddexp(0, t["ffn_moe_logits"].astype(np.float64)))

    def taken(values: np.ndarray, t: Taps) -> np.ndarray:
        return np.take_along_axis(values, t["ffn_moe_topk"], 1)

    def soft(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def unit(w: np.ndarray) -> np.ndarray:
        return w / w.sum(1, keepdims=True) * s.route_scale

    for says, weigh in {
        "not normalized": lambda v, t: taken(probs(t), t) * s.route_scale,
        "normalized over all experts": lambda v, t: taken(unit(probs(t)), t),
        "all equal": lambda v, t: np.full_like(v, s.route_scale / k),
        "without the last expert, not normalized again": lambda v, t: v * (np.arange(k) < k - 1),
        "without the last expert": lambda v, t: unit(v * (np.arange(k) < k - 1)),
        "without the first expert": lambda v, t: unit(v * (np.arange(k) > 0)) if k > 1 else v,
        "softmax of the chosen": lambda v, t: soft(taken(t["ffn_moe_logits"], t)) * s.route_scale,
        "softmax": lambda v, t: taken(soft(t["ffn_moe_logits"]), t) * s.route_scale,
        "softplus": lambda v, t: unit(taken(probs(t) ** 2, t)),
        "sigmoid": lambda v, t: unit(taken(1 / (1 + np.exp(-t["ffn_moe_logits"])), t)),
        "of the expert beside": lambda v, t: unit(np.take_along_axis(probs(t), (t["ffn_moe_topk"] + 1) % E, 1)),
    }.items():
        yield (
            "ffn_moe_weights_scaled",
            says,
            {"ffn_moe_weights_scaled": _edited(lambda v, c, t, g: g(v, t).astype(np.float32), weigh)},
        )

    def rerouted(choose: Callable[[Any, Taps], np.ndarray]) -> dict[str, Edit]:
        def ids(v: np.ndarray, c: Any, t: Taps) -> np.ndarray:
            return np.ascontiguousarray(choose(c, {**t, "ffn_moe_topk": v}), np.int32)

        def weights(v: np.ndarray, c: Any, t: Taps) -> np.ndarray:
            floor = c.numerics.route_floor
            return c.ops.route(t["ffn_moe_logits"], None, t["ffn_moe_topk"], k, s.route_scale, floor)[2]

        return {"ffn_moe_topk": _edited(ids), "ffn_moe_weights_scaled": _edited(weights)}

    bias = model.weights.layers[layer].exp_probs_b
    biased = 0.0 if bias is None or hashed else bias
    for says, choose in {
        "the next best expert": lambda c, t: np.argsort(-(probs(t) + biased), 1)[:, 1 : k + 1] if E > k
        else t["ffn_moe_topk"],
        "the experts of least score": lambda c, t: np.argsort(probs(t) + biased, 1)[:, :k],
        "by score without bias": lambda c, t: np.argsort(-probs(t), 1, kind="stable")[:, :k],
        "by score with the bias subtracted": lambda c, t: np.argsort(-(probs(t) - biased), 1, kind="stable")[:, :k],
        "the expert beside": lambda c, t: (t["ffn_moe_topk"] + 1) % E,
        "the expert on the other side": lambda c, t: (t["ffn_moe_topk"] - 1) % E,
        "the expert's mirror": lambda c, t: E - 1 - t["ffn_moe_topk"],
        "experts of the token before": lambda c, t: np.concatenate((t["ffn_moe_topk"][:1], t["ffn_moe_topk"][:-1])),
        "the first experts": lambda c, t: np.broadcast_to(np.arange(k), t["ffn_moe_topk"].shape),
    }.items():  # fmt: skip
        both = rerouted(choose)
        yield "ffn_moe_topk", says, both
        yield "ffn_moe_topk", f"{says}, weights as before", {"ffn_moe_topk": both["ffn_moe_topk"]}
    for e in range(E if E <= FEW else 0):
        yield (
            "ffn_moe_out",
            f"expert {e} is lost",
            {"ffn_moe_weighted_swiglu": _edited(lambda v, c, t, e: v * (t["ffn_moe_topk"] != e)[..., None], e)},
        )


def _activations(model: Base) -> Made:
    for p, name in (("ffn_moe", "ffn_moe_weighted_swiglu"), ("ffn_shexp", "ffn_shexp_mid")):

        def again(make: Callable[[np.ndarray, np.ndarray, float], np.ndarray], p: str = p) -> Edit:
            def edit(c: Any, t: Taps) -> np.ndarray:
                mid = make(t[f"{p}_gate"], t[f"{p}_up"], c.shape.swiglu_limit[c.layer])
                return (mid * t["ffn_moe_weights_scaled"][..., None] if p == "ffn_moe" else mid).astype(np.float32)

            return _computed(edit)

        for says, make in _ACTIVATIONS.items():
            yield name, says, {name: again(make)}


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-np.clip(x, -80, 80)))


_ACTIVATIONS: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "gate and up exchanged": lambda g, u, top: _silu(np.minimum(u, top)) * np.clip(g, -top, top),
    "no clamp": lambda g, u, top: _silu(g) * u,
    "the gate not clamped": lambda g, u, top: _silu(g) * np.clip(u, -top, top),
    "up not clamped": lambda g, u, top: _silu(np.minimum(g, top)) * u,
    "the gate clamped below, too": lambda g, u, top: _silu(np.clip(g, -top, top)) * np.clip(u, -top, top),
    "half the clamp": lambda g, u, top: _silu(np.minimum(g, top / 2)) * np.clip(u, -top / 2, top / 2),
    "twice the clamp": lambda g, u, top: _silu(np.minimum(g, top * 2)) * np.clip(u, -top * 2, top * 2),
    "gelu": lambda g, u, top: _gelu(np.minimum(g, top)) * np.clip(u, -top, top),
    "relu": lambda g, u, top: np.maximum(np.minimum(g, top), 0) * np.clip(u, -top, top),
    "no activation": lambda g, u, top: np.minimum(g, top) * np.clip(u, -top, top),
    "the gate alone": lambda g, u, top: _silu(np.minimum(g, top)),
    "up plus one": lambda g, u, top: _silu(np.minimum(g, top)) * (1 + np.clip(u, -top, top)),
}


def _mixing(model: Base) -> Made:
    C = model.shape.hc
    for half in ("attn", "ffn"):
        name, mixes = f"hc_{half}_pre_comb", f"hc_{half}_pre_mixes"
        combs: dict[str, Alter] = {
            "transposed": lambda v: v.transpose(0, 2, 1), "the identity": lambda v: np.eye(C) + 0 * v,
            "all equal": lambda v: 0 * v + 1 / C, "of the row before": lambda v: np.concatenate((v[:1], v[:-1])),
        }  # fmt: skip
        for i, j, order in swaps(C):
            combs[f"rows {i} and {j} exchanged"] = permuted(1, order)
            combs[f"columns {i} and {j} exchanged"] = permuted(2, order)
        for i in range(C):
            combs[f"row {i} is zero"] = without(1, i, C)
            combs[f"column {i} is zero"] = without(2, i, C)
        for by in (1, -1):
            combs[f"rows moved by {by}"] = partial(np.roll, shift=by, axis=1)
            combs[f"columns moved by {by}"] = partial(np.roll, shift=by, axis=2)
        for says, alter in combs.items():
            yield name, says, {name: each(alter)}
        for iters in (1, 2, 3, 5):
            yield name, f"{iters} Sinkhorn iterations", {name: _computed(
                lambda c, t, m, w, n: c.ops.hc_split(t[m], w(c).scale, w(c).base, n, c.shape.hc_eps)[2],
                mixes, lambda c, h=half: c.w.mixing(h), iters)}  # fmt: skip


def at_head(model: Base) -> Made:
    """Yield the variants of the output head."""
    w = model.weights
    yield "result_norm", "by the size of the row before", {"result_norm": _edited(_neighbour, "result_hc")}
    yield "result_norm", "the norm is skipped", {"result_norm": _computed(lambda c, t: t["result_hc"])}
    yield (
        "result_norm",
        "output_norm left out",
        {"result_norm": _computed(lambda c, t: c.ops.rms_norm(t["result_hc"], None, c.shape.rms_eps))},
    )
    yield "result_hc_weights", "all equal", {"result_hc_weights": each(lambda v: 0 * v + 1 / v.shape[1])}
    for says, scale, base in (("without scale and base", 0, 0), ("without scale", 0, 1), ("without base", 1, 0)):
        yield "result_hc_weights", says, {"result_hc_weights": _computed(lambda c, t, s, b: c.ops.hc_head_weights(
            t["result_hc_pre"], w.output_hc_scale if s else np.ones_like(w.output_hc_scale), w.output_hc_base * b,
            c.shape.hc_eps), scale, np.float32(base))}  # fmt: skip
