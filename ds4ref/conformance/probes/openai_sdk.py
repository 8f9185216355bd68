"""Probe of OpenAI's SDK: models, chat, responses and completions, as documents, streams and with its helpers."""

import json

import openai
import pydantic
from _probe import HELLO, KEY, MODEL, PARAMETERS, SECONDS, TOKENS, URL, Skip, check, expect, scenarios

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=SECONDS)
FUNCTION = {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS, "strict": True}


class Weather(pydantic.BaseModel):
    """A response format as a pydantic model."""

    sure: bool
    warm: bool


class Chat:
    """The chat completions API, as ``scenarios`` uses it."""

    name = "openai.chat"
    usual = {"top_p": 1, "seed": 1, "n": 1, "user": "u", "stop": ["ZZZZ"], "store": False, "metadata": {"a": "b"}}
    tools = {"tools": [{"type": "function", "function": FUNCTION}]}
    named, none = {"tool_choice": {"type": "function", "function": {"name": "weather"}}}, {"tool_choice": "none"}
    thinks = ({"reasoning_effort": "high"},)
    bad = openai.BadRequestError, openai.UnprocessableEntityError

    def _asked(messages, **more):
        return {"model": MODEL, "messages": messages, "max_completion_tokens": TOKENS, "temperature": 0, **more}

    def ask(messages, **more):
        return client.chat.completions.create(**Chat._asked(messages, **more))

    def helper(messages, **more):
        with client.chat.completions.stream(**Chat._asked(messages, **more)) as stream:
            kinds = {event.type for event in stream}
            expect("tool_calls.function.arguments.done" in kinds, kinds)
            return stream.get_final_completion()

    def read(reply):
        message = reply.choices[0].message
        calls = [json.loads(call.function.arguments) for call in message.tool_calls or ()]
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
        expect(calls or reply.choices[0].finish_reason in ("stop", "length"), reply)
        return message.content or "", calls, reasoning

    def counts(used):
        return used.prompt_tokens, used.completion_tokens, used.total_tokens

    def back(reply, result=None):
        message = reply.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": result} for call in message.tool_calls or ()]
        return [message.model_dump(exclude_none=True), *results]

    def formed(messages):
        reply = client.chat.completions.parse(**Chat._asked(messages, response_format=Weather))
        return reply.choices[0].message.parsed.model_dump()


class Responses:
    """The responses API, as ``scenarios`` uses it; its checks are skipped if the server does not have it."""

    name = "openai.responses"
    usual = {
        "instructions": "Be brief.", "metadata": {"a": "b"}, "truncation": "disabled", "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "none"},
    }  # fmt: skip
    tools = {"tools": [{"type": "function", **FUNCTION}]}
    named, none = {"tool_choice": {"type": "function", "name": "weather"}}, {"tool_choice": "none"}
    thinks = ({"reasoning": {"effort": "high", "summary": "auto"}},)
    bad = Chat.bad

    def _asked(create, messages, **more):
        asked = {"model": MODEL, "input": messages, "max_output_tokens": TOKENS, "temperature": 0, "store": False}
        try:
            return create(**{**asked, **more})
        except openai.NotFoundError as error:
            raise Skip(f"not there: {error}") from None

    def ask(messages, **more):
        return Responses._asked(client.responses.create, messages, **more)

    def helper(messages, **more):
        def streamed(**asked):
            with client.responses.stream(**asked) as stream:
                for _ in stream:
                    pass
                return stream.get_final_response()

        return Responses._asked(streamed, messages, **more)

    def read(reply):
        calls = [json.loads(item.arguments) for item in reply.output if item.type == "function_call"]
        reasoning = any(item.type == "reasoning" and item.summary for item in reply.output)
        expect(reply.status in ("completed", "incomplete"), reply)
        return reply.output_text, calls, reasoning

    def counts(used):
        return used.input_tokens, used.output_tokens, used.total_tokens

    def back(reply, result=None):
        calls = [item for item in reply.output if item.type == "function_call"]
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": result} for call in calls]
        return [*reply.output, *results]

    def formed(messages):
        return Responses._asked(client.responses.parse, messages, text_format=Weather).output_parsed.model_dump()


@check("openai.models", "start", "models.list")
def _():
    names = [model.id for model in client.models.list()]
    expect(MODEL in names, names)


scenarios(Chat)


@check("openai.chat.stream", "stream", "create(stream=True): text, one finish reason, usage")
def _():
    finishes, used = [], None
    for chunk in Chat.ask(HELLO, stream=True, stream_options={"include_usage": True}):
        used = chunk.usage or used
        finishes += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    expect(len(finishes) == 1 and used and used.total_tokens > 0, (finishes, used))


@check("openai.completions", "score", "completions.create with echo and logprobs, and as a stream", required=False)
def _():
    usual = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**usual).choices[0].text
    again = "".join(chunk.choices[0].text for chunk in client.completions.create(**usual, stream=True) if chunk.choices)
    expect(text == again, (text, again))
    reply = client.completions.create(**usual, echo=True, logprobs=1).choices[0].logprobs
    sizes = {len(reply.tokens), len(reply.token_logprobs), len(reply.top_logprobs), len(reply.text_offset)}
    expect(len(sizes) == 1 and sizes.pop() > 8, reply)


scenarios(Responses)


@check("openai.responses.stream", "stream", "create(stream=True): created first, completed last, its text in deltas")
def _():
    events = list(Responses.ask(HELLO, stream=True, reasoning={"effort": "none"}))
    kinds = [event.type for event in events]
    expect(kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect(text == events[-1].response.output_text, text)


@check("openai.errors", "errors", "NotFoundError with the body for what is not there")
def _():
    try:
        client.get("/nothing/here", cast_to=object)
        raise AssertionError("no error for a path that is not there")
    except openai.NotFoundError as error:
        expect(error.body is not None, "an error without a body")
