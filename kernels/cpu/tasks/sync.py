"""The pool's compiled side: posting a job, joining it, and the claim-and-wait loop that runs its steps.

A step ends when all its items are done, not when all threads arrive. A thread that the operating system preempts
therefore delays no other unless it holds a chunk, and it may join a job that is already half finished.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..abi import (
    POOL_COUNT,
    POOL_INSIDE,
    POOL_JOB,
    POOL_OPEN,
    POOL_STEPS,
    POOL_STOP,
    POOL_THREADS,
    STEP_ARGS,
    STEP_BEGUN,
    STEP_BYTES,
    STEP_CHUNK,
    STEP_CLAIMED,
    STEP_DONE,
    STEP_ITEMS,
    STEP_LEFT,
    STEP_TASK,
    STEP_WAIT,
)
from .lang import (
    JIT,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    call_task,
    i64p,
    sleep_us,
    spin_hint,
    ticks,
    yield_core,
)
from .registry import export

SPINS = 4000
NAP_US = np.uint32(50)
WAIT_YIELDS = 2000
"""Number of yields of a thread that waits for a step: it spins for about 0.1 ms, yields up to about 1 ms, then naps.

Waits may be long, because another thread may be reading a disk.
"""
IDLE_YIELDS = 200
IDLE_NAPS = 400
"""Number of naps of an idle worker: it spins for about 0.1 ms, yields, naps for about 40 ms, then sleeps in Python."""


@njit(**JIT)
def pause(tries, yields):
    """Back off between two polls: spin, yield or nap, depending on ``tries``."""
    if tries < SPINS:
        spin_hint()
    elif tries < SPINS + yields:
        yield_core()
    else:
        sleep_us(NAP_US)


@njit(**JIT)
def wait_until(address, target):
    """Wait until the counter at ``address`` reaches ``target``."""
    tries = 0
    while atomic_load(address) < target:
        tries += 1
        pause(tries, WAIT_YIELDS)


@njit(**JIT)
def wait_for_steps(steps, first, last):
    """Wait until the steps first..last-1 are finished; return ``last``."""
    for s in range(first, last):
        step = steps + s * STEP_BYTES
        wait_until(step + STEP_DONE, i64p(step + STEP_ITEMS)[0])
    return last


@njit(**JIT)
def execute(steps, count, thread):
    """Work on ``count`` steps until nothing is left to claim; thread 0 also waits for their completion."""
    unfinished = 0
    for s in range(count):
        step = steps + s * STEP_BYTES
        if i64p(step + STEP_WAIT)[0] != 0:
            unfinished = wait_for_steps(steps, unfinished, s)
        task, args = i64p(step + STEP_TASK)[0], i64p(step + STEP_ARGS)[0]
        items, chunk = i64p(step + STEP_ITEMS)[0], i64p(step + STEP_CHUNK)[0]
        if thread == 0:
            i64p(step + STEP_BEGUN)[0] = ticks()
        while True:
            first = atomic_add(step + STEP_CLAIMED, chunk)
            if first >= items:
                break
            last = min(first + chunk, items)
            call_task(task, args, first, last, thread)
            atomic_add(step + STEP_DONE, last - first)
        if thread == 0:
            i64p(step + STEP_LEFT)[0] = ticks()
    if thread == 0:
        wait_for_steps(steps, unfinished, count)


@export("pool_run", 1)
def pool_run(pool):
    """Run the job described in the control block: steps, count, threads. The caller is thread 0."""
    steps, count = i64p(pool + POOL_STEPS)[0], i64p(pool + POOL_COUNT)[0]
    worthwhile = False
    for s in range(count):
        step = steps + s * STEP_BYTES
        i64p(step + STEP_CLAIMED)[0] = 0
        i64p(step + STEP_DONE)[0] = 0
        if i64p(step + STEP_ITEMS)[0] > i64p(step + STEP_CHUNK)[0]:
            worthwhile = True
    if not worthwhile or i64p(pool + POOL_THREADS)[0] < 2:
        for s in range(count):
            step = steps + s * STEP_BYTES
            items = i64p(step + STEP_ITEMS)[0]
            i64p(step + STEP_BEGUN)[0] = ticks()
            if items > 0:
                call_task(i64p(step + STEP_TASK)[0], i64p(step + STEP_ARGS)[0], 0, items, 0)
            i64p(step + STEP_LEFT)[0] = ticks()
        return
    job = i64p(pool + POOL_JOB)[0] + 1
    atomic_store(pool + POOL_OPEN, job)
    atomic_store(pool + POOL_JOB, job)
    execute(steps, count, 0)
    atomic_swap(pool + POOL_OPEN, 0)
    tries = 0
    while atomic_load(pool + POOL_INSIDE) != 0:
        tries += 1
        pause(tries, WAIT_YIELDS)


@export("read_ticks", 1)
def read_ticks(out):
    """Store the current time of the clock that times steps."""
    i64p(out)[0] = ticks()


@export("pool_work", 2)
def pool_work(pool, thread):
    """Join jobs as they come, as a worker; return to Python when idle for long or told to stop."""
    last_job = i64p(pool + POOL_JOB)[0] - 1  # a job posted while this worker was in Python may still be open
    tries = 0
    while atomic_load(pool + POOL_STOP) == 0:
        job = atomic_load(pool + POOL_JOB)
        if job != last_job:
            last_job = job
            tries = 0
            # joining and closing are both atomic, so either the poster sees us inside or we see the job closed
            atomic_add(pool + POOL_INSIDE, 1)
            if job != 0 and atomic_load(pool + POOL_OPEN) == job:
                execute(i64p(pool + POOL_STEPS)[0], i64p(pool + POOL_COUNT)[0], thread)
            atomic_add(pool + POOL_INSIDE, -1)
            continue
        tries += 1
        if tries >= SPINS + IDLE_YIELDS + IDLE_NAPS:
            return
        pause(tries, IDLE_YIELDS)
