"""Calls by their id, wherever they are known from: the memory of this process, and the maps of checkpoints on disk.

What was made in another process, or was forgotten, is looked for on disk before a prompt is rendered, so that the
prompt has the same bytes as then and goes on from the same checkpoint. And checkpoints take along the calls of their
text. ``tools.Memory`` knows nothing of folders, ``session.store`` nothing of memories; this knows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .tools import Memory

if TYPE_CHECKING:
    from ..session.store import Store
    from ..text.chat import Message


class Recall:
    """What APIs ask of a memory of calls (``api.Calls``), and what checkpoints do (``session.store.Calls``). Safe to
    use from any thread."""

    def __init__(self, memory: Memory, store: Store | None = None):
        self.memory, self.store = memory, store
        if store is not None and memory.enabled:
            store.calls = self

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self.memory.enabled

    # --- for a conversation

    def remember(self, answer: Message) -> None:
        """A finished answer."""
        self.memory.remember(answer)

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """The messages, those with calls as the model wrote them where the ids tell."""
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
        """The ids of the calls in a block, the latest first."""
        return [call for call, known in self.memory.entries(block) if known == block]

    def restore(self, call: str, block: str) -> None:
        """An id with its block, from a checkpoint."""
        self.memory.load([(call, block)])
