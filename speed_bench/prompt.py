"""The text that is walked: a file, a file as one chat turn, or prose of our own (docs/bench.md)."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ds4ref.errors import DataError

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

    from .plan import Plan

PROSE_SEED = 20260521
CHARACTERS = 8
"""Of prose for every token that an endpoint may be asked to read: more than any tokenizer makes of one."""


class Walked:
    """What a plan walks, for one tokenizer: that of the first local lane."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._tokenizer: Tokenizer | None = None
        self._ids: list[int] = []

    def use(self, path: str) -> None:
        """The vocabulary of a model file, unless there is one already. A text of somebody's own is tokenized at once,
        so that one that is too short is a DataError before the weights are loaded."""
        from ds4ref.text.vocabulary import open_tokenizer
        from ds4ref.weights import open_source

        if self._tokenizer is None:
            with open_source(path) as source:
                self._tokenizer = open_tokenizer(source)
            if self.plan.prompt is not None:
                self.tokens(self.plan.deepest)

    @property
    def eos(self) -> int:
        """The token that ends a text."""
        assert self._tokenizer is not None
        return self._tokenizer.eos

    def tokens(self, count: int) -> list[int]:
        """The first ``count`` tokens, at least one."""
        assert self._tokenizer is not None
        count = max(1, count)
        if len(self._ids) < count:
            plan = self.plan
            if plan.prompt is None:
                self._ids = prose_tokens(self._tokenizer, count)
            else:
                encode = self._tokenizer.encode
                self._ids = chat_tokens(self._tokenizer, plan.prompt, plan.system) if plan.chat else encode(plan.prompt)
                check_length(self._ids, plan.deepest)
        return self._ids[:count]

    def text(self) -> str:
        """For an engine that tokenizes by itself; prose is long enough for any tokenizer."""
        from ds4ref.nano.prose import prose

        if self.plan.prompt is not None:
            return self.plan.prompt
        return prose(CHARACTERS * self.plan.deepest + 4000, PROSE_SEED)

    def facts(self) -> dict[str, Any]:
        """The digest of what is walked, as tokens where they are ours."""
        if self._tokenizer is not None:
            found = digest(self.tokens(self.plan.deepest))
        else:
            found = hashlib.sha256(self.text().encode("utf-8", "surrogateescape")).hexdigest()
        return {"prompt_sha256": found} | ({"seed": PROSE_SEED} if self.plan.prompt is None else {})


def prose_tokens(tokenizer: Tokenizer, needed: int) -> list[int]:
    """At least ``needed`` tokens of generated prose; longer requests begin with the shorter ones."""
    from ds4ref.nano.prose import prose

    characters = 6 * needed + 100
    while True:
        tokens = tokenizer.encode(prose(characters, PROSE_SEED))
        if len(tokens) > needed:  # the last token of a shorter text might merge with what follows
            return tokens[:needed]
        characters *= 2


def chat_tokens(tokenizer: Tokenizer, text: str, system: str) -> list[int]:
    """``text`` as one user turn without thinking, up to where the answer begins."""
    from ds4ref.text.chat import encode_chat_prompt

    return encode_chat_prompt(tokenizer, system, text, "none")


def check_length(tokens: Sequence[int], needed: int) -> None:
    """DataError unless there are ``needed`` tokens."""
    if len(tokens) < needed:
        raise DataError(f"prompt has {len(tokens)} tokens, need at least --ctx-max={needed}")


def digest(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian 32-bit numbers: the same for the same work."""
    ids = array("I", tokens)
    return hashlib.sha256(ids.tobytes()).hexdigest()
