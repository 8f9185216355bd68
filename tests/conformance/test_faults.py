"""Every fault that is planted is found by the check that is there for it.

Those checks that read whole answers (READERS) may find it, too, and no other.
"""

from __future__ import annotations

import json
import re
from contextlib import closing, nullcontext

import pytest

from ds4ref.cli import server
from ds4ref.conformance.checks import completions, groups
from ds4ref.conformance.checks.common import object_begins
from ds4ref.conformance.talk import Talk, Wrong

from .faults import (
    always,
    calls,
    document,
    errors,
    faulty,
    kind_of,
    of_documents,
    replaced,
    stream,
    swapped,
    without,
)

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
NAMES = {CHAT: "chat", COMPLETIONS: "completions", RESPONSES: "responses", MESSAGES: "messages"}


READERS = {
    "format_unicode", "head", "limit", "logprobs", "markup", "signature", "stop", "stop_told", "stream_assembles",
    "stream_finish", "stream_limit", "stream_logprobs", "stream_same", "stream_stop", "stream_thinking",
    "stream_tool_custom", "stream_tool_finish", "stream_tool_same", "stream_usage", "thinking_on", "tool_any",
    "tool_call", "tool_finish", "tool_ids", "tool_namespace", "usage_counts",
}  # fmt: skip
"""Checks that read whole answers: they find faults of all kinds."""


def failed(url, name):
    """The checks of one API that fail there, without the API's name; what was got instead."""
    group = next(group for group in groups() if group.name == name)
    with closing(Talk(url, tokens=160, timeout=120)) as talk:
        row = group.client(talk, must=True)
    skipped = [check.name for check in row.checks if check.state == "skip"]
    assert not [one for one in skipped if not one.endswith("stream_written")], skipped  # nothing to time without text
    return {check.name.partition(".")[2]: check.got for check in row.checks if check.state == "fail"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [group.name for group in groups()])
def test_a_right_server_has_no_fault(good, name):
    url, known = good
    with faulty(url, known=known) as through:
        assert failed(through, name) == {}


def cut(asked, status, kind, data):
    """The connection's last bytes are lost."""
    return status, kind, data[:-20] if "event-stream" in kind else data


def repeated(blocks):
    """Ids change from chunk to chunk."""
    return [re.sub(r'"id":"(chatcmpl|cmpl)-\d+"', rf'"id":"\1-x{n}"', block) for n, block in enumerate(blocks)]


def shortened(found):
    """Scores of one token fewer."""
    for one in found.get("choices", ()):
        if one.get("logprobs"):
            one["logprobs"] = {name: values[1:] for name, values in one["logprobs"].items()}


def only(pattern, by):
    """Replace it in the last event that has it."""

    def spoil(blocks):
        at = max((i for i, block in enumerate(blocks) if re.search(pattern, block)), default=None)
        return blocks if at is None else [*blocks[:at], re.sub(pattern, by, blocks[at]), *blocks[at + 1 :]]

    return stream(spoil)


def of_items(kind, spoil):
    """Spoil the items of a response."""
    return document(lambda found: [spoil(item) for item in found.get("output", ()) if item["type"] == kind])


def of_blocks(kind, spoil):
    """Spoil the blocks of a message."""
    return document(lambda found: [spoil(one) for one in found.get("content", ()) if one["type"] == kind])


def edited(kind, spoil):
    """Spoil the events of a type."""

    def change(blocks):
        found = []
        for block in blocks:
            event = json.loads(block.partition("data: ")[2])
            if event["type"] == kind:
                spoil(event)
                block = f"data: {json.dumps(event)}"
            found.append(block)
        return found

    return stream(change)


def put(**members):
    return lambda found: found.update(members)


def of_objects(spoil):
    """Spoil the text of answers that have to be some JSON object."""

    def change(document):
        message = document["choices"][0]["message"]
        message["content"] = spoil(message["content"])

    def fault(asked, *reply):
        form = asked.get("response_format") or {}
        return document(change)(asked, *reply) if form.get("type") == "json_object" else reply

    return fault


def lie(name, old, new):
    """A member of choices with another value."""

    def change(found):
        for one in found.get("choices", ()):
            one[name] = new if one[name] == old else one[name]

    return document(change)


ERROR = b'{"error":{"message":"no","type":"invalid_request_error"}}'
FAULTS = [
    # --- chat completions
    ("no [DONE]", CHAT, without(r"^data: \[DONE\]"), {"stream_done"}),
    ("[DONE] before the end", CHAT, swapped(r"^data: \[DONE\]"), {"stream_done"}),
    ("a stream of another type", CHAT, kind_of("text/plain"), {"stream_type"}),
    ("no usage in the stream", CHAT, without(r'"usage":\{'), {"stream_usage"}),
    ("no usage", CHAT, document(lambda found: found.pop("usage", None)), {"usage"}),
    ("usage that does not add up", CHAT, document(put(usage={"prompt_tokens": 5, "completion_tokens": 2,
                                                             "total_tokens": 9})), {"usage"}),
    ("other ids in every chunk", CHAT, stream(repeated), {"stream_chunks"}),
    ("no role", CHAT, replaced(r'"role":"assistant",?', ""), {"stream_chunks"}),
    ("no finish reason", CHAT, replaced(r'"finish_reason":"\w+"', '"finish_reason":null'), {"stream_finish"}),
    ("a finish reason that nobody knows", CHAT, replaced(r'"finish_reason":"\w+"', '"finish_reason":"error"'),
     {"stream_finish"}),
    ("text behind the finish reason", CHAT, swapped(r'"finish_reason":"\w+"'), {"stream_finish"}),
    ("pieces of calls without index", CHAT, replaced(r'"tool_calls":\[\{"index":0,', '"tool_calls":[{'),
     {"stream_tool_call"}),
    ("calls without a name", CHAT, replaced(r'"name":"weather",?', ""), {"stream_tool_call"}),
    ("streamed arguments without their end", CHAT, only(r'"arguments":"[^"\\]*(\\.[^"\\]*)*"', '"arguments":""'),
     {"stream_tool_arguments"}),
    ("malformed arguments", CHAT, calls(lambda call: call["function"].update(arguments='{"city": "Oslo",')),
     {"tool_arguments"}),
    ("arguments that do not fit", CHAT, calls(lambda call: call["function"].update(arguments='{"city":"Rome"}')),
     {"tool_arguments"}),
    ("another tool", CHAT, calls(lambda call: call["function"].update(name="clock")), {"tool_call"}),
    ("calls of another type", CHAT, calls(put(type="tool")), {"tool_call"}),
    ("no text in the document", CHAT, document(lambda found: found["choices"][0]["message"].update(content=5)),
     {"document", "stream_same", "answer", "format_schema", "format_object"}),
    ("a limit that is not told", CHAT, lie("finish_reason", "length", "stop"),
     {"limit", "limit_completion", "format_object"}),
    ("text before an object", CHAT, of_objects(lambda text: "Here: " + text), {"format_object"}),
    ("a member that is not quoted", CHAT, of_objects(lambda text: text.replace('"', "", 1)), {"format_object"}),
    ("errors as text", CHAT, errors(kind="text/plain"), {"bad_json", "bad_field", "overflow"}),
    ("errors of another shape", CHAT, errors(body=b'{"detail":[]}'), {"bad_json", "bad_field", "overflow"}),
    ("errors of the server", CHAT, errors(status=500), {"bad_json", "overflow"}),
    ("an overflow in unknown words", CHAT, errors(body=ERROR), {"overflow"}),
    # --- completions
    ("no [DONE]", COMPLETIONS, without(r"^data: \[DONE\]"), {"stream_done"}),
    ("a stream of another type", COMPLETIONS, kind_of("application/json"), {"stream_type"}),
    ("other ids in every chunk", COMPLETIONS, stream(repeated), {"stream_done"}),
    ("no usage", COMPLETIONS, document(lambda found: found.pop("usage", None)), {"usage"}),
    ("a score for each token but one", COMPLETIONS, document(shortened), {"score_ids"}),
    ("no scores", COMPLETIONS, document(lambda found: [c.pop("logprobs", None) for c in found.get("choices", ())]),
     {"score", "score_ids"}),
    ("no scores in streams", COMPLETIONS, stream(lambda blocks: [re.sub(r'"logprobs":\{.*?\]\}', '"logprobs":null', b)
                                                                 for b in blocks]), {"stream_logprobs"}),
    ("an echo without the prompt", COMPLETIONS,
     document(lambda found: [c.update(text=c["text"].removeprefix("Once upon a time")) for c in found["choices"]]),
     {"score", "score_ids"}),
    # --- responses
    ("a stream of another type", RESPONSES, kind_of("text/plain"), {"stream_type"}),
    ("items that are never done", RESPONSES, without(r'"response\.output_item\.done"'),
     {"stream_items", "stream_order", "stream_tool"}),
    ("no response.completed", RESPONSES, without(r'"response\.(completed|incomplete)"'),
     {"stream_items", "stream_order", "stream_deltas", "stream_usage", "format_stream"}),
    ("no deltas", RESPONSES, without(r"output_text\.delta"), {"stream_order", "stream_deltas"}),
    ("a done before its text", RESPONSES, swapped(r'"response\.output_text\.done"'),
     {"stream_order", "stream_numbers"}),
    ("a stream from its end to its beginning", RESPONSES, stream(lambda blocks: blocks[::-1]),
     {"stream_order", "stream_items", "stream_deltas", "stream_numbers", "stream_usage", "stream_tool",
      "format_stream"}),
    ("one number for all events", RESPONSES, replaced(r'"sequence_number":\d+', '"sequence_number":1'),
     {"stream_numbers"}),
    ("no usage in the stream", RESPONSES, edited("response.incomplete", lambda event: event["response"].pop("usage")),
     {"stream_usage"}),
    ("no usage", RESPONSES, document(lambda found: found.pop("usage", None)), {"usage"}),
    ("malformed arguments", RESPONSES, of_items("function_call", put(arguments='{"city"')), {"tool_arguments"}),
    ("calls without call_id", RESPONSES, of_items("function_call", put(call_id=None)), {"tool_call"}),
    ("a custom tool's call as a function's", RESPONSES, of_items("custom_tool_call", put(type="function_call")),
     {"tool_custom"}),
    ("a cut answer that is complete", RESPONSES, document(put(status="completed")), {"limit"}),
    ("a limit that pi does not know", RESPONSES,
     document(lambda found: found.update({"incomplete_details": {"reason": "max_tokens"}})), {"limit"}),
    ("an overflow without its code", RESPONSES,
     errors(body=b'{"error":{"message":"prompt is too long","type":"invalid_request_error"}}'), {"overflow"}),
    # --- messages
    ("events without names", MESSAGES, replaced(r"^event: .*\n", ""), {"stream_names"}),
    ("a stream of another type", MESSAGES, kind_of("text/plain"), {"stream_type"}),
    ("no message_stop", MESSAGES, without("message_stop"), {"stream_order"}),
    ("no message_start", MESSAGES, without("message_start"), {"stream_order", "stream_usage"}),
    ("the end before the last block is closed", MESSAGES, swapped("event: message_delta"),
     {"stream_order", "stream_blocks", "stream_tool", "format_stream"}),
    ("blocks that are never closed", MESSAGES, without("content_block_stop"),
     {"stream_order", "stream_blocks", "stream_tool", "format_stream"}),
    ("blocks numbered from 1", MESSAGES, replaced('"index":0', '"index":1'),
     {"stream_blocks", "stream_same", "stream_tool", "format_stream"}),
    ("no usage in message_start", MESSAGES, replaced(r'(message_start.*),"usage":\{[^{}]*\}', r"\1"), {"stream_usage"}),
    ("a stop reason that nobody knows", MESSAGES, replaced(r'"stop_reason":"\w+"', '"stop_reason":"error"'),
     {"stream_finish"}),
    ("streamed input without its end", MESSAGES, only(r'"partial_json":"(\\.|[^"\\])*"', '"partial_json":""'),
     {"stream_tool"}),
    ("input as text", MESSAGES, of_blocks("tool_use", put(input="{}")), {"tool_arguments"}),
    ("calls that are told as an end", MESSAGES, document(put(stop_reason="end_turn")), {"tool_call", "limit"}),
    ("thinking without a signature", MESSAGES, of_blocks("thinking", put(signature="")), {"signature"}),
    ("thinking that is not shown", MESSAGES,
     document(lambda found: found.update(content=[b for b in found["content"] if b["type"] != "thinking"])),
     {"thinking_on"}),
    ("errors of OpenAI's shape", MESSAGES, errors(body=ERROR), {"error_type", "overflow"}),
    ("an overflow in other words", MESSAGES,
     errors(body=b'{"type":"error","error":{"type":"invalid_request_error","message":"context length"}}'),
     {"overflow"}),
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["{}", '{"a": 1}', ' \n{ "a" : [ ] } ',
     '{"a": {"b": [1, "x", true, null, -2.5e3, [], {}], "]}": "\\"\\u00e9\\n\\\\"}, "": false}'],
)  # fmt: skip
def test_the_beginnings_of_an_object(text):
    begun = len(text) - len(text.lstrip())
    assert all(object_begins(text[:end]) for end in range(begun + 1, len(text) + 1))


@pytest.mark.parametrize(
    "text", ["", " ", "[", "[{", "5", "tru", '"a', "{a", "{]", "{}}", '{"a" 1', '{"a":1,,', '{"a":tru1', '{"a\n',
             "{} {", '{"a":01', "{1"],
)  # fmt: skip
def test_what_no_object_begins_with(text):
    assert not object_begins(text)


CASES = [pytest.param(path, fault, wanted, id=f"{NAMES[path]}: {name}") for name, path, fault, wanted in FAULTS]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "fault", "wanted"), CASES)
def test_a_fault_is_found_by_its_check(good, path, fault, wanted):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        found = failed(spoiled, NAMES[path])
    assert all(found.values()), "each says what came instead"
    assert wanted <= set(found) and set(found) - wanted <= READERS, found


CERTAIN = {"token_logprobs": [None, 0, -0.5], "top_logprobs": [None, {"b": 0}, {"c": -0.5}]}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, ""), (CERTAIN, ""), ({"token_logprobs": [None, 1e-9, -0.5]}, "token_logprobs"),
        ({"token_logprobs": [None, None, -0.5]}, "token_logprobs"), ({"top_logprobs": [None, {}, {"c": -1}]}, "top_"),
        ({"tokens": ["a", "b"]}, "entries"), ({name: [None] for name in ("tokens", "token_logprobs", "top_logprobs")},
                                              "entries"),
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


FORCED = {"tool_call", "tool_arguments", "answer"}
STREAMED = {"stream_type", "stream_done", "stream_chunks", "stream_finish", "stream_usage",
            "stream_tool_call", "stream_tool_arguments", "format_stream"}  # fmt: skip
PIECES = {"stream_tool_call", "stream_tool_arguments"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "field", "wanted"),
    [
        (CHAT, "tool_choice", FORCED | PIECES | {"tool_required", "answer_rewritten"}),
        (CHAT, "response_format", {"format_schema", "format_stream", "format_object"}),
        (CHAT, "stream", STREAMED),
        (CHAT, "logprobs", {"logprobs"}),
        (RESPONSES, "tool_choice", FORCED | {"stream_tool", "tool_custom", "answer_parts"}),
        (RESPONSES, "text", {"format_schema", "format_stream"}),
        (MESSAGES, "tool_choice", FORCED | {"stream_tool", "tool_any", "answer_parts"}),
        (MESSAGES, "output_config", {"format_schema", "format_stream"}),
        (COMPLETIONS, "echo", {"score", "score_ids"}),
        (CHAT, "stop", {"stop", "stream_stop"}),
        (COMPLETIONS, "stop", {"stop"}),
        (MESSAGES, "stop_sequences", {"stop"}),
    ],
)
def test_a_field_that_is_not_honoured_is_found(good, path, field, wanted):
    """As with a server that ignores what it does not know: each demand has a check that notices."""
    url, known = good
    with faulty(url, path, known=known, dropped=[field]) as deaf:
        found = set(failed(deaf, NAMES[path]))
    assert wanted <= found and found - wanted <= READERS, found


@pytest.mark.thorough
def test_streams_that_break_off(good):
    url, known = good
    with faulty(url, CHAT, cut, known) as spoiled:
        found = failed(spoiled, "chat")
    assert "stream_done" in found and "without the blank line" in found["stream_done"]


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
        assert not row.skipped and "document" in {check.name.partition(".")[2] for check in row.failed}


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
        ("/v1/models", of_documents("text/html"), "models"),
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


# --- the command, which asks what was asked above and gets the same answers


@pytest.fixture
def found(capsys):
    """What the command prints, and its exit code."""

    def run(*argv):
        code = server.main(["smoke", "--json", "--tokens", "160", *argv])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.thorough
def test_another_server_that_is_right(good, found):
    url, known = good
    with faulty(url, known=known) as through:
        code, told = found("--url", through + "/v1", "--client", "http")
    assert code == 0 and told["failed"] == 0 and told["server"]["url"] == through
    assert [one["name"] for one in told["clients"]] == [
        "http server", "http chat", "http completions", "http responses", "http messages",
    ]  # fmt: skip
    assert told["commit"] is None or len(told["commit"]) >= 7
    assert told["command"][:2] == ["ds4-server", "smoke"]


@pytest.mark.thorough
def test_another_server_that_is_wrong(good, found):
    url, known = good
    fault = document(lambda document: document.pop("usage", None))
    with faulty(url, "/v1/messages", fault, known) as spoiled:
        code, told = found("--url", spoiled, "--client", "http", "--label", "theirs")
    assert code == 1 and told["failed"] >= 2 and told["server"]["label"] == "theirs"
    bad = [check for one in told["clients"] for check in one["checks"] if check["state"] == "fail"]
    assert {"messages.usage", "messages.limit"} <= {check["name"] for check in bad}
    assert all(check["expected"] and check["got"] for check in bad)
