"""Whether an AArch64 processor has dot-product instructions for bytes, which not all of them have.

LLVM does not report it for the machine it runs on, neither on Linux nor on macOS, so the operating system is asked;
for another machine, for which kernels are only compiled, the processor's name says it. Importing this module loads
neither Numba nor llvmlite.
"""

from __future__ import annotations

import ctypes
import sys

from ..system import is_aarch64, sysctl_number

# Linux, arch/arm64/include/uapi/asm/hwcap.h: key of getauxval, bit of ASIMDDP
_HWCAP, _BIT = 16, 20

_DOTPROD = (
    "apple-a13 apple-a14 apple-m1 neoverse-e1 neoverse-n1 neoverse-512tvb cortex-a55 cortex-a65 cortex-a75 cortex-a76 "
    "cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c cortex-x1 cortex-x1c tsv110 "
    "apple-a15 apple-a16 apple-a17 apple-a18 apple-m2 apple-m3 apple-m4 neoverse-v1 neoverse-n2 neoverse-n3 "
    "neoverse-v2 neoverse-v3 neoverse-v3ae cortex-a510 cortex-a520 cortex-a710 cortex-a715 cortex-a720 cortex-a725 "
    "cortex-x2 cortex-x3 cortex-x4 cortex-x925 ampere1 ampere1a ampere1b grace gb10 oryon-1"
).split()
KNOWN = (*_DOTPROD, *"cortex-a53 cortex-a57 cortex-a72 cortex-a73 generic".split())
"""Names, as LLVM has them, of the processors that kernels can be compiled for on another machine."""


def _getauxval(key: int) -> int:
    function = ctypes.CDLL(None).getauxval
    function.argtypes, function.restype = [ctypes.c_ulong], ctypes.c_ulong
    return int(function(key))


def of_processor(name: str) -> dict[str, bool]:
    """Return whether the processor that LLVM calls ``name`` has dot products, as {LLVM's feature name: present}."""
    return {"dotprod": name in _DOTPROD}


def of_this_machine(cpu: str) -> dict[str, bool]:
    """Return whether this processor, which LLVM calls ``cpu``, has dot products, as {LLVM's feature name: present};
    {} if it is not AArch64."""
    if not is_aarch64():
        return {}
    try:
        if sys.platform == "darwin":
            return {"dotprod": bool(sysctl_number("hw.optional.arm.FEAT_DotProd"))}
        return {"dotprod": bool(_getauxval(_HWCAP) >> _BIT & 1)}
    except (AttributeError, OSError):  # a C library without these functions
        return of_processor(cpu)


def flags(features: dict[str, bool]) -> str:
    """Return features as LLVM's text ``+name,-name``."""
    return ",".join(("+" if present else "-") + name for name, present in features.items())
