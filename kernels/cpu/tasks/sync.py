"""The worker pool's compiled part: posting a job, joining it, and the loop in which a thread claims work or waits.

``abi`` explains steps, groups, units and tails. A group ends when all its units are done, not when all threads have
arrived. So a thread that the operating system preempts delays no other unless it holds a chunk or runs a tail, and a
thread may join a job that is already half finished.

With many threads, traffic on shared cache lines is what costs time. So a thread reports the work that it did of a group
once, reads the counter of claimed units before it changes it, and while waiting polls one counter that changes once per
group.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import abi
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

NAP_US = np.uint32(50)
POLLS = 16
"""How often a spinning thread polls before it reads the clock again."""


@njit(**JIT)
def back_off(address, seen, waited, spin, nap):
    """Wait a little for the word at ``address`` to differ from ``seen``: spin, yield the core, or nap.

    ``waited`` are the ticks waited so far: below ``spin`` the thread spins, below ``nap`` it yields, then it naps.
    """
    if waited < spin:
        for _ in range(POLLS):
            spin_hint()
            if atomic_load(address) != seen:
                return
    elif waited < nap:
        yield_core()
    else:
        sleep_us(NAP_US)


@njit(**JIT)
def wait_until(pool, address, target):
    """Wait until the counter at ``address`` reaches ``target``, which may take long, for example while another thread
    reads weights from disk."""
    seen = atomic_load(address)
    if seen >= target:
        return
    began, spin, nap = ticks(), i64p(pool + abi.POOL_SPIN)[0], i64p(pool + abi.POOL_NAP)[0]
    while seen < target:
        back_off(address, seen, ticks() - began, spin, nap)
        seen = atomic_load(address)


@njit(**JIT)
def run_units(step, first, last, thread):
    """Run units first..last-1 through all steps of the group that begins with ``step``."""
    for m in range(1 + i64p(step + abi.STEP_MEMBERS)[0]):
        member = step + m * abi.STEP_BYTES
        per = i64p(member + abi.STEP_PER)[0]
        call_task(i64p(member + abi.STEP_TASK)[0], i64p(member + abi.STEP_ARGS)[0], first * per, last * per, thread)


@njit(**JIT)
def finish(steps, step, thread, finished):
    """After the last unit of a group: run the tails that now have nothing left to wait for, and count the group and
    those tails as finished."""
    count, tails = 1, i64p(steps + i64p(step + abi.STEP_TAILS)[0])
    for k in range(i64p(step + abi.STEP_TAIL_COUNT)[0]):
        tail = steps + tails[k] * abi.STEP_BYTES
        if atomic_add(tail + abi.STEP_CLAIMED, 1) + 1 == i64p(tail + abi.STEP_NEEDS)[0]:
            run_units(tail, 0, 1, thread)
            count += 1
    atomic_add(finished, count)


@njit(**JIT)
def execute(pool, steps, count, thread):
    """Work on the ``count`` steps at address ``steps``, group by group, until nothing is left to claim."""
    finished = pool + abi.POOL_FINISHED
    s = 0
    while s < count:
        step = steps + s * abi.STEP_BYTES
        if i64p(step + abi.STEP_WAIT)[0] > 1:
            wait_until(pool, finished, i64p(step + abi.STEP_WAIT)[0] - 1)
        units, chunk = i64p(step + abi.STEP_UNITS)[0], i64p(step + abi.STEP_CHUNK)[0]
        done = 0
        while atomic_load(step + abi.STEP_CLAIMED) < units:
            first = atomic_add(step + abi.STEP_CLAIMED, chunk)
            if first >= units:
                break
            last = min(first + chunk, units)
            run_units(step, first, last, thread)
            done += last - first
        if done > 0 and atomic_add(step + abi.STEP_DONE, done) + done == units:
            finish(steps, step, thread, finished)
        s = i64p(step + abi.STEP_NEXT)[0]


@export("pool_run", 1)
def pool_run(pool):
    """Run the job that the control block at ``pool`` describes (steps, count, threads); the caller is thread 0."""
    steps, count = i64p(pool + abi.POOL_STEPS)[0], i64p(pool + abi.POOL_COUNT)[0]
    worthwhile = False
    groups, s = 0, 0
    while s < count:
        step = steps + s * abi.STEP_BYTES
        i64p(step + abi.STEP_CLAIMED)[0] = 0
        i64p(step + abi.STEP_DONE)[0] = 0
        units, chunk = i64p(step + abi.STEP_UNITS)[0], i64p(step + abi.STEP_CHUNK)[0]
        if units > 0:
            groups += 1
        if units > chunk and chunk > 0:
            worthwhile = True
        s += 1 + i64p(step + abi.STEP_MEMBERS)[0]
    if not worthwhile or i64p(pool + abi.POOL_THREADS)[0] < 2:
        for s in range(count):
            step = steps + s * abi.STEP_BYTES
            items = i64p(step + abi.STEP_UNITS)[0] * i64p(step + abi.STEP_PER)[0]
            if items > 0:
                call_task(i64p(step + abi.STEP_TASK)[0], i64p(step + abi.STEP_ARGS)[0], 0, items, 0)
        return
    i64p(pool + abi.POOL_FINISHED)[0] = 0
    job = i64p(pool + abi.POOL_JOB)[0] + 1
    atomic_store(pool + abi.POOL_OPEN, job)
    atomic_store(pool + abi.POOL_JOB, job)
    execute(pool, steps, count, 0)
    wait_until(pool, pool + abi.POOL_FINISHED, groups)
    atomic_swap(pool + abi.POOL_OPEN, 0)
    began = ticks()
    inside = atomic_load(pool + abi.POOL_INSIDE)
    while inside != 0:
        back_off(
            pool + abi.POOL_INSIDE, inside, ticks() - began, i64p(pool + abi.POOL_SPIN)[0], i64p(pool + abi.POOL_NAP)[0]
        )
        inside = atomic_load(pool + abi.POOL_INSIDE)


@export("read_ticks", 1)
def read_ticks(out):
    """Store the current time of the clock, in ticks, at address ``out``."""
    i64p(out)[0] = ticks()


@export("pool_work", 2)
def pool_work(pool, thread):
    """Be a worker: join each job that is posted; return to Python after a long time without one, or when the pool is
    being stopped."""
    last_job = i64p(pool + abi.POOL_JOB)[0] - 1  # a job posted while this worker was in Python may still be open
    spin, nap, idle = i64p(pool + abi.POOL_SPIN)[0], i64p(pool + abi.POOL_IDLE_NAP)[0], i64p(pool + abi.POOL_IDLE)[0]
    began = ticks()
    while atomic_load(pool + abi.POOL_STOP) == 0:
        job = atomic_load(pool + abi.POOL_JOB)
        if job != last_job:
            last_job = job
            # joining and closing are both atomic, so either the poster sees us inside or we see the job closed
            atomic_add(pool + abi.POOL_INSIDE, 1)
            if job != 0 and atomic_load(pool + abi.POOL_OPEN) == job:
                execute(pool, i64p(pool + abi.POOL_STEPS)[0], i64p(pool + abi.POOL_COUNT)[0], thread)
            atomic_add(pool + abi.POOL_INSIDE, -1)
            began = ticks()
            continue
        waited = ticks() - began
        if waited >= idle:
            return
        back_off(pool + abi.POOL_JOB, job, waited, spin, nap)
