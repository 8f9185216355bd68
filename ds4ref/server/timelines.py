"""What was evaluated before and can be gone on with: snapshots in memory, checkpoints on disk.

Agents send a whole conversation again with every turn, and other requests between its turns (titles, summaries,
sub-agents). So every finished turn leaves two snapshots, one at the end of its prompt and one at the end of its answer,
and a new prompt goes on from the one that holds its longest beginning.

What a client sends back is not what the model wrote: reasoning is left out, calls are written anew, text is cut into
other tokens. A snapshot is therefore known by texts: that of its tokens, and those that the conversation so far would
be rendered as with this turn in its history. Tokens are kept as they were evaluated, and only what follows the text
that was recognised is made into tokens.

Snapshots of one conversation share their rows: what they take together is counted once (``Timelines.nbytes``).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..text.rendered import Part, Rendered

if TYPE_CHECKING:
    from ..session.session import Session, Snapshot
    from ..text.tokenizer import Tokenizer

LEAST = 16
"""Tokens below which a snapshot is not worth keeping."""


@dataclass
class Timeline:
    """A snapshot with the texts that it is known by and the ids of the calls that its last turn made."""

    snapshot: Snapshot
    texts: tuple[bytes, ...]
    calls: frozenset[str] = frozenset()
    used: float = 0.0
    hits: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """What was evaluated."""
        return self.snapshot.tokens


@dataclass(frozen=True)
class Start:
    """Where a prompt begins to be evaluated: all its ``tokens``, the first ``cached`` of which the session holds."""

    tokens: list[int]
    cached: int
    source: str


class Checkpoints(Protocol):
    """Timelines that outlive the process (``session.store``)."""

    def load(self, session: Session, text: bytes) -> tuple[int, str] | None:
        """Bring ``session`` to the longest checkpoint whose text begins ``text``; the bytes of its text, and a word on
        where it came from. None leaves the session as it was."""

    def save(self, session: Session, texts: Sequence[bytes], reason: str) -> None:
        """Keep what the session holds. Never raises: a cache that cannot be written is only a slow one."""


@dataclass
class Timelines:
    """The snapshots of one engine, most recently used last, in ``budget`` bytes."""

    tokenizer: Tokenizer
    budget: int = 1 << 30
    disk: Checkpoints | None = None
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[int, Timeline] = field(default_factory=OrderedDict)
    _count: int = 0

    def begin(self, session: Session, prompt: Rendered, ids: Sequence[int]) -> Start:
        """Bring ``session`` to the longest known beginning of ``prompt`` (whose own tokens are ``ids``)."""
        text = prompt.text.encode("utf-8", "surrogatepass")
        best: Timeline | None = None
        rest: list[int] = []
        source = "none"
        for timeline in self._kept.values():
            n = len(timeline.tokens)
            if n <= len(ids) and timeline.tokens == tuple(ids[:n]) and (best is None or n >= len(best.tokens)):
                best, rest, source = timeline, list(ids[n:]), "memory-token"
        found = self._by_text(text)
        if found is not None and (best is None or len(found[0].tokens) > len(best.tokens)):
            best, rest, source = found[0], self._tail(prompt, found[1]), "memory-text"
        if best is not None:
            session.restore(best.snapshot)
            best.used, best.hits = self.clock(), best.hits + 1
            self._touch(best)
            return Start([*best.tokens, *rest], len(best.tokens), source)
        if self.disk is not None:
            loaded = self.disk.load(session, text)
            if loaded is not None:
                known, source = loaded
                held = list(session.tokens)
                return Start(held + self._tail(prompt, known), len(held), source)
        session.invalidate()
        return Start(list(ids), 0, "none")

    def answering(self, calls: Iterable[str]) -> Timeline | None:
        """The timeline whose last turn made exactly these calls."""
        wanted = frozenset(calls)
        found = [t for t in self._kept.values() if t.calls and t.calls == wanted]
        return max(found, key=lambda t: t.used, default=None)

    def keep(self, session: Session, texts: Iterable[str], calls: Iterable[str] = ()) -> None:
        """Remember where ``session`` is, under the text of its tokens and ``texts``."""
        if not session.valid or session.pos < LEAST:
            return
        own = b"".join(map(self.tokenizer.token_bytes, session.tokens))
        known = (own, *(text.encode("utf-8", "surrogatepass") for text in texts))
        for key in [k for k, t in self._kept.items() if t.tokens == tuple(session.tokens)]:
            known = (*known, *self._kept.pop(key).texts)
        timeline = Timeline(session.snapshot(), tuple(dict.fromkeys(known)), frozenset(calls), self.clock())
        self._count += 1
        self._kept[self._count] = timeline
        self._fit()

    def kept(self) -> list[Timeline]:
        """Those that are remembered, least recently used first. Safe to call from any thread."""
        return list(self._kept.values())

    @property
    def nbytes(self) -> int:
        """Memory that all of them take."""
        own, shared = 0, dict[int, int]()
        for timeline in self.kept():
            own += timeline.snapshot.own_bytes
            store, rows = timeline.snapshot.shared
            shared[store] = max(rows, shared.get(store, 0))
        return own + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()

    # --- inside

    def _by_text(self, text: bytes) -> tuple[Timeline, int] | None:
        best: tuple[Timeline, int] | None = None
        for timeline in self._kept.values():
            for known in timeline.texts:
                if (best is None or len(known) >= best[1]) and len(known) < len(text) and text.startswith(known):
                    best = timeline, len(known)
        return best

    def _tail(self, prompt: Rendered, known: int) -> list[int]:
        """Tokens of ``prompt`` after its first ``known`` bytes."""
        tail, at = Rendered(), 0
        for part in prompt.parts:
            data = part.text.encode("utf-8", "surrogatepass")
            if at + len(data) > known:
                text = data[max(0, known - at) :].decode("utf-8", "surrogatepass")
                tail.extend([Part(text, part.control)])
            at += len(data)
        return tail.encode(self.tokenizer)

    def _touch(self, timeline: Timeline) -> None:
        key = next(k for k, t in self._kept.items() if t is timeline)
        self._kept.move_to_end(key)

    def _fit(self) -> None:
        """Forget what was not used for longest; the newest stays."""
        while len(self._kept) > 1 and self.nbytes > self.budget:
            self._kept.popitem(last=False)
