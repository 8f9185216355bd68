"""Requests that real clients were recorded to send: all are taken, and answered in the shape that the client reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ds4ref.server.api import Refused
from ds4ref.server.limits import Limits
from ds4ref.text.dsml import ToolCall, render_calls
from ds4ref.text.protocol import THINK_CLOSE

from .answers import read
from .understood import understood

FOLDER = Path(__file__).parents[1] / "data" / "clients"
FILES = sorted(FOLDER.glob("*.jsonl"))
GENERATES = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
GRAMMAR = "start: LINE\nLINE: /.+/"
"""In place of grammars that the recorder cut short."""


def requests_of(path: Path) -> Iterator[dict[str, Any]]:
    """Requests of a file, with the tools that they share with an earlier one."""
    tools: dict[int, Any] = {}
    for line in path.read_text().splitlines():
        request = json.loads(line)
        body = request["body"]
        if isinstance(body, dict):
            if "tools_same_as" in body:
                body["tools"] = tools[body.pop("tools_same_as")]
            tools[request["n"]] = body.get("tools")
            for tool in body.get("tools") or ():
                form = tool.get("format") if tool.get("type") == "custom" else None
                if form and "[truncated: " in form.get("definition", ""):
                    form["definition"] = GRAMMAR
        yield request


def one(name: str, n: int = 0) -> dict[str, Any]:
    """The body of the ``n``-th generating request of a file."""
    found = [r for r in requests_of(FOLDER / f"{name}.jsonl") if r["path"] in GENERATES]
    return found[n]["path"], found[n]["body"]


def script_of(turn: Any) -> tuple[str, list[str]]:
    """What to say: a call of each kind of tool that is offered, else text; names of the calls as the model has them."""
    thinks = "Let me think." + THINK_CLOSE if turn.thinking != "none" else ""
    if turn.format:
        return thinks + '{"word":"x"}', []
    kinds = {}
    for tool in turn.callable:
        kinds.setdefault((tool.kind, bool(tool.namespace)), tool)
    calls = [
        ToolCall(tool.name, '{"input":"*** \\"x\\" ü"}' if tool.kind == "custom" else '{"a":"x","b":[1,{"c":null}]}')
        for tool in kinds.values()
    ]
    block = "".join(part.text for part in render_calls(calls)) if calls else ""
    return f"{thinks}Grüße.{block}", [call.name for call in calls]


@pytest.mark.parametrize("name", [path.stem for path in FILES if not path.stem.startswith("lm_eval_")])
def test_recorded_requests_are_answered(serving, name):
    """Over HTTP, as they came, one after the other."""
    server = serving(ctx=65536, limits=Limits(drain_seconds=5.0))
    for request in requests_of(FOLDER / f"{name}.jsonl"):
        path, body = request["path"], request["body"]
        query = f"?{request['query']}" if request["query"] else ""
        headers = {key: value for key, value in request["headers"].items() if key.lower() != "connection"}
        if path not in GENERATES:
            answer = server.client.request(request["method"], path + query, headers=headers, json=body or None)
            known = path.startswith("/v1/models") or path == "/v1/messages/count_tokens"
            assert answer.status_code == (200 if known else 404), (path, answer.text)
            if path.endswith("count_tokens"):
                assert answer.json()["input_tokens"] > 0
            continue
        raw = json.dumps(body).encode()
        low = {key.lower(): value for key, value in headers.items()}
        try:
            turn, reply = read(path, raw, ctx=65536, headers=low)
        except Refused:  # a check of the SDKs' own: the result of a call that nobody made
            assert name == "sdk_anthropic"
            assert server.client.post(path + query, content=raw, headers=headers).json()["type"] == "error"
            continue
        if turn.echo:
            continue  # a scripted engine has no logits: test_completions
        script, calls = script_of(turn)
        server.engine.say(script)
        answer = server.client.post(path + query, content=raw, headers=headers)
        assert answer.status_code == 200, answer.text
        if path == "/v1/completions":
            continue
        assert answer.headers["content-type"].startswith("text/event-stream" if reply.stream else "application/json")
        found = understood(path, answer.content, reply.stream)
        told = not reply.stream or bool((body.get("stream_options") or {}).get("include_usage"))
        assert path != "/v1/chat/completions" or bool(found.usage) == told
        asked = path != "/v1/responses" or (body.get("reasoning") or {}).get("summary") == "auto"
        assert found.reasoning == ("Let me think." if turn.thinking != "none" and asked else "")
        if turn.format:  # whatever the script says, the answer has the form
            jsonschema.validate(json.loads(found.text), json.loads(turn.format))
        else:
            assert found.text == "Grüße." and [name for _, name, _ in found.calls] == calls


@pytest.mark.parametrize("name", [path.stem for path in FILES if path.stem.startswith("lm_eval_")])
def test_recorded_evaluations_are_answered(serving, name):
    """On the embedded model, since they ask for log probabilities. The tokenizer that they were recorded with had
    control characters for control tokens; these are ordinary characters here."""
    server = serving(real=True, ctx=1024)
    for request in requests_of(FOLDER / f"{name}.jsonl"):
        body = request["body"]
        if request["path"] == "/detokenize":
            body = {"tokens": [min(token, 250) for token in body["tokens"]]}
        answer = server.client.request(request["method"], request["path"], json=body or None)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        match request["path"]:
            case "/tokenizer_info":
                assert found["eos_token"]
            case "/tokenize":
                assert all(isinstance(token, int) for token in found["tokens"])
            case "/detokenize":
                assert isinstance(found["prompt"], str)
            case "/v1/chat/completions":
                assert found["choices"][0]["index"] == 0 and isinstance(found["choices"][0]["message"]["content"], str)
            case "/v1/completions":  # whose scores are those of ``test_generation``
                prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
                assert [choice["index"] for choice in found["choices"]] == list(range(len(prompts)))
                assert all(bool(choice.get("logprobs")) == bool(body.get("echo")) for choice in found["choices"])


# --- what some of them are about


def test_claude_code_finds_tools():
    """Deferred tools are in no tool prompt; those that a search found are shown by its result, and may be called."""
    path, first = one("claude_toolsearch", 0)
    before, _ = read(path, first)
    after, _ = read(path, one("claude_toolsearch", 1)[1])
    assert {tool.name for tool in after.tools if tool.deferred} >= {"WebFetch", "NotebookEdit"}
    assert [tool.name for tool in before.offered] == [tool.name for tool in after.offered]
    late = {tool.name for tool in after.callable} - {tool.name for tool in after.offered}
    assert late == {"WebFetch", "NotebookEdit"}
    old, new = before.rendered().text, after.rendered().text
    assert new.startswith(old[: old.rindex("<｜Assistant｜>")]), "the prompt goes on from the one before"
    assert '"name":"WebFetch"' in new.partition("<｜User｜>")[2] and "DeferredToolPlaceholder" not in new


TURNS = ("claude_tool_turn codex_tool_turn opencode_tool_turn pi_chat_tool_turn codex_catalog_freeform_patch "
         "claude_read_image codex_view_image")  # fmt: skip


@pytest.mark.parametrize("name", TURNS.split())
def test_prompts_go_on_from_each_other(name):
    """The next turn's prompt begins with this one's, up to its answer: what was evaluated is found again."""
    main = [r for r in requests_of(FOLDER / f"{name}.jsonl") if r["path"] in GENERATES and r["body"].get("tools")]
    texts = [read(r["path"], json.dumps(r["body"]).encode())[0].rendered().text for r in main[:2]]
    assert len(texts) == 2
    for before, after in zip(texts, texts[1:], strict=False):
        assert after.startswith(before[: before.rindex("<｜Assistant｜>")])
        assert len(after) > len(before)
