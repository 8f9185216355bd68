"""Memory of tool calls as the model wrote them, by call id.

    memory.remember(answer)             after a turn: its block of markup, under the id of each of its calls
    messages = memory.attach(messages)  before the next prompt is rendered: restores the same bytes

A client sends its history back in its own spelling: other spaces in arguments, another order of keys, other line
breaks. A prompt rendered from that differs from what was evaluated, so that everything after the difference would be
evaluated again. So calls are recognised by id alone, never by text. If the ids are unknown, or belong to other calls
than the client sends (another number, order or name), the calls are rendered canonically (``text.dsml``).

Checkpoints on disk include the calls in their text (``map_of``, ``load_map``), so that calls outlive the process.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace

from ..text.chat import Message
from ..text.dsml_parser import parse
from ..text.protocol import DIALECTS, WHITESPACE

MOST_IDS = 100_000
MOST_BYTES = 512 << 20
MOST_ID, MOST_BLOCK = 256, 512 << 20
"""Maximum bytes of one id, and of one block, read from a checkpoint."""

_OVERHEAD = 96
_ENDS = 16
_SPACES = 64
_MAGIC = b"KTM\x01"


@dataclass
class Stats:
    """Counts of assistant messages with tool calls, by source of their markup.

    mem         from memory
    disk        from a checkpoint
    canonical   rendered anew
    missing     number of unknown call ids
    """

    mem: int = 0
    disk: int = 0
    canonical: int = 0
    missing: int = 0

    def add(self, other: Stats) -> None:
        """Add the counts of ``other``."""
        for name in (field.name for field in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Block:
    """A block of calls as written, its ids (oldest first) and the names of its calls."""

    def __init__(self, text: str):
        self.text = text
        self.ids: dict[str, None] = {}
        self.names = tuple(call.name for call in parse(text, False).calls)

    @property
    def nbytes(self) -> int:
        return len(self.text.encode("utf-8", "surrogatepass")) + _OVERHEAD


@dataclass
class _Entry:
    """An id: its block, the index of its call in it (None: unknown), and whether it came from disk."""

    block: _Block
    place: int | None
    disk: bool


class Memory:
    """Thread-safe memory of tool calls, least recently used evicted first, limited in ids and bytes.

    ``enabled`` False: nothing is stored, and every call is rendered canonically.
    """

    def __init__(self, ids: int = MOST_IDS, nbytes: int = MOST_BYTES, enabled: bool = True):
        self.most_ids, self.most_bytes, self.enabled = ids, nbytes, enabled
        self.stats = Stats()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._blocks: dict[str, _Block] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes of ids, markup blocks and bookkeeping."""
        with self._lock:
            return self._nbytes

    def __contains__(self, call_id: str) -> bool:
        with self._lock:
            return call_id in self._entries

    # --- a conversation

    def remember(self, answer: Message) -> None:
        """Store the markup block of a finished answer, if all its calls have ids."""
        if answer.raw_dsml and answer.calls and all(call.id for call in answer.calls):
            self._keep([(call.id, i) for i, call in enumerate(answer.calls)], answer.raw_dsml, False)

    def attach(self, messages: Iterable[Message], stats: Stats | None = None) -> list[Message]:
        """Return the messages; an assistant message whose call ids all belong to one block gets that block's markup.

        Counts are added to ``stats``.
        """
        result, counted = [], Stats()
        with self._lock:
            for message in messages:
                if message.role == "assistant" and message.calls and message.raw_dsml is None:
                    message = self._attached(message, counted)
                result.append(message)
            self.stats.add(counted)
        if stats is not None:
            stats.add(counted)
        return result

    def missing(self, messages: Iterable[Message]) -> set[str]:
        """Return the call ids of a history that are not in memory, to be looked up on disk."""
        wanted = {call.id for message in messages if message.role == "assistant" for call in message.calls if call.id}
        with self._lock:
            return {call_id for call_id in wanted if call_id not in self._entries} if self.enabled else set()

    # --- on disk

    def entries(self, text: str) -> list[tuple[str, str]]:
        """Return (id, block) pairs for every known markup block in ``text``, the latest ids of each first."""
        with self._lock:
            lengths = set(map(len, self._blocks))
            blocks: dict[str, _Block] = {}
            for start, end in _places(text, lengths):
                block = self._blocks.get(text[start:end])
                if block is not None:
                    blocks.setdefault(block.text, block)
            return [(call_id, block.text) for block in blocks.values() for call_id in reversed(block.ids)]

    def load(self, entries: Iterable[tuple[str, str]], wanted: Collection[str] | None = None) -> int:
        """Add (id, block) pairs, restricted to the ids in ``wanted`` unless None; return the number of new ids.

        Ids already in memory stay unchanged.
        """
        new = 0
        for call_id, text in entries:
            if (wanted is None or call_id in wanted) and call_id not in self:
                self._keep([(call_id, None)], text, True)
                new += 1
        return new if self.enabled else 0

    def map_of(self, text: str) -> bytes:
        """Return ``entries(text)`` as the "KTM" section of a checkpoint file; b"" if there are none."""
        pairs = [(a.encode(), b.encode("utf-8", "surrogatepass")) for a, b in self.entries(text)]
        pairs = [(call_id, block) for call_id, block in pairs if len(call_id) <= MOST_ID]
        if not pairs:
            return b""
        body = b"".join(struct.pack("<II", len(a), len(b)) + a + b for a, b in pairs)
        return _MAGIC + struct.pack("<I", len(pairs)) + body

    def load_map(self, data: bytes, wanted: Collection[str] | None = None) -> int:
        """Add the pairs of a checkpoint's "KTM" section, restricted to ids in ``wanted``; return the number of new ids.

        A damaged section is read up to the damage; one with too many entries is ignored.
        """
        return self.load(read_map(data, 4 * self.most_ids), wanted)

    # --- inside

    def _attached(self, message: Message, counted: Stats) -> Message:
        ids = [call.id for call in message.calls]
        known = [entry for call_id in ids if (entry := self._entries.get(call_id)) is not None]
        counted.missing += len(ids) - len(known)
        for call_id in ids:
            if call_id in self._entries:
                self._entries.move_to_end(call_id)
        if not self.enabled or not known or not self._same(message, ids, known):
            counted.canonical += 1
            return message
        if any(entry.disk for entry in known):
            counted.disk += 1
        else:
            counted.mem += 1
        return replace(message, raw_dsml=known[0].block.text)

    @staticmethod
    def _same(message: Message, ids: Sequence[str], known: Sequence[_Entry]) -> bool:
        """Return whether the client's calls are all those of one block, in order."""
        block = known[0].block
        return (
            len(known) == len(ids) == len(set(ids)) == len(block.names)
            and all(entry.block is block and entry.place in (None, i) for i, entry in enumerate(known))
            and all(call.name == name for call, name in zip(message.calls, block.names, strict=True))
        )

    def _keep(self, ids: Sequence[tuple[str, int | None]], text: str, disk: bool) -> None:
        if not self.enabled:
            return
        new = _Block(text)
        with self._lock:
            block = self._blocks.setdefault(text, new)
            self._nbytes += block.nbytes if block is new else 0
            for call_id, place in ids:
                self._drop(call_id, spare=block)
                self._entries[call_id] = _Entry(block, place, disk)
                block.ids[call_id] = None
                self._nbytes += len(call_id.encode("utf-8", "surrogatepass")) + _OVERHEAD
            while self._entries and (len(self._entries) > self.most_ids or self._nbytes > self.most_bytes):
                self._drop(next(iter(self._entries)))

    def _drop(self, call_id: str, spare: _Block | None = None) -> None:
        entry = self._entries.pop(call_id, None)
        if entry is None:
            return
        self._nbytes -= len(call_id.encode("utf-8", "surrogatepass")) + _OVERHEAD
        del entry.block.ids[call_id]
        if not entry.block.ids and entry.block is not spare:
            del self._blocks[entry.block.text]
            self._nbytes -= entry.block.nbytes


def read_map(data: bytes, most: int = 4 * MOST_IDS) -> list[tuple[str, str]]:
    """Return the (id, block) pairs of a checkpoint's "KTM" section, up to the first damaged one."""
    if data[:4] != _MAGIC or len(data) < 8 or (count := struct.unpack_from("<I", data, 4)[0]) > most:
        return []
    pairs, at = [], 8
    for _ in range(count):
        if at + 8 > len(data):
            break
        id_length, length = struct.unpack_from("<II", data, at)
        at += 8
        if not (0 < id_length <= MOST_ID and 0 < length <= MOST_BLOCK) or at + id_length + length > len(data):
            break
        try:
            call_id = data[at : at + id_length].decode()
            block = data[at + id_length : at + id_length + length].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            break
        pairs.append((call_id, block))
        at += id_length + length
    return pairs


def _places(text: str, lengths: Collection[int]) -> Iterable[tuple[int, int]]:
    """Yield (start, end) of possible blocks in ``text`` with one of ``lengths``.

    A block starts at an opener or in the white space before it, and ends at one of the next end tags (a string may
    contain one, too).
    """
    for tags in DIALECTS:
        closers = list(_finds(text, tags.block_close))
        for opened in _finds(text, tags.block_open):
            at = before = opened - len(tags.block_open)
            while before > 0 and at - before < _SPACES and text[before - 1] in WHITESPACE:
                before -= 1
            first = bisect_left(closers, opened)
            for end in closers[first : first + _ENDS]:
                yield from ((start, end) for start in range(before, at + 1) if end - start in lengths)


def _finds(text: str, word: str) -> Iterable[int]:
    """Yield the ends of the occurrences of ``word``."""
    at = text.find(word)
    while at >= 0:
        yield at + len(word)
        at = text.find(word, at + len(word))
