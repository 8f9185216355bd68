"""Legacy completions: requests, streams, documents; prompts that are scored."""

from __future__ import annotations

import json
import queue
import threading

import numpy as np
import pytest

from ds4ref.errors import TokenError
from ds4ref.sampling import token_logprob, top_logprobs
from ds4ref.server.api import Refused
from ds4ref.server.turn import Answered, Failed, Prefill, Sampling
from ds4ref.server.worker import Overflow, Worker
from ds4ref.targets.answer import Delta, Finish, Step, Token, Usage
from ds4ref.targets.local import LocalTarget
from ds4ref.targets.openai import HttpTarget
from ds4ref.text.chat import completion
from tests.cli.fake import FakeEngine

from .answers import MODEL, NOW, data_of, deltas, play, read

PATH = "/v1/completions"
PROMPT = "Once upon a time, the 4 städte €5 — "


# --- streams and documents


def test_the_transcripts_of_the_reference(monkeypatch):
    """server.md 6, to the byte."""
    monkeypatch.setattr("ds4ref.server.apis.common._numbers", iter([7, 8]))
    said = [Delta("Hi"), Delta(" there"), Delta(finish=Finish.STOP, usage=Usage(32, 2, 0, 0))]
    body = {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}}
    out = play(read(PATH, body)[1], said, prompt=32).decode()
    head = f'{{"id":"cmpl-7","object":"text_completion","created":{NOW},"model":"{MODEL}","choices":['
    usage = (
        '"usage":{"prompt_tokens":32,"completion_tokens":2,"total_tokens":34,'
        '"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":32}}'
    )
    assert out == (
        f'data: {head}{{"text":"Hi","index":0,"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"text":" there","index":0,"finish_reason":null}}]}}\n\n'
        f'data: {head}{{"text":"","index":0,"finish_reason":"stop"}}]}}\n\n'
        f"data: {head}],{usage}}}\n\n"
        "data: [DONE]\n\n"
    )
    whole = play(read(PATH, {"prompt": "x"})[1], said, prompt=32).decode()
    choice = '{"text":"Hi there","index":0,"finish_reason":"stop"}'
    assert whole == head.replace("cmpl-7", "cmpl-8") + f"{choice}],{usage}}}\n"


def test_as_many_alternatives_as_may_be():
    assert read(PATH, {"prompt": "x", "logprobs": 20})[0].top_logprobs == 20
    assert len(read(PATH, {"prompt": ["x"] * 256})[0].more) == 255


def test_usage_only_on_demand():
    out = play(read(PATH, {"prompt": "x", "stream": True})[1], deltas("Hi"))
    assert b"usage" not in out and data_of(out)[-1] == "[DONE]"


@pytest.mark.parametrize(("finish", "reason"), [("stop", "stop"), ("length", "length"), ("error", "stop")])
def test_finish_reasons(finish, reason):
    said = [Delta("x"), Delta(finish=Finish(finish), usage=Usage(1, 1, 0, 0))]
    assert json.loads(play(read(PATH, {"prompt": "x"})[1], said))["choices"][0]["finish_reason"] == reason


def test_a_failure_after_the_stream_began():
    _, reply = read(PATH, {"prompt": "x", "stream": True})
    out = reply.feed(Delta("x")) + reply.feed(Failed("engine", "it broke"))
    assert data_of(out)[-1] == {"error": {"message": "it broke", "type": "server_error"}}
    with pytest.raises(Refused):
        play(read(PATH, {"prompt": "x"})[1], [Delta(finish=Finish.CANCELLED)])


# --- requests


def test_defaults():
    turn, reply = read(PATH, {"prompt": "P"})
    assert turn.sampling == Sampling() and turn.thinking == "none" and turn.raw and not turn.echo
    assert (turn.api, turn.model, turn.max_tokens, turn.stop, reply.stream) == ("completions", MODEL, None, (), False)
    assert (turn.text, turn.messages, turn.more, turn.top_logprobs) == ("P", (), (), None)
    quiet, _ = read(PATH, {"prompt": "P", "max_tokens": 3, "stop": ["a"], "seed": 4})
    assert (quiet.max_tokens, quiet.stop, quiet.sampling.seed) == (3, ("a",), 4)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        ("", [""]),
    ],
)
def test_prompts_of_text(prompt, texts):
    turn, _ = read(PATH, {"prompt": prompt})
    assert [one.text for one in (turn, *turn.more)] == texts
    assert all(one.raw and one.more == () for one in turn.more)


@pytest.mark.parametrize(("more", "options"), [({"apply_chat_template": True}, {}), ({}, {"raw-completions": False})])
@pytest.mark.parametrize(("thinking", "mode"), [({}, "high"), ({"thinking": False}, "none")])
def test_a_chat_is_made_of_a_text_where_it_is_asked_for(more, options, thinking, mode):
    """By a field, or as ds4 does it; never of a text to be scored."""
    turn, _ = read(PATH, {"prompt": "P", **more, **thinking}, options=options)
    assert turn.rendered().text == completion("P", mode).text
    if not more:
        assert read(PATH, {"prompt": "P", "echo": True}, options=options)[0].text == "P"


@pytest.mark.parametrize(
    "prompt", [["a", 5, "c"], [5, "a"], [[1], "a"], ["a", None], ["a", ["b"]], [], [[]], {}, {"x": 1}, None, 7, True,
               [1, 10**30], [1, 2.5], [1, True]]
)  # fmt: skip
def test_what_is_no_prompt_is_refused(prompt):
    """Not answered as if a part of it, or nothing, had been asked."""
    with pytest.raises(Refused, match="prompt"):
        read(PATH, {"prompt": prompt})


@pytest.mark.parametrize(("prompt", "ids"), [([1, 2], [(1, 2)]), ([[1, 2]], [(1, 2)]), ([[1], [2, 3]], [(1,), (2, 3)])])
def test_prompts_of_token_ids(prompt, ids):
    turn, _ = read(PATH, {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1})
    assert [one.ids for one in (turn, *turn.more)] == ids
    assert all(one.echo and one.top_logprobs == 1 and one.text is None and not one.messages for one in turn.more)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing prompt"),
        ({"prompt": [1.5]}, "token ids"),
        ({"prompt": [[1], []]}, "token ids"),
        ({"prompt": [10**30]}, "token ids"),
        ({"prompt": ["x"] * 257}, "more than 256"),
        ({"prompt": "", "echo": True}, "empty prompt"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "echo": 1}, "echo"),
        ({"prompt": "x", "echo": True, "apply_chat_template": True}, "echo returns a prompt as it is"),
    ],
)
def test_what_is_refused(body, message):
    with pytest.raises(Refused, match=message) as refused:
        read(PATH, body)
    assert refused.value.status == 400


# --- with the worker


def test_the_text_is_all_that_was_generated(scripted):
    """Thinking and its tags too; a stop string is looked for in all of it."""
    for script, more, text, reason in (
        ("Hm.</think>Hi", {}, "Hm.</think>Hi", "stop"),
        ("Hm.</think>", {}, "Hm.</think>", "stop"),
        ("Hm.</think>Hi<think>no</think>", {}, "Hm.</think>Hi<think>no</think>", "stop"),
        ("Hm. END</think>Hi", {"stop": "END"}, "Hm. ", "stop"),
        ("Hm.</think>Hi", {"stop": ["</think>"]}, "Hm.", "stop"),
        ("Hi", {"thinking": False, "max_tokens": 1}, "H", "length"),
    ):
        scripted.engine.say(script, script)
        body = {"prompt": "P", **more}
        whole = scripted.client.post(PATH, json=body).json()
        assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text, reason)
        stream = data_of(scripted.client.post(PATH, json={**body, "stream": True}).content)
        assert "".join(event["choices"][0]["text"] for event in stream[:-1]) == whole["choices"][0]["text"]


def test_several_prompts(scripted):
    scripted.engine.say("one</think>", "two</think>", "three</think>")
    body = {"prompt": ["a", "b", "c"], "logprobs": 0}
    whole = scripted.client.post(PATH, json=body).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "one</think>", "stop"),
        (1, "two</think>", "stop"),
        (2, "three</think>", "stop"),
    ]
    assert all("".join(c["logprobs"]["tokens"]) == c["text"] for c in whole["choices"])
    assert all(c["logprobs"]["text_offset"][0] == 0 for c in whole["choices"])
    scripted.engine.say("one", "two", "three")
    stream = scripted.client.post(PATH, json={**body, "stream": True, "stream_options": {"include_usage": True}})
    events = data_of(stream.content)
    texts, ends = {}, []
    for event in events[:-2]:
        (choice,) = event["choices"]
        for offset in choice["logprobs"]["text_offset"][:1]:  # each counts from its own beginning
            assert offset == len(texts.get(choice["index"], ""))
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == {0: "one", 1: "two", 2: "three"} and ends == [0, 1, 2]
    usage = events[-2]["usage"]
    assert usage["completion_tokens"] == sum(
        len(scripted.engine.tokenizer.encode(text)) for text in ("one", "two", "three")
    )
    single = scripted.client.post(PATH, json={"prompt": "a"}).json()["usage"]["prompt_tokens"]
    assert usage["prompt_tokens"] == 3 * single


def test_several_prompts_end_together(scripted):
    """One that does not fit refuses the request; an engine that fails ends it; who leaves takes all of it along."""
    long = scripted.client.post(PATH, json={"prompt": ["a", "word " * 5000]})
    assert long.status_code == 400 and long.json()["error"]["param"] == "prompt"
    events, job = queue.SimpleQueue(), None
    turn, _ = read(PATH, {"prompt": ["a", "b", "c"]})
    scripted.engine.say("one", "two", "three")
    scripted.engine.hold()
    job = scripted.worker.submit(turn, events.put)
    scripted.engine.held()
    job.cancel.press()
    scripted.engine.release()
    found = []
    while not (found and isinstance(found[-1], Delta) and found[-1].finish):
        found.append(events.get(timeout=60))
    assert found[-1].finish == Finish.CANCELLED and not any(isinstance(event, Answered) for event in found)


# --- scoring


class Scorer:
    """The worker on the embedded model, asked as lm-evaluation-harness asks."""

    def __init__(self, engine, ctx=512):
        self.engine = engine
        self.worker = Worker(engine, ctx=ctx)

    def ask(self, body):
        turn, reply = read(PATH, body, ctx=self.worker.ctx)
        box = queue.SimpleQueue()
        self.worker.submit(turn, box.put)
        while True:
            event = box.get(timeout=120)
            assert not isinstance(event, Failed), event
            reply.feed(event)
            if isinstance(event, Delta) and event.finish:
                return json.loads(reply.document())


@pytest.fixture(scope="module")
def scorer(nano_engine):
    made = Scorer(nano_engine)
    yield made
    made.worker.shut_down(0)


SCORE = {"temperature": 0, "max_tokens": 1, "logprobs": 3, "seed": 1234, "echo": True}


@pytest.mark.parametrize("as_ids", [True, False])
@pytest.mark.parametrize("prompt", [PROMPT, "x", "word " * 200, "<｜end▁of▁sentence｜>What is 2+2?"])
def test_echo_scores_the_prompt(scorer, prompt, as_ids):
    """clients.md 9: exactly the prompt's tokens and one more, no BOS, no template; control strings are their tokens."""
    engine = scorer.engine
    ids = engine.tokenizer.encode_rendered(prompt)
    (choice,) = scorer.ask({**SCORE, "prompt": [ids] if as_ids else prompt})["choices"]
    found = choice["logprobs"]
    assert len(found["tokens"]) == len(ids) + 1
    logits = engine.logits(ids)
    assert [bytes(raw) for raw in found["bytes"][:-1]] == [engine.tokenizer.token_bytes(i) for i in ids]
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    wanted = [
        token_logprob(row, token) for row, token in zip(logits, [*ids[1:], int(logits[-1].argmax())], strict=True)
    ]
    np.testing.assert_allclose(found["token_logprobs"][1:], wanted, atol=1e-4)
    for row, top in zip(logits, found["top_logprobs"][1:], strict=True):
        np.testing.assert_allclose(sorted(top.values()), [lp for *_, lp in top_logprobs(row, 3)][::-1], atol=1e-4)
    assert choice["text"].startswith(prompt) and choice["finish_reason"] == "length"
    for raw, at in zip(found["bytes"], found["text_offset"], strict=True):
        text = bytes(raw).decode("utf-8", "ignore")
        assert not text or "�" in choice["text"] or choice["text"][at:].startswith(text)


def test_what_an_evaluation_reads(scorer):
    """The slices of clients.md 9: log probability of a continuation, and whether it is the likeliest."""
    engine = scorer.engine
    context = engine.tokenizer.encode("The quick brown")
    best = int(engine.logits(context)[-1].argmax())
    for token, greedy in ((best, True), (best - 1 if best else 1, False)):
        (choice,) = scorer.ask({**SCORE, "logprobs": 1, "prompt": [[*context, token]]})["choices"]
        values = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        assert len(values) == len(tops) == 1 and (values[0] == max(tops[0].values())) == greedy


def test_batches_are_scored_one_by_one(scorer):
    prompts = [[1, 2, 3], [4, 5], [1, 2, 6]]
    found = scorer.ask({**SCORE, "prompt": prompts})
    for index, prompt in enumerate(prompts):
        (alone,) = scorer.ask({**SCORE, "prompt": prompt})["choices"]
        assert found["choices"][index] == {**alone, "index": index}
    assert found["usage"]["prompt_tokens"] == 8 and found["usage"]["completion_tokens"] == 3


def test_echo_without_log_probabilities(scorer):
    (choice,) = scorer.ask({"prompt": "The quick", "echo": True, "max_tokens": 0})["choices"]
    assert choice == {"text": "The quick", "index": 0, "finish_reason": "length"}
    (scored,) = scorer.ask({**SCORE, "prompt": "The quick", "max_tokens": 0})["choices"]
    assert len(scored["logprobs"]["tokens"]) == len(scorer.engine.tokenizer.encode("The quick"))
    (more,) = scorer.ask({"prompt": "The quick", "echo": True, "max_tokens": 4, "temperature": 0})["choices"]
    assert more["text"].startswith("The quick") and len(more["text"]) > len("The quick")


def test_scoring_takes_no_conversations_place(scorer):
    scorer.worker.timelines.clear()
    scorer.ask({**SCORE, "prompt": "word " * 100})
    assert len(scorer.worker.timelines) == 0


def test_an_end_at_once_is_an_entry_too():
    """Who cuts off the last entry as the generated one would otherwise lose a token of the prompt."""
    scorer = Scorer(FakeEngine("fake.gguf", b""))
    (choice,) = scorer.ask({**SCORE, "prompt": "abc"})["choices"]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "<｜end▁of▁sentence｜>"]
    assert choice["text"] == "abc" and choice["finish_reason"] == "stop"
    scorer.worker.shut_down(0)


def test_ids_that_do_not_exist(scorer):
    turn, _ = read(PATH, {"prompt": [1, 10**9]})
    with pytest.raises(TokenError):
        scorer.worker.submit(turn, print)
    with pytest.raises(Overflow):
        scorer.worker.submit(read(PATH, {"prompt": [1] * 600})[0], print)


def test_scoring_can_be_stopped(scorer):
    """Between chunks, as a prefill."""
    turn, _ = read(PATH, {**SCORE, "prompt": [[1] * 500]})
    seen = queue.SimpleQueue()
    jobs, known = [], threading.Event()

    def listen(event):
        seen.put(event)
        if isinstance(event, Prefill) and event.done:
            assert known.wait(60)
            jobs[0].cancel.press()

    jobs.append(scorer.worker.submit(turn, listen))
    known.set()
    found = []
    while not (found and isinstance(found[-1], Delta) and found[-1].finish):
        found.append(seen.get(timeout=120))
    assert found[-1].finish == Finish.CANCELLED
    assert max(event.done for event in found if isinstance(event, Prefill)) < 500


# --- log probabilities as they are written


def test_tokens_that_are_no_text():
    """Spelled as OpenAI spelled them; their bytes are listed, too. Of alternatives with one text the best counts."""
    half, rest = Token(b"\xe2\x82", -0.5), Token(b"\xac", -0.25)
    other = Token(b"\xe2\x82", -3.0)
    said = [
        Delta("a", steps=(Step(Token(b"a", -0.1), (Token(b"a", -0.1),)),)),
        Delta(steps=(Step(half, (half, other)),)),
        Delta("€", steps=(Step(rest, (rest,)),)),
        Delta("b", steps=(Step(Token(b"b", -0.1), ()),)),
        Delta(finish=Finish.LENGTH, usage=Usage()),
    ]
    wanted = {
        "tokens": ["a", "bytes:\\xe2\\x82", "bytes:\\xac", "b"],
        "token_logprobs": [-0.1, -0.5, -0.25, -0.1],
        "top_logprobs": [{"a": -0.1}, {"bytes:\\xe2\\x82": -0.5}, {"bytes:\\xac": -0.25}, {}],
        "text_offset": [0, 1, 1, 2],
        "bytes": [[97], [226, 130], [172], [98]],
    }
    body = {"prompt": [5], "logprobs": 2}
    assert json.loads(play(read(PATH, body)[1], said))["choices"][0]["logprobs"] == wanted
    pieces = [e["choices"][0]["logprobs"] for e in data_of(play(read(PATH, {**body, "stream": True})[1], said))[:-1]]
    for name, values in wanted.items():
        assert [value for piece in pieces for value in piece[name]] == values


def test_vectors_score_through_it(server, nano_engine):
    """What ds4-vectors asks of an endpoint, against the same engine without one."""
    target = HttpTarget(server.url + "/v1", model=MODEL, dialect="ds4")
    text = PROMPT * 3
    local = LocalTarget(nano_engine)  # never closed: the engine is everybody's
    wanted = local.score_text(text, 2)
    found = target.score_text(text, 2)
    assert [step.token.raw for step in found] == [step.token.raw for step in wanted]
    assert found[0].token.logprob is None
    np.testing.assert_allclose(
        [step.token.logprob for step in found[1:]], [step.token.logprob for step in wanted[1:]], atol=1e-4
    )
    for ours, theirs in zip(found[1:], wanted[1:], strict=True):
        assert {token.raw for token in ours.top} == {token.raw for token in theirs.top}
    target.close()
