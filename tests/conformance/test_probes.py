"""The scripts that run in a client's interpreter: right servers pass, and faults that the SDK itself sees are told."""

from __future__ import annotations

import pytest

from ds4ref.conformance import clients, install, runner
from ds4ref.conformance.talk import Talk
from ds4ref.server.worker import Worker
from tests.server.conftest import running

from .faults import FORMED, always, calls, document, faulty, replaced, without

pytestmark = pytest.mark.oracle

CHAT, RESPONSES, MESSAGES, MODELS = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models"


@pytest.fixture(scope="module")
def good(nano_engine):
    with running(Worker(nano_engine, ctx=3000, constrain=FORMED)) as server:
        yield server.url, {}


def failed(url, name, folder):
    """The required checks of a client that fail."""
    pytest.importorskip(name, reason=f"the package {name} is not installed")
    kind, talk = clients.find(name), Talk(url, "deepseek-v4-flash", tokens=200)
    folder.mkdir(exist_ok=True)
    options = runner.Options(folder, tokens=200, timeout=120)
    checks = runner.probe(kind, install.Place(None, kind.version), folder, talk, options)
    talk.close()
    assert len(checks) > 5
    return {check.name for check in checks if check.state == "fail" and check.required}


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_ours_passes(good, tmp_path, name):
    assert failed(good[0], name, tmp_path) == set()


ARGUMENTS = calls(lambda call: call["function"].update(arguments='{"city": '))


@pytest.mark.parametrize(
    ("name", "path", "fault", "wanted"),
    [
        ("openai", MODELS, document(lambda found: found.update(data=[])), {"openai.models"}),
        ("openai", CHAT, document(lambda found: found.pop("usage", None)), {"openai.chat"}),
        ("openai", CHAT, replaced(r'"finish_reason":"\w+"', '"finish_reason":null'),
         {"openai.chat.stream", "openai.chat.stream_tool"}),
        ("openai", CHAT, ARGUMENTS, {"openai.chat.tool"}),
        ("openai", RESPONSES, without(r'"response\.(completed|incomplete)"'),
         {"openai.responses.stream", "openai.responses.stream_tool"}),
        ("anthropic", MESSAGES, replaced(r"^event: .*\n", ""),
         {"anthropic.stream", "anthropic.messages.stream_tool"}),
        ("anthropic", MESSAGES, document(lambda found: found.update(stop_reason="end_turn")),
         {"anthropic.messages.tool", "anthropic.runner"}),
    ],
)  # fmt: skip
def test_a_fault_is_told(good, tmp_path, name, path, fault, wanted):
    url, known = good
    with faulty(url, path, fault, known) as spoiled:
        assert failed(spoiled, name, tmp_path / "one") == wanted


def test_what_is_not_there_is_skipped(good, tmp_path):
    url, known = good
    with faulty(url, RESPONSES, always(404, b'{"error":{"message":"no","type":"x"}}'), known) as other:
        assert failed(other, "openai", tmp_path / "one") == set()
