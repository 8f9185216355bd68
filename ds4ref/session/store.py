"""Checkpoints of sessions, kept in a folder and found by the beginning of a prompt; they outlive the process.

    store = Store.open(engine, "checkpoints", budget=4 << 30)
    store.save(session, (), "cold")
    found = store.load(other_session, prompt)       # (bytes of the prompt that it covers, "disk-text"), or None

A checkpoint is found by the text of its tokens. If clients will send back another text (without the reasoning), the
checkpoint is saved under several texts: the first one determines the file's name, by which ds4 looks for it, and the
others are listed in the integrity section, so that one payload is found by all of them.

A checkpoint never fails a request and never gives a wrong answer. A checkpoint from another model, rounding, tokenizer
or template is skipped; a damaged one is renamed and the next best one tried; a failed write is ignored. ds4's own files
do not record which engine computed them: only their sizes, names and token texts can be checked.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from ..errors import PayloadError, PayloadMismatch
from . import kvc
from .boundaries import Policy
from .directory import Directory, StoredCheckpoint, fits
from .identity import Identity
from .kvc import Checkpoint, Damaged, Header, Integrity, Unknown

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer
    from .session import Session

log = logging.getLogger("ds4-kv")

BUDGET = 4096 << 20
SOURCE = "disk-text"
MAX_KEYS = 64

Fit = Callable[[Sequence[int], int], bool]


class Calls(Protocol):
    """Interface to the tool calls that a server remembers, by call id. A block is the markup of one or more calls, as
    the model generated it."""

    def ids_of(self, block: str) -> Sequence[str]:
        """Return the ids of the calls in a block, latest first; empty if the block is unknown."""

    def restore(self, call: str, block: str) -> None:
        """Remember ``block``, which was read from a checkpoint, as the markup of the call with the id ``call``."""


class Store:
    """The checkpoints that one engine saves and loads. Use a session from one thread at a time; ``find_calls`` may be
    called from any.

    calls   remembered tool calls, saved to and restored from the tool maps of checkpoints
    """

    def __init__(
        self,
        directory: Directory,
        identity: Identity,
        tokenizer: Tokenizer,
        policy: Policy | None = None,
        *,
        calls: Calls | None = None,
    ):
        self.directory, self.identity, self.tokenizer = directory, identity, tokenizer
        self.policy, self.calls = policy or Policy(), calls
        self._ids: dict[tuple[str, tuple[int, int, int]], frozenset[str]] = {}
        self._passed: set[tuple[str, tuple[int, int], int]] = set()  # intact, but of no use in that context size
        self._guard = threading.Lock()

    @classmethod
    def open(
        cls,
        engine: Any,
        path: str | os.PathLike[str],
        budget: int = BUDGET,
        policy: Policy | None = None,
        **options: Any,
    ) -> Store:
        """Open the store in the folder ``path``, which may take ``budget`` bytes and is created if missing; if that
        fails, log a warning and return a store that finds no checkpoint."""
        directory = Directory(path, budget)
        try:
            directory.open()
        except OSError as error:
            log.warning("kv cache: no checkpoints in %s: %s", directory.path, error.strerror or error)
        return cls(directory, Identity.of(engine), engine.tokenizer, policy, **options)

    # --- loading

    def load(
        self, session: Session, text: bytes, fit: Fit = lambda tokens, known: True, beyond: int = 0
    ) -> tuple[int, str] | None:
        """Load into ``session`` the longest checkpoint whose key is a prefix of ``text`` longer than ``beyond`` bytes.

        Return (length of the key in bytes, name of the source), or None with the session unchanged. ``fit(tokens,
        length)`` returns whether the checkpoint's tokens may stand for the first ``length`` bytes of the text. Never
        raises.
        """
        try:
            for known, entry in self.directory.matching(text, lambda checkpoint: self._usable(checkpoint, session.ctx)):
                if known <= beyond:
                    break
                if (entry.name, entry.state[:2], session.ctx) in self._passed:
                    continue
                if self._restore(session, entry, text[:known], fit):
                    return known, SOURCE
        except Exception:
            log.exception("kv cache: loading")
        return None

    def _usable(self, checkpoint: Checkpoint, ctx: int) -> bool:
        """Return whether, by header and integrity section, a checkpoint fits this engine and a context of ``ctx``
        tokens."""
        h = checkpoint.header
        size = self.policy.min_tokens <= h.tokens < ctx and h.ctx <= ctx
        return size and not self.identity.differs(checkpoint.identity)

    def _restore(self, session: Session, entry: StoredCheckpoint, key: bytes, fit: Fit) -> bool:
        """Load a checkpoint file found by ``key``; return False, with ``session`` unchanged, if it cannot be used."""
        state = entry.state[:2]
        try:
            with kvc.open_file(self.directory.path / entry.name) as file:
                about = os.fstat(file.fileno())
                state = about.st_ino, about.st_size
                checkpoint = kvc.examine(file)
                if not self._usable(checkpoint, session.ctx) or not self._load(
                    session, checkpoint, file, entry, key, fit
                ):
                    return False
        except (PayloadMismatch, Unknown) as error:
            log.info("kv cache: %s passed over: %s", entry.name, error)
            self._passed.add((entry.name, state, session.ctx))
            return False
        except PayloadError as error:
            self.directory.quarantine(entry.name, state, str(error))
            return False
        except OSError as error:
            log.info("kv cache: %s: %s", entry.name, error.strerror or error)
            return False
        self.directory.touch(entry.name, hit=True)
        if self.calls is not None:
            for call, block in _texts(self._calls_in(entry.name)).items():
                self.calls.restore(call, block)
        log.info("kv cache: hit, %d tokens from %s", checkpoint.header.tokens, entry.name)
        return True

    def _load(
        self, session: Session, checkpoint: Checkpoint, file: BinaryIO, entry: StoredCheckpoint, key: bytes, fit: Fit
    ) -> bool:
        """Load an open checkpoint file; return False if its key is not ``key`` or ``fit`` rejects its tokens.

        Raise PayloadMismatch for another model's session, PayloadError for a damaged file.
        """
        text = checkpoint.text(file)
        if kvc.key_name(text) != entry.name.lower():
            raise Damaged("file name does not match the key text")
        if text != key and (checkpoint.integrity is None or kvc.key(key) not in checkpoint.integrity.keys):
            return False  # another process has replaced the file
        if checkpoint.header.payload != session.model.saved_bytes(checkpoint.header.tokens):
            raise PayloadMismatch("payload size does not match this model")

        def check(tokens: Sequence[int]) -> None:
            if len(tokens) != checkpoint.header.tokens:
                raise Damaged(f"{len(tokens)} tokens in a checkpoint of {checkpoint.header.tokens}")
            if checkpoint.header.kind == "token-text" and self.tokenizer.decode(tokens) != text:
                raise PayloadMismatch("key text does not match the tokens")
            if not fit(tokens, len(key)):
                raise _Unfit

        payload = checkpoint.payload(file)
        try:
            session.load(payload, check)  # type: ignore[arg-type]
        except PayloadMismatch:
            payload.finish()  # raises Damaged if the bytes are not as written: then it is damage, not a mismatch
            raise
        except _Unfit:
            return False
        return True

    # --- saving

    def save(self, session: Session, texts: Iterable[bytes], reason: str) -> bool:
        """Save ``session`` so that it is found by each of ``texts`` and by the text of its tokens; return whether it is
        saved.

        reason: one of ``kvc.REASONS``. Never raises, because a lost checkpoint only costs a prefill later.
        """
        try:
            return self._save(session, list(texts), reason)
        except (OSError, PayloadError) as error:
            log.warning("kv cache: cannot save: %s", getattr(error, "strerror", None) or error)
        except Exception:
            log.exception("kv cache: saving")
        return False

    def _save(self, session: Session, texts: list[bytes], reason: str) -> bool:
        """Save a session as ``save`` does, but raise errors; a file that already holds the same tokens only gets
        further keys."""
        if not session.valid or session.pos < self.policy.min_tokens:
            return False
        tokens, now = session.tokens, int(self.directory.clock())
        own = self.tokenizer.decode(tokens)
        text, *more = dict.fromkeys((*texts, own))
        if not 0 < len(text) < 1 << 32:
            return False
        header = Header(
            self.identity.quant, kvc.REASONS.index(reason), 0 if text == own else kvc.THINKING_VISIBLE,
            len(tokens), session.ctx, now, session.payload_bytes(), used=now,
        )  # fmt: skip
        integrity = Integrity(
            self.identity.facts, tuple(map(kvc.key, more[:MAX_KEYS])), kvc.digest(np.asarray(tokens, "<u4").tobytes()),
            self.identity.about,
        )  # fmt: skip
        name, tools = kvc.key_name(text), self._tool_map(text)
        tools_digest = kvc.digest(tools) if tools else ""
        old = self.directory.get(name)
        known = old.checkpoint if old is not None else None
        if known is not None and known.integrity is not None and self._same(known, header, integrity):
            if set(integrity.keys) <= set(known.integrity.keys) and tools_digest in ("", known.integrity.tools):
                self.directory.touch(name, hit=False)
                return True
            keys = tuple(dict.fromkeys((*integrity.keys, *known.integrity.keys)))[:MAX_KEYS]
            header, integrity = replace(header, hits=known.header.hits), replace(integrity, keys=keys)
            tools = tools or kvc.tool_map(self._calls_in(name))
        size = kvc.size_of(text, header.payload, tools, integrity)
        if not fits(size, self.directory.budget):
            log.info("kv cache: %d bytes do not fit a budget of %d", size, self.directory.budget)
            return False
        with self.directory.writing(name, size) as output:
            kvc.write(output, header, text, session.save, tools, integrity)
        log.info("kv cache: stored %s, %d tokens, %d bytes, %s", name, len(tokens), size, reason)
        return True

    def _same(self, old: Checkpoint, header: Header, integrity: Integrity) -> bool:
        """Return whether the file ``old`` already holds the same tokens, for the same engine, under the same kind of
        key, as the new header and integrity section describe."""
        h = old.header
        if old.integrity is None or self.identity.differs(old.identity) or h.ctx > header.ctx or h.kind != header.kind:
            return False
        return (h.tokens, h.payload, old.integrity.tokens) == (header.tokens, header.payload, integrity.tokens)

    # --- calls

    def _tool_map(self, text: bytes) -> bytes:
        """Return the tool map section for the remembered calls in a text; each block of calls occurs once."""
        if self.calls is None:
            return b""
        calls: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for spellings in kvc.blocks(text):
            for block in spellings:
                ids = self.calls.ids_of(block.decode("utf-8", "replace"))
                if ids:
                    calls.setdefault(block, [(call.encode(), block) for call in ids])
                    break
        return kvc.tool_map(entry for entries in calls.values() for entry in entries)

    def _calls_in(self, name: str) -> list[tuple[bytes, bytes]]:
        """Return the (call id, block) pairs of a checkpoint's tool map, empty if it cannot be read."""
        try:
            with kvc.open_file(self.directory.path / name) as file:
                return kvc.examine(file).tools(file)
        except (OSError, PayloadError):
            return []

    def find_calls(self, ids: Collection[str]) -> dict[str, str]:
        """Return call id -> markup block from the tool maps of all checkpoints, the latest block of each id.

        For prompts that refer to calls which are no longer in memory.
        """
        blocks: dict[str, str] = {}
        if not ids:
            return blocks
        with self._guard:
            entries = [e for e in self.directory.known() if e.checkpoint and e.checkpoint.header.flags & kvc.TOOLS]
            states = {(e.name, e.state) for e in entries}
            self._ids = {state: call_ids for state, call_ids in self._ids.items() if state in states}
            for entry in sorted(entries, key=lambda e: -e.checkpoint.header.created):  # type: ignore[union-attr]
                known = self._ids.get((entry.name, entry.state))
                if known is not None and not known & (set(ids) - blocks.keys()):
                    continue
                calls = _texts(self._calls_in(entry.name))
                self._ids[entry.name, entry.state] = frozenset(calls)
                blocks = {call: calls[call] for call in ids if call in calls} | blocks
        return blocks


def _texts(entries: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return (call id, block) pairs as a dict of text; pairs that are not UTF-8 are skipped."""
    calls = {}
    for call, block in entries:
        with suppress(UnicodeDecodeError):
            calls[call.decode()] = block.decode()
    return calls


class _Unfit(Exception):
    """``fit`` rejected the checkpoint's tokens for this prompt."""
