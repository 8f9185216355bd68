"""Probe of plain HTTP with ``requests``: documents, a stream line by line, a tool call and its result."""

import json

import requests
from _probe import ASK, KEY, MODEL, PARAMETERS, RESULT, SECONDS, TOKENS, URL, Skip, check, expect, fits

session = requests.Session()
session.trust_env = False
session.headers["authorization"] = f"Bearer {KEY}"
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}}
USER = {"role": "user", "content": ASK}
state = {}


def post(stream=False, **more):
    """POST a chat completion with the usual fields, extended by ``more``; return the response."""
    body = {"model": MODEL, "messages": [USER], "max_tokens": TOKENS, "temperature": 0, "stream": stream, **more}
    return session.post(f"{URL}/v1/chat/completions", json=body, stream=stream, timeout=SECONDS)


@check("requests.models", "start", "a list of models")
def _():
    reply = session.get(f"{URL}/v1/models", timeout=SECONDS)
    expect(reply.ok and reply.json()["data"], reply.text)


@check("requests.turn", "turn", "a document, on a connection that is used again")
def _():
    for _ in range(2):
        reply = post(max_tokens=16)
        expect(reply.ok and "content" in reply.json()["choices"][0]["message"], reply.text)


@check("requests.gzip", "turn", "an answer to who accepts compressed ones")
def _():
    reply = session.post(
        f"{URL}/v1/chat/completions", json={"model": MODEL, "messages": [USER], "max_tokens": 4}, timeout=SECONDS,
        headers={"accept-encoding": "gzip, deflate, br, zstd"},
    )  # fmt: skip
    expect(reply.ok and reply.json()["choices"], reply.text)


@check("requests.stream", "stream", "lines of data, [DONE] last")
def _():
    with post(stream=True, max_tokens=16) as reply:
        expect(reply.ok, reply.status_code)
        lines = [line for line in reply.iter_lines(decode_unicode=True) if line and not line.startswith(":")]
    expect(lines[-1] == "data: [DONE]", lines[-1])
    expect(all(json.loads(line[6:])["choices"] is not None for line in lines[:-1]), lines[0])


@check("requests.tool", "tools", "a call with arguments that fit", how="forced")
def _():
    choice = {"type": "function", "function": {"name": "weather"}}
    reply = post(tools=[TOOL], tool_choice=choice)
    expect(reply.ok, reply.text)
    message = reply.json()["choices"][0]["message"]
    expect(message.get("tool_calls"), message)
    state["message"] = message
    expect(fits(json.loads(message["tool_calls"][0]["function"]["arguments"])), message)


@check("requests.answer", "answer", "an answer to the result")
def _():
    if "message" not in state:
        raise Skip("no call")
    message = state["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": RESULT}
    reply = post(messages=[USER, message, result], tools=[TOOL], tool_choice="none")
    expect(reply.ok and isinstance(reply.json()["choices"][0]["message"]["content"], str), reply.text)
