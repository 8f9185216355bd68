"""The op table: what a backend is, declared once.

A backend offers the methods of ``Backend``: ops, which take arrays and return new ones, and a few for memory. The pass
of a model is written with ops alone, so that arrays may live anywhere and a pass may be recorded instead of run.
``OPS`` has every op by name with its operands as ``op`` declares them:

    name kind[dims]    kind is f32, i32, i64, i8, i16 or any (of f32, f16); dims are names, which mean the same size
                       throughout one op, numbers, or sums, products and powers of both. ``...`` in front stands for
                       any number of axes, the same ones throughout one op. The name of another argument is its value
    name matrix[R,n]   weights as they lie in the file (``ds4ref.kernels.formats.Matrix``), [E,R,n] a stack
    name i32[T] 0..V-1 the values lie in this range, either end of which may be missing
    name?              may be None; a size that only it has is then 0
    =name              written in place; all other operands are only read
    name               any other argument

``where`` adds what else must hold of sizes and arguments. ``binding`` makes the checks of every backend from this.

No result shares memory with an operand, nor does what is written in place with another operand. Float results are
float32 whatever the backend computes with inside; every array is C-contiguous: gaps between the values of an operand
are closed by a copy, unless it is written or the op is recorded. A NaN or an infinity that enters an op comes out as
NaN or as what the formula makes of it, never as a plausible number. Wrong shapes and sizes raise ValueError, wrong
types TypeError, a value out of its range IndexError, when the op runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .formats.matrix import Matrix

Array = np.ndarray
F = TypeVar("F", bound=Callable[..., Any])


class Operand(NamedTuple):
    """One argument or result of an op; ``dims`` is None for what is neither an array nor a matrix."""

    name: str
    kind: str = ""
    dims: tuple[str, ...] | None = None
    optional: bool = False
    written: bool = False
    limits: tuple[str, str] | None = None
    """Least and greatest value, as expressions; an empty one is no limit."""


class Op(NamedTuple):
    """An op as declared."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    where: str = ""
    """What must hold of sizes and arguments, as an expression of Python."""


OPS: dict[str, Op] = {}

LEAST = -1.0e30
"""``top`` takes values at or below this, and NaN, to be all the same."""

MOST_RANKED = 1024
"""``top`` gives at most so many of a row."""

_OPERAND = re.compile(r"(=?)(\w+)(\??)(?: (\w+)\[([^]]*)])?(?: (\S*)\.\.(\S*))?")


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an operand: {text!r}")
    written, name, optional, kind, dims, least, greatest = match.groups()
    sizes = tuple(dims.split(",")) if dims is not None else None
    return Operand(name, kind or "", sizes, bool(optional), bool(written), None if least is None else (least, greatest))


def op(declared: str, where: str = "") -> Callable[[F], F]:
    """Decorator: enter a method into ``OPS``. Operands and results are parted by ``->``, each by ``;``."""

    def enter(method: F) -> F:
        before, _, after = declared.partition("->")
        operands, results = (
            tuple(_operand(part) for part in side.split(";") if part.strip()) for side in (before, after)
        )
        OPS[method.__name__] = Op(method.__name__, operands, results, where)
        return method

    return enter


class Backend(Protocol):
    """Compute and memory. Method by method what every backend offers."""

    name: str
    threads: int
    """Threads for the ops of this backend; assign to change it."""

    def load(self) -> None:
        """Make everything ready that would otherwise make the first op slow."""

    def record(self) -> Any:
        """A backend of the same kind whose ops are kept and run together: it has ``seal(*outputs, kept=())`` and
        ``replay()``. A replay brings ``outputs`` to the host; ``kept`` stays where it is until ``host`` is asked for
        it. Both hold until the next replay. None if this backend cannot.

        If it has ``template(arrays)``, that returns an object whose ``on(arrays)`` is a recording of the same steps on
        other arrays of the same shapes and dtypes, which costs a fraction of recording them."""

    # --- memory

    def array(self, *shape: int, dtype: DTypeLike = np.float32) -> Array:
        """A new array that ops can read and write; values are undefined."""

    def upload(self, values: Array) -> Array:
        """``values`` where ops can read them; may be the same memory."""

    def place(self, w: Matrix) -> Matrix:
        """A matrix, or a stack of them, where ops can read it; may be the same memory."""

    def fill(self, array: Array, values: Array | float) -> None:
        """Overwrite ``array``, or a part of one by basic indexing, with values of the host."""

    def host(self, array: Array) -> Array:
        """``array`` as NumPy sees it; may be the same memory."""

    # --- looking up

    @op("table matrix[V,D]; ids i32[T] 0..V-1 -> out f32[T,D]")
    def embed(self, table: Matrix, ids: Array) -> Array:
        """Rows of the embedding table."""

    @op("table i32[V,K]; ids i32[T] 0..V-1 -> out i32[T,K]")
    def take_rows(self, table: Array, ids: Array) -> Array:
        """Rows of an integer table."""

    # --- matrix products: y[o] = sum_i W[o, i] x[i]. ``act`` is the rounding of the inputs: float, a8 or q8k

    @op("x f32[T,n]; w matrix[R,n]; act -> out f32[T,R]")
    def linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """x W^T."""

    @op("x f32[T,G,n]; w matrix[G*r,n]; act -> out f32[T,G*r]")
    def grouped_linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """Group g multiplies rows g r .. (g+1) r - 1 with x[:, g]."""

    @op("x f32[T,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,K,R]")
    def expert_linear(self, x: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """The same input through each chosen expert."""

    @op("mid f32[T,K,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,R]")
    def expert_sum(self, mid: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """Each expert's own input, results added in slot order."""

    @op("ids i32[T,K] 0..E-1; w matrix[E,R,n] ->")
    def advise(self, ids: Array, w: Matrix) -> None:
        """A hint that these experts' weights will be read soon. Changes no number."""

    @op("ids i32[T,K]; =counts i64[E] ->")
    def count(self, ids: Array, counts: Array) -> None:
        """counts[e] grows by the number of times e is among ids; ids out of range are passed over."""

    # --- choosing the next token

    @op("x f32[T,n]; k -> values f32[T,k]; ids i32[T,k]", where=f"1 <= k <= min(n, {MOST_RANKED})")
    def top(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k greatest values of each row, as they are there, and where: falling, ties to the lower id. Infinity is
        the greatest; NaN, and what is not above ``LEAST``, count as equal to it."""

    # --- streams and norms

    @op("x f32[T,D]; count -> out f32[T,count,D]")
    def streams(self, x: Array, count: int) -> Array:
        """``count`` copies of every token's vector."""

    @op("x f32[...,n]; weight? f32[n]; eps -> out f32[...,n]")
    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis; sum of squares in float64."""

    @op("X f32[T,C,D]; fn matrix[R,C*D]; eps -> out f32[T,R]")
    def hc_mix(self, X: Array, fn: Matrix, eps: float) -> Array:
        """RMS norm over all C D values of a token's streams, then fn."""

    @op(
        "mix f32[T,C*C+2*C]; scale f32[3]; base f32[C*C+2*C]; iters; eps"
        " -> pre f32[T,C]; post f32[T,C]; comb f32[T,C,C]"
    )
    def hc_split(self, mix: Array, scale: Array, base: Array, iters: int, eps: float) -> tuple[Array, Array, Array]:
        """Mixing logits to weights: pre = sigmoid + eps, post = 2 sigmoid, comb made doubly stochastic by Sinkhorn."""

    @op("mix f32[T,C]; scale f32[1]; base f32[C]; eps -> out f32[T,C]")
    def hc_head_weights(self, mix: Array, scale: Array, base: Array, eps: float) -> Array:
        """sigmoid(mix scale + base) + eps."""

    @op("X f32[T,C,D]; w f32[T,C] -> out f32[T,D]")
    def hc_reduce(self, X: Array, w: Array) -> Array:
        """sum_c w_c X_c."""

    @op("X f32[T,C,D]; y f32[T,D]; post f32[T,C]; comb f32[T,C,C] -> out f32[T,C,D]")
    def hc_expand(self, X: Array, y: Array, post: Array, comb: Array) -> Array:
        """X'_k = post_k y + sum_j comb[j, k] X_j."""

    @op("a f32[...]; b f32[...] -> out f32[...]")
    def add(self, a: Array, b: Array) -> Array:
        """a + b."""

    @op("x f32[...]; factor -> out f32[...]")
    def scale(self, x: Array, factor: float) -> Array:
        """x times ``factor`` as float32."""

    @op("x f32[T,H,2*r+p]; cos f32[T,r]; sin f32[T,r]; inverse; halves -> out f32[T,H,2*r+p]")
    def rope(self, x: Array, cos: Array, sin: Array, inverse: bool = False, halves: bool = False) -> Array:
        """Turn pairs of the last 2 r channels by the token's angles, backwards if ``inverse``: adjacent channels, or,
        if ``halves``, channel i of them and channel r + i."""

    # --- rounding: to a small format and back

    @op(
        "x f32[...,n]; channels -> out f32[...,n]",
        where="n % 64 == 0 if channels is None else 0 < channels <= n and channels % 64 == 0",
    )
    def round_e4m3(self, x: Array, channels: int | None = None) -> Array:
        """E4M3 in blocks of 64 with a power-of-two scale, the first ``channels`` of the last axis (None: all)."""

    @op("x f32[...,32*b] -> out f32[...,32*b]")
    def round_e2m1(self, x: Array) -> Array:
        """E2M1 (FP4) in blocks of 32 of the last axis with a power-of-two scale."""

    @op("x f32[...] -> out f32[...]")
    def round_f16(self, x: Array) -> Array:
        """binary16, half to even, overflow to infinity."""

    @op("x f32[...,group*b]; group -> out f32[...,group*b]")
    def round_i8(self, x: Array, group: int = 64) -> Array:
        """Integers of -127 to 127 times the largest magnitude / 127, by ``group`` values of the last axis; halves away
        from zero. A group with a NaN or an infinity becomes NaN."""

    @op("x f32[...,2**b] -> out f32[...,2**b]")
    def hadamard(self, x: Array) -> Array:
        """Sylvester butterfly over the last axis, n values, times n^-1/2."""

    @op("x f32[T,32*b] -> codes i8[T,32*b]; scales f32[T,b]")
    def quantize_a8(self, x: Array) -> tuple[Array, Array]:
        """Codes per 32 values, scale amax / 127."""

    @op("x f32[T,256*b] -> codes i8[T,256*b]; scales f32[T,b]; sums i16[T,16*b]")
    def quantize_q8k(self, x: Array) -> tuple[Array, Array, Array]:
        """Codes per 256 values, the first of largest magnitude becoming -127; sums of 16 codes."""

    # --- caches. ``at`` is the position of the first token, read when the op runs

    @op("x f32[T,w]; =rows any[N,w]; at i64[1] ->", where="N >= 1")
    def store_rows(self, x: Array, rows: Array, at: Array) -> None:
        """Row at + i of a ring of N rows becomes x[i]; only the last N rows are stored. Rows may be float16."""

    @op("gate f32[T,c]; ape f32[r,c]; at i64[1] -> out f32[T,c]", where="r >= 1")
    def position_bias(self, gate: Array, ape: Array, at: Array) -> Array:
        """gate[i] + ape[(at + i) mod r]."""

    @op(
        "ring f32[N,c+overlap*c]; new f32[T,c+overlap*c]; at i64[1]; count; ratio; overlap"
        " -> out f32[count,ratio+overlap*ratio,c]",
        where="N >= ratio + overlap * ratio and T >= 1 and ratio >= 1 and 1 <= count <= T // ratio + 1",
    )
    def windows(self, ring: Array, new: Array, at: Array, count: int, ratio: int, overlap: bool) -> Array:
        """Rows of the ``count`` windows of ``ratio`` positions from at // ratio on. A position before ``at`` is in the
        ring, a later one among the new rows. With ``overlap``: the first half of the channels of the window before,
        then the second half of its own; without: all channels of its own. Positions beyond the new rows get the last
        of them."""

    @op("kv f32[n,m,c]; score f32[n,m,c] -> out f32[n,c]")
    def pool(self, kv: Array, score: Array) -> Array:
        """Per channel: softmax of the m scores, weighted sum of the m values. A channel none of whose scores is above
        -5e29 gives 0."""

    # --- attention

    @op(
        "q f32[T,H,d]; raw f32[N,d]; raw_first i32[T] 0..; raw_count i32[T] 0..N; comp? any[M,d];"
        " comp_count i32[T] 0..M; selected? i32[T,k] ..M-1; sinks f32[H]; scale -> out f32[T,H,d]"
    )
    def attention(
        self, q: Array, raw: Array, raw_first: Array, raw_count: Array, comp: Array | None, comp_count: Array,
        selected: Array | None, sinks: Array, scale: float,
    ) -> Array:  # fmt: skip
        """One softmax of all heads over the same rows, which are keys and values: positions raw_first .. raw_first +
        raw_count - 1 of the ring ``raw``, then compressed rows 0 .. comp_count - 1, or those of ``selected`` that are
        >= 0. A head's sink joins the maximum and the denominator, never the values."""

    @op(
        "q f32[T,K*g,d]; keys any[N,K,d]; values any[N,K,d]; first i32[T] 0..; row_counts i32[T] 0..N; scale"
        " -> out f32[T,K*g,d]"
    )
    def attend(self, q: Array, keys: Array, values: Array, first: Array, row_counts: Array, scale: float) -> Array:
        """Grouped-query attention: head h reads keys and values h // g of the rows at positions first .. first +
        row_counts - 1 of the rings ``keys`` and ``values``, in one softmax. A token that sees no row gets NaN."""

    @op("iq f32[T,H,d]; rows any[n,d]; w f32[T,H]; count i32[1] -> out f32[T,n]")
    def index_scores(self, iq: Array, rows: Array, w: Array, count: Array) -> Array:
        """sum_h relu(iq_h . row) w_h for the first ``count`` rows, a number that is read when the op runs; the places
        of other rows are undefined."""

    @op("scores f32[T,n]; visible i32[T]; k -> out i32[T,k]")
    def select_rows(self, scores: Array, visible: Array, k: int) -> Array:
        """The k best of the first ``visible`` rows, ascending, -1 at the end; ties to the lower row."""

    # --- experts

    @op(
        "logits f32[T,E]; bias? f32[E]; hash_ids? i32[T,k] 0..E-1; k; scale; floor"
        " -> probs f32[T,E]; ids i32[T,k]; weights f32[T,k]",
        where="1 <= k <= E",
    )
    def route(
        self, logits: Array, bias: Array | None, hash_ids: Array | None, k: int, scale: float, floor: bool
    ) -> tuple[Array, Array, Array]:
        """probs = sqrt(softplus(logits)); the k largest of probs + bias, ties to the lower id, or ``hash_ids``; their
        probs over the sum of them (at least 2^-14 if ``floor``, else plus 1e-20), times scale."""

    @op("gate f32[...,n]; up f32[...,n]; limit; weight? f32[...] -> out f32[...,n]")
    def swiglu(self, gate: Array, up: Array, limit: float, weight: Array | None = None) -> Array:
        """silu(min(gate, limit)) clip(up, -limit, limit) over the last axis, times weight. ``limit`` may be
        infinite."""
