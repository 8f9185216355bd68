"""Other dialects, on which clients do work: they pass, and what is not offered is said."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext

import pytest

from ds4ref.conformance.checks import groups, tried
from ds4ref.conformance.checks.said import Said, scored
from ds4ref.conformance.talk import Talk, Wrong

from .faults import always, both, calls, choices, each, events, faulty, stream, where
from .spoils import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NAMES,
    RESPONSES,
    cases,
    delta_of,
    of_type,
    put,
    stopped,
)


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


def call_of(spoil):
    """Spoil the arguments of calls, as a value; in a stream each call comes in one piece."""

    def change(call):
        value = json.loads(call["function"]["arguments"] or "{}")
        if value:
            spoil(value)
            call["function"]["arguments"] = json.dumps(value)

    def of_events(found):
        found = whole_calls(found)
        for _, data in found:
            for one in () if isinstance(data, str) else data.get("choices", ()):
                for piece in (one.get("delta") or {}).get("tool_calls") or ():
                    change(piece)
        return found

    of_documents, of_streams = calls(change), events(of_events)
    return lambda asked, *reply: of_streams(asked, *of_documents(asked, *reply))


def of_items(spoil):
    """Spoil the arguments of a response's calls, as a value, in documents and at the end of streams."""

    def change(item):
        if item.get("type") == "function_call" and item["arguments"]:
            value = json.loads(item["arguments"])
            spoil(value)
            item["arguments"] = json.dumps(value)

    def of_event(one):
        for item in (one.get("item") or {}, *((one.get("response") or {}).get("output") or ())):
            change(item)
        return not one["type"].startswith("response.function_call_arguments")

    return both(lambda found: [change(item) for item in found.get("output", ())], of_event)


def no_model_yet(event):
    """The model is named at the end alone."""
    if event["type"] in ("response.created", "response.in_progress"):
        event["response"]["model"] = None


def ends_the_turn(told):
    """A stop sequence ends the turn; which one is told, or is not."""

    def spoil(found):
        for of in (found, found.get("delta") or {}):
            if of.get("stop_reason") == "stop_sequence":
                of.update(stop_reason="end_turn", stop_sequence=of["stop_sequence"] if told else None)

    return both(spoil, spoil)


def cut(found):
    """What is called is told as cut."""
    for of in (found, found.get("delta") or {}):
        if of.get("stop_reason") == "tool_use":
            of["stop_reason"] = "max_tokens"


def shorter(found):
    """The score in the middle is missing, or the first of a piece."""
    for one in found.get("choices", ()):
        entries = (one.get("logprobs") or {}).get("content")
        if entries:
            del entries[len(entries) // 2]


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
    ("another city than the schema lists", CHAT, call_of(put(city="Bergen"))),
    ("no echo, no stop", COMPLETIONS, refuse("echo", "stop", "logprobs")),
    ("CR", RESPONSES, lines(b"\r")),
    ("the model at the end", RESPONSES, each(no_model_yet)),
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
    ("stop sequences end the turn, and are told", MESSAGES, ends_the_turn(told=True)),
    ("stop sequences end the turn", MESSAGES, ends_the_turn(told=False)),
    ("pings", MESSAGES, events(pings)),
    ("no counts of the cache", MESSAGES, both(no_cache_counts, no_cache_counts)),
    ("no forms", MESSAGES, where(lambda asked: "format" in asked.get("output_config", {}), refuse("model"))),
    ("no thinking, no stop sequences", MESSAGES, refuse("thinking", "stop_sequences")),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(HARMLESS))
def test_another_dialect_passes(good, path, fault):
    """Nothing of this stops a client: what is not offered is said, and is no failure."""
    url, known = good
    with faulty(url, path, fault, known) as other:
        assert stopped(other, NAMES[path]) == {}


AKIN = [
    ("another type than the schema has", CHAT, call_of(put(tomorrow="true"))),
    ("a member that the schema has not", CHAT, call_of(put(country="Norway"))),
    ("another city than a strict schema lists", RESPONSES, of_items(put(city="Bergen"))),
    ("another model at the end", RESPONSES, of_type("response.created", lambda e: e["response"].update(model="other"))),
    ("calls that are told as cut", MESSAGES, both(cut, cut)),
    ("a score too few", CHAT, both(shorter, shorter)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(AKIN))
def test_what_is_akin_to_them_and_stops_clients_is_named(good, path, fault):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = stopped(spoiled, NAMES[path])
    assert found and all(found.values()), found


@pytest.mark.thorough
def test_a_tokenizer_of_its_own_is_none_for_lm_eval(good):
    """llama.cpp and vLLM have a /tokenize with other members; lm-evaluation-harness asks /tokenizer_info first."""
    url, known = good
    with (
        faulty(url, "/tokenizer_info", always(404), known) as other,
        closing(Talk(other, tokens=160, timeout=120)) as talk,
    ):
        checks = [tried(spec, talk) for group in groups() for spec in group.specs
                  if spec.name in ("server.tokenizer", "completions.score_ids")]  # fmt: skip
        assert [(one.state, one.got) for one in checks] == [("skip", "not offered: /tokenizer_info")] * 2
        assert [
            tried(spec, talk, must=True).state for spec in groups()[0].specs if spec.name == "server.tokenizer"
        ] == ["fail"]


WORDS = (("Hello", -0.5), (" you", -1.0))


@pytest.mark.parametrize(
    ("finish", "scores", "tokens", "wrong"),
    [
        ("stop", WORDS, 2, ""),
        ("stop", (*WORDS, ("<|end|>", -0.1)), 3, ""),
        ("stop", WORDS, 3, ""),  # the end is counted
        ("stop", WORDS, 4, "2 log probabilities for 4 tokens"),
        ("stop", WORDS, 1, "2 log probabilities for 1 tokens"),
        ("length", WORDS, 3, "2 log probabilities for 3 tokens"),
        ("stop", WORDS[:1], 2, "1 log probabilities for 2 tokens"),
        ("stop", WORDS[1:], 2, "1 log probabilities for 2 tokens"),
    ],
)
def test_the_token_that_ends_an_answer_need_not_be_scored(finish, scores, tokens, wrong):
    said = Said("Hello you", finish=finish, tokens=tokens, scores=scores)
    with pytest.raises(Wrong, match=wrong) if wrong else nullcontext():
        scored(said)
