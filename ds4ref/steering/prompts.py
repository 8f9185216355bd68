"""Reads files of prompts as ds4's steering tools do: one per line, skipping blank lines and those that begin with #."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import ContextError, DataError

if TYPE_CHECKING:
    from ..engine import Engine


def prompts_in(text: str, name: str) -> list[str]:
    """Return the prompts in the text of a file; raise DataError, which mentions its ``name``, if there are none."""
    lines = [line.strip() for line in text.splitlines()]
    prompts = [line for line in lines if line and not line.startswith("#")]
    if not prompts:
        raise DataError(f"{name}: no prompts: one a line is expected; blank lines and # are skipped")
    return prompts


def mark(prompt: str) -> str:
    """Return a short digest of a prompt, by which it can be recognized as one that a direction was built from."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def unseen(prompts: Sequence[str], used: Collection[str]) -> list[str]:
    """Return the prompts that a direction was not built from; raise DataError if none is left.

    ``used`` has the digests (``mark``) of the prompts that it was built from.
    """
    remaining = [prompt for prompt in prompts if mark(prompt) not in used]
    if not remaining:
        raise DataError(f"the direction was built from all {len(prompts)} prompts: others are needed to measure it")
    return remaining


def rendered(
    engine: Engine, prompts: Sequence[str], system: str, thinking: str, ctx: int, room: int = 0
) -> list[list[int]]:
    """Return the token ids of a chat with each prompt, up to where the answer begins.

    Raise ContextError for a prompt that leaves less than ``room`` of the ``ctx`` tokens of the context for an answer.
    """
    ids = [engine.prompt(prompt, system, thinking) for prompt in prompts]
    for number, one in enumerate(ids, 1):
        if len(one) + room > ctx:
            more = f" and {room} of an answer" if room else ""
            raise ContextError(f"prompt {number} takes {len(one)} tokens{more}, the context holds {ctx}: raise --ctx")
    return ids
