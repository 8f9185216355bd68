"""Prompts and answers of later checkpoints through the server: parsed, rendered, constrained, cached and read.

What a conversation renders to, and how an answer is read, is stated by tests/text/test_official.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import TextError
from ds4ref.server.turn import Choice
from ds4ref.targets.reader import AnswerReader
from ds4ref.text.official import PROFILES
from tests.text.test_official import GOLDEN, OUTPUTS, VERSIONS, parser_of

from .answers import pieces, read
from .constrained import TOK, function, tool_turn
from .walk import walk

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
OTHERWISE = {
    "regex",  # a format that is not supported
    "responses_custom_tool",  # the official API replaces the description of apply_patch
    "messages_prefill",  # continued, as Anthropic's API does
    "tools_choice_required_off", "tools_choice_named_off",  # the grammar opens the block, not the prompt
}  # fmt: skip
CASES = [
    (case, version) for case in GOLDEN["conversations"] for version in VERSIONS
    if case["kind"] in PATHS and "prompt" in case[version] and case["name"] not in OTHERWISE
]  # fmt: skip


@pytest.mark.parametrize(("case", "version"), CASES, ids=[f"{case['name']}-{version}" for case, version in CASES])
def test_golden_requests(case: dict[str, Any], version: str) -> None:
    profile = replace(PROFILES[VERSIONS[version]], escapes=False)
    body = case["request"]
    if case["kind"] == "messages":  # Anthropic thinks only if asked to
        body = {"thinking": {"type": "enabled", "budget_tokens": 1024}} | body
    turn, _ = read(PATHS[case["kind"]], body, ctx=1 << 16, profile=profile)
    assert turn.rendered().text == case[version]["prompt"]


APART = {"think_tag_first", "filter"}
"""An opening tag in reasoning, whose text no generation has; a finish that only a service knows."""
ANSWERS = [
    (case, version) for case, version in OUTPUTS
    if not {"starts", "json"} & case["settings"].keys() and case["name"] not in APART
]  # fmt: skip


@pytest.mark.parametrize(("case", "version"), ANSWERS, ids=[f"{case['name']}-{version}" for case, version in ANSWERS])
def test_golden_answers(case: dict[str, Any], version: str) -> None:
    """Think tags are tokens, whose text the generation leaves out."""
    settings = case["settings"]
    reader = AnswerReader(settings.get("tools", True), settings.get("stop", ()), official=parser_of(settings))
    for piece in pieces(case[version]["text"], settings.get("stage") in ("R", "C"), 3):
        reader.feed(piece)
        if reader.done:
            break
    reader.finish()
    calls = [{"name": call.name, "arguments": call.arguments} for call in reader.generated.calls]
    finish = reader.reason("" if reader.done else settings.get("finish", "stop").lower())
    found = {"reasoning": reader.reasoning, "content": reader.text, "calls": calls, "finish": finish}
    assert found == case[version]["result"]


def test_a_system_text_amid_anthropic_messages_is_a_reminder() -> None:
    talk = [{"role": "user", "content": "A"}, {"role": "system", "content": "S"}]
    ends = {"0731": "<｜User｜>A\n\n<system-reminder>\nS\n</system-reminder>", "v4.1": "<｜User｜>A<｜System｜>S"}
    for name, end in ends.items():
        turn, _ = read(PATHS["messages"], {"messages": talk, "max_tokens": 9}, profile=PROFILES[name])
        assert turn.rendered().text.endswith(f"{end}<｜Assistant｜></think>")
    turn, _ = read(PATHS["messages"], {"messages": talk, "max_tokens": 9})
    assert turn.rendered().text.endswith("<｜User｜>A\n\nS<｜Assistant｜></think>")


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("choice", ["named", "auto"])
def test_calls_are_constrained_in_the_profiles_spelling(name: str, choice: Any) -> None:
    """Also where the model begins the block itself, and its arguments must fit."""
    tool = function("f", True, type="object", required=["a&b"], properties={"a&b": {"enum": [1, 2]}})
    turn = replace(tool_turn(tool, choice=Choice(choice, "f" if choice == "named" else "")), profile=PROFILES[name])
    tags = PROFILES[name].tags
    script = f'\n\n{tags.block_open}\n{tags.invoke_open} name="f">\n{tags.param_open} name="a&b" string="false">7'
    done = walk(turn, TOK, 300, script=script)
    assert [(call.name, json.loads(call.arguments)["a&b"] in (1, 2)) for call in done.calls] == [("f", True)]
    text = TOK.decode(done.tokens).decode()
    assert text.startswith(f"\n\n{tags.block_open}\n") and text.endswith(tags.block_close)


def test_a_second_turn_goes_on_where_the_first_ended(serving, nano_path) -> None:
    with Engine.open(nano_path, threads=1, template="0731") as engine:
        where = serving(real=engine).url
        talk: list[dict[str, str]] = [{"role": "user", "content": "One"}, {"role": "user", "content": "Two"}]
        usages = []
        for _ in range(2):
            body = {"messages": talk, "max_tokens": 8, "temperature": 0, "thinking": {"type": "disabled"}}
            answer = httpx2.post(where + PATHS["chat"], json=body, timeout=60).json()
            turn, _ = read(PATHS["chat"], body, profile=engine.tokenizer.profile)
            assert "<｜User｜>One\n\nTwo<｜Assistant｜>" in turn.rendered().text
            assert answer["usage"]["prompt_tokens"] == len(turn.rendered().encode(engine.tokenizer))
            talk += [answer["choices"][0]["message"], {"role": "user", "content": "Three"}]
            usages.append(answer["usage"])
        cached = usages[1]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= usages[0]["prompt_tokens"]


def test_a_strict_tool_that_the_official_api_refuses_is_shown_as_it_came() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "string"}}, "required": []}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": loose}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    turn, _ = read(PATHS["chat"], body, profile=PROFILES["0731"])
    assert json.dumps(loose) in turn.rendered().text


def test_a_tool_that_no_json_reader_of_theirs_takes_is_shown() -> None:
    """A lone surrogate, a number beyond all doubles: such a request gets an answer, as in May's form."""
    schema = '{"name": "f", "description": "\\ud800", "parameters": {"type": "object", "maximum": 1e400}}'
    body = (
        f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{{"type": "function", "function": {schema}}}]}}'
    )
    turn, _ = read(PATHS["chat"], body, profile=PROFILES["0731"])
    assert turn.rendered().encode(TOK)


def test_a_template_of_another_vocabulary_is_refused(nano_path) -> None:
    with Engine.open(nano_path, threads=1, template="v4.1") as engine, pytest.raises(TextError, match="System"):
        engine.prompt("Hi")
