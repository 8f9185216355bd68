"""Chat completions, as OpenAI's SDK, opencode, pi, Qwen Code, inspect_ai and lm-evaluation-harness need them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, parsed, shown
from . import Checks
from .chat_answers import (
    FINISHES,
    PARTS,
    PATH,
    STREAM,
    TOOLS,
    body,
    calls,
    choice,
    chunks,
    deltas,
    forced,
    forced_body,
    head_fits,
    plain,
    read,
    required,
    streamed,
)
from .common import (
    ASK,
    FAILURES,
    FORM,
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
from .said import (
    COUNT,
    LONG_FORM,
    REFUSALS,
    UNICODE_FORM,
    Said,
    agree,
    as_written,
    clean,
    counted,
    different,
    grows,
    offered,
    place_fits,
    scored,
    stopped,
    with_stop,
)  # fmt: skip

check = Checks("chat", PATH)

AGENTS = "opencode pi qwen"
ALL = "opencode pi qwen openai litellm llm aider"
DOCUMENTS = "openai litellm inspect lm-eval"


@check("turn", "object, id, choices[].message.role, .content", DOCUMENTS)
def document(talk: Talk) -> None:
    """a chat.completion with an id and one message of the assistant, its content a text."""
    completion = plain(talk).document()
    expect(completion.get("object") == "chat.completion", f"object {shown(completion.get('object'))}")
    expect(isinstance(completion.get("id"), str) and completion["id"], f"id {shown(completion.get('id'))}")
    message = choice(plain(talk)).get("message") or {}
    expect(message.get("role") == "assistant", f"role {shown(message.get('role'))}")
    expect(isinstance(message.get("content"), str), f"content {shown(message.get('content'))}")


@check("turn", "created, model, choices[].index", DOCUMENTS)
def head(talk: Talk) -> None:
    """created as a number, the model's name, and the choice's index."""
    head_fits(plain(talk).document())
    expect(choice(plain(talk)).get("index") == 0, f"index {shown(choice(plain(talk)).get('index'))}")


@check("turn", "choices[].finish_reason", DOCUMENTS)
def finish(talk: Talk) -> None:
    """finish_reason "stop" or "length"."""
    reason = choice(plain(talk)).get("finish_reason")
    expect(reason in ("stop", "length"), f"finish_reason {shown(reason)}")


@check("turn", "-", "pi openai")
def parts(talk: Talk) -> None:
    """content in parts means the same as content as a text."""
    choice(talk.ask(PATH, body(talk, [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}])))


@check("turn", "-", "openai litellm")
def developer(talk: Talk) -> None:
    """developer and system messages are taken."""
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    choice(talk.ask(PATH, body(talk, messages)))


@check("turn", "-", "openai opencode pi qwen")
def unknown_fields(talk: Talk) -> None:
    """fields that mean nothing to this server are no error."""
    more: dict[str, Any] = {
        "store": False, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "parallel_tool_calls": True, "some_future_field": {"x": [1]},
    }  # fmt: skip
    choice(talk.ask(PATH, body(talk, **more)))


@check("turn", "-", "openai qwen", required=False)
def image(talk: Talk) -> None:
    """an image is answered or refused, never an error of the server."""
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    not_the_servers(talk.ask(PATH, body(talk, [{"type": "text", "text": "What is it?"}, url])))


@check("turn", "-", AGENTS)
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_tokens=4 * talk.tokens))
    choice(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("turn", "-", "opencode lm-eval")
def four_at_once(talk: Talk) -> None:
    """four at once are all answered."""
    for answer in at_once(talk, PATH, [body(talk, f"Say the number {n}.", max_tokens=16) for n in range(4)]):
        choice(answer)


@check("turn", "choices[].message.content, .reasoning_content", ALL + " lm-eval inspect")
def markup(talk: Talk) -> None:
    """no markup of a chat template in what was said: no <think>, no end-of-turn tokens."""
    effort = {"reasoning_effort": "high"}
    for answer in (plain(talk), streamed(talk), talk.ask(PATH, body(talk, **effort)),
                   talk.ask(PATH, body(talk, **effort, **STREAM))):  # fmt: skip
        if answer.status not in REFUSALS:
            clean(read(answer))


@check("usage", "usage.prompt_tokens, .completion_tokens, .total_tokens", ALL + " inspect")
def usage(talk: Talk) -> None:
    """usage: prompt, completion and their total."""
    counted = plain(talk).document().get("usage")
    counts(counted, PARTS, "total_tokens")
    assert counted is not None
    expect(counted["prompt_tokens"] > 0, f"usage {shown(counted)}")


@check("usage", "usage.prompt_tokens, .completion_tokens", "opencode pi qwen inspect")
def usage_counts(talk: Talk) -> None:
    """usage counts: a longer prompt has more tokens, cached or not, and so has a longer answer."""
    short = read(talk.ask(PATH, body(talk, COUNT, max_tokens=3)))
    longer = read(talk.ask(PATH, body(talk, COUNT, max_tokens=12)))
    long = body(talk, "word " * 100 + COUNT, max_tokens=3)
    counted(short, read(talk.ask(PATH, long)), read(talk.again(PATH, long)), 100)
    grows(short, longer, (3, 12), "length")


@check("stream", "Content-Type", ALL)
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream", "object, id, choices[].index, .delta.role", ALL)
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


@check("stream", "[DONE]", "openai litellm aider llm")
def stream_done(talk: Talk) -> None:
    """[DONE] and nothing behind it."""
    for answer in (streamed(talk), forced(talk, stream=True)):
        events = answer.events()
        ends = [i for i, event in enumerate(events) if event.data == "[DONE]"]
        expect(ends == [len(events) - 1], f"the last event is {shown(events[-1].data if events else 'none')}")


@check("stream", "choices[].finish_reason", AGENTS)
def stream_finish(talk: Talk) -> None:
    """one finish reason that clients know, and no delta behind it."""
    for answer in (streamed(talk), talk.ask(PATH, body(talk, stream=True))):
        finishes = [one.get("finish_reason") for chunk in chunks(answer) for one in chunk.get("choices") or ()]
        reasons = [reason for reason in finishes if reason]
        expect(len(reasons) == 1 and reasons[0] in FINISHES, f"finish reasons {shown(reasons)}")
        read(answer)


@check("stream", "choices[].delta.content, .finish_reason; usage", ALL)
def stream_same(talk: Talk) -> None:
    """a stream says what the document says: text, end and usage."""
    agree(talk, PATH, body(talk), read, STREAM)


@check("stream", "choices[].delta.content", "opencode pi qwen aider llm")
def stream_written(talk: Talk) -> None:
    """the answer is sent as it is written, not all at once."""
    asked = body(talk, COUNT, stream=True, max_tokens=max(talk.tokens, 256))
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": LONG_FORM, "strict": True}}
    as_written(talk, PATH, [asked, {**asked, "response_format": form}], _has_text)


def _has_text(chunk: dict[str, Any]) -> bool:
    deltas = [one.get("delta") or {} for one in chunk.get("choices") or ()]
    return any(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") for delta in deltas)


def _piece_of_call(chunk: dict[str, Any]) -> bool:
    return any((one.get("delta") or {}).get("tool_calls") for one in chunk.get("choices") or ())


@check("usage", "usage of the last chunk", AGENTS + " litellm inspect")
def stream_usage(talk: Talk) -> None:
    """usage in one chunk, behind the answer, if stream_options ask for it."""
    counted = [chunk for chunk in chunks(streamed(talk)) if chunk.get("usage")]
    expect(len(counted) == 1, f"{len(counted)} chunks with usage")
    counts(counted[0]["usage"], PARTS, "total_tokens")
    expect(counted[0]["usage"]["prompt_tokens"] > 0, f"usage {shown(counted[0]['usage'])}")
    said = any(_has_text(chunk) or _piece_of_call(chunk) for chunk in counted)
    expect(counted[0] is chunks(streamed(talk))[-1] or not said, "a usage chunk in the middle of the answer")


@check("tools", "choices[].message.tool_calls[].id, .type, .function.name", "openai litellm inspect", how="forced")
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
    clean(read(forced(talk)))


@check("tools", "choices[].message.tool_calls[].function.arguments", "openai litellm inspect", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its arguments are JSON text that fits the schema."""
    arguments_fit(calls(forced(talk))[0]["function"].get("arguments"))


def _pieces(talk: Talk) -> list[dict[str, Any]]:
    pieces = [piece for delta in deltas(forced(talk, stream=True)) for piece in delta.get("tool_calls") or ()]
    expect(pieces, "a stream without a call")
    return pieces


@check("tools", "choices[].delta.tool_calls[].index, .id, .type, .function.name", AGENTS + " openai llm", how="forced")
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


@check("tools", "choices[].delta.tool_calls[].function.arguments", AGENTS + " openai llm", how="forced")
def stream_tool_arguments(talk: Talk) -> None:
    """streamed: the pieces of the arguments make JSON that fits the schema."""
    arguments_fit("".join((piece.get("function") or {}).get("arguments") or "" for piece in _pieces(talk)))


@check("tools", "choices[].delta.tool_calls[], .finish_reason", AGENTS + " openai llm", how="forced")
def stream_tool_same(talk: Talk) -> None:
    """streamed: the calls and the end of the document, put together by index."""
    agree(talk, PATH, forced_body(talk), read, STREAM)


@check("tools", "choices[].finish_reason", "opencode pi qwen inspect openai", how="forced")
def tool_required(talk: Talk) -> None:
    """tool_choice "required": a call of one of the tools, finish_reason "tool_calls"."""
    answer = required(talk)
    names = [call["function"]["name"] for call in calls(answer)]
    expect(set(names) <= {"weather", "clock"}, f"calls of {shown(names)}")
    expect(choice(answer).get("finish_reason") == "tool_calls", f"finish_reason {choice(answer).get('finish_reason')}")


@check("tools", "choices[].finish_reason, .delta.tool_calls[]", AGENTS + " openai", how="forced")
def stream_tool_finish(talk: Talk) -> None:
    """streamed: finish_reason "tool_calls" behind a call, or the agent's turn is over."""
    said = read(required(talk, **STREAM))
    expect(said.calls, "a stream without a call")
    expect(said.finish == "tool_calls", f"finish_reason {said.finish}")
    clean(said)


@check("tools", "choices[].message.tool_calls[].id", AGENTS + " inspect", how="forced")
def tool_ids(talk: Talk) -> None:
    """the calls of one conversation have ids of their own, by which results are told apart."""
    answers = (forced(talk), required(talk), required(talk, **STREAM))
    different([call.id for answer in answers for call in read(answer).calls])


@check("tools", "choices[].message.tool_calls", "inspect opencode")
def tool_none(talk: Talk) -> None:
    """tool_choice "none": no call."""
    reply = choice(offered(talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice="none")), "tool_choice none"))
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


@check("answer", "choices[].message.content", AGENTS + " inspect")
def answer(talk: Talk) -> None:
    """the history with call and result is answered in text."""
    reply = choice(talk.ask(PATH, body(talk, _history(talk), tools=TOOLS, tool_choice="none")))
    expect(isinstance(reply["message"].get("content"), str), f"content {shown(reply['message'].get('content'))}")


@check("answer", "-", "llm inspect opencode pi qwen litellm")
def answer_rewritten(talk: Talk) -> None:
    """a history as clients rewrite it: arguments respelled, reasoning_content, content null."""
    history = _history(
        talk, '{"tomorrow": true,  "city": "Oslo"}', reasoning_content="I ask.", refusal=None, content=None
    )
    choice(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("thinking", "choices[].message.reasoning_content", "opencode openai", required=False)
def thinking_off(talk: Talk) -> None:
    """reasoning_effort "none" is taken, and nothing is reasoned."""
    message = choice(talk.ask(PATH, body(talk, reasoning_effort="none")))["message"]
    expect(not message.get("reasoning_content"), f"reasoning_content {shown(message.get('reasoning_content'))}")


def _thought(talk: Talk, **more: Any) -> Said:
    answer = offered(talk.ask(PATH, body(talk, reasoning_effort="high", **more)), "reasoning_effort")
    return read(answer)


@check("thinking", "choices[].message.reasoning_content or .reasoning", "opencode pi qwen litellm inspect")
def thinking_on(talk: Talk) -> None:
    """reasoning comes apart from the content, as reasoning_content or reasoning."""
    if not _thought(talk).reasoning and not _thought(talk, **STREAM).reasoning:
        raise NotOffered("reasoning of its own: there is none in reasoning_content and reasoning")
    expect(_thought(talk).reasoning, "reasoning in the stream alone")


@check("thinking", "choices[].delta.reasoning_content or .reasoning", "opencode pi qwen litellm")
def stream_thinking(talk: Talk) -> None:
    """streamed: the reasoning of the document, apart from the content."""
    asked = body(talk, reasoning_effort="high")
    offered(talk.ask(PATH, asked), "reasoning_effort")
    agree(talk, PATH, asked, read, STREAM)


def _formatted(talk: Talk, schema: object = FORM, **more: Any) -> Answer:
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    asked = body(talk, "Is water wet? Answer in JSON.", response_format=form, **more)
    return offered(talk.ask(PATH, asked), "response_format json_schema")


@check("format", "choices[].message.content", "openai litellm inspect", how="forced")
def format_schema(talk: Talk) -> None:
    """response_format with a schema: content that fits it."""
    form_fits(choice(_formatted(talk))["message"].get("content"))


@check("format", "choices[].delta.content", "openai", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    form_fits("".join(delta.get("content") or "" for delta in deltas(_formatted(talk, stream=True))))


@check("format", "choices[].message.content, .delta.content", AGENTS + " openai", how="forced")
def format_unicode(talk: Talk) -> None:
    """characters of several bytes arrive whole, in documents and in streams."""
    for more in ({}, STREAM):
        place_fits(read(_formatted(talk, UNICODE_FORM, **more)).text)


@check("format", "choices[].message.content", "openai litellm", required=False, how="forced")
def format_object(talk: Talk) -> None:
    """response_format "json_object": a JSON object, or its beginning where max_tokens cuts it."""
    form = {"type": "json_object"}
    asked = body(talk, 'Answer with the JSON {"a": 1}.', response_format=form)
    reply = choice(offered(talk.ask(PATH, asked), "response_format json_object"))
    content = reply["message"]["content"]
    expect(isinstance(content, str) and content, f"{shown(content)} in place of text")
    if reply.get("finish_reason") == "length":  # any object may be long, and random weights hardly end one
        expect(object_begins(content), f"what no object begins with: {shown(content)}")
    else:
        expect(isinstance(parsed(content), dict), shown(content))


@check("limits", "choices[].finish_reason, usage.completion_tokens", "pi qwen opencode inspect lm-eval")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as finish_reason "length"."""
    answer = talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3))
    reply, used = choice(answer), (answer.document().get("usage") or {}).get("completion_tokens")
    expect(reply.get("finish_reason") == "length", f"finish_reason {shown(reply.get('finish_reason'))}")
    expect(used is None or used <= 3, f"{used} tokens")


@check("limits", "choices[].finish_reason", "pi qwen opencode")
def stream_limit(talk: Talk) -> None:
    """streamed: the same, since agents go on where they are told that an answer was cut."""
    said = read(talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3, **STREAM)))
    expect(said.finish == "length", f"finish_reason {said.finish}")
    expect(said.tokens is None or said.tokens <= 3, f"{said.tokens} tokens")


@check("limits", "choices[].finish_reason", "openai", required=False)
def limit_completion(talk: Talk) -> None:
    """max_completion_tokens, which OpenAI's clients send now, is kept, too."""
    asked = body(talk, "Count to a thousand.", max_completion_tokens=3)
    del asked["max_tokens"]
    reason = choice(talk.ask(PATH, asked)).get("finish_reason")
    expect(reason == "length", f"finish_reason {shown(reason)}")


@check("limits", "choices[].message.content, .finish_reason", "lm-eval inspect openai")
def stop(talk: Talk) -> None:
    """a stop string ends the answer in front of it, with finish_reason "stop"."""
    prompt, before, word = with_stop(talk, lambda prompt: talk.ask(PATH, body(talk, prompt)), read)
    stopped(before, read(offered(talk.ask(PATH, body(talk, prompt, stop=[word])), "stop")), word, ("stop",))


@check("limits", "choices[].delta.content, .finish_reason", "openai litellm")
def stream_stop(talk: Talk) -> None:
    """streamed: the same, and no piece of the stop string is sent."""
    prompt, before, word = with_stop(talk, lambda prompt: talk.ask(PATH, body(talk, prompt)), read)
    stopped(before, read(offered(talk.ask(PATH, body(talk, prompt, stop=[word], **STREAM)), "stop")), word, ("stop",))


@check("limits", "error.message, error.code", "opencode pi qwen litellm")
def overflow(talk: Talk) -> None:
    """a prompt that does not fit is refused in words that agents know."""
    for more in ({}, STREAM):
        answer = talk.ask(PATH, body(talk, too_long(talk), **more))
        openai_error(answer, 400, 413)
        overflow_known(answer.text)


@check("errors", "error.message", ALL)
def bad_json(talk: Talk) -> None:
    """400 and an error object for what is no JSON."""
    openai_error(talk.raw(PATH, b'{"messages": ['))


@check("errors", "error.message", ALL)
def bad_field(talk: Talk) -> None:
    """an error object and a status of its own for messages of the wrong type, also where a stream is asked for."""
    for more in ({}, {"stream": True}):
        openai_error(talk.ask(PATH, {"model": talk.model, "messages": 5, **more}), *FAILURES)


def _scored(talk: Talk, **more: Any) -> Said:
    asked = body(talk, logprobs=True, top_logprobs=2, max_tokens=4, **more)
    said = read(offered(talk.ask(PATH, asked), "logprobs"))
    for one in said.more["entries"]:
        tops = one.get("top_logprobs")
        expect(isinstance(tops, list) and len(tops) == 2, f"top_logprobs {shown(tops)}")
        values = [top["logprob"] for top in tops]
        expect(values == sorted(values, reverse=True) and values[0] <= 0, f"top_logprobs {shown(values)}")
        expect(values[0] >= one["logprob"] - 1e-3, f"a token of {one['logprob']} chosen before one of {values[0]}")
        raw = one.get("bytes")
        expect(raw is None or all(isinstance(b, int) and 0 <= b < 256 for b in raw), f"bytes {shown(raw)}")
    return said


@check("score", "choices[].logprobs.content[].token, .logprob, .bytes, .top_logprobs[]", "openai inspect")
def logprobs(talk: Talk) -> None:
    """logprobs with top_logprobs, one entry a token, no log probability above 0."""
    said = _scored(talk)
    if said.scores is None and _scored(talk, stream=True).scores is None:
        raise NotOffered("logprobs: there are none")
    scored(said)


@check("score", "choices[].logprobs.content[] of the pieces", "openai litellm")
def stream_logprobs(talk: Talk) -> None:
    """streamed: the same log probabilities as in the document."""
    said = _scored(talk)
    if said.scores is None and _scored(talk, stream=True).scores is None:
        raise NotOffered("logprobs: there are none")
    stream = _scored(talk, **STREAM)
    scored(stream)
    if stream.text == said.text:
        # of the end, the one may have a score and the other none
        lengths = [len(one.scores or ()) for one in (said, stream)]
        same = abs(lengths[0] - lengths[1]) <= (said.finish == "stop") and all(
            a[0] == b[0] and abs(a[1] - b[1]) < 0.05
            for a, b in zip(said.scores or (), stream.scores or (), strict=False)
        )
        expect(same, f"{shown(said.scores)[:60]} as a document, {shown(stream.scores)[:60]} as a stream")
