"""Responses, as OpenAI's SDK, Codex, pi and inspect_ai need them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from . import Checks
from .common import (
    ASK,
    FAILURES,
    FORM,
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
from .responses_answers import (
    ENDS,
    PATH,
    STREAM,
    TOOLS,
    body,
    events,
    forced,
    forced_body,
    items,
    plain,
    read,
    response,
    streamed,
    text,
)
from .said import (
    COUNT,
    LONG_FORM,
    PROMPTS,
    REFUSALS,
    UNICODE_FORM,
    agree,
    as_written,
    clean,
    counted,
    different,
    grows,
    is_cut,
    offered,
    place_fits,
)  # fmt: skip

check = Checks("responses", PATH)

WORD = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,12}"}  # so that any model comes to an end
NOTE = {"type": "custom", "name": "note", "description": "Takes a note of one word", "format": WORD}


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
    agree(talk, PATH, forced_body(talk), read, STREAM)
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
