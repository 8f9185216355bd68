"""What servers differ in: fields they refuse, names they use, tool calls, reasons for the end."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from ds4ref.errors import TargetError, UsageError
from ds4ref.targets import (
    CallDelta,
    Delta,
    Finish,
    Message,
    Prompt,
    Request,
    ToolCall,
    Usage,
    collect,
    open_target,
    openai,
)
from ds4ref.targets.dialects import Dialect, finish_of, usage_of

from .test_http import Server, answer, delta, sse

HI = Request(Prompt.chat("Hi"), max_tokens=2)
TOOL = '{"name":"ls","description":"lists","parameters":{"type":"object","properties":{}}}'


class Strict(Server):
    """Answers 400 to every field it does not know, as ``says`` has it, and to nothing else."""

    KNOWN = frozenset({"model", "messages", "max_tokens", "temperature", "stream", "stream_options"})

    def __init__(self, says: str = "Unrecognized request argument supplied: {}", known: frozenset[str] = KNOWN):
        super().__init__(None)
        self.says, self.known = says, known

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        body = json.loads(request.content)
        for name in body:
            if name not in self.known:
                return httpx2.Response(400, json={"error": {"message": self.says.format(name)}})
        return sse(delta("a", "stop")) if body["stream"] else httpx2.Response(200, json=answer("a"))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_server_refuses_is_left_out_and_remembered(stream: bool) -> None:
    server = Strict()
    target = server.target()
    for _ in range(2):
        done = collect(target.stream(HI)) if stream else target.complete(HI)
        assert done.text == "a"
    sent = ["thinking" in json.loads(request.content) for request in server.requests]
    assert sent == [True, False, False], "one request was spent on learning it"
    assert target.notes() == [f"{target.name} rejects thinking: not sent"]


def test_a_refused_request_is_no_part_of_an_answers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to this server takes a second."""
    server = Strict()
    monkeypatch.setattr(openai, "time", SimpleNamespace(perf_counter=lambda: float(len(server.requests))))
    *_, last = server.target().stream(HI)
    assert len(server.requests) == 2 and last.time == 1


@pytest.mark.parametrize("says", ["Unknown parameter in the request", "invalid body", ""])
@pytest.mark.parametrize("prompt", [Prompt.chat("Hi"), Prompt.plain("Hi")], ids=["chat", "text"])
def test_a_refusal_that_names_no_field(says: str, prompt: Prompt) -> None:
    """One request is spent on it, whatever the server says, and none after that."""
    server = Strict(says, Strict.KNOWN | {"prompt"})
    target = server.target()
    for _ in range(2):
        assert target.complete(Request(prompt, 2)).text == "a"
    assert ["thinking" in json.loads(request.content) for request in server.requests] == [True, False, False]


def test_a_failure_that_has_nothing_to_do_with_fields() -> None:
    """It is asked once more without what the server may not know; then fields are sent again, and taken ones stay."""
    long = httpx2.Response(400, json={"error": {"message": "the prompt is longer than the context of 4096 tokens"}})
    server = Server(long, long, answer("a"), long)
    target = server.target()
    with pytest.raises(TargetError, match="HTTP 400: the prompt is longer"):
        target.complete(HI)
    assert target.complete(HI).text == "a"
    with pytest.raises(TargetError, match="HTTP 400: the prompt is longer"):
        target.complete(HI)
    sent = ["thinking" in json.loads(request.content) for request in server.requests]
    assert sent == [True, False, True, True] and target.notes() == []


@pytest.mark.parametrize("status, says", [
    (413, "the prompt is longer than the context of 4096 tokens"),
    (400, "Unrecognized request argument supplied: seed"),  # it decides what is answered: never dropped
    (404, "no model thinking here"),
])  # fmt: skip
def test_other_failures_are_told_at_once(status: int, says: str) -> None:
    server = Server(httpx2.Response(status, json={"error": {"message": says}}))
    with pytest.raises(TargetError, match=f"HTTP {status}: {says[:20]}"):
        server.target().complete(Request(Prompt.chat("Hi"), seed=3))
    assert len(server.requests) == 1


def test_a_named_kind_learns_nothing() -> None:
    server = Strict()
    with pytest.raises(TargetError, match="HTTP 400: Unrecognized request argument supplied: thinking"):
        server.target(dialect="deepseek").complete(HI)
    assert Strict().target(dialect="plain").complete(HI).text == "a"


def test_a_server_with_another_name_for_the_limit() -> None:
    says = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    refusal = httpx2.Response(400, json={"error": {"message": says}})
    server = Server(refusal, answer("a"))
    assert server.target().complete(HI).text == "a"
    assert server.body()["max_completion_tokens"] == 2 and "max_tokens" not in server.body()
    Server(answer()).target(dialect="openai").complete(HI)


@pytest.mark.parametrize("kind, mode, fields", [
    ("probe", "none", {"thinking": {"type": "disabled"}}),
    ("deepseek", "max", {"thinking": {"type": "enabled"}}),
    ("ds4", "max", {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
    ("vllm", "high", {"chat_template_kwargs": {"thinking": True, "enable_thinking": True}}),
    ("llama.cpp", "none", {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}),
    ("openai", "high", {"reasoning_effort": "high"}),
    ("openai", "none", {}),
    ("plain", "high", {}),
])  # fmt: skip
def test_how_thinking_is_switched(kind: str, mode: str, fields: dict[str, Any]) -> None:
    server = Server(answer("a"))
    server.target(dialect=kind).complete(Request(Prompt.chat("Hi", thinking=mode)))
    asked = {"thinking", "reasoning_effort", "chat_template_kwargs"}
    assert {k: v for k, v in server.body().items() if k in asked} == fields


@pytest.mark.parametrize("kind", ["probe", "deepseek", "ds4"])
@pytest.mark.parametrize("prompt", [Prompt.plain("Hi"), Prompt.tokens([1, 2])], ids=["text", "ids"])
@pytest.mark.parametrize("stream", [False, True])
def test_plain_prompts_do_not_think(kind: str, prompt: Prompt, stream: bool) -> None:
    """ds4's server makes a chat of a plain prompt, thinks unless told otherwise, and then ignores temperature 0."""
    text = {"model": "m", "choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}
    server = Server(sse(text) if stream else text)
    target = server.target(dialect=kind, ids=True)
    assert (collect(target.stream(Request(prompt))) if stream else target.complete(Request(prompt))).text == "a"
    assert server.body()["thinking"] == {"type": "disabled"}


def test_kinds_and_modes_are_named_if_they_are_none() -> None:
    with pytest.raises(UsageError, match="unknown kind of server 'apache': choose from probe, plain"):
        open_target("http://127.0.0.1:9/v1", dialect="apache")
    with pytest.raises(UsageError, match="unknown prefill style 'x'"):
        Dialect(prefill="x")
    with pytest.raises(UsageError, match="unknown thinking mode 'deep': choose from none, low, high, max"):
        Server(answer()).target().complete(Request(Prompt.chat("Hi", thinking="deep")))


# --- conversations and tools

TALK = (
    Message("system", "Be brief."),
    Message("user", "What is here?"),
    Message("assistant", "Let me see.", "I list.", (ToolCall("ls", '{"p":"."}', "c1"), ToolCall("pwd", "{}", "c2"))),
    Message("tool", "a.c", result_ids=("c1",)),
    Message("tool", "/home", result_ids=("c2",)),
    Message("assistant", "A file.", "Easy."),
    Message("user", "Thanks."),
)


def test_a_conversation_as_the_protocol_has_it() -> None:
    server = Server(answer("ok"))
    server.target().complete(Request(Prompt.conversation(TALK, [TOOL], "high")))
    body = server.body()
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is here?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "I list.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"p":"."}'}},
            {"id": "c2", "type": "function", "function": {"name": "pwd", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.c"},
        {"role": "tool", "tool_call_id": "c2", "content": "/home"},
        {"role": "assistant", "content": "A file."},
        {"role": "user", "content": "Thanks."},
    ]  # fmt: skip
    assert body["tools"] == [{"type": "function", "function": json.loads(TOOL)}]
    with pytest.raises(UsageError, match="a tool is not a JSON object: nonsense"):
        server.target().complete(Request(Prompt.conversation(TALK, ["nonsense"])))


def test_reasoning_that_may_not_be_sent_back() -> None:
    says = "messages.2: reasoning_content is not allowed in input"
    server = Server(httpx2.Response(400, json={"error": {"message": says}}), answer("ok"))
    server.target().complete(Request(Prompt.conversation(TALK)))
    assert "reasoning_content" in server.body(0)["messages"][2]
    assert "reasoning_content" not in server.body(1)["messages"][2] and server.body(1)["thinking"]


def piece(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": fields, "finish_reason": finish}]}


def call(index: int, **function: str) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index, "function": function}
    return made | ({"id": f"c{index}", "type": "function"} if "name" in function else {})


def test_tool_calls_are_put_together_and_arrive_like_text() -> None:
    events = [
        piece(role="assistant", content=""), piece(reasoning="Hm"), piece(content="So"),
        piece(tool_calls=[call(0, name="ls", arguments="")]), piece(tool_calls=[call(0, arguments='{"p"')]),
        piece(tool_calls=[call(0, arguments=':1}'), call(1, name="pwd", arguments="{}")]), piece("tool_calls"),
    ]  # fmt: skip
    done = collect(Server(sse(*events)).target().stream(HI))
    assert done.finish is Finish.TOOL_CALLS and (done.reasoning, done.text) == ("Hm", "So")
    assert done.calls == (ToolCall("ls", '{"p":1}', "c0"), ToolCall("pwd", "{}", "c1"))
    assert len(done.arrivals) == 5, "all but the role and the end"
    assert done.sizes == (2, 2, 2, 4, 3 + 3 + 2)


def test_tool_calls_of_a_whole_answer() -> None:
    message = {"content": None, "tool_calls": [call(0, name="ls", arguments="{}"), {"function": {"name": "f",
               "arguments": {"a": "é"}}}, "junk"]}  # fmt: skip
    reply = answer() | {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    done = Server(reply).target().complete(HI)
    assert done.calls == (ToolCall("ls", "{}", "c0"), ToolCall("f", '{"a": "é"}')) and done.text == ""
    old = {"content": "", "function_call": {"name": "f", "arguments": "{}"}}
    reply = answer() | {"choices": [{"message": old, "finish_reason": "function_call"}]}
    done = Server(reply).target().complete(HI)
    assert done.calls == (ToolCall("f", "{}"),) and done.finish is Finish.TOOL_CALLS


@pytest.mark.parametrize("fields", [
    {"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning": "hm", "reasoning_content": "hm"},
    {"reasoning_content": None, "reasoning": "hm"}, {"thinking": "hm"}, {"reasoning_text": "hm"},
    {"reasoning_details": [{"text": "hm"}], "reasoning": "hm"},
])  # fmt: skip
def test_reasoning_under_any_of_its_names(fields: dict[str, Any]) -> None:
    done = collect(Server(sse(piece(**fields), piece("stop", content="a"))).target().stream(HI))
    assert (done.reasoning, done.text, len(done.arrivals)) == ("hm", "a", 2)
    reply = answer() | {"choices": [{"message": {"content": "a", **fields}, "finish_reason": "stop"}]}
    assert Server(reply).target().complete(HI).reasoning == "hm"


def test_reasons_for_the_end_are_a_closed_set() -> None:
    ours = {"stop": "stop", "end_turn": "stop", "length": "length", "max_tokens": "length", "tool_use": "tool_calls"}
    for theirs, mine in ours.items():
        assert finish_of(theirs) == (Finish(mine), "")
    done = collect(Server(sse(delta("a", "content_filter"))).target().stream(HI))
    assert done.finish is Finish.ERROR and done.error == "it ended for the reason 'content_filter'" and done.text == "a"


def test_counts_under_the_names_that_servers_use() -> None:
    whole = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4},
             "completion_tokens_details": {"reasoning_tokens": 5}}  # fmt: skip
    assert usage_of({"usage": whole}) == Usage(9, 7, 4, 5)
    assert usage_of({"usage": {"prompt_tokens": 9, "reasoning_tokens": 2, "completion_tokens": "7"}}) == Usage(
        9, None, None, 2
    )
    assert usage_of({}) == usage_of({"usage": None}) == Usage()


def test_what_had_come_of_a_broken_answer_is_kept() -> None:
    class Breaks(httpx2.SyncByteStream):
        def __iter__(self):
            for event in (piece(reasoning="hm"), piece(content="half an ans"), piece(tool_calls=[call(0, name="f")])):
                yield f"data: {json.dumps(event)}\n\n".encode()
            raise httpx2.ReadError("gone")

    reply = httpx2.Response(200, stream=Breaks(), headers={"content-type": "text/event-stream"})
    with pytest.raises(TargetError, match="the stream was interrupted: gone") as caught:
        collect(Server(reply).target().stream(HI))
    kept = caught.value.partial
    assert (kept.reasoning, kept.text, kept.calls) == ("hm", "half an ans", (ToolCall("f", "", "c0"),))
    assert kept.finish is Finish.ERROR and "gone" in kept.error and len(kept.arrivals) == 3
    with pytest.raises(TargetError, match="HTTP 401") as caught:
        collect(Server(httpx2.Response(401)).target().stream(HI))
    assert caught.value.partial.text == "" and TargetError("x").partial is None


def test_calls_that_are_void_leave_no_trace() -> None:
    deltas = [Delta(calls=(CallDelta(0, "f"),)), Delta("<oops", void=True), Delta(finish="stop", error="no name")]
    done = collect(iter(deltas))
    assert (done.calls, done.text, done.error, done.finish) == ((), "<oops", "no name", "stop")
    late = [Delta(calls=(CallDelta(1, "g"),)), Delta(calls=(CallDelta(0, "f"),)), Delta(finish="tool_calls")]
    assert [call.name for call in collect(iter(late)).calls] == ["f", "g"], "in the order of their numbers"


def test_a_binary_and_an_endpoint_say_what_they_cannot() -> None:
    binary = open_target("command:/nonexistent/ds4")
    with pytest.raises(UsageError, match="tools and conversations of several turns, which command target"):
        binary.complete(Request(Prompt.conversation(TALK)))
    with pytest.raises(UsageError, match="guiding of single tokens, which http target"):
        Server(answer()).target().complete(Request(Prompt.chat("Hi"), guide=lambda generation, logits: None))
