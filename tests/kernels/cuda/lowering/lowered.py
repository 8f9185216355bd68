"""Compile a CUDA kernel for a real architecture and run it here, on NumPy arrays.

    launch(kernel, grid, block, *args)           # kernel: what cuda.jit gives, or a plain function
    launch(kernel, grid, block, *args, shared=1024, also=[array], cc=(8, 0), order="backward")

``also`` are arrays that the kernel reaches through addresses among its arguments. An argument whose flag ``writeable``
is off may not be written. ``order`` (``fibers.ORDERS``) is that of the threads, so that what depends on the order
shows. ``slack``: arrays end where memory of this size does, so that reads up to there are harmless.

LaunchError says what went wrong where (source line, block, thread): an access outside of all arrays or of shared
memory, a misaligned one, a store to read-only memory, shared memory read before it was written, a race on it, a barrier
or shuffle that not all threads reach.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as ll
import numba
import numpy as np
from numba import types

from ds4ref.kernels.cuda.driver.launching import kind_of, leaves

from . import checking, fibers, instructions  # noqa: F401
from .compiling import FILE, files_of, ptx_of
from .fibers import STATE
from .ptx import SIZES, Variable, parse
from .translate import translated

SPACES = ("generic", "global", "shared", "local", "constant")
MESSAGES = {
    fibers.OUTSIDE: "outside of every array",
    fibers.MISALIGNED: "misaligned",
    fibers.READ_ONLY: "a store to read-only memory",
    fibers.UNINITIALISED: "shared memory that nothing wrote",
    fibers.RACE: "a race: another thread's access is not ordered by a barrier",
    fibers.OVERFLOW: "the stack is too small",
    fibers.STUCK: "threads wait for others that do not come",
    fibers.TOO_MANY_COPIES: "too many copies under way",
}
STATIC_LIMIT = 48 << 10


class LaunchError(RuntimeError):
    """A kernel did what it must not; ``error`` is the number in ``fibers``."""

    def __init__(self, error: int, text: str):
        super().__init__(text)
        self.error = error


@cache
def link_runtime() -> None:
    """Give compiled kernels the functions they call."""
    callbacks = {
        "cu_check": checking.check,
        "cu_copy_later": checking.copy_later,
        "cu_copies_end_group": checking.copies_end_group,
        "cu_copies_wait": checking.copies_wait,
    }
    ll.add_symbol("cu_switch", fibers.SWITCH)
    for name, callback in callbacks.items():
        ll.add_symbol(name, callback().address)


class Lowered:
    """One kernel, for one signature and architecture, in this process."""

    def __init__(self, text: str):
        link_runtime()
        self.kernel, self.files = parse(text), files_of(text)
        self.memory: list[np.ndarray] = []
        self.shared, self.places = 0, dict[str, int]()
        for variable in sorted(self.kernel.variables, key=lambda v: not v.size):  # dynamic ones begin behind all others
            if variable.space == "shared":
                self.shared = -(-self.shared // variable.align) * variable.align
                self.places[variable.name] = self.shared
                self.shared += variable.size
            elif variable.space != "local":
                self._place(variable)
        if self.shared > STATIC_LIMIT:
            raise LaunchError(0, f"{self.shared} bytes of static shared memory, {STATIC_LIMIT} at most")
        self.start = fibers.compiled(translated(self.kernel, self.places), "start")

    def _place(self, variable: Variable) -> None:
        """Give a global or constant variable memory."""
        values = np.zeros(variable.size + variable.align, np.uint8)
        place = values[-values.ctypes.data % variable.align :][: variable.size]
        size = SIZES[variable.kind]
        for at, text in enumerate(variable.initial):
            number = int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1)
            place[at * size : (at + 1) * size] = np.frombuffer(number.to_bytes(size, "little"), np.uint8)
        place.flags.writeable = variable.space == "global"
        self.memory.append(place)
        self.places[variable.name] = place.ctypes.data

    def run(
        self, grid: tuple, block: tuple, numbers: list[bytes], arrays: Sequence[np.ndarray], shared: int, order: str,
        slack: int = 1,
    ) -> None:  # fmt: skip
        """Launch with parameters as bytes."""
        threads = int(np.prod(block))
        if not 0 < threads <= fibers.MAX_THREADS or min(grid) < 1:
            raise LaunchError(0, f"a grid of {grid} blocks of {block} threads")
        params = np.zeros((max(1, len(numbers)), 16), np.uint8)
        for row, number, declared in zip(params, numbers, self.kernel.params, strict=bool(numbers)):
            if len(number) != declared.size:
                raise TypeError(f"{len(number)} bytes for parameter {declared}")
            row[: len(number)] = np.frombuffer(number, np.uint8)
        STATE[fibers.PARAMS], STATE[fibers.SHARED_SIZE] = params.ctypes.data, self.shared + shared
        if self.shared + shared > fibers.MAX_SHARED:
            raise LaunchError(0, f"{self.shared + shared} bytes of shared memory")
        _set_ranges([*arrays, *self.memory], slack)
        error = fibers.run_grid(self.start, grid, block, order)
        if error:
            raise LaunchError(error, self._told(error, grid, block))

    def _line(self, number: int) -> str:
        """A ``place`` for people."""
        file, line = divmod(number, FILE)
        names = [Path(path).name for path, known in self.files.items() if known == file + 1 and file]
        return " of ".join([f"line {line}", *names])

    def _told(self, error: int, grid: tuple, block: tuple) -> str:
        number = int(STATE[fibers.BLOCK])
        place = f"block {_index(number, grid)}"
        name = readable(self.kernel.name)
        if error == fibers.STUCK:
            waiting: dict[tuple[int, int, int], list[int]] = {}
            for fiber in range(int(np.prod(block))):
                record = STATE[fibers.RECORDS + fibers.RECORD * fiber :][: fibers.RECORD]
                key = tuple(int(record[field]) for field in (fibers.STATUS, fibers.LINE, fibers.MASK))
                waiting.setdefault(key, []).append(fiber)  # type: ignore[arg-type]
            words = {fibers.DONE: "ended", fibers.AT_WARP: "meets its warp", fibers.AT_BARRIER: "is at a barrier"}
            parts = [
                f"{self._line(line)}: {words.get(status, status)} (mask {mask:#x}): {len(who)} from {who[0]}"
                for (status, line, mask), who in waiting.items()
            ]
            return f"{name}: {MESSAGES[error]}, {place}: " + "; ".join(parts)
        what, line = int(STATE[fibers.E_WHAT]), int(STATE[fibers.E_LINE])
        use = ("a load", "a store", "an atomic operation")[(what >> 8) & 3]
        return (
            f"{name}, {self._line(line)}: {MESSAGES[error]}: {use} of {what & 255} bytes at "
            f"{int(STATE[fibers.E_ADDRESS]):#x} ({SPACES[(what >> 10) & 7]}), {place}, "
            f"thread {_index(int(STATE[fibers.E_FIBER]), block)}"
        )


def readable(name: str) -> str:
    """Module and function of a kernel by the name it has in PTX."""
    parts, rest = [], name.removeprefix("_ZN")
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match[0])
        parts.append(rest[match.end() : end])
        rest = rest[end:]
    return ".".join(parts) or name


def _index(number: int, shape: tuple) -> tuple[int, int, int]:
    return number % shape[0], number // shape[0] % shape[1], number // (shape[0] * shape[1])


def _set_ranges(arrays: Sequence[np.ndarray], slack: int) -> None:
    """Tell ``checking`` what may be reached. Views of one array that overlap become one range."""
    found = []
    for array in arrays:
        low, high = np.lib.array_utils.byte_bounds(array)
        if array.size:
            found.append([low, high, int(array.flags.writeable), high])
    merged: list[list[int]] = []
    for low, high, writeable, end in sorted(found):
        if merged and low < merged[-1][1]:
            merged[-1][1] = merged[-1][3] = max(high, merged[-1][1])
            merged[-1][2] |= writeable
        else:
            merged.append([low, high, writeable, end])
    for number, row in enumerate(merged):
        row[3] = -(-row[1] // slack) * slack
        if number + 1 < len(merged):
            row[3] = min(row[3], merged[number + 1][0])
    if len(merged) > fibers.MAX_RANGES:
        raise LaunchError(0, f"{len(merged)} arrays")
    STATE[fibers.RANGES_USED] = len(merged)
    table = np.array(merged, np.int64).reshape(-1)
    STATE[fibers.RANGES : fibers.RANGES + len(table)] = table


def flattened(value: Any, kind: types.Type) -> list[bytes]:
    """An argument as Numba's kernels take it: arrays as (owner, parent, items, item size, data, shape, strides)."""
    if isinstance(kind, types.Array):
        parts = (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
        return [int(part).to_bytes(8, "little", signed=True) for part in parts]
    if isinstance(kind, types.BaseTuple):
        return [part for item, inner in zip(value, kind, strict=True) for part in flattened(item, inner)]
    if isinstance(kind, types.NoneType):
        return []
    if isinstance(kind, types.Boolean):
        return [bytes([bool(value)])]
    return [np.array(value, dtype=str(kind)).tobytes()]


def _kind_of_array(value: Any) -> types.Type | None:
    """Whether an array may be written is checked here, access by access; kernels are compiled for ones that may."""
    return numba.typeof(value).copy(readonly=False) if isinstance(value, np.ndarray) else None


@cache
def lowered(kernel: Any, signature: types.Type, cc: tuple[int, int]) -> Lowered:
    """Compiled and translated, once a process."""
    return Lowered(ptx_of(kernel, signature, cc))


def launch(
    kernel: Any, grid: int | tuple, block: int | tuple, *args: Any, shared: int = 0, also: Sequence[np.ndarray] = (),
    cc: tuple[int, int] = (9, 0), order: str = "forward", slack: int = 1,
) -> None:  # fmt: skip
    """Run a kernel; LaunchError as the module says, PTXError where an instruction is not known."""
    shapes = [(n,) if isinstance(n, int) else tuple(n) for n in (grid, block)]
    grid, block = ((*shape, 1, 1)[:3] for shape in shapes)
    found = [kind_of(arg, _kind_of_array) for arg in args]
    compiled = lowered(kernel, types.void(*found), cc)
    numbers = [part for arg, kind in zip(args, found, strict=True) for part in flattened(arg, kind)]
    arrays = [*(arg for arg in leaves(args) if isinstance(arg, np.ndarray)), *also]
    compiled.run(grid, block, numbers, arrays, shared, order, slack)
