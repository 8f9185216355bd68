"""The official SDKs of OpenAI and Anthropic: against the server over a scripted engine, and fed with the same answers.

They come with the extra ``oracle``, whose tests these are (``make oracle``).
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from ds4ref.server.turn import Failed
from ds4ref.targets.answer import Delta
from ds4ref.text.dsml import ToolCall, render_calls

from .answers import MODEL, deltas, play, read
from .test_answers import ANSWERS, asked
from .understood import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer

pytestmark = pytest.mark.oracle
pydantic = pytest.importorskip("pydantic", reason="the pydantic package is not installed")
openai = pytest.importorskip("openai", reason="the openai package is not installed")
anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": CITY}}
TOOL = {"type": "function", "name": "get_weather", "description": "d", "parameters": CITY, "strict": True}
ANT_TOOL = {"name": "get_weather", "description": "d", "input_schema": CITY}
ASK = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
PARIS = {"city": 'Pa"ris 😀'}
CALL = "".join(part.text for part in render_calls([ToolCall("get_weather", '{"city":"Pa\\"ris 😀"}')]))
TURN = "Let me think.</think>Let me look." + CALL
DONE = "</think>It is 12 C."


class City(pydantic.BaseModel):
    city: str
    n: int


def openai_client(url, **options):
    return openai.OpenAI(base_url=url + "/v1", api_key="dummy", max_retries=0, timeout=60.0, **options)


def anthropic_client(url, **options):
    return anthropic.Anthropic(base_url=url, api_key="dummy", max_retries=0, timeout=60.0, **options)


@pytest.fixture
def gpt(scripted):
    with openai_client(scripted.url) as client:
        yield client


@pytest.fixture
def claude(scripted):
    with anthropic_client(scripted.url) as client:
        yield client


# --- conversations


def test_chat(scripted, gpt):
    """A call, its result, an answer; the second prompt goes on from what was evaluated."""
    scripted.engine.say(TURN, DONE, '</think>{"city":"Paris","n":1}')
    assert [model.id for model in gpt.models.list()] == [MODEL]
    first = gpt.chat.completions.create(model=MODEL, messages=ASK, tools=[CHAT_TOOL], parallel_tool_calls=False)
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == PARIS
    assert message.reasoning_content == "Let me think."
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 C, sunny"}
    history = [*ASK, message.model_dump(exclude_none=True), result]
    second = gpt.chat.completions.create(model=MODEL, messages=history, tools=[CHAT_TOOL])
    assert second.choices[0].message.content == "It is 12 C." and second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens
    parsed = gpt.chat.completions.parse(model=MODEL, messages=ASK, response_format=City).choices[0].message.parsed
    assert parsed == City(city="Paris", n=1)


@pytest.mark.parametrize("raw", [True, False])
def test_responses(scripted, gpt, raw):
    """Items are sent back as they came, with their None fields or without."""
    run = "".join(part.text for part in render_calls([ToolCall("run", '{"input":"print(1)\\n"}')]))
    scripted.engine.say(TURN, DONE, '</think>{"city":"Paris","n":1}', "</think>" + run)
    options: dict[str, Any] = {"model": MODEL, "tools": [TOOL], "reasoning": {"effort": "low", "summary": "auto"}}
    first = gpt.responses.create(input=ASK, **options)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert json.loads(call.arguments) == PARIS
    items = list(first.output) if raw else [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "12"}]}
    second = gpt.responses.create(input=[*ASK, *items, result], **options)
    assert second.output_text == "It is 12 C."
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    assert gpt.responses.parse(model=MODEL, input="q", text_format=City).output_parsed == City(city="Paris", n=1)
    (item,) = gpt.responses.create(model=MODEL, input="q", tools=[{"type": "custom", "name": "run"}]).output
    assert (item.type, item.input) == ("custom_tool_call", "print(1)\n")


def test_messages(scripted, claude):
    scripted.engine.say(TURN, "It is 12 C.", '{"city":"Paris"}', "Hi")
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 2000, "tools": [ANT_TOOL]}
    first = claude.messages.create(messages=ASK, thinking={"type": "enabled", "budget_tokens": 1024}, **options)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.stop_reason == "tool_use" and first.content[2].input == PARIS
    text = {"type": "text", "text": "12 C", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": [text]}
    history = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = claude.messages.create(messages=history, **options)
    assert second.stop_reason == "end_turn" and second.content[-1].text == "It is 12 C."
    form = {"type": "json_schema", "schema": {**CITY, "additionalProperties": False}}
    answer = claude.messages.create(model=MODEL, max_tokens=2000, messages=ASK, output_config={"format": form})
    assert json.loads(answer.content[-1].text) == {"city": "Paris"}
    few = claude.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    assert few < claude.messages.count_tokens(model=MODEL, messages=ASK, tools=[ANT_TOOL], system="x").input_tokens
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    image = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "Hi"}]}]
    assert claude.messages.create(model=MODEL, max_tokens=50, messages=image).content[0].text == "Hi"


def test_errors(gpt, claude):
    long: list[Any] = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError, match="but the configured context size is 4096 tokens") as error:
        gpt.chat.completions.create(model=MODEL, messages=long)
    assert error.value.code == "context_length_exceeded" and error.value.param == "messages"
    with pytest.raises(openai.BadRequestError):
        gpt.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model=MODEL, input="x")
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model=MODEL, max_tokens=5, messages=long)
    assert refused.value.body["error"]["message"].startswith("prompt is too long: ")
    with pytest.raises(anthropic.NotFoundError):
        claude.get("/v1/nothing", cast_to=object)


# --- single answers, fed to the parsers


def fed(data: bytes, stream: bool = True) -> httpx2.Client:
    """A client's transport that answers with ``data``, in crumbs."""
    kind = "text/event-stream" if stream else "application/json"

    def answer(request: Any) -> httpx2.Response:
        pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
        return httpx2.Response(200, headers={"content-type": kind}, content=iter(pieces))

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def of_chat(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with openai_client("http://x", http_client=fed(data, stream)) as client:
        made = client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)
        calls: dict[int, list[str]] = {}
        for choice in (choice for one in (made if stream else [made]) for choice in one.choices):
            said = choice.delta if stream else choice.message
            found.text += said.content or ""
            found.reasoning += getattr(said, "reasoning_content", None) or ""
            for at, call in enumerate(said.tool_calls or ()):
                mine = calls.setdefault(call.index if stream else at, ["", "", ""])
                for n, part in enumerate((call.id, call.function.name, call.function.arguments)):
                    mine[n] += part or ""
            found.end = choice.finish_reason or found.end
    found.calls = [(call[0], call[1], call[2]) for _, call in sorted(calls.items())]
    found.end = {"tool_calls": "tools"}.get(found.end, found.end)
    return found


def of_messages(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with anthropic_client("http://x", http_client=fed(data, stream)) as client:
        if stream:
            with client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as events:
                made = events.get_final_message()
        else:
            made = client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
    for block in made.content:
        found.text += getattr(block, "text", "")
        found.reasoning += getattr(block, "thinking", "")
        found.calls += [(block.id, block.name, json.dumps(block.input))] if block.type == "tool_use" else []
    found.end = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tools"}[made.stop_reason]
    return found


def of_responses(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with openai_client("http://x", http_client=fed(data, stream)) as client:
        if stream:
            *_, last = client.responses.create(model=MODEL, input=ASK, stream=True)
            made = last.response
            assert last.type == f"response.{made.status}"
        else:
            made = client.responses.create(model=MODEL, input=ASK)
    found.text = made.output_text
    for item in made.output:
        found.reasoning += "".join(part.text for part in item.summary) if item.type == "reasoning" else ""
        found.calls += [(item.call_id, item.name, item.arguments)] if item.type == "function_call" else []
    found.end = {"incomplete": "length", "failed": "error"}.get(made.status, "tools" if found.calls else "stop")
    found.error = made.error.message if made.error else ""
    return found


READERS = {CHAT: of_chat, MESSAGES: of_messages, RESPONSES: of_responses}


@pytest.mark.parametrize("path", READERS)
@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_as_the_sdks_read_it(path, name):
    text, finish, wanted = ANSWERS[name]
    for size in (1, 9, 500):
        said = deltas(text, thinking=True, tools=True, size=size, finish=finish)
        for stream in (True, False):
            found = READERS[path](asked(path, said, stream), stream)
            end = "error" if (path, finish) == (RESPONSES, "error") else wanted.end
            assert (found.reasoning, found.text, found.end) == (wanted.reasoning, wanted.text, end)
            assert [(name, json.loads(raw)) for _, name, raw in found.calls] == [
                (name, json.loads(raw)) for _, name, raw in wanted.calls]  # fmt: skip


@pytest.mark.parametrize("late", [Failed("engine", "it broke"), Failed("shutdown", "server shutting down")])
def test_failures_in_the_middle(late):
    """Each parser raises, or says that the response failed; none takes half an answer for a whole one."""
    said = [Delta("Hal"), late]
    with pytest.raises(openai.APIError, match=late.message):
        of_chat(asked(CHAT, said, True), True)
    text = fed(asked(COMPLETIONS, said, True))
    with openai_client("http://x", http_client=text) as client, pytest.raises(openai.APIError, match=late.message):
        list(client.completions.create(model=MODEL, prompt="x", stream=True))
    assert of_responses(asked(RESPONSES, said, True), True).error == late.message
    with pytest.raises(anthropic.APIStatusError, match=late.message):
        of_messages(asked(MESSAGES, said, True), True)
    waiting = read(RESPONSES, {"input": "x", "stream": True})[1]
    kept = waiting.alive() + waiting.alive() + play(waiting, said)
    assert of_responses(kept, True).error == late.message, "no parser stumbles over what keeps it waiting"
