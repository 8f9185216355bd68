"""Probe of OpenAI's SDK: models, chat, responses and completions, as documents, streams and with its helpers."""

import json

import openai
import pydantic
from _probe import ASK, KEY, MODEL, PARAMETERS, RESULT, SECONDS, TOKENS, URL, Skip, check, expect, fits

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=SECONDS)
FUNCTION = {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS}
STRICT = {"type": "function", "function": {**FUNCTION, "strict": True}}
TOOL = {"type": "function", **FUNCTION, "strict": True}
USER = [{"role": "user", "content": ASK}]
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
state = {}


class Weather(pydantic.BaseModel):
    """A response format as a pydantic model."""

    sure: bool
    warm: bool


def usual(**more):
    """Return the usual arguments of a chat completion, extended by ``more``."""
    return {"model": MODEL, "max_completion_tokens": TOKENS, "temperature": 0, **more}


def answer(**more):
    """Return the usual arguments of a response, extended by ``more``."""
    return {"model": MODEL, "max_output_tokens": TOKENS, "temperature": 0, "store": False, **more}


def offered(call):
    """Return the result of ``call()``; raises Skip if the server has no such endpoint."""
    try:
        return call()
    except openai.NotFoundError as error:
        raise Skip(f"not there: {error}") from None


@check("openai.models", "start", "models.list")
def _():
    names = [model.id for model in client.models.list()]
    expect(MODEL in names, names)


@check("openai.chat", "turn", "chat.completions.create with the usual fields; counts that add up")
def _():
    reply = client.chat.completions.create(
        messages=HELLO, top_p=1, seed=1, n=1, user="u", stop=["ZZZZ"], store=False, metadata={"a": "b"}, **usual()
    )
    choice = reply.choices[0]
    expect(choice.message.content is not None and choice.finish_reason in ("stop", "length"), choice)
    used = reply.usage
    expect(used and used.total_tokens == used.prompt_tokens + used.completion_tokens > 0, used)


@check("openai.chat.stream", "stream", "create(stream=True): text, one finish reason, usage")
def _():
    text, finishes, used = "", [], None
    stream = client.chat.completions.create(
        messages=HELLO, stream=True, stream_options={"include_usage": True}, **usual()
    )
    for chunk in stream:
        used = chunk.usage or used
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
    expect(len(finishes) == 1 and used and used.total_tokens > 0, (finishes, used))


@check("openai.chat.reasoning", "thinking", "reasoning apart from the content, and taken back", required=False)
def _():
    reply = client.chat.completions.create(messages=HELLO, reasoning_effort="high", **usual()).choices[0].message
    reasoning = getattr(reply, "reasoning_content", None) or getattr(reply, "reasoning", None)
    expect(reasoning, reply)
    again = [*HELLO, reply.model_dump(exclude_none=True), {"role": "user", "content": "Again."}]
    client.chat.completions.create(messages=again, **usual(max_completion_tokens=8))


@check("openai.chat.tool", "tools", "a call of the tool that tool_choice names", how="forced")
def _():
    choice = {"type": "function", "function": {"name": "weather"}}
    message = (
        client.chat.completions.create(messages=USER, tools=[STRICT], tool_choice=choice, **usual()).choices[0].message
    )
    expect(message.tool_calls and fits(json.loads(message.tool_calls[0].function.arguments)), message)
    state["message"] = message


@check("openai.chat.answer", "answer", "an answer to the result")
def _():
    if "message" not in state:
        raise Skip("no call")
    message = state["message"]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
    history = [*USER, message.model_dump(exclude_none=True), result]
    reply = client.chat.completions.create(messages=history, tools=[STRICT], tool_choice="none", **usual())
    expect(reply.choices[0].message.content is not None, reply)


@check("openai.chat.stream_tool", "tools", "the stream helper puts the call together, arguments parsed", how="forced")
def _():
    choice = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(messages=USER, tools=[STRICT], tool_choice=choice, **usual()) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    expect(fits(call.function.parsed_arguments or json.loads(call.function.arguments)), call)
    expect("tool_calls.function.arguments.done" in kinds, kinds)


@check("openai.chat.parse", "format", "parse() with a pydantic model", how="forced")
def _():
    reply = client.chat.completions.parse(messages=USER, response_format=Weather, **usual()).choices[0].message
    expect(isinstance(reply.parsed, Weather), reply)


@check("openai.completions", "score", "completions.create with echo and logprobs, and as a stream", required=False)
def _():
    usual = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**usual).choices[0].text
    again = "".join(chunk.choices[0].text for chunk in client.completions.create(**usual, stream=True) if chunk.choices)
    expect(text == again, (text, again))
    reply = client.completions.create(**usual, echo=True, logprobs=1).choices[0].logprobs
    sizes = {len(reply.tokens), len(reply.token_logprobs), len(reply.top_logprobs), len(reply.text_offset)}
    expect(len(sizes) == 1 and sizes.pop() > 8, reply)


@check("openai.responses", "turn", "responses.create with the usual fields; counts that add up")
def _():
    reply = offered(lambda: client.responses.create(
        input="Say hello.", instructions="Be brief.", metadata={"a": "b"}, truncation="disabled",
        include=["reasoning.encrypted_content"], prompt_cache_key="k", reasoning={"effort": "none"}, **answer(),
    ))  # fmt: skip
    expect(reply.status in ("completed", "incomplete") and isinstance(reply.output_text, str), reply)
    used = reply.usage
    expect(used and used.total_tokens == used.input_tokens + used.output_tokens > 0, used)


@check("openai.responses.stream", "stream", "create(stream=True): created first, completed last, its text in deltas")
def _():
    events = offered(lambda: list(client.responses.create(
        input="Say hello.", stream=True, reasoning={"effort": "none"}, **answer()
    )))  # fmt: skip
    kinds = [event.type for event in events]
    expect(kinds[0] == "response.created", kinds[:3])
    expect(kinds[-1] in ("response.completed", "response.incomplete"), kinds[-3:])
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect(text == events[-1].response.output_text, text)


@check("openai.responses.tool", "tools", "a function_call of the tool that tool_choice names", how="forced")
def _():
    choice = {"type": "function", "name": "weather"}
    reply = offered(lambda: client.responses.create(input=USER, tools=[TOOL], tool_choice=choice, **answer()))
    calls = [item for item in reply.output if item.type == "function_call"]
    expect(len(calls) == 1 and fits(json.loads(calls[0].arguments)), reply.output)
    state["output"] = reply.output


@check("openai.responses.answer", "answer", "items sent back as they came, with the result")
def _():
    if "output" not in state:
        raise Skip("no call")
    output = state["output"]
    call = next(item for item in output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    reply = client.responses.create(input=[*USER, *output, result], tools=[TOOL], tool_choice="none", **answer())
    expect(isinstance(reply.output_text, str), reply)


@check("openai.responses.stream_tool", "tools", "the stream helper puts the call together", how="forced")
def _():
    choice = {"type": "function", "name": "weather"}

    def ask():
        with client.responses.stream(input=USER, tools=[TOOL], tool_choice=choice, **answer()) as stream:
            for _ in stream:
                pass
            return stream.get_final_response()

    calls = [item for item in offered(ask).output if item.type == "function_call"]
    expect(len(calls) == 1 and fits(json.loads(calls[0].arguments)), calls)


@check("openai.responses.reasoning", "thinking", "a summary of the reasoning, taken back", required=False)
def _():
    reasoning = {"effort": "high", "summary": "auto"}
    reply = offered(lambda: client.responses.create(input="Say hello.", reasoning=reasoning, **answer()))
    expect(any(item.type == "reasoning" and item.summary for item in reply.output), reply.output)
    again = [{"role": "user", "content": "Say hello."}, *reply.output, {"role": "user", "content": "Again."}]
    client.responses.create(input=again, **answer(max_output_tokens=16))


@check("openai.responses.parse", "format", "parse() with a pydantic model", how="forced")
def _():
    reply = offered(lambda: client.responses.parse(input=ASK, text_format=Weather, **answer()))
    expect(isinstance(reply.output_parsed, Weather), reply.output)


@check("openai.errors", "errors", "NotFoundError for what is not there, BadRequestError for what is wrong")
def _():
    try:
        client.get("/nothing/here", cast_to=object)
        raise AssertionError("no error for a path that is not there")
    except openai.NotFoundError as error:
        expect(error.body is not None, "an error without a body")
    try:
        client.chat.completions.create(model=MODEL, messages=5)
        raise AssertionError("no error for messages that are a number")
    except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
        expect(error.body is not None, "an error without a body")
