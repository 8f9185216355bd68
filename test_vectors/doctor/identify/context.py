"""Find a server's context limit by prompts that are too long, from the numbers in its refusals.

No word of a refusal is read. Prompts of two lengths are refused with two messages: a number in both is a limit, one
that grows with the prompt is its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SIZES = (4_000, 20_000, 80_000, 300_000, 1_100_000)
"""Lengths of the prompts, in tokens."""
GROWTH = 1.25
"""The second prompt that is refused is this much longer than the first."""


@dataclass(frozen=True)
class Reply:
    """What a server did with a prompt of ``size`` tokens: counted it (``count``), refused it (``refusal``), or neither
    in time."""

    size: int
    count: int | None = None
    refusal: str | None = None


def numbers(text: str) -> set[int]:
    """Return the whole numbers of a text; "1,048,576" and "1048576" are the same."""
    return {int(re.sub(r"[,_]", "", each)) for each in re.findall(r"\d{1,3}(?:[,_]\d{3})+|\d+", text) if len(each) < 12}


def limit_of(replies: Sequence[Reply]) -> tuple[int | None, str]:
    """Return the limit that several replies prove, None if they prove none, and what they show."""
    taken = [reply for reply in replies if reply.count is not None]
    refused = [reply for reply in replies if reply.refusal is not None]
    most = max((reply.count or 0 for reply in taken), default=0)
    for a, b in pairwise(sorted(taken, key=lambda reply: reply.size)):
        if a.count and b.count and b.size > 1.2 * a.size and b.count < a.count * 1.05:
            return b.count, f"prompts of {a.size} and {b.size} tokens both count {b.count}: longer ones are cut"
    if not refused:
        return None, f"at least {most}" if most else "no long prompt was answered"
    smallest = min(reply.size for reply in refused)
    shown = [numbers(reply.refusal or "") for reply in refused]
    both = set.intersection(*shown) if len(shown) > 1 else set()
    likely = {n for n in both if max(most, 16) <= n <= smallest * 1.05}
    says = f"refuses {smallest} tokens" + (f", takes {most}" if most else "")
    if len(likely) != 1:
        return None, says + ("; the refusals name no limit" if not likely else "; their numbers allow several limits")
    (limit,) = likely
    return limit, f"{says}; both refusals name {limit}"


def probe(send: Callable[[int], Reply], most: int, out_of_time: Callable[[], bool]) -> list[Reply]:
    """Return the replies to ever longer prompts, until two are refused or none is answered in time.

    send  sends a prompt of so many tokens
    most  length of the longest prompt
    """
    replies: list[Reply] = []
    for size in SIZES:
        if size > most or out_of_time():
            break
        replies.append(send(size))
        if replies[-1].refusal is not None:
            replies.append(send(int(size * GROWTH)))
        if replies[-1].count is None:
            break
    return replies
