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
 E_WHAT, E_LINE, LAST_RANGE, BLOCK, STACKS, INTERLEAVED) = range(18)  # fmt: skip
SPECIAL = 20  # tid 3, ntid 3, ctaid 3, nctaid 3
RANGES = 64
MAX_RANGES = 4096  # from, to, whether it may be written, to where it may be read
RECORDS = RANGES + 4 * MAX_RANGES

# --- a fiber's record
(SP, STATUS, KIND, MASK, LINE, STACK_LOW, ASYNC_USED, ASYNC_GROUP) = range(8)
ARGS, OUT, TID, SEEN = 8, 24, 40, 44  # SEEN: when it last passed a barrier of its block, and of its warp
RECORD = 64
ASYNC = RECORDS + RECORD * MAX_THREADS  # copies under way: destination, source, bytes, group
MAX_ASYNC = 64
SHADOW = ASYNC + 4 * MAX_ASYNC * MAX_THREADS  # a shared byte: writer + 1, when, reader + 1 (-1: several), when
MAX_SHARED = 233472  # 228 KB, the most an H100 has
SIZE = SHADOW + 4 * MAX_SHARED

READY, DONE, AT_WARP, AT_BARRIER, FAULTED = range(5)

SHFL_BFLY, SHFL_IDX, SYNC, MMA, LDMATRIX, LDMATRIX_T = range(6)
"""Kinds of meetings of a warp."""
ORDERS = ("forward", "backward", "interleaved")
"""In which threads run: the first one first, the last one first, or each up to a store into global memory, before which
all others come to theirs: what two threads read, change and write is then lost for one of them."""

# --- errors
(OK, OUTSIDE, MISALIGNED, READ_ONLY, UNINITIALISED, RACE, OVERFLOW, STUCK, TOO_MANY_COPIES) = range(9)

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
    """Element ``at`` of a 32-bit register of kind 0 s8, 1 bf16, 2 f16, as float64."""
    if kind == 0:
        return float(_signed(word >> (8 * at), 8))
    half = (word >> (16 * at)) & 0xFFFF
    if kind == 1:
        return float(np.int32(_signed(half << 16, 32)).view(np.float32))
    exponent, fraction = (half >> 10) & 31, half & 1023
    if exponent == 31:
        value = np.inf if fraction == 0 else np.nan
    elif exponent:
        value = (1024 + fraction) * 2.0 ** (exponent - 25)
    else:
        value = fraction * 2.0**-24
    return -value if half >> 15 else value


@njit
def _mma(s, first, kind, chunks):
    """D = A B + C of 16 x 8 tiles over the lanes from record ``first``; args: A in 2 chunks registers (row half, then
    chunk), B in ``chunks``, C in 4. Integers add exactly, floats in float64, rounded once to float32."""
    per = 4 if kind == 0 else 2
    k = 4 * per * chunks
    a, b = np.zeros((16, k)), np.zeros((k, 8))
    for lane in range(WARP):
        record = first + lane * RECORD
        group, within = lane >> 2, lane & 3
        for chunk in range(chunks):
            for at in range(per):
                column = chunk * 4 * per + within * per + at
                for half in range(2):
                    a[group + 8 * half, column] = _element(s[record + ARGS + 2 * chunk + half], at, kind)
                b[column, group] = _element(s[record + ARGS + 2 * chunks + chunk], at, kind)
    for lane in range(WARP):
        record = first + lane * RECORD
        for i in range(4):
            row, column = (lane >> 2) + 8 * (i >> 1), 2 * (lane & 3) + (i & 1)
            total, c = (a[row] * b[:, column]).sum(), s[record + ARGS + 3 * chunks + i]
            if kind == 0:
                s[record + OUT + i] = (np.int64(total) + _signed(c, 32)) & 0xFFFFFFFF
            else:
                total += float(np.int32(_signed(c, 32)).view(np.float32))
                s[record + OUT + i] = np.int64(np.float32(total).view(np.int32)) & 0xFFFFFFFF


@njit
def _shuffle(s, first, mask, kind):
    """A lane brings its value and the source, which is xor its own number for SHFL_BFLY."""
    for lane in range(WARP):
        if (mask >> lane) & 1:
            record = first + lane * RECORD
            source = s[record + ARGS + 1] & 31
            source = lane ^ source if kind == SHFL_BFLY else source
            # A lane that is not there has no value: NaN, and -1 as an integer
            present = (mask >> source) & 1
            s[record + OUT] = s[first + source * RECORD + ARGS] if present else 0xFFFFFFFF
            s[record + OUT + 1] = 1


@njit
def _matrices(s, first, transposed):
    """ldmatrix: lane i brings the address of row i % 8 of matrix i // 8, eight 16-bit values that were checked."""
    for lane in range(WARP):
        for m in range(4):
            word = 0
            for at in range(2):
                row, column = lane >> 2, 2 * (lane & 3) + at
                if transposed:
                    row, column = column, row
                address = s[SHARED] + s[first + (8 * m + row) * RECORD + ARGS] + 2 * column
                word |= (peek(address) | peek(address + 1) << 8) << (16 * at)
            s[first + lane * RECORD + OUT + m] = word


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
        if kind == SYNC:
            s[SEQUENCE] += 1
        elif kind == MMA:
            _mma(s, first, s[record + ARGS + 15] & 15, s[record + ARGS + 15] >> 8)
        elif kind == SHFL_BFLY or kind == SHFL_IDX:
            _shuffle(s, first, mask, kind)
        else:
            _matrices(s, first, kind == LDMATRIX_T)
        for lane in range(lanes):
            if (mask >> lane) & 1:
                other = first + lane * RECORD
                s[other + STATUS] = READY
                if kind == SYNC:
                    s[other + SEEN + 1] = s[SEQUENCE]
                released += 1
    return released


@njit
def _barrier(s, threads):
    """Release the barrier of the block if all that have not ended are there; whether it did."""
    for fiber in range(threads):
        if s[RECORDS + fiber * RECORD + STATUS] not in (AT_BARRIER, DONE):
            return False
    s[SEQUENCE] += 1
    for fiber in range(threads):
        record = RECORDS + fiber * RECORD
        if s[record + STATUS] == AT_BARRIER:
            s[record + STATUS] = READY
            s[record + SEEN] = s[SEQUENCE]
    return True


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
        if not released and not ready and not _barrier(s, threads):
            s[ERROR] = STUCK
            return STUCK


@njit
def _grid(s, stacks, shared, start, grid, block, backward):
    """All blocks, one after the other; the header's error."""
    threads = block[0] * block[1] * block[2]
    blocks = grid[0] * grid[1] * grid[2]
    for axis in range(3):
        s[SPECIAL + 3 + axis], s[SPECIAL + 9 + axis] = block[axis], grid[axis]
    s[ERROR], s[LAST_RANGE] = OK, 0
    for turn in range(blocks):
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
            s[record + STACK_LOW] = s[STACKS] + 8 * low
            stacks[low] = 0x5AFE
            top = low + STACK // 8 - 10
            stacks[top : top + 6] = 0
            stacks[top + 6] = start  # where the first switch returns to, with the stack as after a call
            s[record + SP] = s[STACKS] + 8 * top
        result = _run(s, threads, backward)
        if result != OK:
            return result
        for fiber in range(threads):
            if stacks[fiber * (STACK // 8)] != 0x5AFE:
                s[E_FIBER] = fiber
                return OVERFLOW
    return OK


def run_grid(start: int, grid: tuple[int, int, int], block: tuple[int, int, int], order: str) -> int:
    """Run ``start`` in every thread of the grid; an error's number, OK if there was none. ``order``: of ``ORDERS``."""
    STATE[INTERLEAVED] = order == "interleaved"
    offset = -_STACKS.ctypes.data % 16
    stacks = _STACKS[offset : offset + STACK * MAX_THREADS].view(np.int64)
    STATE[STACKS] = stacks.ctypes.data
    return _grid(STATE, stacks, SHARED_BYTES, start, grid, block, order == "backward")
