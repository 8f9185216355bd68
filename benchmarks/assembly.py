"""Read the assembly text of a compiled kernel, x86-64 (AT&T) or AArch64: its blocks, hot loop, one whole row, spills.

Nothing here runs or asks a processor; ``benchmarks.rows_code`` asks llvm-mca about what is found here.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from typing import NamedTuple

_LABEL = re.compile(r"(\.?L[\w.]+):$")
_JUMP = re.compile(r"(?:j[a-z]+|b|b\.[a-z]+|cbn?z|tbn?z)\s(?:.*[\s,])?(\.?L[\w.]+)$")
_ALWAYS = re.compile(r"(?:jmp|b)\s")
_COMMENT = re.compile(r"\s+(?:##?\s|//|;)")
_END = re.compile(r"(?:ret|retq|ud2|brk|udf)\b")

_STEPS = tuple(
    map(
        re.compile,
        (
            r"addq\s+\$(?P<step>\d+), %r",  # addq $66, %r14
            r"subq\s+\$-(?P<step>\d+), %r",  # subq $-128, %r14
            r"leaq\s+(?P<step>\d+)\((?P<base>%r\w+)\), (?P=base)$",  # leaq 132(%r14), %r14
            r"add\s+(?P<base>x\d+), (?P=base), #(?P<step>\d+)$",  # add x9, x9, #84
            r"ld\w+\s.*\[x\d+\], #(?P<step>\d+)$",  # ldr q0, [x9], #84
            r"ld\w+\s.*\[x\d+, #(?P<step>\d+)\]!$",  # ldr q0, [x9, #84]!
        ),
    )
)
_STACK = re.compile(r"-?\d*\(%rsp\b.*?\)|\[sp\b.*?\]")
"""A place on the stack, as either kind of assembly writes it."""


class Block(NamedTuple):
    """A straight run of instructions, and the numbers of the blocks that may follow it."""

    lines: list[str]
    following: list[int]


def blocks(text: str) -> list[Block]:
    """Return the blocks of all functions of an assembly text, without labels, directives and comments."""
    stripped = [_COMMENT.split(line.strip())[0] for line in text.splitlines()]
    targets = {jump[1] for line in stripped if (jump := _JUMP.match(line))}
    bodies: list[list[str]] = [[]]
    at: dict[str, int] = {}
    for line in stripped:
        label = _LABEL.match(line)
        if label and label[1] in targets:
            bodies.append([])
            at[label[1]] = len(bodies) - 1
        elif line and not line.endswith(":") and not line.startswith((".", "#", ";", "//")):
            bodies[-1].append(line)
            if _JUMP.match(line) or _END.match(line):
                bodies.append([])
    found = []
    for number, lines in enumerate(bodies):
        last = lines[-1] if lines else ""
        jump = _JUMP.match(last)
        following = [at[jump[1]]] if jump and jump[1] in at else []
        if number + 1 < len(bodies) and not _END.match(last) and not (jump and _ALWAYS.match(last)):
            following.append(number + 1)
        found.append(Block(lines, following))
    return found


def loops(text: str) -> list[str]:
    """Return each straight-line loop, a block that jumps to its own beginning: its instructions, one a line."""
    return ["\n".join(block.lines) for number, block in enumerate(blocks(text)) if number in block.following]


def steps(loop: Sequence[str]) -> list[int]:
    """Return the positive constants by which a round moves its pointers, ascending."""
    return sorted(int(match["step"]) for line in loop for known in _STEPS if (match := known.match(line)))


def step_bytes(loop: Sequence[str], block_bytes: int) -> int:
    """Return the bytes of weights that a round takes, 0 if it takes none.

    That is the smallest step in whole blocks: packed inputs take more bytes than the weights that they meet.
    """
    return next((step for step in steps(loop) if step % block_bytes == 0), 0)


def hot_loop(text: str, block_bytes: int) -> list[str]:
    """Return the instructions of the straight-line loop that takes the most bytes of weights a round.

    Raises ValueError if there is none.
    """
    bodies = [loop.splitlines() for loop in loops(text)]
    longest = max(bodies, key=lambda loop: (step_bytes(loop, block_bytes), len(loop)), default=[])
    if not step_bytes(longest, block_bytes):
        raise ValueError(f"no straight-line loop over blocks of {block_bytes} bytes")
    return longest


def around(text: str, loop: Sequence[str]) -> list[str]:
    """Return what runs from the end of ``loop`` to its next beginning, a row later: the shortest way there.

    The shortest way passes over the parts of a row that are left when the loop has taken what it can, so it is that of
    rows of whole rounds. Empty if there is no way back.
    """
    graph = blocks(text)
    (hot,) = (n for n, block in enumerate(graph) if block.lines == list(loop) and n in block.following)
    queue: list[tuple[int, int, tuple[int, ...]]] = [(0, n, ()) for n in graph[hot].following if n != hot]
    seen: set[int] = set()
    while queue:
        length, number, way = heapq.heappop(queue)
        if number == hot:
            return [line for step in way for line in graph[step].lines]
        if number not in seen:
            seen.add(number)
            block = graph[number]
            for after in block.following:
                heapq.heappush(queue, (length + len(block.lines), after, (*way, number)))
    return []


def spills(loop: Sequence[str]) -> int:
    """Return the number of instructions that touch the stack."""
    return sum(_STACK.search(line) is not None for line in loop)
