"""Binding: generates each op's argument checks and allocations from the op's declaration in ``ops``.

A backend is a subclass of ``Binding`` with one *launch* for each op: a method or function with the op's name that
computes it from checked arguments into allocated results:

    class NormOps(Binding):
        @bind
        def hc_reduce(self, X, w, out, T, C, D):
            self.go(t.HC_REDUCE, T, C * D, (X, w, out), C, D)

``bind`` makes the method that callers see: it has the parameters of the op, checks types, shapes, contiguity and
overlaps, works out the sizes named in the dims, allocates the results with the backend's ``empty``, calls the launch
and returns the results. A launch declares, by name, only the parameters that it needs: operands, results, sizes,
``self``; ``lead``, the sizes of the axes that ``...`` stands for; ``failure``, the text of the IndexError for a value
out of range. A launch without result parameters returns the results itself.

An op is called thousands of times a second, so declarations are not interpreted at that time: ``bind`` writes the
source of the method once, as ``dataclasses`` does (``python -m ds4ref.kernels.binding hc_reduce`` prints it).
"""

from __future__ import annotations

import inspect
import linecache
import math
import mmap
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .formats import FORMATS, ApartRows
from .formats.matrix import Matrix
from .ops import OPS, Backend, Op, Operand

F16, F32, I8, I16, I32, I64 = (np.dtype(kind) for kind in ("f2", "f4", "i1", "i2", "i4", "i8"))
APART = 1 << 17
"""Bytes from which an array has its own mapping."""
KINDS = {"f32": (F32,), "i32": (I32,), "i64": (I64,), "i16": (I16,), "i8": (I8,), "any": (F32, F16)}


class Binding:
    """Base class of backends whose ops are made by ``bind``. Its methods work on NumPy arrays; backends with other
    arrays override them."""

    array_type: Any = np.ndarray
    gapless: Callable[[Any], bool] = staticmethod(attrgetter("flags.c_contiguous"))
    """Function that returns whether an array is C-contiguous."""

    def empty(self, *shape: int, dtype: DTypeLike = F32) -> Any:
        """Return an uninitialised array for results."""
        return np.empty(shape, dtype)

    # --- memory, as declared in ``ops.Backend``

    def array(self, *shape: int, dtype: DTypeLike = F32) -> Any:
        """Return a new array with undefined values; untouched pages take no memory.

        A large one has a mapping of its own: the C library would soon take it from memory that was freed before, whose
        pages stay, so that a cache of ten tokens would hold as much as one of its whole context.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < APART:
            return np.empty(shape, dtype)
        return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype).reshape(shape)

    def upload(self, values: np.ndarray) -> Any:
        """Return ``values`` as an array that ops can read: the same array if it is C-contiguous, else a copy."""
        return np.ascontiguousarray(values)

    def place(self, w: Matrix) -> Matrix:
        """Return ``w`` itself: ops read rows from the mapped file."""
        return w

    def fill(self, array: Any, values: np.ndarray | float) -> None:
        """Overwrite ``array``, which may be a view of part of another, with host values."""
        array[...] = values

    def host(self, array: Any) -> np.ndarray:
        """Return ``array`` itself, which is a NumPy array."""
        return array

    # --- operands

    def whole(self, x: Any, name: str) -> Any:
        """Return a C-contiguous copy of ``x``, the operand called ``name``; raise ValueError if the backend cannot make
        one."""
        return np.ascontiguousarray(x)

    def overlap(self, x: Any, y: Any) -> bool:
        """Return whether the memory ranges of two arrays overlap."""
        return np.may_share_memory(x, y)

    def operand(self, x: Any, kinds: tuple[np.dtype, ...], name: str, written: bool = False) -> Any:
        """Check an operand and return it as a C-contiguous array, copied if needed; ``kinds`` are the allowed dtypes.

        Raise TypeError for another type or dtype, ValueError if it is ``written`` in place but not contiguous.
        """
        if not isinstance(x, self.array_type):
            raise TypeError(f"{name} must be an array of this backend, not {type(x).__name__}")
        if x.dtype not in kinds:
            raise TypeError(f"{name} must be {' or '.join(map(str, kinds))}, not {x.dtype}")
        if self.gapless(x):
            return x
        if written:
            raise ValueError(f"{name} has gaps between its values, and is written in place")
        return self.whole(x, name)

    def matrix_shape(self, w: Any, name: str) -> tuple[int, ...]:
        """Return (rows, cols) of a matrix or (experts, rows, cols) of a stack, checked on first use.

        Raise TypeError if ``w`` is not a matrix in this backend's memory, ValueError if its data has the wrong layout.
        """
        if not isinstance(w, Matrix):
            raise TypeError(f"{name} must be a matrix, not {type(w).__name__}")
        kind, shape = w.__dict__.get("_bound", (None, ()))
        if kind is not self.array_type:
            apart = self.array_type is np.ndarray and isinstance(w.data, ApartRows)
            if not apart and not isinstance(w.data, self.array_type):
                raise TypeError(f"{name} must be placed on this backend")
            if apart and w.data.layout.joined.name != w.fmt:
                raise ValueError(f"{name}: {w.data.layout.name} weights are not {w.fmt}")
            if w.data.dtype != np.uint8 or not (apart or self.gapless(w.data)):
                raise ValueError(f"{name}: weights must be contiguous bytes, not {w.data.dtype} {w.data.shape}")
            if w.data.shape[-2:] != (w.rows, FORMATS[w.fmt].row_bytes(w.cols)):
                raise ValueError(f"{name}: {w.data.shape} bytes are no {w.fmt} weights of {w.rows} x {w.cols}")
            shape = *w.data.shape[:-2], w.rows, w.cols
            w.__dict__["_bound"] = self.array_type, shape
        return shape


def bind(launch: Callable[..., Any], check_values: bool = False) -> Any:
    """Decorate a launch: return the method that callers of the op see, which checks, allocates and calls the launch.

    check_values: whether to check operands for values out of range first; without it that is left to the launch
    """
    op, declared = OPS[launch.__name__], getattr(Backend, launch.__name__)
    text = _Source(op, tuple(inspect.signature(launch).parameters), check_values).text()
    filename = f"<{op.name} of {launch.__module__}>"
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename  # for tracebacks
    names: dict[str, Any] = {
        "_op": op, "_launch": launch, "_misfit": _misfit, "_solve": _solve, "_check_values": _check_values,
        **{f"_{kind}": kinds for kind, kinds in KINDS.items()},
        **{f"default_{p.name}": p.default for p in _parameters(op)},
    }  # fmt: skip
    exec(compile(text, filename, "exec"), names)
    method = names[op.name]
    method.__doc__, method.__annotations__ = declared.__doc__, declared.__annotations__
    return method


def _parameters(op: Op) -> list[inspect.Parameter]:
    """Return the parameters of an op's method as declared in ``Backend``, without ``self``."""
    return list(inspect.signature(getattr(Backend, op.name)).parameters.values())[1:]


def _misfit(op: Op, args: Sequence[Any], condition: str = "") -> ValueError:
    """Return the ValueError for arguments whose shapes do not fit together, or break ``condition``."""
    parts = []
    for operand, value in zip(op.operands, args, strict=True):
        if operand.dims is not None and value is not None:
            shape = (*value.data.shape[:-2], value.rows, value.cols) if isinstance(value, Matrix) else value.shape
            parts.append(f"{operand.name} [{','.join(operand.dims)}] is {tuple(shape)}")
        elif isinstance(value, int | np.integer):
            parts.append(f"{operand.name} is {value}")
    return ValueError(f"{op.name}: shapes do not fit{condition and f' {condition}'}: {'; '.join(parts)}")


def _check_values(values: np.ndarray | None, least: int | None, greatest: int | None, failure: str) -> None:
    """Raise IndexError(failure) if a value is below ``least`` or above ``greatest``; None means no limit."""
    if values is not None and values.size:
        if (least is not None and values.min() < least) or (greatest is not None and values.max() > greatest):
            raise IndexError(failure)


def _names(dim: str) -> set[str]:
    """Return the names of sizes in a dim, such as {"C", "D"} for "C*D"."""
    return set(re.findall(r"[A-Za-z_]\w*", dim))


def _solve(dim: Callable[[int], int], size: int) -> int:
    """Return the least number whose ``dim(number)``, an increasing function, is at least ``size``."""
    return bisect_left(range(size + 1), size, key=dim)


class _Source:
    """The generated Python source of an op's method, while it is being written.

    wanted: names of the parameters of the launch
    """

    def __init__(self, op: Op, wanted: tuple[str, ...], check_values: bool):
        self.op, self.wanted, self.check_values = op, wanted, check_values
        self.lines: list[str] = []
        self.indent = "    "
        dims = set().union(*(_names(dim) for each in (*op.operands, *op.results) for dim in each.dims or ()))
        self.known = {operand.name for operand in op.operands if operand.dims is None and operand.name in dims}
        """Names of sizes that have a value at this point of the generated source."""
        self.shapes: dict[tuple[str, ...] | None, str] = {}
        """Dims -> source expression for the shape of the first operand with these dims that is never None."""
        self.pending: list[tuple[str, str]] = []
        """(source expression for the size of an axis, dim that it must equal), for dims that are not checked yet."""

    def add(self, *lines: str) -> None:
        self.lines += [self.indent + line for line in lines]

    def refuse(self, condition: str, reason: str = "") -> None:
        """Write code that raises the error for misfitting arguments if ``condition`` is true."""
        operands = "".join(f"{operand.name}, " for operand in self.op.operands)
        self.add(f"if {condition}:", f"    raise _misfit(_op, ({operands}){f', {reason!r}' if reason else ''})")

    def text(self) -> str:
        """Return the complete source of the method."""
        op = self.op
        listed = [p.name + f"=default_{p.name}" * (p.default is not p.empty) for p in _parameters(op)]
        required = [operand for operand in op.operands if operand.dims is not None and not operand.optional]
        optional = [operand for operand in op.operands if operand.optional]
        for operand in required:
            self.operand(operand)
        assert not self.pending, f"{op.name}: {self.pending} cannot be solved"
        for operand in optional:
            own = sorted(set().union(*map(_names, operand.dims or ())) - self.known)
            self.add(*(f"{name} = 0" for name in own), f"if {operand.name} is not None:")
            self.indent *= 2
            self.operand(operand)
            self.indent = "    "
        for name in sorted(self.known & {operand.name for operand in op.operands}):
            self.refuse(f"{name} < 0")
        if op.where:
            self.refuse(f"not ({op.where})", op.where)
        for written in (operand for operand in (*required, *optional) if operand.written):
            given = f"{written.name} is not None and " * written.optional
            for other in (each for each in required if each is not written and each.kind != "matrix"):
                self.add(f"if {given}self.overlap({written.name}, {other.name}):")
                self.add(f"    raise ValueError('{op.name}: {written.name} and {other.name} share memory')")
        self.values()
        self.launch()
        return "\n".join([f"def {op.name}({', '.join(['self', *listed])}):", *self.lines, ""])

    def operand(self, operand: Operand) -> None:
        """Write the checks of one operand's type and shape, and derive sizes from the shape."""
        name, dims, shape = operand.name, list(operand.dims or ()), f"{operand.name}_shape"
        if operand.kind == "matrix":
            self.add(f"{shape} = self.matrix_shape({name}, '{name}')")
        else:
            written = ", True" if operand.written else ""
            self.add(f"{name} = self.operand({name}, _{operand.kind}, '{name}'{written})", f"{shape} = {name}.shape")
        twin = self.shapes.get(operand.dims)
        if twin:
            return self.refuse(f"{shape} != {twin}")
        if not operand.optional:
            self.shapes[operand.dims] = shape
        misfit = f"len({shape}) != {len(dims)}"
        if dims[0] == "...":
            dims.pop(0)
            misfit = f"len({shape}) < {len(dims)}"
            self.leading(shape, len(dims))
            shape = f"{shape}[-{len(dims)}:]"
        if dims and set().union(*map(_names, dims)) <= self.known:
            self.refuse(f"{shape} != ({', '.join(dims)},)")
        elif dims:
            self.refuse(misfit)
            self.unpack(name, shape, dims)
        self.settle()

    def leading(self, shape: str, after: int) -> None:
        """Write code that splits the axes that ``...`` stands for off ``shape``; ``after`` axes follow them."""
        axes = f"{shape}[:-{after}]" if after else shape
        if "lead" in self.known:
            return self.refuse(f"{axes} != lead")
        self.known.add("lead")
        others = {each.dims for each in (*self.op.operands, *self.op.results) if "..." in (each.dims or ())}
        if len(others) > 1 or "lead" in self.wanted:
            self.add(f"lead = {axes}")

    def unpack(self, operand: str, shape: str, dims: list[str]) -> None:
        """Write code that assigns the sizes of a shape to names; a dim that is not a new name becomes a pending
        check."""
        targets = []
        for axis, dim in enumerate(dims):
            if dim.isidentifier() and dim not in self.known:
                self.known.add(dim)
                targets.append(dim)
            else:
                targets.append(f"{operand}_{axis}")
                self.pending.append((targets[-1], dim))
        self.add(f"{', '.join(targets)}, = {shape}")

    def settle(self) -> None:
        """Write the checks of pending dims whose names all have values, and solve those with one unknown name, until
        only dims with several unknown names are left."""
        for pair in list(self.pending):
            size, dim = pair
            unknown = _names(dim) - self.known
            if len(unknown) > 1:
                continue
            self.pending.remove(pair)
            if unknown:
                self.solve(size, dim, unknown.pop())
                return self.settle()
            self.refuse(f"{size} != {dim}")

    def solve(self, size: str, dim: str, name: str) -> None:
        """Write code that computes ``name``, the one unknown size in a dim, from the size of the axis."""
        self.known.add(name)
        self.add(f"{name} = _solve(lambda {name}: {dim}, {size})")
        self.refuse(f"{size} != {dim}")

    def values(self) -> None:
        """Write code for the text of the IndexError and, with ``check_values``, for the check of operands' values."""
        limited = [operand for operand in self.op.operands if operand.limits]
        if not limited or not (self.check_values or "failure" in self.wanted):
            return
        ranges = [(each.name, *(f"{{{end}}}" if _names(end) else end for end in each.limits or ())) for each in limited]
        failure = " or ".join(f"{name} outside {least}..{greatest}" for name, least, greatest in ranges)
        self.add(f"failure = f'{self.op.name}: {failure}'")
        if self.check_values:
            for operand in limited:
                least, greatest = (limit or None for limit in operand.limits or ())
                self.add(f"_check_values({operand.name}, {least}, {greatest}, failure)")

    def launch(self) -> None:
        """Write code that allocates the results, calls the launch, and returns."""
        results = [result.name for result in self.op.results]
        unknown = {*self.wanted} - {*results, "self", "failure", *self.known, *(each.name for each in self.op.operands)}
        if unknown:
            raise TypeError(f"the launch of {self.op.name} wants {sorted(unknown)}, which its declaration has not")
        call = f"_launch({', '.join(self.wanted)})"
        into = any(operand.name == "into" for operand in self.op.operands)
        if not set(results) & set(self.wanted):
            if into:
                self.add("if into is not None:", f"    into[...] = {call}", "    return into")
            return self.add(f"return {call}")
        for result in self.op.results:
            dims = ", ".join("*lead" if dim == "..." else dim for dim in result.dims or ())
            if result.dims in self.shapes:
                dims = f"*{self.shapes[result.dims]}"
            dtype = "" if result.kind == "f32" else f", dtype=_{result.kind}[0]"
            given = "into if into is not None else " if into else ""
            self.add(f"{result.name} = {given}self.empty({dims}{dtype})")
        self.add(call, f"return {', '.join(results)}")


if __name__ == "__main__":
    for _op in (OPS[name] for name in sys.argv[1:]):
        print(_Source(_op, tuple(each.name for each in (*_op.operands, *_op.results)), True).text())
