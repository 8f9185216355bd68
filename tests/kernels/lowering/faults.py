"""One-line mistakes put into CUDA kernels, one at a time: does the test of the op notice?

    python -m tests.kernels.lowering.faults            all of them (needs numba-cuda); exit 1 if one lives
    python -m tests.kernels.lowering.faults rows amax  those whose file or line contains one of these

Those of kernels are tried by ``test_lowered_ops.py`` on compiled kernels: wrong numbers, but also a barrier that is
missing, an index too far, shared memory nobody wrote, which no comparison of numbers has to show. They run in one
process. Those of what surrounds kernels (joining, recordings, experts that come and go) are tried by the tests of that,
in the simulator, in a process each. Chosen by hand, so that every kind has some; ``tests.mutants`` draws at random. All
on a copy of the tree.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Fault(NamedTuple):
    """``old``, once in ``file`` below kernels/cuda, becomes ``new``; the tests of ``by`` should fail: an op, or, below
    tests/kernels, a file and what its tests are chosen by."""

    file: str
    old: str
    new: str
    by: str


RECORDING, EXPERTS, PRODUCTS = "test_cuda_recording.py", "test_cuda_experts.py", "test_cuda_products.py"
LANES, SHARING = "test_cuda_lanes.py", "test_cuda_sharing.py"

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
    Fault("quantize.py", "scale, inverse = F32(bits_to_float(peak) / F32(127))",
          "scale, inverse = F32(bits_to_float(peak) / F32(128))", "quantize_a8"),
    Fault("quantize.py", "F32(v - code) == F32(0.5) and v > F32(0)", "F32(v - code) == F32(0.5) and v > F32(1)",
          "round_i8"),
    Fault("quantize.py", "base, peak = g * size, np.int32(0)", "base, peak = g * size + 1, np.int32(0)", "round_i8"),
    Fault("indexing.py", "            cuda.syncthreads()\n            for d in range(CHUNK):",
          "            pass\n            for d in range(CHUNK):", "index_scores"),
    Fault("indexing.py", "if first + r < limit:\n            total",
          "if first + r <= limit:\n            total", "index_scores"),
    Fault("attending.py", "number = -2 - pick", "number = -1 - pick", "attention"),
    Fault("attending.py", "total[h] = F32(total[h] * factor[h]) + weight", "total[h] = total[h] + weight", "attention"),
    Fault("attending.py", "            rows[r] = number\n        cuda.syncthreads()\n",
          "            rows[r] = number\n        pass\n", "attention"),
    Fault("attending.py", "% raw_rows * shared + head", "% raw_rows * shared", "attend"),
    Fault("attending.py", "h0 = head * sharing + group * GROUP", "h0 = head * sharing", "attend"),
    Fault("attending.py", "here = min(GROUP, sharing - group * GROUP)", "here = min(GROUP, sharing)", "attend"),
    Fault("attending.py", "   add_rows(parts, values, comp, rows,", "   add_rows(parts, keys, comp, rows,", "attend"),
    Fault("attending.py", "number = -2 - (seen - window)", "number = -3 - (seen - window)", "attention"),
    Fault("attending.py", "total = exp32(F32(sink - top)) if sunk else F32(0)", "total = F32(0)", "attention"),
    Fault("attending.py", "start, end = run * each, min((run + 1) * each, window + others)",
          "start, end = run * each, min((run + 1) * each, window)", "attention"),
    Fault("attending.py", "window > raw_rows or others < 0", "others < 0", "test_ops.py out_of_range and attention"),
    Fault("indexing.py", "return F32(0) if x < F32(0) else x", "return x", "index_scores"),
    Fault("indexing.py", "w[token * heads + h] if h < heads else F32(0)", "w[token * heads + h]", "index_scores"),
    Fault("indexing.py", "F32(x + F32(0))", "F32(x)", "select_rows"),
    Fault("indexing.py", "key == prefix and equal_before < wanted", "key == prefix and equal_before <= wanted",
          "select_rows"),
    Fault("indexing.py", "+ min(equal_before, wanted)", "+ equal_before", "select_rows"),
    Fault("indexing.py", "wanted -= found[1]", "wanted -= 0", "select_rows"),
    Fault("indexing.py", "cuda.atomic.add(bins, (key >> shift) & (DIGITS - 1), 1)",
          "bins[(key >> shift) & (DIGITS - 1)] += 1", "select_rows"),
    Fault("routing.py", "total = FLOOR if total < FLOOR else total", "total = total", "route"),
    Fault("routing.py", "total += TINY", "total += FLOOR", "route"),
    Fault("routing.py", "                if not value == value:\n                    value = -INFINITY\n", "", "route"),
    Fault("routing.py", "g = limit if g > limit else g", "g = g", "swiglu"),
    Fault("routing.py", "ids[token * k + i] = min(before, E - 1)", "ids[token * k + i] = min(before, E - 2)", "route"),
    Fault("joining.py", "or len(after) != 1 or", "or len(after) < 1 or", RECORDING),
    Fault("joining.py", "if id(result.buffer) in kept or len", "if len", RECORDING),
    Fault("joining.py", "both is not None and not written_between(launches[number + 1 : after[0]], now)",
          "both is not None", RECORDING),
    Fault("joining.py", "written_between(between, launch) or written_between(between, launches[at])", "False",
          RECORDING),
    Fault("joining.py", "norm.stages != NORM or ", "", RECORDING),
    Fault("joining.py", "if to is not None and not written_between(launches[number + 1 : to], launch):",
          "if to is not None:", RECORDING),
    Fault("recording.py", "setdefault(id(buffer), []).append(number)", "setdefault(id(buffer), [number])", RECORDING),
    Fault("recording.py", "            if offset - at >= size:", "            if offset >= size:", RECORDING),
    Fault("recording.py", "if each[2] >= first", "if each[2] > first", RECORDING),
    Fault("recording.py", "end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT", "end += 0", RECORDING),
    Fault("recording.py", "                owner.tell(code)", "                pass", RECORDING),
    Fault("recording.py", "        self._used += 1\n", "        pass\n", RECORDING),
    Fault("lanes.py", "mine.update(readers.pop(key, ()))", "readers.pop(key, ())", LANES),
    Fault("lanes.py", "for key in read | written if key in writer", "for key in read if key in writer", LANES),
    Fault("lanes.py", "over |= self.before[m] | 1 << m", "over |= self.before[m] | 2 << m", LANES),
    Fault("lanes.py", "if self.before[number] & mask != mask:", "if not self.before[number] & mask:", LANES),
    Fault("driver.py", "wait(0, ended[number])", "pass", LANES),
    Fault("driver.py", "                wait(turn.lane, ended[earlier])", "                pass", LANES),
    Fault("recording.py", "setdefault(self._lane, [])", "setdefault(0, [])", LANES),
    Fault("experts.py", "self.slot_of[old] = -1", "pass", EXPERTS),
    Fault("experts.py", "self.hot *= FADING", "pass", EXPERTS),
    Fault("experts.py", "= np.inf  # wanted now", "+= 0  # wanted now", EXPERTS),
    Fault("experts.py", "out[i] = x[rows[i // n] * n + i % n]", "out[i] = x[rows[0] * n + i % n]", EXPERTS),
    Fault("experts.py", "parts[(i // n * slots + k) * n + i % n]", "parts[(i // n * slots) * n + i % n]", EXPERTS),
    Fault("experts.py", "for i in range(0, len(used), slots)", "for i in range(0, slots, slots)", EXPERTS),
    Fault("widening.py", ".view(np.uint32) >> 16", ".view(np.uint32) >> 15", PRODUCTS + " widened"),
    Fault("widening.py", "return 2 * w.nbytes // w.row_bytes", "return w.nbytes // w.row_bytes", PRODUCTS + " widened"),
    Fault("widening.py", "out[at : at + step] = decode(rows[at : at + step])",
          "out[at : at + step] = decode(rows[:step])", PRODUCTS + " widened"),
    Fault("ranking.py", "x if x > FLOOR else FLOOR", "x", "top"),
    Fault("ranking.py", "<< 32) + (LOW - at)", "<< 32) + at", "top"),
    Fault("ranking.py", "(at & size) == 0)\n            cuda.syncthreads()", "(at & size) == 0)\n            pass",
          "top"),
    Fault("ranking.py", "(at & size) == 0)", "True)", "top"),
    Fault("ranking.py", "(run & 1) == 0)", "True)", "top"),
    Fault("ranking.py", "                keys[at] = other\n        cuda.syncthreads()\n",
          "                keys[at] = other\n        pass\n", "top"),
    Fault("ranking.py", "at = i // width * 2 * gap + i % width", "at = i // width * gap + i % width", "top"),
    Fault("ranking.py", "if first + i < n else NOBODY", "if first + i <= n else NOBODY", "top"),
    Fault("ranking.py", "if first + i < count else NOBODY", "if first + i < count else 0", "top"),
    Fault("ranking.py", "found[row * count + i] if i < count else NOBODY", "found[row * count + i]", "top"),
    Fault("ranking.py", "values[row * k + i] = x[row * n + at]", "values[row * k + i] = x[at]", "top"),
    Fault("ranking.py", "return 1 << (k - 1).bit_length()", "return 1 << k.bit_length() - 1", "top"),
    Fault("ops_ranking.py", "while tiles * k > tile:", "while tiles > tile:", "top"),
    Fault("recording.py", "            self._there.clear()\n", "", RECORDING + " kept"),
    Fault("recording.py", "driver.to_host(mirror, block, at)", "driver.to_host(mirror, block, 0)", RECORDING + " kept"),
    Fault("recording.py", "if start >= end:", "if start > end:", RECORDING + " kept"),
    Fault("rows.py", "a, b = src[at], src[at + gap]", "a, b = src[at], src[at + 1]", "rope"),
    Fault("streams.py", "post[token * C + i] = TWO * sigmoid32(", "post[token * C + i] = sigmoid32(", "hc_split"),
    Fault("streams.py", "total += F32(w[token * C + c] * X[(token * C + c) * D + i])",
          "total += F32(w[token * C] * X[(token * C + c) * D + i])", "hc_reduce"),
    Fault("plain.py", "i += 4 * split * span", "i += 3 * split * span", "linear"),
    Fault("packing.py", "peak = _larger(peak, shuffle_xor(peak, 2))", "peak = peak", "linear"),
    Fault("units.py", "np.int32(shift_right(minima, 4) & 0x0F0F)",
          "np.int32(shift_right(minima, 4) & 0x0F07)", "linear"),
    Fault("dots.py", "I32(shift_left(t, 2) & NO_CARRY)", "I32(shift_left(t, 2))", "linear"),
    Fault("dots.py", "bits, more, place = I32(63 - 48 * late), I32(48 * late), j & 3",
          "bits, more, place = I32(63 - 48 * late), I32(16 * late), j & 3", "linear"),
    Fault("dots.py", "I32(shift_right(signs, 27) | 1)", "I32(shift_right(signs, 27))", "linear"),
    Fault("matvec.py", "offsets[r] = I32(min(r, here - 1) * row_bytes)", "offsets[r] = I32(r * row_bytes)", "linear"),
    Fault("matvec.py", "                sync_warp()  # all lanes have read the last chunk\n", "", "linear"),
    Fault("limbs.py", "peak = peaks[i] if peaks[i] > peak else peak", "peak = peaks[0]", "grouped_linear"),
    Fault("limbs.py", "k = I32(TOP - ", "k = I32(TOP + 3 - ", "grouped_linear"),
    Fault("limbs.py", "float_to_half(F32(b - half_to_float(q)))", "float_to_half(F32(b - half_to_float(p)))",
          "grouped_linear"),
    Fault("limbs.py", "r, s = _rest(p), _rest(q)", "r, s = _rest(p), _rest(p)", "grouped_linear"),
    Fault("matmat_float.py", "parts[8 * k + 7] += q3\n            cuda.syncthreads()\n",
          "parts[8 * k + 7] += q3\n            pass\n", "grouped_linear"),
    Fault("matmat_float.py", "            copy_wait0()\n", "", "grouped_linear"),
    Fault("matmat_float.py", "EXPONENT_10, 0x4342", "EXPONENT_10, 0x4341", "grouped_linear"),
    Fault("matmat_float.py", "(1, 1), (0, 1)", "(0, 1), (0, 1)", "grouped_linear"),
    Fault("matmat_float.py", "gb * F32(shift_right(mb, 8))", "gb * F32(mb & 255)", "grouped_linear"),
    Fault("matmat_float.py", "seconds[at + 16] = gb", "seconds[at + 16] = ga", "grouped_linear"),
    Fault("matmat_float.py", "if 8 * k < size:", "if 8 * k + 7 < size:", "grouped_linear"),
    Fault("matmat_float.py", "vectors_of[i] = divide(pairs_of[i], share)", "vectors_of[i] = pairs_of[i]",
          "expert_linear"),
    Fault("tiling.py", "begin = I32(tile * TILE)", "begin = I32(0)", "grouped_linear"),
    Fault("products.py", "tiles, pairs // share, share", "tiles, pairs, share", "expert_linear"),
    Fault("sharing.py", "return tokens < products.MANY_TOKENS and groups == 1", "return groups == 1",
          SHARING + " many"),
]  # fmt: skip


def noticed(tree: Path, fault: Fault) -> str:
    """What the test says of the tree with ``fault``; "" if nothing. LookupError if the fault has no place."""
    path = tree / "kernels" / "cuda" / fault.file
    before = path.read_text()
    if before.count(fault.old) != 1:
        raise LookupError(f"{fault.old!r} is {before.count(fault.old)} times in {fault.file}")
    path.write_text(before.replace(fault.old, fault.new))
    try:
        return _by_tests(tree, fault.by) if ".py" in fault.by else _by_op(fault.by)
    finally:
        path.write_text(before)


def _by_tests(tree: Path, by: str) -> str:
    """What the tests of a file say in a process of their own; RuntimeError if none of them ran."""
    file, _, chosen = by.partition(" ")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"tests/kernels/{file}", *(["-k", chosen] if chosen else [])]
    environment = {name: value for name, value in os.environ.items() if name != "DS4_TEST_CUDA"}
    done = subprocess.run(
        command, cwd=tree, env=environment | {"PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{by}: {done.stdout[-300:]} {done.stderr[-300:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return " ".join(failed[0].split())[:180] if done.returncode and failed else ""


def _by_op(op: str) -> str:
    """What the tests of an op say of the kernels as they are now."""
    for name in [name for name in sys.modules if name.startswith("kernels.cuda")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        from . import test_lowered_ops as tests
        from .hosted import hosted

        with hosted() as driver:
            backend: Any = importlib.import_module("kernels.cuda.backend")
            ops = backend.CUDA()
            if op in tests.EDGES:
                tests.test_rows_at_the_edges(op, ops)
            if op in tests.LARGER:
                tests.test_several_rounds_of_a_kernel(op, ops)
            tests.test_op_against_the_reference(op, ops, driver)
    except (Exception, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:140]}"
    return ""


def main() -> int:
    asked = sys.argv[1:] or [""]
    wanted = [fault for fault in FAULTS if any(word in fault.file + fault.old for word in asked)]
    lived = 0
    sound: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder, "tree")
        skipped = shutil.ignore_patterns(".*", "__pycache__", "out", "build", "*.egg-info")
        for room in ("kernels", "tests", "benchmarks", "ds4ref"):
            shutil.copytree(ROOT / room, tree / room, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", tree)
        sys.dont_write_bytecode = True
        import kernels

        kernels.__path__ = [str(tree / "kernels"), *kernels.__path__]
        for fault in wanted:
            if ".py" in fault.by and fault.by not in sound:
                said = _by_tests(tree, fault.by)
                if said:
                    raise RuntimeError(f"without any fault: {said}")
                sound.add(fault.by)
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
