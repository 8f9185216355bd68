"""Lists the kernels that a decoded token launches, and their arguments, without a GPU and without weights.

    launches = token_launches()              # DeepSeek V4 Flash, recipe q2, mode ds4, 8192 tokens deep
    launches = prefill_launches()            # products of many tokens, format by format
    launches = chunk_launches()              # the second chunk of 2048 tokens of a prompt, op by op

The CUDA backend records a token's pass on arrays with fake addresses, and its launches are noted instead of made. So
the list is the one that a GPU gets, including the backend's fusions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from ds4ref.archs.deepseek4.shape import FLASH, ModelShape
from ds4ref.archs.deepseek4.tensors import expected_tensors, slots
from ds4ref.archs.deepseek4.weights import LayerWeights, Weights
from ds4ref.kernels.cuda.driver.launching import kind_of, leaves
from ds4ref.kernels.formats import FORMATS, Matrix
from ds4ref.numerics import numerics


class NotedLaunch(NamedTuple):
    """One kernel launch.

    signature  Numba's types of the arguments
    numbers    scalar arguments (flattened), None in place of arrays
    arrays     (shape, dtype) of array arguments
    dynamic    bytes of dynamic shared memory
    weights    (format, matrices read by a token, rows, columns) of the launch's weights, format "" if it has none;
               rows of all matrices that share a launch, like gate and up
    traffic    bytes: weights read, once each, and all other arrays of the call, except caches (see ``rows``)
    inputs     values of the arrays that are inputs of the recording or of the chunk (positions, counts) or follow from
               the experts that are assumed to be chosen, None for all others
    """

    kernel: Any
    signature: Any
    numbers: tuple[Any, ...]
    arrays: tuple[tuple[tuple[int, ...], np.dtype] | None, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic: int
    weights: tuple[str, int, int, int]
    traffic: int
    inputs: tuple[np.ndarray | None, ...] = ()

    @property
    def name(self) -> str:
        """Module and function of the kernel, with the weight format if the kernel is specialised for it."""
        function = self.kernel.py_func
        suffix = f" {self.weights[0]}" if "<locals>" in function.__qualname__ else ""
        return f"{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}{suffix}".rstrip()


@dataclass(frozen=True)
class _Place:
    """A fake device array: what a kernel is given for an array."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def view(self, dtype: Any) -> _Place:
        kind = np.dtype(dtype)
        return _Place(self.pointer, (self.nbytes // kind.itemsize,), kind)

    def __getitem__(self, at: Any) -> _Place:
        view = np.lib.stride_tricks.as_strided(np.zeros(1, self.dtype), self.shape, (0,) * self.ndim)[at]
        return _Place(self.pointer, view.shape, self.dtype)

    def __len__(self) -> int:
        return self.shape[0]


def _kind_of_array(value: Any) -> Any | None:
    from numba import from_dtype, types

    return types.Array(from_dtype(value.dtype), value.ndim, "C") if isinstance(value, _Place) else None


class _Known:
    """Values of small integer arrays on the device that never was, by address: those that the host sent, and those that
    a launch is said to have written. What any other launch writes is forgotten."""

    def __init__(self) -> None:
        self._at: dict[int, np.ndarray] = {}

    def put(self, pointer: int, values: np.ndarray) -> None:
        if values.dtype.kind in "iu" and values.nbytes <= MOST_KNOWN:
            self._at[pointer] = np.ascontiguousarray(values).reshape(-1).view(np.uint8).copy()

    def forget(self, place: Any) -> None:
        end = place.pointer + place.nbytes
        for start in [at for at, its in self._at.items() if at < end and place.pointer < at + its.nbytes]:
            del self._at[start]

    def get(self, place: _Place) -> np.ndarray | None:
        for start, values in self._at.items():
            if start <= place.pointer and place.pointer + place.nbytes <= start + values.nbytes:
                return values[place.pointer - start :][: place.nbytes].view(place.dtype).reshape(place.shape).copy()
        return None


MOST_KNOWN = 1 << 20
"""Bytes of an array whose values are kept."""

Chosen = Callable[[int, int, int], np.ndarray]
"""Expert ids (tokens, k) int32 that tokens are assumed to choose, of a number of experts."""


def evenly(tokens: int, k: int, experts: int) -> np.ndarray:
    """All experts are chosen equally often, as nearly as can be."""
    return (np.arange(tokens * k, dtype=np.int32) % experts).reshape(tokens, k)


@contextlib.contextmanager
def planning(
    multiprocessors: int = 132,
    shared_limit: int = 227 << 10,
    chosen: Chosen | None = None,
    cc: tuple[int, int] = (9, 0),
) -> Iterator[list[NotedLaunch]]:
    """Context manager that records the launches of ``ds4ref.kernels.cuda`` in a list instead of making them.

    multiprocessors, shared_limit   of the assumed GPU; shared memory in bytes per block
    chosen                          experts that are chosen; launches that sort by them are then made, compiled, because
                                    what they write decides what the products do
    cc                              what such launches are compiled for
    """
    from numba.cuda.dispatcher import CUDADispatcher

    from ds4ref.kernels.cuda import backend
    from ds4ref.kernels.cuda.driver import gpu
    from ds4ref.kernels.cuda.driver.launch import Launch
    from ds4ref.kernels.cuda.driver.memory import Buffer, Memory
    from ds4ref.kernels.cuda.products import grouping
    from tests.kernels.cuda.host_driver import HostDriver, HostGraph, instead_of_a_device

    noted: list[NotedLaunch] = []
    current: list[Launch] = []
    known = _Known()
    refreshed: list[tuple[int, np.ndarray]] = []
    """Addresses and bytes of the inputs of the recording that is captured."""

    def input_at(place: _Place) -> np.ndarray | None:
        for start, values in refreshed:
            if start <= place.pointer < start + values.nbytes:
                return values[place.pointer - start :][: place.nbytes].view(place.dtype).reshape(place.shape).copy()
        return known.get(place)

    class Nowhere(HostDriver):
        """Hands out fake addresses."""

        used = 1 << 40

        def alloc(self, nbytes: int) -> Any:
            block = gpu.Block(Nowhere.used, nbytes)
            Nowhere.used += -(-nbytes // 256) * 256
            return block

        def to_device(self, block: Any, offset: int, values: np.ndarray) -> None:
            known.put(block.pointer + offset, values)

        def to_host(self, values: np.ndarray, *ignored: Any) -> None:
            values[...] = 0

        def copy(self, *ignored: Any) -> None:
            pass

        def capture(self, refresh: Any, calls: Any, fetch: Any, order: Any = None) -> Any:
            refreshed[:] = [(block.pointer, values) for block, values in refresh]
            for call in calls:
                call()
            refreshed.clear()
            return HostGraph(self, list(refresh), list(calls), list(fetch))

    class Launcher:
        def __init__(self, kernel: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0):
            self.kernel, self.shared = kernel, int(shared)
            self.grid, self.block = (tuple(int(n) for n in np.atleast_1d(size)) for size in (grid, block))

        def __call__(self, *args: Any) -> None:
            from numba import types

            signature = types.void(*(kind_of(arg, _kind_of_array) for arg in args))
            args = tuple(leaves(args))
            weights, traffic = _read(current[-1], args)
            numbers = tuple(None if isinstance(arg, _Place) else arg for arg in args)
            arrays = tuple((arg.shape, arg.dtype) if isinstance(arg, _Place) else None for arg in args)
            inputs = tuple(input_at(arg) if isinstance(arg, _Place) else None for arg in args)
            where = self.grid, self.block, self.shared
            noted.append(NotedLaunch(self.kernel, signature, numbers, arrays, *where, weights, traffic, inputs))
            if chosen is not None and self.kernel.py_func.__module__ == grouping.__name__:
                self.made(args)

        def made(self, args: Sequence[Any]) -> None:
            """Make the launch, and know what is in its arrays after it."""
            from tests.kernels.cuda.lowering.lowered import launch

            def filled(place: _Place) -> np.ndarray:
                values = input_at(place)
                return np.zeros(place.shape, place.dtype) if values is None else values

            values = [filled(arg) if isinstance(arg, _Place) else arg for arg in args]
            launch(self.kernel, self.grid, self.block, *values, shared=self.shared, cc=cc)
            for arg, its in zip(args, values, strict=True):
                if isinstance(arg, _Place):
                    known.put(arg.pointer, its)

    def call(launch: Launch, stream: Any, scratch: Any) -> None:
        current.append(launch)
        launch_call(launch, stream, scratch)
        current.pop()
        for array in launch.writes:
            known.forget(array.flat())
        if chosen is not None:
            for array in _chosen_by(launch):
                known.put(array.flat().pointer, chosen(*array.shape, launch.reads[0].shape[-1]))

    def buffer(memory: Memory, nbytes: int) -> Buffer:
        made = allocate(memory, nbytes)
        assert made.block is not None
        known.forget(_Place(made.block.pointer, (nbytes,), np.dtype(np.uint8)))
        return made

    launch_call, allocate = Launch.call, Memory.buffer
    with (
        mock.patch.object(CUDADispatcher, "configure", lambda self, *sizes: Launcher(self, *sizes)),
        mock.patch.object(Launch, "call", call),
        mock.patch.object(Memory, "buffer", buffer),
        mock.patch.object(backend.CUDA, "place", _place),
        instead_of_a_device(Nowhere(), _at, multiprocessors, shared_limit),
    ):
        yield noted


def _chosen_by(launch: Any) -> list[Any]:
    """The arrays of expert ids (tokens, k) that a launch writes."""
    from ds4ref.kernels.cuda.rows import routing

    return [launch.writes[1]] if launch.function in (routing.route, routing.route_counted) else []


def _at(pointer: int, shape: Sequence[int], dtype: Any) -> _Place:
    return _Place(pointer, tuple(shape), np.dtype(dtype))


def _place(ops: Any, w: Matrix) -> Matrix:
    """Place weights without allocating bytes for them."""
    return Matrix(w.fmt, ops.array(*w.data.shape, dtype=np.uint8), w.rows, w.cols)


def _read(launch: Any, args: Sequence[Any]) -> tuple[tuple[str, int, int, int], int]:
    """Return format, matrices, rows and columns of the weights a launch reads, if any, and its traffic."""
    weights, nbytes, others, height = ("", 0, 0, 0), 0, 0, 0
    pointers = {}
    for w in launch.matrices:
        data: Any = w.data
        pointers[data.flat().pointer] = w
    known = set(pointers)
    for arg in args:
        if not isinstance(arg, _Place):
            continue
        w = pointers.pop(arg.pointer, None)
        if w is None:
            others += arg.nbytes if arg.pointer not in known else 0
            continue
        chosen = 1
        if w.experts:  # ids (tokens, K), the last array that is read
            chosen = min(launch.reads[-1].size, w.experts)
        read_rows = min(chosen * w.rows, w.data.shape[0]) if launch.function.__name__ == "embed" else chosen * w.rows
        height += w.rows
        weights, nbytes = (w.fmt, chosen, height, w.cols), nbytes + read_rows * w.row_bytes
        if launch.function.__name__ == "embed":
            nbytes = launch.reads[0].size * w.row_bytes
    return weights, nbytes + others


def hollow_weights(shape: ModelShape, recipe: str) -> Weights:
    """Return weights of the model's shapes and formats that take no memory: all their bytes are one zero byte."""
    formats = {spec.name: spec for spec in expected_tensors(shape, recipe)}
    model: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{} for _ in range(shape.n_layers)]
    for slot in slots(shape):
        spec = formats.get(slot.name)
        if spec is None:
            continue
        value: Any
        if slot.part == "hash":
            value = np.zeros(spec.shape, np.int32)
        elif len(spec.dims) > 1 and not slot.attr.endswith("_ape"):
            row_bytes = spec.nbytes // int(np.prod(spec.shape[:-1]))
            data = np.broadcast_to(np.zeros((), np.uint8), (*spec.shape[:-1], row_bytes))
            value = Matrix(spec.fmt, data, spec.dims[1], spec.dims[0])
        else:
            value = np.zeros(spec.shape, np.float32)
        (model if slot.layer is None else layers[slot.layer])[slot.attr] = value
    filled = [
        LayerWeights(**{name: fields.get(name) for name in LayerWeights.__dataclass_fields__}) for fields in layers
    ]
    return Weights(**model, layers=filled)


def token_launches(
    shape: ModelShape = FLASH,
    recipe: str = "q2",
    mode: str = "ds4",
    depth: int = 8192,
    multiprocessors: int = 132,
    shared_limit: int = 227 << 10,
) -> list[NotedLaunch]:
    """Return the launches of one decoded token after ``depth`` tokens, in order."""
    from ds4ref.archs.deepseek4.forward import Model
    from ds4ref.decode import record

    with planning(multiprocessors, shared_limit) as noted:
        from ds4ref.kernels.cuda import CUDA

        model = Model(shape, hollow_weights(shape, recipe), CUDA(), numerics(mode))
        cache = model.cache(depth + 256)
        cache.restart(depth)
        cache.reserve(1)
        plan, _ = model.plan_rows(cache, cache.pos, 1)
        del noted[:]
        record(model, [cache], [1], [plan])
        return list(noted)


def chunk_launches(
    shape: ModelShape = FLASH,
    recipe: str = "q2",
    mode: str = "ds4",
    pos: int = 2048,
    tokens: int = 2048,
    ctx: int = 8192,
    multiprocessors: int = 132,
    shared_limit: int = 227 << 10,
    chosen: Chosen = evenly,
    cc: tuple[int, int] = (9, 0),
) -> list[NotedLaunch]:
    """Return the launches of ``tokens`` tokens of a prompt from position ``pos`` on, op by op, in order."""
    from ds4ref.archs.deepseek4.forward import Model

    with planning(multiprocessors, shared_limit, chosen, cc) as noted:
        from ds4ref.kernels.cuda import CUDA

        model = Model(shape, hollow_weights(shape, recipe), CUDA(), numerics(mode))
        cache = model.cache(ctx + 256)
        cache.restart(pos)
        cache.reserve(tokens)
        del noted[:]
        model.forward(np.zeros(tokens, np.int32), cache)
        return list(noted)


PREFILL_TOKENS = 512
PREFILL = (
    ("Q8_0", 4096, 4096), ("Q4_K", 2048, 4096), ("Q2_K", 4096, 2048), ("IQ2_XXS", 2048, 4096), ("F16", 1024, 4096),
    ("BF16", 1024, 4096), ("F32", 256, 4096),
)  # fmt: skip
"""Products of a prefill: (format, rows, columns). Of experts, as if all tokens had chosen the same one."""


def prefill_launches(multiprocessors: int = 132, shared_limit: int = 227 << 10) -> list[NotedLaunch]:
    """Return the launches of each product in PREFILL with PREFILL_TOKENS inputs, with float and with integer inputs."""
    with planning(multiprocessors, shared_limit) as noted:
        from ds4ref.kernels.cuda import CUDA
        from ds4ref.kernels.cuda.products.units import UNITS

        ops = CUDA()
        for fmt, rows, n in PREFILL:
            data = np.broadcast_to(np.zeros((), np.uint8), (rows, FORMATS[fmt].row_bytes(n)))
            w = ops.place(Matrix(fmt, data, rows, n))
            for act in ("float", *([UNITS[fmt].activation] if fmt in UNITS else [])):
                ops.linear(ops.array(PREFILL_TOKENS, n), w, act)
        return [launch._replace(traffic=_prefill_traffic(launch)) for launch in noted]


def _prefill_traffic(launch: NotedLaunch) -> int:
    """Return bytes of weights, results and packed inputs, once each: arguments name some arrays twice."""
    from ds4ref.kernels.cuda.products.matmat_float import CODES, PLAIN

    fmt, _, rows, n = launch.weights
    if not fmt:
        return launch.traffic
    value_bytes = 1 if launch.name.startswith("matmat.") else 2 * PLAIN.get(fmt, CODES).kind.limbs
    return rows * FORMATS[fmt].row_bytes(n) + PREFILL_TOKENS * (4 * rows + value_bytes * n)
