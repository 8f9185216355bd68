"""Every fault that is planted is found, and named; a right server and other dialects have none."""

from __future__ import annotations

import json
import re
from contextlib import closing, nullcontext

import pytest

from ds4ref.cli import server
from ds4ref.conformance.checks import completions, groups, shared, tried
from ds4ref.conformance.checks.said import Said, scored
from ds4ref.conformance.talk import Event, Talk, Wrong, _events

from .faults import (
    always,
    both,
    choices,
    document,
    each,
    errors,
    events,
    faulty,
    of_type,
    replaced,
    stream,
    where,
    without,
)

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
NAMES = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}


def failed(url, name, *, required=False):
    """The checks of one API that fail there, without the API's name; what was got instead."""
    group = next(group for group in groups() if group.name == name)
    with closing(Talk(url, tokens=160, timeout=120)) as talk:
        row = group.client(talk, must=not required)
    found = row.failed if required else [check for check in row.checks if check.state == "fail"]
    assert all(check.got for check in found), "each says what came instead"
    return {check.name.partition(".")[2]: check.got for check in found}


# --- ways to spoil what one piece of an answer says


def put(**members):
    return lambda found: found.update(members)


def lie(name, old, new):
    """A member of choices with another value."""
    return choices(lambda one: one.update({name: new}) if one.get(name) == old else None)


def swapped(pattern):
    """The first event that matches comes before the one in front of it."""

    def spoil(blocks):
        at = next((i for i, block in enumerate(blocks) if re.search(pattern, block)), 0)
        return [*blocks[: at - 1], blocks[at], blocks[at - 1], *blocks[at + 1 :]] if at else blocks

    return stream(spoil)


def last(pattern, by):
    """Replace it in the last event that has it."""

    def spoil(blocks):
        at = max((i for i, block in enumerate(blocks) if re.search(pattern, block)), default=None)
        return blocks if at is None else [*blocks[:at], re.sub(pattern, by, blocks[at]), *blocks[at + 1 :]]

    return stream(spoil)


def kind_of(wrong):
    """Another content type for streams."""
    return lambda asked, status, kind, data: (status, wrong if "event-stream" in kind else kind, data)


def message_of(spoil):
    return document(choices(lambda one: spoil(one.get("message") or {})))


def delta_of(spoil):
    return each(choices(lambda one: spoil(one.get("delta") or {})))


def calls_of(spoil):
    """Spoil the calls of a chat completion, and the pieces of calls in its streams."""

    def change(one):
        for of in (one.get("message") or {}, one.get("delta") or {}):
            for call in of.get("tool_calls") or ():
                spoil(call)

    return both(choices(change), choices(change))


def arguments(spoil):
    """Spoil the arguments in the calls of documents, as a value."""

    def change(message):
        for call in message.get("tool_calls") or ():
            value = json.loads(call["function"]["arguments"])
            spoil(value)
            call["function"]["arguments"] = json.dumps(value)

    return where(lambda asked: not asked.get("stream"), message_of(change))


def members(kind, spoil):
    """Spoil what has the type: output items of a response, blocks of a message, in documents."""
    return document(lambda d: [spoil(i) for i in (*d.get("output", ()), *d.get("content", ())) if i["type"] == kind])


def scores(spoil):
    return choices(lambda one: spoil(one["logprobs"]) if one.get("logprobs") else None)


def usage(**members):
    """Other counts, wherever there are some; the total fits."""

    def spoil(found):
        for of in (found, found.get("response") or {}, found.get("message") or {}):
            used = of.get("usage")
            if used:
                used.update({name: n for name, n in members.items() if name in used})
                if "total_tokens" in used:
                    sides = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
                    used["total_tokens"] = sum(used.get(n, 0) for n in sides)

    return both(spoil, spoil)


def positive(logprobs):
    for entry in logprobs.get("content") or ():
        entry["logprob"] = -entry["logprob"]
    if "token_logprobs" in logprobs:
        logprobs["token_logprobs"] = [v and -v for v in logprobs["token_logprobs"]]


def middle(logprobs):
    """One entry is missing."""
    entries = logprobs.get("content")
    if entries:
        del entries[len(entries) // 2]


def cumulative(found):
    """Each piece repeats what came before."""
    text = ""
    for _, data in found:
        for one in () if isinstance(data, str) else data.get("choices", ()):
            text += (one.get("delta") or {}).get("content") or ""
            if one.get("delta", {}).get("content"):
                one["delta"]["content"] = text
    return found


def numbered(found):
    """Responses have other ids in every event."""
    for n, (_, data) in enumerate(found):
        if isinstance(data, dict) and isinstance(data.get("response"), dict):
            data["response"]["id"] = f"resp_{n}"
    return found


def repeated(blocks):
    """Ids change from chunk to chunk."""
    return [re.sub(r'"id":"(chatcmpl|cmpl)-\d+"', rf'"id":"\1-x{n}"', block) for n, block in enumerate(blocks)]


def late_refusal(asked, status, kind, data):
    """What is refused is told inside a stream."""
    if status < 400 or not asked.get("stream"):
        return status, kind, data
    return 200, "text/event-stream", b"data: " + data.strip() + b"\n\ndata: [DONE]\n\n"


def of_stop(asked, *reply):
    """The stop string stays at the end of what it ends."""
    stop = (asked.get("stop") or [""])[0]
    return message_of(lambda m: m.update(content=(m["content"] or "") + stop))(asked, *reply)


def told(old, new):
    """Another stop reason of messages."""

    def spoil(found):
        for of in (found, found.get("delta") or {}):
            if of.get("stop_reason") == old:
                of.update(stop_reason=new)

    return spoil


ERROR = b'{"error":{"message":"no","type":"invalid_request_error"}}'
PIECE = "content_block_delta"
BLOCK = "content_block_start"
HEAD = "content_block"
FAULTS = [
    ("no [DONE]", CHAT, without(r"^data: \[DONE\]")),
    ("[DONE] before the end", CHAT, swapped(r"^data: \[DONE\]")),
    ("a stream of another type", CHAT, kind_of("text/plain")),
    ("a stream that breaks off", CHAT, lambda _, s, k, d: (s, k, d[:-20] if "event-stream" in k else d)),
    ("one line end between events", CHAT,
     lambda _, s, k, d: (s, k, d.replace(b"\n\n", b"\n") if "event-stream" in k else d)),
    ("no usage in the stream", CHAT, without(r'"usage":\{')),
    ("no usage", CHAT, document(lambda d: d.pop("usage", None))),
    ("usage that does not add up", CHAT,
     document(put(usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9}))),
    ("one token in every prompt", CHAT, usage(prompt_tokens=1)),
    ("one token in every answer", CHAT, usage(completion_tokens=1)),
    ("other ids in every chunk", CHAT, stream(repeated)),
    ("no role", CHAT, replaced(r'"role":"assistant",?', "")),
    ("no finish reason in streams", CHAT, replaced(r'"finish_reason":"\w+"', '"finish_reason":null')),
    ("no finish reason", CHAT, document(choices(put(finish_reason=None)))),
    ("an unknown finish reason", CHAT, replaced(r'"finish_reason":"\w+"', '"finish_reason":"error"')),
    ("text behind the finish reason", CHAT, swapped(r'"finish_reason":"\w+"')),
    ("calls end in stop", CHAT, document(lie("finish_reason", "tool_calls", "stop"))),
    ("a cut ends in stop", CHAT, document(lie("finish_reason", "length", "stop"))),
    ("pieces from 1", CHAT, delta_of(lambda d: [p.update(index=1) for p in d.get("tool_calls") or ()] and None)),
    ("ids in later pieces", CHAT,
     delta_of(lambda d: [p.setdefault("id", "x") for p in d.get("tool_calls") or ()] and None)),
    ("calls without a name", CHAT, replaced(r'"name":"weather",?', "")),
    ("names with a prefix", CHAT,
     calls_of(lambda c: c["function"].get("name") and c["function"].update(name="functions.weather"))),
    ("another tool", CHAT, calls_of(lambda c: c["function"].get("name") and c["function"].update(name="clock"))),
    ("one id for all calls", CHAT, calls_of(lambda call: call.get("id") and call.update(id="call_0"))),
    ("arguments without their end", CHAT, last(r'"arguments":"[^"\\]*(\\.[^"\\]*)*"', '"arguments":""')),
    ("malformed arguments", CHAT, calls_of(lambda call: call["function"].update(arguments='{"city": "Oslo",'))),
    ("no such member", CHAT, arguments(lambda value: value.pop("tomorrow"))),
    ("a member too many", CHAT, arguments(put(country="Norway"))),
    ("content of parts", CHAT, delta_of(lambda d: d.get("content") and d.update(content=[{"type": "text"}]) and None)),
    ("<think> in the content", CHAT, message_of(lambda m: m.update(content=f"<think>Hm.</think>{m['content']}"))),
    ("end-of-turn tokens", CHAT, message_of(lambda m: m.update(content=f"{m['content']}<|im_end|>"))),
    ("reasoning as streamed content", CHAT,
     delta_of(lambda d: d.update(content=d.pop("reasoning_content")) if d.get("reasoning_content") else None)),
    ("pieces that repeat", CHAT, events(cumulative)),
    ("spaces between pieces are lost", CHAT,
     delta_of(lambda d: d.get("content") and d.update(content=d["content"].strip()) and None)),
    ("text before an object", CHAT,
     where(lambda a: (a.get("response_format") or {}).get("type") == "json_object",
           message_of(lambda m: m.update(content="Here: " + m["content"])))),
    ("the stop string stays", CHAT, of_stop),
    ("streamed logprobs are null", CHAT, each(choices(lambda one: one.get("logprobs") and one.update(logprobs=None)))),
    ("log probabilities above 0", CHAT, both(scores(positive), scores(positive))),
    ("a score too few", CHAT, both(scores(middle), scores(middle))),
    ("no alternatives", CHAT, document(scores(lambda one: [e.update(top_logprobs=[]) for e in one["content"]]))),
    ("errors as text", CHAT, errors(kind="text/plain")),
    ("errors of another shape", CHAT, errors(body=b'{"detail":[]}')),
    ("errors of the server", CHAT, errors(status=500)),
    ("errors with status 200", CHAT, lambda _, s, k, d: (200, k, d)),
    ("an overflow in unknown words", CHAT, errors(body=ERROR)),
    ("refusals in streams", CHAT, late_refusal),
    ("results of tools are refused", CHAT,
     where(lambda a: isinstance(a.get("messages"), list) and any(
         isinstance(m, dict) and m.get("role") == "tool" for m in a["messages"]), always(400, ERROR))),
    ("streams end in stop", COMPLETIONS, each(lie("finish_reason", "length", "stop"))),
    ("chat chunks", COMPLETIONS, each(choices(lambda one: one.update(delta={"content": one.pop("text")})))),
    ("no scores", COMPLETIONS, document(choices(lambda one: one.pop("logprobs", None)))),
    ("a score short", COMPLETIONS, document(scores(lambda one: one["token_logprobs"].pop()))),
    ("an echo without the prompt", COMPLETIONS,
     document(choices(lambda one: one.update(text=one["text"].removeprefix("Once upon a time"))))),
    ("one index for all prompts", COMPLETIONS, document(choices(put(index=0)))),
    ("items that are never done", RESPONSES, without(r'"response\.output_item\.done"')),
    ("items that are never added", RESPONSES, without(r'"response\.output_item\.added"')),
    ("parts that are never added", RESPONSES, without(r'"response\.content_part\.added"')),
    ("no response.completed", RESPONSES, without(r'"response\.(completed|incomplete)"')),
    ("no deltas", RESPONSES, without(r"output_text\.delta")),
    ("a done before its text", RESPONSES, swapped(r'"response\.output_text\.done"')),
    ("one number for all events", RESPONSES, replaced(r'"sequence_number":\d+', '"sequence_number":1')),
    ("ids that change by event", RESPONSES, events(numbered)),
    ("no output_index", RESPONSES, each(lambda e: e.pop("output_index", None) and None)),
    ("an end without output", RESPONSES,
     each(lambda e: e["response"].update(output=[]) if e["type"].endswith("pleted") else None)),
    ("an end in progress", RESPONSES, each(lambda e: "response" in e and e["response"].update(status="in_progress"))),
    ("malformed arguments", RESPONSES, members("function_call", put(arguments='{"city"'))),
    ("another call_id when done", RESPONSES,
     of_type("response.output_item.added",
             lambda e: e["item"].update(call_id="x") if "call_id" in e["item"] else None)),
    ("a custom tool as a function", RESPONSES, members("custom_tool_call", put(type="function_call"))),
    ("a cut answer that is complete", RESPONSES, document(put(status="completed"))),
    ("a limit that pi does not know", RESPONSES, document(put(incomplete_details={"reason": "max_tokens"}))),
    ("an overflow without its code", RESPONSES, errors(body=ERROR.replace(b'"no"', b'"prompt is too long"'))),
    ("events without names", MESSAGES, replaced(r"^event: .*\n", "")),
    ("no message_stop", MESSAGES, without("message_stop")),
    ("no message_start", MESSAGES, without("message_start")),
    ("the end before a block's", MESSAGES, swapped("event: message_delta")),
    ("blocks that are never closed", MESSAGES, without("content_block_stop")),
    ("blocks numbered from 1", MESSAGES, replaced('"index":0', '"index":1')),
    ("no usage in message_start", MESSAGES, replaced(r'(message_start.*),"usage":\{[^{}]*\}', r"\1")),
    ("no tokens at the end", MESSAGES, of_type("message_delta", lambda e: e["usage"].update(output_tokens=0))),
    ("one token in every prompt", MESSAGES,
     usage(input_tokens=1, cache_read_input_tokens=0, cache_creation_input_tokens=0)),
    ("an unknown stop reason", MESSAGES, replaced(r'"stop_reason":"\w+"', '"stop_reason":"error"')),
    ("calls end the turn", MESSAGES, both(told("tool_use", "end_turn"), told("tool_use", "end_turn"))),
    ("calls are told as cut", MESSAGES, both(told("tool_use", "max_tokens"), told("tool_use", "max_tokens"))),
    ("a cut ends the turn in streams", MESSAGES, each(told("max_tokens", "end_turn"))),
    ("input without its end", MESSAGES, last(r'"partial_json":"(\\.|[^"\\])*"', '"partial_json":""')),
    ("calls without an id", MESSAGES, of_type(BLOCK, lambda e: e[HEAD].pop("id", None) and None)),
    ("pieces of another type", MESSAGES,
     of_type(PIECE, lambda e: e["delta"].update(content=e["delta"].pop("text")) if "text" in e["delta"] else None)),
    ("thinking without a signature", MESSAGES, members("thinking", put(signature=""))),
    ("thinking that is not shown", MESSAGES,
     document(lambda d: d.update(content=[b for b in d.get("content", ()) if b["type"] != "thinking"]))),
    ("errors of OpenAI's shape", MESSAGES, errors(body=ERROR)),
    ("an overflow in other words", MESSAGES,
     errors(body=b'{"type":"error","error":{"type":"invalid_request_error","message":"context length"}}')),
    *((f"{field} is ignored", path, field) for path, fields in (
        (CHAT, ("tool_choice", "response_format", "stream", "logprobs", "stop")), (COMPLETIONS, ("echo", "stop")),
        (RESPONSES, ("tool_choice", "text")), (MESSAGES, ("tool_choice", "output_config", "stop_sequences")),
    ) for field in fields),
]  # fmt: skip
"""Each: what it is, where, and the fault, or the field that the server does not know."""


def cases(table):
    return [pytest.param(path, fault, id=f"{NAMES[path]}: {name}") for name, path, fault in table]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(FAULTS))
def test_a_fault_is_found(good, path, fault):
    url, known = good
    how = {"dropped": [fault]} if isinstance(fault, str) else {"fault": fault}
    with faulty(url, path, known=known, **how) as spoiled:
        assert failed(spoiled, NAMES[path])


@pytest.mark.thorough
@pytest.mark.parametrize("name", [group.name for group in groups()])
def test_a_right_server_has_no_fault(good, name):
    url, known = good
    with faulty(url, known=known) as through:
        assert failed(through, name) == {}


# --- other dialects


def refuse(*fields):
    """A server that says that it does not offer these fields."""
    return lambda asked, *reply: (400, "application/json", ERROR) if set(fields) & set(asked) else reply


def lines(end):
    """Other line ends."""
    return lambda _, s, kind, data: (s, kind, data.replace(b"\n", end) if "event-stream" in kind else data)


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


def renamed(one):
    for of in (one.get("message") or {}, one.get("delta") or {}):
        if "reasoning_content" in of:
            of["reasoning"] = of.pop("reasoning_content")


def no_cache_counts(found):
    for of in (found, found.get("message") or {}):
        used = of.get("usage")
        if used and "input_tokens" in used:
            used["input_tokens"] += (used.pop("cache_read_input_tokens") or 0) + (
                used.pop("cache_creation_input_tokens") or 0
            )


HARMLESS = [
    ("CRLF", CHAT, lines(b"\r\n")),
    ("comments", CHAT, stream(lambda blocks: [text for block in blocks for text in (": keep-alive", block)])),
    ("null where nothing is", CHAT, both(
        choices(lambda one: one.update(logprobs=one.get("logprobs"),
                                       message={"refusal": None, "tool_calls": None, **one["message"]})),
        lambda d: d.setdefault("usage", None))),
    ("a role in every piece", CHAT, delta_of(lambda d: d.setdefault("role", "assistant") and None)),
    ("letters", CHAT, events(letters)),
    ("reasoning under its other name", CHAT, both(choices(renamed), choices(renamed))),
    ("no logprobs, schemas, effort, stop", CHAT, refuse("logprobs", "response_format", "reasoning_effort", "stop")),
    ("no forced calls", CHAT, where(lambda a: a.get("tool_choice") not in ("none", None), refuse("tool_choice"))),
    ("no echo, no stop", COMPLETIONS, refuse("echo", "stop", "logprobs")),
    ("CR", RESPONSES, lines(b"\r")),
    ("named events", RESPONSES, events(lambda found: [(data["type"], data) for _, data in found])),
    ("no schemas or tools but functions", RESPONSES, where(
        lambda a: "format" in a.get("text", {}) or any(t["type"] != "function" for t in a.get("tools") or ()),
        refuse("model"))),
    ("stop sequences end the turn", MESSAGES, both(told("stop_sequence", "end_turn"),
                                                   told("stop_sequence", "end_turn"))),
    ("pings", MESSAGES, events(lambda found: [p for one in found for p in (one, ("ping", {"type": "ping"}))][:-1])),
    ("no counts of the cache", MESSAGES, both(no_cache_counts, no_cache_counts)),
    ("no thinking, no stop sequences", MESSAGES, refuse("thinking", "stop_sequences")),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault"), cases(HARMLESS))
def test_another_dialect_passes(good, path, fault):
    """Nothing of this stops a client: what is not offered is said, and is no failure."""
    url, known = good
    with faulty(url, path, fault, known) as other:
        assert failed(other, NAMES[path], required=True) == {}


# --- when it arrives, what is not there


def kept_back(pieces, send):
    """The first event at once, all others at the end."""
    whole = iter(pieces)
    send(next(whole))
    send(b"".join(whole))


def passed_on(pieces, send):
    for piece in pieces:
        send(piece)


@pytest.mark.thorough
@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize(("holds", "wrong"), [(kept_back, True), (passed_on, False)])
def test_streams_that_are_kept_back_are_named(good, path, holds, wrong, monkeypatch):
    """Every answer is complete and right; only those who wait for it notice."""
    monkeypatch.setattr(shared, "SOON", 0.02)  # the small model answers a completion in 0.1 s
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


@pytest.mark.thorough
def test_what_is_not_there(good):
    """Of any server it is skipped, with the reason; of one that has to have it, it is missing."""
    url, known = good
    group = next(group for group in groups() if group.name == "messages")
    with faulty(url, MESSAGES, always(404), known) as other:
        with closing(Talk(other)) as talk:
            row = group.client(talk)
            assert not row.checks and row.skipped == "there is no /v1/messages (HTTP 404)"
            row = group.client(talk, must=True)
        assert not row.skipped and "messages.document" in {check.name for check in row.failed}


def test_who_does_not_answer():
    group = next(group for group in groups() if group.name == "chat")
    with closing(Talk("http://127.0.0.1:9", timeout=5)) as talk:
        row = group.client(talk, must=True)
    assert {check.state for check in row.checks} == {"fail", "skip"}
    assert all("no answer" in check.got or "no stream" in check.got for check in row.checks if check.state == "fail")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "fault", "wanted"),
    [
        ("/v1/models", document(put(object="models")), "models"),
        ("/v1/nothing/here", always(200), "unknown_path"),
        ("/v1/nothing/here", errors(kind="text/html", body=b"<p>no"), "unknown_path"),
        ("/detokenize", document(put(prompt="Once")), "tokenizer"),
        ("/tokenize", document(put(tokens="many")), "tokenizer"),
    ],
)
def test_faults_of_what_belongs_to_no_api(good, path, fault, wanted):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        assert wanted in failed(spoiled, "server")


@pytest.mark.thorough
def test_the_command_on_a_server_that_is_wrong(good, capsys):
    url, known = good
    with faulty(url, MESSAGES, document(lambda found: found.pop("usage", None)), known) as spoiled:
        argv = ["smoke", "--json", "--tokens", "160", "--url", spoiled + "/v1", "--client", "http"]
        code = server.main(argv)
    told = json.loads(capsys.readouterr().out)
    assert code == 1 and told["failed"] >= 2
    bad = [check for one in told["clients"] for check in one["checks"] if check["state"] == "fail"]
    assert {"messages.usage", "messages.usage_counts"} <= {check["name"] for check in bad}
    assert all(check["expected"] and check["got"] for check in bad)


# --- parts


CERTAIN = {"token_logprobs": [None, 0, -0.5], "top_logprobs": [None, {"b": 0}, {"c": -0.5}]}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ""), (CERTAIN, ""), ({"token_logprobs": [None, 1e-9, -0.5]}, "token_logprobs"),
        ({"token_logprobs": [None, None, -0.5]}, "token_logprobs"), ({"top_logprobs": [None, {}, {"c": -1}]}, "top_"),
        ({"tokens": ["a", "b"]}, "entries"),
    ],
)  # fmt: skip
def test_scores_that_a_harness_takes(changed, wrong):
    """Of the first token there is none; one that is certain has the log probability 0."""
    scores = {"tokens": ["a", "b", "c"], "token_logprobs": [None, -1.0, -0.5],
              "top_logprobs": [None, {"b": -1.0}, {"c": -0.5}]}  # fmt: skip
    choice = {"text": "abc", "logprobs": scores | changed}
    with pytest.raises(Wrong, match=wrong) if wrong else nullcontext():
        completions._scored(choice, "ab", 2)
        completions._scored(choice, "", None)


WORDS = (("Hello", -0.5), (" you", -1.0))


@pytest.mark.parametrize(
    ("finish", "scores", "tokens", "wrong"),
    [
        ("stop", WORDS, 2, ""), ("stop", (*WORDS, ("<|end|>", -0.1)), 3, ""), ("stop", WORDS, 3, ""),
        ("stop", WORDS, 4, "2 log probabilities for 4 tokens"), ("length", WORDS, 3, "2 log prob"),
        ("stop", WORDS[:1], 2, "1 log probabilities for 2 tokens"), ("stop", WORDS[1:], 2, "1 log prob"),
    ],
)  # fmt: skip
def test_the_token_that_ends_an_answer_need_not_be_scored(finish, scores, tokens, wrong):
    said = Said("Hello you", finish=finish, tokens=tokens, scores=scores)
    with pytest.raises(Wrong, match=wrong) if wrong else nullcontext():
        scored(said)


def test_the_name_of_an_event_is_its_own() -> None:
    text = "event: a\ndata: 1\n\ndata: 2\ndata: 3\n\nevent: lost\n\ndata: 4\n\n"
    assert list(_events(text)) == [Event("a", "1"), Event("", "2\n3"), Event("", "4")]
