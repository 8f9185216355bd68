"""The JSON documents of the four APIs as types, with the members that clients read.

A document that does not fit its type would break one of these clients. A stream is first assembled to a document
(``chat``, ``messages``, ``responses``), from which its content is read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Score = Annotated[float, Meta(le=0)]


# --- values that fit the schemas of requests


class Weather(Struct, forbid_unknown_fields=True):
    """Arguments of the tool ``weather``."""

    city: str
    tomorrow: bool


class Form(Struct, forbid_unknown_fields=True):
    """An answer that fits the schema ``shared.FORM``."""

    answer: Literal["yes", "no"]
    sure: bool


# --- errors, lists


class Error(Struct):
    """The error object of any API."""

    message: Name
    type: str | None = None
    code: str | int | None = None


class Failure(Struct):
    """A document that reports an error."""

    error: Error
    type: str | None = None


class Entry(Struct):
    """A model in the list of models."""

    id: Name


class Models(Struct):
    """The list of models."""

    data: Annotated[list[Entry], Meta(min_length=1)]
    object: Literal["list"] | None = None


# --- OpenAI's older APIs


class Details(Struct):
    """How many of the counted tokens were cached, or reasoning."""

    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class Usage(Struct):
    """The token counts of a chat completion or a completion."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None

    def __post_init__(self) -> None:
        if self.total_tokens != self.prompt_tokens + self.completion_tokens:
            raise ValueError(f"usage that does not add up: {self}")


class Head(Struct, kw_only=True):
    """The members that all documents and chunks of OpenAI's older APIs have."""

    id: Name
    model: Name
    created: Annotated[int, Meta(gt=0)]
    usage: Usage | None = None


class Top(Struct):
    """An alternative to a token."""

    logprob: float


class Scored(Struct):
    """A token with its log probability."""

    token: str
    logprob: Score
    bytes: list[Annotated[int, Meta(ge=0, lt=256)]] | None = None
    top_logprobs: list[Top] = []


class Logprobs(Struct):
    """The log probabilities of a chat completion."""

    content: list[Scored] | None = None


class Function(Struct):
    """The called function and its arguments, or a piece of them."""

    arguments: str | None = None
    name: str | None = None


class ToolCall(Struct):
    """A tool call in a chat completion, or a piece of one."""

    function: Function
    id: str | None = None
    type: Literal["function"] | None = None
    index: int | None = None


class Message(Struct):
    """The message of a chat completion, or the delta of a chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def thought(self) -> str:
        """The reasoning, whichever of its two names the server uses."""
        return self.reasoning_content or self.reasoning or ""


class ChatChoice(Struct):
    """The only choice of a chat completion."""

    index: Literal[0]
    message: Message
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: Logprobs | None = None


class ChatCompletion(Head, kw_only=True):
    """A chat completion."""

    choices: Annotated[list[ChatChoice], Meta(min_length=1, max_length=1)]


class ChunkChoice(Struct):
    """The only choice of a chunk of a chat completion."""

    index: Literal[0]
    delta: Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Chunk(Head, kw_only=True):
    """A chunk of a chat completion."""

    choices: list[ChunkChoice]


class Lists(Struct):
    """The log probabilities of a completion, as parallel lists."""

    tokens: list[str]
    token_logprobs: list[Score | None]


class TextChoice(Struct):
    """The only choice of a completion, or of a chunk of one."""

    index: Literal[0]
    text: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: Lists | None = None


class Completion(Head, kw_only=True):
    """A completion, or a chunk of one."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


# --- messages


class TextBlock(Struct, tag="text"):
    """A block of visible text."""

    text: str


class ThinkingBlock(Struct, tag="thinking"):
    """A block of reasoning."""

    thinking: str


class RedactedBlock(Struct, tag="redacted_thinking"):
    """A block of reasoning that is not shown."""


class ToolUseBlock(Struct, tag="tool_use"):
    """A block that calls a tool."""

    id: Name
    name: Name
    input: dict[str, Any]


class MessageUsage(Struct):
    """The token counts of a message."""

    input_tokens: Count
    output_tokens: Count
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class MessageDocument(Struct):
    """A whole message, the answer of Anthropic's API."""

    id: Name
    model: Name
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]
    stop_sequence: str | None = None
    usage: MessageUsage | None = None


# --- responses


class TextPart(Struct):
    """A part of a message item."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]


class ThoughtPart(Struct):
    """A part of a reasoning item."""

    text: str


class Item(Struct, kw_only=True):
    """An output item of a response."""

    id: Name | None = None


class MessageItem(Item):
    """An item of visible text."""

    role: Literal["assistant"]
    content: list[TextPart]


class ReasoningItem(Item):
    """An item of reasoning."""

    summary: list[ThoughtPart]
    content: list[ThoughtPart] | None = None


class FunctionItem(Item):
    """An item that calls a function."""

    call_id: Name
    name: Name
    arguments: str


class CustomItem(Item):
    """An item that calls a custom tool."""

    call_id: Name
    name: Name
    input: str


ITEMS: dict[str, Any] = {
    "message": MessageItem, "reasoning": ReasoningItem, "function_call": FunctionItem, "custom_tool_call": CustomItem,
}  # fmt: skip
"""The types of items that today's clients read; others may occur."""


class Incomplete(Struct):
    """Why a response is incomplete."""

    reason: str | None = None


class ResponseUsage(Struct):
    """The token counts of a response."""

    input_tokens: Count
    output_tokens: Count
    total_tokens: Count
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None

    def __post_init__(self) -> None:
        if self.total_tokens != self.input_tokens + self.output_tokens:
            raise ValueError(f"usage that does not add up: {self}")


class Response(Struct):
    """A whole response, the answer of OpenAI's responses API."""

    id: Name
    model: Name
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete"]
    output: list[dict[str, Any]]
    incomplete_details: Incomplete | None = None
    usage: ResponseUsage | None = None
