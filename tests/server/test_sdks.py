"""The official SDKs of OpenAI and Anthropic, against the server over a scripted engine, and fed with single answers.

They come with the extra ``oracle``, whose tests these are (``make oracle``).
"""

from __future__ import annotations

import json
import threading

import httpx2
import pytest

from ds4ref.server.apis.chat import ChatReply
from ds4ref.server.apis.messages import MessagesReply
from ds4ref.server.apis.responses import ResponsesReply
from ds4ref.server.limits import Limits
from ds4ref.server.turn import Failed
from ds4ref.targets.answer import CallDelta, Delta, Finish, Usage
from ds4ref.text.dsml import ToolCall, render_calls

from .answers import MODEL, deltas, play, read

pytestmark = pytest.mark.oracle
pydantic = pytest.importorskip("pydantic", reason="the pydantic package is not installed")
openai = pytest.importorskip("openai", reason="the openai package is not installed")
anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": CITY}}
TOOL = {"type": "function", "name": "get_weather", "description": "d", "parameters": CITY, "strict": True}
ANT_TOOL = {"name": "get_weather", "description": "d", "input_schema": CITY}
ASK = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
ARGUMENTS = '{"city":"Pa\\"ris 😀"}'
PARIS = 'Pa"ris 😀'
CALL = "".join(part.text for part in render_calls([ToolCall("get_weather", ARGUMENTS)]))
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


# --- OpenAI: chat


def test_models(gpt, claude):
    names = [model.id for model in gpt.models.list()]
    assert names and gpt.models.retrieve(names[0]).id == names[0]
    assert [model.id for model in claude.models.list()] == names


def test_chat(scripted, gpt):
    scripted.engine.say("Hm.</think>Hello.")
    answer = gpt.chat.completions.create(
        model=MODEL, messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        max_completion_tokens=200, temperature=0, top_p=1, seed=1, n=1, presence_penalty=0, frequency_penalty=0,
        user="u", stop=["ZZZZ"], store=False, metadata={"a": "b"}, service_tier="auto", verbosity="low",
    )  # fmt: skip
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello.", "stop")
    assert choice.message.reasoning_content == "Hm."
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


def test_chat_with_tools(scripted, gpt):
    """A call, its result, an answer; the second prompt goes on from what was evaluated."""
    scripted.engine.say(TURN, DONE)
    first = gpt.chat.completions.create(model=MODEL, messages=ASK, tools=[CHAT_TOOL], parallel_tool_calls=False)
    message = first.choices[0].message
    (call,) = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments) == {"city": PARIS}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 C, sunny"}
    history = [*ASK, message.model_dump(exclude_none=True), result]
    second = gpt.chat.completions.create(model=MODEL, messages=history, tools=[CHAT_TOOL])
    assert second.choices[0].message.content == "It is 12 C." and second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens


def test_chat_streams(scripted, gpt):
    scripted.engine.say("Hm.</think>Grüße 😀")
    text = reasoning = finish = ""
    usage = None
    for chunk in gpt.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
    assert (text, reasoning, finish) == ("Grüße 😀", "Hm.", "stop") and usage.total_tokens > 0


def test_chat_stream_helper_with_tools(scripted, gpt):
    scripted.engine.say(TURN)
    strict = {**CHAT_TOOL, "function": {**CHAT_TOOL["function"], "strict": True}}
    with gpt.chat.completions.stream(model=MODEL, messages=ASK, tools=[strict]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert call.function.parsed_arguments == {"city": PARIS} and final.choices[0].message.content == "Let me look."
    assert {"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds


def test_chat_structured(scripted, gpt):
    scripted.engine.say('</think>{"city":"Paris","n":1}', '</think>{"a":1}')
    parsed = gpt.chat.completions.parse(model=MODEL, messages=ASK, response_format=City).choices[0].message.parsed
    assert parsed == City(city="Paris", n=1)
    answer = gpt.chat.completions.create(model=MODEL, messages=ASK, response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == {"a": 1}


@pytest.mark.parametrize("stream", [True, False])
def test_chat_log_probabilities(scripted, gpt, stream):
    scripted.engine.say("Hm.</think>Hi ü")
    answer = gpt.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=3, stream=stream)
    if stream:
        lists = [choice.logprobs for chunk in answer for choice in chunk.choices if choice.logprobs]
        found = [entry for one in lists for entry in one.content]
    else:
        found = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in found) == "Hi ü".encode()
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in found)
    assert all(entry.top_logprobs[0].logprob == max(top.logprob for top in entry.top_logprobs) for entry in found)


# --- OpenAI: completions


def test_completions(scripted, gpt):
    scripted.engine.say("Once</think>upon", "a time")
    assert gpt.completions.create(model=MODEL, prompt="Once", max_tokens=80).choices[0].text == "Once</think>upon"
    pieces = gpt.completions.create(model=MODEL, prompt="Once", max_tokens=80, stream=True)
    assert "".join(chunk.choices[0].text for chunk in pieces if chunk.choices) == "a time"


def test_completions_score(server):
    with openai_client(server.url) as client:
        answer = client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1, temperature=0
        )
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == len(found.top_logprobs) > 2


# --- OpenAI: responses


def test_responses(scripted, gpt):
    scripted.engine.say("</think>Hello.")
    answer = gpt.responses.create(
        model=MODEL, input="Hi", instructions="Be brief.", max_output_tokens=2000, store=False, temperature=1,
        metadata={"a": "b"}, truncation="disabled", text={"verbosity": "low"},
        include=["reasoning.encrypted_content"], prompt_cache_key="k", safety_identifier="s",
    )  # fmt: skip
    assert (answer.output_text, answer.status) == ("Hello.", "completed")


@pytest.mark.parametrize("raw", [True, False])
def test_responses_with_tools(scripted, gpt, raw):
    """Items are sent back as they came, with their None fields or without."""
    scripted.engine.say(TURN, DONE)
    options = {"model": MODEL, "tools": [TOOL], "reasoning": {"effort": "low", "summary": "auto"}}
    first = gpt.responses.create(input=ASK, **options)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert json.loads(call.arguments) == {"city": PARIS}
    items = list(first.output) if raw else [item.model_dump(exclude_none=True) for item in first.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "12"}]}
    second = gpt.responses.create(input=[*ASK, *items, result], **options)
    assert second.output_text == "It is 12 C."
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens


def test_responses_stream_helper(scripted, gpt):
    scripted.engine.say(TURN)
    with gpt.responses.stream(model=MODEL, input=ASK, tools=[TOOL], reasoning={"summary": "auto"}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    call = final.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": PARIS}
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "response.reasoning_summary_text.delta" in kinds and "response.function_call_arguments.delta" in kinds


def test_responses_structured(scripted, gpt):
    scripted.engine.say('</think>{"city":"Paris","n":1}')
    assert gpt.responses.parse(model=MODEL, input="q", text_format=City).output_parsed == City(city="Paris", n=1)


def test_responses_custom_tools(scripted, gpt):
    call = "".join(part.text for part in render_calls([ToolCall("run", '{"input":"print(1)\\n"}')]))
    scripted.engine.say("</think>" + call, "</think>" + call)
    tools = [{"type": "custom", "name": "run", "description": "d"}]
    (item,) = gpt.responses.create(model=MODEL, input="q", tools=tools).output
    assert (item.type, item.input) == ("custom_tool_call", "print(1)\n")
    with gpt.responses.stream(model=MODEL, input="q", tools=tools) as stream:
        for _ in stream:
            pass
        (item,) = stream.get_final_response().output
    assert (item.type, item.input) == ("custom_tool_call", "print(1)\n")


# --- Anthropic


def test_messages(scripted, claude):
    scripted.engine.say("Hello. ZZZZ and more")
    answer = claude.messages.create(
        model=MODEL, max_tokens=2000, system="Be brief.", messages=ASK, stop_sequences=["ZZZZ"],
        metadata={"user_id": "u"}, service_tier="auto", extra_body={"temperature": 1, "top_p": 0.9, "top_k": 40},
    )  # fmt: skip
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text == "Hello. "
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "ZZZZ") and answer.usage.output_tokens


@pytest.mark.parametrize("kind", ["enabled", "disabled", "adaptive"])
def test_messages_thinking(scripted, claude, kind):
    scripted.engine.say("Hm.</think>Hi" if kind != "disabled" else "Hi")
    thinking = {"type": kind, **({"budget_tokens": 1024} if kind == "enabled" else {})}
    answer = claude.messages.create(model=MODEL, max_tokens=2000, messages=ASK, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking"] * (kind != "disabled") + ["text"]
    assert kind == "disabled" or (answer.content[0].thinking == "Hm." and answer.content[0].signature)


def test_messages_with_tools(scripted, claude):
    scripted.engine.say(TURN, "It is 12 C.")
    first = claude.messages.create(
        model=MODEL, max_tokens=2000, messages=ASK, tools=[ANT_TOOL],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
    )  # fmt: skip
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    assert first.stop_reason == "tool_use" and first.content[2].input == {"city": PARIS}
    text = {"type": "text", "text": "12 C", "cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": [text]}
    history = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = claude.messages.create(model=MODEL, max_tokens=2000, tools=[ANT_TOOL], messages=history)
    assert second.stop_reason == "end_turn" and second.content[-1].text == "It is 12 C."


def test_messages_stream(scripted, claude):
    scripted.engine.say(TURN)
    thinking = {"type": "adaptive"}
    events = claude.messages.create(
        model=MODEL, max_tokens=2000, messages=ASK, tools=[ANT_TOOL], thinking=thinking, stream=True
    )
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


def test_messages_stream_helper(scripted, claude):
    scripted.engine.say(TURN)
    with claude.messages.stream(
        model=MODEL, max_tokens=2000, messages=ASK, tools=[ANT_TOOL], thinking={"type": "adaptive"}
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[0].thinking == "Let me think." and final.content[2].input == {"city": PARIS}
    assert final.stop_reason == "tool_use" and final.usage.output_tokens > 10
    assert final.usage.input_tokens > 10


def test_messages_beta_counting_and_images(scripted, claude):
    scripted.engine.say("Hi", '{"city":"Paris"}', "Hi")
    answer = claude.beta.messages.create(
        model=MODEL, max_tokens=500, messages=ASK, betas=["interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]},
    )  # fmt: skip
    late = {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 2000}}
    with pytest.raises(anthropic.BadRequestError, match="clear_tool_uses_20250919 with a trigger is not supported"):
        claude.beta.messages.create(
            model=MODEL,
            max_tokens=500,
            messages=ASK,
            betas=["context-management-2025-06-27"],
            context_management={"edits": [late]},
        )
    assert answer.content[-1].type == "text"
    form = {"type": "json_schema", "schema": {**CITY, "additionalProperties": False}}
    answer = claude.messages.create(model=MODEL, max_tokens=2000, messages=ASK, output_config={"format": form})
    assert json.loads(answer.content[-1].text) == {"city": "Paris"}
    few = claude.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    assert few < claude.messages.count_tokens(model=MODEL, messages=ASK, tools=[ANT_TOOL], system="x").input_tokens
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "Hi"}]
    answer = claude.messages.create(model=MODEL, max_tokens=50, messages=[{"role": "user", "content": content}])
    assert answer.content[0].text == "Hi"


# --- errors


def test_errors_that_the_openai_sdk_raises(scripted, gpt):
    with pytest.raises(openai.BadRequestError) as error:
        gpt.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
    assert error.value.code == "context_length_exceeded" and error.value.param == "messages"
    assert "but the configured context size is 4096 tokens" in error.value.message
    with pytest.raises(openai.BadRequestError):
        gpt.responses.create(model=MODEL, input="x", previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        gpt.embeddings.create(model=MODEL, input="x")


def test_errors_that_the_anthropic_sdk_raises(scripted, claude):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}])
    assert error.value.body["error"]["message"].startswith("prompt is too long: ")
    with pytest.raises(anthropic.NotFoundError):
        claude.get("/v1/nothing", cast_to=object)


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_what_keeps_them_waiting_and_an_engine_that_breaks(serving, monkeypatch, api):
    """Signs of life through a long prefill, which no parser stumbles over; then the engine fails, and SDKs raise."""
    server = serving(limits=Limits(alive_seconds=0.02, drain_seconds=5.0))
    reply = {"chat": ChatReply, "responses": ResponsesReply, "messages": MessagesReply}[api]
    signs, said = [], reply.alive
    monkeypatch.setattr(reply, "alive", lambda self: signs.append(said(self)) or signs[-1])
    server.engine.hold()
    kinds, raised = [], []

    def ask():
        try:
            if api == "chat":
                with openai_client(server.url) as client:
                    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, stream=True):
                        kinds.append(chunk.choices[0].delta.content)
            elif api == "responses":
                with openai_client(server.url) as client, client.responses.stream(model=MODEL, input=ASK) as stream:
                    kinds.extend(event.type for event in stream)
            else:
                with anthropic_client(server.url) as client:
                    with client.messages.stream(model=MODEL, max_tokens=50, messages=ASK) as stream:
                        kinds.extend(event.type for event in stream)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    server.engine.held()
    server.until(lambda: len(signs) >= 3)
    server.engine.fail = RuntimeError("broke")
    server.engine.release()
    thread.join(60)
    assert not thread.is_alive()
    if api == "responses":
        assert "response.keepalive" in kinds and kinds[0] == "response.created" and kinds[-1] == "response.failed"
        assert raised == []
    else:
        (error,) = raised
        assert isinstance(error, (openai.APIError, anthropic.APIStatusError)), error
        assert "internal error" in str(error)


# --- single answers, fed to the parsers


def fed(data, stream=True):
    """A client's transport that answers with ``data``, in crumbs."""
    kind = "text/event-stream" if stream else "application/json"

    def answer(request):
        pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
        return httpx2.Response(200, headers={"content-type": kind}, content=iter(pieces))

    return httpx2.Client(transport=httpx2.MockTransport(answer))


OPENED = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
BROKEN = OPENED + "Pa"
MALFORMED = BROKEN + "</｜DSML｜parameter>\nwhat?</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
TWO = "".join(part.text for part in render_calls([ToolCall("f", "{}"), ToolCall("g", ARGUMENTS)]))
ENDS = {
    "text": ("Hm.</think>Hello.", "stop"),
    "empty": ("Hm.</think>", "stop"),
    "nothing": ("", "stop"),
    "unclosed": ("Hm. and on", "stop"),
    "thinking cut": ("Hm. and on", "length"),
    "text cut": ("Hm.</think>Hel", "length"),
    "call": (TURN, "stop"),
    "two calls": ("</think>" + TWO, "stop"),
    "call cut": ("</think>Look." + BROKEN, "length"),
    "call open": ("</think>Look." + BROKEN, "stop"),
    "call malformed": ("</think>Look." + MALFORMED, "stop"),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [1, 9, 500])
def test_every_end_of_a_chat(end, size):
    text, finish = ENDS[end]
    said = deltas(text, thinking=True, tools=True, size=size, finish=finish)
    data = play(read("/v1/chat/completions", {"messages": ASK, "tools": [CHAT_TOOL], "stream": True})[1], said)
    with openai_client("http://x", http_client=fed(data)) as client:
        reasons = [
            chunk.choices[0].finish_reason
            for chunk in client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
            if chunk.choices
        ]
    assert reasons[-1] in ("stop", "length", "tool_calls") and set(reasons[:-1]) <= {None}
    assert (reasons[-1] == "tool_calls") == (end in ("call", "two calls"))
    assert (reasons[-1] == "length") == (finish == "length")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [1, 9, 500])
def test_every_end_of_a_message(end, size):
    text, finish = ENDS[end]
    said = deltas(text, thinking=True, tools=True, size=size, finish=finish)
    body = {"max_tokens": 9, "messages": ASK, "tools": [ANT_TOOL], "thinking": {"type": "adaptive"}, "stream": True}
    data = play(read("/v1/messages", body)[1], said)
    begun = b'"tool_use"' in data and end in ("call open", "call malformed")
    with anthropic_client("http://x", http_client=fed(data)) as client:
        with client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as stream:
            if begun:
                with pytest.raises(anthropic.APIStatusError):
                    stream.get_final_message()
                return
            final = stream.get_final_message()
    assert final.stop_reason == {"length": "max_tokens"}.get(finish, "tool_use" if "call" in end[-5:] and end in (
        "call", "two calls") else "end_turn")  # fmt: skip
    assert final.content and final.content[-1].type in ("text", "tool_use")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [1, 9, 500])
def test_every_end_of_a_response(end, size):
    text, finish = ENDS[end]
    said = deltas(text, thinking=True, tools=True, size=size, finish=finish)
    body = {"input": ASK, "tools": [TOOL], "reasoning": {"summary": "auto"}, "stream": True}
    data = play(read("/v1/responses", body)[1], said)
    with openai_client("http://x", http_client=fed(data)) as client:
        events = list(client.responses.create(model=MODEL, input=ASK, stream=True))
    lost = end == "call open" or (end == "call malformed" and size < 500)
    wanted = "incomplete" if finish == "length" else "failed" if lost else "completed"
    assert events[-1].type == f"response.{wanted}" and events[-1].response.status == wanted
    calls = [item for item in events[-1].response.output if item.type == "function_call"]
    assert len(calls) == {"call": 1, "two calls": 2}.get(end, 0)
    if wanted != "completed":
        return
    with openai_client("http://x", http_client=fed(data)) as client:
        with client.responses.stream(model=MODEL, input=ASK, tools=[TOOL]) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().status == "completed"


@pytest.mark.parametrize("late", [Failed("engine", "it broke"), Failed("shutdown", "server shutting down")])
def test_failures_in_the_middle(late):
    """Each parser raises, or says that the response failed; none takes half an answer for a whole one."""
    said = [Delta("Hal"), late]
    chat = play(read("/v1/chat/completions", {"messages": ASK, "stream": True})[1], said)
    with openai_client("http://x", http_client=fed(chat)) as client, pytest.raises(openai.APIError, match=late.message):
        list(client.chat.completions.create(model=MODEL, messages=ASK, stream=True))
    text = play(read("/v1/completions", {"prompt": "x", "stream": True})[1], said)
    with openai_client("http://x", http_client=fed(text)) as client, pytest.raises(openai.APIError, match=late.message):
        list(client.completions.create(model=MODEL, prompt="x", stream=True))
    response = play(read("/v1/responses", {"input": "x", "stream": True})[1], said)
    with openai_client("http://x", http_client=fed(response)) as client:
        *_, last = client.responses.create(model=MODEL, input="x", stream=True)
        assert last.type == "response.failed" and last.response.error.message == late.message
    message = play(read("/v1/messages", {"messages": ASK, "stream": True})[1], said)
    with anthropic_client("http://x", http_client=fed(message)) as client:
        with client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as stream:
            with pytest.raises(anthropic.APIStatusError, match=late.message):
                stream.get_final_message()


def test_usage_of_the_reference_is_typed():
    said = [Delta("Hi"), Delta(finish=Finish.STOP, usage=Usage(100, 7, 60, 3))]
    data = play(read("/v1/responses", {"input": "x"})[1], said)
    with openai_client("http://x", http_client=fed(data, stream=False)) as client:
        usage = client.responses.create(model=MODEL, input="x").usage
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (100, 60)
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens, usage.total_tokens) == (7, 3, 107)
    data = play(read("/v1/messages", {"messages": ASK})[1], said, 60, 100)
    with anthropic_client("http://x", http_client=fed(data, stream=False)) as client:
        usage = client.messages.create(model=MODEL, max_tokens=9, messages=ASK).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 60, 40)


def test_a_namespaced_call_is_typed():
    space = {"type": "namespace", "name": "mcp__", "tools": [{"type": "function", "name": "send"}]}
    said = [
        Delta(calls=(CallDelta(0, "mcp__send"), CallDelta(0, arguments="{}"))),
        Delta(finish=Finish.TOOL_CALLS, usage=Usage()),
    ]
    data = play(read("/v1/responses", {"input": "x", "tools": [space]})[1], said)
    with openai_client("http://x", http_client=fed(data, stream=False)) as client:
        (item,) = client.responses.create(model=MODEL, input="x").output
    assert (item.type, item.name, item.namespace) == ("function_call", "send", "mcp__")
