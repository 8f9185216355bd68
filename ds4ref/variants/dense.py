"""Constants of a dense decoder that an engine may have wrong: the keys of its GGUF metadata, and steps without a key.

Each is a ``Family`` whose name is the key, so that a verdict names it: "llama.rope.freq_base is 10000, not 100000". The
hypothesis is our own pass with another shape, other rope tables or another op.

    keys = dense_families(engine.model)
    keys["llama.rope.freq_base"].fault(1e4)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..archs.dense.rope import RopeTables
from ..archs.dense.shape import SCALINGS, WINDOW, WINDOW_LAYERS, WINDOW_THETA, DenseShape, Scaling, every
from .families import FACTORS, FAMILIES, Family, _changed
from .faults import Changed, Fault, _touching

Change = Callable[[DenseShape, float], DenseShape]

FAR = (0.01, 0.1, 0.5, 2.0, 10.0, 100.0)
"""Factors on a constant at which a search starts, for constants that differ by powers of ten between models."""
WIDE = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Factors by which contexts are usually extended."""
WINDOWS = (16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
NO_CAP = 1e6
"""Cap at which capped logits equal logits to float precision: stands for no cap."""
CAPS = (5.0, 10.0, 20.0, 30.0, 50.0)


def plain(value: float) -> str:
    """Return a number with four significant digits, without an exponent where that is readable."""
    short = float(f"{value:.4g}")
    return str(int(short)) if short == int(short) and abs(short) < 1e9 else f"{short:g}"


@dataclass(frozen=True)
class Key(Family):
    """A constant of a dense decoder.

    same   what the right value is called; "": the number itself
    ahead  whether a wrong value lets later tokens influence earlier ones
    """

    same: str = ""
    ahead: bool = False

    def fault(self, value: float) -> Fault:
        """Return the fault in which the constant has this value."""
        return replace(super().fault(value), ahead=self.ahead)

    def describe(self, value: float, shape: Any) -> str:
        """Return a one-line description of the fault with this value."""
        right = self.same or plain(self.neutral(shape))
        return f"{self.name.partition(' (')[0]} {self.says.format(value=plain(value), right=right)}"


def dense_families(model: Any) -> dict[str, Family]:
    """Return the constants that may be wrong in a dense decoder, ``archs.dense.forward.Model``, by name."""
    shape, divisors = model.shape, model.weights.rope_freqs
    listed: list[Family] = [*_rope(shape, divisors), *_attention(shape), *_scales(shape), *_steps(shape)]
    return {family.name: family for family in listed}


def _given(value: float) -> Callable[[Any], float]:
    return lambda shape: value


def _among(*values: float) -> Callable[[Any], tuple[float, ...]]:
    return lambda shape: values


def _reshaped(change: Change, divisors: np.ndarray | None = None, name: str = "shape") -> Callable[[float], Any]:
    """Return a maker of faults that compute a pass with another shape, and with its rope tables.

    change: (shape, value) -> shape of the wrong engine; divisors: the file's ``rope_freqs``, None for none
    """

    def make(value: float) -> Any:
        def begin(chunk: Any) -> None:
            chunk.shape = s = change(chunk.shape, value)
            chunk.rope = chunk.window_rope = RopeTables(s, chunk.numerics.rope, divisors)
            if s.window_theta:
                local = replace(s, scaling=Scaling(gain=s.scaling.gain))
                chunk.window_rope = RopeTables(local, chunk.numerics.rope, theta=s.window_theta)

        return _touching(begin, name), {}

    return make


def _of_shape(change: Change) -> Callable[[float], Any]:
    """Return a maker of faults that change the shape and no rope table."""

    def make(value: float) -> Any:
        def begin(chunk: Any) -> None:
            chunk.shape = change(chunk.shape, value)

        return _touching(begin, "shape"), {}

    return make


def _scaled(kind: str, trained: Callable[[DenseShape, float], float]) -> Change:
    """Return the change to rope scaling of a kind by a factor; ``trained``: (shape, factor) -> original context."""

    def change(s: DenseShape, factor: float) -> DenseShape:
        old = s.scaling
        if kind == old.kind:
            return replace(s, scaling=old._replace(factor=factor))
        return replace(s, scaling=Scaling(kind, factor, int(max(1, trained(s, factor))), gain=old.gain))

    return change


def _rope(shape: DenseShape, divisors: np.ndarray | None) -> Iterator[Family]:
    at, s = shape.family.name + ".", shape.scaling

    def made(change: Change) -> Callable[[float], Any]:
        return _reshaped(change, divisors, "rope")

    theta = shape.rope_theta
    bases = tuple(sorted({1e4, 1e5, 5e5, 1e6, *(theta * factor for factor in FAR)}))
    yield Key(at + "rope.freq_base", "is {value}, not {right}", made(lambda s, v: replace(s, rope_theta=v)),
              _given(theta), _among(*bases))  # fmt: skip
    if shape.window_theta:
        local = shape.window_theta
        bases = tuple(sorted({1e4, 1e6, *(local * factor for factor in FAR)}))
        yield Key(at + WINDOW_THETA, "is {value}, not {right}, in layers with a window",
                  made(lambda s, v: replace(s, window_theta=v)), _given(local), _among(*bases))  # fmt: skip
    kinds = {"linear": _scaled("linear", lambda s, f: 0), "yarn": _scaled("yarn", lambda s, f: s.trained_ctx),
             "yarn, context extended": _scaled("yarn", lambda s, f: s.trained_ctx / f)}  # fmt: skip
    if s.kind == "none":
        for kind, change in kinds.items():
            yield Key(f"{at}rope.scaling.factor ({kind})", f"is {{value}} ({kind}), not {{right}}", made(change),
                      _given(1.0), _among(*WIDE), same="1 (no scaling)")  # fmt: skip
    else:
        yield Key(at + "rope.scaling.factor", "is {value}, not {right}",
                  made(lambda s, v: replace(s, scaling=s.scaling._replace(factor=max(1.0, v)))), _given(s.factor),
                  _among(1.0, *WIDE))  # fmt: skip
        for kind in SCALINGS:
            if kind != s.kind:
                yield _choice(f"{at}rope.scaling.type ({kind})", f"is {kind}, not {s.kind}",
                              made(partial(_of_kind, kind)))  # fmt: skip
    if s.kind in ("yarn", "llama3"):
        context = tuple(s.trained * factor for factor in (0.125, 0.25, 0.5, 2.0, 4.0, 8.0))
        yield Key(at + "rope.scaling.original_context_length", "is {value}, not {right}",
                  made(lambda s, v: replace(s, scaling=s.scaling._replace(trained=max(1, round(v))))),
                  _given(float(s.trained)), _among(*context))  # fmt: skip
    factors = (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)
    yield Key(at + "rope.scaling.attn_factor (or attention.scale)",  # which give the same scores
              "is {value}, not {right}, or attention.scale is wrong by the square of that",
              made(lambda s, v: replace(s, scaling=s.scaling._replace(gain=v))), _given(s.gain),
              _among(*(s.gain * factor for factor in factors), shape.attn_scale**-0.5))  # fmt: skip
    width = float(shape.head_dim)
    yield Key(at + "rope.dimension_count", "is {value}, not {right}: the other channels are not rotated",
              _partial, _given(width), _among(*(2.0 * (shape.head_dim // part) for part in (8, 4)),
                                              2.0 * (3 * shape.head_dim // 8)),
              whole=True, log=False, most=_given(width))  # fmt: skip
    if divisors is not None:
        yield _choice("rope_freqs.weight", "is ignored: rope is not scaled",
                      lambda value: _reshaped(lambda s, v: s, None if value else divisors, "rope")(value))  # fmt: skip
    pairs = ("adjacent channels", "channels i and i + half")
    right, wrong = pairs if not shape.family.halves else pairs[::-1]
    yield _choice("rope pairs", f"are {wrong}, not {right}", _of_shape(
        lambda s, v: replace(s, family=replace(s.family, halves=s.family.halves != bool(v)))))  # fmt: skip


def _of_kind(kind: str, s: DenseShape, value: float) -> DenseShape:
    return replace(s, scaling=s.scaling._replace(kind=kind)) if value else s


def _partial(value: float) -> Any:
    """Rotate the first ``value`` channels of each head only."""
    count = max(2, int(value) // 2 * 2)

    def begin(chunk: Any) -> None:
        if count >= chunk.shape.head_dim:
            return
        narrow = replace(chunk.shape, head_dim=count)
        chunk.rope = chunk.window_rope = RopeTables(narrow, chunk.numerics.rope)
        if chunk.shape.window_theta:
            local = replace(narrow, scaling=Scaling())
            chunk.window_rope = RopeTables(local, chunk.numerics.rope, theta=chunk.shape.window_theta)
        rope = chunk.ops.rope

        def first(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, **rest: Any) -> np.ndarray:
            out = x.copy()
            out[..., :count] = rope(np.ascontiguousarray(x[..., :count]), cos, sin, **rest)
            return out

        chunk.ops = Changed(chunk.ops, rope=first)

    return _touching(begin, "rope"), {}


def _choice(name: str, says: str, make: Callable[[float], Any], ahead: bool = False) -> Key:
    """Return a mistake without a size: value 1 has it, 0 has not."""
    return Key(name, says, make, _given(0.0), _among(1.0), whole=True, log=False, most=_given(1.0), same="-",
               ahead=ahead)  # fmt: skip


def _attention(shape: DenseShape) -> Iterator[Family]:
    at, s = shape.family.name + ".", shape
    yield Key(at + "attention.layer_norm_rms_epsilon", "is {value}, not {right}",
              _of_shape(lambda s, v: replace(s, rms_eps=v)), _given(s.rms_eps),
              _among(1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))  # fmt: skip
    near = (s.window - 1.0, s.window + 1.0, s.window / 2, s.window * 2.0) if s.window > 1 else ()
    windows = sorted({*WINDOWS, *(float(int(rows)) for rows in near)})
    yield Key(at + WINDOW, "is {value}, not {right}", _of_shape(_window), _given(float(s.window)), _among(*windows),
              whole=True, most=_given(4096.0), same="" if s.window else "0 (no window)")  # fmt: skip
    if s.window and s.windowed:
        full = s.family.full or 1
        periods = tuple(float(n) for n in range(1, 9) if n != full) + (float(s.n_layers + 1),)
        yield Key(at + WINDOW_LAYERS, "is {value}, not {right}: every so many layers one has no window",
                  _of_shape(lambda s, v: replace(s, windowed=every(int(v), s.n_layers))), _given(float(full)),
                  _among(*periods), whole=True, log=False, most=_given(float(s.n_layers + 1)))  # fmt: skip
    if not s.family.qk_norm:
        counts = [float(s.n_heads * 2)] if s.head_dim % 4 == 0 else []
        counts += [s.n_heads / 2] if s.n_heads % 2 == 0 and s.n_kv_heads % 2 == 0 else []
        yield Key(at + "attention.head_count", "is {value}, not {right}, with heads of another size",
                  _reshaped(_heads), _given(float(s.n_heads)), _among(*counts), whole=True, most=_given(max(counts,
                            default=1.0)))  # fmt: skip
    yield _choice(at + "attention.causal", "is false, not true: tokens attend to later ones", _acausal, ahead=True)
    yield Key(at + "attn_logit_softcapping", "is {value}, not {right}", _capped_scores, _given(NO_CAP), _among(*CAPS),
              same="absent")  # fmt: skip
    yield Key(at + "final_logit_softcapping", "is {value}, not {right}", _capped_logits, _given(NO_CAP),
              _among(*CAPS), same="absent")  # fmt: skip


def _window(s: DenseShape, value: float) -> DenseShape:
    return replace(s, window=int(value), windowed=s.windowed if s.window else ())


def _heads(s: DenseShape, value: float) -> DenseShape:
    """Return the shape with ``value`` heads of another size in the same projections; unchanged if they do not fit."""
    wide, count = s.n_heads * s.head_dim, int(value)
    shared = count * s.n_kv_heads // s.n_heads
    if count < 1 or shared < 1 or wide % count or count % shared or wide // count % 2 or s.kv_width % shared:
        return s
    return replace(s, n_heads=count, n_kv_heads=shared, head_dim=wide // count)


def _acausal(value: float) -> Any:
    def begin(chunk: Any) -> None:
        if value:
            end = chunk.pos0 + len(chunk.positions)
            rows = np.zeros(len(chunk.positions), np.int32), np.full(len(chunk.positions), end, np.int32)
            chunk.seen = lambda: rows

    return _touching(begin, "seen"), {}


def _capped_scores(cap: float) -> Any:
    """Attend with scores capped as cap tanh(score / cap)."""

    def capped(q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: np.ndarray, count: np.ndarray,
               scale: float, **rest: Any) -> np.ndarray:  # fmt: skip
        end = int((first + count).max())
        keys, values = (np.repeat(rows[:end].astype(np.float32), q.shape[1] // rows.shape[1], axis=1)
                        for rows in (keys, values))  # fmt: skip
        scores = np.einsum("thd,nhd->htn", q, keys, optimize=True) * np.float32(scale)
        scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
        at = np.arange(end)
        scores[:, (at < first[:, None]) | (at >= (first + count)[:, None])] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.ascontiguousarray(np.einsum("htn,nhd->thd", weights, values, optimize=True))

    return _changed("attend", lambda op, v: op if v >= NO_CAP else capped)(cap)


def _capped_logits(cap: float) -> Any:
    def edit(value: Any, layer: int, chunk: Any, taps: dict) -> Any:
        return np.float32(cap) * np.tanh(value / np.float32(cap))

    return None, {} if cap >= NO_CAP else {"result_output": edit}


def _scales(shape: DenseShape) -> Iterator[Family]:
    """Yield the scales of embeddings and logits, which no key of these families states."""
    root = shape.dim**0.5
    factors = (*FACTORS, 1 / root if shape.family.gemma else root)
    yield replace(FAMILIES["embedding_scale"], values=_among(*factors))
    yield FAMILIES["logit_scale"]


def _steps(shape: DenseShape) -> Iterator[Family]:
    """Yield steps of the pass that engines leave out or swap."""
    family = shape.family

    def op(name: str, wrong: Callable[[Any, Any], Callable]) -> Callable[[float], Any]:
        def make(value: float) -> Any:
            def begin(chunk: Any) -> None:
                if value:
                    chunk.ops = Changed(chunk.ops, **{name: wrong(chunk.ops, chunk.shape)})

            return _touching(begin, name), {}

        return make

    if family.gemma:
        yield _choice("activation", "is SiLU, not GELU", op("geglu", lambda ops, s: (
            lambda gate, up: ops.swiglu(gate[:, None], up[:, None], np.inf).reshape(gate.shape))))  # fmt: skip
        yield Key("norm weights", "are off by {value} (1 + w for w, or the reverse)",
                  _changed("rms_norm", lambda norm, v: lambda x, w, eps: norm(
                      x, None if w is None else w + np.float32(v), eps)), _given(0.0), _among(-1.0, 1.0), whole=True,
                  log=False, most=_given(1.0))  # fmt: skip
    elif not shape.n_experts:
        yield _choice("activation", "is GELU, not SiLU", op("swiglu", lambda ops, s: (
            lambda gate, up, *_: ops.geglu(gate, up))))  # fmt: skip
    if family.biases:
        yield _choice("biases", "of queries, keys and values are left out",
                      op("position_bias", lambda ops, s: lambda y, *_: y))  # fmt: skip
    if shape.n_kv_heads not in (1, shape.n_heads):
        yield _choice("key heads", "are shared by every n-th query head, not by neighbours",
                      op("attend", _interleaved))  # fmt: skip


def _interleaved(ops: Any, s: DenseShape) -> Callable:
    order = np.arange(s.n_heads).reshape(-1, s.n_kv_heads).T.ravel()

    def attend(q: np.ndarray, *rest: Any, **more: Any) -> np.ndarray:
        out = np.empty_like(q)
        out[:, order] = ops.attend(np.ascontiguousarray(q[:, order]), *rest, **more)
        return out

    return attend
