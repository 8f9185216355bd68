"""Servers spoiled in ways that were written when the checks were done: 36 of these 38 were named at first."""

from __future__ import annotations

import json

import pytest

from .faults import both, choices, document, each, events, faulty, where
from .spoils import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NAMES,
    RESPONSES,
    cases,
    of_type,
    put,
    reason,
    scores,
    stopped,
)


def doubled(one):
    """Arguments that are the JSON of their JSON."""
    for call in (one.get("message") or {}).get("tool_calls") or ():
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])


def later_index(one):
    for piece in (one.get("delta") or {}).get("tool_calls") or ():
        piece["index"] += 1


def prefixed(one):
    for call in [
        *((one.get("message") or {}).get("tool_calls") or ()),
        *((one.get("delta") or {}).get("tool_calls") or ()),
    ]:
        if (call.get("function") or {}).get("name"):
            call["function"]["name"] = "functions." + call["function"]["name"]


def untrimmed(one):
    delta = one.get("delta") or {}
    if delta.get("content"):
        delta["content"] = delta["content"].strip()


def no_tool_results(asked, *reply):
    """Results of tools are refused."""
    told = any(
        isinstance(m, dict) and m.get("role") == "tool"
        for m in asked.get("messages", [])
        if isinstance(asked.get("messages"), list)
    )
    return (400, "application/json", b'{"error":{"message":"unknown role: tool"}}') if told else reply


def accepted(asked, status, kind, data):
    """Errors with the status of answers."""
    return (200 if status >= 400 else status), kind, data


def shifted(one):
    """Each token has the score of the one before it."""
    scores = one["logprobs"].get("content")
    if scores:
        values = [entry["logprob"] for entry in scores]
        for entry, value in zip(scores, [values[-1], *values[:-1]], strict=True):
            entry["logprob"] = value


def of_stop(asked, status, kind, data):
    """The stop string stays at the end of what it ends."""
    if status != 200 or not asked.get("stop") or "json" not in kind:
        return status, kind, data
    found = json.loads(data)
    for one in found["choices"]:
        one["message"]["content"] += asked["stop"][0]
    return status, kind, json.dumps(found).encode()


def items_of(spoil):
    return each(
        lambda e: [spoil(i) for i in (e.get("item") or {}, *((e.get("response") or {}).get("output") or ()))] and None
    )


def bare(found):
    """Types only in the names of events."""
    return [(data.pop("type"), data) for _, data in found]


def merged_thinking(found):
    """Thinking as text in front of the text."""
    text = "".join(b["thinking"] for b in found.get("content", ()) if b["type"] == "thinking")
    found["content"] = [b for b in found.get("content", ()) if b["type"] != "thinking"]
    for block in found["content"]:
        if block["type"] == "text" and text:
            block["text"] = text + block["text"]


def number(n, data):
    data["index"] = 0 if "index" in data else None
    return data


SECOND = [
    ("indices of calls from 1", CHAT, each(choices(later_index))),
    ("arguments encoded twice", CHAT, document(choices(doubled))),
    ("spaces between pieces are lost", CHAT, each(choices(untrimmed))),
    ("names with a prefix", CHAT, both(choices(prefixed), choices(prefixed))),
    ("results of tools are refused", CHAT, no_tool_results),
    ("errors with status 200", CHAT, accepted),
    ("log probabilities of the token before", CHAT, document(scores(shifted))),
    (
        "no alternatives",
        CHAT,
        both(
            scores(lambda one: [e.update(top_logprobs=[]) for e in one["logprobs"]["content"]]),
            scores(lambda one: [e.update(top_logprobs=[]) for e in one["logprobs"]["content"]]),
        ),
    ),
    ("the stop string stays", CHAT, of_stop),
    (
        "the finish reason of old functions",
        CHAT,
        both(reason("tool_calls", "function_call"), reason("tool_calls", "function_call")),
    ),
    ("no finish reason in documents", CHAT, document(choices(put(finish_reason=None)))),
    (
        "a total of its own in streams",
        CHAT,
        each(lambda f: f["usage"].update(total_tokens=7) if f.get("usage") else None),
    ),
    (
        "events that are lists",
        CHAT,
        events(lambda found: [(n, d if isinstance(d, str) else json.dumps([d])) for n, d in found]),
    ),
    (
        "one line end between events",
        CHAT,
        lambda asked, s, k, d: (s, k, d.replace(b"\n\n", b"\n") if "event-stream" in k else d),
    ),
    (
        "calls without arguments in streams",
        CHAT,
        each(
            choices(
                lambda one: [
                    p["function"].pop("arguments", None) for p in (one.get("delta") or {}).get("tool_calls") or ()
                ]
            )
        ),
    ),
    ("role user", CHAT, document(choices(lambda one: one["message"].update(role="user")))),
    (
        "the prompt before the answer",
        COMPLETIONS,
        where(
            lambda asked: not asked.get("echo"),
            document(choices(lambda one: one.update(text="Once upon a time" + one["text"]))),
        ),
    ),
    ("one index for all prompts", COMPLETIONS, document(choices(put(index=0)))),
    ("a score short", COMPLETIONS, document(scores(lambda one: one["logprobs"]["token_logprobs"].pop()))),
    (
        "alternatives without what was chosen",
        COMPLETIONS,
        document(
            scores(
                lambda one: one["logprobs"].update(
                    top_logprobs=[t and {k: v - 3 for k, v in t.items()} for t in one["logprobs"]["top_logprobs"]]
                )
            )
        ),
    ),
    (
        "items that are done without content",
        RESPONSES,
        of_type(
            "response.output_item.done",
            lambda e: e["item"].update(content=[]) if e["item"]["type"] == "message" else None,
        ),
    ),
    (
        "an end without output",
        RESPONSES,
        each(
            lambda e: (
                e["response"].update(output=[]) if e["type"] in ("response.completed", "response.incomplete") else None
            )
        ),
    ),
    (
        "an end in progress",
        RESPONSES,
        each(lambda e: e["response"].update(status="in_progress") if "response" in e else None),
    ),
    (
        "calls of another type",
        RESPONSES,
        items_of(lambda i: i.update(type="tool_call") if i.get("type") == "function_call" else None),
    ),
    (
        "a cut without its reason",
        RESPONSES,
        both(
            lambda d: d.pop("incomplete_details", None),
            lambda e: (e.get("response") or {}).pop("incomplete_details", None) and None,
        ),
    ),
    ("pieces as objects", RESPONSES, each(lambda e: e.update(delta={"text": e["delta"]}) if "delta" in e else None)),
    ("types in names alone", RESPONSES, events(bare)),
    ("content_index from 1", RESPONSES, each(lambda e: e.update(content_index=1) if "content_index" in e else None)),
    (
        "call ids of their own when done",
        RESPONSES,
        of_type(
            "response.output_item.done",
            lambda e: e["item"].update(call_id="call_x") if "call_id" in e["item"] else None,
        ),
    ),
    ("block 0 for all", MESSAGES, events(lambda found: [(n, number(0, d)) for n, d in found])),
    ("no tokens at the end", MESSAGES, of_type("message_delta", lambda e: e["usage"].update(output_tokens=0))),
    (
        "pieces of input as objects",
        MESSAGES,
        of_type(
            "content_block_delta",
            lambda e: e["delta"].update(partial_json={}) if "partial_json" in e["delta"] else None,
        ),
    ),
    (
        "no names of calls in streams",
        MESSAGES,
        of_type("content_block_start", lambda e: e["content_block"].pop("name", None) and None),
    ),
    ("thinking in the text", MESSAGES, document(merged_thinking)),
    (
        "names of events one late",
        MESSAGES,
        events(lambda found: [(a, d) for (a, _), (_, d) in zip([found[-1], *found[:-1]], found, strict=True)]),
    ),
    (
        "text under another name",
        MESSAGES,
        of_type(
            "content_block_delta",
            lambda e: e["delta"].update(content=e["delta"].pop("text")) if "text" in e["delta"] else None,
        ),
    ),
    (
        "input as text in streams",
        MESSAGES,
        of_type(
            "content_block_start",
            lambda e: e["content_block"].update(input="{}") if "input" in e["content_block"] else None,
        ),
    ),
    (
        "ids of calls that are empty",
        MESSAGES,
        both(
            lambda d: [b.update(id="") for b in d.get("content", ()) if "id" in b],
            lambda e: e["content_block"].update(id="") if "id" in e.get("content_block", {}) else None,
        ),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(SECOND))
def test_a_server_spoiled_in_another_way_is_named(good, path, fault):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = stopped(spoiled, NAMES[path])
    assert found and all(found.values()), found
