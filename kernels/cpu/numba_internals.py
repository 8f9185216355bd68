"""All uses of undocumented parts of Numba and llvmlite; other modules import them from here.

A release that changes one of them breaks this file and no other. ``pyproject.toml`` allows Numba from 0.62 (llvmlite
0.45) to below 0.70 (0.52); ``.ci/run`` lists the versions that the tests were run with.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as ll
from llvmlite import ir
from numba import types
from numba.core import config
from numba.core.codegen import JITCodeLibrary
from numba.core.cpu import CPUContext
from numba.core.datamodel import PrimitiveModel, default_manager
from numba.core.typing import npydecl
from numba.extending import intrinsic, register_model

from ..system import is_aarch64
from . import aarch64

_CONFIG: Any = config


CROSS_VARIABLE = "DS4_CROSS_TARGET"
"""Environment variable that names a foreign machine to compile kernels for, as ``TRIPLE:CPU`` (``cpu.build``)."""


def cross_target() -> tuple[str, str] | None:
    """Return (LLVM triple, processor) of the foreign machine to compile for, None if the variable is not set.

    Raise ValueError if it is malformed.
    """
    text = os.environ.get(CROSS_VARIABLE)
    if not text:
        return None
    triple, _, cpu = text.partition(":")
    if not (triple and cpu):
        raise ValueError(f"{CROSS_VARIABLE}={text}: expected TRIPLE:CPU, such as arm64-apple-macosx:apple-m1")
    return triple, cpu


def make_llvm_only() -> None:
    """Let Numba make LLVM code in this process but no machine code, and that without optimizing it or wrapping it for
    Python, which takes half of the time. Code for a foreign machine may also have instructions that this processor
    lacks, on which LLVM would abort."""

    def no_pointer(self: Any, name: str) -> int:
        self._ensure_finalized()  # links in what is called
        return 0

    # a dispatcher demands a built-in method, and a new one each time, because Numba finds the code of a function by it
    def no_executable(self: Any, *_: Any) -> Any:
        return [].append

    patched: Any = JITCodeLibrary
    patched._finalize_specific = patched._optimize_final_module = lambda self: None
    patched._optimize_functions = lambda self, module: None
    patched.get_pointer_to_function = no_pointer
    patched = CPUContext
    patched.get_executable = no_executable
    patched.create_cpython_wrapper = lambda *_, **__: None
    for rule in (npydecl.NumpyRulesArrayOperator, npydecl.NumpyRulesInplaceArrayOperator):
        patched = rule
        patched.generic = lambda *_: None  # no kernel has arithmetic on whole arrays


def target_triple() -> str:
    """Return the LLVM triple of the machine that kernels are compiled for, this one or a foreign one."""
    foreign = cross_target()
    return foreign[0] if foreign else ll.get_process_triple()


def target_cpu() -> str:
    """Return the processor that kernels are compiled for: the foreign one, NUMBA_CPU_NAME, or this one."""
    foreign = cross_target()
    return foreign[1] if foreign else _CONFIG.CPU_NAME or ll.get_host_cpu_name()


def target_features() -> str:
    """Return the processor features that kernels are compiled for, as LLVM's text ``+name,-name``.

    It is empty if LLVM does not know this machine. Raise ValueError for a foreign processor that is not known.
    """
    if foreign := cross_target():
        triple, cpu = foreign
        if not is_aarch64(triple.split("-")[0]):
            raise ValueError(f"{CROSS_VARIABLE}={triple}:{cpu}: only AArch64 is known by its processor's name")
        if cpu not in aarch64.KNOWN:
            raise ValueError(f"{CROSS_VARIABLE}={triple}:{cpu}: unknown processor; known: {', '.join(aarch64.KNOWN)}")
        return aarch64.flags(aarch64.of_processor(cpu))
    if _CONFIG.CPU_FEATURES is not None:
        return _CONFIG.CPU_FEATURES
    try:
        features = ll.get_host_cpu_features()
    except RuntimeError:
        features = ll.FeatureMap()
    if not _CONFIG.ENABLE_AVX:
        features.update((name, False) for name in features if name.startswith("avx"))
    features.update(aarch64.of_this_machine(target_cpu()))
    return features.flatten()


def compile_for_target() -> None:
    """Make Numba itself compile for ``target_features``: on AArch64 it does not detect dot-product instructions, and
    LLVM aborts on an instruction that it thinks the processor lacks."""
    if _CONFIG.CPU_FEATURES is None and not cross_target() and aarch64.of_this_machine(target_cpu()):
        _CONFIG.CPU_FEATURES = target_features()


def declare_function(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """Return the function ``name`` of an LLVM module, declaring it with these types if it is not there."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def make_intrinsic(result: types.Type, arguments: Sequence[types.Type], emit: Callable[[Any, list[Any]], Any]) -> Any:
    """Make an intrinsic, a function that Numba code can call and that becomes LLVM instructions there.

    result, arguments: its Numba types
    emit: function (builder, values) that appends the instructions and returns an LLVM value, a list of them (then
        ``result`` is a UniTuple) or None (``types.none``)
    """

    def typed(typing_context, *_):
        def generate(context, builder, signature, values):
            value = emit(builder, list(values))
            if value is None:
                return context.get_dummy_value()
            return context.make_tuple(builder, result, value) if isinstance(value, list) else value

        return result(*arguments), generate

    # Numba matches arguments by the names in the signature
    names = ["typing_context", *(f"a{i}" for i in range(len(arguments)))]
    typed.__name__ = emit.__name__
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typed.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    return intrinsic(typed)


def register_primitive(kind: type[types.Type]) -> None:
    """Register the Numba type class ``kind``, whose values are single LLVM values of the type in its attribute
    ``llvm``."""

    class Model(PrimitiveModel):
        def __init__(self, manager, frontend_type):
            super().__init__(manager, frontend_type, frontend_type.llvm)

    register_model(kind)(Model)


def record_view(fields: Sequence[tuple[str, types.Type, int]], size: int) -> Any:
    """Make an intrinsic that returns the record at an address: ``size`` bytes with the given fields (name, type,
    offset)."""
    layout: Any = [(name, {"type": kind, "offset": at, "alignment": None, "title": None}) for name, kind, at in fields]
    record = types.Record(layout, size, True)
    pointer = default_manager[record].get_value_type()
    return make_intrinsic(record, [types.int64], lambda builder, values: builder.inttoptr(values[0], pointer))


def llvm_of(compiled: Any) -> tuple[str, str]:
    """Return the LLVM module of a ``cfunc`` as text, and the name of its entry point in it."""
    return compiled.inspect_llvm(), compiled.native_name
