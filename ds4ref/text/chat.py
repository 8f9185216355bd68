"""Renders conversations as prompts: thinking modes, the tool prompt, and messages (docs/explanation/text.md 3).

    render(messages, schemas, mode)     the prompt of a chat request
    ends_in_thinking(ids, tokenizer)    whether the answer to a prompt of these tokens starts inside <think>

This is the chat format of the first DeepSeek V4 checkpoints, of May 2026, and of ds4; ``official`` has the later ones.
An empty list of schemas means no tools. Messages with unknown roles are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import TextError
from . import protocol
from .dsml import ToolCall, render_calls, render_result
from .rendered import Conversation, Rendered, TextPart

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

MODES = ("none", "low", "high", "max")
"""Thinking modes; "low" is the same as "high", except for checkpoints since July 2026 (``official``)."""
THINK_MAX_MIN_CTX = 384 * 1024
"""Context size in tokens below which "max" becomes "high"."""


MAX_PREFIX = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)

_TOOL_PROMPT = """## Tools

You have access to a set of tools to help answer the user question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as raw text and set `string="true"`. Preserve characters such as `>`, `&`, and \
`&&` exactly; never replace normal string characters with XML or HTML entity escapes. Only if a string value itself \
contains the exact closing parameter tag `</｜DSML｜parameter>`, write that tag as `&lt;/｜DSML｜parameter>` inside \
the value. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set \
`string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOL_PROMPT_END = (
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls. "
    "Use the exact parameter names from the schemas."
)

_EFFORTS = {"none": "none", "minimal": "low", "low": "low"} | dict.fromkeys(("medium", "high", "xhigh"), "high")
_EFFORTS |= {"max": "max", "ultra": "max"}
_SYSTEM_ROLES, _TOOL_ROLES = ("system", "developer"), ("tool", "function")
ASKING = ("user", *_TOOL_ROLES)
ROLES = (*_SYSTEM_ROLES, "assistant", *ASKING)


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    role         "system", "developer", "user", "assistant", "tool" or "function"
    reasoning    the assistant's reasoning before ``content``
    calls        tool calls made by the assistant
    raw_dsml     DSML markup of ``calls`` exactly as the model wrote it, with the white space before it; None if unknown
    result_ids   ids of the tool calls whose results this message carries
    prefix       whether this is an assistant's last message, which the answer is to continue (DeepSeek's ``prefix``,
                 Anthropic's prefill)
    parts        the pieces that ``content`` was joined from if the API had several, each with its own role ("image" for
                 an image, which has no text)
    tools        tools that a system message adds (``official.Tool``)
    """

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    raw_dsml: str | None = None
    result_ids: tuple[str, ...] = ()
    prefix: bool = False
    parts: tuple[Message, ...] = field(default=(), compare=False)
    tools: tuple[Any, ...] = ()


# --- thinking modes


def mode_for_context(mode: str, ctx: int) -> str:
    """Return the effective mode in a context of ``ctx`` tokens: "max" becomes "high" below THINK_MAX_MIN_CTX."""
    return "high" if mode == "max" and ctx < THINK_MAX_MIN_CTX else mode


def effort_mode(effort: str) -> str:
    """Map a reasoning effort to its thinking mode; raise TextError listing the valid efforts."""
    try:
        return _EFFORTS[effort]
    except (KeyError, TypeError):
        raise TextError(f"unknown reasoning effort {effort!r}: choose from {', '.join(_EFFORTS)}") from None


def resolve_mode(
    ctx: int,
    effort: str | None = None,
    thinking: bool | None = None,
    model: str = "",
    explicit: bool = False,
) -> str:
    """Return the thinking mode of a request (docs/explanation/text.md 3).

    ctx       context size in tokens
    effort    the request's reasoning effort; None if absent or null
    thinking  whether the request turns thinking on; None if absent or null
    model     the model name in the request: deepseek-chat and deepseek-reasoner turn thinking off and on
    explicit  the request decides about thinking even if ``thinking`` is None (by a null ``thinking``; in the Responses
              API by any effort); the model name is then ignored
    """
    mode = "high" if effort is None else effort_mode(effort)
    enabled = thinking is not False
    if thinking is None and not explicit and model in ("deepseek-chat", "deepseek-reasoner"):
        enabled = model == "deepseek-reasoner"
    return mode_for_context(mode, ctx) if enabled else "none"


# --- rendering


def tool_prompt(schemas: Sequence[str]) -> list[TextPart]:
    """Return the tools section of the system text; ``schemas`` are tool schemas as JSON text, inserted verbatim."""
    return Rendered().protocol(_TOOL_PROMPT).plain("\n".join(schemas)).protocol(_TOOL_PROMPT_END).parts


def render(
    messages: Sequence[Message], schemas: Sequence[str] = (), mode: str = "high", *, in_place: bool = False,
    answer: bool = False,
) -> Rendered:  # fmt: skip
    """Render a conversation as a prompt.

    schemas   tool schemas as JSON text; empty: no tools
    mode      thinking mode
    in_place  keep later system messages where they are, rendered like user text. The start of the prompt then stays the
              same from turn to turn, whatever a client inserts later. Otherwise all system messages move to the start,
              as in ds4
    answer    start a new answer even after a last message of the assistant, unless it is a ``prefix``; otherwise only
              after messages of others

    A last message that is a ``prefix`` stays open. The assistant's reasoning before the last user message is left out;
    in conversations with tools all of it is kept.
    """
    count = len(messages)
    head = next((i for i, m in enumerate(messages) if m.role not in _SYSTEM_ROLES), count) if in_place else count
    prompt = Rendered().protocol(protocol.BOS)
    asks = answer or not messages or messages[-1].role != "assistant"
    prompt.conversation = Conversation([_as_json(message) for message in messages], [*schemas], mode, asks)
    if mode == "max":
        prompt.plain(MAX_PREFIX)
    system: list[TextPart] = tool_prompt(schemas) if schemas else []
    for message in messages[:head]:
        if message.role in _SYSTEM_ROLES:
            if system:
                system.append(TextPart("\n\n", None))
            if message.content:
                system.append(TextPart(message.content, None))
    prompt.extend(system)

    asked = [i for i, m in enumerate(messages) if m.role in ASKING or (m.role in _SYSTEM_ROLES and i >= head)]
    tools_used = any(m.role in _TOOL_ROLES or (m.role == "assistant" and m.calls) for m in messages)
    keep_from = 0 if schemas or tools_used else (asked[-1] + 1 if asked else 0)
    last = _render_turns(prompt, messages, mode, keep_from, head)
    if last in ASKING or (answer and last == "assistant"):
        prompt.protocol(protocol.ASSISTANT).protocol(protocol.THINK_CLOSE if mode == "none" else protocol.THINK_OPEN)
    return prompt


def _render_turns(prompt: Rendered, messages: Sequence[Message], mode: str, keep_from: int, head: int) -> str:
    """Append all messages to ``prompt``; return the role of the last turn, "" if there is none or it stays open.

    Assistant messages from index ``keep_from`` on keep their reasoning. System messages from index ``head`` on are
    appended to the user's turn before them, or become a user's turn; earlier ones are skipped, since they are in the
    prompt already.
    """
    last = ""
    for index, message in enumerate(messages):
        if message.role == "user":
            prompt.protocol(protocol.USER).plain(message.content)
            last = "user"
        elif message.role in _TOOL_ROLES:
            if last != "tool":
                prompt.protocol(protocol.USER)
            prompt.extend(render_result(message.content))
            last = "tool"
        elif message.role in _SYSTEM_ROLES:
            if index >= head and message.content:
                prompt.plain("\n\n") if last in ASKING else prompt.protocol(protocol.USER)
                prompt.plain(message.content)
                last = "user"
        elif message.role == "assistant":
            if last in ASKING:
                prompt.protocol(protocol.ASSISTANT)
                if mode != "none" and index >= keep_from:
                    prompt.protocol(protocol.THINK_OPEN).plain(message.reasoning)
                    if message.prefix and not message.content:
                        return ""  # the answer continues its reasoning
                prompt.protocol(protocol.THINK_CLOSE)
            prompt.plain(message.content)
            if message.raw_dsml is not None:
                prompt.markup(message.raw_dsml)
            elif message.calls:
                prompt.extend(render_calls(message.calls))
            if message.prefix:
                return ""
            prompt.protocol(protocol.EOS)
            last = "assistant"
    return last


def _as_json(message: Message) -> dict[str, Any]:
    """Return a message as a dict in the OpenAI API's form, which the chat templates of other models expect."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.calls:
        calls = [{"name": call.name, "arguments": _arguments(call)} for call in message.calls]
        fields["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return fields | ({"prefix": True} if message.prefix else {})


def _arguments(call: ToolCall) -> Any:
    """Return the arguments of a call as a dict if they are a JSON object, else their text."""
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


# --- the same as token ids, for command lines that encode piece by piece


def chat_start(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that a chat starts with: BOS, or none if texts of this model start without it."""
    return [tokenizer.bos] if tokenizer.adds_bos else []


def text_start(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids to put before a plain text that the model is to continue or score: BOS, or none.

    DeepSeek's plain texts start without BOS, as in ds4; other models' if their tokenizer says so. An empty text always
    gets BOS, because the model needs one token to continue.
    """
    if not text:
        return [tokenizer.bos] if tokenizer.bos >= 0 else []
    return [] if tokenizer.chats and tokenizer.template is None else chat_start(tokenizer)


def answer_start(tokenizer: Tokenizer, mode: str = "high") -> list[int]:
    """Return the ids that open the assistant's turn in thinking mode ``mode``; none without a chat format."""
    if not tokenizer.chats:
        return []
    return [tokenizer.assistant, tokenizer.think_close if mode == "none" else tokenizer.think_open]


def ends_in_thinking(ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Return whether a prompt ends inside ``<think>``: whether that is its last control token."""
    for token in reversed(ids):
        if token == tokenizer.think_open:
            return True
        if token in (tokenizer.think_close, tokenizer.assistant, tokenizer.user, tokenizer.eos, tokenizer.bos):
            return False
    return False
