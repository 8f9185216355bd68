"""The official SDKs of OpenAI and Anthropic, fed with the answers of ``test_answers`` (conversations: tests/contract).

They come with the extra ``oracle``, whose tests these are (``make oracle``).
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from ds4ref.server.turn import Failed
from ds4ref.targets.answer import Delta

from .answers import MODEL, deltas, play, read
from .test_answers import ANSWERS, asked
from .understood import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer

pytestmark = pytest.mark.oracle
openai = pytest.importorskip("openai", reason="the openai package is not installed")
anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

ASK = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]


def openai_client(url, **options):
    return openai.OpenAI(base_url=url + "/v1", api_key="dummy", max_retries=0, timeout=60.0, **options)


def anthropic_client(url, **options):
    return anthropic.Anthropic(base_url=url, api_key="dummy", max_retries=0, timeout=60.0, **options)


def fed(data: bytes, stream: bool = True) -> httpx2.Client:
    """A client's transport that answers with ``data``, in crumbs."""
    kind = "text/event-stream" if stream else "application/json"

    def answer(request: Any) -> httpx2.Response:
        pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
        return httpx2.Response(200, headers={"content-type": kind}, content=iter(pieces))

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def of_chat(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with openai_client("http://x", http_client=fed(data, stream)) as client:
        made = client.chat.completions.create(model=MODEL, messages=ASK, stream=stream)
        calls: dict[int, list[str]] = {}
        for choice in (choice for one in (made if stream else [made]) for choice in one.choices):
            said = choice.delta if stream else choice.message
            found.text += said.content or ""
            found.reasoning += getattr(said, "reasoning_content", None) or ""
            for at, call in enumerate(said.tool_calls or ()):
                mine = calls.setdefault(call.index if stream else at, ["", "", ""])
                for n, part in enumerate((call.id, call.function.name, call.function.arguments)):
                    mine[n] += part or ""
            found.end = choice.finish_reason or found.end
    found.calls = [(call[0], call[1], call[2]) for _, call in sorted(calls.items())]
    found.end = {"tool_calls": "tools"}.get(found.end, found.end)
    return found


def of_messages(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with anthropic_client("http://x", http_client=fed(data, stream)) as client:
        if stream:
            with client.messages.stream(model=MODEL, max_tokens=9, messages=ASK) as events:
                made = events.get_final_message()
        else:
            made = client.messages.create(model=MODEL, max_tokens=9, messages=ASK)
    for block in made.content:
        found.text += getattr(block, "text", "")
        found.reasoning += getattr(block, "thinking", "")
        found.calls += [(block.id, block.name, json.dumps(block.input))] if block.type == "tool_use" else []
    found.end = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tools"}[made.stop_reason]
    return found


def of_responses(data: bytes, stream: bool) -> Answer:
    found = Answer()
    with openai_client("http://x", http_client=fed(data, stream)) as client:
        if stream:
            *_, last = client.responses.create(model=MODEL, input=ASK, stream=True)
            made = last.response
            assert last.type == f"response.{made.status}"
        else:
            made = client.responses.create(model=MODEL, input=ASK)
    found.text = made.output_text
    for item in made.output:
        found.reasoning += "".join(part.text for part in item.summary) if item.type == "reasoning" else ""
        found.calls += [(item.call_id, item.name, item.arguments)] if item.type == "function_call" else []
    found.end = {"incomplete": "length", "failed": "error"}.get(made.status, "tools" if found.calls else "stop")
    found.error = made.error.message if made.error else ""
    return found


READERS = {CHAT: of_chat, MESSAGES: of_messages, RESPONSES: of_responses}


@pytest.mark.parametrize("path", READERS)
@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_as_the_sdks_read_it(path, name):
    text, finish, wanted = ANSWERS[name]
    for size in (1, 9, 500):
        said = deltas(text, thinking=True, tools=True, size=size, finish=finish)
        for stream in (True, False):
            found = READERS[path](asked(path, said, stream), stream)
            end = "error" if (path, finish) == (RESPONSES, "error") else wanted.end
            assert (found.reasoning, found.text, found.end) == (wanted.reasoning, wanted.text, end)
            assert [(name, json.loads(raw)) for _, name, raw in found.calls] == [
                (name, json.loads(raw)) for _, name, raw in wanted.calls]  # fmt: skip


@pytest.mark.parametrize("late", [Failed("engine", "it broke"), Failed("shutdown", "server shutting down")])
def test_failures_in_the_middle(late):
    """Each parser raises, or says that the response failed; none takes half an answer for a whole one."""
    said = [Delta("Hal"), late]
    with pytest.raises(openai.APIError, match=late.message):
        of_chat(asked(CHAT, said, True), True)
    text = fed(asked(COMPLETIONS, said, True))
    with openai_client("http://x", http_client=text) as client, pytest.raises(openai.APIError, match=late.message):
        list(client.completions.create(model=MODEL, prompt="x", stream=True))
    assert of_responses(asked(RESPONSES, said, True), True).error == late.message
    with pytest.raises(anthropic.APIStatusError, match=late.message):
        of_messages(asked(MESSAGES, said, True), True)
    waiting = read(RESPONSES, {"input": "x", "stream": True})[1]
    kept = waiting.alive() + waiting.alive() + play(waiting, said)
    assert of_responses(kept, True).error == late.message, "no parser stumbles over what keeps it waiting"
