"""Turns (parsed requests of any API) and the events of answering them.

An API module parses a request's body into a ``Turn`` and formats the answer from the worker's events. This module is
independent of HTTP, of the protocols' JSON, and of sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..targets.answer import Delta
from ..text.chat import Message
from ..text.rendered import Rendered
from ..text.schemas import Schema

if TYPE_CHECKING:
    from ..text.official import Profile

Api = Literal["chat", "completions", "messages", "responses"]


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; ``top_p``, ``min_p`` and ``top_k`` as usual.

    temperature           0 for greedy
    seed                  None for a random one from the operating system
    presence, frequency   penalties for tokens that the answer contains already (``sampling.adjust``)
    bias                  pairs of a token id and the number added to its logit
    min_tokens            minimum length of the answer: before it no token and no stop string ends the answer
    ignore_eos            end-of-sequence tokens do not end the answer: only its length limit or a stop string does
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.05
    top_k: int = 0
    seed: int | None = None
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        return bool(self.presence or self.frequency or self.bias or self.min_tokens)

    def numbered(self, number: int) -> Sampling:
        """Return the parameters of answer ``number`` of a request that asks for several: the seed is ``number`` higher,
        so that the answers differ."""
        return self if self.seed is None else replace(self, seed=(self.seed + number) % 2**64)


@dataclass(frozen=True)
class Choice:
    """Which tools the model may or must call.

    kind       "auto" (free), "none", "required" (at least one call), or "named" (a call of ``name``)
    name       tool name as the model sees it
    parallel   whether the model may make several calls at once where a call is demanded
    """

    kind: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True)
class Turn:
    """A parsed request of any API: what is asked of the model.

    api, model        the API that received it, and the model id that it names
    messages, tools   the conversation, and the declared tools
    thinking          "none", "low", "high" or "max"
    profile           DeepSeek's prompt format (``text.prompts``), None for that of May, ds4's own
    text, ids         completions only: a plain prompt, as text or token ids, instead of messages
    max_tokens        maximum length of the answer in tokens; None: the rest of the context
    max_thinking      number of reasoning tokens after which reasoning is ended; None for no limit
    stop              strings that end the answer and are not part of it
    choice            which tools the model may or must call
    format            JSON schema (as text) of the visible answer; "" for none, "{}" for any JSON object
    top_logprobs      number of alternatives per token; None: no log probabilities
    echo              completions: the answer starts with the prompt's tokens and their log probabilities
    token_ids         whether the answer lists the ids of its tokens
    more              one turn for each further answer of the request (other prompts, other choices), made in this order
    client            name of the client, for the fair queue
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
    max_thinking: int | None = None
    stop: tuple[str, ...] = ()
    choice: Choice = field(default_factory=Choice)
    format: str = ""
    top_logprobs: int | None = None
    echo: bool = False
    token_ids: bool = False
    more: tuple[Turn, ...] = ()
    client: str = ""
    profile: Profile | None = None

    @property
    def plain(self) -> bool:
        """Whether the prompt is not a conversation; then reasoning and its tags are part of the answer's text."""
        return self.text is not None or self.ids is not None

    @property
    def offered(self) -> tuple[Schema, ...]:
        """The tools that the prompt shows to the model."""
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.in_prompt)

    @property
    def callable(self) -> tuple[Schema, ...]:
        """The tools that the model may call, including tools that a search added and the prompt does not declare."""
        return () if self.choice.kind == "none" else tuple(tool for tool in self.tools if tool.callable)

    def rendered(self, *more: Message) -> Rendered:
        """Return the rendered prompt of the conversation followed by the messages ``more``.

        If the conversation ends with a message that the answer continues (``prefix``), the first of ``more`` is joined
        to it.
        """
        from ..text.prompts import prompt_of

        before = self.messages
        if more and before and before[-1].prefix:
            whole = before[-1].reasoning + more[0].reasoning, before[-1].content + more[0].content
            more = (replace(more[0], reasoning=whole[0], content=whole[1]), *more[1:])
            before = before[:-1]
        schemas = [tool.text for tool in self.offered
                   if self.profile is None or self.choice.kind != "named" or tool.name == self.choice.name]  # fmt: skip
        return prompt_of(
            self.profile, [*before, *more], schemas, self.thinking, in_place=True, answer=True, form=self.format
        )


# --- what happens to a turn, in this order


@dataclass(frozen=True)
class Queued:
    """The turn waits in the queue behind ``ahead`` others; sent again whenever ``ahead`` changes."""

    ahead: int


@dataclass(frozen=True)
class Prefill:
    """Prefill progress.

    done     prompt tokens evaluated or reused so far
    total    prompt tokens
    cached   of these, tokens reused from a cached sequence
    source   where the reused tokens came from (``sequences.Start``)
    """

    done: int
    total: int
    cached: int
    source: str


@dataclass(frozen=True)
class Failed:
    """The turn failed.

    code     "context" (prompt too long), "form" (demanded answer impossible), "shutdown" or "engine"
    message  the error for the client
    tokens   with "context", the length of the prompt in tokens, 0 if unknown
    """

    code: str
    message: str
    tokens: int = 0


@dataclass(frozen=True)
class Answered:
    """The final delta of one of several answers; later events belong to the next turn of ``Turn.more``."""

    delta: Delta


Event = Queued | Prefill | Delta | Answered | Failed
"""An event of answering a turn; ``Delta`` carries part of the answer, the last one a finish reason and token usage."""
