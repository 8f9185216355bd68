"""One-line mistakes put into CUDA kernels, one at a time: does the test of the op notice?

    python -m tests.kernels.cuda.lowering.faults            all of them (needs numba-cuda); exit 1 if one lives
    python -m tests.kernels.cuda.lowering.faults rows amax  those whose file or line contains one of these

Those of kernels are tried by ``test_lowered_ops.py`` on compiled kernels: wrong numbers, but also a barrier that is
missing, an index too far, shared memory nobody wrote, which no comparison of numbers has to show. They run in one
process. Those of what surrounds kernels (joining, recordings, experts that come and go) are tried by the tests of that,
in a process each. Chosen by hand, so that every kind has some; ``tests.mutants`` draws at random. All
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

ROOT = Path(__file__).resolve().parents[4]


FLOATS = "cuda/lowering/test_lowered_attention.py"


class Fault(NamedTuple):
    """``old``, once in module ``file`` of kernels/cuda, becomes ``new``; the tests of ``by`` should fail: an op,
    or a file of tests/kernels and what its tests are chosen by."""

    file: str
    old: str
    new: str
    by: str


RESIDENCY, PAGES, STUB = "cuda/test_residency.py", "cuda/test_hostpages.py", "cuda/test_stub_experts.py"
RECORDING, EXPERTS, PRODUCTS = "cuda/test_recording.py", "cuda/test_experts.py", "cuda/test_products.py"
MANY = "cuda/test_many.py"
MATMAT = "cuda/test_matmat.py"
OFFSETS = "cuda/test_offsets.py"
BRANCHES, SHARING, FOLDING = "cuda/test_branches.py", "cuda/test_sharing.py", "cuda/test_folding.py"

FAULTS = [
    Fault("rows/stages", "total += value * value", "total += value", "rms_norm"),
    Fault("rows/stages", "    sums[t] = value\n    cuda.syncthreads()\n", "    sums[t] = value\n    pass\n",
          "rms_norm"),
    Fault("rows/stages", "out[at] = F32(a * c - b * s)", "out[at] = F32(a * c + b * s)", "rope"),
    Fault("rows/stages", "c, s = cos[token * half + i]", "c, s = cos[token * half + i + 1]", "rope"),
    Fault("rows/stages", "            src = out\n            cuda.syncthreads()\n            width *= 2",
          "            src = out\n            pass\n            width *= 2", "hadamard"),
    Fault("rows/stages", "at = base + 2 * i - (i & (width - 1))", "at = base + 2 * i - (i & width)", "hadamard"),
    Fault("rows/stages", "amax = floor if amax < floor else amax", "amax = amax", "round_e4m3"),
    Fault("rows/stages", "peaks[i >> bits]\n", "peaks[i >> (bits - 1)]\n", "round_e2m1"),
    Fault("rows/stages", "slot = (at[0] + token) % slots", "slot = (at[0] + token + 1) % slots", "store_rows"),
    Fault("rows/windows", "if position >= at:", "if position > at:", "windows"),
    Fault("rows/windows", "score[base + j * c]\n            top = top if value <= top else value",
          "score[base + j * c]\n            top = top if value > top else value", "pool"),
    Fault("rows/windows", "place = (at[0] + i // width) % ratio",
          "place = (at[0] + i // width) % (ratio + 1)", "position_bias"),
    Fault("rows/routing", "return a > b or (a == b and i < j)", "return a > b or (a == b and i > j)", "route"),
    Fault("rows/routing", "= top, at\n            cuda.syncthreads()\n", "= top, at\n            pass\n", "route"),
    Fault("rows/routing", "half = (i & 1) * MOST_WARPS", "half = 0", "route"),
    Fault("rows/routing", "totals[0] = total\n    cuda.syncthreads()\n", "totals[0] = total\n    pass\n", "route"),
    Fault("rows/routing", "cuda.atomic.add(counts, expert, 1)", "counts[expert] += 1", FOLDING + " counted"),
    Fault("rows/stages", "    while width >= WARP:\n", "    while width > WARP:\n", "rms_norm"),
    Fault("rows/hyper", "source = I32(source + stride)", "source = I32(source + 1)", "hc_split"),
    Fault("rows/hyper", "I32(row * C), 1, C, eps", "col, C, C, eps", "hc_split"),
    Fault("rows/hyper", "table_pass(table, half, C, False, eps)", "table_pass(table, half, C, True, eps)", "hc_split"),
    Fault("rows/indexing", "to += APART * PITCH", "to += APART * PITCH - 1", "index_scores"),
    Fault("rows/indexing", "at_head += APART * dim", "at_head += dim", "index_scores"),
    Fault("rows/hyper", "F32(total + eps))\n    sync_warp()", "F32(total + eps))", "hc_split"),
    Fault("rows/windows", "value + ape[place * n + i]", "value + ape[i]", FOLDING + " ring"),
    Fault("products/plain", "into = remainder(position, I32", "into = remainder(I32(place.at[0]), I32",
          FOLDING + " straight"),
    Fault("products/plain", "if second and place.ratio > 0:", "if place.ratio > 0:", FOLDING + " straight"),
    Fault("products/packed_rows", "        cuda.syncthreads()\n", "        pass\n", FOLDING + " layer"),
    Fault("products/packing", "part = unit if unit < parts else unit - parts", "part = unit", FOLDING + " layer"),
    Fault("products/packing", "if a8 and unit < parts:", "if a8:", FOLDING + " layer"),
    Fault("graph/merging", " or _collide(launch, later, flags)", "", FOLDING + " different_places"),
    Fault("graph/merging", "{id(array.buffer) for array in later.writes} - flags\n    uses",
          "{id(later.writes[0].buffer)}\n    uses", FOLDING + " read_between"),
    Fault("graph/merging", "{id(array.buffer) for array in later.writes} - flags\n    return",
          "{id(array.buffer) for array in later.writes}\n    return", SHARING + " chosen_experts"),
    Fault("graph/folding", "        and id(launch.writes[0].buffer) in once\n", "", FOLDING + " kept"),
    Fault("graph/folding", "        and once.issuperset(id(array.buffer) for array in launch.writes)\n", "",
          FOLDING + " projections_that"),
    Fault("graph/folding", "        and tokens <= slots\n", "", FOLDING + " more_rows"),
    Fault("graph/folding", "        and same_values(launch.reads[2], later.reads[3])\n", "", FOLDING + " kept"),
    Fault("graph/folding", "times == 1} - kept", "times == 1}", FOLDING + " kept"),
    Fault("graph/folding", "is stages.chain_store\n        and launch.numbers[1] == later.numbers[1]\n",
          "is stages.chain_store\n", FOLDING + " lengths"),
    Fault("graph/folding", "later.writes[0].dtype\n        and not _reads_result(launch, later)\n",
          "later.writes[0].dtype\n", FOLDING + " different_places"),
    Fault("graph/folding", "not done and n % BLOCKS[later.function] == 0 and", "not done and", FOLDING + " heads"),
    Fault("graph/folding", "return not done and", "return", FOLDING + " shorter"),
    Fault("graph/folding", "if not any(written_between(launches[at + 1 : number], launches[at]) for at in found):",
          "if True:", FOLDING + " gathered"),
    Fault("graph/folding", "if id(array.buffer) in makers.keys() & once", "if id(array.buffer) in makers",
          FOLDING + " gathered"),
    Fault("rows/windows", "slot - slots if slot >= slots else slot", "slot", FOLDING + " closes"),
    Fault("rows/windows", "fresh = (first + slots) % slots, at[0] - first",
          "fresh = (first + slots) % slots, at[0] - first + 1", FOLDING + " closes"),
    Fault("graph/folding", "        and launch.numbers[1] == later.numbers[1]\n    )", "    )", FOLDING + " fewer"),
    Fault("rows/hyper", "F32(x[base + i] - F32(along * direction[i]))", "F32(x[base + i] + F32(along * direction[i]))",
          "remove_along"),
    Fault("rows/hyper", "(x[base + i]) * np.float64(direction[i])", "(x[base + i]) * np.float64(direction[t])",
          "remove_along"),
    Fault("rows/routing", "inner = F32(g + ", "inner = F32(g - ", "geglu"),
    Fault("rows/routing", "u = -limit if u < -limit else u", "u = u", "swiglu"),
    Fault("rows/routing", "cuda.atomic.add(counts, e, 1)", "counts[e] += 1", "count"),
    Fault("rows/quantize", "if bits > peak:", "if bits >= peak:", "quantize_q8k"),
    Fault("rows/quantize", "scale, inverse = F32(bits_to_float(peak) / F32(127))",
          "scale, inverse = F32(bits_to_float(peak) / F32(128))", "quantize_a8"),
    Fault("rows/quantize", "F32(v - code) == F32(0.5) and v > F32(0)", "F32(v - code) == F32(0.5) and v > F32(1)",
          "round_i8"),
    Fault("rows/quantize", "base, peak = g * size, np.int32(0)", "base, peak = g * size + 1, np.int32(0)", "round_i8"),
    Fault("rows/indexing", "            cuda.syncthreads()\n            for d in range(CHUNK):",
          "            pass\n            for d in range(CHUNK):", "index_scores"),
    Fault("rows/indexing", "if first + r < limit:\n            total",
          "if first + r <= limit:\n            total", "index_scores"),
    Fault("rows/attending", "number = -2 - pick", "number = -1 - pick", "attention"),
    Fault("rows/attending", "total = F32(total * factor) + weight", "total = total + weight", "attention"),
    Fault("rows/attending", "                rows[t] = number\n            cuda.syncthreads()\n",
          "                rows[t] = number\n            pass\n", "attention"),
    Fault("rows/attending", "a_at = (8 * (matrix & 1) + line) * pitch + 4 * (matrix >> 1)",
          "a_at = (8 * (matrix >> 1) + line) * pitch + 4 * (matrix & 1)", "attention"),
    Fault("rows/attending", "p_at = (8 * (matrix & 1) + line) * weight_pitch + 4 * (matrix >> 1)",
          "p_at = (8 * (matrix & 1) + line) * weight_pitch", "attention"),
    Fault("rows/attending", "(8 * eight + line) * pitch + 4 * (matrix & 1)", "(8 * eight + line) * pitch",
          "attention"),
    Fault("rows/attending", "(8 * (matrix & 1) + line) * pitch + 4 * eights * warp", "line * pitch + 4 * eights * warp",
          "attention"),
    Fault("rows/attending", "matrices4_turned(store, v_at", "matrices4(store, v_at", "attention"),
    Fault("rows/attending", "v_at + 16 * step * pitch + 4 * n", "v_at + 4 * n", "attention"),
    Fault("rows/attending", "c = mma_f16(a_low[0], a_low[1], a_low[2], a_low[3], b[0], b[1], c[0], c[1], c[2], c[3])\n",
          "\n", FLOATS),
    Fault("rows/attending", "a_high[3], b[2], b[3], c[0]", "a_high[3], b[0], b[1], c[0]", "attention"),
    Fault("rows/attending", "F32(F32(s * head_down[h]) * key_down[place])", "F32(s * head_down[h])", "attention"),
    Fault("rows/attending", "(value_down[place] if apart else key_down[place])", "key_down[place]", "attend"),
    Fault("rows/attending", "part_down[h] = inverse", "part_down[h] = ONE", "attention"),
    Fault("rows/attending", "if rows[place] != -1 else ZERO", "if True else ZERO", "attention"),
    Fault("rows/attending", "                if rows[place] != -1:\n                    new_top",
          "                if True:\n                    new_top", FLOATS),
    Fault("rows/attending", "row_in and (whole or channel + on < dim)", "whole or channel + on < dim", "attention"),
    Fault("rows/attending", "channel + 64 * j + 1 < dim", "channel + 64 * j < dim", "attention"),
    Fault("rows/attending", "if parts_k == 2:", "if parts_k == 3:", FLOATS),
    Fault("rows/attending", "8 * (part * steps_each + 2 * pair + half)", "8 * (2 * pair + half)", FLOATS),
    Fault("rows/attending", "% raw_rows * shared + head", "% raw_rows * shared", "attend"),
    Fault("rows/attending", "h0 = head * sharing + group * GROUP", "h0 = head * sharing", "attend"),
    Fault("rows/attending", "heads_here = min(GROUP, sharing - group * GROUP)", "heads_here = min(GROUP, sharing)",
          "attend"),
    Fault("rows/attending", "fill(values, comp, rows", "fill(keys, comp, rows", "attend"),
    Fault("rows/attending", "number = -2 - (position - window)", "number = -3 - (position - window)", "attention"),
    Fault("rows/attending", "total = exp32(F32(sink - top)) if sunk else F32(0)", "total = F32(0)", "attention"),
    Fault("rows/attending", "at += heads * dim", "at += dim", "attention"),
    Fault("rows/attending", "(whole or channel + on < dim)", "True", "attention"),
    Fault("rows/attending", "start, end = run * run_rows, min((run + 1) * run_rows, window + compressed)",
          "start, end = run * run_rows, min((run + 1) * run_rows, window)", "attention"),
    Fault("rows/attending", "window > raw_rows or compressed < 0", "compressed < 0",
          "test_ops.py out_of_range and attention"),
    Fault("rows/indexing", "return F32(0) if x < F32(0) else x", "return x", "index_scores"),
    Fault("rows/indexing", "w[token * heads + h] if h < heads else F32(0)", "w[token * heads + h]", "index_scores"),
    Fault("rows/indexing", "F32(x + F32(0))", "F32(x)", "select_rows"),
    Fault("rows/indexing", "key == limit and equal_before < remaining", "key == limit and equal_before <= remaining",
          "select_rows"),
    Fault("rows/indexing", "+ min(equal_before, remaining)", "+ equal_before", "select_rows"),
    Fault("rows/indexing", "remaining -= digit_and_above[1]", "remaining -= 0", "select_rows"),
    Fault("rows/indexing", "cuda.atomic.add(bins, U64(shift_right(key, shift) & I32(DIGITS - 1)), 1)",
          "bins[U64(shift_right(key, shift) & I32(DIGITS - 1))] += 1", "select_rows"),
    Fault("rows/indexing", "other if lane + distance < 32 else I32(0)", "other", "select_rows"),
    Fault("rows/indexing", "    cuda.syncthreads()  # of the sums before, all have been read\n", "", "select_rows"),
    Fault("rows/indexing", "DIGITS, stream](out, scores, visible", "32, stream](out, scores, visible",
          MANY + " choosing"),
    Fault("rows/routing", "total = FLOOR if total < FLOOR else total", "total = total", "route"),
    Fault("rows/routing", "total += TINY", "total += FLOOR", "route"),
    Fault("rows/routing", "                if not value == value:\n                    value = -INFINITY\n", "",
          "route"),
    Fault("rows/routing", "g = limit if g > limit else g", "g = g", "swiglu"),
    Fault("rows/routing", "chosen[i] = min(before, I32(E - 1))", "chosen[i] = min(before, I32(E - 2))",
          "route"),
    Fault("graph/joining", "or len(after) != 1 or", "or len(after) < 1 or", RECORDING),
    Fault("graph/joining", "if id(result.buffer) in kept or len", "if len", RECORDING),
    Fault("graph/joining", "both is not None and not written_between(launches[number + 1 : after[0]], now)",
          "both is not None", RECORDING),
    Fault("graph/joining", "written_between(between, launch) or written_between(between, launches[at])", "False",
          RECORDING),
    Fault("graph/joining", "norm.stages != NORM or ", "", RECORDING),
    Fault("graph/joining", "if to is not None and not written_between(launches[number + 1 : to], launch):",
          "if to is not None:", RECORDING),
    Fault("graph/recording", "setdefault(id(buffer), []).append(number)", "setdefault(id(buffer), [number])",
          RECORDING),
    Fault("graph/recording", "            if offset - at >= size:", "            if offset >= size:", RECORDING),
    Fault("graph/recording", "if each[2] >= first", "if each[2] > first", RECORDING),
    Fault("graph/recording", "end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT", "end += 0", RECORDING),
    Fault("graph/recording", "                owner.tell(code)", "                pass", RECORDING),
    Fault("graph/recording", "        self._used += 1\n", "        pass\n", RECORDING),
    Fault("graph/branches", "earlier.update(readers.pop(key, ()))", "readers.pop(key, ())", BRANCHES),
    Fault("graph/branches", "for key in read | written if key in writer", "for key in read if key in writer", BRANCHES),
    Fault("graph/branches", "over |= self.before[m] | 1 << m", "over |= self.before[m] | 2 << m", BRANCHES),
    Fault("graph/branches", "if self.before[number] & mask != mask:", "if not self.before[number] & mask:", BRANCHES),
    Fault("driver/gpu", "wait(0, ended[number])", "pass", BRANCHES),
    Fault("driver/gpu", "                wait(turn.branch, ended[earlier])", "                pass", BRANCHES),
    Fault("graph/recording", "setdefault(self._branch, [])", "setdefault(0, [])", BRANCHES),
    Fault("products/matmat", "mma_s8(a[0], a[1], a[2], a[3], b, b_2, start[0]",
          "mma_s8(a[1], a[0], a[2], a[3], b, b_2, start[0]", MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "b_at + 8 * k * across * PITCH", "b_at + 8 * k * PITCH", MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "mma_s8_half(a[2], a[3], b_2, NONE", "mma_s8_half(a[2], a[3], b, NONE",
          PRODUCTS + " not_full and Q3_K"),
    Fault("products/matmat", "s[2], s[3])\n    _add_scaled(totals, at, mma_s8_half(a[2]",
          "s_2[2], s[3])\n    _add_scaled(totals, at, mma_s8_half(a[2]", MATMAT + " of_every_size and Q3_K"),
    Fault("products/matmat", "BIAS = F32(3 << 22)", "BIAS = F32(1 << 23)", MATMAT + " largest and Q8_0"),
    Fault("products/matmat", "_biased(e)", "_biased(d)", MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "a_at + 8 + 16 * PITCH", "a_at + 16 * PITCH", MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "cuda.fma(minimum, -low, value)", "cuda.fma(minimum, low, value)",
          MATMAT + " of_every_size and Q2_K"),
    Fault("products/matmat", "start, start, start, start\n\n    @cuda.jit(device=True)\n    def add(",
          "start, start, start, NONE\n\n    @cuda.jit(device=True)\n    def add(", MATMAT + " of_every_size and Q2_K"),
    Fault("products/matmat", "            if k * across < last:\n                x, y",
          "            if True:\n                x, y", MATMAT + " of_every_size and Q8_0"),
    Fault("products/matmat", "divide(pairs_of[i if i < size else I32(size - 1)], share)", "divide(pairs_of[i], share)",
          MATMAT + " of_every_size and Q8_0"),
    Fault("products/matmat", "                if row + 32 * k < rows:\n", "                if row + 32 * k <= rows:\n",
          MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "            turn = I32(1 - turn)\n", "            turn = I32(turn)\n",
          MATMAT + " rows_than and Q8_0"),
    Fault("products/matmat", "            copy_wait0()\n", "", MATMAT + " rows_than and Q8_0"),
    Fault("products/staging", "if not alone or number < units:", "if True:", MATMAT + " rows_than and Q8_0"),
    Fault("products/staging", "(row & ~31) + 4 * (row & 7) + ((row >> 3) & 3)",
          "(row & ~31) + 4 * (row & 7) + ((row >> 4) & 1)", MATMAT + " rows_than and Q8_0"),
    Fault("products/staging", "EXPONENT_10, 0x4140), MINUS_1024", "EXPONENT_10, 0x4040), MINUS_1024",
          MATMAT + " of_every_size and Q2_K"),
    Fault("products/staging", "skew = 16 - math.gcd(unit.block_bytes, 16)", "skew = 0",
          MATMAT + " rows_than and Q8_0"),
    Fault("products/staging", "vector * (units >> 3) + (base >> 3)", "vector * (units >> 3)",
          MATMAT + " of_every_size and Q2_K"),
    Fault("products/plain", "                    while i < n:\n", "                    while i < n - (n & 1):\n",
          PRODUCTS + " plain_weights and F16 and 13"),
    Fault("products/widening", ".view(np.uint32) >> 16", ".view(np.uint32) >> 15", PRODUCTS + " widened"),
    Fault("products/widening", "_target(w.fmt)[1].itemsize * (w.nbytes", "(w.nbytes",
          PRODUCTS + " widened"),
    Fault("products/widening", "weights = decode(rows[at : at + step])",
          "weights = decode(rows[:step])", PRODUCTS + " widened"),
    Fault("rows/ranking", "x if x > FLOOR else FLOOR", "x", "top"),
    Fault("rows/ranking", "<< 32) + (LOW - at)", "<< 32) + at", "top"),
    Fault("rows/ranking", "(at & size) == 0)\n            cuda.syncthreads()", "(at & size) == 0)\n            pass",
          "top"),
    Fault("rows/ranking", "(at & size) == 0)", "True)", "top"),
    Fault("rows/ranking", "(run & 1) == 0)", "True)", "top"),
    Fault("rows/ranking", "                keys[at] = other\n        cuda.syncthreads()\n",
          "                keys[at] = other\n        pass\n", "top"),
    Fault("rows/ranking", "at = i // width * 2 * gap + i % width", "at = i // width * gap + i % width", "top"),
    Fault("rows/ranking", "if first + i < n else EMPTY", "if first + i <= n else EMPTY", "top"),
    Fault("rows/ranking", "if first + i < count else EMPTY", "if first + i < count else 0", "top"),
    Fault("rows/ranking", "candidates[row * count + i] if i < count else EMPTY", "candidates[row * count + i]", "top"),
    Fault("rows/ranking", "values[row * k + i] = x[row * n + at]", "values[row * k + i] = x[at]", "top"),
    Fault("rows/ranking", "return 1 << (k - 1).bit_length()", "return 1 << k.bit_length() - 1", "top"),
    Fault("ops/ranking", "while tiles * k > tile:", "while tiles > tile:", "top"),
    Fault("graph/recording", "            self._there.clear()\n", "", RECORDING + " kept"),
    Fault("graph/recording", "driver.to_host(mirror, block, at)", "driver.to_host(mirror, block, 0)",
          RECORDING + " kept"),
    Fault("graph/recording", "if start >= end:", "if start > end:", RECORDING + " kept"),
    Fault("rows/stages", "a, b = src[at], src[at + gap]", "a, b = src[at], src[at + 1]", "rope"),
    Fault("rows/hyper", "post[token * C + i] = TWO * gate(", "post[token * C + i] = gate(", "hc_split"),
    Fault("rows/hyper", "total += F32(w[token * C + c] * X[(token * C + c) * D + i])",
          "total += F32(w[token * C] * X[(token * C + c) * D + i])", "hc_reduce"),
    Fault("products/plain", "i += 4 * split * span", "i += 3 * split * span", "linear"),
    Fault("products/packing", "peak = _larger(peak, shuffle_xor(peak, 2))", "peak = peak", "linear"),
    Fault("products/units", "np.int32(shift_right(minima, 4) & 0x0F0F)",
          "np.int32(shift_right(minima, 4) & 0x0F07)", "linear"),
    Fault("products/decoding", "behind = I32(skew << 1) if even", "behind = I32(0) if even",
          PRODUCTS + " rows_of_a_table"),
    Fault("products/decoding", "repeated(128 - zero)", "repeated(127 - zero)", PRODUCTS + " rows_of_a_table"),
    Fault("products/decoding", "upper = I32(shift_right(code & bit3, 3) * all_bits)", "upper = I32(0)",
          PRODUCTS + " rows_of_a_table"),
    Fault("products/matvec", "I32(place & 3)", "I32(place & 2)", PRODUCTS + " only_their_declaration"),
    Fault("rows/quantize", "F32(codes[i]) * scales[i // block]", "F32(codes[i]) * scales[0]",
          PRODUCTS + " before_the_float_product"),
    Fault("products/dots", "I32(shift_left(t, 2) & NO_CARRY)", "I32(shift_left(t, 2))", "linear"),
    Fault("products/dots", "bits, more, place = I32(63 - 48 * late), I32(48 * late), j & 3",
          "bits, more, place = I32(63 - 48 * late), I32(16 * late), j & 3", "linear"),
    Fault("products/dots", "I32(shift_right(signs, 27) | 1)", "I32(shift_right(signs, 27))", "linear"),
    Fault("products/fetching", "I32(min(r, last) * matrices.row_bytes)", "I32(r * matrices.row_bytes)",
          "linear"),
    Fault("products/matvec", "            sync_warp()  # all lanes have read the last chunk\n", "", "linear"),
    Fault("products/limbs", "peak = peaks[i] if peaks[i] > peak else peak", "peak = peaks[0]", "grouped_linear"),
    Fault("rows/halves", "k = I32(TOP - ", "k = I32(TOP + 3 - ", "grouped_linear"),
    Fault("rows/halves", "float_to_half(F32(b - half_to_float(q)))", "float_to_half(F32(b - half_to_float(p)))",
          "grouped_linear"),
    Fault("products/limbs", "r, s = _rest(p), _rest(q)", "r, s = _rest(p), _rest(p)", "grouped_linear"),
    Fault("products/matmat_float", "parts[8 * k + 7] += q3\n            cuda.syncthreads()\n",
          "parts[8 * k + 7] += q3\n            pass\n", "grouped_linear"),
    Fault("products/matmat_float", "            copy_wait0()\n", "", "grouped_linear"),
    Fault("products/filling", "EXPONENT_10, 0x4342", "EXPONENT_10, 0x4341", "grouped_linear"),
    Fault("products/matmat_float", "(1, 1), (0, 1)", "(0, 1), (0, 1)", "grouped_linear"),
    Fault("products/matmat_float", "low_b * F32(shift_right(mb, 8))", "low_b * F32(mb & 255)", "grouped_linear"),
    Fault("products/matmat_float", "seconds[at + 16] = gb", "seconds[at + 16] = ga", "grouped_linear"),
    Fault("products/matmat_float", "if 8 * k < size:", "if 8 * k + 7 < size:", "grouped_linear"),
    Fault("products/matmat_float", "vectors_of[i] = divide(pairs_of[i], share)", "vectors_of[i] = pairs_of[i]",
          "expert_linear"),
    Fault("products/fetching", "start = base + (I64(matrix_id) * height + row) * matrices.row_bytes",
          "start = base + I32((matrix_id * height + row) * matrices.row_bytes)", OFFSETS + " Q2_K and False"),
    Fault("products/matmat", "matrix_start = I64(matrix_id) * rows * row_bytes",
          "matrix_start = I64(I32(matrix_id * rows * row_bytes))", OFFSETS + " Q2_K and True"),
    Fault("products/matmat_float", "matrix_start = I64(matrix_id) * rows * row_bytes",
          "matrix_start = I64(I32(matrix_id * rows * row_bytes))", OFFSETS + " Q8_0 and True"),
    Fault("products/plain", "start = base + (np.int64(matrix_id) * height + row) * (n * size)",
          "start = base + I32((matrix_id * height + row) * (n * size))", OFFSETS + " F16 and False"),
    Fault("products/embedding", "one(raw, (np.int64(row) * n + (i - token * n)) * size)",
          "one(raw, np.int32((row * n + (i - token * n)) * size))", OFFSETS + " table"),
    Fault("products/tiling", "begin = I32(tile * most)", "begin = I32(0)", "grouped_linear"),
    Fault("products/dispatch", "tiles, pairs // share, share", "tiles, pairs, share", "expert_linear"),
    Fault("graph/sharing", "return tokens < dispatch.MANY_TOKENS and groups == 1", "return groups == 1",
          SHARING + " many"),
    Fault("driver/experts", "out[i] = x[rows[i // n] * n + i % n]", "out[i] = x[rows[0] * n + i % n]",
          EXPERTS + " products"),
    Fault("driver/experts", "parts[(i // n * slots + k) * n + i % n]", "parts[(i // n * slots) * n + i % n]",
          EXPERTS + " products"),
    Fault("driver/experts", "if self._flying and self.driver.copies_done():", "if self._flying:",
          EXPERTS + " nobodys"),
    Fault("driver/experts", "if everything or not np.array_equal(now, self._shown):", "if everything:",
          EXPERTS + " all_times"),
    Fault("driver/experts", "[move for move in self.residency.coming if move not in self._flying]",
          "self.residency.coming", EXPERTS + " nobodys"),
    Fault("driver/experts", "self.residency.used(fresh - self._before)", "self.residency.used(fresh)",
          EXPERTS + " pays_nothing"),
    Fault("driver/experts", "at = stack.buffer.start + move.slot * size", "at = stack.buffer.start",
          EXPERTS + " all_times"),
    Fault("driver/experts", "if len(wanted) > self.residency.slots:", "if len(wanted) > 99:", EXPERTS + " products"),
    Fault("driver/experts", "self.driver.hold_copies()  # the next", "pass  # the next", EXPERTS + " two_pieces"),
    Fault("driver/experts", "self._stages[turn % 2].buffer", "self._stages[0].buffer", EXPERTS + " two_pieces"),
    Fault("driver/experts", "self._begin(move)\n        self.driver.await_copies()\n", "self._begin(move)\n",
          EXPERTS + " waited_for"),
    Fault("driver/experts", "self.residency.arrived(moves)\n        self._show()\n",
          "self.residency.arrived(moves)\n", EXPERTS + " one_by_one"),
    Fault("driver/experts", "if room is not None and sum", "if room is None and sum", EXPERTS + " records"),
    Fault("driver/experts", "self._driver.unregister(self._starts.pop())", "self._starts.pop()",
          EXPERTS + " given_back"),
    Fault("driver/residency", "self.hot[rows][full] >>= 1", "self.hot[rows][full] >>= 0", RESIDENCY),
    Fault("driver/residency", "self._since[rows] == SHIFT", "self._since[rows] > SHIFT", RESIDENCY),
    Fault("driver/residency", "self._since[rows][full] = 0", "pass", RESIDENCY),
    Fault("driver/residency", "if gain[n] >= MARGIN", "if gain[n] > MARGIN", RESIDENCY),
    Fault("driver/residency", "heat[move.layer, move.slot] = BUSY", "pass", RESIDENCY),
    Fault("driver/residency", "= BUSY  # wanted now", "+= 0  # wanted now", RESIDENCY),
    Fault("driver/residency", "            self.slot_of[layer, old] = NOBODY\n", "            pass\n", RESIDENCY),
    Fault("driver/residency", "wanted[expert] - heat[slot] < MARGIN", "wanted[expert] < MARGIN", RESIDENCY),
    Fault("driver/hostpages", "-(-(start + size) // page) * page", "(start + size) // page * page", PAGES),
    Fault("driver/hostpages", "low <= ranges[-1][1]", "low < ranges[-1][1]", PAGES),
    Fault("driver/hostpages", "max(ranges[-1][1], high)", "high", PAGES),
    Fault("driver/hostpages", "waiting.clear()  # after Ctrl-C", "pass  # after Ctrl-C", PAGES),
    Fault("driver/hostpages", "if ctypes.get_errno() in FAILED:", "if False:", PAGES),
    Fault("driver/gpu", "max(free.value, available() or 0)", "available() or 0", STUB + " shared"),
    Fault("driver/gpu", "min(total.value, max(free", "max(total.value * 0, max(free", STUB + " shared"),
    Fault("driver/gpu", '        self._call("cuStreamWaitEvent", side, self._before, ctypes.c_uint(0))\n', "",
          STUB + " moves"),
    Fault("products/locating", "        place = number\n", "", EXPERTS + " recorded_token"),
    Fault("products/locating", "apart(matrices.raw2, routing.elsewhere.far2)",
          "apart(matrices.raw2, routing.elsewhere.far)", EXPERTS + " recorded_token"),
    Fault("products/dispatch", "Elsewhere(first.held, first.far, last.far)",
          "Elsewhere(first.held, first.far, first.far)", EXPERTS + " recorded_token"),
    Fault("graph/sharing", "_slots(a) != _slots(b)", "False", EXPERTS + " different_layers"),
    Fault("graph/recording", "                owner.experts.before_token()\n", "                pass\n",
          EXPERTS + " wanted_more"),
    Fault("ops/products", "(_many(ids, w.experts) or not", "(not", EXPERTS + " decides"),
    Fault("rows/halving", "lossy[0] = I32(1)", "lossy[0] = I32(0)", MANY + " no_halves"),
    Fault("rows/halving", "or half_to_float(q) != b", "", MANY + " no_halves"),
    Fault("rows/attending", "if left and lossy[0] == 0:\n            return\n", "if left:\n            return\n",
          MANY + " no_halves"),
    Fault("rows/attending_many", "return I32(-2 - (position - window))", "return I32(-3 - (position - window))",
          MANY + " attention_of_many"),
    Fault("rows/attending_many", "if pick >= comp_rows:", "if pick > comp_rows:", MANY + " out_of_range"),
    Fault("rows/attending_many", "window > raw_rows or compressed", "compressed", MANY + " out_of_range"),
    Fault("rows/attending_many", "I32(at + 2 * TILE + t), end", "I32(at + TILE + t), end", MANY + " attention_of_many"),
    Fault("rows/attending_many", "            copy_wait0()\n", "", MANY + " attention_of_many"),
    Fault("rows/attending_many", "            copy_wait0()\n            cuda.syncthreads()\n",
          "            copy_wait0()\n", MANY + " attention_of_many"),
    Fault("rows/attending_many", "!= -1 else MINUS", "!= -2 else MINUS", MANY + " attention_of_many"),
    Fault("rows/attending_many", "F32(total * factor) + weight", "total + weight", MANY + " attention_of_many"),
    Fault("rows/attending_many", "F32(out_sums[o + 2] * f1)", "F32(out_sums[o + 2] * f0)", MANY + " attention_of_many"),
    Fault("rows/attending_many", "+ exp32(F32(sink - last))", "", MANY + " sink"),
    Fault("rows/attending_many", "            if h0 + head < heads:\n                factor",
          "            if True:\n                factor", MANY + " attention_of_many"),
    Fault("rows/indexing_many", "            if row < limit:\n", "            if True:\n", MANY + " scores"),
    Fault("rows/indexing_many", "e[0]) * w0 + relu(e[1]) * w1", "e[0]) * w0 + relu(e[1]) * w0", MANY + " scores"),
    Fault("rows/indexing_many", "s0 = s2 if c == 2 else s0", "s0 = s1 if c == 2 else s0", MANY + " scores"),
    Fault("rows/indexing_many", "I32(1 - flip), t)", "I32(flip), t)", MANY + " scores"),
    Fault("rows/hyper", "x[4 * j + 3] = bits_to_float(z[2])", "x[4 * j + 3] = bits_to_float(z[3])", MANY + " fours"),
    Fault("rows/hyper", "y2, y3 = F32(y2 + bits_to_float(y[2]))", "y2, y3 = F32(y2)", MANY + " fours"),
    Fault("rows/hyper", "c += F32(weight * bits_to_float(x[2]))", "c += F32(weight * bits_to_float(x[1]))",
          MANY + " fours"),
    Fault("products/mixing", "min(I32(first + r + 8), I32(tokens - 1))", "I32(first + r + 8)", MANY + " mixing"),
    Fault("products/mixing", "total[4 * e + 2] += F32(d[2] * down1)", "total[4 * e + 2] += F32(d[2] * down0)",
          MANY + " mixing"),
    Fault("products/mixing", "square1 += F64(s + v) * (F64(down1) * F64(down1))",
          "square1 += F64(s + v) * F64(down1)", MANY + " mixing"),
    Fault("products/mixing", "        cuda.syncthreads()\n        number = t", "        number = t", MANY + " mixing"),
    Fault("products/matmat_half", "        copy_wait1()\n", "", MANY + " f16_matrices"),
    Fault("products/matmat_half", "        cuda.syncthreads()\n        later", "        later", MANY + " f16_matrices"),
    Fault("products/matmat_half", "vector + half + column", "vector + column", MANY + " f16_matrices"),
    Fault("products/matmat_half", "I32(first + row + 32), I32(tokens - 1)", "I32(first + row), I32(tokens - 1)",
          MANY + " f16_matrices"),
    Fault("products/matmat_half", "if row < rows:", "if True:",
          MANY + " f16_matrices"),
    Fault("products/matmat_half", "peak = max(peak, peaks[U64(k)])", "peak = peaks[0]", MANY + " f16_matrices"),
    Fault("rows/short_rows", "if bits & MANTISSA > EXACT:", "if bits & MANTISSA > I32(0):", MANY + " short_rows"),
    Fault("rows/short_rows", "F32(other - v[i]) if upper else", "F32(v[i] - other) if upper else", MANY + " hadamard"),
    Fault("rows/short_rows", "    if row >= rows:\n            return\n", "    pass\n", MANY + " round_f16"),
    Fault("rows/short_rows", "each * cuda.threadIdx.x < limit", "True", MANY + " round_e4m3"),
    Fault("rows/short_rows", "at = divide(row, heads) * half", "at = row * half", MANY + " rope"),
    Fault("rows/short_rows", "    for i in range(BLOCK_WARPS):\n", "    for i in range(BLOCK_WARPS - 1):\n",
          MANY + " long_rows"),
]  # fmt: skip


def noticed(tree: Path, fault: Fault) -> str:
    """What the test says of the tree with ``fault``; "" if nothing. LookupError if the fault has no place."""
    path = tree / "kernels" / "cuda" / f"{fault.file}.py"
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
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-m", "not slow"]
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
    for name in [name for name in sys.modules if name.startswith("ds4ref.kernels.cuda")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        from . import test_lowered_ops as tests
        from .hosted import hosted

        with hosted() as driver:
            backend: Any = importlib.import_module("ds4ref.kernels.cuda.backend")
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
            shutil.copytree(ROOT / room, tree / room, ignore=skipped, symlinks=True)
        shutil.copy(ROOT / "pyproject.toml", tree)
        sys.dont_write_bytecode = True
        from ds4ref import kernels

        kernels.__path__ = [str(tree / "kernels"), *kernels.__path__]
        for fault in wanted:
            if ".py" in fault.by and fault.by not in sound:
                said = _by_tests(tree, fault.by)
                if said:
                    raise RuntimeError(f"without any fault: {said}")
                sound.add(fault.by)
            start = time.monotonic()
            with contextlib.suppress(KeyError):
                del sys.modules["ds4ref.kernels.cuda"]
            said = noticed(tree, fault)
            lived += not said
            line = f"{fault.file}.py: {fault.old.strip()!r} -> {fault.new.strip()!r}"
            print("caught  " if said else "LIVED   ", f"{time.monotonic() - start:5.1f} s", line, flush=True)
            print("         ", said, flush=True)
    print(f"{len(wanted) - lived} of {len(wanted)} noticed")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
