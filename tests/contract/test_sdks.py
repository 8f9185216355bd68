"""Round trips of OpenAI's and Anthropic's SDKs over the four APIs of ``ds4-server``, on the embedded model."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .running import SCRIPTS

pytestmark = pytest.mark.oracle
MODEL = "deepseek-v4-flash"
SORT = "Sort: l g a x"
SORTED = "a g l x"
PLACE = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
         "additionalProperties": False}  # fmt: skip
ASK = [{"role": "user", "content": SORT}]


@contextlib.contextmanager
def serving(model: str) -> Iterator[str]:
    module, name = SCRIPTS["ds4-server"].split(":")
    code = f"import sys; from {module} import {name}; sys.exit({name}())"
    argv = [sys.executable, "-c", code, "-m", model, "--port", "0", "-t", "1", "--ctx", "2048"]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"listening on (http://[\w.:]+)", line):
                break
        else:
            raise AssertionError("the server did not start")
        yield found[1]
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def url(_model_cache: Any) -> Iterator[str]:
    from ds4ref.nano import embedded_path

    with serving(str(embedded_path())) as found:
        yield found


@pytest.fixture(scope="module")
def gpt(url: str) -> Any:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    return openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claude(url: str) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


OFF = {"extra_body": {"thinking": {"type": "disabled"}}}


def test_models(gpt: Any, claude: Any) -> None:
    assert [m.id for m in gpt.models.list()] == [m.id for m in claude.models.list()] != []


def test_chat(gpt: Any) -> None:
    asked = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 50, **OFF}
    answer = gpt.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (SORTED, "stop")
    assert "".join(entry.token for entry in choice.logprobs.content) == SORTED
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(gpt.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == SORTED
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_chat_with_a_tool_and_its_result(gpt: Any) -> None:
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PLACE}}
    asked = {"model": MODEL, "messages": ASK, "tools": [tool], "tool_choice": "required", "temperature": 0, **OFF}
    with gpt.chat.completions.stream(**asked) as stream:
        list(stream)
        streamed = stream.get_final_completion().choices[0].message
    message = gpt.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert streamed.tool_calls[0].function.arguments == call.function.arguments
    history = [*ASK, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "12"}]
    later = gpt.chat.completions.create(**{**asked, "messages": history, "tool_choice": "none", "max_tokens": 20})
    assert later.choices[0].finish_reason in ("stop", "length")


def test_chat_by_a_schema(gpt: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    answer = gpt.chat.completions.create(model=MODEL, messages=ASK, response_format=form, temperature=0, **OFF)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Paris", "Rome")


def test_completions(gpt: Any) -> None:
    asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    answer = gpt.completions.create(**asked, logprobs=1, echo=True)
    (choice,) = answer.choices
    assert choice.text.startswith("Once upon a time") and len(choice.logprobs.tokens) == answer.usage.total_tokens
    text = "".join(chunk.choices[0].text for chunk in gpt.completions.create(**asked, stream=True) if chunk.choices)
    assert choice.text == "Once upon a time" + text


def test_responses(gpt: Any) -> None:
    asked = {"model": MODEL, "input": SORT, "temperature": 0, "max_output_tokens": 200, "reasoning": {"effort": "none"}}
    answer = gpt.responses.create(**asked)
    assert (answer.output_text, answer.status) == (SORTED, "completed")
    with gpt.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == SORTED
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    tool = {"type": "function", "name": "weather", "description": "d", "parameters": PLACE, "strict": True}
    first = gpt.responses.create(**asked, tools=[tool], tool_choice="required")
    call = first.output[-1]
    assert (call.type, call.name) == ("function_call", "weather")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    history = [{"role": "user", "content": SORT}, *first.output, result]
    assert gpt.responses.create(**{**asked, "input": history}, tools=[tool], tool_choice="none").output_text


def test_messages(claude: Any) -> None:
    asked = {"model": MODEL, "max_tokens": 100, "messages": ASK, "thinking": {"type": "disabled"},
             "extra_body": {"temperature": 0}}  # fmt: skip
    answer = claude.messages.create(**asked)
    assert [block.text for block in answer.content] == [SORTED] and answer.stop_reason == "end_turn"
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == SORTED
        assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
    tool = {"name": "weather", "description": "d", "input_schema": PLACE}
    first = claude.messages.create(**asked, tools=[tool], tool_choice={"type": "any"})
    (call,) = (block for block in first.content if block.type == "tool_use")
    assert first.stop_reason == "tool_use" and call.input["city"] in ("Paris", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12"}
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(**{**asked, "messages": turns}, tools=[tool]).content
    counted = claude.messages.count_tokens(model=MODEL, messages=ASK, thinking={"type": "disabled"}).input_tokens
    assert counted == answer.usage.input_tokens + (answer.usage.cache_creation_input_tokens or 0)


def test_errors_are_typed(gpt: Any, claude: Any) -> None:
    import anthropic
    import openai

    long = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(openai.BadRequestError) as error:
        gpt.chat.completions.create(model=MODEL, messages=long)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model=MODEL, max_tokens=10, messages=long)
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model=MODEL, input="x")
