"""Which steps of a recording run together, and where threads must wait for each other.

Dependencies between steps follow from the memory they touch. Each step becomes part of a group (``abi`` says how groups
are executed), and each group gets a *phase*; threads meet between phases, so few phases mean little waiting:

- A step of a single chunk, which one thread does alone anyway, goes into the tail of what it needs: the thread that
  finishes that runs it, without a meeting. Steps after it follow in the same tail.
- A step of which each unit needs only the same unit of the step before it is fused with it: a thread takes its units
  through both. Tasks declare which bytes an item touches (``abi.Task``).
- Any other step begins in the phase after the last one that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .abi import Step

MOST_STEPS = 24
"""Maximum number of steps of a group: buffers that a phase uses lie beside each other."""

MEETING = 0.2
"""Time that threads lose between two phases, in times of a chunk, of which each takes 5 to 15 us."""

SMALL = 0.5
"""Chunks that a tail may have for another one to be appended to it rather than run beside it."""


class Access(NamedTuple):
    """One array that a step touches.

    owner    number of the array: what shares memory has the same
    written  whether the step writes it
    field    number of the field that holds its address
    place    bytes from the beginning of a placeholder buffer; 0 in an array from outside
    """

    owner: int
    written: bool
    field: int = 0
    place: int = 0


@dataclass(eq=False)
class Group:
    """Steps executed together.

    phase   number of the phase
    steps   their numbers, in order
    units   number of units that threads claim (of a tail 1)
    chunk   units claimed at once
    needs   of a tail: the groups of its phase that it needs
    """

    phase: int
    steps: list[int]
    units: int = 1
    chunk: int = 1
    needs: list[Group] = field(default_factory=list)


def dependencies(accesses: Sequence[Sequence[Access]]) -> list[set[int]]:
    """Return the steps that each step must follow: the last writers of what it touches, and readers since of what it
    writes.

    Results at different places of one array are disjoint parts of it (an op's ``into``): their writers do not wait for
    each other. Readers wait for the writers of all parts, and writers for readers of any.
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

    steps     as recorded, each with items
    accesses  what each step touches
    threads   number of threads that will execute them; one has the groups of two
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
    """Append a step to the tail among the groups it needs, or make one; None if it has to begin a phase."""
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
    """Append a step to the group whose units it can follow; None if it cannot, or if too few threads could share it."""
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
    """Return the time that threads take for a group of ``work`` chunks that falls into ``units``, in times of a
    chunk."""
    return work * math.ceil(units / threads) / units


def _common(step: Step, field: int, other: Step, other_field: int) -> int:
    """Return into how many units two steps fall of which each touches only its own part of an array; 1 if into none."""
    mine, its = step.task.pieces(step.values).get(field), other.task.pieces(other.values).get(other_field)
    if mine is None or its is None or step.values[field] != other.values[other_field]:
        return 1
    (size, items), (other_size, other_items) = mine, its
    if step.items % items or other.items % other_items:
        return 1
    count, other_count = step.items // items, other.items // other_items
    return math.gcd(count, other_count) if size * count == other_size * other_count else 1
