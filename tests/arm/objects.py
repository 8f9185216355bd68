"""Compile a few kernels and print a digest of each object file: equal where this machine and DS4_CROSS_TARGET make the
same code.

    DS4_CROSS_TARGET=aarch64-unknown-linux-gnu:cortex-a72 DS4_SIMD_TIER=C python -m tests.arm.objects add hadamard
"""

from __future__ import annotations

import hashlib
import sys

import llvmlite.binding as ll

from ds4ref.kernels.cpu import numba_internals
from ds4ref.kernels.cpu.build import compile_entry, cross_machine, entries, optimized_object, target_machine


def main(names: list[str]) -> None:
    if numba_internals.cross_target():
        machine = cross_machine()
    else:
        ll.initialize_native_target()
        ll.initialize_native_asmprinter()
        features = numba_internals.target_features()
        machine = target_machine(ll.get_process_triple(), cpu=numba_internals.target_cpu(), features=features)
        print(f"features {features}", file=sys.stderr)
    known = entries()
    for name in names:
        code, _ = optimized_object([compile_entry(name, known[name])], machine)
        print(f"{hashlib.sha256(code).hexdigest()}  {len(code):6}  {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
