"""The text that a benchmark prefills: a file, a file as one chat message, or generated prose."""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Any

from ds4ref.errors import DataError

if TYPE_CHECKING:
    from ds4ref.text.tokenizer import Tokenizer

    from .plan import Plan

PROSE_SEED = 20260521
CHARACTERS = 8
"""Number of characters of prose generated per token of the prompt, for endpoints: more than any tokenizer needs."""


class PromptText:
    """The text that a plan prefills, and its tokens by the vocabulary of the first local target."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self._tokenizer: Tokenizer | None = None
        self._ids: list[int] = []

    def use(self, path: str) -> None:
        """Load the vocabulary of a model file, unless one is loaded already.

        A text given by the user is tokenized at once, so that one that is too short raises DataError before weights are
        loaded.
        """
        from ds4ref.text.vocabulary import open_tokenizer
        from ds4ref.weights import open_source

        if self._tokenizer is None:
            with open_source(path) as source:
                self._tokenizer = open_tokenizer(source)
            if self.plan.prompt is not None:
                self.tokens(self.plan.deepest)

    @property
    def eos(self) -> int:
        """Id of the end-of-sequence token."""
        assert self._tokenizer is not None
        return self._tokenizer.eos

    def tokens(self, count: int) -> list[int]:
        """Return the first ``count`` tokens of the text, at least one; raises DataError if the text is too short."""
        assert self._tokenizer is not None
        count = max(1, count)
        if len(self._ids) < count:
            plan = self.plan
            if plan.prompt is None:
                self._ids = prose_tokens(self._tokenizer, count)
            else:
                from ds4ref.text.prompts import encode_chat_prompt

                self._ids = (
                    encode_chat_prompt(self._tokenizer, plan.system, plan.prompt, "none")
                    if plan.chat
                    else self._tokenizer.encode(plan.prompt)
                )
                if len(self._ids) < plan.deepest:
                    raise DataError(f"prompt has {len(self._ids)} tokens, need at least --ctx-max={plan.deepest}")
        return self._ids[:count]

    def text(self) -> str:
        """Return the text for engines that tokenize it themselves; generated prose is long enough for any of them."""
        from ds4ref.nano.prose import prose

        if self.plan.prompt is not None:
            return self.plan.prompt
        return prose(CHARACTERS * self.plan.deepest + 4000, PROSE_SEED)

    def facts(self) -> dict[str, Any]:
        """Return metadata: the SHA-256 of the text (of its tokens, if tokenized here), the seed of generated prose."""
        if self._tokenizer is not None:
            checksum = hashlib.sha256(array("I", self.tokens(self.plan.deepest)).tobytes()).hexdigest()
        else:
            checksum = hashlib.sha256(self.text().encode("utf-8", "surrogateescape")).hexdigest()
        return {"prompt_sha256": checksum} | ({"seed": PROSE_SEED} if self.plan.prompt is None else {})


def prose_tokens(tokenizer: Tokenizer, needed: int) -> list[int]:
    """Return the first ``needed`` tokens of generated prose; the prose begins the same for every ``needed``."""
    from ds4ref.nano.prose import prose

    characters = 6 * needed + 100
    while True:
        tokens = tokenizer.encode(prose(characters, PROSE_SEED))
        if len(tokens) > needed:  # the last token of a shorter text might merge with the next
            return tokens[:needed]
        characters *= 2
