"""Servers on which clients stop working, each in its own way: every one is named, and the command fails.

Nobody looks here at which check it is that notices (that is ``test_faults``), but that a required one does, and says what
came instead.
"""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from ds4ref.cli import server
from ds4ref.conformance.checks import groups
from ds4ref.conformance.talk import Talk
from ds4ref.sampling import Sampler
from ds4ref.server import worker
from ds4ref.server.worker import Worker
from tests.marking import sampled
from tests.server.conftest import running

from .faults import FORMED, both, choices, document, each, errors, events, faulty, stream, where

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
NAMES = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}


@pytest.fixture(scope="module")
def good(nano_engine):
    """Our server on the embedded model, and what it said so far."""
    drawn = {"seed": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "sampler_of", lambda _, *args, **given: Sampler(*args, **{**given, **drawn}))
        with running(Worker(nano_engine, ctx=3000, constrain=FORMED)) as server:
            yield server.url, {}


def stopped(url, name):
    """The required checks of one API that fail, and what came instead."""
    group = next(group for group in groups() if group.name == name)
    with closing(Talk(url, tokens=160, timeout=120)) as talk:
        row = group.client(talk)
    return {check.name: check.got for check in row.failed}


# --- what is done to answers


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
    return events(lambda found: [(name, data if isinstance(data, str) else spoil(n, data)) for n, (name, data) in enumerate(found)])


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


def without_stop(asked, status, kind, data):
    return status, kind, data


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
    ("<think> in the content", CHAT, message_of(lambda m: m.update(content="<think>Hm.</think>" + (m["content"] or "")))),
    ("<think> in streamed content", CHAT, at_the_first("content", "<think>\n")),
    ("end-of-turn tokens in the content", CHAT, message_of(lambda m: m.update(content=(m["content"] or "") + "<|im_end|>"))),
    ("pieces that repeat what came before", CHAT, events(cumulative)),
    ("a lost piece", CHAT, once(is_content)),
    ("every piece of a call has id and name", CHAT, events(repeats)),
    ("one id for all calls", CHAT, both(
        choices(lambda one: [call.update(id="call_0") for call in (one.get("message") or {}).get("tool_calls") or ()]),
        choices(lambda one: [call.update(id="call_0") for call in (one.get("delta") or {}).get("tool_calls") or () if call.get("id")]))),
    ("content of parts", CHAT, delta_of(lambda d: d.update(content=[{"type": "text", "text": d["content"]}]) if d.get("content") else None)),
    ("calls as objects", CHAT, document(choices(lambda one: [call["function"].update(arguments=json.loads(call["function"]["arguments"]))
                                                            for call in one["message"].get("tool_calls") or ()]))),
    ("no choice index", CHAT, document(choices(lambda one: one.pop("index", None)))),
    ("created as text", CHAT, both(put(created="now"), put(created="now"))),
    ("characters are lost", CHAT, each(mangled)),
    ("refusals in streams", CHAT, late_refusal),
    ("reasoning inside the stream's content", CHAT, delta_of(
        lambda d: d.update(content=d.pop("reasoning_content")) if d.get("reasoning_content") else None)),
    # --- completions
    ("streams end in stop", COMPLETIONS, each(reason("length", "stop"))),
    ("one token in every prompt", COMPLETIONS, usage(prompt_tokens=1)),
    ("log probabilities above 0", COMPLETIONS, both(scores(positive), scores(positive))),
    ("streamed logprobs are null", COMPLETIONS, each(scores(put(logprobs=None)))),
    ("chat chunks", COMPLETIONS, each(choices(lambda one: one.update(delta={"content": one.pop("text")})))),
    # --- responses
    ("ids that change by event", RESPONSES, numbered(other_id)),
    ("item ids that change by event", RESPONSES, numbered(other_item)),
    ("output_index is always 0", RESPONSES, each(lambda e: e.update(output_index=0) if "output_index" in e else None)),
    ("no output_index", RESPONSES, each(lambda e: e.pop("output_index", None) and None)),
    ("no content_part.added", RESPONSES, drop("response.content_part.added")),
    ("no output_item.added", RESPONSES, drop("response.output_item.added")),
    ("cut streams are completed", RESPONSES, of_type(
        "response.incomplete", lambda e: (e.update(type="response.completed"), e["response"].update(status="completed", incomplete_details=None)) and None)),
    ("one token in every prompt", RESPONSES, usage(input_tokens=1)),
    ("arguments.done without arguments", RESPONSES, of_type("response.function_call_arguments.done", put(arguments=""))),
    ("call_id in documents alone", RESPONSES, each(lambda e: [i.pop("call_id", None) for i in (e.get("item") or {}, *((e.get("response") or {}).get("output") or ()))] and None)),
    ("calls under their long name", RESPONSES, both(
        lambda d: [i.update(name=i.pop("namespace") + i["name"]) for i in d.get("output", ()) if i.get("namespace")],
        lambda e: [i.update(name=i.pop("namespace") + i["name"]) for i in (e.get("item") or {}, *((e.get("response") or {}).get("output") or ())) if i.get("namespace")] and None)),
    ("<think> in the text", RESPONSES, document(lambda d: [p.update(text="<think>" + p["text"]) for i in d.get("output", ()) if i["type"] == "message" for p in i["content"]])),
    # --- messages
    ("streams with a call end the turn", MESSAGES, of_type("message_delta", lambda e: e["delta"].update(stop_reason="end_turn") if e["delta"]["stop_reason"] == "tool_use" else None)),
    ("streams that are cut end the turn", MESSAGES, of_type("message_delta", lambda e: e["delta"].update(stop_reason="end_turn") if e["delta"]["stop_reason"] == "max_tokens" else None)),
    ("one token in every prompt", MESSAGES, usage(input_tokens=1, cache_read_input_tokens=0, cache_creation_input_tokens=0)),
    ("pieces of input as text", MESSAGES, of_type("content_block_delta", lambda e: e["delta"].update(type="text_delta", text=e["delta"].pop("partial_json")) if "partial_json" in e["delta"] else None)),
    ("a stop sequence that is not told", MESSAGES, document(lambda d: d.update(stop_reason="end_turn", stop_sequence=None) if d.get("stop_sequence") else None)),
    ("signatures are not streamed", MESSAGES, of_type("content_block_delta", lambda e: e["delta"]["type"] != "signature_delta")),
    ("messages without a model", MESSAGES, of_type("message_start", lambda e: e["message"].pop("model") and None)),
    ("calls without an id in streams", MESSAGES, of_type("content_block_start", lambda e: e["content_block"].pop("id", None) and None)),
]  # fmt: skip


def usage_zero(found):
    used = found.get("usage")
    if used:
        used.update(prompt_tokens=0, completion_tokens=0, total_tokens=0)


def cases(table):
    return [pytest.param(path, fault, id=f"{NAMES[path]}: {name}") for name, path, fault in table]


@pytest.mark.parametrize(("path", "fault"), sampled(cases(FIRST), 7))
def test_a_spoiled_server_is_named(good, path, fault):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = stopped(spoiled, NAMES[path])
    assert found and all(found.values()), found
