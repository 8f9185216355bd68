"""Responses, as OpenAI's SDK, Codex, pi and inspect_ai need them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..talk import Answer, Event, NotOffered, Talk, expect, shown
from . import Checks
from .common import (
    ASK,
    FAILURES,
    FORM,
    OTHER,
    PARAMETERS,
    PIXEL,
    RESULT,
    arguments_fit,
    counts,
    event_stream,
    form_fits,
    in_order,
    names_of,
    not_the_servers,
    openai_error,
    overflow_known,
    too_long,
)  # fmt: skip
from .said import (
    COUNT,
    LONG_FORM,
    PROMPTS,
    REFUSALS,
    UNICODE_FORM,
    Call,
    Said,
    agree,
    as_written,
    clean,
    counted,
    different,
    grows,
    integers,
    is_cut,
    named,
    offered,
    place_fits,
)  # fmt: skip

PATH = "/v1/responses"
check = Checks("responses", PATH)

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
WORD = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,12}"}  # so that any model comes to an end
NOTE = {"type": "custom", "name": "note", "description": "Takes a note of one word", "format": WORD}


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
    return talk.ask(PATH, _forced(talk, **more))


def _forced(talk: Talk, **more: Any) -> dict[str, Any]:
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


@check("turn", "object, id, status, output[].type, .content[].type, .text", "openai inspect litellm")
def document(talk: Talk) -> None:
    """a response with an id, a status and one message of "output_text"."""
    reply = response(plain(talk))
    expect(reply.get("object") == "response", f"object {shown(reply.get('object'))}")
    expect(isinstance(reply.get("id"), str) and reply["id"], f"id {shown(reply.get('id'))}")
    expect(reply.get("status") in ("completed", "incomplete"), f"status {shown(reply.get('status'))}")
    expect(isinstance(text(plain(talk)), str), "no text")


@check("turn", "-", "codex")
def as_codex(talk: Talk) -> None:
    """what Codex sends is taken: no instructions, developer items, an environment, reasoning items with nulls."""
    history = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ]
    more: dict[str, Any] = {
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"a": "b"},
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "text": {"verbosity": "low"},
    }  # fmt: skip
    response(talk.ask(PATH, body(talk, history, **more)))


@check("turn", "-", "codex", required=False)
def image(talk: Talk) -> None:
    """an image among the input or a result is no error."""
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    content = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, pixel]}]
    not_the_servers(talk.ask(PATH, body(talk, content)))


@check("turn", "-", "codex pi openai inspect")
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_output_tokens=4 * talk.tokens))
    response(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("turn", "output[].content[].text, .summary[].text", "codex pi openai inspect")
def markup(talk: Talk) -> None:
    """no markup of a chat template in what was said: no <think>, no end-of-turn tokens."""
    thinks = body(talk, reasoning={"effort": "high", "summary": "auto"})
    for answer in (plain(talk), streamed(talk), talk.ask(PATH, thinks), talk.ask(PATH, {**thinks, **STREAM})):
        if answer.status not in REFUSALS:
            clean(read(answer))


@check("usage", "usage.input_tokens, .output_tokens, .total_tokens", "openai inspect")
def usage(talk: Talk) -> None:
    """usage: input, output and their total."""
    used: Any = response(plain(talk)).get("usage")
    counts(used, ("input_tokens", "output_tokens"), "total_tokens")
    expect(used["input_tokens"] > 0, f"usage {shown(used)}")


@check("usage", "usage.input_tokens, .output_tokens", "codex pi inspect")
def usage_counts(talk: Talk) -> None:
    """usage counts: a longer prompt has more tokens, cached or not, and so has a longer answer."""
    short = read(talk.ask(PATH, body(talk, COUNT, max_output_tokens=16)))
    longer = read(talk.ask(PATH, body(talk, COUNT, max_output_tokens=32)))
    long = body(talk, "word " * 100 + COUNT, max_output_tokens=16)
    counted(short, read(talk.ask(PATH, long)), read(talk.again(PATH, long)), 100)
    grows(short, longer, (16, 32), "incomplete max_output_tokens")


@check("stream", "Content-Type", "codex pi openai inspect")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream", "type of the events", "codex pi openai")
def stream_order(talk: Talk) -> None:
    """created, an item, its text, its end, and response.completed, in this order."""
    names = names_of(events(streamed(talk)))
    steps = ("created", "output_item.added", "output_text.delta", "output_text.done", "output_item.done")
    in_order(names, [f"response.{step}" for step in steps])
    rest = names[names.index("response.output_text.done") :]
    expect("response.output_text.delta" not in rest, "a delta behind the end of its text")
    expect(names[-1] in ENDS, f"a stream that ends in {names[-1]}")


@check("stream", "response.output_item.done: item", "codex pi")
def stream_items(talk: Talk) -> None:
    """response.output_item.done for every item, which is where Codex takes them from."""
    done = [event.json["item"] for event in events(streamed(talk)) if event.json["type"] == "response.output_item.done"]
    expect(done and done == response(streamed(talk)).get("output"), f"{len(done)} items done")


@check("stream", "response.output_text.delta: delta", "codex pi openai")
def stream_deltas(talk: Talk) -> None:
    """deltas that make up the text of the item."""
    stream = [event.json for event in events(streamed(talk))]
    joined = "".join(one["delta"] for one in stream if one["type"] == "response.output_text.delta")
    expect(joined == text(streamed(talk)), f"deltas {shown(joined)}")


@check("stream", "response.completed: response.output, .status, .usage", "codex pi openai inspect")
def stream_same(talk: Talk) -> None:
    """a stream says what the document says: text, end and usage."""
    agree(talk, PATH, body(talk), read, STREAM)


@check("stream", "response.id, item_id, output_index, content_index, item.id", "openai pi")
def stream_assembles(talk: Talk) -> None:
    """ids and indices by which the events put together the response that ends the stream, items one after the other."""
    read(streamed(talk))
    for more in ({}, {"reasoning": {"effort": "high", "summary": "auto"}}):
        read(forced(talk, **STREAM, **more))


@check("stream", "response.output_text.delta", "codex pi openai")
def stream_written(talk: Talk) -> None:
    """the answer is sent as it is written, not all at once."""
    asked = body(talk, COUNT, stream=True, max_output_tokens=max(talk.tokens, 256))
    form = {"format": {"type": "json_schema", "name": "form", "schema": LONG_FORM, "strict": True}}
    as_written(talk, PATH, [asked, {**asked, "text": form}], lambda one: str(one.get("type")).endswith("text.delta"))


@check("stream", "sequence_number", "openai", required=False)
def stream_numbers(talk: Talk) -> None:
    """sequence numbers that count up."""
    numbers = [event.json.get("sequence_number") for event in events(streamed(talk))]
    expect(numbers == sorted({n for n in numbers if isinstance(n, int)}), f"sequence numbers {shown(numbers)}")


@check("usage", "response.completed: response.usage", "codex pi")
def stream_usage(talk: Talk) -> None:
    """usage in the event that ends the stream, or Codex never compacts."""
    used: Any = response(streamed(talk)).get("usage")
    counts(used, ("input_tokens", "output_tokens"), "total_tokens")
    expect(used["input_tokens"] > 0, f"usage {shown(used)}")


@check("tools", "output[].type, .call_id, .name", "openai inspect", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a function_call with call_id and name."""
    (call, *more) = items(forced(talk), "function_call")
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("call_id"), str) and call["call_id"], f"call_id {shown(call.get('call_id'))}")
    expect(call.get("name") == "weather", f"name {shown(call.get('name'))}")


@check("tools", "output[].arguments", "openai inspect", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its arguments are JSON text that fits the schema."""
    arguments_fit(items(forced(talk), "function_call")[0].get("arguments"), strict=True)


@check("tools", "response.output_item.done: item.type, .name, .arguments", "codex pi openai", how="forced")
def stream_tool(talk: Talk) -> None:
    """the same as a stream."""
    stream = [event.json for event in events(forced(talk, stream=True))]
    done = [one["item"] for one in stream if one["type"] == "response.output_item.done"]
    calls = [item for item in done if item.get("type") == "function_call"]
    expect(len(calls) == 1 and calls[0].get("name") == "weather", f"items {shown(done)}")
    arguments_fit(calls[0].get("arguments"), strict=True)
    pieces = [one["delta"] for one in stream if one["type"] == "response.function_call_arguments.delta"]
    expect(not pieces or "".join(pieces) == calls[0]["arguments"], f"pieces {shown(''.join(pieces))}")


@check("tools", "response.output_item.done: item; response.status", "codex pi openai", how="forced")
def stream_tool_same(talk: Talk) -> None:
    """streamed: the calls and the end of the document."""
    agree(talk, PATH, _forced(talk), read, STREAM)
    clean(read(forced(talk, **STREAM)))


@check("tools", "status, response.completed", "codex pi inspect", how="forced")
def tool_finish(talk: Talk) -> None:
    """a response with a call is completed, as a document and as a stream."""
    for more in ({}, STREAM):
        said = read(forced(talk, **more))
        expect(said.calls and said.finish == "completed", f"status {said.finish}")


@check("tools", "output[].call_id", "codex pi inspect", how="forced")
def tool_ids(talk: Talk) -> None:
    """the calls of one conversation have ids of their own, by which results are told apart."""
    different([call.id for more in ({}, STREAM) for call in read(forced(talk, **more)).calls])


def _custom(talk: Talk, **more: Any) -> Answer:
    choice = {"type": "custom", "name": "note"}
    asked = body(talk, "Note it.", tools=[NOTE], tool_choice=choice, **more)
    return offered(talk.ask(PATH, asked), "custom tools")


@check("tools", "output[].type, .input, .name, .call_id", "codex", how="forced")
def tool_custom(talk: Talk) -> None:
    """a custom tool: a custom_tool_call whose input is plain text."""
    call = items(_custom(talk), "custom_tool_call")[0]
    expect(isinstance(call.get("input"), str), f"input {shown(call.get('input'))}")
    expect(call.get("name") == "note" and call.get("call_id"), f"a call {shown(call)}")


@check("tools", "response.output_item.done: item.type, .input", "codex", how="forced")
def stream_tool_custom(talk: Talk) -> None:
    """the same as a stream."""
    call = items(_custom(talk, **STREAM), "custom_tool_call")[0]
    (said,) = read(_custom(talk, **STREAM)).calls
    expect(said.name == "note" and said.arguments == call["input"], f"a call {shown(call)}")


@check("tools", "item.name, .namespace", "codex", how="forced")
def tool_namespace(talk: Talk) -> None:
    """a tool of a namespace: its bare name, and the namespace beside it."""
    space = {"type": "namespace", "name": "sky", "description": "About the sky", "tools": [TOOLS[0]]}
    asked = body(talk, ASK, tools=[space], tool_choice="required", parallel_tool_calls=False)
    for more in ({}, STREAM):
        call = items(offered(talk.ask(PATH, {**asked, **more}), "namespaces of tools"), "function_call")[0]
        expect(call.get("name") == "weather" and call.get("namespace") == "sky", f"a call {shown(call)}")


@check("tools", "-", "codex")
def tool_hosted(talk: Talk) -> None:
    """hosted tools without a name are no error."""
    tools = [{"type": "web_search", "external_web_access": True}, *TOOLS]
    response(offered(talk.ask(PATH, body(talk, tools=tools, tool_choice="none")), "hosted tools"))


@check("answer", "output[].content[].text", "codex pi openai inspect")
def answer(talk: Talk) -> None:
    """the history with all items and the result is answered in text."""
    call = items(forced(talk), "function_call")[0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    text(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("answer", "-", "codex")
def answer_parts(talk: Talk) -> None:
    """results in parts, an image among them, are taken."""
    call = items(forced(talk), "function_call")[0]
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": [pixel]}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    response(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("thinking", "output[].summary[].text", "pi inspect openai")
def thinking(talk: Talk) -> None:
    """a reasoning item with a summary, where that is asked for."""
    asked = body(talk, reasoning={"effort": "high", "summary": "auto"})
    answer = offered(talk.ask(PATH, asked), "reasoning")
    if not any(item.get("type") == "reasoning" for item in response(answer).get("output") or ()):
        raise NotOffered("reasoning items")
    item = items(answer, "reasoning")[0]
    parts = item.get("summary")
    expect(isinstance(parts, list) and parts and parts[0].get("text"), f"summary {shown(parts)}")


@check("thinking", "response.reasoning_summary_text.delta; item.summary", "pi openai codex")
def stream_thinking(talk: Talk) -> None:
    """streamed: the reasoning of the document, in an item of its own."""
    asked = body(talk, reasoning={"effort": "high", "summary": "auto"})
    offered(talk.ask(PATH, asked), "reasoning")
    agree(talk, PATH, asked, read, STREAM)


def _formatted(talk: Talk, schema: object = FORM, **more: Any) -> Answer:
    form = {"format": {"type": "json_schema", "name": "form", "schema": schema, "strict": True}}
    asked = body(talk, "Is water wet? Answer in JSON.", text=form, **more)
    return offered(talk.ask(PATH, asked), "text.format json_schema")


@check("format", "output[].content[].text", "codex openai", how="forced")
def format_schema(talk: Talk) -> None:
    """text.format with a schema: text that fits it."""
    form_fits(text(_formatted(talk)))


@check("format", "response.output_text.delta", "codex openai", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    form_fits(text(_formatted(talk, stream=True)))


@check("format", "output[].content[].text, delta", "codex pi openai inspect", how="forced")
def format_unicode(talk: Talk) -> None:
    """characters of several bytes arrive whole, in documents and in streams."""
    for more in ({}, STREAM):
        place_fits(read(_formatted(talk, UNICODE_FORM, **more)).text)


def _limited(talk: Talk, **more: Any) -> list[Answer]:
    """Answers of at most 16 tokens, of which at least one would be longer where schemas are honoured."""
    form = {"format": {"type": "json_schema", "name": "form", "schema": LONG_FORM, "strict": True}}
    asked = [body(talk, prompt, max_output_tokens=16, **more) for prompt in ("Count to a thousand.", *PROMPTS[1:])]
    answers = [talk.ask(PATH, one) for one in asked]
    formed = talk.ask(PATH, {**asked[0], "text": form})
    return [*answers, formed] if formed.status == 200 else answers


@check("limits", "response.incomplete: response.incomplete_details.reason", "codex pi")
def stream_limit(talk: Talk) -> None:
    """streamed: the same, in an event response.incomplete."""
    is_cut([partial(read, one) for one in _limited(talk, **STREAM)], 16, "incomplete max_output_tokens")
    for one in _limited(talk, **STREAM):
        kind, status = events(one)[-1].json.get("type"), response(one)["status"]
        expect(kind == f"response.{status}", f"a stream that ends in {shown(kind)}, status {status}")


@check("limits", "status, incomplete_details.reason", "pi inspect")
def limit(talk: Talk) -> None:
    """max_output_tokens is kept, and told as "incomplete"."""
    is_cut([partial(read, one) for one in _limited(talk)], 16, "incomplete max_output_tokens")


@check("limits", "error.code, error.message", "codex pi")
def overflow(talk: Talk) -> None:
    """a prompt that does not fit: 400 with the code "context_length_exceeded", by which Codex knows it."""
    for more in ({}, STREAM):
        answer = talk.ask(PATH, body(talk, too_long(talk), **more))
        openai_error(answer, 400)
        overflow_known(answer.text)
        code = answer.document(400)["error"].get("code")
        expect(code == "context_length_exceeded", f"code {shown(code)}")


@check("errors", "error.message", "codex pi openai inspect")
def bad_json(talk: Talk) -> None:
    """an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"input": ['))


@check("errors", "error.message", "codex pi openai inspect")
def bad_field(talk: Talk) -> None:
    """an error object and a status of its own for input of the wrong type, also where a stream is asked for."""
    for more in ({}, STREAM):
        openai_error(talk.ask(PATH, {"model": talk.model, "input": 5, **more}), *FAILURES)
