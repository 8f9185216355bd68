"""What each API makes of an answer: one table of answers, read as clients read streams and documents, cut anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds4ref.conformance.talk import Wrong
from ds4ref.server.api import Refused
from ds4ref.server.tools import Memory
from ds4ref.server.turn import Answered, Failed, Prefill, Queued
from ds4ref.targets.answer import CallDelta, Delta, Finish, Step, Token, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall, render_calls

from .answers import data_of, deltas, play, read
from .understood import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, understood

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "transcripts"
ASK = [{"role": "user", "content": "List the files."}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK, "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
           "stream_options": {"include_usage": True}},
    MESSAGES: {"messages": ASK, "max_tokens": 2000, "tools": [{"name": "bash", "input_schema": SCHEMA}],
               "thinking": {"type": "adaptive"}},
    RESPONSES: {"input": ASK, "tools": [{"type": "function", "name": "bash", "parameters": SCHEMA}],
                "reasoning": {"summary": "auto"}},
    COMPLETIONS: {"prompt": "List the files.", "stream_options": {"include_usage": True}},
}  # fmt: skip
EACH = pytest.mark.parametrize("path", BODIES)
WITH_TOOLS = pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])


def block(*calls: tuple[str, str]) -> str:
    """Calls as the model writes them."""
    return "".join(part.text for part in render_calls([ToolCall(*call) for call in calls]))


ARGUMENTS = '{"command":"grüße 😀 & <b>","timeout":10}'
CALLS = [("bash", ARGUMENTS), ("pwd", "{}"), ("bash", '{"n":[1, 2]}')]
OPENED = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="c" string="true">'
BROKEN = OPENED + "rm -rf /"
MALFORMED = BROKEN + "tmp</｜DSML｜parameter>\nwhat?</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
LINES = "a\u2028b\u2029c\x85d\x0be\x1cf\x7f"
IN_REASONING = "Hm." + block(("bash", "{}"))

ANSWERS: dict[str, tuple[str, str, Answer]] = {
    # what the model writes, how it ends, what a client understands
    "text": ("Hm.</think>Grüße 😀\n\n<tool_calls> is markup.  ", "stop",
             Answer("Hm.", "Grüße 😀\n\n<tool_calls> is markup.  ", end="stop")),
    "one call": ("Hm.</think>Look." + block(CALLS[0]), "stop", Answer("Hm.", "Look.", [("", *CALLS[0])], "tools")),
    "several calls": ("</think>" + block(*CALLS), "stop", Answer(calls=[("", *call) for call in CALLS], end="tools")),
    "thought and call": ("Hm.</think>" + block(CALLS[1]), "stop", Answer("Hm.", calls=[("", *CALLS[1])], end="tools")),
    "reasoning without end": ("Hm. and on", "stop", Answer("Hm. and on", end="stop")),
    "markup in reasoning": (IN_REASONING, "stop", Answer(IN_REASONING, end="stop")),
    "nothing": ("", "stop", Answer(end="stop")),
    "nothing said": ("Hm.</think>", "stop", Answer("Hm.", end="stop")),
    "reasoning cut": ("Hm", "length", Answer("Hm", end="length")),
    "text cut": ("Hm.</think>Let me", "length", Answer("Hm.", "Let me", end="length")),
    "line ends": ("</think>" + LINES, "stop", Answer("", LINES, end="stop")),
    "ended by an error": ("</think>x", "error", Answer("", "x", end="stop")),
}  # fmt: skip


def asked(path: str, said: list[Any], stream: bool, **more: Any) -> bytes:
    """All that goes out for a request to ``path``."""
    usage = getattr(said[-1], "usage", None) or Usage()
    return play(read(path, {**BODIES[path], "stream": stream, **more})[1], said, usage.cached or 0)


@WITH_TOOLS
@pytest.mark.parametrize("name", ANSWERS)
def test_streams_and_documents_say_what_the_model_said(path, name):
    text, finish, wanted = ANSWERS[name]
    for size in (1, 2, 7, 500):
        said = deltas(text, thinking=True, tools=True, size=size, finish=finish, cached=1000)
        for stream in (True, False):
            out = asked(path, said, stream)
            found = understood(path, out, stream)
            if (path, finish) == (RESPONSES, "error"):
                assert (found.end, found.error) == ("error", "generation failed")
                continue
            assert (found.reasoning, found.text, found.end) == (wanted.reasoning, wanted.text, wanted.end), (
                size,
                stream,
            )
            calls = [(call, json.loads(arguments)) for _, call, arguments in found.calls]
            assert calls == [(call, json.loads(arguments)) for _, call, arguments in wanted.calls]
            assert len({call_id for call_id, *_ in found.calls}) == len(calls)
            thought = 0 if path == MESSAGES else said[-1].usage.reasoning
            assert found.usage == (1329, 1000, len(said) - 1, thought)
            assert "<｜DSML｜" not in out.decode() or name == "markup in reasoning"
            assert all(
                line == "" or line.startswith(("data: ", "event: ")) for line in out.decode().splitlines() if stream
            )


@pytest.mark.parametrize(("name", "text", "finish"), [
    ("malformed", MALFORMED, "stop"), ("open", BROKEN, "stop"), ("cut", BROKEN, "length"),
])  # fmt: skip
@WITH_TOOLS
def test_a_call_that_is_none(path, name, text, finish):
    """server.md 8.4: in a document the markup is text. What a stream has begun cannot be taken back: nobody may take it
    for a whole call, and nobody says it again as text."""
    for size in (1, 7, 500):
        said = deltas("Hm.</think>Look." + text, thinking=True, tools=True, size=size, finish=finish)
        whole = understood(path, asked(path, said, False), False)
        end = "error" if path == RESPONSES and name == "open" else finish
        assert (whole.reasoning, whole.text, whole.calls, whole.end) == ("Hm.", "Look." + text, [], end)
        out = asked(path, said, True)
        begun = any(word in out for word in (b'"tool_calls"', b'"tool_use"', b'"function_call"'))
        assert begun == (size < 500 or name != "malformed")
        if begun and finish == "length" and path != CHAT:
            with pytest.raises(Wrong):  # which no client takes for whole
                understood(path, out, True)
            pieces = out.count(b'"text_delta"') + out.count(b'"response.output_text.delta"')
            assert pieces == sum(bool(one.text) and not one.void for one in said)
            continue
        found = understood(path, out, True)
        if not begun:
            assert (found.text, found.end) == (whole.text, whole.end)
        elif path != CHAT:
            assert (found.end, found.error) == ("error", "the model's tool call was malformed")
        else:
            assert (found.text, found.end) == ("Look.", finish)
            for _, _, arguments in found.calls:
                with pytest.raises(ValueError):
                    json.loads(arguments)


@WITH_TOOLS
def test_calls_without_a_call_are_a_plain_end(path):
    said = [Delta("Hi"), Delta(finish=Finish.TOOL_CALLS, usage=Usage(1, 1))]
    assert [understood(path, asked(path, said, stream), stream).end for stream in (False, True)] == ["stop"] * 2


SAID = [
    Delta(reasoning="I wi"), Delta(reasoning="ll list"), Delta(reasoning=" files."), Delta(), Delta("Let me look."),
    Delta(calls=(CallDelta(0, "bash"), CallDelta(0, arguments="{"))), Delta(calls=(CallDelta(0, arguments='"z":'),)),
    Delta(calls=(CallDelta(0, arguments='"ls"'), CallDelta(0, arguments=',"a":1.50,"z":"\u2028"}'))),
    Delta(finish=Finish.TOOL_CALLS, usage=Usage(1329, 19, 300, 7)),
]  # fmt: skip


@EACH
def test_the_bytes_are_those_of_the_reference(path, monkeypatch):
    """server.md 5 to 7: names, order, spelling and spaces of every event and document, arguments verbatim."""
    for stream in (True, False):
        monkeypatch.setattr("ds4ref.server.api.token_hex", lambda n: "a89750f4ea676106947c125093a7ca20"[: 2 * n])
        monkeypatch.setattr("ds4ref.server.api._numbers", iter([1]))
        wanted = TRANSCRIPTS / f"{path.strip('/').replace('/', '_')}.{'sse' if stream else 'json'}"
        assert asked(path, SAID, stream) == wanted.read_bytes()


@EACH
def test_each_piece_goes_out_as_it_comes(path):
    """A stream's event does not wait for the next one, whatever it carries; nothing goes out before the answer, so that
    a failure up to then still has a status of its own."""
    _, reply = read(path, {**BODIES[path], "stream": True})
    early = [reply.feed(event) for event in (Queued(3), Prefill(0, 9, 0, "none"), Prefill(9, 9, 0, "none"))]
    assert early == [b"", b"", b""]
    for event in SAID:
        out = reply.feed(event)
        carried = [
            event.reasoning,
            event.text,
            *(json.dumps(c.arguments)[1:-1] for c in event.calls if "\u2028" not in c.arguments),
        ]
        if path != COMPLETIONS:
            assert all(text in out.decode() for text in carried)


@EACH
def test_what_ends_in_the_middle_is_no_whole_answer(path):
    """Shutdown, a failure: an error in a stream, and no document; nothing comes after it."""
    for last, words in ((Delta(finish=Finish.CANCELLED, usage=Usage(1, 1, 0, 0)), "server shutting down"),
                        (Failed("engine", 'it "broke"'), 'it "broke"')):  # fmt: skip
        _, reply = read(path, {**BODIES[path], "stream": True})
        found = understood(path, reply.feed(Delta("x")) + reply.feed(last), True)
        assert (found.end, found.error) == ("error", words)
        assert reply.feed(Delta("y")) == reply.feed(last) == b""
    with pytest.raises(Refused) as refused:
        asked(path, [Delta("x"), Delta(finish=Finish.CANCELLED)], False)
    assert (refused.value.status, refused.value.headers) == (503, {"x-should-retry": "false"})
    late = play(read(RESPONSES, {"input": "x", "stream": True})[1], [Failed("context", "too long")], cached=9)
    failed = data_of(late)[-1]["response"]
    assert failed["error"]["code"] == "context_length_exceeded", "so Codex does not try again"
    assert failed["usage"]["input_tokens_details"]["cached_tokens"] == 9


def test_signs_of_life():
    """The message begins with the first ping, once its length is known; Codex's timer ignores comments, so an event of
    an unknown type sets it back."""
    kept = ["response.created", "response.keepalive"]
    for path, first, later in ((CHAT, [], []), (MESSAGES, ["message_start", "ping"], ["ping"]),
                               (RESPONSES, kept, kept[1:])):  # fmt: skip
        _, reply = read(path, {**BODIES[path], "stream": True})
        assert path == RESPONSES or reply.alive() == b": keep-alive\n\n"
        reply.feed(Prefill(100, 1329, 100, "memory-text"))
        if first:
            assert [[event["type"] for event in data_of(out)] for out in (reply.alive(), reply.alive())] in (
                [first, later], [later, later])  # fmt: skip
        rest = b"".join(reply.feed(event) for event in deltas("Hi"))
        assert b"message_start" not in rest and b"response.created" not in rest


@WITH_TOOLS
def test_each_call_has_the_id_that_is_remembered(path):
    """The worker remembers before the last event is fed, and perhaps before any is; then the call comes back from a
    client in another spelling, and is rendered as the model wrote it."""
    tools, written = Memory(), "\n\n" + block(("bash", '{"z":1}')).strip().replace("\n<", " \n<", 1)
    _, reply = read(path, BODIES[path], tools=tools)
    answer = reply.remember(Message("assistant", calls=(ToolCall("bash", '{"z":1}'),), raw_dsml=written))
    found = understood(path, play(reply, deltas("</think>" + written, thinking=True, tools=True)), False)
    (call_id,) = [call_id for call_id, *_ in found.calls]
    assert call_id == answer.calls[0].id
    assert (call_id[:6], len(call_id)) == (("toolu_", 38) if path == MESSAGES else ("call_" + call_id[5], 37))
    arguments = '{ "z": 1.0 }'
    history = {
        CHAT: [{"role": "assistant", "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}]}],
        MESSAGES: [{"role": "assistant", "content": [
            {"type": "tool_use", "id": call_id, "name": "bash", "input": {"z": 1.0}}]}],
        RESPONSES: [{"type": "function_call", "call_id": call_id, "name": "bash", "arguments": arguments}],
    }[path]  # fmt: skip
    body = {**BODIES[path], "input" if path == RESPONSES else "messages": [*ASK, *history, *ASK]}
    assert written in read(path, body, tools=tools)[0].rendered().text
    assert written not in read(path, body, tools=Memory())[0].rendered().text


# --- what one API has


def test_which_stop_sequence_it_was():
    said = deltas("One<stop>two END", size=3, stop=("END", "<stop>"))
    for stream in (True, False):
        out = asked(MESSAGES, said, stream, stop_sequences=["END", "<stop>"])
        found = understood(MESSAGES, out, stream)
        assert (found.text, found.end) == ("One", "stop string") and b'"stop_sequence":"<stop>"' in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input":"a \\"quoted\\" \\\\ line\\nand ü 😀"}', 'a "quoted" \\ line\nand ü 😀'), ('{"patch":"x"}', "x"),
     ('{"input":"x","more":1}', "x"), ('{"a":1,"b":2}', '{"a":1,"b":2}'), ("{}", ""), ('{"input":{"a":1}}', '{"a":1}')],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_custom_tools_get_plain_text(path, arguments, text):
    """The model is free to err; its call goes out as far as it can be understood, in a stream as in a document."""
    patch = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
    tools = [{"type": "custom", "custom": patch} if path == CHAT else patch]
    pieces = [Delta(calls=(CallDelta(0, arguments=c),)) for c in arguments]
    last = Delta(finish=Finish.TOOL_CALLS, usage=Usage())
    said = [Delta(calls=(CallDelta(0, "apply_patch"),)), *pieces, last]
    for stream in (True, False):
        found = understood(path, asked(path, said, stream, tools=tools), stream)
        assert [call[1:] for call in found.calls] == [("apply_patch", text)] and found.end == "tools"


def test_namespaces_and_tool_searches():
    space = {"type": "namespace", "name": "mcp__gmail__", "tools": [{"type": "function", "name": "send"}]}
    arguments = '{"query":"mail","limit":3}'
    search, function = {"type": "tool_search", "execution": "client"}, {"type": "function", "name": "tool_search"}
    for tools, name, kind in (([space], "mcp__gmail__send", "function_call"),
                              ([search], "tool_search", "tool_search_call"),
                              ([function], "tool_search", "function_call")):  # fmt: skip
        said = deltas(block((name, arguments)), tools=True)
        for stream in (True, False):
            out = asked(RESPONSES, said, stream, tools=tools)
            found = understood(RESPONSES, out, stream)
            assert [(call, json.loads(raw)) for _, call, raw in found.calls] == [(name, json.loads(arguments))]
            assert f'"type":"{kind}"' in out.decode()
            if name.startswith("mcp"):
                assert out.count(b'"name":"send","namespace":"mcp__gmail__"') == (4 if stream else 1)
    assert understood(CHAT, asked(CHAT, deltas(block(("mcp__gmail__send", "{}")), tools=True), False, tools=[space]),
                      False).calls[0][1] == "mcp__gmail__send", "chat has no namespaces"  # fmt: skip


def steps_of(*texts: str | bytes, thought: bool = False) -> tuple[Step, ...]:
    tokens = [Token(text if isinstance(text, bytes) else text.encode(), -0.25) for text in texts]
    return tuple(Step(token, (token, Token(b"other", -2.0)), thought=thought) for token in tokens)


def test_log_probabilities():
    """Thought tokens apart, as DeepSeek's API has them; tokens that end inside a character by their bytes; what no text
    goes with comes at the end."""
    said = [
        Delta(reasoning="Hm", steps=steps_of("Hm", thought=True)), Delta(steps=steps_of("</think>", thought=True)),
        Delta(steps=steps_of(b"\xc3")), Delta("é", steps=steps_of(b"\xa9")), Delta(steps=steps_of("!")),
        Delta(finish=Finish.STOP, usage=Usage(1, 5, 0, 2)),
    ]  # fmt: skip
    for thoughts in (True, False):
        for stream in (True, False):
            out = asked(CHAT, said, stream, logprobs=True, top_logprobs=2, include_reasoning=thoughts)
            choices = [event["choices"] for event in (data_of(out)[:-1] if stream else [json.loads(out)])]
            lists = [choice["logprobs"] for (choice,) in filter(None, choices) if choice.get("logprobs")]
            content = [entry for one in lists for entry in one["content"]]
            thought = [entry["token"] for one in lists for entry in one.get("reasoning_content", ())]
            assert [bytes(entry["bytes"]) for entry in content] == [b"\xc3", b"\xa9", b"!"]
            assert thought == ["Hm", "</think>"] * thoughts
            assert understood(CHAT, out, stream).reasoning == "Hm" * thoughts
            assert content[2] == {
                "token": "!", "logprob": -0.25, "bytes": [33],
                "top_logprobs": [{"token": "!", "logprob": -0.25, "bytes": [33]},
                                 {"token": "other", "logprob": -2.0, "bytes": list(b"other")}],
            }  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_several_choices_and_token_ids(path):
    """Each choice ends by itself, with calls and ids of its own; llama-benchy counts ids, those of no text included."""
    first = Delta(
        "a", (Step(Token(b"a", None, 5)), Step(Token(b"", None, 0))), finish=Finish.STOP, usage=Usage(9, 2, 4)
    )
    last = Delta("b", (Step(Token(b"b", None, 7)),), finish=Finish.LENGTH, usage=Usage(9, 1, 9))
    turn, reply = read(path, {**BODIES[path], "n": 2, "seed": 5, "stream": True, "return_token_ids": True})
    assert [one.sampling.seed for one in (turn, *turn.more)] == [5, 6]
    assert reply.call_id(0, 0) == reply.call_id(0) != reply.call_id(0, 1)
    *events, usage, done = data_of(reply.feed(Answered(first)) + reply.feed(last))
    found = {0: ["", [], ""], 1: ["", [], ""]}
    for event in events:
        (choice,) = event["choices"]
        said = found[choice["index"]]
        said[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        said[1] += choice.get("token_ids", [])
        said[2] = choice["finish_reason"] or said[2]
    assert found == {0: ["a", [5, 0], "stop"], 1: ["b", [7], "length"]} and done == "[DONE]"
    assert usage["usage"]["prompt_tokens"] == 9 and usage["usage"]["completion_tokens"] == 3, "a prompt counts once"
    assert reply.call_id(0) == reply.call_id(0, 1)
    _, reply = read(path, {**BODIES[path], "n": 2, "return_token_ids": True})
    reply.feed(Answered(first))
    reply.feed(last)
    whole = json.loads(reply.document())
    assert [(c["index"], c["token_ids"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, [5, 0], "stop"), (1, [7], "length")]  # fmt: skip
    assert whole["usage"] == usage["usage"]
