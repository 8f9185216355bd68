"""The threads of a block as fibers: switching, the scheduler, and what the lanes of a warp compute together.

A fiber runs until it must meet others (barrier, shuffle, matrix instruction): it writes what it brings into its record
and switches to the scheduler, which runs the others, and completes a meeting when all who must come are there. All
state is one array of int64 at a fixed address, which the translated code knows; the layout is below.

x86-64 only: the switch is seven machine instructions of that processor.
"""

from __future__ import annotations

import ctypes
from functools import cache

import llvmlite.binding as ll
import numpy as np
from numba import njit

STACK = 1 << 16  # bytes a fiber
MAX_THREADS = 1024
WARP = 32

# --- header: one number each
(SCHEDULER, FIBER, RECORD_AT, SHARED, SHARED_SIZE, PARAMS, SEQUENCE, RANGES_USED, SELF, ERROR, E_FIBER, E_ADDRESS,
 E_WHAT, E_LINE, LAST_RANGE, BLOCK, DYNAMIC, INTERLEAVED, CUTTING) = range(19)  # fmt: skip
SPECIAL = 20  # tid 3, ntid 3, ctaid 3, nctaid 3, lane, warp, warps, clock
RANGES = 64
MAX_RANGES = 4096  # from, to, whether it may be written, to where it may be read
RECORDS = RANGES + 4 * MAX_RANGES

# --- a fiber's record
(SP, STATUS, KIND, MASK, LINE, STACK_LOW, ASYNC_USED, ASYNC_GROUP) = range(8)
ARGS, OUT, TID, SEEN = 8, 24, 40, 44  # SEEN: when it last passed barrier 0 to 15 and (at 16) a barrier of its warp
RECORD = 64
ASYNC = RECORDS + RECORD * MAX_THREADS  # copies under way: destination, source, bytes, group
MAX_ASYNC = 64
SHADOW = ASYNC + 4 * MAX_ASYNC * MAX_THREADS  # a shared byte: writer + 1, when, reader + 1 (-1: several), when
MAX_SHARED = 233472  # 228 KB, the most an H100 has
SIZE = SHADOW + 4 * MAX_SHARED

READY, DONE, AT_WARP, AT_BARRIER, FAULTED = range(5)

# --- kinds of meetings of a warp; shuffles take (value, b, c), others as said in ``_meet``
(SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX, BALLOT, ANY, ALL, UNI, MATCH_ANY, MATCH_ALL, SYNC, REDUX, MMA, LDMATRIX,
 LDMATRIX_T, ACTIVE) = range(16)  # fmt: skip
# --- kinds at a barrier
BARRIER, BARRIER_POPC, BARRIER_AND, BARRIER_OR = range(4)
ORDERS = ("forward", "backward", "interleaved")
"""In which threads run: the first one first, the last one first, or each up to a store into global memory, before which
all others come to theirs: what two threads read, change and write is then lost for one of them."""

# --- errors
(OK, OUTSIDE, MISALIGNED, READ_ONLY, UNINITIALISED, RACE, OVERFLOW, STUCK, TRAP, TOO_MANY_COPIES) = range(10)

_SWITCH = """
define void @switch(i64 %save, i64 %load) naked noinline {
  call void asm sideeffect "pushq %rbp\\0Apushq %rbx\\0Apushq %r12\\0Apushq %r13\\0Apushq %r14\\0Apushq %r15\\0Amovq %rsp, (%rdi)\\0Amovq (%rsi), %rsp\\0Apopq %r15\\0Apopq %r14\\0Apopq %r13\\0Apopq %r12\\0Apopq %rbx\\0Apopq %rbp\\0Aretq", ""()
  unreachable
}
"""  # noqa: E501


@cache
def machine() -> ll.TargetMachine:
    """This processor, with every feature it has: half precision and fused multiply-add need theirs."""
    ll.initialize_native_target()
    ll.initialize_native_asmprinter()
    ll.initialize_native_asmparser()  # for the inline assembly of the switch
    features = ll.get_host_cpu_features().flatten()
    return ll.Target.from_triple(ll.get_process_triple()).create_target_machine(
        cpu=ll.get_host_cpu_name(), features=features, opt=2
    )


_KEPT = []  # engines own the code


def compiled(text: str, name: str) -> int:
    """The address of function ``name`` of an LLVM module."""
    module = ll.parse_assembly(text)
    module.triple, module.data_layout = ll.get_process_triple(), str(machine().target_data)
    module.verify()
    options = ll.create_pipeline_tuning_options(speed_level=2)
    ll.create_pass_builder(machine(), options).getModulePassManager().run(
        module, ll.create_pass_builder(machine(), options)
    )
    engine = ll.create_mcjit_compiler(module, machine())
    engine.finalize_object()
    _KEPT.append(engine)
    return engine.get_function_address(name)


SWITCH = compiled(_SWITCH, "switch")
switch = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(SWITCH)

_MEMORY = """
define i64 @peek(i64 %at) {
  %p = inttoptr i64 %at to ptr
  %v = load i8, ptr %p
  %w = zext i8 %v to i64
  ret i64 %w
}
define void @poke(i64 %at, i64 %value) {
  %p = inttoptr i64 %at to ptr
  %v = trunc i64 %value to i8
  store i8 %v, ptr %p
  ret void
}
"""
peek = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(compiled(_MEMORY, "peek"))
poke = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(compiled(_MEMORY, "poke"))

STATE = np.zeros(SIZE, np.int64)
STATE[SELF] = STATE.ctypes.data
# Bytes past the end of what a block asked for belong to nobody, and an access there is found by its address.
SHARED_BYTES = np.zeros(MAX_SHARED, np.uint8)
STATE[SHARED] = SHARED_BYTES.ctypes.data
_STACKS = np.empty(STACK * MAX_THREADS + 16, np.uint8)


@njit
def _signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@njit
def _element(word, at, kind):
    """Element ``at`` of a 32-bit register of kind 0 s8, 1 u8, 2 bf16, 3 f16, 4 tf32, as float64."""
    if kind == 0:
        return float(_signed(word >> (8 * at), 8))
    if kind == 1:
        return float((word >> (8 * at)) & 255)
    if kind == 3:
        half = (word >> (16 * at)) & 0xFFFF
        exponent, fraction = (half >> 10) & 31, half & 1023
        if exponent == 31:
            value = np.inf if fraction == 0 else np.nan
        elif exponent:
            value = (1024 + fraction) * 2.0 ** (exponent - 25)
        else:
            value = fraction * 2.0**-24
        return -value if half >> 15 else value
    bits = (word >> (16 * at)) & 0xFFFF if kind == 2 else word & 0xFFFFE000  # tf32: the low 13 bits are ignored
    return float(np.int32(_signed(bits << 16 if kind == 2 else bits, 32)).view(np.float32))


@njit
def _mma(s, first, kind_a, kind_b, chunks):
    """D = A B + C of 16 x 8 tiles over the lanes from record ``first``; args: A in 2 chunks registers (row half, then
    chunk), B in ``chunks``, C in 4. Integer kinds add exactly, float ones in float64, rounded once to float32, or with
    CUTTING set as ``_cut_sum``."""
    per = 4 if kind_a < 2 else 2 if kind_a < 4 else 1
    k = 4 * per * chunks
    a, b = np.zeros((16, k)), np.zeros((k, 8))
    for lane in range(WARP):
        record = first + lane * RECORD
        group, within = lane >> 2, lane & 3
        for chunk in range(chunks):
            for at in range(per):
                column = chunk * 4 * per + within * per + at
                for half in range(2):
                    a[group + 8 * half, column] = _element(s[record + ARGS + 2 * chunk + half], at, kind_a)
                b[column, group] = _element(s[record + ARGS + 2 * chunks + chunk], at, kind_b)
    for lane in range(WARP):
        record = first + lane * RECORD
        for i in range(4):
            row, column = (lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)
            terms = a[row] * b[:, column]
            c = s[record + ARGS + 3 * chunks + i]
            if kind_a < 2:
                s[record + OUT + i] = (np.int64(terms.sum()) + _signed(c, 32)) & 0xFFFFFFFF
                continue
            terms = np.append(terms, float(np.int32(_signed(c, 32)).view(np.float32)))
            total = _cut_sum(terms) if s[CUTTING] else terms.sum()
            s[record + OUT + i] = np.int64(np.float32(total).view(np.int32)) & 0xFFFFFFFF


@njit
def _cut_sum(terms):
    """The float32 sum of a tensor core that cuts: terms lose what lies 2^-24 below the largest, and so does the sum."""
    quantum = 2.0 ** (np.floor(np.log2(max(np.abs(terms).max(), 1e-300))) - 24)
    total = (np.trunc(terms / quantum) * quantum).sum()
    nearest = np.float32(total)
    return float(np.nextafter(nearest, np.float32(0)) if abs(nearest) > abs(total) else nearest)


@njit
def _shuffle(s, first, mask, kind):
    for lane in range(WARP):
        if not (mask >> lane) & 1:
            continue
        record = first + lane * RECORD
        b, c = s[record + ARGS + 1] & 31, s[record + ARGS + 2]
        clamp, segment = c & 31, (c >> 8) & 31
        low, high = lane & segment, (lane & segment) | (clamp & ~segment)
        if kind == SHFL_UP:
            source = lane - b
            inside = source >= high
        elif kind == SHFL_DOWN:
            source = lane + b
            inside = source <= high
        elif kind == SHFL_BFLY:
            source = lane ^ b
            inside = source <= high
        else:
            source = low | (b & ~segment)
            inside = source <= high
        source = source if inside else lane
        # A lane that is not there has no value: NaN, and -1 as an integer
        present = (mask >> source) & 1
        s[record + OUT] = s[first + source * RECORD + ARGS] if present else 0xFFFFFFFF
        s[record + OUT + 1] = inside


@njit
def _reduce(what, a, b):
    """redux.sync: 0 add, 1 and, 2 or, 3 xor, 4 min u32, 5 max u32, 6 min s32, 7 max s32."""
    if what == 0:
        return (a + b) & 0xFFFFFFFF
    if what == 1:
        return a & b
    if what == 2:
        return a | b
    if what == 3:
        return a ^ b
    if what == 4:
        return min(a, b)
    if what == 5:
        return max(a, b)
    lower = _signed(a, 32) < _signed(b, 32)
    return a if lower == (what == 6) else b


@njit
def _matrices(s, first, count, transposed):
    """ldmatrix: lane i brings the address of row i % 8 of matrix i // 8, eight 16-bit values that were checked."""
    base = s[SHARED]
    for lane in range(WARP):
        for m in range(count):
            word = 0
            for at in range(2):
                row, column = lane >> 2, 2 * (lane & 3) + at
                if transposed:
                    row, column = column, row
                address = base + s[first + (8 * m + row) * RECORD + ARGS] + 2 * column
                word |= (peek(address) | peek(address + 1) << 8) << (16 * at)
            s[first + lane * RECORD + OUT + m] = word


@njit
def _meet(s, first, mask, kind):
    """Everyone of ``mask`` is there: their results."""
    if kind <= SHFL_IDX:
        return _shuffle(s, first, mask, kind)
    lead = 0
    while not (mask >> lead) & 1:
        lead += 1
    leader = first + lead * RECORD
    if kind == MMA:
        packed = s[leader + ARGS + 15]
        return _mma(s, first, packed & 15, (packed >> 4) & 15, packed >> 8)
    if kind == LDMATRIX or kind == LDMATRIX_T:
        return _matrices(s, first, s[leader + ARGS + 1], kind == LDMATRIX_T)
    ballot, same, total = 0, True, s[leader + ARGS]
    for lane in range(WARP):
        if (mask >> lane) & 1:
            value = s[first + lane * RECORD + ARGS]
            ballot |= (value & 1) << lane
            same = same and value == s[leader + ARGS]
            if lane != lead and kind == REDUX:
                total = _reduce(s[leader + ARGS + 1], total, value)
    for lane in range(WARP):
        if not (mask >> lane) & 1:
            continue
        record = first + lane * RECORD
        out, second = 0, 0
        if kind == BALLOT:
            out = ballot
        elif kind == ANY:
            out = ballot != 0
        elif kind == ALL:
            out = ballot == mask
        elif kind == UNI:
            out = ballot == mask or ballot == 0
        elif kind == MATCH_ANY:
            for other in range(WARP):
                if (mask >> other) & 1 and s[first + other * RECORD + ARGS] == s[record + ARGS]:
                    out |= 1 << other
        elif kind == MATCH_ALL:
            out, second = (mask if same else 0), same
        elif kind == REDUX:
            out = total
        elif kind == ACTIVE:
            out = mask
        s[record + OUT] = out
        s[record + OUT + 1] = second


@njit
def _warp(s, warp, threads):
    """Complete what the lanes of a warp wait for, if all are there; how many may go on."""
    first, released = RECORDS + warp * WARP * RECORD, 0
    lanes = min(WARP, threads - warp * WARP)
    for lead in range(lanes):
        record = first + lead * RECORD
        if s[record + STATUS] != AT_WARP:
            continue
        kind, asked, mask, complete = s[record + KIND], s[record + MASK] & 0xFFFFFFFF, 0, True
        if not (asked >> lead) & 1:
            continue  # not in its own mask: never released
        for lane in range(lanes):
            other = first + lane * RECORD
            if not (asked >> lane) & 1 or s[other + STATUS] == DONE:
                continue
            mask |= 1 << lane
            complete = (
                complete
                and s[other + STATUS] == AT_WARP
                and s[other + KIND] == kind
                and s[other + MASK] & 0xFFFFFFFF == asked
            )
        if kind in (MMA, LDMATRIX, LDMATRIX_T) and mask != 0xFFFFFFFF:
            complete = False
        if not complete:
            continue
        _meet(s, first, mask, kind)
        if kind == SYNC:
            s[SEQUENCE] += 1
        for lane in range(lanes):
            if (mask >> lane) & 1:
                other = first + lane * RECORD
                s[other + STATUS] = READY
                if kind == SYNC:
                    s[other + SEEN + 16] = s[SEQUENCE]
                released += 1
    return released


@njit
def _barriers(s, threads):
    """The same for barriers of the block. A barrier without a count is for all that have not ended."""
    released = 0
    for barrier in range(16):
        waiting, expected, alive, ones, kind = 0, 0, 0, 0, -1
        for fiber in range(threads):
            record = RECORDS + fiber * RECORD
            alive += s[record + STATUS] != DONE
            if s[record + STATUS] == AT_BARRIER and s[record + MASK] == barrier:
                waiting += 1
                expected = s[record + ARGS]
                ones += s[record + ARGS + 1] & 1
                kind = s[record + KIND] if kind in (-1, s[record + KIND]) else -2
        if not waiting or waiting != (expected or alive) or kind < 0:
            continue
        s[SEQUENCE] += 1
        for fiber in range(threads):
            record = RECORDS + fiber * RECORD
            if s[record + STATUS] == AT_BARRIER and s[record + MASK] == barrier:
                s[record + STATUS] = READY
                s[record + SEEN + barrier] = s[SEQUENCE]
                every = ones == waiting
                s[record + OUT] = ones if kind == BARRIER_POPC else every if kind == BARRIER_AND else ones > 0
                released += 1
    return released


@njit
def _run(s, threads, backward):
    """One block until all have ended (OK) or an error, whose place is in the header."""
    while True:
        for at in range(threads):
            fiber = threads - 1 - at if backward else at
            record = RECORDS + fiber * RECORD
            if s[record + STATUS] != READY:
                continue
            s[FIBER], s[RECORD_AT] = fiber, s[SELF] + 8 * record
            for axis in range(3):
                s[SPECIAL + axis] = s[record + TID + axis]
            s[SPECIAL + 12], s[SPECIAL + 13] = fiber % WARP, fiber // WARP
            switch(s[SELF] + 8 * SCHEDULER, s[SELF] + 8 * (record + SP))
            if s[ERROR]:
                return s[ERROR]
        ended, ready = 0, 0
        for fiber in range(threads):
            ended += s[RECORDS + fiber * RECORD + STATUS] == DONE
            ready += s[RECORDS + fiber * RECORD + STATUS] == READY  # let others go first before a store
        if ended == threads:
            return OK
        released = 0
        for warp in range((threads + WARP - 1) // WARP):
            released += _warp(s, warp, threads)
        if not released and not _barriers(s, threads) and not ready:
            s[ERROR] = STUCK
            return STUCK


@njit
def _grid(s, stacks, shared, start, grid, block, backward, apart):
    """Every ``apart``-th block, from the middle of the first ones on, one after the other; the header's error."""
    threads = block[0] * block[1] * block[2]
    blocks = grid[0] * grid[1] * grid[2]
    for axis in range(3):
        s[SPECIAL + 3 + axis], s[SPECIAL + 9 + axis] = block[axis], grid[axis]
    s[SPECIAL + 14], s[ERROR], s[LAST_RANGE] = (threads + WARP - 1) // WARP, OK, 0
    for turn in range(apart // 2, blocks, apart):
        number = blocks - 1 - turn if backward else turn
        s[BLOCK] = number
        s[SPECIAL + 6] = number % grid[0]
        s[SPECIAL + 7] = number // grid[0] % grid[1]
        s[SPECIAL + 8] = number // (grid[0] * grid[1])
        shared[: s[SHARED_SIZE]] = 0xFF
        s[SHADOW : SHADOW + 4 * s[SHARED_SIZE]] = 0
        s[SEQUENCE] = 0
        for fiber in range(threads):
            record = RECORDS + fiber * RECORD
            s[record : record + RECORD] = 0
            s[record + TID] = fiber % block[0]
            s[record + TID + 1] = fiber // block[0] % block[1]
            s[record + TID + 2] = fiber // (block[0] * block[1])
            low = fiber * (STACK // 8)
            s[record + STACK_LOW] = s[DYNAMIC] + 8 * low
            stacks[low] = 0x5AFE
            top = low + STACK // 8 - 10
            stacks[top : top + 6] = 0
            stacks[top + 6] = start  # where the first switch returns to, with the stack as after a call
            s[record + SP] = s[DYNAMIC] + 8 * top
        result = _run(s, threads, backward)
        if result != OK:
            return result
        for fiber in range(threads):
            if stacks[fiber * (STACK // 8)] != 0x5AFE:
                s[E_FIBER] = fiber
                return OVERFLOW
    return OK


def run_grid(start: int, grid: tuple[int, int, int], block: tuple[int, int, int], order: str, apart: int = 1) -> int:
    """Run ``start`` in every thread of the grid, or of every ``apart``-th block; an error's number, OK if there was
    none. ``order``: of ``ORDERS``."""
    STATE[INTERLEAVED] = order == "interleaved"
    offset = -_STACKS.ctypes.data % 16
    stacks = _STACKS[offset : offset + STACK * MAX_THREADS].view(np.int64)
    STATE[DYNAMIC] = stacks.ctypes.data
    return _grid(STATE, stacks, SHARED_BYTES, start, grid, block, order == "backward", apart)
