"""Responses, as OpenAI's SDK, Codex, pi and inspect_ai need them."""

from __future__ import annotations

from typing import Any

from ..talk import Answer, Talk, expect, shown
from . import Checks
from .common import (
    ASK,
    PIXEL,
    RESULT,
    in_order,
    names_of,
    not_the_servers,
    overflow_known,
)  # fmt: skip
from .responses_answers import (
    ENDS,
    PATH,
    STREAM,
    TOOLS,
    body,
    events,
    forced,
    forced_body,
    items,
    read,
    response,
    streamed,
    text,
)
from .said import (
    offered,
)  # fmt: skip
from .shared import Api, register

check = Checks("responses", PATH)


def _too_long(answer: Answer) -> None:
    overflow_known(answer.text)
    code = answer.document(400)["error"].get("code")
    expect(code == "context_length_exceeded", f"code {shown(code)}, by which Codex knows it")


register(
    Api(
        check, body, read, "codex pi openai inspect", STREAM, "max_output_tokens", "incomplete max_output_tokens",
        lambda one: str(one.get("type")).endswith("text.delta"), {"input": 5}, _too_long, few=(16, 32),
        called=("completed",), forced=forced_body, strict=True,
        form=lambda schema: {"text": {"format": {"type": "json_schema", "name": "form", "schema": schema,
                                                 "strict": True}}},
        thinks={"reasoning": {"effort": "high", "summary": "auto"}},
    )
)  # fmt: skip

WORD = {"type": "grammar", "syntax": "regex", "definition": "[a-z]{1,12}"}  # so that any model comes to an end
NOTE = {"type": "custom", "name": "note", "description": "Takes a note of one word", "format": WORD}


@check("turn", "-", "codex")
def as_codex(talk: Talk) -> None:
    """what Codex sends is taken: no instructions, developer items, an environment, reasoning items with nulls."""
    history = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello.", "annotations": []}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Again."}]},
    ]
    more: dict[str, Any] = {
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"a": "b"},
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "text": {"verbosity": "low"},
    }  # fmt: skip
    response(talk.ask(PATH, body(talk, history, **more)))


@check("turn", "-", "codex", required=False)
def image(talk: Talk) -> None:
    """an image among the input or a result is no error."""
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    content = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, pixel]}]
    not_the_servers(talk.ask(PATH, body(talk, content)))


@check("stream", "type of the events", "codex pi openai")
def stream_order(talk: Talk) -> None:
    """created, an item, its text, its end, and response.completed, in this order."""
    names = names_of(events(streamed(talk)))
    steps = ("created", "output_item.added", "output_text.delta", "output_text.done", "output_item.done")
    in_order(names, [f"response.{step}" for step in steps])
    rest = names[names.index("response.output_text.done") :]
    expect("response.output_text.delta" not in rest, "a delta behind the end of its text")
    expect(names[-1] in ENDS, f"a stream that ends in {names[-1]}")


@check("stream", "response.output_item.done: item", "codex pi")
def stream_items(talk: Talk) -> None:
    """response.output_item.done for every item, which is where Codex takes them from."""
    done = [event.json["item"] for event in events(streamed(talk)) if event.json["type"] == "response.output_item.done"]
    expect(done and done == response(streamed(talk)).get("output"), f"{len(done)} items done")


@check("stream", "sequence_number", "openai", required=False)
def stream_numbers(talk: Talk) -> None:
    """sequence numbers that count up."""
    numbers = [event.json.get("sequence_number") for event in events(streamed(talk))]
    expect(numbers == sorted({n for n in numbers if isinstance(n, int)}), f"sequence numbers {shown(numbers)}")


def _custom(talk: Talk, **more: Any) -> Answer:
    choice = {"type": "custom", "name": "note"}
    asked = body(talk, "Note it.", tools=[NOTE], tool_choice=choice, **more)
    return offered(talk.ask(PATH, asked), "custom tools")


@check("tools", "output[].type, .input, .name, .call_id", "codex", how="forced")
def tool_custom(talk: Talk) -> None:
    """a custom tool: a custom_tool_call whose input is plain text, streamed as well."""
    for more in ({}, STREAM):
        call = items(_custom(talk, **more), "custom_tool_call")[0]
        (said,) = read(_custom(talk, **more)).calls
        expect(said.name == "note" and said.arguments == call["input"], f"a call {shown(call)}")


@check("tools", "item.name, .namespace", "codex", how="forced")
def tool_namespace(talk: Talk) -> None:
    """a tool of a namespace: its bare name, and the namespace beside it."""
    space = {"type": "namespace", "name": "sky", "description": "About the sky", "tools": [TOOLS[0]]}
    asked = body(talk, ASK, tools=[space], tool_choice="required", parallel_tool_calls=False)
    for more in ({}, STREAM):
        call = items(offered(talk.ask(PATH, {**asked, **more}), "namespaces of tools"), "function_call")[0]
        expect(call.get("name") == "weather" and call.get("namespace") == "sky", f"a call {shown(call)}")


@check("tools", "-", "codex")
def tool_hosted(talk: Talk) -> None:
    """hosted tools without a name are no error."""
    tools = [{"type": "web_search", "external_web_access": True}, *TOOLS]
    response(offered(talk.ask(PATH, body(talk, tools=tools, tool_choice="none")), "hosted tools"))


@check("answer", "output[].content[].text", "codex pi openai inspect")
def answer(talk: Talk) -> None:
    """the history with all items and the result is answered in text."""
    call = items(forced(talk), "function_call")[0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    text(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))


@check("answer", "-", "codex")
def answer_parts(talk: Talk) -> None:
    """results in parts, an image among them, are taken."""
    call = items(forced(talk), "function_call")[0]
    pixel = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": [pixel]}
    history = [{"role": "user", "content": ASK}, *response(forced(talk))["output"], result]
    response(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice="none")))
