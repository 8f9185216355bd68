"""Matrix products on a GPU: memory bandwidth of decode, format by format, against a copy measured beside it.

    python -m benchmarks.gpu_products                      table
    python -m benchmarks.gpu_products -o products.json     and figures with machine, commit and command

Every product is launched many times in one captured graph, over consecutive matrices in a buffer far larger than the L2
cache, so that weights come from memory and the time includes gaps between launches. Weights are random bytes. The copy
is the driver's, within device memory, counting bytes read and written. Tests check the results, not this benchmark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.kernels.formats import FORMATS, Matrix

if TYPE_CHECKING:
    from .cuda_price import Device
    from .gpu_part import Check

BUFFER_BYTES = 1 << 30
GRAPH_BYTES = 3 << 30
REPLAYS = 5

SHAPES = {
    "Q8_0": (
        (512, 4096), (1024, 4096), (2048, 4096), (4096, 2048), (8192, 4096), (32768, 1024), (4096, 8192), (4096, 16384),
        (129280, 4096),
    ),
    "Q4_K": ((1024, 4096), (4096, 4096), (16384, 4096)),
    "Q2_K": ((4096, 4096), (16384, 4096)),
    "IQ2_XXS": ((4096, 4096), (16384, 4096)),
    "F16": ((256, 4096), (1024, 4096), (8192, 1024), (4096, 4096), (16384, 4096)),
}  # fmt: skip
"""(rows, columns) of plain products by format: those of a pass of DeepSeek V4 Flash, and larger ones."""

EXPERTS = 64
USED = 6
EXPERT_SHAPES = {"IQ2_XXS": (2048, 4096), "Q2_K": (2048, 4096), "Q4_K": (2048, 4096)}


class Figure(NamedTuple):
    """One measured product.

    act            kind of input
    rows, n        shape of the weights (rows, n)
    nbytes         bytes of weights read per launch
    microseconds   time per launch
    """

    name: str
    fmt: str
    act: str
    rows: int
    n: int
    nbytes: int
    microseconds: float

    @property
    def bandwidth(self) -> float:
        """Weights read per second, in GB/s."""
        return self.nbytes / self.microseconds / 1e3


class Bench:
    """Device memory for weights, and timing of launches that read it."""

    def __init__(self, small: bool = False) -> None:
        from ds4ref.kernels.cuda.driver import arrays, gpu

        self.small, self._array = small, arrays.as_kernel_array
        self.driver: Any = gpu.open_driver()
        self.size = (1 << 22) if small else BUFFER_BYTES
        self.buffer = self.driver.alloc(self.size)
        rng = np.random.default_rng(0)
        self.driver.to_device(self.buffer, 0, rng.integers(0, 256, self.size, dtype=np.uint8))
        self.rng = rng
        self._kept: list[Any] = []

    def close(self) -> None:
        """Free the device memory."""
        for block in (self.buffer, *self._kept):
            self.driver.free(block)
        self._kept.clear()

    def array(self, values: np.ndarray) -> Any:
        """Return a flat copy of ``values`` on the device."""
        values = np.ascontiguousarray(values)
        block = self.driver.alloc(values.nbytes)
        self._kept.append(block)
        self.driver.to_device(block, 0, values)
        return self._array(block.pointer, (values.size,), values.dtype)

    def scratch(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.array(np.zeros(shape, dtype))

    def reused(self) -> Callable[[tuple[int, ...], Any], Any]:
        """Return ``scratch`` that makes an array of a kind once: to make one is a copy, which must not be timed."""
        made: dict[tuple[Any, ...], Any] = {}

        def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
            key = shape, np.dtype(dtype)
            if key not in made:
                made[key] = self.scratch(shape, dtype)
            return made[key]

        return scratch

    def weights(self, nbytes: int) -> Iterator[Any]:
        """Yield consecutive slices of ``nbytes`` of the weight buffer, cyclically."""
        step = -(-nbytes // 256) * 256
        if step > self.size:
            raise ValueError(f"{nbytes} bytes are more than the buffer")
        while True:
            for start in range(0, self.size - step + 1, step):
                yield self._array(self.buffer.pointer + start, (nbytes,), np.dtype(np.uint8))

    def time(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return microseconds per call with all calls captured in one graph: the median of a few replays."""
        calls[0]()
        self.driver.sync()
        graph = self.driver.capture([], calls, [])
        times = []
        for number in range(1 if self.small else REPLAYS + 1):
            start = time.perf_counter()
            graph.launch()
            self.driver.sync()
            if number or self.small:
                times.append(time.perf_counter() - start)
        return statistics.median(times) / len(calls) * 1e6

    def copy(self) -> float:
        """Return the speed of a copy in GB/s, bytes read plus written: the best of a few sizes."""
        other = self.driver.alloc(self.size)
        best = 0.0
        for size in (self.size // 8, self.size // 2, self.size):
            calls = [partial(self.driver.copy, other, 0, self.buffer, 0, size)] * (1 if self.small else 8)
            best = max(best, 2 * size / self.time(calls) / 1e3)
        self.driver.free(other)
        return best

    def count(self, nbytes: int) -> int:
        """Return how many launches over ``nbytes`` of weights a graph should have."""
        return 1 if self.small else max(8, min(1000, GRAPH_BYTES // nbytes))


def dense(bench: Bench, fmt: str, act: str, rows: int, n: int) -> Figure:
    """Time one plain product with packed inputs, without the packing, which several products share."""
    from ds4ref.kernels.cuda.products import dispatch

    nbytes = rows * FORMATS[fmt].row_bytes(n)
    x, out = bench.array(bench.rng.standard_normal(n).astype(np.float32)), bench.array(np.zeros(rows, np.float32))
    source = bench.weights(nbytes)
    if fmt in dispatch.UNITS:
        inputs = dispatch.pack(bench.driver.stream, x, 1, n, fmt, act, bench.scratch)

        def call(data: Any) -> None:
            w = Matrix(fmt, data, rows, n)
            dispatch.linear_packed(bench.driver.stream, out, *inputs, w, 1, 1, act, scratch=bench.scratch)
    else:

        def call(data: Any) -> None:
            dispatch.linear(bench.driver.stream, out, x, Matrix(fmt, data, rows, n), 1, 1, act, scratch=bench.scratch)

    calls = [partial(call, next(source)) for _ in range(bench.count(nbytes))]
    return Figure("linear", fmt, act, rows, n, nbytes, bench.time(calls))


def experts(bench: Bench, fmt: str, act: str, rows: int, n: int, summed: bool) -> Figure:
    """Time products with USED of EXPERTS expert matrices, different ones for each launch.

    ``summed``: the weighted sum over experts (down projection) instead of separate results.
    """
    from ds4ref.kernels.cuda.products import dispatch

    one = rows * FORMATS[fmt].row_bytes(n)
    stack = min(EXPERTS, bench.size // one)
    x = bench.array(bench.rng.standard_normal((USED, n)).astype(np.float32))
    out, error = bench.array(np.zeros(USED * rows, np.float32)), bench.array(np.zeros(1, np.int32))
    inputs = dispatch.pack(bench.driver.stream, x, USED, n, fmt, act, bench.scratch)
    w = Matrix(fmt, next(bench.weights(stack * one)), rows, n)
    product = dispatch.expert_sum_packed if summed else dispatch.expert_linear_packed

    def call(ids: Any) -> None:
        stream = bench.driver.stream
        product(stream, out, error, *inputs, ids, w, 1, USED, stack, act, 1, scratch=bench.scratch)

    draws = [bench.rng.permutation(stack)[:USED].astype(np.int32) for _ in range(bench.count(USED * one))]
    calls = [partial(call, bench.array(ids)) for ids in draws]
    return Figure("expert_sum" if summed else "expert_linear", fmt, act, rows, n, USED * one, bench.time(calls))


def mix(bench: Bench, rows: int = 24, n: int = 16384) -> Figure:
    """Time the product for the mixing logits of hyper-connections, (rows, n) float weights."""
    from ds4ref.kernels.cuda.products import dispatch

    nbytes = rows * n * 2
    x, out = bench.array(bench.rng.standard_normal(n).astype(np.float32)), bench.array(np.zeros(rows, np.float32))
    source = bench.weights(nbytes)

    def call(data: Any) -> None:
        dispatch.hc_mix(bench.driver.stream, out, x, Matrix("F16", data, rows, n), 1, 1e-6, scratch=bench.scratch)

    calls = [partial(call, next(source)) for _ in range(bench.count(nbytes))]
    return Figure("hc_mix", "F16", "float", rows, n, nbytes, bench.time(calls))


def packing(bench: Bench, fmt: str, act: str, n: int) -> Figure:
    """Time the packing of one input of ``n`` values; the figure's bytes are those of the input."""
    from ds4ref.kernels.cuda.products import dispatch

    x = bench.array(bench.rng.standard_normal(n).astype(np.float32))
    scratch = bench.reused()

    def call() -> None:
        dispatch.pack(bench.driver.stream, x, 1, n, fmt, act, scratch)

    return Figure("pack", fmt, act, 1, n, 4 * n, bench.time([call] * (1 if bench.small else 500)))


class Prefill(NamedTuple):
    """One measured product of ``tokens`` inputs.

    torch   microseconds of the same product in bfloat16 in torch, None if not installed
    """

    fmt: str
    act: str
    rows: int
    n: int
    tokens: int
    microseconds: float
    torch: float | None

    @property
    def teraflops(self) -> float:
        """Tera-operations per second, counting two operations per weight and token."""
        return 2 * self.rows * self.n * self.tokens / self.microseconds / 1e6


def prefill(bench: Bench, fmt: str, act: str, rows: int, n: int, tokens: int) -> Prefill:
    """Time one product of ``tokens`` inputs, including their packing."""
    from ds4ref.kernels.cuda.products import dispatch

    nbytes = rows * FORMATS[fmt].row_bytes(n)
    x = bench.array(bench.rng.standard_normal((tokens, n)).astype(np.float32))
    out, source = bench.array(np.zeros(tokens * rows, np.float32)), bench.weights(nbytes)
    scratch = bench.reused()

    def call(data: Any) -> None:
        w = Matrix(fmt, data, rows, n)
        dispatch.linear(bench.driver.stream, out, x, w, tokens, 1, act, scratch=scratch)

    calls = [partial(call, next(source)) for _ in range(1 if bench.small else 8)]
    return Prefill(fmt, act, rows, n, tokens, bench.time(calls), None if bench.small else torch_time(rows, n, tokens))


def torch_time(rows: int, n: int, tokens: int) -> float | None:
    """Return the microseconds of a bfloat16 product in torch; None if torch or its GPU support is missing."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    x = torch.randn(tokens, n, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    times = []
    for number in range(REPLAYS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(8):
            x @ w.T
        end.record()
        torch.cuda.synchronize()
        if number:
            times.append(begin.elapsed_time(end) / 8 * 1e3)
    return statistics.median(times)


def figures(bench: Bench, floats: bool) -> Iterator[Figure]:
    """Measure and yield all figures of decode; ``floats``: also products with float inputs."""
    from ds4ref.kernels.cuda.products.units import UNITS

    for fmt, shapes in SHAPES.items():
        act = UNITS[fmt].activation if fmt in UNITS else "float"
        for rows, n in shapes:
            if bench.small and rows * n > 1 << 21:
                continue
            yield dense(bench, fmt, act, rows, n)
        if floats and act != "float" and not bench.small:
            yield dense(bench, fmt, "float", *shapes[-1])
    for fmt, (rows, n) in EXPERT_SHAPES.items():
        if not bench.small:
            yield experts(bench, fmt, "q8k", rows, n, False)
            yield experts(bench, fmt, "q8k", n, rows, True)
    yield mix(bench, 24, 1024 if bench.small else 16384)
    yield packing(bench, "Q8_0", "a8", 4096)
    yield packing(bench, "Q2_K", "q8k", 4096)


def prefills(bench: Bench) -> Iterator[Prefill]:
    """Measure and yield a product of many inputs for each format, with integer (if supported) and float inputs."""
    from ds4ref.kernels.cuda.products.units import UNITS

    shape = (64, 256, 16) if bench.small else (8192, 4096, 2048)
    for fmt in ("Q8_0", "Q4_K", "Q2_K", "IQ2_XXS", *plain_formats()):
        if fmt in UNITS:
            yield prefill(bench, fmt, UNITS[fmt].activation, *shape)
        yield prefill(bench, fmt, "float", *shape)


def kept(f: Figure, copy: float) -> dict[str, Any]:
    """Return a figure as JSON values; ``copy``: GB/s of the copy, for the share."""
    return {**f._asdict(), "bandwidth": round(f.bandwidth, 1), "of_copy": round(f.bandwidth / copy, 3)}


def predicted(f: Figure, device: Device | None) -> float | None:
    """Return the GB/s predicted from the product's machine code (cuda.md); None if the stored table lacks it."""
    from . import cuda_code, cuda_price

    if device is None or not cuda_code.TABLE.exists():
        return None
    chosen = USED if f.name.startswith("expert") else 1
    for row in json.loads(cuda_code.TABLE.read_text())["kernels"].get(device.arch, []):
        same = row.get("weights") == [f.fmt, chosen, f.rows, f.n] and "instructions" in row
        if same and row["case"].endswith("/exact" if f.act == "float" and f.fmt not in plain_formats() else "/ds4"):
            return device.bandwidth * cuda_price.predicted(device, row["bytes"], row)["units"]
    return None


def plain_formats() -> Sequence[str]:
    """Return the formats that are multiplied with unrounded float32 inputs in every mode."""
    from ds4ref.kernels.cuda.products.plain import VALUE_BYTES

    return tuple(VALUE_BYTES)


LARGE = 30_000_000
"""Minimum bytes of weights for the bar ``BAR`` to apply; below, launch overhead weighs as much as reading."""
BAR = 0.7


def measure(check: Check) -> None:
    """Run the part "products" of ``gpu_check``: every figure, with the copy and the prediction."""
    from .cuda_price import device_named

    device = device_named(check.facts["device"], check.facts["capability"])
    bench = Bench(check.rehearsal)
    copy = bench.copy()
    check.add("copy", copy, "GB/s", note="bytes read and written", timed=True)
    for f in figures(bench, True):
        check.need(2)
        item = f"{f.name} {f.fmt} {f.act} {f.rows} x {f.n}"
        expected = predicted(f, device)
        note = f"{f.microseconds:.1f} us, {f.bandwidth:.0f} GB/s"
        if expected is not None:
            note += f"; predicted {expected:.0f}, measured {f.bandwidth / expected:.2f} of it"
        bar = BAR if f.nbytes >= LARGE and f.act != "float" else None
        check.add(f"{item} / copy", f.bandwidth / copy, "", bar, note=note, timed=True)
        check.keep({**kept(f, copy), "predicted_gb_s": expected} if not check.rehearsal else {"ran": item})
    for p in prefills(bench):
        check.need(5)
        note = (
            "no torch beside it" if p.torch is None else f"torch bfloat16 {p.torch:.0f} us, ours {p.microseconds:.0f}"
        )
        item = f"{p.tokens} inputs, {p.fmt} {p.act} {p.rows} x {p.n}"
        check.add(item, p.teraflops, "T/s", note=note, timed=True)
        if p.torch is not None:
            check.add(f"{item}, torch's time / ours", p.torch / p.microseconds, timed=True)
    bench.close()


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_products", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", help="write figures as JSON")
    parser.add_argument("--floats", action="store_true", help="float inputs, too")
    args = parser.parse_args()
    from ds4ref.kernels.cuda.driver.devices import devices

    try:
        bench = Bench()
    except RuntimeError as e:
        sys.exit(f"gpu_products: {e}")
    copy = bench.copy()
    print(f"copy {copy:.0f} GB/s")
    rows = []
    for f in figures(bench, args.floats):
        share = f.bandwidth / copy
        print(
            f"{f.name:14s} {f.fmt:8s} {f.act:6s} {f.rows:6d} x {f.n:5d} {f.nbytes / 1e6:8.2f} MB "
            f"{f.microseconds:8.2f} us {f.bandwidth:7.0f} GB/s {share:5.2f}",
            flush=True,
        )
        rows.append(kept(f, copy))
    prefill_rows = []
    for p in prefills(bench):
        beside = "" if p.torch is None else f", torch bfloat16 {p.torch:.0f} us"
        item = f"{p.fmt:8s} {p.act:6s} {p.rows} x {p.n}, {p.tokens} tokens"
        print(f"prefill {item}: {p.microseconds:.0f} us, {p.teraflops:.1f} T/s{beside}", flush=True)
        prefill_rows.append(p._asdict())
    if args.output:
        report: dict[str, Any] = {"machine": devices()[0].name, "commit": commit()}
        report["command"] = " ".join(["python -m benchmarks.gpu_products", *sys.argv[1:]])
        report |= {"copy_gb_s": round(copy, 1), "figures": rows, "prefill": prefill_rows}
        with open(args.output, "w") as file:
            json.dump(report, file, indent=1)


def commit() -> str | None:
    """Return the git commit of this file's tree, marked if files were changed; None outside a repository."""
    folder = Path(__file__).parent
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or None


if __name__ == "__main__":
    main()
