"""The HTTP target against a scripted server: retries, secrets, wrong models, malformed answers, streams."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from ds4ref.errors import TargetError, UsageError
from ds4ref.targets import Ability, Prompt, Request, collect, open_target
from ds4ref.targets.openai import HttpTarget
from ds4ref.targets.transport import Connection, Refused, Transport

BASE = "http://127.0.0.1:9/v1"
ASK = Request(Prompt.chat("Hi"), max_tokens=2, top_logprobs=2)


def step(text: str, logprob: float, *others: tuple[str, float]) -> dict[str, Any]:
    best = [{"token": t, "bytes": list(t.encode()), "logprob": p} for t, p in ((text, logprob), *others)]
    return {**best[0], "top_logprobs": best}


def answer(text: str = "ab", model: str = "m", **more: Any) -> dict[str, Any]:
    content = [step("a", -0.1, ("x", -2.5)), step("b", -0.2, ("y", -1.9))]
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length",
              "logprobs": {"content": content}}  # fmt: skip
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    return {"model": model, "choices": [choice], "usage": usage, **more}


class Server:
    """Plays a list of responses; remembers requests and how long the client slept."""

    def __init__(self, *replies: Any):
        self.replies, self.requests, self.slept = list(replies), [], []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx2.Response) else httpx2.Response(200, json=reply)

    def target(self, model: str | None = "m", **options: Any) -> HttpTarget:
        transport_options = {k: options.pop(k) for k in ("attempts", "per_minute", "key_env") if k in options}
        client = httpx2.Client(transport=httpx2.MockTransport(self))
        transport = Transport(BASE, client=client, sleep=self.slept.append, **transport_options)
        return HttpTarget(BASE, model, transport=transport, **options)

    def body(self, at: int = -1) -> dict[str, Any]:
        return json.loads(self.requests[at].content)


def status(code: int, text: str = "", **headers: str) -> httpx2.Response:
    return httpx2.Response(code, text=text, headers=headers)


def test_completion_with_logprobs_usage_and_finish() -> None:
    server = Server(answer())
    done = server.target().complete(ASK)
    assert done.text == "ab" and done.finish == "length" and done.model == "m"
    assert [s.token.raw for s in done.steps] == [b"a", b"b"]
    assert [(t.raw, t.logprob) for t in done.steps[1].top] == [(b"b", -0.2), (b"y", -1.9)]
    assert (done.usage.prompt, done.usage.completion, done.usage.cached) == (7, 2, 3)
    body = server.body()
    assert body["top_logprobs"] == 2 and body["logprobs"] is True and body["temperature"] == 0
    assert body["thinking"] == {"type": "disabled"} and body["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("failure", [status(429), status(500), status(503), httpx2.ConnectError("refused"),
                                     httpx2.ReadTimeout("slow")], ids=str)  # fmt: skip
def test_passing_failures_are_retried(failure: Any) -> None:
    server = Server(failure, failure, answer())
    assert server.target().complete(ASK).text == "ab"
    assert len(server.requests) == 3 and len(server.slept) == 2


def test_waits_between_tries_grow_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full jitter: a wait is drawn from zero to a limit that doubles up to half a minute; none follows the last try."""
    drawn = []
    monkeypatch.setattr("random.Random.uniform", lambda self, low, high: drawn.append((low, high)) or high)
    server = Server(status(503))
    target = server.target(attempts=9)
    with pytest.raises(TargetError, match="9 attempts"):
        target.complete(ASK)
    assert server.slept == [1, 2, 4, 8, 16, 30, 30, 30] and {low for low, _ in drawn} == {0}
    assert target.transport.retries == 8
    server = Server(*[status(503, **{"retry-after": wait}) for wait in ("3", "3", "3", "99999")], answer())
    server.target().complete(ASK)
    assert server.slept == [3, 3, 4, 60], (
        "never sooner than the server asks, within a minute, nor than the backoff has it"
    )
    server = Server(status(503, **{"retry-after": "9"}), httpx2.ConnectError("refused"), status(503), answer())
    server.target().complete(ASK)
    assert server.slept == [9, 2, 4], "what a server asked holds for one wait"


def test_rate_limit_spaces_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 50.0 + sum(server.slept), time=time.time)
    monkeypatch.setattr("ds4ref.targets.transport.time", clock)
    server = Server(answer())
    target = server.target(per_minute=120)
    for _ in range(3):
        target.complete(ASK)
    assert server.slept == [0.5, 0.5]


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(httpx2.Response(200, json=answer()).content)
    monkeypatch.setattr("ds4ref.targets.transport.MAX_BODY", size)
    assert Server(answer()).target().complete(ASK).text == "ab"
    monkeypatch.setattr("ds4ref.targets.transport.MAX_BODY", size - 1)
    with pytest.raises(TargetError, match="larger than"):
        Server(answer()).target().complete(ASK)


def test_what_is_asked_for_is_sent() -> None:
    ask = Request(
        Prompt.chat("Hi", "Be brief.", "high"), max_tokens=7, temperature=0.5, top_p=0.9, min_p=0.1, seed=3, stop=("X",)
    )
    server = Server(answer())
    server.target(extra={"cache_prompt": False}).complete(ask)
    assert server.body() == {
        "model": "m", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "seed": 3, "stop": ["X"],
        "stream": False, "thinking": {"type": "enabled"}, "cache_prompt": False,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }  # fmt: skip
    server.target(ids=True).complete(Request(Prompt.tokens([5, 6]), 1, seed=0))
    assert server.body() == {
        "model": "m", "max_tokens": 1, "temperature": 0.0, "seed": 0, "stream": False, "prompt": [5, 6],
        "thinking": {"type": "disabled"},
    }  # fmt: skip


def test_connections_name_sessions_only_if_they_are_to() -> None:
    server = Server(answer())
    target = server.target()
    for target.transport.sessions in (False, True):
        target.complete(ASK)
    assert "x-session-id" not in server.requests[0].headers and len(server.requests[1].headers["x-session-id"]) == 16
    assert Connection(target.transport._client).session != Connection(target.transport._client).session


def test_as_many_alternatives_as_the_protocol_has() -> None:
    target = Server(answer()).target()
    target.complete(Request(Prompt.chat("Hi"), top_logprobs=20))
    with pytest.raises(UsageError, match="at most 20 alternatives"):
        target.complete(Request(Prompt.chat("Hi"), top_logprobs=21))


@pytest.mark.parametrize("stream", [False, True])
def test_another_model_is_refused(stream: bool) -> None:
    event = {"model": "n", "choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    reply = sse(event) if stream else answer(model="n")
    target = Server(reply).target()
    with pytest.raises(TargetError, match="requested model m, but n answered"):
        collect(target.stream(ASK)) if stream else target.complete(ASK)
    again = Server(sse(event) if stream else answer(model="n")).target(accept=["n"])
    assert (collect(again.stream(ASK)) if stream else again.complete(ASK)).model == "n"


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-very-secret"
    monkeypatch.setenv("MY_KEY", secret)
    server = Server(httpx2.Response(401, json={"error": {"message": f"bad key {secret}"}}))
    target = server.target(key_env="MY_KEY")
    with pytest.raises(TargetError) as caught:
        target.complete(ASK)
    assert server.requests[0].headers["authorization"] == f"Bearer {secret}"
    shown = f"{caught.value!r} {caught.value} {target.transport!r} {target.identity()} {vars(target)!r}"
    assert secret not in shown and "***" in shown


def test_the_key_does_not_travel_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4_API_KEY", "sk-x")
    with pytest.raises(UsageError, match="not sent over plain http"):
        open_target("http://example.com/v1")
    with pytest.raises(UsageError, match="no credentials in the address"):
        open_target("https://user:pw@example.com/v1")
    with pytest.raises(UsageError, match="no credentials in the address"):
        open_target("https://user@example.com/v1")
    for address in ("https://example.com/v1?key=x", "https://example.com/v1#x"):
        with pytest.raises(UsageError, match="must not contain a query string"):
            open_target(address)


@pytest.mark.parametrize("reply", [
    httpx2.Response(200, content=b"<html>"), httpx2.Response(200, content=b"[" * 100000), [], {"model": "m"},
    {"choices": []}, {"choices": [{"message": {"content": "x"}}]}, {"choices": [3]},
    answer() | {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "logprobs": {"content": [{}]}}]},
    answer() | {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "logprobs": None}]},
    {"error": {"message": "out of memory"}},
], ids=range(10))  # fmt: skip
def test_malformed_answers_are_one_line(reply: Any) -> None:
    with pytest.raises(TargetError) as caught:
        Server(reply).target().complete(ASK)
    assert "\n" not in str(caught.value)


def sse(*events: Any, done: bool = True) -> httpx2.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"] * done
    return httpx2.Response(200, content=("".join([": keep-alive\n\n", *lines])).encode(),
                           headers={"content-type": "text/event-stream; charset=utf-8"})  # fmt: skip


def delta(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": {"content": text}, "finish_reason": finish, **more}]}


def test_stream_gives_arrival_times_usage_and_steps() -> None:
    usage = {"model": "m", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    events = [delta("a", logprobs={"content": [step("a", -0.1)]}), delta("b"), delta("", "stop"), usage]
    server = Server(sse(*events))
    done = collect(server.target().stream(ASK))
    assert done.text == "ab" and done.finish == "stop" and done.usage.completion == 2
    assert len(done.arrivals) == 2 and done.ttft == done.arrivals[0] and len(done.gaps) == 1
    assert done.steps[0].token.raw == b"a" and done.steps[0].time == done.arrivals[0]
    assert server.body()["stream_options"] == {"include_usage": True}


def test_a_piece_behind_the_finish_keeps_it() -> None:
    late = {"choices": [{"delta": {"content": ""}, "finish_reason": None}]}
    done = collect(Server(sse(delta("a", "stop"), late)).target().stream(ASK))
    assert (done.finish, done.model) == ("stop", "m"), "and the model's name, where it has none"


@pytest.mark.parametrize("reply, why", [
    (sse(delta("a"), done=False), "without a finish reason"),
    (sse({"error": {"message": "prefill failed"}}), "prefill failed"),
    (httpx2.Response(200, json=answer()), "expected an event stream"),
], ids=["broken off", "error event", "no stream"])  # fmt: skip
def test_broken_streams(reply: httpx2.Response, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        collect(Server(reply).target().stream(ASK))


def legacy(tokens: list[str], values: list[float | None], made: int = 1) -> dict[str, Any]:
    tops = [None if v is None else {t: v, "zz": v - 3} for t, v in zip(tokens, values, strict=True)]
    logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}
    choice = {"text": "".join(tokens), "finish_reason": "length", "logprobs": logprobs}
    return {
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": len(tokens) - made, "completion_tokens": made},
    }


def test_echo_scores_a_text() -> None:
    server = Server(legacy(["One", " two", "!"], [None, -1.5, -0.3]))
    steps = server.target(extra={"prompt_logprobs": 1}).score_text("One two")
    assert [(s.token.raw, s.token.logprob) for s in steps] == [(b"One", None), (b" two", -1.5)]
    assert server.body() == {
        "model": "m", "prompt": "One two", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1,
        "prompt_logprobs": 1,
    }  # fmt: skip


@pytest.mark.parametrize("bos", ["<BOS>", "\uff5cbegin\uff5c"])
def test_a_bos_of_the_server_is_no_part_of_the_text(bos: str) -> None:
    server = Server(legacy([bos, "One", " two", "!"], [None, -2.5, -1.5, -0.3]))
    steps = server.target().score_text("One two", top_logprobs=5)
    assert [(s.token.raw, s.token.logprob) for s in steps] == [(b"One", -2.5), (b" two", -1.5)]
    assert server.body()["logprobs"] == 5


def test_an_echo_of_another_model_is_refused() -> None:
    with pytest.raises(TargetError, match="requested model m, but n answered"):
        Server(legacy(["One", "!"], [None, -0.3]) | {"model": "n"}).target().score_text("One")


def test_alternatives_are_best_first_and_may_lack() -> None:
    reply = legacy(["a"], [-2.0])
    found = reply["choices"][0]["logprobs"]
    found["top_logprobs"] = [{"low": -9.0, "best": -0.5, "a": -2.0}]
    ask = Request(Prompt.plain("P"), 1, top_logprobs=3)
    (step,) = Server(reply).target().complete(ask).steps
    assert [(t.raw, t.logprob) for t in step.top] == [(b"best", -0.5), (b"a", -2.0), (b"low", -9.0)]
    del found["top_logprobs"], found["token_logprobs"]
    (step,) = Server(reply).target().complete(ask).steps
    assert (step.token.raw, step.token.logprob, step.top) == (b"a", None, ())
    found["token_logprobs"] = [-2.0, -1.0]
    with pytest.raises(TargetError, match="malformed log probabilities"):
        Server(reply).target().complete(ask)


def test_missing_echo_is_noticed() -> None:
    with pytest.raises(TargetError, match="does not return log probabilities of the prompt"):
        Server(legacy(["!"], [-0.3])).target().score_text("One two")


def test_scoring_step_by_step_with_a_forced_prefix() -> None:
    server = Server(legacy(["x"], [-0.5]), legacy(["a"], [-0.5]), legacy(["q"], [-0.1]))
    steps = server.target().score(Prompt.plain("P:"), [b"a", b"zz"], top_logprobs=2)
    assert [s.token.logprob for s in steps] == [-0.5, -3.1]
    assert [server.body(i)["prompt"] for i in range(3)] == ["a", "P:", "P:a"]


@pytest.mark.parametrize(("tokens", "raw"), [(1, True), (3, True), (4, False), (17, False), (None, None)])
def test_a_server_that_makes_a_chat_of_a_text_is_not_compared(tokens: int | None, raw: bool | None) -> None:
    """As ds4's does: it counts many tokens for a letter. Asked once, however much is compared."""
    server = Server(legacy(["a"], [-0.5]) | {"usage": {"prompt_tokens": tokens}})
    target = server.target()
    assert target.continues_text() is raw
    if raw is False:
        with pytest.raises(TargetError, match="cannot compare: .* turns the text prompt of a completion into a chat"):
            target.score(Prompt.plain("P:"), [b"a"])
    else:
        target.score(Prompt.plain("P:"), [b"a"])
    assert server.body(0)["prompt"] == "a"
    assert len(server.requests) == (1 if raw is False else 2)


def test_a_chat_goes_on_only_where_the_server_can() -> None:
    with pytest.raises(TargetError, match="no --prefill style chosen"):
        Server(answer()).target().score(Prompt.chat("Q"), [b"a", b"b"])
    server = Server(answer())
    server.target(prefill="deepseek").score(Prompt.chat("Q"), [b"a", b"b"])
    assert server.body()["messages"][-1] == {"role": "assistant", "content": "a", "prefix": True}


def test_the_only_model_is_found_and_several_must_be_named() -> None:
    assert Server({"data": [{"id": "x"}]}).target(None).model == "x"
    with pytest.raises(UsageError, match="serves 2 models, choose one with --model-name: x, y"):
        _ = Server({"data": [{"id": "x"}, {"id": "y"}]}).target(None).model


@pytest.mark.parametrize("reply", [status(200), status(200, "<html>"), status(404, "no such page")], ids=str)
def test_a_server_that_lists_no_models_is_asked_for_the_named_one(reply: Any) -> None:
    """mlx-lm's sends an empty list of models, not even JSON, where Hugging Face's cache does not exist."""
    with pytest.raises(UsageError, match="lists no models, choose one with --model-name"):
        _ = Server(reply).target(None).model
    with pytest.raises(TargetError, match="401"):
        _ = Server(status(401, "key")).target(None).model
    with pytest.raises(TargetError, match="not JSON: it is empty") as caught:
        Server(status(200)).target("m").complete(ASK)
    assert not isinstance(caught.value, Refused), "a broken answer does not say what the server takes"


def test_fewer_alternatives_are_asked_for_where_a_server_names_its_limit() -> None:
    server = Server(status(400, '{"error": "top_logprobs must be at most 1"}'), answer(), answer())
    target = server.target()
    assert target.complete(ASK).text == target.complete(ASK).text == "ab"
    assert [json.loads(sent.content)["top_logprobs"] for sent in server.requests] == [2, 1, 1]
    with pytest.raises(TargetError, match="at most 2"):
        Server(status(400, "top_logprobs must be at most 2")).target().complete(ASK)


def test_completions_ask_for_alternatives_as_chats_do_where_a_server_wants_that() -> None:
    refusal = status(400, '{"error": "logprobs must be of type bool"}')
    server = Server(refusal, status(400, "top_logprobs must be at most 1"), answer())
    target = server.target()
    done = target.complete(replace(ASK, prompt=Prompt.plain("P")))
    assert [step.token.raw for step in done.steps] == [b"a", b"b"]
    sent = [json.loads(each.content) for each in server.requests]
    assert [(body["logprobs"], body.get("top_logprobs")) for body in sent] == [(2, None), (True, 2), (True, 1)]
    with pytest.raises(TargetError, match="of type bool"):
        Server(refusal).target().complete(replace(ASK, prompt=Prompt.plain("P")))


def test_tokens_of_mlx_lm_are_the_chosen_ones() -> None:
    """Its alternatives come in any order, the first of them as the token; spelled as in the vocabulary."""

    def entry(*listed: tuple[int, str, float]) -> dict[str, Any]:
        best = [{"id": number, "token": text, "logprob": value} for number, text, value in listed]
        return {**best[0], "top_logprobs": best}

    content = [entry((7, "Ġ+", -3.0), (9, "Ġplus", -0.1)), entry((8, "\u00c4\u00a1", -0.2), (3, "?", -4.0))]
    reply = answer() | {"choices": [{"finish_reason": "stop", "message": {"content": " plus\u0121"},
                                     "logprobs": {"content": content}}]}  # fmt: skip
    steps = Server(reply).target().complete(ASK).steps
    assert [(s.token.raw, s.token.id, s.token.logprob) for s in steps] == [
        (b" plus", 9, -0.1), ("\u0121".encode(), 8, -0.2)]  # fmt: skip
    assert [t.raw for t in steps[0].top] == [b" plus", b" +"]
    with pytest.raises(TargetError, match="no log probabilities"):
        Server(reply).target().complete(replace(ASK, temperature=1.0))
    bare = {"id": 3, "token": "a", "logprob": -1.0, "top_logprobs": []}
    reply["choices"][0]["logprobs"]["content"] = [bare]
    assert [s.token.raw for s in Server(reply).target().complete(ASK).steps] == [b"a"]
    reply["choices"][0]["logprobs"]["content"] = [bare, content[0]]
    with pytest.raises(TargetError, match="malformed log probabilities"):
        Server(reply).target().complete(ASK)


def test_abilities_refuse_in_one_line() -> None:
    target: HttpTarget = Server(answer()).target()
    with pytest.raises(UsageError, match="diff needs logits of the whole vocabulary, which http target"):
        target.require(Ability.FULL_LOGITS, needed_for="diff")
    with pytest.raises(UsageError, match="this prompt needs prompts of token ids"):
        target.complete(Request(Prompt.tokens([1, 2])))
    call: list[Callable[[], Any]] = [lambda: target.logits([1]), lambda: target.tokenize("x")]
    for each in call:
        with pytest.raises(TargetError, match="does not offer"):
            each()


@pytest.mark.parametrize("spec", ["", "ftp://x", "http://", "command:", "nonsense"])
def test_bad_specs(spec: str) -> None:
    with pytest.raises(UsageError):
        open_target(spec)
    with pytest.raises(UsageError, match="colour"):
        open_target("http://127.0.0.1:9/v1", colour="red")


@pytest.mark.parametrize("key", ["sk-a\nb", "sk-\u00e9"])
def test_a_key_that_cannot_be_sent_is_not_quoted(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("DS4_API_KEY", key)
    with pytest.raises(UsageError, match="characters that cannot be sent") as caught:
        open_target("https://example.com/v1")
    assert "sk-" not in str(caught.value)
