"""The interface of a target: a local engine, an HTTP endpoint or an external binary.

A target declares its abilities; a tool calls ``require`` first, so that a missing ability is reported in one line
before any work.

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
from ..text.chat import Message
from .answer import Completion, Delta, Step, collect

if TYPE_CHECKING:
    import numpy as np

    from ..cancellation import Cancellation
    from ..generate import Guide


class Ability(enum.Enum):
    """Something that a target may be able to do; the value is the wording of error messages."""

    CHAT = "chat prompts"
    TEXT = "plain text prompts"
    TOKEN_IDS = "prompts of token ids"
    TOOLS = "tools and conversations of several turns"
    TOP_LOGPROBS = "log probabilities of the best tokens"
    FULL_LOGITS = "logits of the whole vocabulary"
    SCORE = "scoring of a given text (teacher forcing)"
    TOKENIZE = "tokenization"
    STREAM = "streaming"
    GUIDE = "guiding of single tokens"


@dataclass(frozen=True)
class Prompt:
    """Exactly one of: a conversation (``messages``), plain text (``text``), token ids (``ids``).

    messages   the turns so far, system text included, as ``text.chat`` renders them
    tools      tools that may be called, each as one JSON object with name, description and parameters
    thinking   "none", "low", "high" or "max"
    answer     text with which the answer to a conversation must begin
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    text: str | None = None
    ids: tuple[int, ...] | None = None
    thinking: str = "none"
    answer: str = ""

    @classmethod
    def chat(cls, user: str, system: str = "", thinking: str = "none") -> Prompt:
        """Return a prompt of one user message."""
        before = (Message("system", system),) if system else ()
        return cls((*before, Message("user", user)), thinking=thinking)

    @classmethod
    def conversation(cls, messages: Sequence[Message], tools: Sequence[str] = (), thinking: str = "none") -> Prompt:
        """Return a prompt of any number of turns, including tool calls and their results."""
        return cls(tuple(messages), tuple(tools), thinking=thinking)

    @classmethod
    def plain(cls, text: str) -> Prompt:
        """Return a prompt of text without chat markup."""
        return cls(text=text)

    @classmethod
    def tokens(cls, ids: Sequence[int]) -> Prompt:
        """Return a prompt of token ids."""
        return cls(ids=tuple(int(i) for i in ids))

    @property
    def user(self) -> str | None:
        """Return the content of the last user message, None if there is none."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), None)

    @property
    def system(self) -> str:
        """Return the system text of a chat, "" if there is none."""
        return next((m.content for m in self.messages if m.role == "system"), "")

    @property
    def needs(self) -> tuple[Ability, ...]:
        """Return the abilities that a target needs for this prompt."""
        if self.ids is not None:
            return (Ability.TOKEN_IDS,)
        if self.text is not None:
            return (Ability.TEXT,)
        plain = [m.role for m in self.messages] in (["user"], ["system", "user"]) and not self.tools
        return (Ability.CHAT,) if plain else (Ability.CHAT, Ability.TOOLS)


@dataclass(frozen=True)
class Request:
    """A prompt and the settings of its generation.

    temperature   0 picks the most likely token
    stop          texts that end the answer and are not part of it; reasoning is not searched for them
    top_logprobs  number of alternatives per step
    ctx           context in tokens, None for the target's default
    guide         callback before every token is picked (``generate.Guide``): an ability of local targets
    cancel        switch that stops the request: the answer then ends with the text so far, finish "cancelled"
    exact         ask an endpoint for exactly ``max_tokens`` tokens; one that refuses this is asked without
    """

    prompt: Prompt
    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    ctx: int | None = None
    guide: Guide | None = field(default=None, compare=False, repr=False)
    cancel: Cancellation | None = field(default=None, compare=False, repr=False)
    exact: bool = False

    @property
    def needs(self) -> tuple[Ability, ...]:
        """Return the abilities that a target needs for this request."""
        return self.prompt.needs + ((Ability.GUIDE,) if self.guide is not None else ())


class Target(abc.ABC):
    """One engine. ``abilities`` are those it declares; methods beyond them raise TargetError."""

    kind = ""
    name = ""
    abilities: frozenset[Ability] = frozenset()
    max_top_logprobs = 0

    def can(self, ability: Ability) -> bool:
        """Return whether the target declares ``ability``."""
        return ability in self.abilities

    def require(self, *abilities: Ability, needed_for: str = "this") -> None:
        """Raise a one-line UsageError if an ability is missing; ``needed_for`` names its use."""
        missing = [a.value for a in abilities if a not in self.abilities]
        if missing:
            raise UsageError(
                f"{needed_for} needs {' and '.join(missing)}, which {self.kind} target {self.name} does not offer"
            )

    @abc.abstractmethod
    def stream(self, request: Request) -> Iterator[Delta]:
        """Generate, yielding deltas as they arrive; the last one has a ``finish``.

        Raise TargetError if the stream breaks off.
        """

    def complete(self, request: Request) -> Completion:
        """Generate and return the whole answer; a TargetError has the output so far as ``partial``."""
        return collect(self.stream(request))

    def continues_text(self) -> bool | None:
        """Return whether a plain text prompt is continued as it is, and not as a chat; None if that is unknown."""
        return True

    def require_raw_text(self) -> None:
        """Raise TargetError if a plain text prompt is answered as a chat: its tokens would not be those compared."""
        if self.continues_text() is False:
            raise TargetError(
                f"cannot compare: {self.name} turns the text prompt of a completion into a chat, so its tokens are not "
                "those of the text; use chats or token ids"
            )

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """Score a continuation by teacher forcing: one step per token, with its log probability after all tokens before
        it.

        ``continuation`` is the bytes of successive tokens. A step's ``token.logprob`` is None where the target does not
        report it (the token was not among the most likely), and its ``token.raw`` are the expected bytes.
        """
        raise self._cannot(Ability.SCORE)

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """Score every token of a plain text, tokenized by the target; the first has no logprob."""
        raise self._cannot(Ability.SCORE)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits after each token, (T, vocab) float32."""
        raise self._cannot(Ability.FULL_LOGITS)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Return the token ids of a text; with ``control`` protocol strings in it become control tokens."""
        raise self._cannot(Ability.TOKENIZE)

    def identity(self) -> dict[str, Any]:
        """Return facts about the engine, stored with its results; they never contain a secret."""
        return {"kind": self.kind, "name": self.name}

    def notes(self) -> list[str]:
        """Return remarks for the user on the answers so far, one line each."""
        return []

    def close(self) -> None:  # noqa: B027  nothing to release is a fine implementation
        """Release resources."""

    def _cannot(self, ability: Ability) -> TargetError:
        return TargetError(f"{self.kind} target {self.name} does not offer {ability.value}")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
