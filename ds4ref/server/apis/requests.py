"""The requests of the four APIs as types: their fields are what each API carries out (of others: ``fields``).

A field that is null is absent: LangChain and others send every parameter they know, set or not. Messages, prompts and
schemas stay raw JSON, since what the model sees of them is verbatim.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from ..api import About, bad
from ..turn import Sampling

MOST = 2**31 - 1
LEAST_P = 1.0e-30
CHOICES = 128
"""Maximum number of answers to one prompt."""
STOPS = 256
"""Maximum number of stop strings in a request; every generated token is checked against all of them."""
MAX_TOP = 20
"""Maximum number of alternatives of a token with their log probabilities."""

LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict", "num_predict", "max_new_tokens")
"""What OpenAI, llama.cpp, Ollama and SGLang's own API call the maximum length of an answer."""
BUDGETS = ("thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget",
           "reasoning_budget_tokens")  # fmt: skip
"""What servers call the maximum length of the reasoning."""

Count = Annotated[int, Meta(ge=0)] | None
Most = Annotated[int, Meta(ge=-1)] | None  # -1: no limit
Share = Annotated[float, Meta(ge=0, le=1)] | None
Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
Bias = dict[Annotated[int, Meta(ge=0, le=MOST)], Annotated[float, Meta(ge=-100, le=100)]]
Texts = Annotated[list[str], Meta(max_length=STOPS)]
Id = Annotated[int, Meta(ge=0)]


class Named(Struct):
    """A tool by its name."""

    name: str = ""


class Allowed(Struct):
    """Which tools ``tool_choice`` of chat completions allows."""

    mode: str = ""
    tools: list[ToolChoice] = []


class ToolChoice(Struct):
    """``tool_choice`` of any API, and a tool in its list."""

    type: str | None = None
    name: str | None = None
    namespace: str | None = None
    function: Named | None = None
    custom: Named | None = None
    allowed_tools: Allowed | None = None
    mode: str | None = None
    tools: list[ToolChoice] | None = None
    disable_parallel_tool_use: bool | None = None

    @property
    def named(self) -> str:
        """The tool's name as the model sees it."""
        inner = self.function or self.custom
        name = self.name or (inner.name if inner is not None else "")
        return (self.namespace or "") + (name or ("tool_search" if self.type == "tool_search" else ""))


class JsonSchema(Struct):
    """``json_schema`` of a format of chat completions."""

    schema: Raw = field(default_factory=Raw)


class Format(JsonSchema):
    """The form of an answer: ``response_format``, ``text.format``, ``output_config.format``."""

    type: str = ""
    json_schema: JsonSchema | None = None


class Thinking(Struct):
    """``thinking``: enabled, disabled, adaptive, or a word that is yet to be invented."""

    type: str | None = None


class StreamOptions(Struct):
    """``stream_options`` of OpenAI's older APIs."""

    include_usage: bool | None = None


class OutputConfig(Struct):
    """``output_config`` of messages."""

    effort: str | None = None
    format: Format | None = None


class Edit(Struct):
    """An edit of the context, of messages."""

    type: str = ""
    trigger: Any = None


class ContextManagement(Struct):
    """``context_management`` of messages."""

    edits: list[Edit] | None = None


class Reasoning(Struct):
    """``reasoning`` of responses."""

    effort: str | None = None
    summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(Struct):
    """``text`` of responses."""

    format: Format | None = None


class Request(Struct, kw_only=True):
    """The fields that every API carries out, even where its own description lacks them."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: Count = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Share = None
    min_p: Share = None
    top_k: Count = None
    seed: int | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: Bias | None = None

    def first(self, *names: str) -> int | None:
        """Return the first of the fields that is there, at most MOST; -1 stands for no limit."""
        found = (value for name in names if (value := getattr(self, name, None)) not in (None, -1))
        return next((min(value, MOST) for value in found if value is not None), None)

    def limit(self, about: About, *names: str) -> int | None:
        """Return the maximum length of the answer in tokens: the lower of the request's and the server's, or None.

        A request that names none has the server's usual one, or its own ``min_tokens`` if that is more. Raise Refused
        if ``min_tokens`` is above the limit.
        """
        asked, least = self.first(*names), self.first("min_tokens") or 0
        usual = None if about.usual_tokens is None else max(about.usual_tokens, least)
        limits = [n for n in (usual if asked is None else asked, about.max_tokens) if n is not None]
        most = min(limits, default=None)
        if most is not None and least > most:
            raise bad(f"min_tokens is {least}, but the answer has at most {most} tokens")
        return most

    def sampling(self) -> Sampling:
        """Return the sampling parameters, the same for all APIs."""
        chosen = {name: getattr(self, name) for name in ("temperature", "min_p") if getattr(self, name) is not None}
        if self.top_p is not None:
            chosen["top_p"] = self.top_p or LEAST_P  # the smallest nucleus has one token; the sampler takes 0 for "off"
        return Sampling(
            **chosen,
            top_k=self.first("top_k") or 0,
            seed=None if self.seed is None else self.seed % 2**64,
            presence=self.presence_penalty or 0.0,
            frequency=self.frequency_penalty or 0.0,
            bias=tuple(sorted((self.logit_bias or {}).items())),
            min_tokens=self.first("min_tokens") or 0,
            ignore_eos=bool(getattr(self, "ignore_eos", None)),
        )


class OpenAI(Request, kw_only=True):
    """What OpenAI's older APIs have in common."""

    n_predict: Most = None
    num_predict: Most = None
    max_new_tokens: Most = None
    min_tokens: Count = None
    ignore_eos: bool | None = None
    stop: str | Texts | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES)] | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(filter(None, [self.stop] if isinstance(self.stop, str) else self.stop or ()))

    @property
    def usage(self) -> bool:
        """Whether the client wants token counts at the end of the stream."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(OpenAI, kw_only=True):
    """A request of /v1/chat/completions."""

    messages: Raw = field(default_factory=Raw)
    tools: Raw = field(default_factory=Raw)
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Count = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    response_format: Format | None = None
    reasoning_effort: str | None = None
    thinking: bool | Thinking | None = None
    think: bool | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Most = None
    thinking_budget: Most = None
    thinking_budget_tokens: Most = None
    reasoning_budget: Most = None
    reasoning_budget_tokens: Most = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


class CompletionRequest(OpenAI, kw_only=True):
    """A request of /v1/completions."""

    prompt: str | list[str | Id | Annotated[list[Id], Meta(min_length=1)]] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None


class MessagesRequest(Request, kw_only=True):
    """A request of /v1/messages or /v1/messages/count_tokens."""

    messages: Raw = field(default_factory=Raw)
    system: Raw = field(default_factory=Raw)
    tools: Raw = field(default_factory=Raw)
    tool_choice: ToolChoice | None = None
    stop_sequences: Texts | None = None
    thinking: bool | Thinking | None = None
    reasoning_effort: str | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    context_management: ContextManagement | None = None


class ResponsesRequest(Request, kw_only=True):
    """A request of /v1/responses."""

    input: Raw = field(default_factory=Raw)
    instructions: str | None = None
    tools: Raw = field(default_factory=Raw)
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Count = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    include: list[str] | None = None


REQUESTS: dict[str, type[Request]] = {
    "chat": ChatRequest, "completions": CompletionRequest, "messages": MessagesRequest, "responses": ResponsesRequest
}  # fmt: skip
