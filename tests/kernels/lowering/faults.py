"""One-line mistakes put into CUDA kernels, one at a time: does the test of the op notice?

    python -m tests.kernels.lowering.faults            all of them (needs numba-cuda); exit 1 if one lives
    python -m tests.kernels.lowering.faults rows amax  those whose file or line contains one of these

Each is tried by ``test_lowered_ops.py`` on compiled kernels: wrong numbers, but also a barrier that is missing, an
index too far, shared memory nobody wrote, which no comparison of numbers has to show. Chosen by hand, so that every
kind of kernel has some; ``tests.mutants`` draws at random. All run in one process, on a copy of the tree.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Fault(NamedTuple):
    """``old``, once in ``file`` below kernels/cuda, becomes ``new``; the tests of ``op`` should fail."""

    file: str
    old: str
    new: str
    op: str


SYNC = "cuda.syncthreads()"

FAULTS = [
    Fault("rows.py", "total += value * value", "total += value", "rms_norm"),
    Fault("rows.py", "    sums[t] = value\n    cuda.syncthreads()\n", "    sums[t] = value\n    pass\n", "rms_norm"),
    Fault("rows.py", "out[at] = F32(a * c - b * s)", "out[at] = F32(a * c + b * s)", "rope"),
    Fault("rows.py", "c, s = cos[token * half + i]", "c, s = cos[token * half + i + 1]", "rope"),
    Fault("rows.py", "            src = out\n            cuda.syncthreads()\n            width *= 2",
          "            src = out\n            pass\n            width *= 2", "hadamard"),
    Fault("rows.py", "at = base + 2 * i - (i & (width - 1))", "at = base + 2 * i - (i & width)", "hadamard"),
    Fault("rows.py", "amax = floor if amax < floor else amax", "amax = amax", "round_e4m3"),
    Fault("rows.py", "peaks[i >> bits]\n", "peaks[i >> (bits - 1)]\n", "round_e2m1"),
    Fault("rows.py", "slot = (at[0] + token) % slots", "slot = (at[0] + token + 1) % slots", "store_rows"),
    Fault("windows.py", "if position >= at:", "if position > at:", "windows"),
    Fault("windows.py", "top = top if value <= top else value", "top = top if value > top else value", "pool"),
    Fault("windows.py", "place = (at[0] + i // width) % ratio",
          "place = (at[0] + i // width) % (ratio + 1)", "position_bias"),
    Fault("routing.py", "return a > b or (a == b and i < j)", "return a > b or (a == b and i > j)", "route"),
    Fault("routing.py", "            best[t], where[t] = top, at\n            cuda.syncthreads()\n",
          "            best[t], where[t] = top, at\n            pass\n", "route"),
    Fault("routing.py", "u = -limit if u < -limit else u", "u = u", "swiglu"),
    Fault("routing.py", "cuda.atomic.add(counts, e, 1)", "counts[e] += 1", "count"),
    Fault("quantize.py", "if bits > peak:", "if bits >= peak:", "quantize_q8k"),
    Fault("quantize.py", "F32(bits_to_float(peak) / F32(127))", "F32(bits_to_float(peak) / F32(128))", "quantize_a8"),
    Fault("indexing.py", "            cuda.syncthreads()\n            for d in range(CHUNK):",
          "            pass\n            for d in range(CHUNK):", "index_scores"),
    Fault("indexing.py", "if first + r < limit:\n            total",
          "if first + r <= limit:\n            total", "index_scores"),
    Fault("attending.py", "number = -2 - pick", "number = -1 - pick", "attention"),
    Fault("attending.py", "total[h] = F32(total[h] * factor[h]) + weight", "total[h] = total[h] + weight", "attention"),
    Fault("attending.py", "            rows[r] = number\n        cuda.syncthreads()\n",
          "            rows[r] = number\n        pass\n", "attention"),
    Fault("grouped.py", "% ring) * shared + head", "% ring) * shared", "attend"),
    Fault("grouped.py", "h0 = head * sharing + group * GROUP", "h0 = head * sharing", "attend"),
    Fault("grouped.py", "here = min(GROUP, sharing - group * GROUP)", "here = min(GROUP, sharing)", "attend"),
    Fault("rows.py", "a, b = src[at], src[at + gap]", "a, b = src[at], src[at + 1]", "rope"),
    Fault("streams.py", "post[token * C + i] = TWO * sigmoid32(", "post[token * C + i] = sigmoid32(", "hc_split"),
    Fault("streams.py", "total += F32(w[token * C + c] * X[(token * C + c) * D + i])",
          "total += F32(w[token * C] * X[(token * C + c) * D + i])", "hc_reduce"),
    Fault("plain.py", "i += 4 * split * span", "i += 3 * split * span", "linear"),
    Fault("packing.py", "peak = _larger(peak, shuffle_xor(peak, 2))", "peak = peak", "linear"),
    Fault("units.py", "np.int32(shift_right(minima, 4) & 0x0F0F)",
          "np.int32(shift_right(minima, 4) & 0x0F07)", "linear"),
]  # fmt: skip


def noticed(tree: Path, fault: Fault) -> str:
    """What the test says of the tree with ``fault``; "" if nothing. LookupError if the fault has no place."""
    path = tree / "kernels" / "cuda" / fault.file
    before = path.read_text()
    if before.count(fault.old) != 1:
        raise LookupError(f"{fault.old!r} is {before.count(fault.old)} times in {fault.file}")
    path.write_text(before.replace(fault.old, fault.new))
    for name in [name for name in sys.modules if name.startswith("kernels.cuda")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        from . import test_lowered_ops as tests
        from .hosted import hosted

        with hosted() as driver:
            backend: Any = importlib.import_module("kernels.cuda.backend")
            ops = backend.CUDA()
            if fault.op in tests.EDGES:
                tests.test_rows_at_the_edges(fault.op, ops)
            if fault.op in tests.LARGER:
                tests.test_several_rounds_of_a_kernel(fault.op, ops)
            tests.test_op_against_the_reference(fault.op, ops, driver)
    except (Exception, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"
    finally:
        path.write_text(before)
    return ""


def main() -> int:
    asked = sys.argv[1:] or [""]
    wanted = [fault for fault in FAULTS if any(word in fault.file + fault.old for word in asked)]
    lived = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder, "tree")
        skipped = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "*.egg-info")
        shutil.copytree(ROOT / "kernels", tree / "kernels", ignore=skipped)
        sys.dont_write_bytecode = True
        import kernels

        kernels.__path__ = [str(tree / "kernels"), *kernels.__path__]
        for fault in wanted:
            start = time.monotonic()
            with contextlib.suppress(KeyError):
                del sys.modules["kernels.cuda"]
            said = noticed(tree, fault)
            lived += not said
            line = f"{fault.file}: {fault.old.strip()!r} -> {fault.new.strip()!r}"
            print("caught  " if said else "LIVED   ", f"{time.monotonic() - start:5.1f} s", line, flush=True)
            print("         ", said, flush=True)
    print(f"{len(wanted) - lived} of {len(wanted)} noticed")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
