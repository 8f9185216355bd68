"""The op table: the single declaration of every op and of the backend interface.

A backend offers the methods of ``Backend``: ops, which take arrays and return new ones, and a few methods for memory. A
model's pass uses ops alone, so that arrays may live on any device and a pass may be recorded instead of run. ``OPS``
maps the name of every op to its operands, as declared by ``op``:

    name kind[dims]    kind is f32, i32, i64, i8, i16 or any (of f32, f16); dims are names, which mean the same size
                       throughout one op, numbers, or sums, products and powers of both. ``...`` in front stands for
                       any number of axes, the same ones throughout one op. The name of another argument is its value
    name matrix[R,n]   weights as stored in the file (``ds4ref.kernels.formats.Matrix``), [E,R,n] a stack
    name i32[T] 0..V-1 the values lie in this range, either end of which may be missing
    name?              may be None; a size that occurs in no other operand is then 0
    =into?             written in place and returned instead of a new result, unless it is None
    =name              written in place; all other operands are only read
    name               any other argument

``where`` adds conditions on sizes and arguments. ``binding`` generates the checks of every backend from this.

No result shares memory with an operand, and no operand written in place shares memory with another. Float results are
float32 whatever precision the backend computes with; every array is C-contiguous: an operand with gaps is copied,
unless it is written or the op is recorded. A NaN or an infinity in an operand gives NaN or the value of the formula,
never a plausible number. Wrong shapes and sizes raise ValueError, wrong types TypeError, values out of range
IndexError, when the op runs.
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
    """One argument or result of an op; ``dims`` is None for an argument that is neither array nor matrix."""

    name: str
    kind: str = ""
    dims: tuple[str, ...] | None = None
    optional: bool = False
    written: bool = False
    limits: tuple[str, str] | None = None
    """Least and greatest allowed value, as expressions; "" means no limit."""


class Op(NamedTuple):
    """The declaration of an op."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    where: str = ""
    """Condition on sizes and arguments, as a Python expression."""


OPS: dict[str, Op] = {}

LEAST = -1.0e30
"""Value up to which ``top`` treats all values as equal, and NaN as well."""

MOST_RANKED = 1024
"""Maximum number of values per row that ``top`` returns."""

_OPERAND = re.compile(r"(=?)(\w+)(\??)(?: (\w+)\[([^]]*)])?(?: (\S*)\.\.(\S*))?")


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not an operand: {text!r}")
    written, name, optional, kind, dims, least, greatest = match.groups()
    sizes = tuple(dims.split(",")) if dims is not None else None
    return Operand(name, kind or "", sizes, bool(optional), bool(written), None if least is None else (least, greatest))


def op(declared: str, where: str = "") -> Callable[[F], F]:
    """Decorator: enter a method into ``OPS``; ``declared`` lists operands, ``->``, and results, separated by ``;``."""

    def enter(method: F) -> F:
        before, _, after = declared.partition("->")
        operands, results = (
            tuple(_operand(part) for part in side.split(";") if part.strip()) for side in (before, after)
        )
        OPS[method.__name__] = Op(method.__name__, operands, results, where)
        return method

    return enter


class Backend(Protocol):
    """Interface of every backend: ops, memory and recording."""

    name: str
    threads: int
    """Number of threads for the ops of this backend; assign to change it."""

    def load(self, progress: Callable[[str], None] | None = None) -> None:
        """Compile or load kernels now, so that the first op is not slow.

        progress: called with a line where this takes long (None: lines on stderr).
        """

    def record(self) -> Any:
        """Return a backend of the same kind that records its ops to run them together, or None if this backend cannot.

        The recording has ``seal(*outputs, kept=())`` and ``replay()``. A replay copies ``outputs`` to the host; arrays
        of ``kept`` stay on the device until ``host`` is called on them. Both are valid until the next replay.

        If it has ``template(arrays)``, that returns an object whose ``on(arrays)`` makes a recording of the same steps
        on other arrays of the same shapes and dtypes, at a fraction of the cost of recording.
        """

    # --- memory

    def array(self, *shape: int, dtype: DTypeLike = np.float32) -> Array:
        """Return a new array that ops can read and write, with undefined values."""

    def upload(self, values: Array) -> Array:
        """Return ``values`` as an array that ops can read; it may share memory with ``values``."""

    def place(self, w: Matrix) -> Matrix:
        """Return a matrix, or a stack, that ops can read; it may share memory with ``w``."""

    def fill(self, array: Array, values: Array | float) -> None:
        """Overwrite ``array``, or a part selected by basic indexing, with host values."""

    def host(self, array: Array) -> Array:
        """Return ``array`` as a NumPy array; it may share memory with ``array``."""

    # --- looking up

    @op("table matrix[V,D]; ids i32[T] 0..V-1 -> out f32[T,D]")
    def embed(self, table: Matrix, ids: Array) -> Array:
        """Return rows ``ids`` of the embedding table."""

    @op("table i32[V,K]; ids i32[T] 0..V-1 -> out i32[T,K]")
    def take_rows(self, table: Array, ids: Array) -> Array:
        """Return rows ``ids`` of an integer table."""

    # --- matrix products: y[o] = sum_i W[o, i] x[i]. ``act`` is the rounding of the inputs: float, a8 or q8k

    @op("x f32[T,n]; w matrix[R,n]; act -> out f32[T,R]")
    def linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """Return x W^T; ``act`` is the rounding of x: "float", "a8" or "q8k"."""

    @op("x f32[T,G,n]; w matrix[G*r,n]; act -> out f32[T,G*r]", where="G >= 1")
    def grouped_linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """Return a block-diagonal product: rows g r .. (g+1) r - 1 of w multiply x[:, g]."""

    @op("x f32[T,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,K,R]")
    def expert_linear(self, x: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """Multiply each token's x by the matrices of its K chosen experts."""

    @op("mid f32[T,K,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,R]")
    def expert_sum(self, mid: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """Multiply each (token, expert) input ``mid`` by the expert's matrix, and add the K results in the order of
        ``ids``."""

    @op("ids i32[T,K] 0..E-1; w matrix[E,R,n] ->")
    def advise(self, ids: Array, w: Matrix) -> None:
        """Announce that the weights of experts ``ids`` will be read soon; results do not depend on it."""

    @op("ids i32[T,K]; =counts i64[E] ->")
    def count(self, ids: Array, counts: Array) -> None:
        """Add to counts[e] the number of times that e occurs in ids; ids out of range are ignored."""

    # --- choosing the next token

    @op("x f32[T,n]; k -> values f32[T,k]; ids i32[T,k]", where=f"1 <= k <= min(n, {MOST_RANKED})")
    def top(self, x: Array, k: int) -> tuple[Array, Array]:
        """Return the k greatest values of each row and their ids, in descending order, ties by ascending id.

        Infinity is the greatest; NaN and values up to ``LEAST`` count as equal to ``LEAST``, but are returned
        unchanged.
        """

    # --- streams and norms

    @op("x f32[T,D]; count -> out f32[T,count,D]")
    def streams(self, x: Array, count: int) -> Array:
        """Return ``count`` copies of every token's vector."""

    @op("x f32[...,n]; weight? f32[n]; eps -> out f32[...,n]")
    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; the sum of squares is float64."""

    @op("X f32[T,C,D]; fn matrix[R,C*D]; eps -> out f32[T,R]")
    def hc_mix(self, X: Array, fn: Matrix, eps: float) -> Array:
        """Return fn times the RMS-normed C D values of each token's streams: the mixing logits."""

    @op(
        "mix f32[T,C*C+2*C]; scale f32[3]; base f32[C*C+2*C]; iters; eps"
        " -> pre f32[T,C]; post f32[T,C]; comb f32[T,C,C]"
    )
    def hc_split(self, mix: Array, scale: Array, base: Array, iters: int, eps: float) -> tuple[Array, Array, Array]:
        """Convert mixing logits to weights: pre = sigmoid + eps, post = 2 sigmoid, comb made doubly stochastic by
        Sinkhorn."""

    @op("mix f32[T,C]; scale f32[1]; base f32[C]; eps -> out f32[T,C]")
    def hc_head_weights(self, mix: Array, scale: Array, base: Array, eps: float) -> Array:
        """Return sigmoid(mix scale + base) + eps."""

    @op("X f32[T,C,D]; w f32[T,C] -> out f32[T,D]")
    def hc_reduce(self, X: Array, w: Array) -> Array:
        """Return the weighted sum of each token's streams: sum_c w_c X_c."""

    @op("X f32[T,C,D]; y f32[T,D]; post f32[T,C]; comb f32[T,C,C] -> out f32[T,C,D]")
    def hc_expand(self, X: Array, y: Array, post: Array, comb: Array) -> Array:
        """Return the streams after a block: X'_k = post_k y + sum_j comb[j, k] X_j."""

    @op("a f32[...]; b f32[...] -> out f32[...]")
    def add(self, a: Array, b: Array) -> Array:
        """Return a + b."""

    @op("x f32[...]; factor -> out f32[...]")
    def scale(self, x: Array, factor: float) -> Array:
        """Return x times ``factor``, rounded to float32."""

    @op("x f32[T,n]; direction f32[n]; factor -> out f32[T,n]")
    def remove_along(self, x: Array, direction: Array, factor: float) -> Array:
        """Return x - factor d (d . x) for every row, d being ``direction``; the dot product is summed in float64."""

    @op("x f32[T,H,2*r+p]; cos f32[T,r]; sin f32[T,r]; inverse; halves -> out f32[T,H,2*r+p]")
    def rope(self, x: Array, cos: Array, sin: Array, inverse: bool = False, halves: bool = False) -> Array:
        """Rotate pairs of the last 2 r channels by the token's angles, backwards if ``inverse``.

        Pairs are adjacent channels or, if ``halves``, channels i and r + i of these 2 r.
        """

    # --- rounding: to a small format and back

    @op(
        "x f32[...,n]; channels -> out f32[...,n]",
        where="n % 64 == 0 if channels is None else 0 < channels <= n and channels % 64 == 0",
    )
    def round_e4m3(self, x: Array, channels: int | None = None) -> Array:
        """Round the first ``channels`` (None: all) of the last axis to E4M3, in blocks of 64 with a power-of-two
        scale."""

    @op("x f32[...,32*b] -> out f32[...,32*b]")
    def round_e2m1(self, x: Array) -> Array:
        """Round to E2M1 (FP4) in blocks of 32 of the last axis with a power-of-two scale."""

    @op("x f32[...] -> out f32[...]")
    def round_f16(self, x: Array) -> Array:
        """Round to binary16 and back: ties to even, overflow to infinity."""

    @op("x f32[...,group*b]; group -> out f32[...,group*b]", where="group >= 1")
    def round_i8(self, x: Array, group: int = 64) -> Array:
        """Round to int8 (-127 to 127) and back, in groups of ``group`` values of the last axis, ties away from zero.

        The scale of a group is its largest magnitude / 127. A group with a NaN or an infinity becomes NaN.
        """

    @op("x f32[...,2**b] -> out f32[...,2**b]")
    def hadamard(self, x: Array) -> Array:
        """Apply the Walsh-Hadamard transform (Sylvester order) to the n values of the last axis, scaled by n^-1/2."""

    @op("x f32[T,32*b] -> codes i8[T,32*b]; scales f32[T,b]")
    def quantize_a8(self, x: Array) -> tuple[Array, Array]:
        """Quantize blocks of 32 values to int8 with the scale amax / 127."""

    @op("x f32[T,256*b] -> codes i8[T,256*b]; scales f32[T,b]; sums i16[T,16*b]")
    def quantize_q8k(self, x: Array) -> tuple[Array, Array, Array]:
        """Quantize blocks of 256 values to int8, the first of largest magnitude becoming -127; ``sums`` are sums of 16
        codes."""

    # --- caches. ``at`` is the position of the first token, read when the op runs

    @op("x f32[T,w]; =rows any[N,w]; at i64[1] ->", where="N >= 1")
    def store_rows(self, x: Array, rows: Array, at: Array) -> None:
        """Store x[i] at row (at + i) mod N of a ring of N rows, only the last N of x; rows may be float16."""

    @op("gate f32[T,c]; ape f32[r,c]; at i64[1] -> out f32[T,c]", where="r >= 1")
    def position_bias(self, gate: Array, ape: Array, at: Array) -> Array:
        """Return gate[i] + ape[(at + i) mod r]."""

    @op(
        "ring f32[N,c+overlap*c]; new f32[T,c+overlap*c]; at i64[1]; count; ratio; overlap"
        " -> out f32[count,ratio+overlap*ratio,c]",
        where="N >= ratio + overlap * ratio and T >= 1 and ratio >= 1 and 1 <= count <= T // ratio + 1",
    )
    def windows(self, ring: Array, new: Array, at: Array, count: int, ratio: int, overlap: bool) -> Array:
        """Gather the ``count`` compression windows of ``ratio`` positions each, beginning with window at // ratio.

        Positions before ``at`` are read from the ring, later ones from ``new``; positions beyond ``new`` repeat its
        last row. With ``overlap`` a window has the first half of the channels of the window before it, then the second
        half of its own; without, all channels of its own.
        """

    @op("kv f32[n,m,c]; score f32[n,m,c] -> out f32[n,c]")
    def pool(self, kv: Array, score: Array) -> Array:
        """Return, per channel, the sum of the m values weighted by the softmax of the m scores.

        A channel whose scores are all at or below -5e29 gives 0.
        """

    # --- attention

    @op(
        "q f32[T,H,d]; raw f32[N,d]; raw_first i32[T] 0..; raw_count i32[T] 0..N; comp? any[M,d];"
        " comp_count i32[T] 0..M; selected? i32[T,k] ..M-1; sinks f32[H]; scale; =into? f32[T,H,d] -> out f32[T,H,d]"
    )
    def attention(
        self, q: Array, raw: Array, raw_first: Array, raw_count: Array, comp: Array | None, comp_count: Array,
        selected: Array | None, sinks: Array, scale: float, into: Array | None = None,
    ) -> Array:  # fmt: skip
        """Attend with H query heads to the same rows, which are keys and values, in one softmax per head.

        The rows are positions raw_first .. raw_first + raw_count - 1 of the ring ``raw``, and compressed rows 0 ..
        comp_count - 1 or, if given, those of ``selected`` that are >= 0. A head's sink enters the maximum and the
        denominator, never the values.
        """

    @op(
        "q f32[T,K*g,d]; keys any[N,K,d]; values any[N,K,d]; first i32[T] 0..; row_counts i32[T] 0..N; scale;"
        " =into? f32[T,K*g,d] -> out f32[T,K*g,d]",
        where="K >= 1",
    )
    def attend(
        self, q: Array, keys: Array, values: Array, first: Array, row_counts: Array, scale: float,
        into: Array | None = None,
    ) -> Array:  # fmt: skip
        """Compute grouped-query attention: head h reads keys and values h // g, in one softmax over the rows.

        The rows are positions first .. first + row_counts - 1 of the rings ``keys`` and ``values``. A token without
        rows gets NaN.
        """

    @op("iq f32[T,H,d]; rows any[n,d]; w f32[T,H]; count i32[1] -> out f32[T,n]")
    def index_scores(self, iq: Array, rows: Array, w: Array, count: Array) -> Array:
        """Return sum_h relu(iq_h . row) w_h for the first ``count`` rows; results of other rows are undefined.

        ``count`` is an array because it is read when the op runs, also in a recording.
        """

    @op("scores f32[T,n]; visible i32[T]; k -> out i32[T,k]")
    def select_rows(self, scores: Array, visible: Array, k: int) -> Array:
        """Return the k best of the first ``visible`` rows, ascending and padded with -1; ties go to the lower row."""

    # --- experts

    @op(
        "logits f32[T,E]; bias? f32[E]; hash_ids? i32[T,k] 0..E-1; k; scale; floor"
        " -> probs f32[T,E]; ids i32[T,k]; weights f32[T,k]",
        where="1 <= k <= E",
    )
    def route(
        self, logits: Array, bias: Array | None, hash_ids: Array | None, k: int, scale: float, floor: bool
    ) -> tuple[Array, Array, Array]:
        """Choose k experts per token: return probs = sqrt(softplus(logits)), the chosen ids, and their weights.

        Chosen are the k largest of probs + bias, ties to the lower id, or ``hash_ids``. Weights are the chosen probs
        over their sum (at least 2^-14 if ``floor``, else plus 1e-20), times scale.
        """

    @op("gate f32[...,n]; up f32[...,n]; limit; weight? f32[...] -> out f32[...,n]")
    def swiglu(self, gate: Array, up: Array, limit: float, weight: Array | None = None) -> Array:
        """Return silu(min(gate, limit)) clip(up, -limit, limit) over the last axis, times weight; ``limit`` may be
        infinite."""

    @op("gate f32[...]; up f32[...] -> out f32[...]")
    def geglu(self, gate: Array, up: Array) -> Array:
        """Return gelu(gate) up, gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)): GELU with a tangent
        (Hendrycks and Gimpel 2016)."""
