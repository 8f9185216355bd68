"""Every launch of a decoded token by itself, beside what its machine code predicts.

A slice of Flash's dimensions with 4 layers, which has every kind of layer, decodes a token. Then each of its launches
is captured REPEATS times in a row into a graph of its own, and timed. Operands stay in the cache of the GPU that way,
so a product with weights is quicker here than in a token (``gpu_products`` measures those); all others are as in a
token, whose arrays are in the cache, too. A row sums up launches of the same kernels and sizes.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ds4ref.decode import record
from ds4ref.engine import Engine

from .gpu_models import SLICE

if TYPE_CHECKING:
    from .gpu_part import Check

LAYERS, DEPTH, REPEATS, ROUNDS = 4, 2048, 50, 5


class Kernel(NamedTuple):
    """A kernel and the size of its launch, as ``cuda_code.json`` names them."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]


def kernels_of(driver: Any, call: Any) -> tuple[Kernel, ...]:
    """Call a launch; return the kernels that it launched."""
    from unittest import mock

    from ds4ref.kernels.cuda.driver.launching import Launcher

    found: list[Kernel] = []
    launch = Launcher.__call__

    def noted(self: Launcher, *args: Any) -> None:
        function = self.kernel.py_func
        grid, block = (tuple(n for n in sizes if n > 1) or (1,) for sizes in (self.grid, self.block))
        found.append(Kernel(f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}", grid, block))
        launch(self, *args)

    with mock.patch.object(Launcher, "__call__", noted):
        driver.run(call)
    return tuple(found)


def predicted(kernels: Sequence[Kernel], rows: Sequence[dict[str, Any]], device: Any) -> tuple[float, float] | None:
    """Return seconds at perfect issue and expected ones of some kernels; None if one is not in the table. Of a kernel
    that the table has for several formats with one size, the mean."""
    from . import cuda_price

    perfect = seconds = 0.0
    for kernel in kernels:
        same = [
            row
            for row in rows
            if row["kernel"].split(" ")[0] == kernel.name
            and tuple(n for n in row["grid"] if n > 1) == tuple(n for n in kernel.grid if n > 1)
            and tuple(n for n in row["block"] if n > 1) == tuple(n for n in kernel.block if n > 1)
        ]
        if not same:
            return None
        perfect += statistics.mean(cuda_price.price(device, row, 1.0).seconds for row in same)
        seconds += statistics.mean(cuda_price.price(device, row).seconds for row in same)
    return perfect, seconds


def seconds_of(driver: Any, call: Any, repeats: int, rounds: int) -> float:
    """Return the median time of one launch in a graph of ``repeats``."""
    graph = driver.capture([], [call] * repeats, [])
    taken = []
    for _ in range(rounds + 1):
        driver.sync()
        start = time.perf_counter()
        graph.launch()
        driver.sync()
        taken.append((time.perf_counter() - start) / repeats)
    return statistics.median(taken[1:])


def measure(check: Check) -> None:
    """Run the part "kernels" of ``gpu_check``."""
    from ds4ref.nano import random_path
    from ds4ref.nano.cache import slice_path

    from . import cuda_code, cuda_price

    path = random_path() if check.rehearsal else slice_path(LAYERS, **SLICE)
    depth, repeats, rounds = (64, 1, 1) if check.rehearsal else (DEPTH, REPEATS, ROUNDS)
    device = cuda_price.device_named(check.facts["device"], check.facts["capability"])
    rows: list[dict[str, Any]] = []
    if device is not None and cuda_code.TABLE.exists():
        table = json.loads(cuda_code.TABLE.read_text())["kernels"].get(device.arch, [])
        rows = [row for row in table if row["case"] == "q2/ds4"]
    with Engine.open(path, backend="cuda", numerics="ds4") as engine:
        model: Any = engine.model
        cache = model.cache(depth + 64)
        cache.restart(depth)
        cache.reserve(1)
        recording, inputs = record(model, [cache], [1], [model.plan_rows(cache, depth, 1)[0]])
        inputs.move(5, depth)
        recording.replay()
        driver = model.ops.driver
        taken: dict[tuple[Kernel, ...], list[float]] = {}
        for call in recording.calls():
            check.need(0)
            kernels = kernels_of(driver, call)
            taken.setdefault(kernels, []).append(seconds_of(driver, call, repeats, rounds))
    whole = sum(map(sum, taken.values()))
    check.add(f"{LAYERS} layers, all launches by themselves", 1e3 * whole, "ms", timed=True)
    for kernels, times in sorted(taken.items(), key=lambda item: -sum(item[1])):
        name = " + ".join(f"{kernel.name} {'x'.join(map(str, kernel.grid))}" for kernel in kernels) or "nothing"
        found = predicted(kernels, rows, device) if rows else None
        said = "" if found is None else f"; perfect issue {1e6 * found[0]:.1f}, expected {1e6 * found[1]:.1f} us"
        check.add(name, 1e6 * statistics.mean(times), "us", note=f"{len(times)} launches{said}", timed=True)
