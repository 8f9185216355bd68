"""A good server of somebody else passes: llama.cpp's, over the API that it is made for.

Its package, xllamacpp, is no extra of ours: ``pip install xllamacpp`` (tried with 2026.10.11549).
"""

from __future__ import annotations

import json

import pytest

from ds4ref.cli import server

from .llamacpp import llamacpp

pytestmark = pytest.mark.peers

OTHERS = {
    "completions": {"completions.score", "completions.logprobs"},
    "responses": {"responses.as_codex", "responses.format_schema", "responses.overflow"},
    "messages": {"messages.format_schema", "messages.overflow", "messages.answer_parts"},
}
"""What clients of its other APIs miss: docs/evidence/clients.md."""


@pytest.fixture(scope="module")
def url(trained_path):
    pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")
    with llamacpp(trained_path) as url:
        yield url


@pytest.fixture
def found(url, capsys):
    """The exit code, and the checks by name."""

    def run(api):
        code = server.main(["smoke", "--json", "--url", url, "--client", "http", "--api", api, "--tokens", "200"])
        told = json.loads(capsys.readouterr().out)
        return code, {check["name"]: check for client in told["clients"] for check in client["checks"]}

    return run


def test_chat_completions_pass(found):
    code, checks = found("chat")
    failed = {name: check["got"] for name, check in checks.items() if check["state"] == "fail" and check["required"]}
    assert (code, failed) == (0, {})
    assert sum(check["state"] == "ok" for check in checks.values()) >= 40 and "completions.document" not in checks


@pytest.mark.slow
@pytest.mark.parametrize("api", OTHERS)
def test_what_stops_clients_of_its_other_apis_is_named(found, api):
    code, checks = found(api)
    assert code == 1
    assert OTHERS[api] <= {name for name, check in checks.items() if check["state"] == "fail" and check["required"]}
