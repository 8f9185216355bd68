"""Matrix products on a GPU: GB/s of decode, format by format, and T/s of prefill, beside copies and launches.

Every product is launched many times in one captured graph, over consecutive matrices in a buffer far larger than the L2
cache, so that weights come from memory and the time includes gaps between launches. Weights are random bytes. The copy
is the driver's, within device memory, counting bytes read and written. Tests check the results, not this benchmark.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.kernels.cuda.driver import arrays, gpu
from ds4ref.kernels.cuda.driver.devices import nothing
from ds4ref.kernels.cuda.graph.branches import Schedule
from ds4ref.kernels.cuda.products import dispatch
from ds4ref.kernels.cuda.products.plain import VALUE_BYTES
from ds4ref.kernels.cuda.products.units import UNITS
from ds4ref.kernels.formats import FORMATS, Matrix

if TYPE_CHECKING:
    from .gpu_check import Check

BUFFER_BYTES = 1 << 30
GRAPH_BYTES = 3 << 30
PINNED_BYTES = 256 << 20
REPLAYS = 5
CHAIN, LANES = 200, 3
"""Empty launches in a chain, each of which waits for the one before, and chains side by side."""

SHAPES = {
    "Q8_0": ((512, 4096), (4096, 2048), (8192, 4096), (32768, 1024), (4096, 8192), (129280, 4096)),
    "Q4_K": ((1024, 4096), (16384, 4096)),
    "Q2_K": ((4096, 4096), (16384, 4096)),
    "IQ2_XXS": ((4096, 4096), (16384, 4096)),
    "F16": ((256, 4096), (8192, 1024), (16384, 4096)),
}
"""(rows, columns) of plain products by format: those of a pass of DeepSeek V4 Flash, and larger ones."""
EXPERTS, USED = 64, 6
EXPERT_SHAPES = {"IQ2_XXS": (2048, 4096), "Q2_K": (2048, 4096), "Q4_K": (2048, 4096)}
LARGE = 30_000_000
"""Minimum bytes of weights for the bar ``BAR`` to apply; below, launch overhead weighs as much as reading."""
BAR = 0.7


class Bench:
    """Device memory for weights, and timing of launches that read it; ``small``: for rehearsals."""

    def __init__(self, small: bool = False) -> None:
        self.small = small
        self.driver: Any = gpu.open_driver()
        self.size = (1 << 22) if small else BUFFER_BYTES
        self.buffer = self.driver.alloc(self.size)
        self.rng = np.random.default_rng(0)
        self.driver.to_device(self.buffer, 0, self.rng.integers(0, 256, self.size, dtype=np.uint8))
        self._kept: list[Any] = []

    def close(self) -> None:
        """Free the device memory."""
        for block in (self.buffer, *self._kept):
            self.driver.free(block)

    def array(self, values: np.ndarray) -> Any:
        """Return a flat copy of ``values`` on the device."""
        values = np.ascontiguousarray(values)
        block = self.driver.alloc(values.nbytes)
        self._kept.append(block)
        self.driver.to_device(block, 0, values)
        return arrays.as_kernel_array(block.pointer, (values.size,), values.dtype)

    def zeros(self, shape: Any, dtype: Any = np.float32) -> Any:
        return self.array(np.zeros(shape, dtype))

    def normal(self, *shape: int) -> Any:
        return self.array(self.rng.standard_normal(shape).astype(np.float32))

    def reused(self) -> Callable[[tuple[int, ...], Any], Any]:
        """Return ``zeros`` that makes an array of a kind once: to make one is a copy, which must not be timed."""
        made: dict[tuple[Any, ...], Any] = {}

        def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
            key = shape, np.dtype(dtype)
            if key not in made:
                made[key] = self.zeros(shape, dtype)
            return made[key]

        return scratch

    def weights(self, nbytes: int) -> Iterator[Any]:
        """Yield consecutive slices of ``nbytes`` of the weight buffer, cyclically."""
        step = -(-nbytes // 256) * 256
        while True:
            for start in range(0, self.size - step + 1, step):
                yield arrays.as_kernel_array(self.buffer.pointer + start, (nbytes,), np.dtype(np.uint8))

    def time(self, calls: Sequence[Callable[[], Any]], order: Schedule | None = None) -> float:
        """Return microseconds per call with all calls captured in one graph: the median of a few replays."""
        calls[0]()
        self.driver.sync()
        graph = self.driver.capture([], calls, [], *([] if order is None else [order]))
        times = []
        for _ in range(1 if self.small else REPLAYS + 1):
            start = time.perf_counter()
            graph.launch()
            self.driver.sync()
            times.append(time.perf_counter() - start)
        return statistics.median(times[1:] or times) / len(calls) * 1e6

    def copy(self) -> float:
        """Return the speed of a copy in GB/s, bytes read plus written: the best of a few sizes."""
        other = self.driver.alloc(self.size)
        best = 0.0
        for size in (self.size // 8, self.size // 2, self.size):
            calls = [partial(self.driver.copy, other, 0, self.buffer, 0, size)] * (1 if self.small else 8)
            best = max(best, 2 * size / self.time(calls) / 1e3)
        self.driver.free(other)
        return best

    def over(self, nbytes: int, call: Callable[[Any], Any], source: Iterator[Any] | None = None) -> float:
        """Time ``call`` of one slice of ``nbytes`` of weights after the other, or of what ``source`` yields."""
        source = self.weights(nbytes) if source is None else source
        count = 1 if self.small else max(8, min(1000, GRAPH_BYTES // nbytes))
        return self.time([partial(call, next(source)) for _ in range(count)])


def dense(bench: Bench, fmt: str, act: str, rows: int, n: int) -> tuple[int, float]:
    """Time one plain product with packed inputs, without the packing, which several products share; return the bytes
    of its weights and microseconds, as all that follow."""
    nbytes = rows * FORMATS[fmt].row_bytes(n)
    x, out, stream = bench.normal(n), bench.zeros(rows), bench.driver.stream
    inputs = dispatch.pack(stream, x, 1, n, fmt, act, bench.zeros) if fmt in UNITS else None

    def call(data: Any) -> None:
        w = Matrix(fmt, data, rows, n)
        if inputs is None:
            dispatch.linear(stream, out, x, w, 1, 1, act, scratch=bench.zeros)
        else:
            dispatch.linear_packed(stream, out, *inputs, w, 1, 1, act, scratch=bench.zeros)

    return nbytes, bench.over(nbytes, call)


def experts(bench: Bench, fmt: str, act: str, rows: int, n: int, summed: bool) -> tuple[int, float]:
    """Time products with USED of EXPERTS expert matrices, different ones for each launch.

    ``summed``: the weighted sum over experts (down projection) instead of separate results.
    """
    one = rows * FORMATS[fmt].row_bytes(n)
    stack = min(EXPERTS, bench.size // one)
    x, out, error = bench.normal(USED, n), bench.zeros(USED * rows), bench.zeros(1, np.int32)
    stream = bench.driver.stream
    inputs = dispatch.pack(stream, x, USED, n, fmt, act, bench.zeros)
    w = Matrix(fmt, next(bench.weights(stack * one)), rows, n)
    product = dispatch.expert_sum_packed if summed else dispatch.expert_linear_packed

    def call(ids: Any) -> None:
        product(stream, out, error, *inputs, ids, w, 1, USED, stack, act, 1, scratch=bench.zeros)

    draws = (bench.array(bench.rng.permutation(stack)[:USED].astype(np.int32)) for _ in iter(int, 1))
    return USED * one, bench.over(USED * one, call, draws)


def mix(bench: Bench, rows: int, n: int) -> tuple[int, float]:
    """Time the product for the mixing logits of hyper-connections, (rows, n) float weights."""
    x, out = bench.normal(n), bench.zeros(rows)

    def call(data: Any) -> None:
        dispatch.hc_mix(bench.driver.stream, out, x, Matrix("F16", data, rows, n), 1, 1e-6, scratch=bench.zeros)

    return 2 * rows * n, bench.over(2 * rows * n, call)


def prefill(bench: Bench, fmt: str, act: str, rows: int, n: int, tokens: int) -> float:
    """Time one product of ``tokens`` inputs, including their packing, in microseconds."""
    x, out = bench.normal(tokens, n), bench.zeros(tokens * rows)
    source, scratch = bench.weights(rows * FORMATS[fmt].row_bytes(n)), bench.reused()

    def call(data: Any) -> None:
        w = Matrix(fmt, data, rows, n)
        dispatch.linear(bench.driver.stream, out, x, w, tokens, 1, act, scratch=scratch)

    return bench.time([partial(call, next(source)) for _ in range(1 if bench.small else 8)])


def decode_products(bench: Bench) -> Iterator[tuple[str, str, Callable[[], tuple[int, float]]]]:
    """Yield name, kind of input and measurement of every product of decode."""
    for fmt, shapes in SHAPES.items():
        act = UNITS[fmt].activation if fmt in UNITS else "float"
        for rows, n in shapes:
            if not bench.small or rows * n <= 1 << 21:
                yield f"linear {fmt} {act} {rows} x {n}", act, partial(dense, bench, fmt, act, rows, n)
        if act != "float" and not bench.small:
            rows, n = shapes[-1]
            yield f"linear {fmt} float {rows} x {n}", "float", partial(dense, bench, fmt, "float", rows, n)
    for fmt, (rows, n) in {} if bench.small else EXPERT_SHAPES.items():
        yield f"expert_linear {fmt} {rows} x {n}", "q8k", partial(experts, bench, fmt, "q8k", rows, n, False)
        yield f"expert_sum {fmt} {n} x {rows}", "q8k", partial(experts, bench, fmt, "q8k", n, rows, True)
    n = 1024 if bench.small else 16384
    yield f"hc_mix F16 24 x {n}", "float", partial(mix, bench, 24, n)


def launches(check: Check, bench: Bench) -> None:
    """Add the rows of empty launches: from Python, in a chain and in lanes of a graph; and of one pack."""
    driver, x, length = bench.driver, bench.zeros(32), 4 if bench.small else CHAIN

    def launch(stream: Any) -> None:
        nothing[1, 32, stream](x, x, 32)

    call = partial(launch, driver.stream)
    call()
    driver.sync()
    start = time.perf_counter()
    for _ in range(length):
        call()
    check.add("empty launch from Python", 1e6 * (time.perf_counter() - start) / length, "us", timed=True)
    check.add(f"graph of a chain of {length}, a node", bench.time([call] * length), "us", timed=True)
    order = Schedule([{n - LANES} if n >= LANES else set() for n in range(LANES * length)], LANES)
    beside = bench.time([partial(launch, driver.stream_of(turn.branch)) for turn in order.turns], order)
    check.add(f"graph of {LANES} lanes of {length}, a step of all", LANES * beside, "us", timed=True)
    scratch, inputs = bench.reused(), bench.normal(4096)
    pack = partial(dispatch.pack, driver.stream, inputs, 1, 4096, "Q8_0", "a8", scratch)
    check.add("one pack of 4096 inputs, in a graph", bench.time([pack] * length), "us", timed=True)


def copies(check: Check, bench: Bench) -> None:
    """Add the rows of copies between the device and page-locked memory of the host."""
    pinned = bench.driver.pinned(min(PINNED_BYTES, bench.size))
    for item, work in (("to the device", bench.driver.to_device), ("to the host", bench.driver.to_host)):
        taken = []
        for _ in range(1 if bench.small else REPLAYS):
            start = time.perf_counter()
            work(*((bench.buffer, 0, pinned) if item == "to the device" else (pinned, bench.buffer, 0)))
            bench.driver.sync()
            taken.append(time.perf_counter() - start)
        speed = pinned.nbytes / statistics.median(taken) / 1e9
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
        for act in ([UNITS[fmt].activation] if fmt in UNITS else []) + ["float"]:
            check.need(5)
            speed = 2 * rows * n * tokens / prefill(bench, fmt, act, rows, n, tokens) / 1e6
            check.add(f"{tokens} inputs, {fmt} {act} {rows} x {n}", speed, "T/s", timed=True)
    bench.close()
