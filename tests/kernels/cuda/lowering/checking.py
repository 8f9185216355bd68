"""Is an access allowed? Called by translated code before every load, store and atomic operation.

Checked: the address lies inside one array of the launch (or shared, local, constant memory), which may be written if it
is; it is aligned to its size, as GPUs demand; shared memory read was written; and no two threads use the same shared
byte, one of them writing, without a barrier between that both passed. A shuffle orders no memory.
"""

from __future__ import annotations

from functools import cache

import numba
from numba import carray, types

from .fibers import (
    ASYNC,
    ASYNC_GROUP,
    ASYNC_USED,
    E_ADDRESS,
    E_FIBER,
    E_LINE,
    E_WHAT,
    ERROR,
    FIBER,
    INTERLEAVED,
    LAST_RANGE,
    MAX_ASYNC,
    MISALIGNED,
    OUTSIDE,
    RACE,
    RANGES,
    RANGES_USED,
    READ_ONLY,
    RECORD,
    RECORD_AT,
    RECORDS,
    SCHEDULER,
    SEEN,
    SELF,
    SEQUENCE,
    SHADOW,
    SHARED,
    SHARED_SIZE,
    SIZE,
    SP,
    STACK,
    STACK_LOW,
    TOO_MANY_COPIES,
    UNINITIALISED,
    WARP,
    peek,
    poke,
    switch,
)  # fmt: skip

GENERIC, GLOBAL, SHARED_SPACE, LOCAL, CONSTANT = range(5)
READ, WRITE, ATOMIC = range(3)
SEVERAL = 1 << 20


def packed(size: int, use: int, space: int, line: int) -> int:
    """What ``check`` is told about an access, as one number."""
    return size | use << 8 | space << 10 | line << 16


@numba.njit
def _fault(s, error, address, what):
    s[ERROR], s[E_ADDRESS], s[E_WHAT], s[E_LINE], s[E_FIBER] = error, address, what & 0xFFFF, what >> 16, s[FIBER]
    record = RECORDS + s[FIBER] * RECORD
    switch(s[SELF] + 8 * (record + SP), s[SELF] + 8 * SCHEDULER)


@numba.njit
def _ordered(s, other, when):
    """Whether what fiber ``other`` did at ``when`` comes before what the running one does now."""
    mine, its = RECORDS + s[FIBER] * RECORD + SEEN, RECORDS + other * RECORD + SEEN
    if other // WARP == s[FIBER] // WARP and s[mine + 1] > when and s[its + 1] > when:
        return True
    return s[mine] > when and s[its] > when


@numba.njit
def _shared(s, offset, what):
    size, use, me, now = what & 255, (what >> 8) & 3, s[FIBER], s[SEQUENCE]
    if offset < 0 or offset + size > s[SHARED_SIZE]:
        return OUTSIDE
    known, then = -1, -1  # a write that is known to come before this access: that of the byte before, mostly
    for byte in range(SHADOW + 4 * offset, SHADOW + 4 * (offset + size), 4):
        writer, reader = abs(s[byte]) - 1, s[byte + 2] - 1
        if writer < 0 and use != WRITE:
            return UNINITIALISED
        among_atomics = use == ATOMIC and s[byte] < 0  # their order is of no matter
        if writer >= 0 and writer != me and not among_atomics and (writer != known or s[byte + 1] != then):
            if not _ordered(s, writer, s[byte + 1]):
                return RACE
            known, then = writer, s[byte + 1]
        if use == READ:
            # Of several readers since the last write the latest counts for all: they are between the same barriers
            s[byte + 2] = me + 1 if reader in (-1, me) or s[byte + 3] < now else SEVERAL
            s[byte + 3] = now
            continue
        if reader >= 0 and reader != me and not _ordered(s, me if reader == SEVERAL - 1 else reader, s[byte + 3]):
            return RACE
        s[byte] = -(me + 1) if use == ATOMIC else me + 1
        s[byte + 1] = now
        s[byte + 2] = 0
    return 0


@numba.njit
def _global(s, address, what):
    size, use = what & 255, (what >> 8) & 3
    low, high = 0, s[RANGES_USED] - 1
    at = s[LAST_RANGE]
    if at > high or not s[RANGES + 4 * at] <= address < s[RANGES + 4 * at + 1]:
        while low < high:  # the last range that does not start after the address
            middle = (low + high + 1) // 2
            if s[RANGES + 4 * middle] <= address:
                low = middle
            else:
                high = middle - 1
        at = low
    end = s[RANGES + 4 * at + (3 if use == READ else 1)]
    if high < 0 or address < s[RANGES + 4 * at] or address + size > end:
        return OUTSIDE
    s[LAST_RANGE] = at
    return READ_ONLY if use != READ and not s[RANGES + 4 * at + 2] else 0


@numba.njit
def _wrong(s, address, what):
    size, space = what & 255, (what >> 10) & 7
    if address % size:
        return MISALIGNED
    if space == SHARED_SPACE:
        return _shared(s, address, what)
    if space == GENERIC and s[SHARED] <= address < s[SHARED] + s[SHARED_SIZE]:
        return _shared(s, address - s[SHARED], what)
    stack = s[RECORDS + s[FIBER] * RECORD + STACK_LOW]
    if space in (GENERIC, LOCAL) and stack <= address and address + size <= stack + STACK:
        return 0
    return _global(s, address, what)


_STATE_POINTER = types.CPointer(types.int64)


def _when_used(signature):
    """Compile a callback when its address is first asked for: to import this module should cost nothing."""
    return lambda function: cache(lambda: numba.cfunc(signature)(function))


@_when_used(types.void(_STATE_POINTER, types.int64, types.int64))
def check(state, address, what):
    """Does not return where the access is wrong: the scheduler ends the launch."""
    s = carray(state, SIZE)
    error = _wrong(s, address, what)
    if error:
        _fault(s, error, address, what)
    if s[INTERLEAVED] and (what >> 8) & 3 == WRITE and (what >> 10) & 7 in (GENERIC, GLOBAL):
        switch(s[SELF] + 8 * (RECORDS + s[FIBER] * RECORD + SP), s[SELF] + 8 * SCHEDULER)


@_when_used(types.void(_STATE_POINTER, types.int64, types.int64, types.int64))
def copy_later(state, target, source, size):
    """cp.async: keep the copy for the running fiber; it happens when that fiber waits for it, never earlier."""
    s = carray(state, SIZE)
    record = (s[RECORD_AT] - s[SELF]) // 8
    if s[record + ASYNC_USED] == MAX_ASYNC:
        _fault(s, TOO_MANY_COPIES, target, size)
    at = ASYNC + 4 * (s[FIBER] * MAX_ASYNC + s[record + ASYNC_USED])
    s[at], s[at + 1], s[at + 2], s[at + 3] = target, source, size, s[record + ASYNC_GROUP]
    s[record + ASYNC_USED] += 1


@_when_used(types.void(_STATE_POINTER))
def copies_end_group(state):
    """cp.async.commit_group."""
    s = carray(state, SIZE)
    s[(s[RECORD_AT] - s[SELF]) // 8 + ASYNC_GROUP] += 1


@_when_used(types.void(_STATE_POINTER, types.int64))
def copies_wait(state, pending):
    """cp.async.wait_group: all but the last ``pending`` groups happen now; -1: also copies of no group yet."""
    s = carray(state, SIZE)
    record = (s[RECORD_AT] - s[SELF]) // 8
    first = ASYNC + 4 * s[FIBER] * MAX_ASYNC
    done, groups = 0, s[record + ASYNC_GROUP]
    while done < s[record + ASYNC_USED] and (pending < 0 or s[first + 4 * done + 3] < groups - pending):
        at = first + 4 * done
        error = _wrong(s, s[at], s[at + 2] & 0xFFFF0000 | (s[at + 2] & 255) | WRITE << 8 | SHARED_SPACE << 10)
        if error:
            _fault(s, error, s[at], s[at + 2])
        for byte in range(s[at + 2] & 255):
            poke(s[SHARED] + s[at] + byte, peek(s[at + 1] + byte))
        done += 1
    left = s[record + ASYNC_USED] - done
    for number in range(4 * left):
        s[first + number] = s[first + 4 * done + number]
    s[record + ASYNC_USED] = left
