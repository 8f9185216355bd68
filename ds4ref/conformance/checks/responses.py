"""Checks of OpenAI's responses API, as OpenAI's SDK, Codex, pi and inspect_ai need it."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Event, Talk, expect, shown
from .said import Call, Said, offered, refused, typed
from .shapes import ITEMS, CustomItem, FunctionItem, MessageItem, ReasoningItem, Response
from .shared import ASK, OTHER, PARAMETERS, PIXEL, Api, overflow_known

ENDS = ("response.completed", "response.incomplete")
PARTS = {
    "response.content_part": ("content", "content_index"),
    "response.reasoning_summary_part": ("summary", "summary_index"),
}
"""By the prefix of events that add a part to an item: the item's list of parts, and the event's member with the index
in it."""
PIECES = {
    "response.output_text": ("message", "content", "content_index", "text"),
    "response.reasoning_summary_text": ("reasoning", "summary", "summary_index", "text"),
    "response.reasoning_text": ("reasoning", "content", "content_index", "text"),
    "response.function_call_arguments": ("function_call", "", "", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "", "", "input"),
}
"""By the prefix of events that bring pieces of text: the type of their item, its list of parts, the event's member with
the index in it (both "" for items without parts), and the member that the pieces make up."""


def events(answer: Answer) -> list[Event]:
    """Return the events of a stream, without a final [DONE]."""
    stream = [event for event in answer.events() if event.data != "[DONE]"]
    expect(stream, "a stream without an event")
    return stream


def whole(answer: Answer) -> dict[str, Any]:
    """Return the response object, from a document or from the last event of a stream."""
    if answer.body.lstrip().startswith(b"{"):
        return answer.document()
    last = events(answer)[-1].json
    expect(last.get("type") in ENDS, f"a stream that ends in {shown(last.get('type'))}")
    return dict(last["response"])


def items(answer: Answer, kind: str) -> list[dict[str, Any]]:
    """Return the output items of type ``kind``; raises Wrong if there is none."""
    output = whole(answer).get("output")
    matches = [item for item in output or () if item.get("type") == kind]
    expect(matches, f"output {shown(output)}")
    return matches


def read(answer: Answer) -> Said:
    """Return the content of an answer, a document or a stream; raises Wrong if clients could not assemble it."""
    if answer.kind == "text/event-stream":
        _assembled(answer)
    response = typed(whole(answer), Response)
    said, thought = "", ""
    calls: list[Call] = []
    for item in response.output:
        match typed(item, ITEMS.get(str(item.get("type")), dict)):
            case MessageItem(content=parts):
                said += "".join(part.text for part in parts)
            case ReasoningItem(summary=parts, content=more):
                thought += "".join(part.text for part in (*parts, *(more or ())))
            case FunctionItem(call_id=call_id, name=name, arguments=text):
                calls.append(Call(call_id, name, text))
            case CustomItem(call_id=call_id, name=name, input=text):
                calls.append(Call(call_id, name, text))
    reason, used = response.incomplete_details and response.incomplete_details.reason, response.usage
    finish = f"{response.status} {reason or ''}".strip()
    counts = (None, None) if used is None else (used.input_tokens, used.output_tokens)
    return Said(said, thought, tuple(calls), finish, *counts)


def _assembled(answer: Answer) -> None:
    """Raise Wrong unless the events of a stream make up the response in its last event.

    They are assembled as SDKs do: items by output_index, parts within them by content_index, pieces appended to these.
    """
    response = whole(answer)
    items: list[dict[str, Any]] = []
    done: set[int] = set()
    for event in events(answer):
        one = event.json
        kind = str(one.get("type"))
        expect(event.name in ("", kind), f"an event {shown(event.name)} of type {kind}")
        inner = one.get("response")
        if isinstance(inner, dict):
            named = (inner.get("id"), inner.get("model") or response.get("model"))  # clients read it only at the end
            expect(named == (response.get("id"), response.get("model")), f"id and model {shown(named)} in {kind}")
        if kind == "response.output_item.added":
            expect(one.get("output_index") == len(items), f"index {shown(one.get('output_index'))} of an item")
            items.append(dict(one["item"]))
        elif "output_index" in one or "item_id" in one:
            at: Any = one.get("output_index")
            expect(at in range(len(items)), f"output_index {shown(at)} of {kind}, of {len(items)} items")
            expect(at not in done, f"{kind} of an item that is done")
            if kind == "response.output_item.done":
                _grown(items[at], one["item"])
                items[at] = dict(one["item"])
                done.add(at)
            else:
                _add(one, kind, items[at])
    expect(len(done) == len(items), f"{len(items)} items, {len(done)} of them done")
    output = response.get("output")
    expect(items == output, f"items {shown(items)[:60]}, at the end {shown(output)[:60]}")


def _add(one: dict[str, Any], kind: str, item: dict[str, Any]) -> None:
    """Add the part or piece of text that an event brings to its item, or compare a complete text with its pieces.

    one: the event; kind: its type; item: the item, changed in place.
    """
    expect(one.get("item_id") == item.get("id"), f"item_id {shown(one.get('item_id'))} of {shown(item.get('id'))}")
    name, _, step = kind.rpartition(".")
    if name in PARTS and step == "added":
        parts, number = PARTS[name]
        known = item.get(parts) or []
        expect(one.get(number) == len(known), f"{kind} with the index {shown(one.get(number))}")
        item[parts] = [*known, dict(one["part"])]
    elif name in PIECES:
        of, place, number, member = PIECES[name]
        within = list(item.get(place) or ()) if place else [item]
        index: Any = one.get(number) if place else 0
        fits = item.get("type") == of and index in range(len(within))
        expect(fits, f"{kind} at {shown(index)} of {shown(item.get('type'))}, of {len(within)} parts")
        made = within[index].get(member) or ""
        if step == "delta":
            expect(isinstance(one.get("delta"), str), f"delta {shown(one.get('delta'))}")
            within[index][member] = made + one["delta"]
        elif step == "done":
            expect(one.get(member) == made, f"{kind}: {shown(one.get(member))[:50]}, pieces {shown(made)[:50]}")


def _grown(item: dict[str, Any], done: dict[str, Any]) -> None:
    """Raise Wrong unless a finished item (``done``) equals what its pieces made up (``item``)."""
    members = ["id", "type", "name", "call_id", *(name for name in ("arguments", "input") if item.get(name))]
    pairs = [(name, item.get(name), done.get(name)) for name in members]
    pairs += [(name, _texts(item[name]), _texts(done.get(name))) for name in ("content", "summary") if item.get(name)]
    for name, made, told in pairs:
        expect(made == told, f"{name} {shown(told)[:50]} of an item that is done, before {shown(made)[:50]}")


def _texts(parts: Any) -> list[Any]:
    return [part.get("text") for part in parts or ()]


def _too_long(answer: Answer) -> None:
    overflow_known(answer)
    code = refused(answer, 400).error.code
    expect(code == "context_length_exceeded", f"code {shown(code)}, by which Codex knows it")


def _results(answer: Answer, result: Any) -> list[dict[str, Any]]:
    output = whole(answer)["output"]
    call_id = items(answer, "function_call")[0]["call_id"]
    return [*output, {"type": "function_call_output", "call_id": call_id, "output": result}]


_IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
api = Api(
    name="responses",
    path="/v1/responses",
    read=read,
    clients="codex pi openai inspect",
    prompt="input",
    length="max_output_tokens",
    few=(16, 32),
    always={"store": False},
    quiet={"reasoning": {"effort": "none"}},
    thinks={"reasoning": {"effort": "high", "summary": "auto"}},
    stream={"stream": True},
    cut="incomplete max_output_tokens",
    called=("completed",),
    form=lambda schema: {
        "text": {"format": {"type": "json_schema", "name": "form", "schema": schema, "strict": True}}
    },
    tools=[
        {"type": "function", "name": name, "description": "d", "parameters": schema, "strict": name == "weather"}
        for name, schema in (("weather", PARAMETERS), ("clock", OTHER))
    ],
    single={"parallel_tool_calls": False},
    choices=({"tool_choice": {"type": "function", "name": "weather"}}, {"tool_choice": "required"}),
    no_choice={"tool_choice": "none"},
    strict=True,
    results=_results,
    parts=(_IMAGE,),
    image=({"type": "input_text", "text": "What is it?"}, _IMAGE),
    has_text=lambda one: str(one.get("type")).endswith("text.delta"),
    order=("response.created", "response.output_item.added", "response.output_text.delta", "response.output_text.done",
           "response.output_item.done"),
    last=ENDS,
    wrong={"input": 5},
    overflow=_too_long,
    optional=("image",),
)  # fmt: skip

api.taken("tool_hosted", "codex", "hosted tools without a name are no error",
          tools=[{"type": "web_search", "external_web_access": True}, *api.tools], **api.no_choice)  # fmt: skip
api.taken(
    "as_codex", "codex",
    "what Codex sends is taken: no instructions, developer items, an environment, reasoning items with nulls",
    [
        *({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]} for role, text in (
            ("developer", "You are an agent."), ("user", "<environment_context/>"), ("user", "Say hello."))),
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ],
    include=["reasoning.encrypted_content"], prompt_cache_key="k", client_metadata={"a": "b"},
    parallel_tool_calls=True, tool_choice="auto", tools=[], text={"verbosity": "low"},
)  # fmt: skip


@api.check("stream", "codex pi")
def stream_items(talk: Talk) -> None:
    """response.output_item.done for every item, which is where Codex takes them from."""
    asked = api.ask(talk, stream=True)
    done = [event.json["item"] for event in events(asked) if event.json["type"] == "response.output_item.done"]
    expect(done and done == whole(asked).get("output"), f"{len(done)} items done")


@api.check("stream", "openai", required=False)
def stream_numbers(talk: Talk) -> None:
    """sequence numbers that count up."""
    numbers = [event.json.get("sequence_number") for event in events(api.ask(talk, stream=True))]
    expect(numbers == sorted({n for n in numbers if isinstance(n, int)}), f"sequence numbers {shown(numbers)}")


@api.check("tools", "codex", how="forced")
def tool_custom(talk: Talk) -> None:
    """a custom tool: a custom_tool_call whose input is plain text, streamed as well."""
    word = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,12}"}  # so that any model comes to an end
    note = {"type": "custom", "name": "note", "description": "Takes a note of one word", "format": word}
    for more in api.forms:
        asked = api.ask(talk, "Note it.", tools=[note], tool_choice={"type": "custom", "name": "note"}, **more)
        (said,) = read(offered(asked, "custom tools")).calls
        call = items(asked, "custom_tool_call")[0]
        expect(said.name == "note" and said.arguments == call["input"], f"a call {shown(call)}")


@api.check("tools", "codex", how="forced")
def tool_namespace(talk: Talk) -> None:
    """a tool of a namespace: its bare name, and the namespace beside it."""
    space = {"type": "namespace", "name": "sky", "description": "About the sky", "tools": [api.tools[0]]}
    for more in api.forms:
        asked = api.ask(talk, ASK, tools=[space], tool_choice="required", **api.single, **more)
        call = items(offered(asked, "namespaces of tools"), "function_call")[0]
        expect(call.get("name") == "weather" and call.get("namespace") == "sky", f"a call {shown(call)}")
