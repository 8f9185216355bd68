"""Servers on which clients stop working, each in its own way: every one is named, and the command fails.

Nobody looks here at which check it is that notices (that is ``test_faults``), but that a required one does, and says
what came instead.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from ds4ref.conformance.checks import groups, tried
from ds4ref.conformance.talk import Talk

from .faults import both, choices, document, each, events, faulty
from .spoils import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NAMES,
    RESPONSES,
    at_the_first,
    cases,
    cumulative,
    delta_of,
    drop,
    is_content,
    late_refusal,
    mangled,
    message_of,
    numbered,
    of_type,
    once,
    other_id,
    other_item,
    positive,
    put,
    reason,
    repeats,
    scores,
    stopped,
    uncached,
    usage,
    usage_zero,
)

FIRST = [
    # --- chat completions
    ("streams with a call end in stop", CHAT, each(reason("tool_calls", "stop"))),
    ("streams that are cut end in stop", CHAT, each(reason("length", "stop"))),
    ("documents with a call end in stop", CHAT, document(reason("tool_calls", "stop"))),
    ("one token in every prompt", CHAT, usage(prompt_tokens=1)),
    ("one token in every answer", CHAT, usage(completion_tokens=1)),
    ("no tokens in streams", CHAT, each(lambda found: usage_zero(found))),
    ("cached tokens are not counted", CHAT, both(uncached, uncached)),
    ("streamed logprobs are null", CHAT, each(scores(put(logprobs=None)))),
    ("log probabilities above 0", CHAT, both(scores(positive), scores(positive))),
    ("log probabilities above 0 in streams", CHAT, each(scores(positive))),
    (
        "<think> in the content",
        CHAT,
        message_of(lambda m: m.update(content="<think>Hm.</think>" + (m["content"] or ""))),
    ),
    ("<think> in streamed content", CHAT, at_the_first("content", "<think>\n")),
    (
        "end-of-turn tokens in the content",
        CHAT,
        message_of(lambda m: m.update(content=(m["content"] or "") + "<|im_end|>")),
    ),
    ("pieces that repeat what came before", CHAT, events(cumulative)),
    ("a lost piece", CHAT, once(is_content)),
    ("every piece of a call has id and name", CHAT, events(repeats)),
    (
        "one id for all calls",
        CHAT,
        both(
            choices(
                lambda one: [call.update(id="call_0") for call in (one.get("message") or {}).get("tool_calls") or ()]
            ),
            choices(
                lambda one: [
                    call.update(id="call_0")
                    for call in (one.get("delta") or {}).get("tool_calls") or ()
                    if call.get("id")
                ]
            ),
        ),
    ),
    (
        "content of parts",
        CHAT,
        delta_of(lambda d: d.update(content=[{"type": "text", "text": d["content"]}]) if d.get("content") else None),
    ),
    (
        "calls as objects",
        CHAT,
        document(
            choices(
                lambda one: [
                    call["function"].update(arguments=json.loads(call["function"]["arguments"]))
                    for call in one["message"].get("tool_calls") or ()
                ]
            )
        ),
    ),
    ("no choice index", CHAT, document(choices(lambda one: one.pop("index", None)))),
    ("created as text", CHAT, both(put(created="now"), put(created="now"))),
    ("characters are lost", CHAT, each(mangled)),
    ("refusals in streams", CHAT, late_refusal),
    (
        "reasoning inside the stream's content",
        CHAT,
        delta_of(lambda d: d.update(content=d.pop("reasoning_content")) if d.get("reasoning_content") else None),
    ),
    # --- completions
    ("streams end in stop", COMPLETIONS, each(reason("length", "stop"))),
    ("one token in every prompt", COMPLETIONS, usage(prompt_tokens=1)),
    ("log probabilities above 0", COMPLETIONS, both(scores(positive), scores(positive))),
    ("chat chunks", COMPLETIONS, each(choices(lambda one: one.update(delta={"content": one.pop("text")})))),
    # --- responses
    ("ids that change by event", RESPONSES, numbered(other_id)),
    ("item ids that change by event", RESPONSES, numbered(other_item)),
    ("output_index is always 0", RESPONSES, each(lambda e: e.update(output_index=0) if "output_index" in e else None)),
    ("no output_index", RESPONSES, each(lambda e: e.pop("output_index", None) and None)),
    ("no content_part.added", RESPONSES, drop("response.content_part.added")),
    ("no output_item.added", RESPONSES, drop("response.output_item.added")),
    (
        "cut streams are completed",
        RESPONSES,
        of_type(
            "response.incomplete",
            lambda e: (
                (e.update(type="response.completed"), e["response"].update(status="completed", incomplete_details=None))
                and None
            ),
        ),
    ),
    ("one token in every prompt", RESPONSES, usage(input_tokens=1)),
    (
        "arguments.done without arguments",
        RESPONSES,
        of_type("response.function_call_arguments.done", put(arguments="")),
    ),
    (
        "call_id in documents alone",
        RESPONSES,
        each(
            lambda e: (
                [
                    i.pop("call_id", None)
                    for i in (e.get("item") or {}, *((e.get("response") or {}).get("output") or ()))
                ]
                and None
            )
        ),
    ),
    (
        "calls under their long name",
        RESPONSES,
        both(
            lambda d: [
                i.update(name=i.pop("namespace") + i["name"]) for i in d.get("output", ()) if i.get("namespace")
            ],
            lambda e: (
                [
                    i.update(name=i.pop("namespace") + i["name"])
                    for i in (e.get("item") or {}, *((e.get("response") or {}).get("output") or ()))
                    if i.get("namespace")
                ]
                and None
            ),
        ),
    ),
    (
        "<think> in the text",
        RESPONSES,
        document(
            lambda d: [
                p.update(text="<think>" + p["text"])
                for i in d.get("output", ())
                if i["type"] == "message"
                for p in i["content"]
            ]
        ),
    ),
    # --- messages
    (
        "streams with a call end the turn",
        MESSAGES,
        of_type(
            "message_delta",
            lambda e: e["delta"].update(stop_reason="end_turn") if e["delta"]["stop_reason"] == "tool_use" else None,
        ),
    ),
    (
        "streams that are cut end the turn",
        MESSAGES,
        of_type(
            "message_delta",
            lambda e: e["delta"].update(stop_reason="end_turn") if e["delta"]["stop_reason"] == "max_tokens" else None,
        ),
    ),
    (
        "one token in every prompt",
        MESSAGES,
        usage(input_tokens=1, cache_read_input_tokens=0, cache_creation_input_tokens=0),
    ),
    (
        "pieces of input as text",
        MESSAGES,
        of_type(
            "content_block_delta",
            lambda e: (
                e["delta"].update(type="text_delta", text=e["delta"].pop("partial_json"))
                if "partial_json" in e["delta"]
                else None
            ),
        ),
    ),
    (
        "stop sequences told as a cut",
        MESSAGES,
        document(lambda d: d.update(stop_reason="max_tokens", stop_sequence=None) if d.get("stop_sequence") else None),
    ),
    (
        "thinking pieces as text",
        MESSAGES,
        of_type(
            "content_block_delta",
            lambda e: (
                e["delta"].update(type="text_delta", text=e["delta"].pop("thinking"))
                if "thinking" in e["delta"]
                else None
            ),
        ),
    ),
    ("messages without a model", MESSAGES, of_type("message_start", lambda e: e["message"].pop("model") and None)),
    (
        "calls without an id in streams",
        MESSAGES,
        of_type("content_block_start", lambda e: e["content_block"].pop("id", None) and None),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(FIRST))
def test_a_spoiled_server_is_named(good, path, fault):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = stopped(spoiled, NAMES[path])
    assert found and all(found.values()), found


# --- when it arrives


def kept_back(pieces, send):
    """All at once, at the end."""
    send(b"".join(pieces))


def kept_back_but_one(pieces, send):
    """The first event at once, all others at the end."""
    whole = iter(pieces)
    send(next(whole))
    send(b"".join(whole))


def passed_on(pieces, send):
    for piece in pieces:
        send(piece)


@pytest.mark.thorough
@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize(("holds", "wrong"), [(kept_back, True), (kept_back_but_one, True), (passed_on, False)])
def test_streams_that_are_kept_back_are_named(good, path, holds, wrong):
    """Every answer is complete and right; only those who wait for it notice."""
    url, known = good
    group = next(group for group in groups() if group.name == NAMES[path])
    (spec,) = [spec for spec in group.specs if spec.name.endswith(".stream_written")]
    with (
        faulty(url, path, known=known, holds=holds) as spoiled,
        closing(Talk(spoiled, tokens=160, timeout=120)) as talk,
    ):
        found = tried(spec, talk)
    assert (found.state == "fail") == wrong and found.state != "skip", found
    assert not wrong or "pieces, a quarter of them after" in found.got
