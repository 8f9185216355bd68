"""What the stages share: the target, the model it is held against, what was learnt so far, the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error, TextError
from ds4ref.targets import Ability, Completion, Prompt, Request, Target
from ds4ref.targets.local import LocalTarget
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.variants import ROUNDING

TOP = 20
"""Alternatives asked for: as many as the hosted API gives."""

KINDS = {"chat": Ability.CHAT, "text": Ability.TEXT, "ids": Ability.TOKEN_IDS}


@dataclass
class Case:
    """One examination. ``engine`` holds the model that the target should have; stages leave here what later ones need.

    kinds       kinds of prompt that were answered: "chat", "text", "ids"
    logprobs    whether answers came with log probabilities
    echo        whether a text's own log probabilities are returned
    same_model  whether the target's tokens are those of ``engine``; None: cannot be told
    tokenizer_wrong  whether the tokenizer stage found a difference
    mode        the rounding set that the numbers were found to be of
    hint        one that they agree with for a while only
    offset      how many tokens more than ours every plain prompt has
    """

    target: Target
    engine: Engine
    quick: bool = False
    long: bool = False
    budget: float = 300.0
    progress: Callable[[str], None] = lambda line: None
    spec: str = ""
    kinds: set[str] = field(default_factory=set)
    logprobs: bool = False
    echo: bool = False
    same_model: bool | None = None
    tokenizer_wrong: bool = False
    mode: str | None = None
    hint: str | None = None
    offset: int = 0
    _deadline: float = field(default=float("inf"), repr=False)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Of the model, None if its file has none."""
        try:
            return self.engine.tokenizer
        except TextError:
            return None

    @cached_property
    def known(self) -> dict[bytes, int]:
        """Ids by bytes; of tokens with the same bytes the lowest id."""
        tok = self.tokenizer
        return {} if tok is None else {tok.token_bytes(i): i for i in reversed(range(len(tok))) if tok.token_bytes(i)}

    @property
    def rounding(self) -> str | None:
        """The rounding set to expect noise of: that of the numbers, else the one that the target names, else the one
        that the numbers begin with."""
        declared = str(self.target.identity().get("numerics") or "")
        return self.mode or (declared if declared in ROUNDING else self.hint)

    @property
    def local(self) -> LocalTarget | None:
        """The target if it runs in this process: its sessions can be driven chunk by chunk."""
        return self.target if isinstance(self.target, LocalTarget) else None

    @property
    def can_logits(self) -> bool:
        """Whether logits of the whole vocabulary can be had."""
        return self.target.can(Ability.FULL_LOGITS)

    @property
    def top(self) -> int:
        """Alternatives to ask for."""
        return min(TOP, self.target.max_top_logprobs) if self.logprobs else 0

    def start(self) -> None:
        """A stage begins: its time runs from now."""
        self._deadline = time.monotonic() + self.budget

    @property
    def left(self) -> float:
        """Seconds that the stage still has."""
        return self._deadline - time.monotonic()

    @property
    def late(self) -> bool:
        """Whether the stage has to come to its end."""
        return self.left <= 0

    def ask(self, prompt: Prompt, tokens: int = 1, top: int | None = None) -> Completion:
        """A greedy answer."""
        return self.target.complete(Request(prompt, tokens, top_logprobs=self.top if top is None else top))

    def tries(self, prompt: Prompt, tokens: int = 1, top: int | None = None) -> tuple[Completion | None, str]:
        """``ask``, or None and why not."""
        try:
            return self.ask(prompt, tokens, top), ""
        except Ds4Error as error:
            return None, str(error)

    def token(self, number: int) -> tuple[bytes, int]:
        """A token of the model as ``findings.row`` wants it."""
        return (b"?" if self.tokenizer is None else self.tokenizer.token_bytes(number)), number
