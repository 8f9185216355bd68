"""Errors in the words that clients know (clients.md 0.5, server.md 2)."""

import json

import pytest

from ds4ref.server import refusals
from ds4ref.server.turn import Failed
from ds4ref.server.worker import Busy

REFERENCE = dict.fromkeys(("prompt-too-long", "no-retry"), False)


@pytest.mark.parametrize(("api", "param"), [("chat", "messages"), ("completions", "prompt"), ("responses", "input")])
def test_overflow_as_openai_says_it(api, param):
    found = refusals.overflow(api, 5000, 4096, {})
    assert found.status == 400 and found.kind == "invalid_request_error"
    assert found.message == "Prompt has 5000 tokens, but the configured context size is 4096 tokens"
    assert list(found.extra.items()) == [
        ("param", param), ("code", "context_length_exceeded"), ("n_prompt_tokens", 5000), ("n_ctx", 4096),
    ]  # fmt: skip


def test_overflow_as_claude_code_knows_it():
    found = refusals.overflow("messages", 5000, 4096, {})
    assert (found.status, found.message) == (400, "prompt is too long: 5000 tokens > 4096 maximum")
    assert found.extra == {"n_prompt_tokens": 5000, "n_ctx": 4096}
    assert refusals.overflow("messages", 5000, 4096, REFERENCE).message.startswith("Prompt has 5000 tokens")


def test_a_second_try_in_vain_is_said_to_be():
    for event, status in ((Failed("continuation", "x"), 409), (Failed("shutdown", "x"), 503)):
        found = refusals.failed("chat", event, 10, {})
        assert found.status == status and found.headers == {"x-should-retry": "false"}
        assert refusals.failed("chat", event, 10, REFERENCE).headers == {}
    assert refusals.busy("chat", Busy("ending", None), {}).headers == {"x-should-retry": "false"}
    assert refusals.busy("chat", Busy("full", 5), {}).headers == {"retry-after": "5"}


@pytest.mark.parametrize(
    ("api", "words"),
    [
        ("messages", "Anthropic continuation state is not available; retry by replaying the full messages history"),
        ("responses", "Responses continuation state is not available; retry by replaying the full input history"),
    ],
)
def test_continuation(api, words):
    assert refusals.failed(api, Failed("continuation", "x"), 10, {}).message == words


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_kinds_of_anthropic(status, kind):
    assert refusals.refused("messages", status, "x").kind == kind


def test_a_context_that_overflows_late():
    assert refusals.failed("chat", Failed("context", "x", 70), 64, {}).extra["n_prompt_tokens"] == 70
    assert refusals.failed("chat", Failed("context", "full"), 64, {}).message == "full"
    assert refusals.failed("chat", Failed("engine", "no memory"), 64, {}).status == 500


def test_the_document():
    found = refusals.document("a \u00e4 \ud800", code="x")
    assert found.endswith(b"\n")
    assert json.loads(found) == {"error": {"message": "a \u00e4 ?", "type": "invalid_request_error", "code": "x"}}
