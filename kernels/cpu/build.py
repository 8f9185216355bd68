"""Compile groups of kernels to object files: ``python -m ds4ref.kernels.cpu.build DIRECTORY PART PARTS GROUP...``.

Each process compiles its share of the entry points with Numba and writes, for each group (``library.group_of``),
``GROUP/<part>.o`` and ``GROUP/<part>.txt``: the hash of the object file, then the names of its entry points. The code
calls nothing but libc and libm, so a later process loads it without Numba. ``DS4_CROSS_TARGET`` compiles for another
machine (``simd/tiers.py``).
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
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

    from .numba_internals import never_run_here, target_cpu, target_features, target_triple

    ll.initialize_all_targets()
    ll.initialize_all_asmprinters()
    never_run_here()
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


def build(directory: Path, part: int, parts: int, *groups: str) -> None:
    """Compile every ``parts``-th entry point of ``groups``, starting at number ``part``, into ``directory``."""
    import llvmlite.binding as ll

    from .numba_internals import cross_target, target_cpu, target_features

    if cross_target():
        machine = cross_machine()
    else:
        ll.initialize_native_target()
        ll.initialize_native_asmprinter()
        machine = target_machine(ll.get_process_triple(), cpu=target_cpu(), features=target_features())
    chosen = sorted(entries(*groups).items())[part::parts]
    for group in groups:
        names, modules, code = [name for name, _ in chosen if group_of(name) == group], [], b""
        for name, make in chosen:
            if name in names:
                modules.append(compile_entry(name, make))
                print(name, flush=True)
        if modules:
            code, undefined = optimized_object(modules, machine)
            unknown = undefined - ALLOWED_EXTERNALS
            if unknown:
                raise SystemExit(f"compiled kernels call {', '.join(sorted(unknown))}")
        (directory / group).mkdir(exist_ok=True)
        (directory / group / f"{part}.o").write_bytes(code)
        lines = [hashlib.sha256(code).hexdigest(), *names]
        (directory / group / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
