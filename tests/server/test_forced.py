"""Demanded answers of models that reason first: the room for the answer is kept free, whatever the limit."""

from __future__ import annotations

import json

import pytest

from ds4ref.server.constrain import steering

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}, "tomorrow": {"type": "boolean"}},
    "required": ["city", "tomorrow"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def limits():
    """From one that leaves hardly room for thought to one where the answer is a small part."""
    return [*range(125, 200, 25), 400]


@pytest.mark.parametrize("seed", [1, 2])
def test_reasoning_ends_in_time_for_the_call(serving, limits, seed):
    server = serving(real=True, constrain=steering)
    ask = {"role": "user", "content": "What will the weather be in Oslo?"}
    for limit in limits:
        body = {
            "messages": [ask], "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False,
            "max_tokens": limit, "temperature": 1, "seed": seed,
        }  # fmt: skip
        (choice,) = server.client.post("/v1/chat/completions", json=body).json()["choices"]
        assert choice["finish_reason"] in ("tool_calls", "length"), (limit, choice)  # length: brought to its end
        (call,) = choice["message"]["tool_calls"]
        made = json.loads(call["function"]["arguments"])
        assert set(made) == {"city", "tomorrow"} and made["city"] in ("Oslo", "Lima")
