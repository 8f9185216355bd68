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
from ds4ref.sampling import Sampler
from ds4ref.server import worker
from ds4ref.server.worker import Worker
from tests.marking import sampled
from tests.server.conftest import running

from .faults import FORMED, both, choices, document, each, events, faulty, stream, where

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


# --- more of them, written when the checks were done: 36 of these 38 were named at first


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


@pytest.mark.parametrize(("path", "fault"), sampled(cases(SECOND), 7))
def test_a_server_spoiled_in_another_way_is_named(good, path, fault):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = stopped(spoiled, NAMES[path])
    assert found and all(found.values()), found


# --- other dialects, on which clients do work


def lines(end):
    """Other line ends."""
    return lambda asked, status, kind, data: (
        status, kind, data.replace(b"\n", end) if "event-stream" in kind else data
    )  # fmt: skip


def commented(blocks):
    return [text for block in blocks for text in (": keep-alive", block)]


def whole_calls(found):
    """Each call in one piece."""
    first, out = None, []
    for name, data in found:
        pieces = [] if isinstance(data, str) else [
            piece for one in data.get("choices", ()) for piece in (one.get("delta") or {}).get("tool_calls") or ()
        ]  # fmt: skip
        if pieces and first is None:
            first = pieces[0]
        elif pieces:
            first["function"]["arguments"] += pieces[0]["function"]["arguments"]
            continue
        out.append((name, data))
    return out


def letters(found):
    """Each character in a piece of its own."""
    out = []
    for name, data in found:
        text = "" if isinstance(data, str) else "".join(
            (one.get("delta") or {}).get("content") or "" for one in data.get("choices", ())
        )  # fmt: skip
        if len(text) < 2 or data["choices"][0].get("logprobs"):
            out.append((name, data))
            continue
        for letter in text:
            piece = json.loads(json.dumps(data))
            piece["choices"][0]["delta"]["content"] = letter
            out.append((name, piece))
    return out


def joined_end(found):
    """The finish reason comes with the last text."""
    out = []
    for name, data in found:
        one = {} if isinstance(data, str) else (data.get("choices") or [{}])[0]
        before = out[-1][1] if out and not isinstance(out[-1][1], str) else {}
        text = ((before.get("choices") or [{}])[0].get("delta") or {}).get("content")
        if one.get("finish_reason") and text and not one["delta"]:
            before["choices"][0]["finish_reason"] = one["finish_reason"]
            continue
        out.append((name, data))
    return out


def usage_with_a_choice(found):
    for _, data in found:
        if not isinstance(data, str) and data.get("usage") and not data["choices"]:
            data["choices"] = [{"index": 0, "delta": {}, "finish_reason": None}]
    return found


def in_progress(found):
    first = found[0][1]
    return [found[0], ("response.in_progress", {**first, "type": "response.in_progress"}), *found[1:], ("", "[DONE]")]


def pings(found):
    return [pair for one in found for pair in (one, ("ping", {"type": "ping"}))][:-1]


def no_cache_counts(found):
    for of in (found, found.get("message") or {}):
        used = of.get("usage")
        if used and "input_tokens" in used:
            used["input_tokens"] += (used.pop("cache_read_input_tokens") or 0) + (
                used.pop("cache_creation_input_tokens") or 0
            )


def refuse(*fields):
    """A server that says that it does not offer these fields."""
    body = b'{"error":{"message":"not supported","type":"invalid_request_error"}}'
    return lambda asked, *reply: (400, "application/json", body) if set(fields) & set(asked) else reply


HARMLESS = [
    ("CRLF", CHAT, lines(b"\r\n")),
    ("comments", CHAT, stream(commented)),
    ("usage null in every chunk", CHAT, each(lambda found: found.setdefault("usage", None))),
    ("a role in every piece", CHAT, delta_of(lambda d: d.setdefault("role", "assistant") and None)),
    ("null content in pieces", CHAT, delta_of(lambda d: d.setdefault("content", None))),
    (
        "other ids, and a fingerprint",
        CHAT,
        both(put(id="a", system_fingerprint="b", object="chat.completion"), put(id="6f1c", system_fingerprint=None)),
    ),
    (
        "null where nothing is",
        CHAT,
        both(
            choices(
                lambda one: one.update(
                    logprobs=one.get("logprobs"),
                    message={"refusal": None, "annotations": [], "tool_calls": None, **one["message"]},
                )
            ),
            choices(lambda one: one.setdefault("logprobs", None)),
        ),
    ),
    ("calls in one piece", CHAT, events(whole_calls)),
    ("letters", CHAT, events(letters)),
    ("the end with the last text", CHAT, events(joined_end)),
    ("usage with an empty choice", CHAT, events(usage_with_a_choice)),
    (
        "reasoning under its other name",
        CHAT,
        both(
            choices(lambda one: one["message"].update(reasoning=one["message"].pop("reasoning_content", None))),
            choices(
                lambda one: (
                    one["delta"].update(reasoning=one["delta"].pop("reasoning_content"))
                    if "reasoning_content" in one["delta"]
                    else None
                )
            ),
        ),
    ),
    ("no logprobs, schemas, effort, stop", CHAT, refuse("logprobs", "response_format", "reasoning_effort", "stop")),
    (
        "no forced calls",
        CHAT,
        where(lambda asked: asked.get("tool_choice") not in ("none", None), refuse("tool_choice")),
    ),
    ("no echo, no stop", COMPLETIONS, refuse("echo", "stop", "logprobs")),
    ("CR", RESPONSES, lines(b"\r")),
    ("more events", RESPONSES, events(in_progress)),
    ("named events", RESPONSES, events(lambda found: [(data["type"], data) for _, data in found])),
    (
        "no schemas, custom tools or namespaces",
        RESPONSES,
        where(
            lambda asked: (
                "format" in asked.get("text", {}) or any(t["type"] != "function" for t in asked.get("tools") or ())
            ),
            refuse("model"),
        ),
    ),
    ("pings", MESSAGES, events(pings)),
    ("no counts of the cache", MESSAGES, both(no_cache_counts, no_cache_counts)),
    ("no forms", MESSAGES, where(lambda asked: "format" in asked.get("output_config", {}), refuse("model"))),
    ("no thinking, no stop sequences", MESSAGES, refuse("thinking", "stop_sequences")),
]


@pytest.mark.parametrize(("path", "fault"), sampled(cases(HARMLESS), 5))
def test_another_dialect_passes(good, path, fault):
    """Nothing of this stops a client: what is not offered is said, and is no failure."""
    url, known = good
    with faulty(url, path, fault, known) as other:
        assert stopped(other, NAMES[path]) == {}
