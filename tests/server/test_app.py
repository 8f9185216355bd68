"""One handler for all APIs, over a scripted engine: what goes out, when, and what happens when it cannot."""

import json
import logging
import socket
import threading
from dataclasses import replace

import pytest

from ds4ref.errors import BackendError
from ds4ref.server.auth import Access
from ds4ref.server.service import Settings

from .conftest import QUICK, post, read_all, read_one


def events(text):
    """The data of server-sent events; comments as text."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        elif block:
            found.append(block)
    return found


def begin(server, say="hi", **more):
    """A request in flight: a thread that will have ``answer``."""

    def ask():
        thread.answer = server.ask(say, **more)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


# --- answers


def test_pieces_arrive_as_they_are_generated(scripted):
    scripted.engine.say("one two three four five six")
    scripted.engine.hold()
    with scripted.client.stream("POST", "/v1/echo", json={"say": "hi", "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache"
        lines = answer.iter_lines()
        assert next(lines) == 'data: {"begin": true}'
        prefill = -(-scripted.seen.live[0].prompt // scripted.engine.chunk)
        scripted.engine.step(prefill + 3)
        assert next(lines) == "" and "one" in next(lines)
        scripted.engine.release()
        assert [line for line in lines if line][-1] == "data: [DONE]"


def test_http_1_0_gets_a_stream_that_ends_with_the_connection(scripted):
    body = b'{"say":"hi","stream":true}'
    head = b"POST /v1/echo HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = scripted.raw(head + body)
    assert found.startswith(b"HTTP/1.1 200") and found.endswith(b"data: [DONE]\n\n")
    assert b"transfer-encoding" not in found.lower()


# --- what cannot be


def test_a_bug_in_a_module_is_a_500_and_logged(scripted, caplog):
    logging.getLogger("ds4-server").propagate = True
    answer = scripted.client.post("/v1/echo", json={"bug": "secret"})
    assert answer.status_code == 500
    assert answer.json()["error"] == {"message": "internal error", "type": "server_error"}
    assert any(record.exc_info for record in caplog.records)
    assert scripted.ask().status_code == 200


def test_a_bug_in_telling_ends_the_stream_in_its_protocol(scripted):
    found = events(scripted.ask(stream=True, bad_feed=True).text)
    assert found == [{"begin": True}, {"error": {"message": "internal error", "code": "engine"}}]
    answer = scripted.ask(bad_feed=True)
    assert answer.status_code == 500 and answer.json()["error"]["message"] == "internal error"
    assert scripted.ask().status_code == 200


@pytest.mark.parametrize("name", ["gpt-4", "nope", "deepseek-v4-flash/", ""])
def test_models_that_are_not_there(scripted, name):
    answer = scripted.client.get(f"/v1/models/{name}")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
    assert repr(name) in answer.json()["error"]["message"]


def test_cors_is_for_those_who_ask_for_it(serving):
    closed, opened = serving(), serving(settings=Settings(access=Access(cors=True)))
    origin = {"Origin": "https://example.org"}
    for path, more in (("/v1/echo", {}), ("/v1/echo", {"stream": True}), ("/v1/echo", {"bug": 1}), ("/no", {})):
        for server, wanted in ((closed, None), (opened, "*")):
            answer = server.client.post(path, json={"say": "hi", **more}, headers=origin)
            assert answer.headers.get("access-control-allow-origin") == wanted
    preflight = opened.client.options("/v1/echo", headers=origin)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
    assert preflight.headers["access-control-allow-headers"] == "*"


# --- what does not fit, and what must wait


def test_a_prompt_as_long_as_the_context_does_not_fit(serving):
    prompt = serving().ask("hi " * 50).json()["prompt"]
    fits, tight = serving(ctx=prompt + 1), serving(ctx=prompt)
    assert fits.ask("hi " * 50).status_code == 200
    answer = tight.ask("hi " * 50)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": f"Prompt has {prompt} tokens, but the configured context size is {prompt} tokens",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "n_prompt_tokens": prompt,
        "n_ctx": prompt,
    }


def test_a_full_queue_says_when_to_come_back(serving):
    server = serving(queue_limit=1)
    server.engine.hold()
    running = begin(server)
    server.until(lambda: server.worker.running)
    waiting = begin(server)
    server.until(lambda: len(server.worker.queue) == 1)
    answer = server.ask()
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
    assert "x-should-retry" not in answer.headers
    server.engine.release()
    for thread in (running, waiting):
        thread.join()
        assert thread.answer.status_code == 200


def test_what_goes_wrong_in_the_answer(scripted):
    for stream in (False, True):
        scripted.engine.fail = BackendError("the device burns")
        answer = scripted.ask(stream=stream)
        if stream:
            wanted = {"error": {"message": "the device burns", "code": "engine"}}
            assert answer.status_code == 200 and events(answer.text) == [{"begin": True}, wanted]
        else:
            assert answer.status_code == 500
            assert answer.json()["error"] == {"message": "the device burns", "type": "server_error"}
    assert scripted.ask().status_code == 200


# --- clients that leave


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_who_leaves_is_not_worked_for(serving, stream, phase):
    server = serving(chunk=16)
    server.engine.say(*[" ".join(map(str, range(2000)))] * 2)
    server.engine.hold()
    if phase == "queue":
        other = begin(server)
        server.engine.held()
    sock = server.connect()
    sock.sendall(post("/v1/echo", json.dumps({"say": "word " * 100, "stream": stream, "thinking": "none"}).encode()))
    if phase == "queue":
        server.until(lambda: len(server.worker.queue) == 1)
    else:
        server.engine.held()
        if phase == "decode":
            server.engine.step(-(-len(server.worker.running[0].ids) // 16) + 2)
    job = None if phase == "queue" else server.worker.running[0]
    before = server.worker.finished
    sock.close()
    if phase == "queue":
        server.until(lambda: len(server.worker.queue) == 0)
        assert server.worker.finished == before + 1
        server.engine.release()
        other.join()
        assert other.answer.status_code == 200
    else:
        server.until(lambda: job.cancel.requested)
        evaluated = server.engine.evaluated
        server.engine.release()
        server.until(lambda: server.worker.finished > before)
        assert server.engine.evaluated <= evaluated + 2  # the token that was under way, and an end of sequence
    server.until(lambda: not server.seen.live)
    x = server.seen.ended_ones[0 if phase != "queue" else -1]
    assert x.status == 499 and x.error == "client left"
    assert server.ask().status_code == 200


def test_who_does_not_read_loses_the_connection_and_nobody_waits(serving):
    server = serving(limits=replace(QUICK, write_seconds=0.2), ctx=100_000)
    server.engine.say([server.engine.tokenizer.encode("word")[0]] * 60_000)
    server.little_room()
    sock = server.connect(SO_RCVBUF=4096)
    sock.sendall(post("/v1/echo", b'{"say":"hi","stream":true}'))
    server.until(lambda: server.seen.ended_ones)
    x = server.seen.ended_ones[0]
    assert x.status == 499 and x.error == "client does not read" and x.tokens < 60_000
    assert server.ask().status_code == 200
    assert b"[DONE]" not in read_all(sock)


# --- the end


def test_shutdown_answers_what_runs_and_refuses_what_waits(serving):
    server = serving()
    server.engine.say("the first answer")
    server.engine.hold()
    running = begin(server, stream=True)
    server.engine.held()
    waiting = begin(server)
    server.until(lambda: len(server.worker.queue) == 1)
    keeps = server.connect()
    keeps.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_one(keeps)[0] == 200
    server.background.server.end()
    waiting.join()
    assert waiting.answer.status_code == 503 and waiting.answer.headers["x-should-retry"] == "false"
    assert waiting.answer.json()["error"]["message"] == "server shutting down"
    assert read_all(keeps) == b""  # an idle connection is closed
    with pytest.raises(OSError):
        socket.create_connection(server.address, timeout=5)
    server.engine.release()
    running.join()
    found = events(running.answer.text)
    assert "".join(event.get("text", "") for event in found[1:-2]) == "the first answer"
    assert found[-1] == "[DONE]"
    server.background.thread.join(300)
    assert not server.background.thread.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_shutdown_ends_what_takes_too_long(serving, stream):
    server = serving(limits=replace(QUICK, drain_seconds=0.1))
    server.engine.hold()
    running = begin(server, stream=stream)
    server.engine.held()
    server.background.server.end()
    server.until(lambda: not server.worker.running)
    running.join()
    if stream:
        assert events(running.answer.text)[-1] == {"error": {"message": "server shutting down", "code": "shutdown"}}
    else:
        assert running.answer.status_code == 503


def test_a_request_that_is_still_being_sent_at_shutdown_is_refused(serving):
    server = serving()
    server.engine.hold()
    running = begin(server)
    server.engine.held()
    sock = server.connect()
    sock.sendall(post("/v1/echo", b'{"say":"hi"}')[:-3])
    server.until(lambda: server.service.body_budget.bytes == len(b'{"say":"hi"}') - 3)
    server.background.server.end()
    assert read_all(sock).startswith(b"HTTP/1.1 503")
    server.engine.release()
    running.join()
    assert running.answer.status_code == 200
