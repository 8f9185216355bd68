"""The model's own text of its tool calls, by call id.

    memory.remember(answer)             after an answer: stores its block of markup under the id of each of its calls
    messages = memory.attach(messages)  before the next prompt is rendered: gives messages with these ids their markup

A client sends its history back in its own spelling: other spaces in arguments, another order of keys, other line
breaks. A prompt rendered from that would differ from the tokens that were evaluated, and everything after the
difference would have to be evaluated again. So calls are recognised by id, never by text. If the ids are unknown, or
the client sends other calls for them (in number, order or name), the calls are rendered anew (``text.dsml``).

Checkpoints on disk also store the ids of the calls in their text (``ids_of``, ``restore``). Calls made by another
process, or evicted from memory, are looked up there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..text.chat import Message
from ..text.dsml_parser import parse

if TYPE_CHECKING:
    from ..session.store import Store

MOST_IDS = 100_000
MOST_BYTES = 512 << 20

_OVERHEAD = 96


@dataclass(eq=False)
class _Block:
    """A block of tool calls: its markup as the model wrote it, the names of the called tools, and the call ids that
    refer to it (oldest first)."""

    text: str
    names: tuple[str, ...]
    ids: dict[str, None] = field(default_factory=dict)


class Memory:
    """Thread-safe memory of at most ``ids`` tool calls and ``nbytes`` bytes, least recently used evicted first.

    ``store``: the checkpoints on disk, None for none
    """

    def __init__(self, ids: int = MOST_IDS, nbytes: int = MOST_BYTES, store: Store | None = None):
        self.most_ids, self.most_bytes, self.store = ids, nbytes, store
        self.nbytes = 0
        self._entries: OrderedDict[str, tuple[_Block, int | None]] = OrderedDict()
        self._blocks: dict[str, _Block] = {}
        self._lock = threading.Lock()
        if store is not None:
            store.calls = self

    def remember(self, answer: Message) -> None:
        """Store the markup block of a finished answer, if all its calls have ids."""
        if answer.raw_dsml and answer.calls and all(call.id for call in answer.calls):
            self._keep([(call.id, i) for i, call in enumerate(answer.calls)], answer.raw_dsml)

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages, with the model's own markup (``raw_dsml``) in those of the assistant whose tool calls
        are exactly those of a known block."""
        messages = list(messages)
        ids = {call.id for message in messages if _rendered_anew(message) for call in message.calls if call.id}
        missing = ids - self._entries.keys()
        if self.store is not None and missing:
            for call_id, block in self.store.find_calls(missing).items():
                self.restore(call_id, block)
        with self._lock:
            return [self._attached(message) if _rendered_anew(message) else message for message in messages]

    def ids_of(self, block: str) -> Sequence[str]:
        """Return the ids of the calls in a markup block, the latest first."""
        with self._lock:
            known = self._blocks.get(block)
            return [] if known is None else list(reversed(known.ids))

    def restore(self, call_id: str, block: str) -> None:
        """Store a call id and its markup block, both read from a checkpoint, unless the id is known."""
        if call_id not in self._entries:
            self._keep([(call_id, None)], block)

    def _attached(self, message: Message) -> Message:
        """Return the message, with a block's markup if its calls are all those of that block in the same order."""
        ids = [call.id for call in message.calls]
        known = [self._entries[call_id] for call_id in ids if call_id in self._entries]
        for call_id in ids:
            if call_id in self._entries:
                self._entries.move_to_end(call_id)
        if not known or len(ids) != len(set(ids)):
            return message
        block = known[0][0]
        same = [(one, place) for one, place in known if one is block]
        places = all(place in (None, i) for i, (_, place) in enumerate(same))
        whole = len(same) == len(ids) and tuple(call.name for call in message.calls) == block.names
        return replace(message, raw_dsml=block.text) if whole and places else message

    def _keep(self, ids: Sequence[tuple[str, int | None]], text: str) -> None:
        """Store call ids for the markup block ``text``, each with the call's index in it, None if unknown."""
        new = _Block(text, tuple(call.name for call in parse(text, False).calls))
        with self._lock:
            block = self._blocks.setdefault(text, new)
            self.nbytes += _weight(text) if block is new else 0
            for call_id, place in ids:
                self._drop(call_id, spare=block)
                self._entries[call_id] = block, place
                block.ids[call_id] = None
                self.nbytes += _weight(call_id)
            while self._entries and (len(self._entries) > self.most_ids or self.nbytes > self.most_bytes):
                self._drop(next(iter(self._entries)))

    def _drop(self, call_id: str, spare: _Block | None = None) -> None:
        if call_id not in self._entries:
            return
        block, _ = self._entries.pop(call_id)
        self.nbytes -= _weight(call_id)
        del block.ids[call_id]
        if not block.ids and block is not spare:
            del self._blocks[block.text]
            self.nbytes -= _weight(block.text)


def _rendered_anew(message: Message) -> bool:
    return message.role == "assistant" and bool(message.calls) and message.raw_dsml is None


def _weight(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass")) + _OVERHEAD
