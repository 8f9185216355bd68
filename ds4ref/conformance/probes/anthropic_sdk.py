"""Probe of Anthropic's SDK: messages as documents, streams and with its helper; tools, thinking, formats, counting."""

import json

import anthropic
from _probe import ASK, KEY, MODEL, PARAMETERS, RESULT, SECONDS, TOKENS, URL, Skip, check, expect, fits

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=SECONDS)
TOOL = {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS}
NAMED = {"type": "tool", "name": "weather"}
USER = [{"role": "user", "content": ASK}]
HELLO = [{"role": "user", "content": "Say hello."}]
FORM = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "warm": {"type": "boolean"}},
    "required": ["sure", "warm"],
    "additionalProperties": False,
}
state = {}


def usual(**more):
    """Return the usual arguments of a message request, extended by ``more``."""
    return {"model": MODEL, "max_tokens": TOKENS, **more}


def kinds(message):
    """Return the types of a message's content blocks in order."""
    return [block.type for block in message.content]


@check("anthropic.models", "start", "models.list")
def _():
    expect(MODEL in [model.id for model in client.models.list()], "the model is not in the list")


@check("anthropic.messages", "turn", "messages.create with the usual fields; counts of input and output")
def _():
    reply = client.messages.create(
        messages=HELLO, system="Be brief.", stop_sequences=["ZZZZ"], metadata={"user_id": "u"},
        extra_body={"temperature": 0}, **usual(),
    )  # fmt: skip
    expect("text" in kinds(reply) and reply.stop_reason in ("end_turn", "max_tokens"), reply)
    used = reply.usage
    read = (used.input_tokens or 0) + (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
    expect(read > 0 and used.output_tokens > 0, used)


@check("anthropic.count", "usage", "messages.count_tokens", required=False)
def _():
    expect(client.messages.count_tokens(model=MODEL, messages=HELLO, tools=[TOOL]).input_tokens > 0, "0 tokens")


@check("anthropic.stream", "stream", "create(stream=True): message_start first, message_stop last")
def _():
    events = [event.type for event in client.messages.create(messages=HELLO, stream=True, **usual())]
    expect(events and events[0] == "message_start" and events[-1] == "message_stop", events[:2] + events[-2:])


@check("anthropic.stream.helper", "stream", "the stream helper puts the message together")
def _():
    with client.messages.stream(messages=HELLO, **usual()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text == "".join(block.text for block in final.content if block.type == "text"), final)


@check("anthropic.tool", "tools", "a tool_use of the tool that tool_choice names", how="forced")
def _():
    reply = client.messages.create(messages=USER, tools=[TOOL], tool_choice=NAMED, **usual())
    uses = [block for block in reply.content if block.type == "tool_use"]
    expect(reply.stop_reason == "tool_use" and len(uses) == 1 and fits(uses[0].input), reply)
    state["call"] = reply


@check("anthropic.answer", "answer", "an answer to the result, blocks sent back as they came")
def _():
    if "call" not in state:
        raise Skip("no call")
    written = state["call"]
    call = next(block for block in written.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    history = [*USER, {"role": "assistant", "content": written.content}, {"role": "user", "content": [result]}]
    reply = client.messages.create(messages=history, tools=[TOOL], tool_choice={"type": "none"}, **usual())
    expect("text" in kinds(reply), reply)


@check("anthropic.stream.tool", "tools", "the stream helper puts the input together", how="forced")
def _():
    with client.messages.stream(messages=USER, tools=[TOOL], tool_choice=NAMED, **usual()) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    uses = [block for block in final.content if block.type == "tool_use"]
    expect(len(uses) == 1 and fits(uses[0].input), final)


@check("anthropic.thinking", "thinking", "enabled, adaptive: a block with a signature; disabled: none", required=False)
def _():
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        reply = client.messages.create(messages=HELLO, thinking=thinking, **usual(max_tokens=max(TOKENS, 1200)))
        expect(reply.content[0].type == "thinking" and reply.content[0].signature, reply)
    reply = client.messages.create(messages=HELLO, thinking={"type": "disabled"}, **usual())
    expect("thinking" not in kinds(reply), reply)


@check("anthropic.format", "format", "output_config.format with a schema", how="forced")
def _():
    form = {"format": {"type": "json_schema", "schema": FORM}}
    reply = client.messages.create(messages=USER, output_config=form, **usual())
    text = "".join(block.text for block in reply.content if block.type == "text")
    written = json.loads(text)
    expect(set(written) == {"sure", "warm"} and all(isinstance(value, bool) for value in written.values()), text)


@check("anthropic.beta", "turn", "beta.messages.create with betas and context_management", required=False)
def _():
    reply = client.beta.messages.create(
        messages=HELLO, betas=["interleaved-thinking-2025-05-14"],
        context_management={"edits": [{"type": "clear_thinking_20251015"}]}, **usual(),
    )  # fmt: skip
    expect("text" in kinds(reply), reply)


@check("anthropic.runner", "tools", "the tool runner calls its tool and goes on with the result", how="forced")
def _():
    if not hasattr(client.beta.messages, "tool_runner"):
        raise Skip(f"anthropic {anthropic.__version__} has no tool runner")
    asked = []

    @anthropic.beta_tool(name=TOOL["name"], description=TOOL["description"], input_schema=TOOL["input_schema"])
    def tool(**arguments):
        asked.append(arguments)
        return RESULT

    runner = client.beta.messages.tool_runner(
        messages=USER, tools=[tool], tool_choice=NAMED, max_iterations=2, **usual()
    )
    replies = list(runner)
    expect(len(replies) == 2 and asked and fits(asked[0]), (replies, asked))


@check("anthropic.errors", "errors", "BadRequestError with an error of Anthropic's shape")
def _():
    try:
        client.messages.create(model=MODEL, max_tokens=8, messages=5)
        raise AssertionError("no error for messages that are a number")
    except anthropic.BadRequestError as error:
        expect(isinstance(error.body, dict) and error.body["error"]["message"], error.body)
