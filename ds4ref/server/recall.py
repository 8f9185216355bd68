"""Tool calls by id, from this process's memory and from checkpoints on disk.

Calls made by another process, or evicted from memory, are looked up on disk before a prompt is rendered, so that the
prompt has the same bytes as before and continues from the same checkpoint. A checkpoint stores the calls in its text.
This module connects ``tools.Memory``, which knows no files, with ``session.store``, which knows no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .tools import Memory

if TYPE_CHECKING:
    from ..session.store import Store
    from ..text.chat import Message


class Recall:
    """Thread-safe memory of tool calls for API modules (``api.Calls``) and checkpoints (``session.store.Calls``)."""

    def __init__(self, memory: Memory, store: Store | None = None):
        self.memory, self.store = memory, store
        if store is not None and memory.enabled:
            store.calls = self

    @property
    def enabled(self) -> bool:
        """Whether tool calls are remembered."""
        return self.memory.enabled

    # --- for a conversation

    def remember(self, answer: Message) -> None:
        """Store the tool calls of a finished answer."""
        self.memory.remember(answer)

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages, with every known tool call replaced by the markup that the model wrote."""
        messages = list(messages)
        self._look_up(self.memory.missing(messages))
        return self.memory.attach(messages)

    def __contains__(self, call_id: str) -> bool:
        if call_id not in self.memory:
            self._look_up({call_id})
        return call_id in self.memory

    def _look_up(self, ids: set[str]) -> None:
        if self.store is not None and self.enabled and ids:
            self.memory.load(self.store.find_calls(ids).items())

    # --- for a checkpoint

    def ids_of(self, block: str) -> Sequence[str]:
        """Return the ids of the calls in a markup block, the latest first."""
        return [call for call, known in self.memory.entries(block) if known == block]

    def restore(self, call: str, block: str) -> None:
        """Store the call id and markup block read from a checkpoint."""
        self.memory.load([(call, block)])
