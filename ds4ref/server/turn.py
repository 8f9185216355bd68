"""Turns (requests of any API) and the events of answering them.

An API module parses a request's body into a ``Turn`` and builds its answer from the worker's events. Nothing here knows
HTTP, JSON shapes of a protocol, or sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..targets.answer import Delta
from ..text.chat import Message
from ..text.rendered import Rendered
from ..text.schemas import Schema

Api = Literal["chat", "completions", "messages", "responses"]


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy. ``seed`` None: from the operating system."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.05
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Choice:
    """Which tools may or must be called: "auto", "none", "required", or "named" with a name as the model sees it.
    Without ``parallel`` a demanded block has one call."""

    kind: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True)
class Turn:
    """A request for one answer.

    messages, tools   the conversation, and the declared tools
    thinking          "none", "high" or "max"
    text, ids         completions only: a plain prompt instead of messages
    max_tokens        None: the rest of the context
    stop              strings that end the answer and are not part of it
    format            JSON schema (as text) of the visible answer; "" for none, "{}" for any JSON object
    top_logprobs      alternatives per token; None: no log probabilities
    echo              completions: the answer starts with the prompt's tokens and their log probabilities
    raw               completions: the text includes reasoning and its tags
    more              completions: further prompts of the same request, answered one after the other
    client            name of the client, for the fair queue
    affinity          the client's name of the conversation, "" for none
    results_only      tool results without their calls: only a timeline in memory can continue
    hoist             which system messages move to the head of the prompt (``text.chat.HOISTS``)
    recover           accept a complete block of calls in unfinished reasoning (``AnswerReader``)
    """

    api: Api
    model: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Schema, ...] = ()
    thinking: str = "high"
    text: str | None = None
    ids: tuple[int, ...] | None = None
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    format: str = ""
    top_logprobs: int | None = None
    echo: bool = False
    raw: bool = False
    more: tuple[Turn, ...] = ()
    client: str = ""
    affinity: str = ""
    results_only: bool = False
    hoist: str = "leading"
    recover: bool = True

    @property
    def offered(self) -> tuple[Schema, ...]:
        """The tools that the prompt shows to the model."""
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.in_prompt)

    @property
    def callable(self) -> tuple[Schema, ...]:
        """Tools that the model may call, those included that a search added and the prompt does not show."""
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.callable)

    def rendered(self, *more: Message) -> Rendered:
        """Render the prompt of the conversation followed by ``more``."""
        from ..text.chat import render

        return render([*self.messages, *more], [tool.text for tool in self.offered], self.thinking, self.hoist)


# --- what happens to a turn, in this order


@dataclass(frozen=True)
class Queued:
    """Waiting, with ``ahead`` turns before it; repeated whenever that changes."""

    ahead: int


@dataclass(frozen=True)
class Prefill:
    """Prefill progress: ``done`` of ``total`` tokens, of which ``cached`` were reused from ``source``."""

    done: int
    total: int
    cached: int
    source: str


@dataclass(frozen=True)
class Failed:
    """The turn failed. ``code`` is "context", "continuation", "form" (a demanded one), "shutdown" or "engine".

    ``tokens``: with "context", the length of the prompt.
    """

    code: str
    message: str
    tokens: int = 0


@dataclass(frozen=True)
class Answered:
    """The last delta of one of several prompts; the following events belong to the next one of ``Turn.more``."""

    delta: Delta


Event = Queued | Prefill | Delta | Answered | Failed
"""``Delta``s carry the answer; the last one has a finish reason and usage."""
