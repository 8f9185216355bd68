"""Chat completions, as OpenAI's SDK, opencode, pi, Qwen Code, inspect_ai and lm-evaluation-harness need them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Talk, expect, parsed, shown
from . import Checks
from .common import (
    ASK,
    FORM,
    OTHER,
    PARAMETERS,
    PIXEL,
    RESULT,
    arguments_fit,
    at_once,
    counts,
    event_stream,
    form_fits,
    not_the_servers,
    object_begins,
    one_id,
    openai_error,
    overflow_known,
    too_long,
)  # fmt: skip

PATH = "/v1/chat/completions"
check = Checks("chat", PATH)

FINISHES = ("stop", "length", "tool_calls")
PARTS = ("prompt_tokens", "completion_tokens")
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS},
    },
    {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": OTHER}},
]
WEATHER = {"type": "function", "function": {"name": "weather"}}


def body(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    """Build the body of a request to /v1/chat/completions, with reasoning off if the server accepts that."""
    messages = (
        content
        if isinstance(content, list) and content and "role" in content[0]
        else [{"role": "user", "content": content}]
    )
    plain = {"model": talk.model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0}
    probe = {**plain, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "reasoning_effort": "none"}
    quiet = {"reasoning_effort": "none"} if talk.ask(PATH, probe).status == 200 else {}
    return {**plain, **quiet, **more}


def choice(answer: Answer) -> dict[str, Any]:
    """Return the single choice of a chat completion."""
    choices = answer.document().get("choices")
    expect(isinstance(choices, list) and len(choices) == 1, f"choices {shown(choices)}")
    assert choices is not None
    return dict(choices[0])


def chunks(answer: Answer) -> list[dict[str, Any]]:
    """Return the chunks of a stream without the final [DONE]."""
    return [event.json for event in answer.events() if event.data != "[DONE]"]


def deltas(answer: Answer) -> list[dict[str, Any]]:
    """Return the deltas of a stream's single choice."""
    return [one.get("delta") or {} for chunk in chunks(answer) for one in chunk.get("choices") or ()]


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, stream=True, stream_options={"include_usage": True}))


def forced(talk: Talk, **more: Any) -> Answer:
    return talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice=WEATHER, **more))


def calls(answer: Answer) -> list[dict[str, Any]]:
    """Return the tool calls of a chat completion."""
    entries = choice(answer)["message"].get("tool_calls")
    expect(isinstance(entries, list) and entries, f"tool_calls {shown(entries)}")
    return list(entries)


@check("turn")
def document(talk: Talk) -> None:
    """a chat.completion with an id and one message of the assistant, its content a text."""
    completion = plain(talk).document()
    expect(completion.get("object") == "chat.completion", f"object {shown(completion.get('object'))}")
    expect(isinstance(completion.get("id"), str) and completion["id"], f"id {shown(completion.get('id'))}")
    message = choice(plain(talk)).get("message") or {}
    expect(message.get("role") == "assistant", f"role {shown(message.get('role'))}")
    expect(isinstance(message.get("content"), str), f"content {shown(message.get('content'))}")


@check("turn")
def finish(talk: Talk) -> None:
    """finish_reason "stop" or "length"."""
    reason = choice(plain(talk)).get("finish_reason")
    expect(reason in ("stop", "length"), f"finish_reason {shown(reason)}")


@check("turn")
def parts(talk: Talk) -> None:
    """content in parts means the same as content as a text."""
    choice(talk.ask(PATH, body(talk, [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}])))


@check("turn")
def developer(talk: Talk) -> None:
    """developer and system messages are taken."""
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    choice(talk.ask(PATH, body(talk, messages)))


@check("turn")
def unknown_fields(talk: Talk) -> None:
    """fields that mean nothing to this server are no error."""
    more: dict[str, Any] = {
        "store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "parallel_tool_calls": True, "some_future_field": {"x": [1]},
    }  # fmt: skip
    choice(talk.ask(PATH, body(talk, **more)))


@check("turn", required=False)
def image(talk: Talk) -> None:
    """an image is answered or refused, never an error of the server."""
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    not_the_servers(talk.ask(PATH, body(talk, [{"type": "text", "text": "What is it?"}, url])))


@check("turn")
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_tokens=4 * talk.tokens))
    choice(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("turn")
def four_at_once(talk: Talk) -> None:
    """four at once are all answered."""
    for answer in at_once(talk, PATH, [body(talk, f"Say the number {n}.", max_tokens=16) for n in range(4)]):
        choice(answer)


@check("usage")
def usage(talk: Talk) -> None:
    """usage: prompt, completion and their total."""
    counted = plain(talk).document().get("usage")
    counts(counted, PARTS, "total_tokens")
    assert counted is not None
    expect(counted["prompt_tokens"] > 0, f"usage {shown(counted)}")


@check("stream")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream")
def stream_chunks(talk: Talk) -> None:
    """chunks of one id, the first with the role, each delta with its index."""
    events = chunks(streamed(talk))
    expect(events, "a stream without a chunk")
    one_id(events)
    kinds = {chunk.get("object") for chunk in events}
    expect(kinds == {"chat.completion.chunk"}, f"object {shown(sorted(map(str, kinds)))}")
    expect(
        all(one.get("index") == 0 for chunk in events for one in chunk.get("choices") or ()), "a choice without index"
    )
    roles = [delta["role"] for delta in deltas(streamed(talk)) if delta.get("role")]
    expect(roles and set(roles) == {"assistant"}, f"roles {shown(roles)}")


@check("stream")
def stream_done(talk: Talk) -> None:
    """[DONE] and nothing behind it."""
    events = streamed(talk).events()
    ends = [i for i, event in enumerate(events) if event.data == "[DONE]"]
    expect(ends == [len(events) - 1], f"the last event is {shown(events[-1].data if events else 'none')}")


@check("stream")
def stream_finish(talk: Talk) -> None:
    """one finish reason that clients know, and no delta behind it."""
    finishes = [one.get("finish_reason") for chunk in chunks(streamed(talk)) for one in chunk.get("choices") or ()]
    reasons = [reason for reason in finishes if reason]
    expect(len(reasons) == 1 and reasons[0] in FINISHES, f"finish reasons {shown(reasons)}")
    expect(finishes[-1] == reasons[0], "a delta behind the finish reason")


@check("stream", required=False)
def stream_same(talk: Talk) -> None:
    """a stream says what the document says."""
    text = "".join(delta.get("content") or "" for delta in deltas(streamed(talk)))
    whole = choice(plain(talk))["message"]["content"]
    expect(text == whole, f"{shown(text)[:60]} and {shown(whole)[:60]}")


@check("usage")
def stream_usage(talk: Talk) -> None:
    """usage as the last chunk, without choices, if stream_options ask for it."""
    counted = [chunk for chunk in chunks(streamed(talk)) if chunk.get("usage")]
    expect(len(counted) == 1, f"{len(counted)} chunks with usage")
    counts(counted[0]["usage"], PARTS, "total_tokens")
    expect(counted[0] is chunks(streamed(talk))[-1] or not counted[0].get("choices"), "a usage chunk with choices")


@check("tools", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a call of that tool, with an id."""
    reply = choice(forced(talk))
    (call, *more) = calls(forced(talk))
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("id"), str) and call["id"], f"id {shown(call.get('id'))}")
    expect(call.get("type") == "function", f"type {shown(call.get('type'))}")
    expect(call["function"].get("name") == "weather", f"name {shown(call['function'].get('name'))}")
    # OpenAI's own API says "stop" where the call was forced by name
    expect(reply.get("finish_reason") in ("tool_calls", "stop"), f"finish_reason {shown(reply.get('finish_reason'))}")


@check("tools", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its arguments are JSON text that fits the schema."""
    arguments_fit(calls(forced(talk))[0]["function"].get("arguments"))


def _pieces(talk: Talk) -> list[dict[str, Any]]:
    pieces = [piece for delta in deltas(forced(talk, stream=True)) for piece in delta.get("tool_calls") or ()]
    expect(pieces, "a stream without a call")
    return pieces


@check("tools", how="forced")
def stream_tool_call(talk: Talk) -> None:
    """streamed: every piece with its index, the first with id, type and name."""
    pieces = _pieces(talk)
    expect(
        all(piece.get("index") == 0 for piece in pieces), f"indices {shown([piece.get('index') for piece in pieces])}"
    )
    first = pieces[0]
    expect(isinstance(first.get("id"), str) and first["id"], f"a first piece without id: {shown(first)}")
    expect(
        first.get("type") == "function" and first["function"].get("name") == "weather", f"first piece {shown(first)}"
    )


@check("tools", how="forced")
def stream_tool_arguments(talk: Talk) -> None:
    """streamed: the pieces of the arguments make JSON that fits the schema."""
    arguments_fit("".join((piece.get("function") or {}).get("arguments") or "" for piece in _pieces(talk)))


@check("tools", how="forced")
def tool_required(talk: Talk) -> None:
    """tool_choice "required": a call of one of the tools, finish_reason "tool_calls"."""
    answer = talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    names = [call["function"]["name"] for call in calls(answer)]
    expect(set(names) <= {"weather", "clock"}, f"calls of {shown(names)}")
    expect(choice(answer).get("finish_reason") == "tool_calls", f"finish_reason {choice(answer).get('finish_reason')}")


@check("tools")
def tool_none(talk: Talk) -> None:
    """tool_choice "none": no call."""
    reply = choice(talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice="none")))
    expect(not reply["message"].get("tool_calls"), f"tool_calls {shown(reply['message'].get('tool_calls'))}")


def _history(talk: Talk, arguments: str | None = None, **more: Any) -> list[dict[str, Any]]:
    call = calls(forced(talk))[0]
    if arguments is not None:
        call = {**call, "function": {**call["function"], "arguments": arguments}}
    message = {
        "role": "assistant",
        "content": choice(forced(talk))["message"].get("content"),
        "tool_calls": [call],
        **more,
    }
    return [{"role": "user", "content": ASK}, message, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]


@check("answer")
def answer(talk: Talk) -> None:
    """the history with call and result is answered in text."""
    reply = choice(talk.ask(PATH, body(talk, _history(talk), tools=TOOLS, tool_choice="none")))
    expect(isinstance(reply["message"].get("content"), str), f"content {shown(reply['message'].get('content'))}")


@check("answer")
def answer_rewritten(talk: Talk) -> None:
    """a history as clients rewrite it: arguments respelled, reasoning_content, content null."""
    history = _history(
        talk, '{"tomorrow": true,  "city": "Oslo"}', reasoning_content="I ask.", refusal=None, content=None
    )
    choice(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("thinking", required=False)
def thinking_off(talk: Talk) -> None:
    """reasoning_effort "none" is taken, and nothing is reasoned."""
    message = choice(talk.ask(PATH, body(talk, reasoning_effort="none")))["message"]
    expect(not message.get("reasoning_content"), f"reasoning_content {shown(message.get('reasoning_content'))}")


@check("thinking", required=False)
def thinking_on(talk: Talk) -> None:
    """reasoning comes apart from the content, as reasoning_content or reasoning."""
    message = choice(talk.ask(PATH, body(talk, reasoning_effort="high")))["message"]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    expect(isinstance(reasoning, str) and reasoning, f"a message of {shown(sorted(message))}")


def _formatted(talk: Talk, **more: Any) -> Answer:
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM, "strict": True}}
    return talk.ask(PATH, body(talk, "Is water wet? Answer in JSON.", response_format=form, **more))


@check("format", how="forced")
def format_schema(talk: Talk) -> None:
    """response_format with a schema: content that fits it."""
    form_fits(choice(_formatted(talk))["message"].get("content"))


@check("format", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    form_fits("".join(delta.get("content") or "" for delta in deltas(_formatted(talk, stream=True))))


@check("format", required=False, how="forced")
def format_object(talk: Talk) -> None:
    """response_format "json_object": a JSON object, or its beginning where max_tokens cuts it."""
    form = {"type": "json_object"}
    reply = choice(talk.ask(PATH, body(talk, 'Answer with the JSON {"a": 1}.', response_format=form)))
    content = reply["message"]["content"]
    expect(isinstance(content, str) and content, f"{shown(content)} in place of text")
    if reply.get("finish_reason") == "length":  # any object may be long, and random weights hardly end one
        expect(object_begins(content), f"what no object begins with: {shown(content)}")
    else:
        expect(isinstance(parsed(content), dict), shown(content))


@check("limits")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as finish_reason "length"."""
    answer = talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3))
    reply, used = choice(answer), (answer.document().get("usage") or {}).get("completion_tokens")
    expect(reply.get("finish_reason") == "length", f"finish_reason {shown(reply.get('finish_reason'))}")
    expect(used is None or used <= 3, f"{used} tokens")


@check("limits", required=False)
def limit_completion(talk: Talk) -> None:
    """max_completion_tokens, which OpenAI's clients send now, is kept, too."""
    asked = body(talk, "Count to a thousand.", max_completion_tokens=3)
    del asked["max_tokens"]
    reason = choice(talk.ask(PATH, asked)).get("finish_reason")
    expect(reason == "length", f"finish_reason {shown(reason)}")


@check("limits")
def overflow(talk: Talk) -> None:
    """a prompt that does not fit is refused in words that agents know."""
    answer = talk.ask(PATH, body(talk, too_long(talk)))
    openai_error(answer, 400, 413)
    overflow_known(answer.text)


@check("errors")
def bad_json(talk: Talk) -> None:
    """400 and an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"messages": ['))


@check("errors")
def bad_field(talk: Talk) -> None:
    """an error object for messages of the wrong type."""
    openai_error(talk.ask(PATH, {"model": talk.model, "messages": 5}))


@check("score", required=False)
def logprobs(talk: Talk) -> None:
    """logprobs with top_logprobs, one entry a token."""
    entries = (
        choice(talk.ask(PATH, body(talk, logprobs=True, top_logprobs=2, max_tokens=4))).get("logprobs") or {}
    ).get("content")
    expect(isinstance(entries, list) and entries, f"logprobs {shown(entries)}")
    assert entries is not None
    for one in entries:
        expect(isinstance(one.get("token"), str) and one.get("logprob", 1) <= 0, f"an entry {shown(one)}")
        expect(len(one.get("top_logprobs") or ()) == 2, f"top_logprobs {shown(one.get('top_logprobs'))}")
