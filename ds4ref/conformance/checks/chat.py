"""Chat completions, as OpenAI's SDK, opencode, pi, Qwen Code, inspect_ai and lm-evaluation-harness need them."""

from __future__ import annotations

from typing import Any

from ..talk import NotOffered, Talk, expect, parsed, shown
from . import Checks
from .chat_answers import (
    PATH,
    STREAM,
    TOOLS,
    body,
    calls,
    choice,
    forced,
    forced_body,
    read,
    required,
    streamed,
)
from .common import (
    ASK,
    PIXEL,
    RESULT,
    at_once,
    not_the_servers,
    object_begins,
    overflow_known,
)  # fmt: skip
from .said import (
    Said,
    clean,
    different,
    offered,
    scored,
)  # fmt: skip
from .shared import Api, register

check = Checks("chat", PATH)


def _form(schema: object) -> dict[str, Any]:
    named = {"name": "form", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _has_text(chunk: dict[str, Any]) -> bool:
    deltas = [one.get("delta") or {} for one in chunk.get("choices") or ()]
    return any(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") for delta in deltas)


register(
    Api(
        check, body, read, "opencode pi qwen openai litellm llm aider inspect lm-eval", STREAM, "max_tokens", "length",
        _has_text, {"messages": 5}, lambda answer: overflow_known(answer.text), called=("tool_calls", "stop"),
        form=_form, forced=forced_body, thinks={"reasoning_effort": "high"}, stop="stop",
    )
)  # fmt: skip

AGENTS = "opencode pi qwen"
ALL = "opencode pi qwen openai litellm llm aider"
DOCUMENTS = "openai litellm inspect lm-eval"


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


@check("turn", "-", "opencode lm-eval")
def four_at_once(talk: Talk) -> None:
    """four at once are all answered."""
    for answer in at_once(talk, PATH, [body(talk, f"Say the number {n}.", max_tokens=16) for n in range(4)]):
        choice(answer)


@check("stream", "[DONE]", "openai litellm aider llm")
def stream_done(talk: Talk) -> None:
    """[DONE] and nothing behind it."""
    for answer in (streamed(talk), forced(talk, stream=True)):
        events = answer.events()
        ends = [i for i, event in enumerate(events) if event.data == "[DONE]"]
        expect(ends == [len(events) - 1], f"the last event is {shown(events[-1].data if events else 'none')}")


@check("tools", "choices[].finish_reason", "opencode pi qwen inspect openai", how="forced")
def tool_required(talk: Talk) -> None:
    """tool_choice "required": a call of one of the tools, finish_reason "tool_calls", or the agent's turn is over."""
    for more in ({}, STREAM):
        said = read(required(talk, **more))
        expect(said.calls and {call.name for call in said.calls} <= {"weather", "clock"}, f"calls {shown(said.calls)}")
        expect(said.finish == "tool_calls", f"finish_reason {said.finish}")
        clean(said)
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


@check("limits", "choices[].finish_reason", "openai", required=False)
def limit_completion(talk: Talk) -> None:
    """max_completion_tokens, which OpenAI's clients send now, is kept, too."""
    asked = body(talk, "Count to a thousand.", max_completion_tokens=3)
    del asked["max_tokens"]
    reason = choice(talk.ask(PATH, asked)).get("finish_reason")
    expect(reason == "length", f"finish_reason {shown(reason)}")


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


@check("score", "choices[].logprobs.content[].token, .logprob, .bytes, .top_logprobs[]", "openai inspect litellm")
def logprobs(talk: Talk) -> None:
    """logprobs with top_logprobs, one entry a token, no log probability above 0; the same in a stream."""
    said, stream = _scored(talk), _scored(talk, **STREAM)
    if said.scores is None and stream.scores is None:
        raise NotOffered("logprobs: there are none")
    scored(said)
    scored(stream)
    if stream.text == said.text:
        # of the end, the one may have a score and the other none
        lengths = [len(one.scores or ()) for one in (said, stream)]
        same = abs(lengths[0] - lengths[1]) <= (said.finish == "stop") and all(
            a[0] == b[0] and abs(a[1] - b[1]) < 0.05
            for a, b in zip(said.scores or (), stream.scores or (), strict=False)
        )
        expect(same, f"{shown(said.scores)[:60]} as a document, {shown(stream.scores)[:60]} as a stream")
