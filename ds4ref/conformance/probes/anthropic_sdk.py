"""Probe of Anthropic's SDK: messages as documents, streams and with its helper; tools, thinking, formats, counting."""

import json

import anthropic
from _probe import (
    HELLO,
    KEY,
    MODEL,
    PARAMETERS,
    RESULT,
    SECONDS,
    TOKENS,
    URL,
    USER,
    Skip,
    check,
    expect,
    fits,
    scenarios,
)

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=SECONDS)
TOOL = {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS}
FORM = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "warm": {"type": "boolean"}},
    "required": ["sure", "warm"],
    "additionalProperties": False,
}


def text_of(reply):
    """Return the visible text of an answer."""
    return "".join(block.text for block in reply.content if block.type == "text")


class Messages:
    """The messages API, as ``scenarios`` uses it."""

    name = "anthropic.messages"
    usual = {"system": "Be brief.", "stop_sequences": ["ZZZZ"], "metadata": {"user_id": "u"},
             "extra_body": {"temperature": 0}}  # fmt: skip
    tools = {"tools": [TOOL]}
    named, none = {"tool_choice": {"type": "tool", "name": "weather"}}, {"tool_choice": {"type": "none"}}
    thinks = tuple(
        {"thinking": thinking, "max_tokens": max(TOKENS, 1200)}
        for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"})
    )
    bad = (anthropic.BadRequestError,)

    def asked(messages, **more):
        return {"model": MODEL, "max_tokens": TOKENS, "messages": messages, **more}

    def ask(messages, **more):
        return client.messages.create(**Messages.asked(messages, **more))

    def helper(messages, **more):
        with client.messages.stream(**Messages.asked(messages, **more)) as stream:
            text = "".join(stream.text_stream)
            reply = stream.get_final_message()
        expect(text == text_of(reply), reply)
        return reply

    def read(reply):
        calls = [block.input for block in reply.content if block.type == "tool_use"]
        expect((reply.stop_reason == "tool_use") == bool(calls), reply)
        first = reply.content[0]
        return text_of(reply), calls, first.type == "thinking" and first.signature

    def counts(used):
        prompt = used.input_tokens + (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)
        return prompt, used.output_tokens, prompt + used.output_tokens

    def back(reply, result=None):
        content = [{"type": "text", "text": result}]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": content}
                   for block in reply.content if block.type == "tool_use"]  # fmt: skip
        told = [{"role": "user", "content": results}] if results else []
        return [{"role": "assistant", "content": reply.content}, *told]

    def formed(messages):
        form = {"format": {"type": "json_schema", "schema": FORM}}
        return json.loads(text_of(Messages.ask(messages, output_config=form)))


@check("anthropic.models", "start", "models.list")
def _():
    expect(MODEL in [model.id for model in client.models.list()], "the model is not in the list")


@check("anthropic.count", "usage", "messages.count_tokens", required=False)
def _():
    expect(client.messages.count_tokens(model=MODEL, messages=HELLO, tools=[TOOL]).input_tokens > 0, "0 tokens")


scenarios(Messages)


@check("anthropic.stream", "stream", "create(stream=True): message_start first, message_stop last; its helper")
def _():
    events = [event.type for event in Messages.ask(HELLO, stream=True)]
    expect(events and events[0] == "message_start" and events[-1] == "message_stop", events[:2] + events[-2:])
    Messages.helper(HELLO)


@check("anthropic.beta", "turn", "beta.messages.create with betas and context_management", required=False)
def _():
    edits = {"edits": [{"type": "clear_thinking_20251015"}]}
    reply = client.beta.messages.create(
        betas=["interleaved-thinking-2025-05-14"], context_management=edits, **Messages.asked(HELLO)
    )
    expect(any(block.type == "text" for block in reply.content), reply)


@check("anthropic.runner", "tools", "the tool runner calls its tool and goes on with the result", how="forced")
def _():
    if not hasattr(client.beta.messages, "tool_runner"):
        raise Skip(f"anthropic {anthropic.__version__} has no tool runner")
    asked = []

    @anthropic.beta_tool(name=TOOL["name"], description=TOOL["description"], input_schema=TOOL["input_schema"])
    def tool(**arguments):
        asked.append(arguments)
        return RESULT

    runner = client.beta.messages.tool_runner(**Messages.asked(USER, tools=[tool], max_iterations=2, **Messages.named))
    replies = list(runner)
    expect(len(replies) == 2 and asked and fits(asked[0]), (replies, asked))
