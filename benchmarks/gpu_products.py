"""Matrix products on a GPU: GB/s of decode, format by format, and T/s of prefill, beside copies and launches.

Every product is recorded many times in one graph, over consecutive matrices in a buffer far larger than the L2 cache,
so that weights come from memory and the time includes gaps between launches. Weights are random bytes. The copy is the
driver's, within device memory, counting bytes read and written. Tests check the results, not this benchmark.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.driver.devices import nothing
from ds4ref.kernels.cuda.products.plain import VALUE_BYTES
from ds4ref.kernels.cuda.products.units import UNITS
from ds4ref.kernels.formats import FORMATS, Matrix

if TYPE_CHECKING:
    from .gpu_check import Check

BUFFER_BYTES = 1 << 30
GRAPH_BYTES = 3 << 30
PINNED_BYTES = 256 << 20
REPLAYS = 5
CHAIN = 200
"""Number of empty launches that are timed together."""

SHAPES = {
    "Q8_0": ((512, 4096), (4096, 2048), (8192, 4096), (32768, 1024), (4096, 8192), (129280, 4096)),
    "Q4_K": ((1024, 4096), (16384, 4096)),
    "Q2_K": ((4096, 4096), (16384, 4096)),
    "IQ2_XXS": ((4096, 4096), (16384, 4096)),
    "F16": ((256, 4096), (8192, 1024), (16384, 4096)),
}
"""(rows, columns) of the matrices to multiply by, for each format: those of DeepSeek V4 Flash, and larger ones."""
EXPERTS, USED = 64, 6
EXPERT_SHAPES = {"IQ2_XXS": (2048, 4096), "Q2_K": (2048, 4096), "Q4_K": (2048, 4096)}
LARGE = 30_000_000
"""Minimum bytes of weights for the bar ``BAR`` to apply; with fewer, a launch costs as much time as reading them."""
BAR = 0.7


def activation(fmt: str) -> str:
    """Return the rounding of inputs that is used with weights of format ``fmt``."""
    return UNITS[fmt].activation if fmt in UNITS else "float"


class Bench:
    """A buffer of random bytes on the GPU, which serve as weights, and functions that time what reads them.

    small: use a small buffer and few runs, for rehearsals
    """

    def __init__(self, small: bool = False) -> None:
        self.small, self.ops = small, CUDA()
        self.driver, self.rng = self.ops.driver, np.random.default_rng(0)
        self.size = (1 << 22) if small else BUFFER_BYTES
        self.bytes = self.ops.moved(self.rng.integers(0, 256, self.size, dtype=np.uint8))

    def normal(self, *shape: int) -> Any:
        return self.ops.moved(self.rng.standard_normal(shape).astype(np.float32))

    def matrices(self, fmt: str, rows: int, n: int, experts: int = 0) -> Iterator[Matrix]:
        """Yield matrices (with ``experts``, stacks) made of consecutive bytes of the buffer; at its end begin again."""
        shape = *([experts] if experts else []), rows, FORMATS[fmt].row_bytes(n)
        nbytes = int(np.prod(shape))
        while True:
            for start in range(0, self.size - nbytes + 1, -(-nbytes // 256) * 256):
                data: Any = self.bytes[start : start + nbytes].reshape(shape)
                yield Matrix(fmt, data, rows, n)

    def count(self, nbytes: int) -> int:
        """Return how many launches, which read ``nbytes`` each, to time together."""
        return 1 if self.small else max(8, min(1000, GRAPH_BYTES // nbytes))

    def seconds(self, run: Callable[[], Any]) -> float:
        """Return the median seconds of a few calls of ``run``, each timed until the GPU has done what it launched."""
        taken = []
        for _ in range(1 if self.small else REPLAYS + 1):
            start = time.perf_counter()
            run()
            self.driver.sync()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[1:] or taken)

    def launches(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return the microseconds per call, for calls that launch kernels, captured in one graph."""
        calls[0]()
        self.driver.sync()
        return 1e6 * self.seconds(self.driver.capture([], calls, []).launch) / len(calls)

    def recorded(self, calls: Sequence[Callable[[Any], Any]]) -> float:
        """Return the microseconds per call, for functions that call ops of a recording, which is then replayed."""
        recording = self.ops.record()
        outs = [call(recording) for call in calls]
        recording.seal(outs[-1])
        return 1e6 * self.seconds(recording.replay) / len(calls)

    def copy(self) -> float:
        """Return the speed of a copy in GB/s, bytes read plus written: the best of a few sizes."""
        block, other = self.bytes.buffer.block, self.driver.alloc(self.size)
        best = 0.0
        for size in (self.size // 8, self.size // 2, self.size):
            calls = [partial(self.driver.copy, other, 0, block, 0, size)] * (1 if self.small else 8)
            best = max(best, 2 * size / self.launches(calls) / 1e3)
        self.driver.free(other)
        return best


def dense(bench: Bench, fmt: str, act: str, rows: int, n: int, tokens: int = 1) -> tuple[int, float]:
    """Time a product with one matrix; return the bytes of its weights and the microseconds, as the functions below do.

    Consecutive products have different inputs, because two products of the same input would become one launch.
    """
    nbytes, xs = rows * FORMATS[fmt].row_bytes(n), [bench.normal(tokens, n) for _ in range(2)]
    source = bench.matrices(fmt, rows, n)
    count = bench.count(nbytes) if tokens == 1 else 1 if bench.small else 8

    def call(x: Any, w: Matrix, ops: Any) -> Any:
        return ops.linear(x, w, act)

    return nbytes, bench.recorded([partial(call, xs[number % 2], next(source)) for number in range(count)])


def experts(bench: Bench, fmt: str, rows: int, n: int, summed: bool) -> tuple[int, float]:
    """Time products with USED out of EXPERTS experts' matrices, different ones in each launch.

    summed: time ``expert_sum``, which adds up the experts' results (down projection), instead of ``expert_linear``
    """
    nbytes, act = USED * rows * FORMATS[fmt].row_bytes(n), activation(fmt)
    w = next(bench.matrices(fmt, rows, n, EXPERTS))
    x = bench.normal(1, USED, n) if summed else bench.normal(1, n)

    def call(ids: Any, ops: Any) -> Any:
        return ops.expert_sum(x, ids, w, act) if summed else ops.expert_linear(x, ids, w, act)

    draws = [bench.rng.permutation(EXPERTS)[None, :USED].astype(np.int32) for _ in range(bench.count(nbytes))]
    return nbytes, bench.recorded([partial(call, bench.ops.moved(ids)) for ids in draws])


def mix(bench: Bench, rows: int, n: int) -> tuple[int, float]:
    """Time the product that gives the mixing logits of hyper-connections, with (rows, n) float weights."""
    X, source = bench.normal(1, 4, n // 4), bench.matrices("F16", rows, n)

    def call(w: Matrix, ops: Any) -> Any:
        return ops.hc_mix(X, w, 1e-6)

    return 2 * rows * n, bench.recorded([partial(call, next(source)) for _ in range(bench.count(2 * rows * n))])


def decode_products(bench: Bench) -> Iterator[tuple[str, str, Callable[[], tuple[int, float]]]]:
    """Yield, for every product to time with a single token, its name, the kind of its inputs, and the function that
    times it."""
    for fmt, shapes in SHAPES.items():
        act = activation(fmt)
        for rows, n in shapes:
            if not bench.small or rows * n <= 1 << 21:
                yield f"linear {fmt} {act} {rows} x {n}", act, partial(dense, bench, fmt, act, rows, n)
        if act != "float" and not bench.small:
            rows, n = shapes[-1]
            yield f"linear {fmt} float {rows} x {n}", "float", partial(dense, bench, fmt, "float", rows, n)
    for fmt, (rows, n) in {} if bench.small else EXPERT_SHAPES.items():
        yield f"expert_linear {fmt} {rows} x {n}", "q8k", partial(experts, bench, fmt, rows, n, False)
        yield f"expert_sum {fmt} {n} x {rows}", "q8k", partial(experts, bench, fmt, n, rows, True)
    n = 1024 if bench.small else 16384
    yield f"hc_mix F16 24 x {n}", "float", partial(mix, bench, 24, n)


def launches(check: Check, bench: Bench) -> None:
    """Add the rows for launches of kernels that do nothing: from Python, and in a graph."""
    x, length = bench.normal(32).flat(), 4 if bench.small else CHAIN

    def launch() -> None:
        nothing[1, 32, bench.driver.stream](x, x, 32)

    launch()
    python = bench.seconds(lambda: [launch() for _ in range(length)])
    check.add("empty launch from Python", 1e6 * python / length, "us", timed=True)
    check.add(f"graph of a chain of {length}, a node", bench.launches([launch] * length), "us", timed=True)


def copies(check: Check, bench: Bench) -> None:
    """Add the rows for copies between the GPU and page-locked memory of the host."""
    pinned, block = bench.driver.pinned(min(PINNED_BYTES, bench.size)), bench.bytes.buffer.block
    works = {
        "to the device": lambda: bench.driver.to_device(block, 0, pinned),
        "to the host": lambda: bench.driver.to_host(pinned, block, 0),
    }
    for item, work in works.items():
        speed = pinned.nbytes / bench.seconds(work) / 1e9
        check.add(f"copy {item}", speed, "GB/s", note="page-locked memory", timed=True)


def measure(check: Check) -> None:
    """Run the part "products" of ``gpu_check``."""
    bench = Bench(check.rehearsal)
    copy = bench.copy()
    check.add("copy", copy, "GB/s", note="bytes read and written", timed=True)
    copies(check, bench)
    launches(check, bench)
    for item, act, work in decode_products(bench):
        check.need(2)
        nbytes, microseconds = work()
        speed = nbytes / microseconds / 1e3
        bar = BAR if nbytes >= LARGE and act != "float" else None
        check.add(f"{item} / copy", speed / copy, "", bar, note=f"{microseconds:.1f} us, {speed:.0f} GB/s", timed=True)
    rows, n, tokens = (64, 256, 16) if bench.small else (8192, 4096, 2048)
    for fmt in ("Q8_0", "Q4_K", "Q2_K", "IQ2_XXS", *VALUE_BYTES):
        for act in dict.fromkeys((activation(fmt), "float")):
            check.need(5)
            speed = 2 * rows * n * tokens / dense(bench, fmt, act, rows, n, tokens)[1] / 1e6
            check.add(f"{tokens} inputs, {fmt} {act} {rows} x {n}", speed, "T/s", timed=True)
