"""The doctor's API stage: bugs put into our server are caught, and servers that offer little are not accused."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import jsonschema
import pytest

from benchmarks.api_faults import FAULTS, accused, examined, script, serving
from ds4ref.conformance.checks.said import REFUSALS
from ds4ref.conformance.talk import NotOffered, Skip, Wrong
from ds4ref.engine import Engine
from ds4ref.server.constrain import guide_of
from ds4ref.targets import Usage
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.transport import Transport
from ds4ref.test_vectors.doctor import api
from ds4ref.test_vectors.doctor.api_formats import TOOLS, _begins, checked, written
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.examination import Stage
from ds4ref.test_vectors.doctor.schemas import CORPUS, fault
from ds4ref.test_vectors.doctor.wire import Reply
from ds4ref.test_vectors.finding import Outcome

FAST = ("stop", "cached", "finish", "budget", "values shifted", "result", "second")
"""Bugs that the default suite tries; the others take a minute together."""


@pytest.fixture(scope="module")
def engine(trained_path):
    with Engine.open(trained_path, threads=1) as opened:
        yield opened


# --- the corpus


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_each_schema_is_one_and_has_a_value_that_fits_and_one_that_does_not(case) -> None:
    jsonschema.Draft202012Validator.check_schema(case.schema)
    assert fault(case.schema, case.valid) == "" and fault(case.schema, case.invalid).startswith("$")


def test_the_corpus_is_large_and_has_no_name_twice() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS) == 60 and sum(case.quick for case in CORPUS) == 8


@pytest.mark.parametrize(
    ("text", "fits"),
    [("", True), (" \n{ ", True), ('{"gr', True), ('{"gr\\u00f6', True), ('{"gr\\u00', True), ('{"größe": 1', True),
     ("The", False), ("```json\n{", False), ('{"kl', False), ("[", False), ('{"name and Noah', False)],
)  # fmt: skip
def test_an_unfinished_answer_is_judged_by_its_beginning(text, fits) -> None:
    schema = {"properties": {"größe": {"type": "integer"}}}
    if fits:
        _begins(schema, text)
    else:
        with pytest.raises(Wrong):
            _begins(schema, text)


# --- single answers


def dsml(name: str, mark: str = "｜DSML｜", block: str = "tool_calls") -> str:
    inside = f'<{mark}parameter name="city" string="true">Oslo</{mark}parameter>'
    return f'<{mark}{block}>\n<{mark}invoke name="{name}">\n{inside}\n</{mark}invoke>\n</{mark}{block}>'


def test_markup_of_declared_tools_is_a_call_and_no_other_text() -> None:
    names = ["weather"]
    for text in (dsml("weather"), dsml("weather", "｜DSML｜ ", "calls"), dsml("weather", ""),
                 'a <tool_call>\n{"name": "weather", "arguments": {}}</tool_call>'):  # fmt: skip
        assert written("Well. " + text, names) == names, text
    for text in (
        dsml("other"),
        dsml("weather")[:-4],
        "<｜DSML｜tool_calls>",
        "call weather",
        "<tool_call>{]</tool_call>",
    ):
        assert written(text, names) == [], text


CALL = ("call_1", "weather", '{"city": "Oslo"}')


def scored(words: str, **more: Any) -> Reply:
    """An answer whose tokens are these words, and so is its text unless it is given."""
    tokens = re.findall(r"\S+\s*|\s+", words)
    tops = [{"token": token, "logprob": -0.1} for token in tokens]
    entries = tuple({**top, "top_logprobs": [top, {"token": "~", "logprob": -3.0}]} for top in tops)
    return Reply(**{"text": words, "finish": "stop", "entries": entries, "usage": Usage(3, len(tokens)), **more})


@pytest.mark.parametrize(
    ("reply", "choice", "outcome"),
    [
        (Reply(calls=(CALL,), finish="tool_calls"), "auto", None),
        (Reply(calls=(CALL,), finish="stop"), "named", None),
        (Reply(calls=(CALL,), finish="stop"), "auto", Wrong),
        (Reply(text="No.", finish="stop"), "auto", Skip),
        (Reply(text=dsml("weather"), finish="stop"), "auto", Wrong),
        (Reply(reasoning="Hm. " + dsml("weather"), finish="stop"), "auto", Wrong),
        (Reply(reasoning="I call the tool weather.", calls=(CALL,), finish="tool_calls"), "auto", None),
        (Reply(calls=(("", *CALL[1:]),), finish="tool_calls"), "auto", Wrong),
        (Reply(calls=((*CALL[:2], '"{}"'),), finish="tool_calls"), "auto", Wrong),
        (Reply(calls=((*CALL[:2], '{"city": "Os'),), finish="length"), "auto", None),
        (Reply(finish="tool_calls"), "auto", Wrong),
        (scored(dsml("weather"), text="", finish="stop"), "auto", Wrong),
        (scored(dsml("weather"), text="", calls=(CALL,), finish="tool_calls"), "auto", None),
    ],
)
def test_calls_of_single_answers(reply, choice, outcome) -> None:
    if outcome is None:
        checked(reply, TOOLS, choice)
    else:
        with pytest.raises(outcome):
            checked(reply, TOOLS, choice)


def test_tokens_have_to_spell_the_text() -> None:
    right = scored("The Nile, the Rhine and the Elbe.")
    end = {"token": "<|im_end|>", "logprob": 0.0, "top_logprobs": []}
    raw = {"token": "", "bytes": [], "logprob": 0.0, "top_logprobs": [{"token": "", "logprob": 0.0}]}
    assert right.entries is not None
    for reply in (
        right,
        scored(right.text, entries=(*right.entries, end)),
        scored(right.text, entries=(*right.entries, raw)),
    ):
        api.aligned(reply)
    for entries in (right.entries[1:], right.entries[::-1], (*right.entries, right.entries[0])):
        with pytest.raises(Wrong, match="spell"):
            api.aligned(scored(right.text, entries=entries))
    with pytest.raises(NotOffered):
        api.aligned(Reply("text"))


# --- our server


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.thorough) for name in FAULTS]
)
def test_a_bug_of_our_server_is_caught(engine, name) -> None:
    bug = FAULTS[name]
    with serving(engine, script, *bug.patches) as url:
        stage = examined(engine, url, only=bug.subjects)
    assert set(accused(stage)) & set(bug.subjects), [check.says for check in stage.checks]


@pytest.mark.parametrize("guide", [script, pytest.param(guide_of, marks=pytest.mark.thorough)])
def test_nothing_is_wrong_with_our_server(engine, guide) -> None:
    with serving(engine, guide) as url:
        stage = examined(engine, url)
    assert not accused(stage)
    outcomes = {check.name: check.outcome for check in stage.checks}
    assert len(outcomes) == len(api.SUBJECTS) and set(outcomes.values()) <= {Outcome.OK, Outcome.SKIPPED}


# --- servers that offer little


def stage_of(engine, answer, **more: Any) -> Stage:
    """Run the stage against a server whose ``answer(body)`` gives (status, document)."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"data": [{"id": "m"}]})
        status, document = answer(json.loads(request.content))
        return httpx2.Response(status, json=document)

    client = httpx2.Client(transport=httpx2.MockTransport(handle))
    transport = Transport("http://127.0.0.1:1/v1", attempts=2, sleep=lambda seconds: None, client=client)
    stage = Stage("api", "API", "?")
    with HttpTarget("http://127.0.0.1:1/v1", transport=transport) as target:
        api.api(ExamContext(target, engine, quick=True, kinds={"chat"}, **more), stage)
    return stage


def plain(body: dict[str, Any], text: str = "One, two, three, four, five, six.") -> tuple[int, dict[str, Any]]:
    """Answer in words alone, without token counts; what it does not know it refuses."""
    unknown = set(body) - {"model", "messages", "max_tokens", "temperature", "stop"}
    if unknown or not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        return 400, {"error": {"message": f"unknown fields: {sorted(unknown)}"}}
    words = re.findall(r"\S+\s*", text)[: body["max_tokens"]]
    said, finish = "".join(words).strip(), "stop" if len(words) < body["max_tokens"] else "length"
    stops = body.get("stop") or []
    cuts = [said.find(word) for word in ([stops] if isinstance(stops, str) else stops) if word and word in said]
    said, finish = (said[: min(cuts)], "stop") if cuts else (said, finish)
    message = {"role": "assistant", "content": said}
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return 200, {**head, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def test_a_server_that_knows_little_is_not_accused(engine) -> None:
    stage = stage_of(engine, plain)
    # it refuses fields that clients send, which is its right here, though not to be called compatible
    assert set(accused(stage)) <= {"plain HTTP"}, accused(stage)
    outcomes = {check.name: check.outcome for check in stage.checks}
    assert outcomes["stop strings"] is Outcome.OK
    for name in ("log probabilities", "streams", "tool calls", "JSON schemas", "prompt tokens"):
        assert outcomes[name] in (Outcome.IMPOSSIBLE, Outcome.OK), name


def test_overload_is_waited_for_and_then_said(engine) -> None:
    def busy(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return plain(body) if "stop" not in body else (429, {"error": {"message": "slow down"}})

    stage = stage_of(engine, busy)
    (stops,) = (check for check in stage.checks if check.name == "stop strings")
    assert stops.outcome is Outcome.SKIPPED and "slow down" in str(stops.figures)
    stage = stage_of(engine, lambda body: (503, {"error": {"message": "overloaded"}}))
    assert [check.outcome for check in stage.checks] == [Outcome.IMPOSSIBLE] and "overloaded" in stage.checks[0].says


def test_what_is_wrong_once_is_not_wrong(engine) -> None:
    asked: list[dict[str, Any]] = []

    def flaky(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "stop" in body and body not in asked:
            asked.append(body)
            return plain({**body, "stop": []})
        return plain(body)

    (stops,) = (check for check in stage_of(engine, flaky).checks if check.name == "stop strings")
    assert stops.outcome is Outcome.UNSURE and "once in two tries" in str(stops.figures)


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_not_wrong(engine, status) -> None:
    stage = stage_of(engine, lambda body: plain(body) if set(body) <= {"model", "messages", "max_tokens", "temperature"}
                     else (status, {"error": {"message": "no"}}))  # fmt: skip
    assert set(accused(stage)) <= {"plain HTTP"}


@pytest.mark.parametrize("message", ["1 validation error: 'loc': ('body', 'stream')", "tools are not supported"])
def test_a_refusal_with_the_status_of_a_failure_is_said_once(engine, message) -> None:
    """What is refused is not called broken: its status is."""
    known = {"model", "messages", "max_tokens", "temperature"}
    stage = stage_of(engine, lambda body: plain(body) if set(body) <= known else (500, {"error": {"message": message}}))
    assert set(accused(stage)) <= {"plain HTTP", "status of refusals"}, accused(stage)
    (status,) = (check for check in stage.checks if check.name == "status of refusals")
    assert status.outcome is Outcome.WRONG and message[:20] in status.says and not status.cause
    stage = stage_of(engine, lambda body: plain(body) if set(body) <= known else (500, {"error": {"message": "oops"}}))
    assert "streams" in accused(stage), "other failures stay failures"


def test_a_schema_that_a_server_does_not_know_is_not_called_broken(engine) -> None:
    known = {"model", "messages", "max_tokens", "temperature", "stop"}

    def ignores(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return plain({name: value for name, value in body.items() if name in known})

    def checks(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        form = body.get("response_format", {})
        return ignores(body) if isinstance(form, dict) else (422, {"error": {"message": "no such format"}})

    outcomes = [{check.name: check for check in stage_of(engine, answer).checks} for answer in (ignores, checks)]
    assert outcomes[0]["JSON schemas"].outcome is Outcome.UNSURE and "no effect" in outcomes[0]["JSON schemas"].says
    assert outcomes[1]["JSON schemas"].outcome is Outcome.WRONG, "it knows the field"
