"""A driver whose device memory is this process's: what the CUDA backend runs on where there is no GPU.

It copies and allocates, and calls the functions that launch kernels; what a launch does is for others to say
(``lowering.hosted`` runs compiled kernels, ``test_decode`` runs nothing).
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from ds4ref.kernels.cuda.driver.gpu import Block

LARGE = 1 << 30


class HostBlock(Block):
    """Memory of this process at its real address; ``memory`` are its bytes. New memory is full of NaNs, so that a test
    sees values that nothing wrote; large one is zeros, which take no room before they are written."""

    def __init__(self, nbytes: int):
        raw = np.full(nbytes + 512, 0xFF, np.uint8) if nbytes < LARGE else np.zeros(nbytes + 512, np.uint8)
        start = -raw.ctypes.data % 256
        self.memory = raw[start : start + -(-nbytes // 256) * 256]
        super().__init__(self.memory.ctypes.data, nbytes)


class HostDriver:
    """Does everything at once, in the order it is asked for, and counts; a graph is its calls."""

    stream: Any = 0

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def alloc(self, nbytes: int) -> Block:
        self.counts["alloc"] += 1
        return HostBlock(nbytes)

    def free(self, block: Block) -> None:
        self.counts["free"] += 1

    def memory(self) -> tuple[int, int]:
        return 1 << 46, 1 << 46

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def unpin(self, values: np.ndarray) -> None:
        self.counts["unpin"] += 1

    def to_device(self, block: Block, offset: int, values: np.ndarray) -> None:
        self.counts["to_device"] += 1
        bytes_of(block)[offset : offset + values.nbytes] = values.reshape(-1).view(np.uint8)

    def to_host(self, values: np.ndarray, block: Block, offset: int) -> None:
        self.counts["to_host"] += 1
        values.reshape(-1).view(np.uint8)[...] = bytes_of(block)[offset : offset + values.nbytes]

    def copy(self, to: Block, at: int, block: Block, offset: int, nbytes: int) -> None:
        self.counts["copy"] += 1
        bytes_of(to)[at : at + nbytes] = bytes_of(block)[offset : offset + nbytes]

    def sync(self) -> None:
        self.counts["sync"] += 1

    def run(self, call: Callable[[], None]) -> None:
        call()

    def capture(
        self, refresh: Sequence[tuple[Block, np.ndarray]], calls: Sequence[Callable[[], None]],
        fetch: Sequence[tuple[np.ndarray, Block]],
    ) -> HostGraph:  # fmt: skip
        return HostGraph(self, list(refresh), list(calls), list(fetch))


class HostGraph:
    """Refreshes, calls and fetches, done one after the other."""

    def __init__(self, driver: HostDriver, refresh: list, calls: list, fetch: list):
        self._driver, self._refresh, self._calls, self.fetch = driver, refresh, calls, fetch

    def launch(self) -> None:
        self._driver.counts["launch"] += 1
        for block, values in self._refresh:
            bytes_of(block)[: values.nbytes] = values
        for call in self._calls:
            self._driver.run(call)
        for values, block in self.fetch:
            values[...] = bytes_of(block)[: values.nbytes]


def bytes_of(block: Block) -> np.ndarray:
    """The bytes of a block of this process."""
    assert isinstance(block, HostBlock)
    return block.memory


@contextlib.contextmanager
def instead_of_a_device(
    driver: HostDriver, as_kernel_array: Callable[..., Any], multiprocessors: int = 3, shared_limit: int = 227 << 10
) -> Iterator[None]:
    """Backends opened meanwhile use ``driver``, and kernels get what ``as_kernel_array`` makes of an address, a shape
    and a dtype. Few multiprocessors give each several pieces of work, also of small matrices; the shared memory of a
    block is that of an H100."""
    from ds4ref.kernels.cuda import backend  # noqa: F401  (imports all modules)

    instead = {
        "open_driver": lambda *number: driver,
        "as_kernel_array": as_kernel_array,
        "multiprocessors": lambda: multiprocessors,
        "shared_limit": lambda: shared_limit,
        "allow_shared": lambda *asked: None,
    }
    with contextlib.ExitStack() as patches:
        for module in [module for name, module in sys.modules.items() if name.startswith("ds4ref.kernels.cuda")]:
            for name in instead.keys() & vars(module).keys():
                patches.enter_context(mock.patch.object(module, name, instead[name]))
        yield
