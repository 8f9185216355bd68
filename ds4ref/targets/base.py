"""What a tool may ask of an engine, whoever runs it: the local one, an HTTP endpoint, an external binary.

A target declares what it can do; a tool calls ``require`` first, so that a missing ability is one line before any work
and never a surprise in the middle.

    with open_target("http://127.0.0.1:8000/v1") as target:
        target.require(Ability.TOP_LOGPROBS, "capture")
        done = target.complete(Request(Prompt.chat("Hello"), max_tokens=4, top_logprobs=20))
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import TargetError, UsageError

if TYPE_CHECKING:
    import numpy as np


class Ability(enum.Enum):
    """One thing a target may be able to do; the value is how an error message names it."""

    CHAT = "chat prompts"
    TEXT = "plain text prompts"
    TOKEN_IDS = "prompts of token ids"
    TOP_LOGPROBS = "log probabilities of the best tokens"
    FULL_LOGITS = "logits of the whole vocabulary"
    SCORE = "scoring of a given text (teacher forcing)"
    TOKENIZE = "tokenization"
    STREAM = "streaming"
    SAMPLING = "sampling at a temperature"
    SEED = "seeds"


@dataclass(frozen=True)
class Prompt:
    """Exactly one of: a chat (system and user text), plain text, token ids. ``answer`` is text with which a chat's
    answer has to begin."""

    user: str | None = None
    system: str = ""
    text: str | None = None
    ids: tuple[int, ...] | None = None
    thinking: str = "none"
    answer: str = ""

    @classmethod
    def chat(cls, user: str, system: str = "", thinking: str = "none") -> Prompt:
        """One user message; ``thinking`` is "none", "high" or "max"."""
        return cls(user=user, system=system, thinking=thinking)

    @classmethod
    def plain(cls, text: str) -> Prompt:
        """Text without any chat markup."""
        return cls(text=text)

    @classmethod
    def tokens(cls, ids: Sequence[int]) -> Prompt:
        """Token ids as they stand."""
        return cls(ids=tuple(int(i) for i in ids))

    @property
    def needs(self) -> Ability:
        """What a target must be able to do to take it."""
        if self.ids is not None:
            return Ability.TOKEN_IDS
        return Ability.TEXT if self.text is not None else Ability.CHAT


@dataclass(frozen=True)
class Request:
    """What to generate. temperature 0 is greedy; ``top_logprobs`` alternatives per step (0: none)."""

    prompt: Prompt
    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    ctx: int | None = None


@dataclass(frozen=True)
class Token:
    """A token by its bytes, which is what engines can be compared by; ``id`` and ``logprob`` where they are known."""

    raw: bytes
    logprob: float | None = None
    id: int | None = None
    logit: float | None = None


@dataclass(frozen=True)
class Step:
    """One generated (or forced) token with its alternatives, best first, and when it arrived.

    ``time`` is seconds since the request was sent, None where nothing was streamed.
    """

    token: Token
    top: tuple[Token, ...] = ()
    time: float | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens as the target counts them; ``cached`` prompt tokens needed no prefill."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


@dataclass(frozen=True)
class Delta:
    """A piece of a stream: text and the steps it brought. The last one carries ``finish``, usage and model."""

    text: str = ""
    steps: tuple[Step, ...] = ()
    time: float = 0.0
    finish: str = ""
    usage: Usage | None = None
    model: str = ""
    reasoning: str = ""


@dataclass(frozen=True)
class Completion:
    """A finished answer. ``arrivals`` are the times of the deltas that brought text or tokens, in seconds."""

    text: str
    steps: tuple[Step, ...] = ()
    finish: str = ""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    arrivals: tuple[float, ...] = ()
    seconds: float = 0.0
    reasoning: str = ""

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds, None if nothing was streamed or nothing came."""
        return self.arrivals[0] if self.arrivals else None

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies in seconds (of deltas, where several tokens share one)."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Target(abc.ABC):
    """One engine. ``abilities`` is what it declares; a method outside them raises TargetError."""

    kind = ""
    name = ""
    abilities: frozenset[Ability] = frozenset()
    max_top_logprobs = 0

    def can(self, ability: Ability) -> bool:
        """Whether it declares ``ability``."""
        return ability in self.abilities

    def require(self, *abilities: Ability, what: str = "this") -> None:
        """UsageError with one line if something is missing."""
        missing = [a.value for a in abilities if a not in self.abilities]
        if missing:
            raise UsageError(
                f"{what} needs {' and '.join(missing)}, which {self.kind} target {self.name} does not offer"
            )

    @abc.abstractmethod
    def stream(self, request: Request) -> Iterator[Delta]:
        """Generate, piece by piece as it comes; the last delta has a non-empty ``finish``."""

    def complete(self, request: Request) -> Completion:
        """Generate and collect."""
        return collect(self.stream(request))

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """Teacher forcing: the log probability of each token of ``continuation`` given everything before it.

        ``continuation`` is the bytes of successive tokens. A step's ``token.logprob`` is None where the target cannot
        know it (the token was not among its best), and its ``token.raw`` are the expected bytes.
        """
        raise self._cannot(Ability.SCORE)

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """Every token of a plain text, tokenized by the target; the first has no logprob."""
        raise self._cannot(Ability.SCORE)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """(T, vocab) float32: the logits after each token."""
        raise self._cannot(Ability.FULL_LOGITS)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Token ids of a text; ``control``: protocol strings in it are control tokens."""
        raise self._cannot(Ability.TOKENIZE)

    def identity(self) -> dict[str, Any]:
        """What a stored result says about where it came from. Never contains a secret."""
        return {"kind": self.kind, "name": self.name}

    def notes(self) -> list[str]:
        """What a user should know about the answers so far, a line each."""
        return []

    def close(self) -> None:  # noqa: B027  nothing to release is a fine implementation
        """Release what it holds."""

    def _cannot(self, ability: Ability) -> TargetError:
        return TargetError(f"{self.kind} target {self.name} does not offer {ability.value}")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def collect(deltas: Iterator[Delta]) -> Completion:
    """The completion that a stream adds up to. TargetError if it ended without saying why."""
    text: list[str] = []
    reasoning: list[str] = []
    steps: list[Step] = []
    arrivals: list[float] = []
    finish, usage, model, last = "", Usage(), "", 0.0
    for delta in deltas:
        text.append(delta.text)
        reasoning.append(delta.reasoning)
        steps += delta.steps
        if delta.text or delta.reasoning or delta.steps:
            arrivals.append(delta.time)
        finish, usage, model = delta.finish or finish, delta.usage or usage, delta.model or model
        last = delta.time
    if not finish:
        raise TargetError("the answer broke off: no finish reason came")
    return Completion(
        "".join(text), tuple(steps), finish, usage, model, tuple(arrivals), last, reasoning="".join(reasoning)
    )
