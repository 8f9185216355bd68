"""The interface of a target: a local engine, an HTTP endpoint or an external binary.

A target declares its abilities. A tool first calls ``require`` with those that it needs, so that a missing one is
reported in a one-line error before any work is done.

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
    """Something that a target may be able to do; the value is how error messages name it."""

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
    """What to send to a target: a conversation (``messages``), plain text (``text``) or token ids (``ids``).

    Exactly one of the three is set.

    messages   the turns so far, including the system message; the chat template is applied by the target
    tools      tools that the model may call, each as the text of a JSON object with name, description and parameters
    thinking   how much the model should think: "none", "low", "high" or "max"
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
        """Return a prompt of one user message, preceded by a system message if ``system`` is not empty."""
        before = (Message("system", system),) if system else ()
        return cls((*before, Message("user", user)), thinking=thinking)

    @classmethod
    def conversation(cls, messages: Sequence[Message], tools: Sequence[str] = (), thinking: str = "none") -> Prompt:
        """Return a prompt of any number of turns, including tool calls and their results."""
        return cls(tuple(messages), tuple(tools), thinking=thinking)

    @classmethod
    def plain(cls, text: str) -> Prompt:
        """Return a prompt of plain text, to be continued without a chat template."""
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
        """Return the content of the first system message, "" if there is none."""
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
    """A prompt and the settings with which its answer is generated.

    temperature   0 picks the most likely token (greedy decoding)
    stop          texts that end the answer and are not part of it; reasoning is not searched for them
    top_logprobs  number of alternatives to return at each position
    ctx           size of the context in tokens, None for the target's default
    guide         callback before every token is picked (``generate.Guide``); local targets only
    cancel        lets another thread stop the request; the answer then ends with the text so far, finish "cancelled"
    exact         ask an endpoint for exactly ``max_tokens`` tokens; if it rejects that option, ask again without it
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
    """Something that answers prompts: the base class of all targets.

    Each one declares its ``abilities``; a method that needs another ability raises TargetError.
    """

    kind = ""
    name = ""
    abilities: frozenset[Ability] = frozenset()
    max_top_logprobs = 0

    def can(self, ability: Ability) -> bool:
        """Return whether the target declares ``ability``."""
        return ability in self.abilities

    def require(self, *abilities: Ability, needed_for: str = "this") -> None:
        """Raise a one-line UsageError if the target lacks one of ``abilities``.

        ``needed_for`` is the subject of the message: "capture needs ...".
        """
        missing = [a.value for a in abilities if a not in self.abilities]
        if missing:
            raise UsageError(
                f"{needed_for} needs {' and '.join(missing)}, which {self.kind} target {self.name} does not offer"
            )

    @abc.abstractmethod
    def stream(self, request: Request) -> Iterator[Delta]:
        """Generate the answer to ``request``, yielding deltas as they arrive; only the last one has a ``finish``.

        Raise TargetError if the stream breaks off.
        """

    def complete(self, request: Request) -> Completion:
        """Generate the whole answer and return it.

        Raise TargetError if that fails; its ``partial`` is then the output so far.
        """
        return collect(self.stream(request))

    def continues_text(self) -> bool | None:
        """Return whether the target continues a plain text prompt as it is, instead of turning it into a chat.

        None means that this is unknown.
        """
        return True

    def require_raw_text(self) -> None:
        """Raise TargetError if the target turns a plain text prompt into a chat.

        It would then see other tokens than those of the text, and log probabilities could not be compared.
        """
        if self.continues_text() is False:
            raise TargetError(
                f"cannot compare: {self.name} turns the text prompt of a completion into a chat, so its tokens are not "
                "those of the text; use chats or token ids"
            )

    def score(self, prompt: Prompt, continuation: Sequence[bytes], top_logprobs: int = 0) -> list[Step]:
        """Score a given continuation of the prompt (teacher forcing) and return one step per token.

        A step has the token's log probability given the prompt and all tokens before it, and ``top_logprobs``
        alternatives.

        ``continuation`` is the bytes of successive tokens. A step's ``token.logprob`` is None where the target does not
        report it (the token was not among the most likely), and its ``token.raw`` are the expected bytes.
        """
        raise self._cannot(Ability.SCORE)

    def score_text(self, text: str, top_logprobs: int = 0) -> list[Step]:
        """Score every token of a plain text, tokenized by the target; the first token's logprob is None."""
        raise self._cannot(Ability.SCORE)

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits after each of the T tokens ``ids``, (T, vocab) float32."""
        raise self._cannot(Ability.FULL_LOGITS)

    def tokenize(self, text: str, control: bool = False) -> list[int]:
        """Return the token ids of a text.

        With ``control``, strings such as "<think>" become control tokens; otherwise they are ordinary text.
        """
        raise self._cannot(Ability.TOKENIZE)

    def identity(self) -> dict[str, Any]:
        """Return what identifies the engine (names, versions, settings), to store with its results; never a secret."""
        return {"kind": self.kind, "name": self.name}

    def notes(self) -> list[str]:
        """Return remarks on the answers so far that the user should see, one line each."""
        return []

    def close(self) -> None:  # noqa: B027  nothing to release is a fine implementation
        """Release resources."""

    def _cannot(self, ability: Ability) -> TargetError:
        return TargetError(f"{self.kind} target {self.name} does not offer {ability.value}")

    def __enter__(self) -> Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
