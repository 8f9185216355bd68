"""Which steps of a recording run together, and where threads must wait for each other.

Dependencies between steps follow from the memory they read and write. Each step becomes part of a group (``abi`` says
how groups are executed), and each group belongs to a *phase*. Threads wait for each other between phases, so the fewer
phases, the better:

- A step of a single chunk, which one thread does alone anyway, joins a *tail* of the groups that it depends on: the
  thread that finishes the last of them runs the tail, and no other waits. Later small steps join the same tail.
- A step each unit of which depends only on the same unit of the step before is fused with it: a thread takes its units
  through both. Tasks declare which bytes an item touches (``abi.Task``), from which this is known.
- Any other step starts a group in the phase after the latest that it depends on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .abi import Step

MOST_STEPS = 24
"""Maximum number of steps of a group, because all buffers that a phase uses take memory at the same time."""

MEETING = 0.2
"""Time that threads lose between two phases, as a fraction of the time of a chunk, which is 5 to 15 us."""

SMALL = 0.5
"""Work in chunks up to which a tail is merged with another tail rather than run at the same time."""


class Access(NamedTuple):
    """One array that a step reads or writes.

    owner    number of the memory that it belongs to: arrays that share memory have the same
    written  whether the step writes it
    field    number of the field of the step's argument block that holds its address
    place    its offset in bytes in a placeholder buffer; 0 for an array that is not the recording's own
    """

    owner: int
    written: bool
    field: int = 0
    place: int = 0


@dataclass(eq=False)
class Group:
    """Steps that are executed together.

    phase   number of the phase in which they run
    steps   numbers of the steps, in order
    units   number of units into which their work is divided (1 in a tail)
    chunk   number of units that a thread claims at once
    needs   in a tail: the groups of the same phase that it depends on; empty in other groups
    """

    phase: int
    steps: list[int]
    units: int = 1
    chunk: int = 1
    needs: list[Group] = field(default_factory=list)


def dependencies(accesses: Sequence[Sequence[Access]]) -> list[set[int]]:
    """Return for each step the numbers of the steps that it must follow: the last writers of what it reads or writes,
    and those that have since read what it writes.

    Results at different offsets of one array are disjoint parts of it (an op's ``into``): their writers do not wait for
    each other. Readers wait for the writers of all parts, and writers for the readers of any part.
    """
    written: dict[int, dict[int, int]] = {}
    read: dict[int, list[int]] = {}
    result = []
    for number, touched in enumerate(accesses):
        before: set[int] = set()
        for one in touched:
            writers = written.get(one.owner, {})
            if not one.written:
                before.update(writers.values())
                continue
            before.update(read.get(one.owner, ()))
            if one.place in writers:
                before.add(writers[one.place])
        for one in touched:
            if not one.written:
                read.setdefault(one.owner, []).append(number)
        for one in touched:
            if one.written:
                writers = written.setdefault(one.owner, {})
                writers[one.place] = number
                if len(writers) == 1:
                    read[one.owner] = []  # later writers follow this one, which follows them
        result.append(before)
    return result


def plan(steps: Sequence[Step], accesses: Sequence[Sequence[Access]], threads: int) -> list[Group]:
    """Return the groups of all steps in order of execution: by phase, the tails of a phase last.

    steps     the recorded steps, without those that have no items
    accesses  the arrays that each step reads or writes
    threads   number of threads that will execute them; for one thread, groups are the same as for two
    """
    threads = max(2, threads)
    group_of: list[Group] = []
    for number, before in enumerate(dependencies(accesses)):
        needed = {id(group_of[i]): group_of[i] for i in before}
        phase = max((group.phase for group in needed.values()), default=-1)
        last = [group for group in needed.values() if group.phase == phase]
        group = None
        if len(last) == 1 and not last[0].needs:
            group = _fused(last[0], number, steps, accesses, threads)
        if group is None and last and chunks(steps[number]) <= 1:
            group = _tail(last, number, steps, group_of)
        if group is None:
            step = steps[number]
            shared = (step.items, step.chunk) if chunks(step) > 1 else ()
            group = Group(phase + 1, [number], *shared)
        group_of.append(group)
    groups = list({id(group): group for group in group_of}.values())
    return sorted(groups, key=lambda group: (group.phase, bool(group.needs), group.steps[0]))


def chunks(step: Step) -> float:
    """Return the number of chunks of a step, a measure of its work."""
    return step.items / step.chunk


def _tail(last: list[Group], number: int, steps: Sequence[Step], group_of: list[Group]) -> Group | None:
    """Append step ``number`` to a tail among the groups ``last`` that it depends on, merging several tails, or make a
    tail that follows them; return the tail, or None if the step has to begin a phase instead."""
    tails = [group for group in last if group.needs]
    if sum(len(tail.steps) for tail in tails) >= MOST_STEPS:
        return None
    if len(tails) > 1 and sorted(sum(chunks(steps[i]) for i in tail.steps) for tail in tails)[-2] > SMALL:
        return None
    if not tails:
        tails = [Group(last[0].phase, [])]
    tail, *others = tails
    for other in others:
        for i in other.steps:
            group_of[i] = tail
        tail.steps += other.steps
        tail.needs += [group for group in other.needs if group not in tail.needs]
    tail.needs += [group for group in last if group not in tails and group not in tail.needs]
    tail.steps = [*sorted(tail.steps), number]
    return tail


def _fused(
    group: Group, number: int, steps: Sequence[Step], accesses: Sequence[Sequence[Access]], threads: int
) -> Group | None:
    """Append step ``number`` to ``group`` if each of its units depends only on the same unit of the group, and enough
    threads can share the work; return the group, or None."""
    if len(group.steps) >= MOST_STEPS:
        return None
    step, units = steps[number], math.gcd(group.units, steps[number].items)
    for i in group.steps:
        for mine in accesses[number]:
            for other in accesses[i]:
                if mine.owner == other.owner and (mine.written or other.written):
                    units = math.gcd(units, _common(step, mine.field, steps[i], other.field))
    work, more = sum(chunks(steps[i]) for i in group.steps), chunks(step)
    apart = _rounds(work, group.units, threads) + (more if more <= 1 else math.ceil(more / threads))
    if _rounds(work + more, units, threads) > apart + MEETING:
        return None
    group.steps.append(number)
    group.units, group.chunk = units, max(1, int(units / (work + more)))
    return group


def _rounds(work: float, units: int, threads: int) -> float:
    """Return the time that the threads take for a group with ``work`` chunks of work, divided into ``units`` equal
    units; the time of one chunk is 1."""
    return work * math.ceil(units / threads) / units


def _common(step: Step, field: int, other: Step, other_field: int) -> int:
    """Return into how many units two steps can be divided so that each unit touches only its own part of the array that
    both have in the given fields; 1 if they cannot be divided."""
    mine, its = step.task.pieces(step.values).get(field), other.task.pieces(other.values).get(other_field)
    if mine is None or its is None or step.values[field] != other.values[other_field]:
        return 1
    (size, items), (other_size, other_items) = mine, its
    if step.items % items or other.items % other_items:
        return 1
    count, other_count = step.items // items, other.items // other_items
    return math.gcd(count, other_count) if size * count == other_size * other_count else 1
