"""Prompts, one a line, as ds4's steering tools read them: blank lines and lines that begin with # are skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import ContextError, DataError

if TYPE_CHECKING:
    from ..engine import Engine


def prompts_in(text: str, name: str) -> list[str]:
    """Return the prompts of a file's text, stripped; raise DataError, with the file's ``name``, if there are none."""
    lines = [line.strip() for line in text.splitlines()]
    prompts = [line for line in lines if line and not line.startswith("#")]
    if not prompts:
        raise DataError(f"{name}: no prompts: one a line is expected; blank lines and # are skipped")
    return prompts


def mark(prompt: str) -> str:
    """Return a short digest, by which a prompt that a direction was built from is known again."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def unseen(prompts: Sequence[str], used: Collection[str]) -> list[str]:
    """Return the prompts whose marks are not among ``used``; raise DataError if none is left."""
    remaining = [prompt for prompt in prompts if mark(prompt) not in used]
    if not remaining:
        raise DataError(f"the direction was built from all {len(prompts)} prompts: others are needed to measure it")
    return remaining


def rendered(
    engine: Engine, prompts: Sequence[str], system: str, thinking: str, ctx: int, room: int = 0
) -> list[list[int]]:
    """Return each prompt as token ids of a chat up to its answer; raise ContextError for one that leaves no ``room`` in
    ``ctx`` tokens."""
    ids = [engine.prompt(prompt, system, thinking) for prompt in prompts]
    for number, one in enumerate(ids, 1):
        if len(one) + room > ctx:
            more = f" and {room} of an answer" if room else ""
            raise ContextError(f"prompt {number} takes {len(one)} tokens{more}, the context holds {ctx}: raise --ctx")
    return ids
