"""Answers of Responses as clients read them, and the requests that several checks send."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Event, NotOffered, Talk, expect, shown
from .common import (
    ASK,
    OTHER,
    PARAMETERS,
    counts,
)  # fmt: skip
from .said import (
    Call,
    Said,
    integers,
    named,
)  # fmt: skip

PATH = "/v1/responses"

STREAM = {"stream": True}
ENDS = ("response.completed", "response.incomplete")
PIECES = {
    "response.output_text": ("message", "content", "text"),
    "response.reasoning_summary_text": ("reasoning", "summary", "text"),
    "response.reasoning_text": ("reasoning", "content", "text"),
    "response.function_call_arguments": ("function_call", "", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "", "input"),
}
"""Events that bring pieces: the type of their item, its list of parts ("" for none), the member that grows."""
TOOLS = [
    {
        "type": "function",
        "name": "weather",
        "description": "The weather in a city",
        "parameters": PARAMETERS,
        "strict": True,
    },
    {"type": "function", "name": "clock", "description": "The time", "parameters": OTHER},
]


def body(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    """Build the body of a request to /v1/responses, with reasoning off if the server accepts that."""
    plain = {"model": talk.model, "input": content, "max_output_tokens": talk.tokens, "temperature": 0, "store": False}
    off = {"reasoning": {"effort": "none"}}
    quiet = off if talk.ask(PATH, {**plain, "input": "Hi", "max_output_tokens": 16, **off}).status == 200 else {}
    return {**plain, **quiet, **more}


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, stream=True))


WEATHER = {"type": "function", "name": "weather"}


def forced(talk: Talk, **more: Any) -> Answer:
    """A call that is demanded: by name or, where a server refuses that, as any call."""
    return talk.ask(PATH, forced_body(talk, **more))


def forced_body(talk: Talk, **more: Any) -> dict[str, Any]:
    """Return a request whose answer is a call of the weather tool, forced as this server allows; NotOffered if it does
    not."""
    tools = body(talk, ASK, tools=TOOLS)
    asked = {**tools, "tool_choice": WEATHER, "parallel_tool_calls": False}
    if 400 <= talk.ask(PATH, asked).status < 500:
        asked["tool_choice"] = "required"
        if 400 <= talk.ask(PATH, asked).status < 500 and talk.ask(PATH, tools).status == 200:
            raise NotOffered("tool_choice: tools are taken, but nothing forces a call")
    return {**asked, **more}


def response(answer: Answer) -> dict[str, Any]:
    """Return the response object, from a document or from the last event of a stream."""
    if answer.body.lstrip().startswith(b"{"):
        return answer.document()
    last = events(answer)[-1].json
    expect(last.get("type") in ENDS, f"a stream that ends in {shown(last.get('type'))}")
    return dict(last["response"])


def events(answer: Answer) -> list[Event]:
    """Return the events of a stream, without a final [DONE]."""
    stream = answer.events()
    stream = stream[:-1] if stream and stream[-1].data == "[DONE]" else stream
    expect(stream, "a stream without an event")
    return stream


def items(answer: Answer, kind: str) -> list[dict[str, Any]]:
    """Return the output items of type ``kind``; raises Wrong if there is none."""
    output = response(answer).get("output")
    matches = [item for item in output or () if item.get("type") == kind]
    expect(matches, f"output {shown(output)}")
    return matches


def text(answer: Answer) -> str:
    """Return the text of the message items, concatenated."""
    parts = [part for item in items(answer, "message") for part in item["content"]]
    expect(all(part.get("type") == "output_text" for part in parts), f"content {shown(parts)}")
    return "".join(part["text"] for part in parts)


def read(answer: Answer) -> Said:
    """Return what an answer says, a document or a stream; raises Wrong for what clients cannot put together."""
    if answer.kind == "text/event-stream":
        _assembled(answer)
    whole = response(answer)
    _head(whole)
    expect(whole.get("status") in ("completed", "incomplete"), f"status {shown(whole.get('status'))}")
    said, thought = "", ""
    calls: list[Call] = []
    output: Any = whole.get("output")
    expect(isinstance(output, list), f"output {shown(output)}")
    for item in output:
        kind = item.get("type")
        if kind == "message":
            expect(item.get("role") == "assistant", f"role {shown(item.get('role'))}")
            for part in item["content"]:
                expect(part.get("type") == "output_text", f"a part {shown(part)}")
                expect(isinstance(part.get("annotations"), list), f"annotations {shown(part.get('annotations'))}")
                said += part["text"]
        elif kind == "reasoning":
            expect(isinstance(item.get("summary"), list), f"summary {shown(item.get('summary'))}")
            thought += "".join(part["text"] for part in [*item["summary"], *(item.get("content") or ())])
        elif kind in ("function_call", "custom_tool_call"):
            member = "arguments" if kind == "function_call" else "input"
            expect(isinstance(item.get(member), str), f"{member} {shown(item.get(member))}")
            calls.append(Call(named(item.get("call_id"), "call_id"), named(item.get("name"), "name"), item[member]))
        expect(item.get("id") is None or named(item["id"], "id of an item"), "no id")
    details = whole.get("incomplete_details") or {}
    used = whole.get("usage")
    if used is not None:
        counts(used, ("input_tokens", "output_tokens"), "total_tokens")
        integers(used.get("input_tokens_details"), "cached_tokens")
        integers(used.get("output_tokens_details"), "reasoning_tokens")
    finish = f"{whole['status']} {details.get('reason') or ''}".strip()
    return Said(said, thought, tuple(calls), finish, used and used["input_tokens"], used and used["output_tokens"])


def _head(whole: dict[str, Any]) -> None:
    named(whole.get("id"), "id")
    named(whole.get("model"), "model")
    expect(whole.get("object") == "response", f"object {shown(whole.get('object'))}")
    expect(isinstance(whole.get("created_at"), (int, float)), f"created_at {shown(whole.get('created_at'))}")


def _assembled(answer: Answer) -> None:
    """Raise Wrong unless the events of a stream, put together by index and id, make the response that ends it.

    What SDKs do with a stream: items at their output_index, parts at their content_index, pieces at the end of those.
    """
    stream = events(answer)
    whole = response(answer)
    items: list[dict[str, Any]] = []
    done: set[int] = set()
    for event in stream:
        one = event.json
        kind = str(one.get("type"))
        expect(event.name in ("", kind), f"an event {shown(event.name)} of type {kind}")
        if isinstance(one.get("response"), dict):
            known = {"id": one["response"].get("id"), "model": one["response"].get("model") or whole.get("model")}
            for name, value in known.items():  # nobody reads the model before the end
                expect(
                    value == whole.get(name), f"{name} {shown(value)} in {kind}, at the end {shown(whole.get(name))}"
                )
        if kind == "response.output_item.added":
            expect(
                one.get("output_index") == len(items),
                f"output_index {shown(one.get('output_index'))} of item {len(items)}",
            )
            items.append(dict(one["item"]))
            continue
        if "output_index" not in one and "item_id" not in one:
            continue
        at: Any = one.get("output_index")
        expect(
            isinstance(at, int) and 0 <= at < len(items), f"output_index {shown(at)} of {kind}, of {len(items)} items"
        )
        item = items[at]
        expect(at not in done, f"{kind} of an item that is done")
        if kind == "response.output_item.done":
            expect(
                one["item"].get("id") == item.get("id"),
                f"an item {shown(item.get('id'))} that is {shown(one['item'].get('id'))} when done",
            )
            expect(
                one["item"].get("type") == item.get("type"),
                f"{shown(item.get('type'))} that is {shown(one['item'].get('type'))} when done",
            )
            _grown(item, one["item"])
            items[at] = dict(one["item"])
            done.add(at)
            continue
        expect(
            one.get("item_id") == item.get("id"),
            f"item_id {shown(one.get('item_id'))} of {kind}, the item is {shown(item.get('id'))}",
        )
        name, _, step = kind.rpartition(".")
        if name in ("response.content_part", "response.reasoning_summary_part") and step == "added":
            parts = item.setdefault("content" if name == "response.content_part" else "summary", [])
            index = one.get("content_index" if name == "response.content_part" else "summary_index")
            expect(index == len(parts or ()), f"{kind} with the index {shown(index)}")
            item["content" if name == "response.content_part" else "summary"] = [*(parts or ()), dict(one["part"])]
        elif name in PIECES:
            _piece(one, item, name, step)
    expect(len(done) == len(items), f"{len(items)} items, {len(done)} of them done")
    expect(items == whole.get("output"), f"items {shown(items)[:60]}, at the end {shown(whole.get('output'))[:60]}")


def _piece(one: dict[str, Any], item: dict[str, Any], name: str, step: str) -> None:
    """Add a piece to its item, or compare the whole with its pieces."""
    kind, parts, member = PIECES[name]
    expect(item.get("type") == kind, f"{one['type']} of {shown(item.get('type'))}")
    place = item
    if parts:
        index: Any = one.get("summary_index" if parts == "summary" else "content_index")
        within = item.get(parts) or []
        expect(
            isinstance(index, int) and 0 <= index < len(within),
            f"{one['type']} at {shown(index)}, of {len(within)} parts",
        )
        place = within[index]
    if step == "delta":
        expect(isinstance(one.get("delta"), str), f"delta {shown(one.get('delta'))}")
        place[member] = (place.get(member) or "") + one["delta"]
    elif step == "done":
        expect(
            one.get(member) == (place.get(member) or ""),
            f"{one['type']}: {shown(one.get(member))[:50]}, pieces {shown(place.get(member))[:50]}",
        )


def _grown(item: dict[str, Any], done: dict[str, Any]) -> None:
    """Raise Wrong unless an item that is done has what its pieces made of it."""
    for member in ("arguments", "input"):
        if item.get(member):
            expect(
                item[member] == done.get(member),
                f"{member} {shown(done.get(member))[:50]}, pieces {shown(item[member])[:50]}",
            )
    for member in ("name", "call_id"):
        expect(
            item.get(member) == done.get(member),
            f"{member} {shown(item.get(member))}, when done {shown(done.get(member))}",
        )
    for parts in ("content", "summary"):
        if item.get(parts):
            made = [part.get("text") for part in item[parts]]
            expect(
                made == [part.get("text") for part in done.get(parts) or ()],
                f"{parts} {shown(done.get(parts))[:50]}, pieces {shown(made)[:50]}",
            )
