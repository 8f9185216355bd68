"""Chat completions: what a request asks for, and what is refused."""

from __future__ import annotations

import json

import pytest

from ds4ref.server.api import Refused
from ds4ref.server.turn import Choice, Sampling
from ds4ref.text.chat import Message
from ds4ref.text.dsml import ToolCall

from .answers import MODEL, read
from .chatting import ASK, BASH, PATH, WITH_TOOLS, block, joined

# --- requests


def test_defaults():
    """request_defaults_use_min_p_filtering."""
    turn, reply = read(PATH, ASK)
    assert turn.sampling == Sampling(1.0, 1.0, 0.05, 0, None) and turn.thinking == "high"
    assert (turn.api, turn.model, turn.max_tokens, turn.stop, turn.format) == ("chat", MODEL, None, (), "")
    assert turn.choice == Choice() and not turn.echo and not turn.results_only and not reply.stream
    assert turn.messages == (Message("user", "List the files."),)


def test_what_is_given_counts():
    body = {
        **ASK, "model": "any name", "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": 40.7, "seed": 7,
        "max_tokens": 5, "max_completion_tokens": 9, "stop": ["a", "", "b"], "stream": True, "prompt_cache_key": "k",
    }  # fmt: skip
    turn, reply = read(PATH, body)
    assert turn.sampling == Sampling(0.5, 0.9, 0.1, 40, 7)
    assert (turn.model, turn.max_tokens, turn.stop, reply.stream, turn.affinity) == (
        "any name", 9, ("a", "b"), True, "k",
    )  # fmt: skip
    assert read(PATH, {**ASK, "max_completion_tokens": 9, "max_tokens": 5})[0].max_tokens == 5, "the last counts"
    assert read(PATH, {**ASK, "stop": "x"})[0].stop == ("x",)
    assert read(PATH, body)[0].thinking == "high"
    quiet = {"options": {"client-sampling": False}}
    assert read(PATH, body, **quiet)[0].sampling == Sampling(seed=7), "as the reference does while it thinks"
    assert read(PATH, {**body, "thinking": False}, **quiet)[0].sampling == Sampling(0.5, 0.9, 0.1, 40, 7)


@pytest.mark.parametrize(
    ("given", "limit", "wanted"), [(None, None, None), (None, 50, 50), (10, 50, 10), (99, 50, 50), (0, None, 0)]
)
def test_the_limit(given, limit, wanted):
    body = ASK if given is None else {**ASK, "max_tokens": given}
    assert read(PATH, body, max_tokens=limit)[0].max_tokens == wanted


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "none"),
        ({"thinking": True}, "high"),
        ({"thinking": False}, "none"),
        ({"think": False}, "none"),
        ({"think": False, "thinking": True}, "high"),
        ({"thinking": True, "think": False}, "none"),
        ({"thinking": {"type": "adaptive"}}, "high"),
        ({"reasoning_effort": "xhigh"}, "high"),
        ({"reasoning_effort": "minimal"}, "high"),
        ({"reasoning_effort": "max"}, "high"),
        ({"reasoning_effort": "none"}, "none"),
        ({"reasoning_effort": None}, "high"),
        ({"model": "deepseek-chat"}, "none"),
        ({"model": "deepseek-chat", "thinking": None}, "none"),
        ({"model": "deepseek-chat", "reasoning_effort": "high"}, "none"),
        ({"model": "deepseek-reasoner"}, "high"),
    ],
)
def test_thinking(fields, mode):
    """api_thinking_controls_parse, reasoning_effort_mapping."""
    assert read(PATH, {**ASK, **fields})[0].thinking == mode


def test_most_thinking_takes_room():
    body = {**ASK, "reasoning_effort": "max"}
    assert read(PATH, body, ctx=393216)[0].thinking == "max"
    assert read(PATH, body, ctx=393215)[0].thinking == "high"


TWO = {**ASK, "tools": [BASH, {"type": "custom", "custom": {"name": "edit"}}]}


@pytest.mark.parametrize(
    ("choice", "wanted", "left"),
    [
        ("auto", Choice(), 2),
        (None, Choice(), 2),
        ("none", Choice("none"), 2),
        ("required", Choice("required"), 2),
        ("whatever", Choice(), 2),
        ({"type": "function", "function": {"name": "bash"}}, Choice("named", "bash"), 2),
        ({"type": "custom", "custom": {"name": "edit"}}, Choice("named", "edit"), 2),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "bash"}}]},
            },
            Choice("required"),
            1,
        ),
    ],
)
def test_tool_choice(choice, wanted, left):
    turn, _ = read(PATH, {**TWO, "tool_choice": choice})
    assert turn.choice == wanted and len(turn.tools) == left
    assert len(turn.offered) == (0 if wanted.kind == "none" else left)


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [], "tool_choice": "required"},
        {"tools": [{"type": "web_search"}], "tool_choice": "required"},
        {"tools": [BASH], "tool_choice": {"type": "function", "function": {"name": "gone"}}},
        {"tools": [BASH], "tool_choice": {"type": "function"}},
        {"tools": [BASH], "tool_choice": 5},
        {"tools": {}},
    ],
)
def test_tool_choices_that_cannot_be_kept(fields):
    with pytest.raises(Refused) as refused:
        read(PATH, {**ASK, **fields})
    assert refused.value.status == 400 and "tool" in refused.value.message


def test_one_call_at_a_time():
    body = {**TWO, "tool_choice": "required"}
    assert read(PATH, {**body, "parallel_tool_calls": False})[0].choice == Choice("required", "", False)
    assert read(PATH, {**body, "parallel_tool_calls": None})[0].choice == Choice("required")
    assert not read(PATH, {**ASK, "parallel_tool_calls": False})[0].choice.parallel
    with pytest.raises(Refused, match="parallel_tool_calls"):
        read(PATH, {**body, "parallel_tool_calls": 1})


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        (None, ""),
        ({"type": "text"}, ""),
        ({"type": "json_object"}, "{}"),
        ({"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"b": 1, "a": 2}}},
         '{"b": 1, "a": 2}'),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "{}"),
    ],
)  # fmt: skip
def test_formats(form, wanted):
    assert read(PATH, {**ASK, "response_format": form})[0].format == wanted


@pytest.mark.parametrize("kind", ["xml", "something new", "", "JSON_OBJECT"])
def test_a_form_that_is_not_kept_is_refused(kind):
    with pytest.raises(Refused, match="choose from text, json_object, json_schema"):
        read(PATH, {**ASK, "response_format": {"type": kind}})


def test_a_schema_is_kept_as_it_is():
    form = '{"type":"json_schema","json_schema":{"schema":{"z":1.50,  "z":2}}}'
    raw = f'{{"messages":[{{"role":"user"}}],"response_format":{form}}}'
    assert read(PATH, raw)[0].format == '{"z":1.50,  "z":2}'
    with pytest.raises(Refused, match="not a JSON object"):
        read(PATH, {**ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": 5}}})


def test_a_call_in_thinking_that_never_ended(scripted):
    """server.md 8.6: it is made, unless the reference's way is wanted."""
    script = "Let me see." + block(ToolCall("bash", '{"command":"ls"}'))
    scripted.engine.say(script, script)
    whole = scripted.client.post(PATH, json=WITH_TOOLS).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["reasoning_content"] == "Let me see."
    assert whole["message"]["content"] == "" and len(whole["message"]["tool_calls"]) == 1
    message, reason = joined(scripted.client.post(PATH, json={**WITH_TOOLS, "stream": True}).content)
    assert (message["reasoning_content"], message["content"], reason) == ("Let me see.", "", "tool_calls")
    assert json.loads(message["tool_calls"][0]["arguments"]) == {"command": "ls"}
    assert not read(PATH, ASK, options={"recover-calls": False})[0].recover


def test_system_texts_stay_where_they_are():
    talk = [*ASK["messages"], {"role": "assistant", "content": "a"}, {"role": "developer", "content": "D"}]
    assert read(PATH, {"messages": talk})[0].rendered().text.index("D") > 20
    turn, _ = read(PATH, {"messages": talk}, options={"system-in-place": False})
    assert turn.rendered().text.startswith("<｜begin▁of▁sentence｜>D<｜User｜>")


def test_results_without_their_call_are_nobodys_business():
    """Chat clients always send everything: nothing is checked."""
    turn, _ = read(PATH, {"messages": [{"role": "tool", "tool_call_id": "call_x", "content": "r"}]})
    assert not turn.results_only


def test_errors():
    _, reply = read(PATH, ASK)
    refused = Refused(400, "no", extra={"param": "messages"})
    assert reply.error(refused) == (
        b'{"error":{"message":"no","type":"invalid_request_error","param":"messages"}}\n'
    )  # fmt: skip
