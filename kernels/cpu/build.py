"""Compile groups of kernels to object files: ``python -m ds4ref.kernels.cpu.build DIRECTORY PART GROUP...``.

Each process compiles a share of the entry points with Numba and writes, for each group (``library.group_of``),
``GROUP/<part>.o`` and ``GROUP/<part>.txt``: the hash of the object file, then the names of its entry points. A share is
claimed bit by bit, by creating files in DIRECTORY, so that all processes end at about the same time.

The code calls nothing but libc and libm, so a later process loads it without Numba. ``DS4_CROSS_TARGET`` compiles for
another machine (``simd/tiers.py``).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .library import QUANTIZE, group_of, symbol, target_machine

TASK_MODULES = (
    "sync",
    "activations",
    "attention",
    "caches",
    "calls",
    "compressor",
    "gemm",
    "indexer",
    "linear",
    "moe",
    "norm",
    "ranking",
    "read",
    "rope",
    "rounding",
    "rows",
)
MODULES = tuple(f"tasks.{name}" for name in TASK_MODULES)
QUANTIZERS = tuple(f"quantize.{name}" for name in ("q8_0", "k_blocks", "iq2_xxs", "mxfp4"))
"""The modules with the entry points of the group QUANTIZE, and with all others."""

ALLOWED_EXTERNALS = frozenset(
    {"sched_yield", "usleep", "madvise", "log2f", "log1pf", "memcpy", "memset", "memmove", "sqrtf"}
    | {"memset_pattern16", "bzero", "__bzero"}  # LLVM emits these for loops that fill memory, on macOS
)


def entries(*groups: str) -> dict[str, Callable[[], Any]]:
    """Return every entry point of some groups of kernels (none named: of all but the quantizers): name -> function that
    compiles it."""
    for module in QUANTIZERS if QUANTIZE in groups else MODULES:
        importlib.import_module(f"ds4ref.kernels.cpu.{module}")
    from .tasks.registry import ENTRIES

    of = {name: group_of(name) for name in ENTRIES}
    return {name: make for name, make in ENTRIES.items() if (of[name] in groups if groups else of[name] != QUANTIZE)}


def optimized(modules: list[Any], machine: Any) -> Any:
    """Link LLVM modules into the first, strip code that no entry point uses, and optimize for ``machine``."""
    import llvmlite.binding as ll

    for module in modules:
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
    main = modules[0]
    for module in modules[1:]:
        main.link_in(module)
    main.verify()
    options = ll.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = ll.create_pass_builder(machine, options)
    builder.getModulePassManager().run(main, builder)
    return main


def optimized_object(modules: list[Any], machine: Any) -> tuple[bytes, set[str]]:
    """Compile LLVM modules; return the object code and the names of its undefined symbols."""
    main = optimized(modules, machine)
    undefined = {f.name for f in main.functions if f.is_declaration and not f.name.startswith("llvm.")}
    return machine.emit_object(main), undefined


def cross_machine() -> Any:
    """Return LLVM's target machine for the foreign machine in DS4_CROSS_TARGET, and stop Numba from making machine code
    for this one in this process."""
    import llvmlite.binding as ll

    from .numba_internals import make_llvm_only, target_cpu, target_features, target_triple

    ll.initialize_all_targets()
    ll.initialize_all_asmprinters()
    make_llvm_only()
    return target_machine(target_triple(), cpu=target_cpu(), features=target_features())


def compile_entry(name: str, make: Callable[[], Any]) -> Any:
    """Compile one entry point to an LLVM module in which only its own symbol is visible."""
    import llvmlite.binding as ll

    from .numba_internals import llvm_of

    text, entry_name = llvm_of(make())
    module = ll.parse_assembly(text)
    for item in (*module.functions, *module.global_variables):
        if not item.is_declaration and item.name != entry_name:
            item.linkage = "internal"
    function = module.get_function(entry_name)
    function.name = symbol(name)
    return module


def claimed(directory: Path, makers: dict[str, Callable[[], Any]]) -> Iterator[str]:
    """Yield the names of entry points to compile in this process until other processes have claimed the rest.

    Those that call the same functions come together, and the most first.
    """
    from .tasks.registry import SHARING

    together: dict[tuple[str, str], list[str]] = {}
    for name in makers:
        together.setdefault((group_of(name), SHARING.get(name, name)), []).append(name)
    for number, names in enumerate(sorted(together.values(), key=len, reverse=True)):
        with contextlib.suppress(FileExistsError):
            (directory / f"{number}.claim").touch(exist_ok=False)
            yield from names


def build(directory: Path, part: int, *groups: str) -> None:
    """Compile entry points of ``groups`` that no other process compiles into ``directory``."""
    import llvmlite.binding as ll

    from .numba_internals import cross_target, target_cpu, target_features

    if cross_target():
        machine = cross_machine()
    else:
        ll.initialize_native_target()
        ll.initialize_native_asmprinter()
        machine = target_machine(ll.get_process_triple(), cpu=target_cpu(), features=target_features())
    makers = entries(*groups)
    modules_of: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name in claimed(directory, makers):
        modules_of[group_of(name)][name] = compile_entry(name, makers[name])
        print(name, flush=True)
    for group, modules in modules_of.items():
        code = b""
        if modules:
            code, undefined = optimized_object([modules[name] for name in sorted(modules)], machine)
            unknown = undefined - ALLOWED_EXTERNALS
            if unknown:
                raise SystemExit(f"compiled kernels call {', '.join(sorted(unknown))}")
        (directory / group).mkdir(exist_ok=True)
        (directory / group / f"{part}.o").write_bytes(code)
        lines = [hashlib.sha256(code).hexdigest(), *sorted(modules)]
        (directory / group / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    from .numba_internals import make_llvm_only

    gc.disable()  # collecting garbage took a sixth of the time
    make_llvm_only()
    build(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
