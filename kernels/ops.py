"""The op table: the single declaration of every op and of the backend interface.

A backend (NumPy reference, CPU or CUDA) offers the methods of ``Backend``: ops, which take arrays and return new ones,
and a few methods for memory. A model's forward pass uses ops alone, so that its arrays may live on any device and the
pass may be recorded instead of run. ``OPS`` maps the name of every op to its operands, as declared by ``op``:

    name kind[dims]    an array. kind is f32, i32, i64, i8, i16 or any (f32 or f16); dims are names, which mean the same
                       size throughout one op, numbers, or sums, products and powers of both. ``...`` in front stands
                       for any number of axes, the same ones throughout one op. A dim that is the name of a plain
                       argument has the value of that argument
    name matrix[R,n]   weights as stored in the file (``ds4ref.kernels.formats.Matrix``); [E,R,n] is a stack of E
    name i32[T] 0..V-1 the values lie in this range; without a number at one end, that end is open
    name?              may be None; a size that occurs in no other operand is then 0
    =into?             the array that the result is written to and that is returned; None: a new array
    =name              written in place; all other operands are only read
    name               a plain argument, such as a number

``where`` adds conditions on sizes and arguments. ``binding`` generates the checks of every backend from this.

No result shares memory with an operand, and no operand written in place shares memory with another. Float results are
float32 whatever precision the backend computes with. Arrays are C-contiguous: an operand that is not (a strided view)
is copied first, or refused with a ValueError if it is written in place or the op is recorded. A NaN or an infinity in
an operand gives NaN or the value of the formula, never a number that looks valid. Wrong shapes and sizes raise
ValueError, wrong types TypeError, values out of range IndexError, when the op runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .formats.matrix import Matrix

Array = np.ndarray
F = TypeVar("F", bound=Callable[..., Any])


class Operand(NamedTuple):
    """One argument or result of an op.

    kind      dtype of an array ("f32", "any", ...), "matrix" for weights, "" for a plain argument
    dims      size of each axis, as names or expressions; None for a plain argument
    optional  whether it may be None
    written   whether the op writes it in place
    """

    name: str
    kind: str = ""
    dims: tuple[str, ...] | None = None
    optional: bool = False
    written: bool = False
    limits: tuple[str, str] | None = None
    """Least and greatest allowed value, as expressions; "" means no limit."""


class Op(NamedTuple):
    """An op as declared: its name, and what it takes and returns."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    where: str = ""
    """Condition that sizes and arguments must satisfy, as a Python expression; "" means none."""


OPS: dict[str, Op] = {}

LEAST = -1.0e30
"""Lower bound of the values that ``top`` ranks: lower values and NaN all count as equal to it."""

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
    """Return a decorator that enters a method of ``Backend`` into ``OPS``.

    declared: operands, then ``->``, then results, each list separated by ``;`` (the module docstring has the syntax)
    where: condition on sizes and arguments, as a Python expression
    """

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

    def load(self, progress: Callable[[str], None] | None = None, formats: Collection[str] = ()) -> None:
        """Compile or load kernels now, so that the first op is not slow.

        progress: called with a line of text from time to time if this takes long (None: print the lines to stderr).
        formats: storage formats of the weights that will be used.
        """

    def record(self) -> Any:
        """Return a backend of the same kind that records its ops to run them together, or None if this backend cannot.

        The recording has ``seal(*outputs, kept=())``, which ends it, and ``replay()``, which runs it. A replay copies
        ``outputs`` to the host; arrays of ``kept`` stay on the device until ``host`` is called on them. Both are valid
        until the next replay.

        If it has a method ``template(arrays)``, that returns an object whose ``on(others)`` makes a recording of the
        same steps that uses ``others`` (of the same shapes and dtypes) in place of ``arrays``, at a fraction of the
        cost of recording again.
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

    # --- table look-ups

    @op("table matrix[V,D]; ids i32[T] 0..V-1 -> out f32[T,D]")
    def embed(self, table: Matrix, ids: Array) -> Array:
        """Return rows ``ids`` of the embedding table."""

    @op("table i32[V,K]; ids i32[T] 0..V-1 -> out i32[T,K]")
    def take_rows(self, table: Array, ids: Array) -> Array:
        """Return rows ``ids`` of an integer table."""

    # --- matrix products: y[o] = sum_i W[o, i] x[i]. ``act`` says how the inputs x are rounded first: "float" (not at
    # all), "a8" (int8 in blocks of 32) or "q8k" (int8 in blocks of 256), see ``quantize_a8`` and ``quantize_q8k``

    @op("x f32[T,n]; w matrix[R,n]; act -> out f32[T,R]")
    def linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """Return x W^T, with x rounded first: ``act`` is "float" (no rounding), "a8" or "q8k" (int8 in blocks)."""

    @op("x f32[T,G,n]; w matrix[G*r,n]; act -> out f32[T,G*r]", where="G >= 1")
    def grouped_linear(self, x: Array, w: Matrix, act: str = "float") -> Array:
        """Return the product with a block-diagonal matrix: weight rows g r .. (g+1) r - 1 multiply x[:, g] alone."""

    @op("x f32[T,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,K,R]")
    def expert_linear(self, x: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """Multiply each token's x by the matrices of its K chosen experts; ``ids`` has their numbers."""

    @op("mid f32[T,K,n]; ids i32[T,K] 0..E-1; w matrix[E,R,n]; act -> out f32[T,R]")
    def expert_sum(self, mid: Array, ids: Array, w: Matrix, act: str = "float") -> Array:
        """Multiply each (token, expert) input ``mid`` by the expert's matrix, and add the K results in the order of
        ``ids``."""

    @op("ids i32[T,K] 0..E-1; w matrix[E,R,n] ->")
    def advise(self, ids: Array, w: Matrix) -> None:
        """Announce that the weights of experts ``ids`` will be read soon, so that they can be prefetched; results do
        not depend on it."""

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

    # --- residual streams (hyper-connections: C vectors per token instead of one) and norms

    @op("x f32[T,D]; count -> out f32[T,count,D]")
    def streams(self, x: Array, count: int) -> Array:
        """Return ``count`` copies of every token's vector: its residual streams at the start."""

    @op("x f32[...,n]; weight? f32[n]; eps -> out f32[...,n]")
    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last axis; the sum of squares is float64."""

    @op("X f32[T,C,D]; fn matrix[R,C*D]; eps -> out f32[T,R]")
    def hc_mix(self, X: Array, fn: Matrix, eps: float) -> Array:
        """Return each token's mixing logits: ``fn`` times its streams, joined into C D values and RMS-normed."""

    @op(
        "mix f32[T,C*C+2*C]; scale f32[3]; base f32[C*C+2*C]; iters; eps"
        " -> pre f32[T,C]; post f32[T,C]; comb f32[T,C,C]"
    )
    def hc_split(self, mix: Array, scale: Array, base: Array, iters: int, eps: float) -> tuple[Array, Array, Array]:
        """Convert mixing logits to the weights of the streams: pre = sigmoid + eps (for ``hc_reduce``), post = 2
        sigmoid and comb (for ``hc_expand``), made doubly stochastic by ``iters`` Sinkhorn iterations."""

    @op("mix f32[T,C]; scale f32[1]; base f32[C]; eps -> out f32[T,C]")
    def hc_head_weights(self, mix: Array, scale: Array, base: Array, eps: float) -> Array:
        """Return sigmoid(mix scale + base) + eps: the weights that sum the streams before the output head."""

    @op("X f32[T,C,D]; w f32[T,C] -> out f32[T,D]")
    def hc_reduce(self, X: Array, w: Array) -> Array:
        """Return the weighted sum of each token's streams: sum_c w_c X_c."""

    @op("X f32[T,C,D]; y f32[T,D]; post f32[T,C]; comb f32[T,C,C] -> out f32[T,C,D]")
    def hc_expand(self, X: Array, y: Array, post: Array, comb: Array) -> Array:
        """Return the streams after an attention or FFN block with output y: X'_k = post_k y + sum_j comb[j, k] X_j."""

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

    # --- rounding to a small number format and back to float32

    @op(
        "x f32[...,n]; channels; block -> out f32[...,n]",
        where="block in (32, 64) and (channels is None or 0 < channels <= n) and (channels or n) % block == 0",
    )
    def round_e4m3(self, x: Array, channels: int | None = None, block: int = 64) -> Array:
        """Round the first ``channels`` (None: all) of the last axis to E4M3, in blocks with a power-of-two scale."""

    @op("x f32[...,32*b] -> out f32[...,32*b]")
    def round_e2m1(self, x: Array) -> Array:
        """Round to E2M1 (FP4) in blocks of 32 of the last axis with a power-of-two scale."""

    @op("x f32[...,16*b] -> out f32[...,16*b]")
    def round_nvfp4(self, x: Array) -> Array:
        """Round to E2M1 in blocks of 16 of the last axis with a scale in E4M3."""

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
        """Quantize blocks of 32 values to int8; a block's scale is its largest magnitude / 127."""

    @op("x f32[T,256*b] -> codes i8[T,256*b]; scales f32[T,b]; sums i16[T,16*b]")
    def quantize_q8k(self, x: Array) -> tuple[Array, Array, Array]:
        """Quantize blocks of 256 values to int8 as ggml's Q8_K: the first value of largest magnitude becomes -127;
        ``sums`` are the sums of every 16 codes."""

    # --- caches. ``at`` holds the position of the first token of x; it is an array because its value is read when the
    # op runs, also in a recording

    @op("x f32[T,w]; =rows any[N,w]; at i64[1] ->", where="N >= 1")
    def store_rows(self, x: Array, rows: Array, at: Array) -> None:
        """Store x[i] in row (at + i) mod N of the ring buffer ``rows``, which may be float16; if x has more than N
        rows, only the last N are stored."""

    @op("gate f32[T,c]; ape f32[r,c]; at i64[1] -> out f32[T,c]", where="r >= 1")
    def position_bias(self, gate: Array, ape: Array, at: Array) -> Array:
        """Add to each token's gate the bias of its position within a window: gate[i] + ape[(at + i) mod r]."""

    @op(
        "ring f32[N,c+overlap*c]; new f32[T,c+overlap*c]; at i64[1]; count; ratio; overlap"
        " -> out f32[count,ratio+overlap*ratio,c]",
        where="N >= ratio + overlap * ratio and T >= 1 and ratio >= 1 and 1 <= count <= T // ratio + 1",
    )
    def windows(self, ring: Array, new: Array, at: Array, count: int, ratio: int, overlap: bool) -> Array:
        """Gather the cache rows of ``count`` compression windows of ``ratio`` positions each, from window at // ratio.

        Positions before ``at`` are read from the ring, later ones from ``new``; positions beyond ``new`` repeat its
        last row. With ``overlap`` a window consists of the first half of the channels of the previous window's rows,
        then the second half of the channels of its own rows; without, of all channels of its own rows.
        """

    @op("kv f32[n,m,c]; score f32[n,m,c] -> out f32[n,c]")
    def pool(self, kv: Array, score: Array) -> Array:
        """Compress each window's m rows to one: per channel, their sum weighted by the softmax of the m scores.

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
        """Attend with H query heads to shared cache rows, each both key and value, in one softmax per head.

        The rows are positions raw_first .. raw_first + raw_count - 1 of the ring buffer ``raw`` and, of the compressed
        rows ``comp``, the first comp_count or, if ``selected`` is given, those whose numbers it lists (negative numbers
        are skipped). A head's sink is one more logit of the softmax, without a value.
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
        """Compute grouped-query attention: query head h uses key and value head h // g.

        Each token attends to positions first .. first + row_counts - 1 of the ring buffers ``keys`` and ``values``; one
        without rows gets NaN.
        """

    @op("iq f32[T,H,d]; rows any[n,d]; w f32[T,H]; count i32[1] -> out f32[T,n]")
    def index_scores(self, iq: Array, rows: Array, w: Array, count: Array) -> Array:
        """Score compressed rows for selection: sum_h relu(iq_h . row) w_h for the first ``count`` of ``rows``; the
        scores of later rows are undefined.

        ``count`` is an array because it is read when the op runs, also in a recording.
        """

    @op("scores f32[T,n]; visible i32[T]; k -> out i32[T,k]")
    def select_rows(self, scores: Array, visible: Array, k: int) -> Array:
        """Return the numbers of the k best-scored of the first ``visible`` rows, in ascending order and padded with -1;
        of equal scores the lower row wins."""

    @op(
        "scores f32[T,n]; visible i32[T]; size; count -> out f32[T,count]", where="size >= 1 and count * size >= n >= 1"
    )
    def block_maxima(self, scores: Array, visible: Array, size: int, count: int) -> Array:
        """Return the greatest score in each block of ``size`` rows, of the first ``visible`` rows; infinity for the
        last block with such a row, -infinity for blocks without one."""

    @op("iq f32[T,H,d]; rows any[n,d]; w f32[T,H]; blocks i32[T,b]; size -> out f32[T,b*size]", where="size >= 1")
    def block_scores(self, iq: Array, rows: Array, w: Array, blocks: Array, size: int) -> Array:
        """Score, as ``index_scores`` does, the ``size`` rows of each of a token's blocks; -infinity for rows that do
        not exist (a negative block, or behind the last row)."""

    @op("picks i32[T,k]; blocks i32[T,b]; size -> out i32[T,k]", where="size >= 1")
    def block_rows(self, picks: Array, blocks: Array, size: int) -> Array:
        """Return the number of the row for each place in a result of ``block_scores``; -1 for places out of range."""

    # --- lookup tables

    @op("X f32[T,C,D]; joined f32[T,C*D+D]; weight f32[C,D]; eps -> out f32[T,C,D]")
    def engram_gate(self, X: Array, joined: Array, weight: Array, eps: float) -> Array:
        """Add a vector to each of a token's streams: X_i + sigmoid(sign(s) sqrt(max(|s|, 1e-6))) value.

        ``joined`` holds a key for each stream, then the value; s = sum_c x_i weight_i key_i / sqrt(D), with x_i and
        key_i divided by their root mean squares.
        """

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

        The chosen experts are those with the k largest probs + bias, the lower id first among equals, or ``hash_ids``
        if given. A weight is the expert's prob divided by the sum of the chosen probs (at least 2^-14 if ``floor``,
        else plus 1e-20), times scale.
        """

    @op("gate f32[...,n]; up f32[...,n]; limit; weight? f32[...] -> out f32[...,n]")
    def swiglu(self, gate: Array, up: Array, limit: float, weight: Array | None = None) -> Array:
        """Return silu(min(gate, limit)) clip(up, -limit, limit) over the last axis, times weight; ``limit`` may be
        infinite."""

    @op("gate f32[...]; up f32[...] -> out f32[...]")
    def geglu(self, gate: Array, up: Array) -> Array:
        """Return gelu(gate) up with gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the tanh approximation of
        GELU (Hendrycks and Gimpel 2016)."""
