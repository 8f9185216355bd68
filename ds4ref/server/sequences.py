"""The prefix cache: reuse of evaluated prompts, from snapshots in memory and checkpoints on disk.

Agents send the whole conversation with every turn, and other requests in between (titles, summaries, sub-agents).
So every finished turn leaves two snapshots, at the end of its prompt and at the end of its answer; a prompt without a
cached prefix leaves a third one. A new prompt continues from the snapshot of its longest prefix.

Clients do not send back exactly what the model wrote: reasoning is dropped, calls are serialised differently, text
tokenizes differently. So each snapshot is found by several texts: the text of its tokens, and the texts that a later
prompt may contain for the same conversation. Its evaluated tokens stay; only the text after the match is tokenized.

A session can be saved only at its current position. So a prompt without a cached prefix is evaluated up to the position
where the next conversation may differ, saved, and then evaluated further. This split is the same with and without a
disk cache, so that both give bit-identical logits. A checkpoint that is due inside a tool call or between two progress
reports is written at the next position where it can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..generate import Timing, prefill_steps
from ..session.boundaries import Frontiers, Policy
from ..session.session import Session, Snapshot
from ..text import protocol
from ..text.rendered import Rendered, TextPart

if TYPE_CHECKING:
    from ..session.store import Store
    from ..text.tokenizer import Tokenizer

LEAST = 16
"""Minimum length in tokens of a cached sequence."""


@dataclass
class Kept:
    """A cached snapshot, and the texts that find it: a prompt that begins with one of them can continue from it."""

    snapshot: Snapshot
    texts: tuple[bytes, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens evaluated in the snapshot."""
        return self.snapshot.tokens


@dataclass(frozen=True)
class Start:
    """The starting point of a prefill.

    tokens   all tokens of the prompt
    cached   number of leading tokens that the session already holds
    source   how they were found: "memory-token" (equal tokens in memory), "memory-text" (equal text in memory), a name
             that the disk cache gives, or "none"
    """

    tokens: list[int]
    cached: int
    source: str


@dataclass
class Sequences:
    """The cached sequences (evaluated conversations) of one engine, evicted least recently used first.

    Snapshots of one conversation share the rows of its KV cache.

    budget  maximum size in memory, in bytes
    disk    the checkpoints on disk, None for none
    """

    tokenizer: Tokenizer
    budget: int = 1 << 30
    disk: Store | None = None
    _kept: list[Kept] = field(default_factory=list)
    _ctx: int = 0
    _frontiers: WeakKeyDictionary[Session, Frontiers] = field(default_factory=WeakKeyDictionary)

    @property
    def policy(self) -> Policy:
        """The rules that decide at which positions checkpoints are made."""
        return Policy() if self.disk is None else self.disk.policy

    # --- the beginning of an answer

    def begin(self, session: Session, prompt: Rendered, ids: Sequence[int]) -> Start:
        """Load the longest cached prefix of ``prompt``, whose tokens are ``ids``, into ``session``, or empty it.

        Return which tokens are to be evaluated and how many of them the session holds.
        """
        text = self.tokenizer.text_bytes(prompt.text) if prompt.parts else self.tokenizer.decode(ids)
        fits = [kept for kept in self._kept if begins(ids, kept.tokens)]
        best = max(reversed(fits), key=lambda kept: len(kept.tokens), default=None)
        rest, known, source = list(ids), 0, "none"
        if best is not None:
            rest, known, source = rest[len(best.tokens) :], len(self.tokenizer.decode(best.tokens)), "memory-token"
        match = self._by_text(text, prompt)
        if match is not None and (best is None or len(match[0].tokens) > len(best.tokens)):
            (best, known), source = match, "memory-text"
            rest = self._tail(prompt, known)
        start = self._from_disk(session, prompt, ids, text, known)
        if start is None and best is not None:
            session.restore(best.snapshot)
            self._kept.remove(best)
            self._kept.append(best)
            start = Start([*best.tokens, *rest], len(best.tokens), source)
        elif start is None:
            session.invalidate()
            start = Start(rest, 0, source)
        self._frontiers[session] = Frontiers(self.policy, start.cached)
        return start

    def _from_disk(
        self, session: Session, prompt: Rendered, ids: Sequence[int], text: bytes, known: int
    ) -> Start | None:
        """Load a checkpoint from disk that holds more of the prompt than ``known`` bytes; None if there is none.

        text: the whole prompt in bytes; ids: its tokens.
        """

        def fit(stored: Sequence[int], length: int) -> bool:
            return begins(ids, stored) or self._may_be(prompt, length, stored)

        loaded = None if self.disk is None else self.disk.load(session, text, fit, known)
        if loaded is None:
            return None
        tokens = session.tokens
        # If the tokens match, so does the rest of ``ids``; if only the text matches, what follows is tokenized anew.
        rest = list(ids[len(tokens) :]) if begins(ids, tokens) else self._tail(prompt, loaded[0])
        return Start(tokens + rest, len(tokens), loaded[1])

    # --- while it is evaluated

    def prefill(
        self,
        session: Session,
        start: Start,
        timing: Timing,
        progress: Callable[[int, int], None],
        cancel: Callable[[], bool],
    ) -> Iterator[None]:
        """Prefill a prompt and save checkpoints: a "cold" one of its beginning if nothing was cached, and "continued"
        ones at regular intervals.

        start      what ``begin`` returned
        timing     receives the tokens and seconds of the prefill, without the writing of checkpoints
        progress   called with the tokens done and their total
        cancel     whether to stop; then Cancelled is raised

        Yields after every chunk but the last, so that the caller can let other sessions compute.
        """
        total, cold = len(start.tokens), self.cold_length(start)
        frontiers = self._frontiers[session]
        before = frontiers.cold_begins(cold) if cold else 0
        timing.reused_tokens = start.cached

        def report(done: int, _: int) -> None:
            progress(done, total)
            if done > start.cached:
                self.continued(session)

        for length in [cold, total] if 0 < cold < total else [total]:
            yield from prefill_steps(session, start.tokens[:length], timing, progress=report, cancel=cancel)
            if length == cold:
                if self.disk is not None and self.disk.save(session, (), "cold"):
                    frontiers.saved(session.pos)
                else:
                    frontiers.cold_failed(session.pos, before)
                if length < total:
                    self.keep(session)
                    yield

    def cold_length(self, start: Start) -> int:
        """Return the number of tokens after which a prompt without a cached prefix is saved, 0 for never."""
        if start.source != "none":
            return 0
        return self.policy.cold(start.tokens, self.tokenizer.user, self.tokenizer.assistant)

    def continued(self, session: Session, texts: Sequence[bytes] = ()) -> None:
        """Save a checkpoint if one is due; call it after each token, but not inside a tool-call block."""
        frontiers = self._frontiers.setdefault(session, Frontiers(self.policy))
        if self.disk is not None and frontiers.due(session.pos) and self.disk.save(session, texts, "continued"):
            frontiers.saved(session.pos)

    # --- what stays

    def keep(self, session: Session, texts: Iterable[str] = ()) -> None:
        """Cache a snapshot of ``session``, to be found by the text of its tokens or by any of ``texts``.

        Evicts older snapshots beyond the budget, and writes them to disk. Does nothing below LEAST tokens.
        """
        if not session.valid or session.pos < LEAST:
            return
        own, sent = self.tokenizer.decode(session.tokens), tuple(map(self.tokenizer.text_bytes, texts))
        # The text that clients will send back comes first, since a checkpoint is named after the first text.
        known = (own, *sent) if own in sent else (*sent, own)
        same = [kept for kept in self._kept if kept.tokens == tuple(session.tokens)]
        for kept in same:
            known = (*known, *kept.texts)
            self._kept.remove(kept)
        self._kept.append(Kept(session.snapshot(), tuple(dict.fromkeys(known))))
        self._ctx = session.ctx
        self.continued(session, self._kept[-1].texts)
        while len(self._kept) > 1 and self.nbytes > self.budget:
            self._write(self._kept.pop(0), "evict")

    def write_out(self) -> None:
        """Save all cached sequences to disk at shutdown."""
        for kept in self._kept:
            self._write(kept, "shutdown")

    def kept(self) -> list[Kept]:
        """Return the cached sequences, least recently used first. Thread-safe."""
        return list(self._kept)

    @property
    def nbytes(self) -> int:
        """Total bytes of the cached sequences; shared KV rows count once."""
        own, shared = 0, dict[int, int]()
        for kept in self.kept():
            own += kept.snapshot.own_bytes
            store, rows = kept.snapshot.shared
            shared[store] = max(rows, shared.get(store, 0))
        return own + sum(shared.values())

    def __len__(self) -> int:
        return len(self._kept)

    # --- inside

    def _by_text(self, text: bytes, prompt: Rendered) -> tuple[Kept, int] | None:
        """Return the cached sequence with the longest text that the prompt begins with, and the length of that text in
        bytes; the latest of several, None if there is none."""
        best: tuple[Kept, int] | None = None
        for kept in self._kept:
            for known in kept.texts:
                if (best is None or len(known) >= best[1]) and len(known) < len(text) and text.startswith(known):
                    if self._may_be(prompt, len(known), kept.tokens):
                        best = kept, len(known)
        return best

    def _may_be(self, prompt: Rendered, known: int, tokens: Sequence[int]) -> bool:
        """Return whether ``tokens`` may represent the first ``known`` bytes of ``prompt``.

        Both must have equally many control tokens of each kind: a marker that a user typed as text is not a token.
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
                # A token may end inside a character, whose other bytes the tokenizer expects as lone surrogates.
                text = data[max(0, known - at) :].decode("utf-8", "surrogateescape")
                tail.extend([TextPart(text, part.control)])
            at += len(data)
        return tail.encode(self.tokenizer)

    def _write(self, kept: Kept, reason: str) -> None:
        """Save a sequence to disk unless a longer one in memory extends it; ``reason``: "evict" or "shutdown"."""
        if self.disk is None or len(kept.tokens) < self.disk.policy.min_tokens:
            return
        if any(len(one.tokens) > len(kept.tokens) and begins(one.tokens, kept.tokens) for one in self._kept):
            return
        session = Session(kept.snapshot.model, self._ctx)
        session.restore(kept.snapshot)
        self.disk.save(session, kept.texts, reason)


def begins(ids: Sequence[int], tokens: Sequence[int]) -> bool:
    """Return whether ``ids`` begin with ``tokens``."""
    n = len(tokens)
    return n <= len(ids) and (n == 0 or ids[n - 1] == tokens[-1]) and tuple(ids[:n]) == tuple(tokens)
