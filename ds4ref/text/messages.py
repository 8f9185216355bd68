"""Converts the message lists of three chat APIs to ``chat.Message`` objects (docs/explanation/text.md 3).

Input is raw JSON text, because arguments of tool calls are kept exactly as the client wrote them. TextError says which
field is wrong and how; whether the request as a whole makes sense is for the server to decide.

A part of a message that is not text (an image, a document) becomes a short placeholder such as "[image]", not an error:
clients send the whole history with every request, so an error would make it impossible to continue the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import TextError
from . import rawjson
from .chat import Message
from .dsml import ToolCall, render_result
from .fields import Fields, array, fields, text
from .schemas import read_schemas

_HOSTED_CALLS = {
    "local_shell_call": "local_shell",
    "tool_search_call": "tool_search",
    "web_search_call": "web_search_call",
    "image_generation_call": "image_generation_call",
}
_CALL_ITEMS = ("function_call", "custom_tool_call", *_HOSTED_CALLS)
_OUTPUT_ITEMS = tuple(f"{name}_output" for name in _CALL_ITEMS) + tuple(f"{n}_output" for n in _HOSTED_CALLS.values())


def _parts(raw: str | None, label: str) -> Iterable[tuple[Fields, str]]:
    """Yield (members, text) of each part of the content field ``raw``; a plain string counts as one text part."""
    if raw is None or raw == "null":
        return
    if rawjson.is_string(raw):
        yield {"type": '"text"'}, rawjson.string(raw)
        return
    for item in array(raw, label):
        if rawjson.is_string(item):
            yield {"type": '"text"'}, rawjson.string(item)
        elif item != "null":
            part = fields(item, f"a part of {label}")
            yield part, text(part.get("text"), f"text of {label}")


def _texts(raw: str | None, label: str) -> list[str]:
    return [content or _placeholder(part) for part, content in _parts(raw, label)]


def _content(raw: str | None, role: str) -> dict[str, Any]:
    """Return the fields ``content`` and ``parts`` of a ``Message`` of this role."""
    parts = [_part(role, part, content) for part, content in _parts(raw, "content")]
    return {"content": "".join(part.content for part in parts), "parts": _several(role, parts)}


def _several(role: str, parts: Sequence[Message]) -> tuple[Message, ...]:
    """Return the parts; () if there is at most one, of the message's own role, so that ``content`` says everything."""
    return () if [part.role for part in parts] in ([], [role]) else tuple(parts)


def _part(role: str, part: Fields, content: str) -> Message:
    shown = content or _placeholder(part)
    return Message("image" if shown == "[image]" and not content else role, shown)


def _placeholder(part: Fields) -> str:
    """Return the text of a content part whose ``text`` is empty: that of a refusal or text document, "" for an empty
    text part, and else a placeholder such as "[image]"."""
    kind = text(part.get("type"), "type of a content part").removeprefix("input_").removesuffix("_url")
    if kind == "refusal" and "refusal" in part:
        return text(part["refusal"], "refusal")
    if kind == "document" and "source" in part:
        source = fields(part["source"], "source of a document")
        if text(source.get("type"), "type of a source") == "text":
            return text(source.get("data"), "data of a document")
    return "" if "text" in part or kind in ("", "text") else f"[{kind}]"


def _arguments(raw: str) -> str:
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


def _input(raw: str) -> str:
    """Return the arguments of a custom tool's call, whose input is plain text: an object with one member "input"."""
    return f'{{"input":{raw}}}' if rawjson.is_string(raw) else raw


# --- OpenAI chat completions


def from_openai(raw: str) -> list[Message]:
    """Parse ``messages`` of a chat completions request; tool calls without name or arguments are dropped."""
    return [_openai_message(fields(item, "a message", ("role",))) for item in array(raw, "messages")]


def _openai_message(message: Fields) -> Message:
    calls = []
    for item in array(message.get("tool_calls", "[]"), "tool_calls"):
        call = fields(item, "a tool call")
        function = fields(call.get("function", "{}"), "function")
        custom = fields(call.get("custom", "{}"), "custom")
        call_id = text(call.get("id"), "id of a tool call")
        if "name" in function and "arguments" in function:
            name = text(function["name"], "name of a tool call")
            calls.append(ToolCall(name, _arguments(function["arguments"]), call_id))
        elif "name" in custom and "input" in custom:
            calls.append(ToolCall(text(custom["name"], "name of a tool call"), _input(custom["input"]), call_id))
    result = text(message.get("tool_call_id"), "tool_call_id")
    role = text(message.get("role"), "role", "user")
    role = "system" if role == "developer" else role
    return Message(
        role=role,
        reasoning="".join(_texts(message.get("reasoning_content"), "reasoning_content")),
        calls=tuple(calls),
        result_ids=(result,) if result else (),
        prefix=message.get("prefix") == "true",
        **_content(message.get("content"), role),
    )


# --- Anthropic messages


def from_anthropic(raw: str, system: str | None = None, references: Mapping[str, str] | None = None) -> list[Message]:
    """Parse ``messages`` and ``system`` of a request to Anthropic's messages API; the system text comes first.

    raw         JSON text of ``messages``
    system      JSON text of ``system``
    references  name of a tool -> its schema line, which replaces references to the tool in tool search results
                (``schemas``)
    """
    messages = [_anthropic_message(fields(item, "a message"), references or {}) for item in array(raw, "messages")]
    parts = [part for _, part in _parts(system, "system") if part and not part.startswith("x-anthropic-")]
    joined = "".join(part + "\n" * (not part.endswith("\n")) for part in parts[:-1]) + "".join(parts[-1:])
    texts = [Message("system", part) for part in parts]
    return [Message("system", joined, parts=_several("system", texts)), *messages] if joined else messages


def tool_references(raw: str) -> list[str]:
    """Return the names of the tools that tool search results in ``messages`` of an Anthropic request refer to, in
    order, each once."""
    names = []
    for item in array(raw, "messages"):
        for block, _ in _parts(fields(item, "a message").get("content"), "content"):
            if text(block.get("type"), "type of a content block") == "tool_result":
                for part, _ in _parts(block.get("content"), "content of a tool_result"):
                    names += [text(part["tool_name"], "tool_name")] if "tool_name" in part else []
    return list(dict.fromkeys(names))


def _anthropic_message(message: Fields, references: Mapping[str, str]) -> Message:
    reasoning, calls, parts = "", [], list[Message]()
    role = text(message.get("role"), "role", "user")
    for block, block_text in _parts(message.get("content"), "content"):
        kind = text(block.get("type"), "type of a content block")
        if kind == "text":
            parts.append(Message(role, block_text))
        elif kind == "thinking":
            reasoning += text(block.get("thinking"), "thinking")
        elif kind == "tool_use":
            name, call_id = text(block.get("name"), "name of a tool_use"), text(block.get("id"), "id of a tool_use")
            calls.append(ToolCall(name, block.get("input", "{}"), call_id))
        elif kind == "tool_result":
            parts.append(_anthropic_result(block, references))
        elif kind != "redacted_thinking":  # encrypted by the provider, so there is nothing to show
            parts.append(_part(role, block, block_text))
    content = "".join(
        "".join(span.text for span in render_result(part.content)) if part.role == "tool" else part.content
        for part in parts
    )
    results = tuple(result for part in parts for result in part.result_ids)
    if role == "system":  # within the conversation: later checkpoints get it as a reminder in the user's turn
        parts = [Message("user", f"<system-reminder>\n{content}\n</system-reminder>")]
    return Message(role, content, reasoning, tuple(calls), result_ids=results, parts=_several(role, parts))


def _anthropic_result(block: Fields, references: Mapping[str, str]) -> Message:
    """Return a tool's result as a message; a reference to a tool becomes that tool's schema line."""
    content, parts = "", []
    for part, part_text in _parts(block.get("content"), "content of a tool_result"):
        if "tool_name" in part:
            name = text(part["tool_name"], "tool_name")
            parts.append(Message("tool", references.get(name, f"[tool {name}]")))
            content += "\n" * bool(content)
        else:
            parts.append(_part("tool", part, part_text))
        content += parts[-1].content
    result_id = text(block.get("tool_use_id"), "tool_use_id")
    return Message("tool", content, result_ids=(result_id,), parts=_several("tool", parts))


# --- OpenAI responses


def from_responses(raw: str, instructions: str = "") -> tuple[list[Message], list[str]]:
    """Parse ``input`` of a request to OpenAI's Responses API.

    Return the messages, and the JSON text of the tools in its tool_search outputs. The schema lines of these tools are
    part of the messages, so the tool prompt does not repeat them (``schemas.brought``).
    """
    conversation = _Responses(instructions)
    if rawjson.is_string(raw):
        conversation.messages.append(Message("user", rawjson.string(raw)))
    else:
        for item in array(raw, "input"):
            conversation.add(fields(item, "an input item"))
    conversation.flush()
    return conversation.messages, conversation.tools


class _Responses:
    """Converts input items of the Responses API to messages, one by one.

    Reasoning is added to the assistant's message that follows it, tool calls to the assistant's message before them.
    """

    def __init__(self, instructions: str):
        self.messages = [Message("system", instructions)] if instructions else []
        self.tools: list[str] = []
        self._reasoning: list[str] = []

    def add(self, item: Fields) -> None:
        kind = text(item.get("type"), "type of an input item", "message")
        status = text(item.get("status"), "status", "completed")
        # Text that was cut off by a token limit is still usable, and clients keep sending it; a partial call is not.
        known = ("completed", "incomplete") if kind in ("message", "reasoning") else ("completed",)
        if status not in known:
            raise TextError(f"an input item of type {kind} has status {status!r}: only completed items can be replayed")
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            self._reasoning += [part for key in ("summary", "content") for part in _texts(item.get(key), "content")]
        elif kind in _CALL_ITEMS:
            self._call(kind, item)
        elif kind in _OUTPUT_ITEMS:
            self._output(kind, item)
        elif kind not in ("compaction", "context_compaction"):
            raise TextError(f"unknown input item type {kind!r}")

    def flush(self) -> None:
        """Turn reasoning that no item of the assistant followed into a message of its own."""
        if self._reasoning:
            self.messages.append(Message("assistant", "", self._take_reasoning()))

    def _take_reasoning(self) -> str:
        joined, self._reasoning = "\n".join(self._reasoning), []
        return joined

    def _message(self, item: Fields) -> None:
        role = text(item.get("role"), "role", "user")
        if role != "assistant":
            self.flush()
        self.messages.append(Message(role, reasoning=self._take_reasoning(), **_content(item.get("content"), role)))

    def _call(self, kind: str, item: Fields) -> None:
        name = _HOSTED_CALLS.get(kind) or text(item.get("namespace"), "namespace") + text(item.get("name"), "name")
        raw = next((item[key] for key in ("arguments", "input", "action") if key in item), "{}")
        call_id = text(item.get("call_id"), "call_id") or text(item.get("id"), "id")
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message("assistant"))
        last = self.messages[-1]
        reasoning = "\n".join(filter(None, (last.reasoning, self._take_reasoning())))
        arguments = _input(raw) if kind == "custom_tool_call" else _arguments(raw)
        calls = (*last.calls, ToolCall(name, arguments, call_id))
        self.messages[-1] = replace(last, reasoning=reasoning, calls=calls)

    def _output(self, kind: str, item: Fields) -> None:
        self.flush()
        lines = ""
        if kind.startswith("tool_search"):
            tools = array(item.get("tools", "[]"), "tools of a tool_search_output")
            self.tools += tools
            lines = _lines(tools)
        raw = item.get("output")
        if raw is None or rawjson.is_string(raw) or raw.startswith("["):
            shown = _content(raw, "tool")
        else:
            shown = {"content": raw}  # a hosted tool's result object, shown as it is
        call_id = text(item.get("call_id"), "call_id") or text(item.get("id"), "id")
        shown["content"] = shown["content"] or lines
        self.messages.append(Message("tool", result_ids=(call_id,) if call_id else (), **shown))


def _lines(tools: list[str]) -> str:
    return "\n".join(schema.text for schema in read_schemas(f"[{','.join(tools)}]") if schema.kind != "hosted")
