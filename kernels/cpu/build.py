"""Compiling the backend to object files: ``python -m kernels.cpu.build DIRECTORY PART PARTS``.

Each process compiles one share of the entry points with Numba and writes one ``<part>.o`` and ``<part>.txt``: the
hash of the object file, then the names of its entry points.
What remains is machine code that calls nothing but libc and libm, so a later process loads it without Numba.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TASK_MODULES = (
    "sync",
    "activations",
    "attention",
    "caches",
    "compressor",
    "gemm",
    "indexer",
    "linear",
    "moe",
    "norm",
    "read",
    "rope",
    "rounding",
    "rows",
)
ALLOWED_EXTERNALS = frozenset(
    {"sched_yield", "usleep", "madvise", "log2f", "log1pf", "memcpy", "memset", "memmove", "sqrtf"}
)


def symbol(name: str) -> str:
    """The object-file name of an entry point."""
    return "ds4_" + re.sub(r"\W", "_", name)


def entries() -> dict[str, Callable[[], Any]]:
    """Every entry point: name -> function that compiles it."""
    for module in TASK_MODULES:
        importlib.import_module(f"kernels.cpu.tasks.{module}")
    from .tasks.registry import ENTRIES

    return ENTRIES


def optimized_object(modules: list[Any]) -> tuple[bytes, set[str]]:
    """Link LLVM modules, strip what the entry points do not need, and compile. Returns code and undefined symbols."""
    import llvmlite.binding as ll

    main = modules[0]
    for module in modules[1:]:
        main.link_in(module)
    main.verify()
    machine = target_machine()
    options = ll.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = ll.create_pass_builder(machine, options)
    builder.getModulePassManager().run(main, builder)
    undefined = {f.name for f in main.functions if f.is_declaration and not f.name.startswith("llvm.")}
    return machine.emit_object(main), undefined


def target_machine() -> Any:
    """The machine Numba would compile for, position independent."""
    import llvmlite.binding as ll
    from numba.core import codegen, config

    settings: Any = config
    cpu = settings.CPU_NAME or ll.get_host_cpu_name()
    features = codegen.get_host_cpu_features() if settings.CPU_FEATURES is None else settings.CPU_FEATURES
    target = ll.Target.from_triple(ll.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")


def compile_entry(name: str, make: Callable[[], Any]) -> Any:
    """One entry point as an LLVM module in which only its own symbol is visible."""
    import llvmlite.binding as ll

    compiled = make()
    module = ll.parse_assembly(compiled.inspect_llvm())
    wanted = compiled.native_name
    for item in (*module.functions, *module.global_variables):
        if not item.is_declaration and item.name != wanted:
            item.linkage = "internal"
    function = module.get_function(wanted)
    function.name = symbol(name)
    return module


def build(directory: Path, part: int, parts: int) -> None:
    """Compile every ``parts``-th entry point, from number ``part`` on, into ``directory``."""
    chosen = sorted(entries().items())[part::parts]
    modules = []
    for name, make in chosen:
        modules.append(compile_entry(name, make))
        print(name, flush=True)
    code, undefined = optimized_object(modules)
    foreign = undefined - ALLOWED_EXTERNALS
    if foreign:
        raise SystemExit(f"compiled kernels call {', '.join(sorted(foreign))}")
    (directory / f"{part}.o").write_bytes(code)
    lines = [hashlib.sha256(code).hexdigest(), *(name for name, _ in chosen)]
    (directory / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
