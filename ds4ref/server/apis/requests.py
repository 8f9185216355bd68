"""The request types of the four APIs, with all fields that each supports (``fields`` handles any other field).

A field that is null counts as absent, since LangChain and others send every parameter they know, set or not. Messages,
prompts and schemas stay raw JSON, since the model sees them verbatim.
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
"""Names of the field for an answer's maximum length, as OpenAI, llama.cpp, Ollama and SGLang call it."""
BUDGETS = ("thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget",
           "reasoning_budget_tokens")  # fmt: skip
"""Names of the field for the reasoning's maximum length, as various servers call it."""

Count = Annotated[int, Meta(ge=0)] | None
Most = Annotated[int, Meta(ge=-1)] | None  # -1: no limit
Share = Annotated[float, Meta(ge=0, le=1)] | None
Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
Bias = dict[Annotated[int, Meta(ge=0, le=MOST)], Annotated[float, Meta(ge=-100, le=100)]]
Texts = Annotated[list[str], Meta(max_length=STOPS)]
Id = Annotated[int, Meta(ge=0)]


class Named(Struct):
    """A tool identified by its name."""

    name: str = ""


class Allowed(Struct):
    """The member ``allowed_tools`` of ``tool_choice``: the tools that the model may call."""

    mode: str = ""
    tools: list[ToolChoice] = []


class ToolChoice(Struct):
    """The object ``tool_choice`` of any API; also a tool in its list of allowed tools."""

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
    """The member ``json_schema`` of ``response_format`` in chat completions."""

    schema: Raw = field(default_factory=Raw)


class Format(JsonSchema):
    """The format of an answer: ``response_format``, ``text.format`` or ``output_config.format``, by API."""

    type: str = ""
    json_schema: JsonSchema | None = None


class Thinking(Struct):
    """The object ``thinking``; ``type``: "enabled", "disabled", "adaptive", or a word that clients will invent."""

    type: str | None = None


class StreamOptions(Struct):
    """The object ``stream_options`` of chat completions and completions."""

    include_usage: bool | None = None


class OutputConfig(Struct):
    """The object ``output_config`` of the messages API."""

    effort: str | None = None
    format: Format | None = None


class Edit(Struct):
    """An entry of ``context_management.edits`` of the messages API: what the server is to leave out of the history."""

    type: str = ""
    trigger: Any = None


class ContextManagement(Struct):
    """The object ``context_management`` of the messages API."""

    edits: list[Edit] | None = None


class Reasoning(Struct):
    """The object ``reasoning`` of the responses API."""

    effort: str | None = None
    summary: str | None = None
    context: str | None = None
    mode: str | None = None


class TextOptions(Struct):
    """The object ``text`` of the responses API."""

    format: Format | None = None


class Request(Struct, kw_only=True):
    """The fields that are supported in every API, even if its public description lacks them."""

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
        """Return the value of the first of the fields ``names`` that is set, at most MOST; None if none is.

        A value of -1 means "no limit" and counts as not set.
        """
        found = (value for name in names if (value := getattr(self, name, None)) not in (None, -1))
        return next((min(value, MOST) for value in found if value is not None), None)

    def limit(self, about: About, *names: str) -> int | None:
        """Return the maximum length of the answer in tokens: the lower of the request's and the server's, or None.

        The request's limit is the first of the fields ``names`` that is set, else the server's usual limit, raised to
        ``min_tokens`` if that is more. Raise Refused if ``min_tokens`` is above the result.
        """
        asked, least = self.first(*names), self.first("min_tokens") or 0
        usual = None if about.usual_tokens is None else max(about.usual_tokens, least)
        limits = [n for n in (usual if asked is None else asked, about.max_tokens) if n is not None]
        most = min(limits, default=None)
        if most is not None and least > most:
            raise bad(f"min_tokens is {least}, but the answer has at most {most} tokens")
        return most

    def sampling(self) -> Sampling:
        """Return the sampling parameters of the request, whichever API it belongs to."""
        chosen = {name: getattr(self, name) for name in ("temperature", "min_p") if getattr(self, name) is not None}
        if self.top_p is not None:
            chosen["top_p"] = self.top_p or LEAST_P  # 0 asks for the single likeliest token; to the sampler it is "off"
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
    """The fields that chat completions and completions have in common."""

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
        """The stop strings that are not empty."""
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
