"""Responses, as OpenAI's SDK, Codex, pi and inspect_ai need them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Event, Talk, expect, shown
from . import Checks
from .common import (
    ASK,
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

PATH = "/v1/responses"
check = Checks("responses", PATH)

ENDS = ("response.completed", "response.incomplete")
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


def forced(talk: Talk, **more: Any) -> Answer:
    choice = {"type": "function", "name": "weather"}
    return talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice=choice, **more))


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


@check("turn")
def document(talk: Talk) -> None:
    """a response with an id, a status and one message of "output_text"."""
    reply = response(plain(talk))
    expect(reply.get("object") == "response", f"object {shown(reply.get('object'))}")
    expect(isinstance(reply.get("id"), str) and reply["id"], f"id {shown(reply.get('id'))}")
    expect(reply.get("status") in ("completed", "incomplete"), f"status {shown(reply.get('status'))}")
    expect(isinstance(text(plain(talk)), str), "no text")


@check("turn")
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


@check("turn", required=False)
def image(talk: Talk) -> None:
    """an image among the input or a result is no error."""
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    content = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, pixel]}]
    not_the_servers(talk.ask(PATH, body(talk, content)))


@check("turn")
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_output_tokens=4 * talk.tokens))
    response(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("usage")
def usage(talk: Talk) -> None:
    """usage: input, output and their total."""
    counts(response(plain(talk)).get("usage"), ("input_tokens", "output_tokens"), "total_tokens")


@check("stream")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream")
def stream_order(talk: Talk) -> None:
    """created, an item, its text, its end, and response.completed, in this order."""
    names = names_of(events(streamed(talk)))
    steps = ("created", "output_item.added", "output_text.delta", "output_text.done", "output_item.done")
    in_order(names, [f"response.{step}" for step in steps])
    rest = names[names.index("response.output_text.done") :]
    expect("response.output_text.delta" not in rest, "a delta behind the end of its text")
    expect(names[-1] in ENDS, f"a stream that ends in {names[-1]}")


@check("stream")
def stream_items(talk: Talk) -> None:
    """response.output_item.done for every item, which is where Codex takes them from."""
    done = [event.json["item"] for event in events(streamed(talk)) if event.json["type"] == "response.output_item.done"]
    expect(done and done == response(streamed(talk)).get("output"), f"{len(done)} items done")


@check("stream")
def stream_deltas(talk: Talk) -> None:
    """deltas that make up the text of the item."""
    stream = [event.json for event in events(streamed(talk))]
    joined = "".join(one["delta"] for one in stream if one["type"] == "response.output_text.delta")
    expect(joined == text(streamed(talk)), f"deltas {shown(joined)}")


@check("stream", required=False)
def stream_numbers(talk: Talk) -> None:
    """sequence numbers that count up."""
    numbers = [event.json.get("sequence_number") for event in events(streamed(talk))]
    expect(numbers == sorted({n for n in numbers if isinstance(n, int)}), f"sequence numbers {shown(numbers)}")


@check("usage")
def stream_usage(talk: Talk) -> None:
    """usage in the event that ends the stream, or Codex never compacts."""
    counts(response(streamed(talk)).get("usage"), ("input_tokens", "output_tokens"), "total_tokens")


@check("tools", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a function_call with call_id and name."""
    (call, *more) = items(forced(talk), "function_call")
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("call_id"), str) and call["call_id"], f"call_id {shown(call.get('call_id'))}")
    expect(call.get("name") == "weather", f"name {shown(call.get('name'))}")


@check("tools", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its arguments are JSON text that fits the schema."""
    arguments_fit(items(forced(talk), "function_call")[0].get("arguments"))


@check("tools", how="forced")
def stream_tool(talk: Talk) -> None:
    """the same as a stream."""
    stream = [event.json for event in events(forced(talk, stream=True))]
    done = [one["item"] for one in stream if one["type"] == "response.output_item.done"]
    calls = [item for item in done if item.get("type") == "function_call"]
    expect(len(calls) == 1 and calls[0].get("name") == "weather", f"items {shown(done)}")
    arguments_fit(calls[0].get("arguments"))
    pieces = [one["delta"] for one in stream if one["type"] == "response.function_call_arguments.delta"]
    expect(not pieces or "".join(pieces) == calls[0]["arguments"], f"pieces {shown(''.join(pieces))}")


@check("tools", how="forced")
def tool_custom(talk: Talk) -> None:
    """a custom tool: a custom_tool_call whose input is plain text."""
    choice = {"type": "custom", "name": "note"}
    call = items(talk.ask(PATH, body(talk, "Note it.", tools=[NOTE], tool_choice=choice)), "custom_tool_call")[0]
    expect(isinstance(call.get("input"), str), f"input {shown(call.get('input'))}")
    expect(call.get("name") == "note" and call.get("call_id"), f"a call {shown(call)}")


@check("tools")
def tool_hosted(talk: Talk) -> None:
    """hosted tools without a name are no error."""
    tools = [{"type": "web_search", "external_web_access": True}, *TOOLS]
    response(talk.ask(PATH, body(talk, tools=tools, tool_choice="none")))


@check("answer")
def answer(talk: Talk) -> None:
    """the history with all items and the result is answered in text."""
    call = items(forced(talk), "function_call")[0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    text(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("answer")
def answer_parts(talk: Talk) -> None:
    """results in parts, an image among them, are taken."""
    call = items(forced(talk), "function_call")[0]
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": [pixel]}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    response(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("thinking", required=False)
def thinking(talk: Talk) -> None:
    """a reasoning item with a summary, where that is asked for."""
    reasoning = {"effort": "high", "summary": "auto"}
    item = items(talk.ask(PATH, body(talk, reasoning=reasoning)), "reasoning")[0]
    parts = item.get("summary")
    expect(isinstance(parts, list) and parts and parts[0].get("text"), f"summary {shown(parts)}")


def _formatted(talk: Talk, **more: Any) -> Answer:
    form = {"format": {"type": "json_schema", "name": "form", "schema": FORM, "strict": True}}
    return talk.ask(PATH, body(talk, "Is water wet? Answer in JSON.", text=form, **more))


@check("format", how="forced")
def format_schema(talk: Talk) -> None:
    """text.format with a schema: text that fits it."""
    form_fits(text(_formatted(talk)))


@check("format", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    form_fits(text(_formatted(talk, stream=True)))


@check("limits")
def limit(talk: Talk) -> None:
    """max_output_tokens is kept, and told as "incomplete"."""
    reply = response(talk.ask(PATH, body(talk, "Count to a thousand.", max_output_tokens=16)))
    expect(reply.get("status") == "incomplete", f"status {shown(reply.get('status'))}")
    reason = (reply.get("incomplete_details") or {}).get("reason")
    expect(reason == "max_output_tokens", f"reason {shown(reason)}")


@check("limits")
def overflow(talk: Talk) -> None:
    """a prompt that does not fit: 400 with the code "context_length_exceeded", by which Codex knows it."""
    answer = talk.ask(PATH, body(talk, too_long(talk)))
    openai_error(answer, 400)
    overflow_known(answer.text)
    code = answer.document(400)["error"].get("code")
    expect(code == "context_length_exceeded", f"code {shown(code)}")


@check("errors")
def bad_json(talk: Talk) -> None:
    """an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"input": ['))


@check("errors")
def bad_field(talk: Talk) -> None:
    """an error object for input of the wrong type."""
    openai_error(talk.ask(PATH, {"model": talk.model, "input": 5}))
