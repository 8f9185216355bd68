"""Tool calls by id, from the memory of this process and from checkpoints on disk.

Calls of another process, or evicted ones, are looked up on disk before a prompt is rendered, so that the prompt has the
same bytes as before and continues from the same checkpoint. Checkpoints store the calls of their text. This module
connects ``tools.Memory``, which knows no files, and ``session.store``, which knows no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .tools import Memory

if TYPE_CHECKING:
    from ..session.store import Store
    from ..text.chat import Message


class Recall:
    """The memory of calls for APIs (``api.Calls``) and for checkpoints (``session.store.Calls``). Thread-safe."""

    def __init__(self, memory: Memory, store: Store | None = None):
        self.memory, self.store = memory, store
        if store is not None and memory.enabled:
            store.calls = self

    @property
    def enabled(self) -> bool:
        """Whether calls are remembered."""
        return self.memory.enabled

    # --- for a conversation

    def remember(self, answer: Message) -> None:
        """Store the calls of a finished answer."""
        self.memory.remember(answer)

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages with known calls replaced by what the model wrote."""
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
        """Return the ids of the calls in a block, the latest first."""
        return [call for call, known in self.memory.entries(block) if known == block]

    def restore(self, call: str, block: str) -> None:
        """Store an id with its block, read from a checkpoint."""
        self.memory.load([(call, block)])
