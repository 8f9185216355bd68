"""A request, whatever API it came through, and what happens to it: turns in, events out.

An API module makes a ``Turn`` of a request's body and answers with what the worker's events say. Nothing in here knows
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
    """How tokens are drawn; temperature 0 is greedy. ``seed`` None: from the operating system."""

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
    """One answer that is wanted.

    messages, tools   the conversation, and what may be called
    thinking          "none", "high" or "max"
    text, ids         completions only: a plain prompt instead of messages
    max_tokens        None: as much as the context holds
    stop              texts that end the answer and are no part of it
    format            JSON schema (as text) that the visible answer has to fit; "" for none, "{}" for any JSON object
    top_logprobs      alternatives per token, None for no log probabilities at all
    echo              completions: the prompt's own tokens come first, with their log probabilities
    raw               completions: the text is all that was generated, thinking and its tags too
    more              completions: further prompts of the same request, answered one after the other
    client            whose request it is, for fairness: requests of one client wait for each other
    affinity          what the client says about which conversation this is; "" if nothing
    results_only      tool results without the calls they answer: only a live timeline can go on with them
    hoist             which system messages are put at the head of the prompt (``text.chat.HOISTS``)
    recover           a whole block of calls in reasoning that never ended counts (``AnswerReader``)
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
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.shown)

    @property
    def callable(self) -> tuple[Schema, ...]:
        """The tools that the model may call: a search may have brought some that the prompt does not show."""
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.callable)

    def rendered(self, *more: Message) -> Rendered:
        """The prompt of the conversation, with ``more`` behind it."""
        from ..text.chat import render

        return render([*self.messages, *more], [tool.text for tool in self.offered], self.thinking, self.hoist)


# --- what happens to a turn, in this order


@dataclass(frozen=True)
class Queued:
    """It waits, with so many turns before it. Said again when that changes."""

    ahead: int


@dataclass(frozen=True)
class Prefill:
    """The prompt is being evaluated: ``done`` of ``total`` tokens, ``cached`` of which needed none, from ``source``."""

    done: int
    total: int
    cached: int
    source: str


@dataclass(frozen=True)
class Failed:
    """It cannot be answered, or not to the end. ``code`` is "context", "continuation", "form" (that the answer has to
    have), "shutdown" or "engine".

    ``tokens``: with "context", how many the prompt has.
    """

    code: str
    message: str
    tokens: int = 0


@dataclass(frozen=True)
class Answered:
    """One of several prompts is answered: its last delta. What follows belongs to the next one of ``Turn.more``."""

    delta: Delta


Event = Queued | Prefill | Delta | Answered | Failed
"""``Delta``s are the answer; the last one has a finish reason and usage."""
