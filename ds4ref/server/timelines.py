"""What was evaluated before and can be gone on with: snapshots in memory, checkpoints on disk.

Agents send a whole conversation again with every turn, and other requests between its turns (titles, summaries,
sub-agents). So every finished turn leaves two snapshots, one at the end of its prompt and one at the end of its answer,
a prompt that begins like no other a third one (``saving``), and a new prompt goes on from the one that holds its
longest beginning.

What a client sends back is not what the model wrote: reasoning is left out, calls are written anew, text is cut into
other tokens. A snapshot is therefore known by texts: that of its tokens, and those that the conversation so far would
be rendered as with this turn in its history. Tokens are kept as they were evaluated, and only what follows the text
that was recognised is made into tokens.

Snapshots of one conversation share their rows: what they take together is counted once (``Timelines.nbytes``).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..session.boundaries import Frontiers, Policy
from ..session.session import Session, Snapshot
from ..text import protocol
from ..text.rendered import Part, Rendered

if TYPE_CHECKING:
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


Fit = Callable[[Sequence[int], int], bool]


class Checkpoints(Protocol):
    """Timelines that outlive the process (``session.store``). Neither of these ever raises."""

    policy: Policy

    def load(self, session: Session, text: bytes, fit: Fit, beyond: int = 0) -> tuple[int, str] | None:
        """Bring ``session`` to the longest checkpoint whose text begins ``text`` and has more than ``beyond`` bytes;
        the bytes of its text, and a word on where it came from. None leaves the session as it was. ``fit``: whether
        tokens may stand for so many bytes."""

    def save(self, session: Session, texts: Sequence[bytes], reason: str) -> bool:
        """Keep what the session holds, known best by the first of ``texts`` (none: that of its tokens). Whether it is
        kept: a cache that cannot be written is only a slow one."""


@dataclass
class Timelines:
    """The snapshots of one engine, most recently used last, in ``budget`` bytes."""

    tokenizer: Tokenizer
    budget: int = 1 << 30
    disk: Checkpoints | None = None
    clock: Callable[[], float] = time.monotonic
    frontiers: Frontiers = field(init=False)
    _kept: OrderedDict[int, Timeline] = field(default_factory=OrderedDict)
    _count: int = 0
    _ctx: int = 0

    def __post_init__(self) -> None:
        self._goes_on_from(0)

    def _goes_on_from(self, tokens: int) -> None:
        """The session was brought to so many tokens."""
        self.frontiers = Frontiers(self.policy, tokens)

    @property
    def policy(self) -> Policy:
        """What is kept, by its length."""
        return Policy() if self.disk is None else self.disk.policy

    def begin(self, session: Session, prompt: Rendered, ids: Sequence[int]) -> Start:
        """Bring ``session`` to the longest known beginning of ``prompt`` (whose own tokens are ``ids``)."""
        text = self.tokenizer.text_bytes(prompt.text) if prompt.parts else self.tokenizer.decode(ids)
        best: Timeline | None = None
        rest, known, source = list(ids), 0, "none"
        for timeline in self._kept.values():
            n = len(timeline.tokens)
            if _begins(ids, timeline.tokens) and (best is None or n >= len(best.tokens)):
                best, rest, source = timeline, list(ids[n:]), "memory-token"
                known = len(self.tokenizer.decode(timeline.tokens))
        found = self._by_text(text, prompt)
        if found is not None and (best is None or len(found[0].tokens) > len(best.tokens)):
            best, rest, source, known = found[0], self._tail(prompt, found[1]), "memory-text", found[1]
        start = self._from_disk(session, prompt, ids, text, known)
        if start is not None:
            return start
        if best is not None:
            self.resume(session, best)
            return Start([*best.tokens, *rest], len(best.tokens), source)
        self._goes_on_from(0)
        session.invalidate()
        return Start(rest, 0, source)

    def _from_disk(
        self, session: Session, prompt: Rendered, ids: Sequence[int], text: bytes, known: int
    ) -> Start | None:
        """From a checkpoint that knows more than ``known`` bytes of the prompt, if there is one."""

        def fit(held: Sequence[int], length: int) -> bool:
            return _begins(ids, held) or self._may_be(prompt, length, held)

        loaded = None if self.disk is None else self.disk.load(session, text, fit, known)
        if loaded is None:
            return None
        held = session.tokens
        self._goes_on_from(len(held))
        # Tokens of one's own are those of a cold start; cut in the text, some may be others.
        rest = list(ids[len(held) :]) if _begins(ids, held) else self._tail(prompt, loaded[0])
        return Start(held + rest, len(held), loaded[1])

    def resume(self, session: Session, timeline: Timeline) -> None:
        """Bring ``session`` to a timeline."""
        session.restore(timeline.snapshot)
        timeline.used, timeline.hits = self.clock(), timeline.hits + 1
        self._touch(timeline)
        self._goes_on_from(len(timeline.tokens))

    def answering(self, calls: Iterable[str]) -> Timeline | None:
        """The timeline whose last turn made exactly these calls."""
        wanted = frozenset(calls)
        found = [t for t in self._kept.values() if t.calls and t.calls == wanted]
        return max(found, key=lambda t: t.used, default=None)

    def keep(self, session: Session, texts: Iterable[str], calls: Iterable[str] = ()) -> None:
        """Remember where ``session`` is, under the text of its tokens and ``texts``."""
        if not session.valid or session.pos < LEAST:
            return
        own, sent = self.tokenizer.decode(session.tokens), tuple(map(self.tokenizer.text_bytes, texts))
        # What clients send back comes first: a checkpoint is named after that.
        known = (own, *sent) if own in sent else (*sent, own)
        for key in [k for k, t in self._kept.items() if t.tokens == tuple(session.tokens)]:
            known = (*known, *self._kept.pop(key).texts)
        timeline = Timeline(session.snapshot(), tuple(dict.fromkeys(known)), frozenset(calls), self.clock())
        self._count += 1
        self._kept[self._count] = timeline
        self._ctx = session.ctx
        if self.disk is not None and self.frontiers.due(session.pos):
            if self.disk.save(session, timeline.texts, "continued"):
                self.frontiers.saved(session.pos)
        self._fit()

    def write_out(self) -> None:
        """Put on disk what only memory holds: the process is about to end."""
        for timeline in self._kept.values():
            self._write(timeline, "shutdown")

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

    def _by_text(self, text: bytes, prompt: Rendered) -> tuple[Timeline, int] | None:
        best: tuple[Timeline, int] | None = None
        for timeline in self._kept.values():
            for known in timeline.texts:
                if (best is None or len(known) >= best[1]) and len(known) < len(text) and text.startswith(known):
                    if self._may_be(prompt, len(known), timeline.tokens):
                        best = timeline, len(known)
        return best

    def _may_be(self, prompt: Rendered, known: int, tokens: Sequence[int]) -> bool:
        """Whether ``tokens`` may stand for the first ``known`` bytes of ``prompt``: what looks like the end of a turn
        in a text that somebody wrote must not have been one."""
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
        held = Counter(tokens)
        return bool(prompt.parts) and all(counts[name] == held[self.tokenizer.special_id(name)] for name in names)

    def _tail(self, prompt: Rendered, known: int) -> list[int]:
        """Tokens of ``prompt`` after its first ``known`` bytes."""
        tail, at = Rendered(), 0
        for part in prompt.parts:
            data = self.tokenizer.text_bytes(part.text)
            if at + len(data) > known:
                # A token may end inside a character: its other bytes become lone surrogates, as the tokenizer has them.
                text = data[max(0, known - at) :].decode("utf-8", "surrogateescape")
                tail.extend([Part(text, part.control)])
            at += len(data)
        return tail.encode(self.tokenizer)

    def _touch(self, timeline: Timeline) -> None:
        key = next(k for k, t in self._kept.items() if t is timeline)
        self._kept.move_to_end(key)

    def _fit(self) -> None:
        """Forget what was not used for longest; the newest stays."""
        while len(self._kept) > 1 and self.nbytes > self.budget:
            _, timeline = self._kept.popitem(last=False)
            self._write(timeline, "evict")

    def _write(self, timeline: Timeline, reason: str) -> None:
        """Put a timeline on disk, unless a longer one in memory goes on from it."""
        if self.disk is None or len(timeline.tokens) < self.disk.policy.min_tokens:
            return
        if any(len(t.tokens) > len(timeline.tokens) and _begins(t.tokens, timeline.tokens) for t in self.kept()):
            return
        session = Session(timeline.snapshot.model, self._ctx)
        session.restore(timeline.snapshot)
        self.disk.save(session, timeline.texts, reason)


def _begins(ids: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether ``ids`` begin with ``tokens``."""
    n = len(tokens)
    return n <= len(ids) and (n == 0 or ids[n - 1] == tokens[-1]) and tuple(ids[:n]) == tuple(tokens)
