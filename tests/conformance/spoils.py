"""What is done to answers: functions that make a fault of ``faults`` of what one piece of an answer becomes.

Used by the tables of spoiled servers and of other dialects.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from ds4ref.conformance.checks import groups
from ds4ref.conformance.talk import Talk

from .faults import both, choices, document, each, events

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
NAMES = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}


def stopped(url, name):
    """The required checks of one API that fail, and what came instead."""
    group = next(group for group in groups() if group.name == name)
    with closing(Talk(url, tokens=160, timeout=120)) as talk:
        row = group.client(talk)
    return {check.name: check.got for check in row.failed}


def cases(table):
    """The rows of a table of (what it is, path, fault), as cases of a test."""
    return [pytest.param(path, fault, id=f"{NAMES[path]}: {name}") for name, path, fault in table]


def reason(old, new):
    """Another finish reason."""

    def spoil(one):
        if one.get("finish_reason") == old:
            one["finish_reason"] = new

    return choices(spoil)


def delta_of(spoil):
    """Spoil the deltas of a chat stream."""
    return each(choices(lambda one: spoil(one.get("delta") or {})))


def message_of(spoil):
    """Spoil the message of a chat completion."""
    return document(choices(lambda one: spoil(one.get("message") or {})))


def put(**members):
    return lambda found: found.update(members)


def usage(**members):
    """Other counts, wherever there are some; the total fits."""

    def spoil(found):
        for of in (found, found.get("response") or {}, found.get("message") or {}):
            used = of.get("usage")
            if used:
                used.update({name: n for name, n in members.items() if name in used})
                if "total_tokens" in used:
                    used["total_tokens"] = sum(used.get(n, 0) for n in (
                        "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"))  # fmt: skip

    return both(spoil, spoil)


def uncached(found):
    """Tokens that were cached are not counted."""
    for of in (found, found.get("response") or {}):
        used = of.get("usage")
        if used:
            for name in ("prompt_tokens", "input_tokens"):
                if name in used:
                    cached = used[f"{name}_details"]["cached_tokens"]
                    used[name] -= cached
                    used["total_tokens"] -= cached


def scores(spoil):
    """Spoil the log probabilities of choices."""

    def change(one):
        if one.get("logprobs"):
            spoil(one)

    return choices(change)


def positive(one):
    for entry in one["logprobs"].get("content") or ():
        entry["logprob"] = -entry["logprob"]
    if "token_logprobs" in one["logprobs"]:
        one["logprobs"]["token_logprobs"] = [v and -v for v in one["logprobs"]["token_logprobs"]]


def at_the_first(member, text):
    """Text before the first piece of the answer."""
    done = []

    def spoil(delta):
        if delta.get(member) and not done:
            done.append(1)
            delta[member] = text + delta[member]

    def fault(asked, *reply):
        done.clear()
        return delta_of(spoil)(asked, *reply)

    return fault


def numbered(spoil):
    """Spoil events by their number."""
    return events(
        lambda found: [
            (name, data if isinstance(data, str) else spoil(n, data)) for n, (name, data) in enumerate(found)
        ]
    )


def other_id(n, data):
    if isinstance(data.get("response"), dict):
        data["response"]["id"] = f"resp_{n}"
    return data


def other_item(n, data):
    if "item_id" in data:
        data["item_id"] = f"item_{n}"
    return data


def cumulative(found):
    """Each piece repeats what came before."""
    text, out = "", []
    for name, data in found:
        for one in () if isinstance(data, str) else data.get("choices", ()):
            piece = (one.get("delta") or {}).get("content")
            if piece:
                text += piece
                one["delta"]["content"] = text
        out.append((name, data))
    return out


def once(pattern):
    """The second piece of text is lost."""

    def spoil(found):
        at = [n for n, (_, data) in enumerate(found) if pattern(data)]
        return [pair for n, pair in enumerate(found) if n != (at[1] if len(at) > 2 else None)]

    return events(spoil)


def is_content(data):
    return not isinstance(data, str) and any((one.get("delta") or {}).get("content") for one in data.get("choices", ()))


def repeats(found):
    """Every piece of a call has its name and id."""
    known = {}
    for _, data in found:
        for one in () if isinstance(data, str) else data.get("choices", ()):
            for piece in (one.get("delta") or {}).get("tool_calls") or ():
                known = known or {"id": piece["id"], "name": piece["function"]["name"]}
                piece["id"], piece["function"]["name"] = known["id"], known["name"]
    return found


def mangled(found):
    """Characters beyond ASCII are lost."""
    text = json.dumps(found, ensure_ascii=False)
    found.clear()
    found.update(json.loads("".join(c if ord(c) < 128 else "?" for c in text)))


def of_type(kind, spoil):
    """Spoil the events of a type."""
    return each(lambda event: spoil(event) if event.get("type") == kind else None)


def drop(kind):
    return each(lambda event: event.get("type") != kind)


def has_tools(asked):
    return bool(asked.get("tools"))


def late_refusal(asked, status, kind, data):
    """What is refused is told inside a stream."""
    if status < 400 or not asked.get("stream"):
        return status, kind, data
    return 200, "text/event-stream", b"data: " + data.strip() + b"\n\ndata: [DONE]\n\n"


def usage_zero(found):
    used = found.get("usage")
    if used:
        used.update(prompt_tokens=0, completion_tokens=0, total_tokens=0)
