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


def body(talk: Talk, said: object = "Say hello.", **more: Any) -> dict[str, Any]:
    """A request. Models think aloud unless told not to; where the server takes that, they are told."""
    messages = said if isinstance(said, list) and said and "role" in said[0] else [{"role": "user", "content": said}]
    plain = {"model": talk.model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0}
    probe = {**plain, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "reasoning_effort": "none"}
    quiet = {"reasoning_effort": "none"} if talk.ask(PATH, probe).status == 200 else {}
    return {**plain, **quiet, **more}


def choice(answer: Answer) -> dict[str, Any]:
    """The one choice of a completion."""
    choices = answer.document().get("choices")
    expect(isinstance(choices, list) and len(choices) == 1, f"choices {shown(choices)}")
    assert choices is not None
    return dict(choices[0])


def chunks(answer: Answer) -> list[dict[str, Any]]:
    """The chunks of a stream, without its end."""
    return [event.json for event in answer.events() if event.data != "[DONE]"]


def deltas(answer: Answer) -> list[dict[str, Any]]:
    """The pieces of the one choice."""
    return [one.get("delta") or {} for chunk in chunks(answer) for one in chunk.get("choices") or ()]


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, stream=True, stream_options={"include_usage": True}))


def forced(talk: Talk, **more: Any) -> Answer:
    return talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice=WEATHER, **more))


def calls(answer: Answer) -> list[dict[str, Any]]:
    """The calls of a completion."""
    found = choice(answer)["message"].get("tool_calls")
    expect(isinstance(found, list) and found, f"tool_calls {shown(found)}")
    return list(found)


@check("turn")
def document(talk: Talk) -> None:
    """a chat.completion with an id and one message of the assistant, its content a text."""
    found = plain(talk).document()
    expect(found.get("object") == "chat.completion", f"object {shown(found.get('object'))}")
    expect(isinstance(found.get("id"), str) and found["id"], f"id {shown(found.get('id'))}")
    message = choice(plain(talk)).get("message") or {}
    expect(message.get("role") == "assistant", f"role {shown(message.get('role'))}")
    expect(isinstance(message.get("content"), str), f"content {shown(message.get('content'))}")


@check("turn")
def finish(talk: Talk) -> None:
    """finish_reason "stop" or "length"."""
    found = choice(plain(talk)).get("finish_reason")
    expect(found in ("stop", "length"), f"finish_reason {shown(found)}")


@check("turn")
def parts(talk: Talk) -> None:
    """content in parts means the same as content as a text."""
    choice(talk.ask(PATH, body(talk, [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}])))


@check("turn")
def developer(talk: Talk) -> None:
    """developer and system messages are taken."""
    said = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    choice(talk.ask(PATH, body(talk, said)))


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
    found = plain(talk).document().get("usage")
    counts(found, PARTS, "total_tokens")
    assert found is not None
    expect(found["prompt_tokens"] > 0, f"usage {shown(found)}")


@check("stream")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream")
def stream_chunks(talk: Talk) -> None:
    """chunks of one id, the first with the role, each delta with its index."""
    found = chunks(streamed(talk))
    expect(found, "a stream without a chunk")
    one_id(found)
    kinds = {chunk.get("object") for chunk in found}
    expect(kinds == {"chat.completion.chunk"}, f"object {shown(sorted(map(str, kinds)))}")
    expect(
        all(one.get("index") == 0 for chunk in found for one in chunk.get("choices") or ()), "a choice without index"
    )
    roles = [delta["role"] for delta in deltas(streamed(talk)) if delta.get("role")]
    expect(roles and set(roles) == {"assistant"}, f"roles {shown(roles)}")


@check("stream")
def stream_done(talk: Talk) -> None:
    """[DONE] and nothing behind it."""
    found = streamed(talk).events()
    ends = [i for i, event in enumerate(found) if event.data == "[DONE]"]
    expect(ends == [len(found) - 1], f"the last event is {shown(found[-1].data if found else 'none')}")


@check("stream")
def stream_finish(talk: Talk) -> None:
    """one finish reason that clients know, and no delta behind it."""
    told = [one.get("finish_reason") for chunk in chunks(streamed(talk)) for one in chunk.get("choices") or ()]
    reasons = [reason for reason in told if reason]
    expect(len(reasons) == 1 and reasons[0] in FINISHES, f"finish reasons {shown(reasons)}")
    expect(told[-1] == reasons[0], "a delta behind the finish reason")


@check("stream", required=False)
def stream_same(talk: Talk) -> None:
    """a stream says what the document says."""
    text = "".join(delta.get("content") or "" for delta in deltas(streamed(talk)))
    whole = choice(plain(talk))["message"]["content"]
    expect(text == whole, f"{shown(text)[:60]} and {shown(whole)[:60]}")


@check("usage")
def stream_usage(talk: Talk) -> None:
    """usage as the last chunk, without choices, if stream_options ask for it."""
    found = [chunk for chunk in chunks(streamed(talk)) if chunk.get("usage")]
    expect(len(found) == 1, f"{len(found)} chunks with usage")
    counts(found[0]["usage"], PARTS, "total_tokens")
    expect(found[0] is chunks(streamed(talk))[-1] or not found[0].get("choices"), "a usage chunk with choices")


@check("tools", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a call of that tool, with an id."""
    found = choice(forced(talk))
    (call, *more) = calls(forced(talk))
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("id"), str) and call["id"], f"id {shown(call.get('id'))}")
    expect(call.get("type") == "function", f"type {shown(call.get('type'))}")
    expect(call["function"].get("name") == "weather", f"name {shown(call['function'].get('name'))}")
    # OpenAI's own API says "stop" where the call was forced by name
    expect(found.get("finish_reason") in ("tool_calls", "stop"), f"finish_reason {shown(found.get('finish_reason'))}")


@check("tools", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its arguments are JSON text that fits the schema."""
    arguments_fit(calls(forced(talk))[0]["function"].get("arguments"))


def _pieces(talk: Talk) -> list[dict[str, Any]]:
    found = [piece for delta in deltas(forced(talk, stream=True)) for piece in delta.get("tool_calls") or ()]
    expect(found, "a stream without a call")
    return found


@check("tools", how="forced")
def stream_tool_call(talk: Talk) -> None:
    """streamed: every piece with its index, the first with id, type and name."""
    found = _pieces(talk)
    expect(all(piece.get("index") == 0 for piece in found), f"indices {shown([piece.get('index') for piece in found])}")
    first = found[0]
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
    found = choice(talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice="none")))
    expect(not found["message"].get("tool_calls"), f"tool_calls {shown(found['message'].get('tool_calls'))}")


def _history(talk: Talk, arguments: str | None = None, **more: Any) -> list[dict[str, Any]]:
    call = calls(forced(talk))[0]
    if arguments is not None:
        call = {**call, "function": {**call["function"], "arguments": arguments}}
    made = {
        "role": "assistant",
        "content": choice(forced(talk))["message"].get("content"),
        "tool_calls": [call],
        **more,
    }
    return [{"role": "user", "content": ASK}, made, {"role": "tool", "tool_call_id": call["id"], "content": RESULT}]


@check("answer")
def answer(talk: Talk) -> None:
    """the history with call and result is answered in text."""
    found = choice(talk.ask(PATH, body(talk, _history(talk), tools=TOOLS, tool_choice="none")))
    expect(isinstance(found["message"].get("content"), str), f"content {shown(found['message'].get('content'))}")


@check("answer")
def answer_rewritten(talk: Talk) -> None:
    """a history as clients rewrite it: arguments respelled, reasoning_content, content null."""
    said = _history(talk, '{"tomorrow": true,  "city": "Oslo"}', reasoning_content="I ask.", refusal=None, content=None)
    choice(talk.ask(PATH, body(talk, said, tools=TOOLS, tool_choice="none")))


@check("thinking", required=False)
def thinking_off(talk: Talk) -> None:
    """reasoning_effort "none" is taken, and nothing is reasoned."""
    found = choice(talk.ask(PATH, body(talk, reasoning_effort="none")))["message"]
    expect(not found.get("reasoning_content"), f"reasoning_content {shown(found.get('reasoning_content'))}")


@check("thinking", required=False)
def thinking_on(talk: Talk) -> None:
    """reasoning comes apart from the content, as reasoning_content or reasoning."""
    found = choice(talk.ask(PATH, body(talk, reasoning_effort="high")))["message"]
    told = found.get("reasoning_content") or found.get("reasoning")
    expect(isinstance(told, str) and told, f"a message of {shown(sorted(found))}")


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
    """response_format "json_object": a JSON object."""
    form = {"type": "json_object"}
    found = choice(talk.ask(PATH, body(talk, 'Answer with the JSON {"a": 1}.', response_format=form)))
    expect(isinstance(parsed(found["message"]["content"]), dict), shown(found["message"]["content"]))


@check("limits")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as finish_reason "length"."""
    answer = talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3))
    found, used = choice(answer), (answer.document().get("usage") or {}).get("completion_tokens")
    expect(found.get("finish_reason") == "length", f"finish_reason {shown(found.get('finish_reason'))}")
    expect(used is None or used <= 3, f"{used} tokens")


@check("limits", required=False)
def limit_completion(talk: Talk) -> None:
    """max_completion_tokens, which OpenAI's clients send now, is kept, too."""
    asked = body(talk, "Count to a thousand.", max_completion_tokens=3)
    del asked["max_tokens"]
    found = choice(talk.ask(PATH, asked)).get("finish_reason")
    expect(found == "length", f"finish_reason {shown(found)}")


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
    found = (choice(talk.ask(PATH, body(talk, logprobs=True, top_logprobs=2, max_tokens=4))).get("logprobs") or {}).get(
        "content"
    )
    expect(isinstance(found, list) and found, f"logprobs {shown(found)}")
    assert found is not None
    for one in found:
        expect(isinstance(one.get("token"), str) and one.get("logprob", 1) <= 0, f"an entry {shown(one)}")
        expect(len(one.get("top_logprobs") or ()) == 2, f"top_logprobs {shown(one.get('top_logprobs'))}")
