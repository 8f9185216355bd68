"""Responses: what a request asks for, what is refused, results without their call."""

from __future__ import annotations

import pytest

from ds4ref.server import refusals
from ds4ref.server.api import Refused
from ds4ref.server.tools import Memory
from ds4ref.server.turn import Choice, Failed, Sampling
from ds4ref.targets.answer import Delta, Finish, Step, Token, Usage
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall

from .answers import MODEL, read
from .responding import ASK, BASH, FULL, PATCH, PATH, SEARCH, SPACE, TURN, block, document_of, followed, stream_of

# --- requests


def test_defaults():
    turn, reply = read(PATH, {**ASK, "tools": []})
    assert turn.sampling == Sampling() and turn.thinking == "high" and turn.messages == (
        Message("user", "List the files."),
    )  # fmt: skip
    assert (turn.api, turn.model, turn.max_tokens, turn.tools, reply.stream) == ("responses", MODEL, None, (), False)
    body = {
        **ASK, "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.5, "seed": 3,
        "stream": True, "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key":
        "k", "truncation": "auto", "text": {"verbosity": "low"}, "parallel_tool_calls": True, "client_metadata": {},
        "previous_response_id": None, "conversation": None, "background": False,
    }  # fmt: skip
    turn, reply = read(PATH, body)
    assert turn.sampling == Sampling(0.5, 0.5, seed=3) and turn.max_tokens == 7 and turn.stop == () and reply.stream
    assert turn.messages[0] == Message("system", "Be brief.") and turn.affinity == "k" and turn.format == ""
    assert read(PATH, {**ASK, "max_tokens": 5})[0].max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"reasoning": {"effort": "max"}}, "max"),
        ({"reasoning": {"effort": "none"}}, "none"),
        ({"reasoning": {"effort": "xhigh", "summary": "auto"}}, "high"),
        ({"reasoning": {"effort": None}}, "high"),
        ({"model": "deepseek-chat"}, "none"),
        ({"model": "deepseek-chat", "reasoning": {"effort": "low"}}, "high"),
        ({"model": "deepseek-chat", "reasoning": {"summary": "auto"}}, "none"),
    ],
)
def test_thinking(fields, mode):
    assert read(PATH, {**ASK, **fields}, ctx=393216)[0].thinking == mode


@pytest.mark.parametrize(
    ("choice", "wanted", "left"),
    [
        ("auto", Choice(), 3),
        ("none", Choice("none"), 3),
        ("required", Choice("required"), 3),
        (None, Choice(), 3),
        ({"type": "function", "name": "bash"}, Choice("named", "bash"), 3),
        ({"type": "custom", "name": "apply_patch"}, Choice("named", "apply_patch"), 3),
        ({"type": "function", "name": "send", "namespace": "mcp__gmail__"}, Choice("named", "mcp__gmail__send"), 3),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "bash"}]},
            Choice(),
            1,
        ),
    ],
)
def test_tool_choice(choice, wanted, left):
    turn, _ = read(PATH, {**ASK, "tools": [BASH, SPACE, PATCH], "tool_choice": choice})
    assert turn.choice == wanted and len(turn.tools) == left


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "maybe"}, "tool_choice=maybe not supported"),
        ({"tool_choice": {"type": "web_search_preview"}}, "forced tool_choice not supported"),
        ({"tool_choice": {"type": "function", "name": "gone"}}, "tool_choice names the tool 'gone'"),
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported; replay full input instead"),
        ({"conversation": {"id": "c"}}, "conversation is not supported; replay full input instead"),
        ({"input": [{"type": "mystery"}]}, "invalid JSON request: unknown input item type 'mystery'"),
        ({"input": [{"type": "message", "status": "in_progress", "content": ""}]}, "status 'in_progress'"),
        ({"reasoning": {"effort": "huge"}}, "unknown reasoning effort"),
        ({"reasoning": {"summary": 5}}, "summary is not a string"),
        ({"reasoning": "high"}, "reasoning is not a JSON object"),
        ({"text": []}, "text is not a JSON object"),
        ({"input": [{"type": "tool_search_output", "call_id": "c", "tools": 5}]}, "tools of a tool_search_output"),
    ],
)
def test_what_is_refused(fields, message):
    """responses_input_tool_search_output_rejects_bad_tools, and the rest of server.md 2.2."""
    with pytest.raises(Refused) as refused:
        read(PATH, {**FULL, **fields})
    assert refused.value.status == 400 and message in refused.value.message


def test_a_search_loads_tools():
    """responses_input_tool_search_output_loads_tools, responses_input_function_call_namespace_round_trips_to_dsml."""
    call = {"type": "tool_search_call", "call_id": "c1", "status": "completed", "execution": "client",
            "arguments": {"query": "mail"}}  # fmt: skip
    again = {"type": "function", "name": "bash", "description": "again", "defer_loading": True}
    output = {"type": "tool_search_output", "call_id": "c1", "status": "completed", "execution": "client",
              "tools": [SPACE, again]}  # fmt: skip
    send = {"type": "function_call", "call_id": "c2", "name": "send", "namespace": "mcp__gmail__", "arguments": "{}"}
    turn, _ = read(PATH, {"input": [{"role": "user", "content": "q"}, call, output, send], "tools": [SEARCH, BASH]})
    assert [tool.name for tool in turn.tools] == ["tool_search", "bash", "mcp__gmail__send"]
    text = turn.rendered().text
    assert text.count('"name":"mcp__gmail__send"') == 1 and '<｜DSML｜invoke name="mcp__gmail__send">' in text
    assert '<｜DSML｜invoke name="tool_search">\n<｜DSML｜parameter name="query" string="true">mail<' in text
    # One that was declared, but not shown, is shown now.
    hidden = {**BASH, "defer_loading": True}
    turn, _ = read(PATH, {"input": [call, output], "tools": [SEARCH, hidden]})
    assert "again" in turn.rendered().text and [tool.name for tool in turn.tools].count("bash") == 1


def test_a_search_changes_nothing_before_it():
    """What it found is shown by its result; or in the tool prompt, as the reference has it."""
    found = {"type": "tool_search_output", "call_id": "c1", "tools": [SPACE]}
    call = {"type": "tool_search_call", "call_id": "c1", "arguments": {}}
    question = {"role": "user", "content": "q"}
    before = read(PATH, {"input": [question], "tools": [SEARCH, BASH]})[0]
    body = {"input": [question, call, found], "tools": [SEARCH, BASH]}
    after = read(PATH, body)[0]
    assert after.rendered().text.startswith(before.rendered().text.removesuffix("<think>"))
    assert [tool.name for tool in after.callable] == ["tool_search", "bash", "mcp__gmail__send"]
    assert '<tool_result>{"name":"mcp__gmail__send"' in after.rendered().text
    hoisted = read(PATH, body, options={"tools-in-place": False})[0]
    assert '"name":"mcp__gmail__send"' in hoisted.rendered().text.partition("<｜User｜>")[0]
    assert "<tool_result></tool_result>" in hoisted.rendered().text
    assert [tool.name for tool in hoisted.callable] == [tool.name for tool in after.callable]


def test_custom_calls_and_images_come_back():
    call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** x", "status": "completed"}
    seen = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": [seen]}
    thought = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None}
    turn, _ = read(PATH, {"input": [{"role": "user", "content": [seen]}, thought, call, output], "tools": [PATCH]})
    text = turn.rendered().text
    assert text.count("[image]") == 2
    assert '<｜DSML｜parameter name="input" string="true">*** x</｜DSML｜parameter>' in text


def test_one_call_at_a_time():
    body = {**ASK, "tools": [BASH], "tool_choice": "required"}
    assert read(PATH, {**body, "parallel_tool_calls": False})[0].choice == Choice("required", "", False)
    assert read(PATH, {**body, "parallel_tool_calls": None})[0].choice == Choice("required")
    assert not read(PATH, {**ASK, "parallel_tool_calls": False})[0].choice.parallel
    with pytest.raises(Refused, match="parallel_tool_calls"):
        read(PATH, {**body, "parallel_tool_calls": 1})


def test_an_answer_that_was_cut_before_it_began_is_asked_for_anew():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    question = {"role": "user", "content": "q"}
    assert read(PATH, {"input": [question, thought]})[0].rendered().text.endswith("q<｜Assistant｜><think>")
    said = {"role": "assistant", "content": "a"}
    assert len(read(PATH, {"input": [question, thought, said]})[0].messages) == 2
    assert len(read(PATH, {"input": [thought]})[0].messages) == 1


def test_formats():
    form = {"type": "json_schema", "name": "n", "strict": True, "schema": {"b": 1, "a": 2}}
    assert read(PATH, {**ASK, "text": {"format": form, "verbosity": "low"}})[0].format == '{"b": 1, "a": 2}'
    assert read(PATH, {**ASK, "text": {"format": {"type": "json_object"}}})[0].format == "{}"
    assert read(PATH, {**ASK, "text": {"format": {"type": "text"}}})[0].format == ""


# --- results without their call


def known(*ids):
    """A memory of calls."""
    memory = Memory()
    for call_id in ids:
        call = ToolCall("f", "{}", call_id)
        memory.remember(Message("assistant", calls=(call,), raw_dsml=block(call)))
    return memory


def test_results_without_their_call():
    """responses_tool_output_id_validation."""
    output = {"type": "function_call_output", "call_id": "call_9", "output": "r"}
    with pytest.raises(Refused) as refused:
        read(PATH, {"input": [output]}, tools=known("call_8"))
    assert (refused.value.status, refused.value.message) == (
        400,
        "Responses continuation state is not available for call_id call_9; retry by replaying the full input history",
    )
    assert read(PATH, {"input": [output]}, tools=known("call_9"))[0].results_only
    call = {"type": "function_call", "call_id": "call_9", "name": "f", "arguments": "{}"}
    assert not read(PATH, {"input": [call, output]}, tools=known())[0].results_only
    lost = refusals.failed("responses", Failed("continuation", "gone"), 1, {})
    assert (lost.status, lost.headers) == (409, {"x-should-retry": "false"})


def test_results_alone_go_on_from_the_live_turn(scripted):
    scripted.engine.say(TURN, "</think>Two files.")
    first = scripted.client.post(PATH, json=FULL).json()
    output = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "a b"}
    second = scripted.client.post(PATH, json={**FULL, "input": [output]})
    assert second.status_code == 200 and second.json()["output"][-1]["content"][0]["text"] == "Two files."
    cached = second.json()["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["total_tokens"]
    refused = scripted.client.post(PATH, json={**FULL, "input": [{**output, "call_id": "call_0"}]})
    assert refused.status_code == 400 and "for call_id call_0; retry" in refused.json()["error"]["message"]
    scripted.worker.timelines.clear()
    refused = scripted.client.post(PATH, json={**FULL, "input": [output]})
    assert refused.status_code == 409 and "replaying the full input history" in refused.json()["error"]["message"]


def test_the_end_of_thinking_is_seen_by_tokens():
    """An answer without text after its thinking, as tokens: the reasoning was completed."""
    step = Step(Token(b"</think>"), thought=True)
    said = [Delta(reasoning="Hm"), Delta(steps=(step,)), Delta(finish=Finish.STOP, usage=Usage())]
    assert document_of(FULL, said)["output"][0]["status"] == "completed"
    assert followed(stream_of(FULL, said))[0]["output"][0]["status"] == "completed"
