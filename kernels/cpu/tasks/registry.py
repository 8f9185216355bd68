"""Register Python functions to be compiled to C functions: tasks and the few other entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cfunc, njit, types

from ..abi import SLOT, Task
from ..numba_internals import record_view
from .lang import FAST, JIT

Entry = Callable[[], Any]
ENTRIES: dict[str, Entry] = {}
"""Symbol name -> function that compiles it to a ``numba.cfunc``."""
SHARING: dict[str, str] = {}
"""Symbol name -> key, equal for entry points that call the same functions, so that one process compiles them."""


def _record_of(task: Task) -> Any:
    """Make an intrinsic that returns the argument block at an address as a record with the task's fields."""
    kinds = (types.int64, types.float64)
    fields = [(name, kinds[number], SLOT * i) for i, (name, number) in enumerate(task.fields)]
    return record_view(fields, SLOT * len(fields))


def body(task: Task, exact: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that makes a function ``f(args, first, last, thread)`` the body of ``task``.

    ``args`` is a record with the task's fields; ``exact`` forbids the compiler to reorder float operations.
    """

    def register(function: Any) -> Any:
        inner = njit(**(JIT if exact else FAST))(function)
        view = _record_of(task)

        def entry(address, first, last, thread):
            inner(view(address), first, last, thread)

        SHARING[task.name] = function.__module__
        ENTRIES[task.name] = lambda: cfunc(types.void(*[types.int64] * 4), error_model="numpy")(entry)
        return inner

    return register


def export(name: str, arguments: int) -> Callable[[Any], Any]:
    """Return a decorator that exports a function as C function ``void name(int64 x arguments)`` that is not a task."""

    def register(function: Any) -> Any:
        inner = function if hasattr(function, "py_func") else njit(**JIT)(function)
        names = ", ".join(f"a{i}" for i in range(arguments))
        space: dict[str, Any] = {"inner": inner}
        exec(f"def entry({names}):\n    inner({names})\n", space)  # numba needs the real parameter count
        signature = types.void(*[types.int64] * arguments)
        SHARING[name] = name.partition(".")[2].removesuffix(f".{name[-1]}") or inner.py_func.__module__
        ENTRIES[name] = lambda: cfunc(signature, error_model="numpy")(space["entry"])
        return inner

    return register


__all__ = ["ENTRIES", "body", "export"]
