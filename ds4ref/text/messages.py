"""The message lists of three APIs, as one (docs/text.md 3).

Input is raw JSON text, because arguments are kept as the client wrote them. TextError says which field is wrong and
how; whether the request as a whole makes sense is for the server to decide. What is no text leaves a note in its place:
a client sends its history again with every turn, and an image in it must not end the conversation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import TextError
from . import rawjson
from .chat import Message
from .dsml import ToolCall, render_result

if TYPE_CHECKING:
    from .schemas import Schema

Fields = dict[str, str]
"""Raw values of an object by name; of duplicates the last."""

_HOSTED_CALLS = {
    "local_shell_call": "local_shell",
    "tool_search_call": "tool_search",
    "web_search_call": "web_search_call",
    "image_generation_call": "image_generation_call",
}
_CALL_ITEMS = ("function_call", "custom_tool_call", *_HOSTED_CALLS)
_OUTPUT_ITEMS = tuple(f"{name}_output" for name in _CALL_ITEMS) + tuple(f"{n}_output" for n in _HOSTED_CALLS.values())
_MEDIA = {
    "image": "image", "image_url": "image", "input_image": "image", "input_audio": "audio", "input_file": "file",
    "file": "file", "document": "document", "video_url": "video",
}  # fmt: skip
_RESPONSES_PARTS = (
    "input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal", "input_image", "input_audio",
    "input_file",
)  # fmt: skip


# --- reading JSON


def array(raw: str, what: str) -> list[str]:
    """Raw items of an array."""
    try:
        return rawjson.items(raw)
    except ValueError as error:
        raise TextError(f"{what} is not a JSON array: {error}") from None


def fields(raw: str, what: str, needed: Iterable[str] = ()) -> Fields:
    """Raw members of an object, of duplicates the last; null values are left out, but an error in ``needed`` ones."""
    try:
        found = dict(rawjson.members(raw))
    except ValueError as error:
        raise TextError(f"{what} is not a JSON object: {error}") from None
    for name in needed:
        if found.get(name) == "null":
            raise TextError(f"{name} is null")
    return {name: value for name, value in found.items() if value != "null"}


def text(raw: str | None, what: str, default: str = "") -> str:
    """A string, or ``default`` where it is absent."""
    if raw is None:
        return default
    if not rawjson.is_string(raw):
        raise TextError(f"{what} is not a string")
    return rawjson.string(raw)


def _parts(raw: str | None, what: str) -> Iterable[tuple[Fields, str]]:
    """(members, text) of each part of a content field; a bare string is a text part."""
    if raw is None or raw == "null":
        return
    if rawjson.is_string(raw):
        yield {"type": '"text"', "text": raw}, rawjson.string(raw)
        return
    for item in array(raw, what):
        if rawjson.is_string(item):
            yield {"type": '"text"', "text": item}, rawjson.string(item)
        elif item != "null":
            part = fields(item, f"a part of {what}")
            yield part, text(part.get("text"), f"text of {what}")


def _shown(part: Fields, found: str) -> str:
    """What the model sees of a part: its text, or a note that there was something else."""
    if "text" in part:
        return found
    kind = text(part.get("type"), "type of a content part")
    if kind == "refusal":
        return text(part.get("refusal"), "refusal")
    if kind == "document" and "source" in part:
        source = fields(part["source"], "source of a document")
        if text(source.get("type"), "type of a source") == "text":
            return text(source.get("data"), "data of a document")
    return f"[{_MEDIA[kind]} left out: this model reads text only]" if kind in _MEDIA else ""


def _all_text(raw: str | None, what: str) -> str:
    return "".join(_shown(part, found) for part, found in _parts(raw, what))


def _arguments(raw: str) -> str:
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


def _custom(raw: str) -> str:
    """The input of a custom tool as the arguments of the function that the model knows it as (``schemas``)."""
    given = raw if rawjson.is_string(raw) else rawjson.quote(raw)
    return f'{{"input":{given}}}'


# --- OpenAI chat completions


def from_openai(raw: str) -> list[Message]:
    """``messages`` of a chat completions request. A call without name or arguments is dropped."""
    return [_openai_message(fields(item, "a message", ("role",))) for item in array(raw, "messages")]


def _openai_message(message: Fields) -> Message:
    calls = []
    for item in array(message.get("tool_calls", "[]"), "tool_calls"):
        call = fields(item, "a tool call")
        function, custom = (fields(call.get(kind, "{}"), kind) for kind in ("function", "custom"))
        given = _arguments(function["arguments"]) if "arguments" in function else None
        if given is None and "input" in custom:
            function, given = custom, _custom(custom["input"])
        if "name" in function and given is not None:
            name = text(function["name"], "name of a tool call")
            calls.append(ToolCall(name, given, text(call.get("id"), "id of a tool call")))
    result = text(message.get("tool_call_id"), "tool_call_id")
    return Message(
        role=text(message.get("role"), "role", "user"),
        content=_all_text(message.get("content"), "content"),
        reasoning=_all_text(message.get("reasoning_content"), "reasoning_content"),
        calls=tuple(calls),
        result_ids=(result,) if result else (),
    )


# --- Anthropic messages


def from_anthropic(
    raw: str,
    system: str | None = None,
    tools: Iterable[Schema] = (),
    first: bool = False,
    referred: set[str] | None = None,
) -> list[Message]:
    """``messages`` and the raw ``system`` of a messages request; the system text comes last in the list, or ``first``.

    tools: what a result that refers to tools shows of them. Their names are added to ``referred``.
    """
    known, names = {tool.name: tool.text for tool in tools}, set() if referred is None else referred
    messages = [_anthropic_message(fields(item, "a message"), known, names) for item in array(raw, "messages")]
    joined = ""
    for _, part in _parts(system, "system"):
        if part and not part.startswith("x-anthropic-"):
            joined += "\n" * bool(joined and not joined.endswith("\n")) + part
    if joined:
        messages.insert(0 if first else len(messages), Message("system", joined))
    return messages


def _anthropic_message(message: Fields, tools: dict[str, str], referred: set[str]) -> Message:
    content, reasoning, calls, results = "", "", [], []
    for block, found in _parts(message.get("content"), "content"):
        kind = text(block.get("type"), "type of a content block")
        if kind == "text":
            content += found
        elif kind == "thinking":
            reasoning += text(block.get("thinking"), "thinking")
        elif kind == "tool_use":
            name, call_id = text(block.get("name"), "name of a tool_use"), text(block.get("id"), "id of a tool_use")
            calls.append(ToolCall(name, block.get("input", "{}"), call_id))
        elif kind == "tool_result":
            output = _result_text(block.get("content"), tools, referred)
            content += "".join(part.text for part in render_result(output))
            results.append(text(block.get("tool_use_id"), "tool_use_id"))
        elif kind in _MEDIA:
            content += _shown(block, found)
    role = text(message.get("role"), "role", "user")
    return Message(role, content, reasoning, tuple(calls), result_ids=tuple(results))


def _result_text(raw: str | None, tools: dict[str, str], referred: set[str]) -> str:
    """A result's text. Tools that it refers to are shown in it: put among the others they would change the prompt from
    its beginning on."""
    output = ""
    for block, found in _parts(raw, "content of a tool_result"):
        if text(block.get("type"), "type of a content block") == "tool_reference":
            name = text(block.get("tool_name"), "tool_name")
            referred.add(name)
            output += "\n" * bool(output and not output.endswith("\n")) + tools.get(name, name)
        else:
            output += _shown(block, found)
    return output


# --- OpenAI responses


def from_responses(raw: str, instructions: str = "") -> tuple[list[Message], list[str]]:
    """``input`` of a responses request, and the raw tools that its tool_search outputs bring along."""
    conversation = _Responses(instructions)
    if rawjson.is_string(raw):
        conversation.messages.append(Message("user", rawjson.string(raw)))
    else:
        for item in array(raw, "input"):
            conversation.add(fields(item, "an input item"))
    conversation.flush()
    return conversation.messages, conversation.tools


class _Responses:
    """Items become messages: reasoning waits for the assistant's next item, calls join the message before them."""

    def __init__(self, instructions: str):
        self.messages = [Message("system", instructions)] if instructions else []
        self.tools: list[str] = []
        self._reasoning: list[str] = []

    def add(self, item: Fields) -> None:
        kind = text(item.get("type"), "type of an input item", "message")
        status = text(item.get("status"), "status", "completed")
        # Text that its limit cut is text, and comes back for ever; half a call is nothing.
        known = ("completed", "incomplete") if kind in ("message", "reasoning") else ("completed",)
        if status not in known:
            raise TextError(f"an input item of type {kind} has status {status!r}: only completed items can be replayed")
        if kind == "message":
            self._message(item)
        elif kind == "reasoning":
            self._reasoning += [found for key in ("summary", "content") for found in _response_texts(item.get(key))]
        elif kind in _CALL_ITEMS:
            self._call(kind, item)
        elif kind in _OUTPUT_ITEMS:
            self._output(kind, item)
        elif kind not in ("compaction", "context_compaction"):
            raise TextError(f"unknown input item type {kind!r}")

    def flush(self) -> None:
        """Reasoning that nothing followed is an assistant message of its own."""
        if self._reasoning:
            self.messages.append(Message("assistant", "", self._take_reasoning()))

    def _take_reasoning(self) -> str:
        joined, self._reasoning = "\n".join(self._reasoning), []
        return joined

    def _message(self, item: Fields) -> None:
        role = text(item.get("role"), "role", "user")
        if role != "assistant":
            self.flush()
        content = "".join(_response_texts(item.get("content")))
        self.messages.append(Message(role, content, self._take_reasoning()))

    def _call(self, kind: str, item: Fields) -> None:
        name = _HOSTED_CALLS.get(kind) or text(item.get("namespace"), "namespace") + text(item.get("name"), "name")
        raw = next((item[key] for key in ("arguments", "input", "action") if key in item), "{}")
        given = _custom(raw) if kind == "custom_tool_call" and "input" in item else _arguments(raw)
        call_id = text(item.get("call_id"), "call_id") or text(item.get("id"), "id")
        if not self.messages or self.messages[-1].role != "assistant":
            self.messages.append(Message("assistant"))
        last = self.messages[-1]
        reasoning = "\n".join(filter(None, (last.reasoning, self._take_reasoning())))
        calls = (*last.calls, ToolCall(name, given, call_id))
        self.messages[-1] = replace(last, reasoning=reasoning, calls=calls)

    def _output(self, kind: str, item: Fields) -> None:
        self.flush()
        if kind.startswith("tool_search"):
            self.tools += array(item.get("tools", "[]"), "tools of a tool_search_output")
        raw = item.get("output")
        if raw is None or rawjson.is_string(raw) or raw.startswith("["):
            content = "".join(_response_texts(raw))
        else:
            content = raw  # a hosted tool's result object, shown as it is
        call_id = text(item.get("call_id"), "call_id") or text(item.get("id"), "id")
        self.messages.append(Message("tool", content, result_ids=(call_id,) if call_id else ()))


def _response_texts(raw: str | None) -> list[str]:
    found = []
    for part, content in _parts(raw, "content"):
        kind = text(part.get("type"), "type of a content part")
        if kind not in _RESPONSES_PARTS:
            raise TextError(f"unknown content part type {kind!r}: choose from {', '.join(_RESPONSES_PARTS)}")
        found.append(_shown(part, content))
    return found
