"""Reuse of evaluated prompts: snapshots in memory, checkpoints on disk.

Agents send the whole conversation again with every turn, and other requests in between (titles, summaries, sub-agents).
So every finished turn leaves two snapshots, at the end of its prompt and at the end of its answer; a prompt without a
cached prefix leaves a third one (``saving``). A new prompt continues from the snapshot of its longest prefix.

Clients do not send back exactly what the model wrote: reasoning is dropped, calls are serialised differently, text
tokenizes differently. So a snapshot is found by any of several texts: the text of its tokens, and the texts as which a
later prompt may render the same conversation. The evaluated tokens stay; only the text after the match is tokenized.

Snapshots of one conversation share KV rows; ``Timelines.nbytes`` counts shared rows once.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..session.boundaries import Frontiers, Policy
from ..session.session import Session, Snapshot
from ..text import protocol
from ..text.rendered import Rendered, TextPart

if TYPE_CHECKING:
    from ..session.store import Store
    from ..text.tokenizer import Tokenizer

LEAST = 16
"""Minimum length in tokens of a cached timeline."""


@dataclass
class Timeline:
    """A cached snapshot.

    texts   the texts by which the snapshot is found, as a prefix of a prompt
    used    time of the last use (``Timelines.clock``)
    hits    number of uses
    """

    snapshot: Snapshot
    texts: tuple[bytes, ...]
    used: float = 0.0
    hits: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens evaluated in the snapshot."""
        return self.snapshot.tokens


@dataclass(frozen=True)
class Start:
    """The starting point of a prefill.

    tokens   all tokens of the prompt
    cached   number of leading tokens that the session already holds
    source   where they come from: "memory-token", "memory-text", a name of the disk cache, or "none"
    """

    tokens: list[int]
    cached: int
    source: str


@dataclass
class Timelines:
    """The cached timelines of one engine, at most ``budget`` bytes, evicted least recently used first."""

    tokenizer: Tokenizer
    budget: int = 1 << 30
    disk: Store | None = None
    clock: Callable[[], float] = time.monotonic
    _kept: OrderedDict[int, Timeline] = field(default_factory=OrderedDict)
    _count: int = 0
    _ctx: int = 0
    _frontiers: WeakKeyDictionary[Session, Frontiers] = field(default_factory=WeakKeyDictionary)

    def frontiers(self, session: Session) -> Frontiers:
        """Return the schedule of checkpoints of the timeline that ``session`` is evaluating."""
        return self._frontiers.get(session) or self._restart_frontiers(session, 0)

    def _restart_frontiers(self, session: Session, tokens: int) -> Frontiers:
        """Restart the schedule of checkpoints of ``session`` at this number of tokens."""
        found = self._frontiers[session] = Frontiers(self.policy, tokens)
        return found

    @property
    def policy(self) -> Policy:
        """The rules by which positions are saved to disk."""
        return Policy() if self.disk is None else self.disk.policy

    def begin(self, session: Session, prompt: Rendered, ids: Sequence[int]) -> Start:
        """Bring ``session`` to the longest cached prefix of ``prompt``; ``ids``: the tokens of ``prompt``."""
        text = self.tokenizer.text_bytes(prompt.text) if prompt.parts else self.tokenizer.decode(ids)
        best: Timeline | None = None
        rest, known, source = list(ids), 0, "none"
        for timeline in self._kept.values():
            n = len(timeline.tokens)
            if begins(ids, timeline.tokens) and (best is None or n >= len(best.tokens)):
                best, rest, source = timeline, list(ids[n:]), "memory-token"
                known = len(self.tokenizer.decode(timeline.tokens))
        match = self._by_text(text, prompt)
        if match is not None and (best is None or len(match[0].tokens) > len(best.tokens)):
            best, rest, source, known = match[0], self._tail(prompt, match[1]), "memory-text", match[1]
        start = self._from_disk(session, prompt, ids, text, known)
        if start is not None:
            return start
        if best is not None:
            self.resume(session, best)
            return Start([*best.tokens, *rest], len(best.tokens), source)
        self._restart_frontiers(session, 0)
        session.invalidate()
        return Start(rest, 0, source)

    def _from_disk(
        self, session: Session, prompt: Rendered, ids: Sequence[int], text: bytes, known: int
    ) -> Start | None:
        """Start from a checkpoint on disk with more than ``known`` bytes of the prompt, None if there is none."""

        def fit(stored: Sequence[int], length: int) -> bool:
            return begins(ids, stored) or self._may_be(prompt, length, stored)

        loaded = None if self.disk is None else self.disk.load(session, text, fit, known)
        if loaded is None:
            return None
        tokens = session.tokens
        self._restart_frontiers(session, len(tokens))
        # If the tokens match, the rest is as in a cold start; a match of text may tokenize differently at the cut.
        rest = list(ids[len(tokens) :]) if begins(ids, tokens) else self._tail(prompt, loaded[0])
        return Start(tokens + rest, len(tokens), loaded[1])

    def resume(self, session: Session, timeline: Timeline) -> None:
        """Restore ``session`` from a cached timeline and record the use."""
        session.restore(timeline.snapshot)
        timeline.used, timeline.hits = self.clock(), timeline.hits + 1
        self._touch(timeline)
        self._restart_frontiers(session, len(timeline.tokens))

    def keep(self, session: Session, texts: Iterable[str] = ()) -> None:
        """Cache the current state of ``session``, to be found by the text of its tokens or by any of ``texts``."""
        if not session.valid or session.pos < LEAST:
            return
        own, sent = self.tokenizer.decode(session.tokens), tuple(map(self.tokenizer.text_bytes, texts))
        # First the text that clients will send back: a checkpoint is named after it.
        known = (own, *sent) if own in sent else (*sent, own)
        for key in [k for k, t in self._kept.items() if t.tokens == tuple(session.tokens)]:
            known = (*known, *self._kept.pop(key).texts)
        timeline = Timeline(session.snapshot(), tuple(dict.fromkeys(known)), self.clock())
        self._count += 1
        self._kept[self._count] = timeline
        self._ctx = session.ctx
        frontiers = self.frontiers(session)
        if self.disk is not None and frontiers.due(session.pos):
            if self.disk.save(session, timeline.texts, "continued"):
                frontiers.saved(session.pos)
        self._fit()

    def write_out(self) -> None:
        """Save all cached timelines to disk at shutdown."""
        for timeline in self._kept.values():
            self._write(timeline, "shutdown")

    def kept(self) -> list[Timeline]:
        """Return the cached timelines, least recently used first. Thread-safe."""
        return list(self._kept.values())

    @property
    def nbytes(self) -> int:
        """Total bytes of the cached timelines; shared KV rows count once."""
        own, shared = 0, dict[int, int]()
        for timeline in self.kept():
            own += timeline.snapshot.own_bytes
            store, rows = timeline.snapshot.shared
            shared[store] = max(rows, shared.get(store, 0))
        return own + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Drop all cached timelines."""
        self._kept.clear()

    # --- inside

    def _by_text(self, text: bytes, prompt: Rendered) -> tuple[Timeline, int] | None:
        best: tuple[Timeline, int] | None = None
        for timeline in self._kept.values():
            for known in timeline.texts:
                if (best is None or len(known) >= best[1]) and len(known) < len(text) and text.startswith(known):
                    if self._may_be(prompt, len(known), timeline.tokens):
                        best = timeline, len(known)
        return best

    def _may_be(self, prompt: Rendered, known: int, tokens: Sequence[int]) -> bool:
        """Return whether ``tokens`` may represent the first ``known`` bytes of ``prompt``.

        Control tokens must match: a marker that a user spelled as text must not be taken for the token.
        """
        names = protocol.BOS, protocol.EOS, protocol.USER, protocol.ASSISTANT
        counts, at = Counter[str](), 0
        for text, control in prompt.parts:
            done = 0
            for match in control.finditer(text) if control is not None and at < known else ():
                at += len(self.tokenizer.text_bytes(text[done : match.start()]))
                done = match.start()
                if at >= known:
                    break
                counts[match.group()] += 1
            at += len(self.tokenizer.text_bytes(text[done:]))
        occurrences = Counter(tokens)
        return bool(prompt.parts) and all(
            counts[name] == occurrences[self.tokenizer.special_id(name)] for name in names
        )

    def _tail(self, prompt: Rendered, known: int) -> list[int]:
        """Return the tokens of ``prompt`` after its first ``known`` bytes."""
        tail, at = Rendered(), 0
        for part in prompt.parts:
            data = self.tokenizer.text_bytes(part.text)
            if at + len(data) > known:
                # A token may end inside a character: its other bytes become lone surrogates, as the tokenizer has them.
                text = data[max(0, known - at) :].decode("utf-8", "surrogateescape")
                tail.extend([TextPart(text, part.control)])
            at += len(data)
        return tail.encode(self.tokenizer)

    def _touch(self, timeline: Timeline) -> None:
        key = next(k for k, t in self._kept.items() if t is timeline)
        self._kept.move_to_end(key)

    def _fit(self) -> None:
        """Evict the least recently used timelines until the rest fits the budget; the newest stays."""
        while len(self._kept) > 1 and self.nbytes > self.budget:
            _, timeline = self._kept.popitem(last=False)
            self._write(timeline, "evict")

    def _write(self, timeline: Timeline, reason: str) -> None:
        """Save a timeline to disk unless a longer one in memory extends it."""
        if self.disk is None or len(timeline.tokens) < self.disk.policy.min_tokens:
            return
        if any(len(t.tokens) > len(timeline.tokens) and begins(t.tokens, timeline.tokens) for t in self.kept()):
            return
        session = Session(timeline.snapshot.model, self._ctx)
        session.restore(timeline.snapshot)
        self.disk.save(session, timeline.texts, reason)


def begins(ids: Sequence[int], tokens: Sequence[int]) -> bool:
    """Return whether ``ids`` begin with ``tokens``."""
    n = len(tokens)
    return n <= len(ids) and (n == 0 or ids[n - 1] == tokens[-1]) and tuple(ids[:n]) == tuple(tokens)
