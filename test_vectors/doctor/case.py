"""Context shared by the stages: the target, the model to compare it with, results of earlier stages, the time left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ds4ref.engine import Engine
from ds4ref.errors import Ds4Error
from ds4ref.targets import Ability, Completion, Prompt, Request, Target
from ds4ref.text.tokenizer import Tokenizer
from ds4ref.text.vocabulary import ids_by_bytes
from ds4ref.variants import ROUNDING

from ..elicit import tokenizer_of
from .limits import Limit
from .pace import Meter
from .served import Served

TOP = 20
"""Number of alternatives to request per token: the hosted API's maximum."""

KINDS = {"chat": Ability.CHAT, "text": Ability.TEXT, "ids": Ability.TOKEN_IDS}


@dataclass
class ExamContext:
    """Context of one examination; a stage stores here what later stages need.

    target      the engine under examination
    engine      our engine, with the model that the target should have loaded
    quick       run a reduced set of checks
    long        run the long checks, too
    budget      seconds for each stage
    progress    called with a line of text while a stage works
    spec        the target as written on the command line
    kinds       kinds of prompt that the target answered: "chat", "text", "ids"
    logprobs    whether answers came with log probabilities
    echo        whether the target returns the log probabilities of a given text
    echo_early  whether its echo is off by one: each token comes with the next token's distribution
    same_model  whether the target's tokens are those of ``engine``; None: unknown
    tokenizer_wrong  whether the tokenizer stage found a difference
    mode        rounding set (where and how an engine rounds intermediates) that the numbers stage found; None before
    hint        rounding set that agrees with the target's numbers only at the first positions
    offset      number of tokens by which the target's count of every plain prompt exceeds ours
    served      what the target was identified as; empty before the stage ``identify``
    limit       time limit of the running stage, which also cancels its requests
    meter       counts the requests to the target
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
    echo_early: bool = False
    same_model: bool | None = None
    tokenizer_wrong: bool = False
    mode: str | None = None
    hint: str | None = None
    offset: int = 0
    served: Served = field(default_factory=Served)
    limit: Limit = field(default_factory=lambda: Limit(math.inf), repr=False)
    meter: Meter = field(default=None, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.meter is None:  # a copy of a context counts in the same place
            self.meter = Meter(self.target)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Return the model's tokenizer; None if its file has none."""
        return tokenizer_of(self.engine)

    @cached_property
    def ids_by_bytes(self) -> dict[bytes, int]:
        """Return a map from token bytes to token ids (``vocabulary.ids_by_bytes``); empty without a tokenizer."""
        return {} if self.tokenizer is None else ids_by_bytes(self.tokenizer)

    @property
    def declared(self) -> str | None:
        """Return the rounding set that the target itself reports; None if it reports none that we know."""
        name = str(self.target.identity().get("numerics") or "")
        return name if name in ROUNDING else None

    @property
    def rounding(self) -> str | None:
        """Return the rounding set whose noise to expect: the diagnosed one, else the reported one, else the hint."""
        return self.mode or self.declared or self.hint

    @property
    def top(self) -> int:
        """Return the number of alternatives to request per token; 0 if the target gives no log probabilities."""
        return min(TOP, self.target.max_top_logprobs) if self.logprobs else 0

    @property
    def out_of_time(self) -> bool:
        """Return whether the stage's budget is used up."""
        return self.limit.seconds_left <= 0

    def ask(self, prompt: Prompt, tokens: int = 1, top: int | None = None) -> Completion:
        """Request a greedy answer of up to ``tokens`` tokens with ``top`` alternatives (None: self.top).

        Raise OutOfTime if the stage ends before the answer does.
        """
        top = self.top if top is None else top
        answer = self.target.complete(Request(prompt, tokens, top_logprobs=top, cancel=self.limit))
        self.limit.check()
        return answer

    def try_ask(self, prompt: Prompt, tokens: int = 1, top: int | None = None) -> tuple[Completion | None, str]:
        """Request an answer as ``ask`` does; return (answer, "") or (None, the error's message)."""
        try:
            return self.ask(prompt, tokens, top), ""
        except Ds4Error as error:
            return None, str(error)

    def token(self, number: int) -> tuple[bytes, int]:
        """Return the model's token with this id as (bytes, id), the form that ``finding.row`` takes."""
        return (b"?" if self.tokenizer is None else self.tokenizer.token_bytes(number)), number
