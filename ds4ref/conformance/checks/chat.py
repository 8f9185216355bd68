"""Checks of OpenAI's chat completions, as its SDK, opencode, pi, Qwen Code, inspect_ai and lm-evaluation-harness need
them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..talk import Answer, Talk, expect, parsed, shown
from .said import Call, Said, offered, typed
from .shapes import ChatCompletion, Chunk, Logprobs, Message, ToolCall, Usage
from .shared import OTHER, PARAMETERS, PIXEL, Api

AGENTS = "opencode pi qwen"


def read(answer: Answer) -> Said:
    """Return the content of an answer, a document or a stream; raises Wrong if clients could not assemble it."""
    if answer.kind == "text/event-stream":
        return _read_stream(answer)
    document = typed(answer.document(), ChatCompletion)
    (choice,) = document.choices
    expect(choice.message.role, "a message without a role")
    return _said(choice.message, choice.finish_reason, choice.logprobs, document.usage)


def _read_stream(answer: Answer) -> Said:
    chunks = [typed(event.json, Chunk) for event in answer.events() if event.data != "[DONE]"]
    heads = {(chunk.id, chunk.model) for chunk in chunks}
    expect(len(heads) == 1, f"ids and models {shown(sorted(heads))}")
    texts = dict.fromkeys(("role", "content", "reasoning_content", "reasoning"), "")
    calls: list[ToolCall] = []
    finish, scores, used = "", None, None
    for chunk in chunks:
        used = chunk.usage or used
        for one in chunk.choices:
            delta = one.delta
            said = delta.content or delta.thought or delta.tool_calls
            expect(not finish or not (said or one.finish_reason), f"behind the finish reason {shown(str(one))}")
            for name in texts:
                texts[name] += getattr(delta, name) or ""
            for piece in delta.tool_calls or ():
                _put(piece, calls)
            if one.logprobs is not None:
                scores = Logprobs([*(scores and scores.content or ()), *(one.logprobs.content or ())])
            finish = finish or one.finish_reason or ""
    expect(texts.pop("role"), "a stream without a role")
    expect(finish in ("stop", "length", "tool_calls"), f"finish_reason {shown(finish)}")
    return _said(Message("assistant", **texts, tool_calls=calls), finish, scores, used)


def _put(piece: ToolCall, calls: list[ToolCall]) -> None:
    """Add a piece of a call to ``calls`` as the SDKs do: found by its index, with its text appended."""
    at = piece.index
    expect(at is not None and 0 <= at <= len(calls), f"a piece with the index {at}")
    if at == len(calls):
        calls.append(piece)
        return
    # clients append all texts, so an id or name that is repeated would be doubled
    expect(not piece.id and not piece.function.name, f"id or name in a later piece {shown(str(piece))}")
    whole = calls[at or 0].function
    whole.arguments = (whole.arguments or "") + (piece.function.arguments or "")


def _said(message: Message, finish: str, scores: Logprobs | None, used: Usage | None) -> Said:
    calls = []
    for call in message.tool_calls or ():
        name, arguments = call.function.name, call.function.arguments
        expect(call.id and call.type and name and arguments is not None, f"a call {shown(str(call))}")
        calls.append(Call(call.id or "", name or "", arguments or ""))
    expect(finish != "tool_calls" or calls, "finish_reason tool_calls without a call")
    entries = None if scores is None or scores.content is None else scores.content
    for one in entries or ():
        tops = [top.logprob for top in one.top_logprobs]
        expect(len(tops) >= 2 and tops == sorted(tops, reverse=True) and tops[0] <= 0, f"top_logprobs {shown(tops)}")
        expect(tops[0] >= one.logprob - 1e-3, f"a token of {one.logprob} chosen before one of {tops[0]}")
    scored = None if entries is None else tuple((one.token, one.logprob) for one in entries)
    return Said(message.content or "", message.thought, tuple(calls), finish, *counts_of(used), scored)


def counts_of(used: Usage | None) -> tuple[int | None, int | None]:
    """Return the numbers of tokens of the prompt and of the answer, None without usage."""
    return (None, None) if used is None else (used.prompt_tokens, used.completion_tokens)


def _form(schema: object) -> dict[str, Any]:
    named = {"name": "form", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _has_text(chunk: dict[str, Any]) -> bool:
    deltas = [one.get("delta") or {} for one in chunk.get("choices") or ()]
    return any(delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") for delta in deltas)


def _results(answer: Answer, result: Any) -> list[dict[str, Any]]:
    message = answer.document()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    return [{"role": "assistant", "content": message.get("content"), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result}]  # fmt: skip


api = Api(
    name="chat",
    path="/v1/chat/completions",
    read=read,
    clients="opencode pi qwen openai litellm llm aider inspect lm-eval",
    quiet={"reasoning_effort": "none"},
    off=({"reasoning_effort": "none"},),
    thinks={"reasoning_effort": "high"},
    stream={"stream": True, "stream_options": {"include_usage": True}},
    cut="length",
    called=("tool_calls", "stop"),
    form=_form,
    tools=[
        {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
        for name, schema in (("weather", PARAMETERS), ("clock", OTHER))
    ],
    single={"parallel_tool_calls": False},
    choices=({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, {"tool_choice": "required"}),
    no_choice={"tool_choice": "none"},
    results=_results,
    image=({"type": "text", "text": "What is it?"},
           {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}),
    stop="stop",
    has_text=_has_text,
    done=True,
    scores={"logprobs": True, "top_logprobs": 2},
    wrong={"messages": 5},
    optional=("image", "thinking_off", "logprobs"),
)  # fmt: skip

api.taken("parts", "pi openai", "content in parts means the same as content as a text",
          [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}])  # fmt: skip
api.taken("developer", "openai litellm", "developer and system messages are taken",
          [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Say hello."}])  # fmt: skip
api.taken(
    "unknown_fields", "openai opencode pi qwen", "fields that mean nothing to this server are no error",
    store=False, metadata={"a": "b"}, user="u", service_tier="auto", prompt_cache_key="k", safety_identifier="s",
    parallel_tool_calls=True, some_future_field={"x": [1]},
)  # fmt: skip


@api.check("turn", "opencode lm-eval")
def four_at_once(talk: Talk) -> None:
    """four at once are all answered."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: api.said(talk, f"Say the number {n}.", max_tokens=16), range(4)))


@api.check("answer", f"llm inspect litellm {AGENTS}")
def answer_rewritten(talk: Talk) -> None:
    """a history as clients rewrite it: arguments respelled, reasoning_content, content null."""
    history = api.called_with(talk)
    history[1] |= {"reasoning_content": "I ask.", "refusal": None, "content": None}
    function = {"name": "weather", "arguments": '{"tomorrow": true,  "city": "Oslo"}'}
    history[1]["tool_calls"] = [{**history[1]["tool_calls"][0], "function": function}]
    api.said(talk, history, tools=api.tools, tool_choice="none")


@api.check("format", "openai litellm", required=False, how="forced")
def format_object(talk: Talk) -> None:
    """response_format "json_object": a JSON object, or its beginning where max_tokens cuts it."""
    asked = api.ask(talk, 'Answer with the JSON {"a": 1}.', response_format={"type": "json_object"})
    said = read(offered(asked, "response_format json_object"))
    whole = said.finish == "length" or isinstance(parsed(said.text), dict)  # random weights hardly end one
    expect(said.text.lstrip().startswith("{") and whole, shown(said.text))


@api.check("limits", "openai", required=False)
def limit_completion(talk: Talk) -> None:
    """max_completion_tokens, which OpenAI's clients send now, is kept, too."""
    asked = api.body(talk, "Count to a thousand.", max_completion_tokens=3)
    del asked["max_tokens"]
    finish = read(talk.ask(api.path, asked)).finish
    expect(finish == "length", f"finish_reason {finish}")
