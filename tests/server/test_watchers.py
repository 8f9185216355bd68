"""What logs, metrics, trace and status say of what happened."""

import gzip
import json
import logging
import os
import re
import stat

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ds4ref.errors import BackendError, DataError, one_line
from ds4ref.server.logs import Json, Plain
from ds4ref.server.trace import Trace

from .conftest import post
from .test_app import begin


@pytest.fixture
def lines(caplog):
    """What was logged."""
    caplog.set_level(logging.INFO, "ds4-server")
    logging.getLogger("ds4-server").propagate = True
    return lambda: [record.getMessage() for record in caplog.records if record.name == "ds4-server"]


def figures(server):
    """The metrics: (name, labels) -> value."""
    page = server.client.get("/metrics")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


# --- logs


def test_failures_are_errors(scripted, caplog, lines):
    scripted.engine.fail = BackendError("no\x1b[31m more")
    scripted.ask()
    scripted.until(lambda: any('finish=error error="no' in line for line in lines()))
    record = next(record for record in caplog.records if "finish=error" in record.getMessage())
    assert record.levelname == "ERROR" and record.fields["status"] == 500
    assert "\x1b" not in Plain(False).format(record)
    found = json.loads(Json().format(record))
    assert found["level"] == "error" and found["request"].startswith("req_") and found["api"] == "chat"
    assert {"queue_s", "prefill_s", "decode_s", "total_s", "prompt", "cached", "generated", "finish"} <= found.keys()


def test_what_was_refused_is_logged(scripted, lines):
    scripted.client.post("/v1/echo", json={})
    scripted.client.get("/nothing", headers={"x-request-id": "me"})
    scripted.client.get("/v1/models")
    refused = [line for line in lines() if "/" in line and "http:" not in line]
    assert re.fullmatch(r"req_\w{24} POST /v1/echo 400 missing say", refused[0])
    assert refused[1:] == ["me GET /nothing 404 unknown endpoint"]


def test_a_line_is_a_line():
    assert one_line("a\nb\x1b[2Jc\u2028d\u00e4") == "a\\nb\\x1b[2Jc\\u2028d\u00e4"
    record = logging.LogRecord("ds4-server", logging.WARNING, "", 0, "hi %s", ("you",), None)
    assert re.fullmatch(r"\d{4} \d\d:\d\d:\d\d ds4-server: hi you", Plain(False).format(record))
    assert Plain(True).format(record).startswith("\x1b[38;5;208m")


# --- metrics


def test_figures(scripted):
    """What each means: ``test_exchange``."""
    assert scripted.ask().status_code == 200
    assert scripted.client.post("/v1/echo", json={}).status_code == 400
    assert scripted.client.get("/nothing").status_code == 404
    scripted.until(lambda: figures(scripted)["ds4_running", ()] == 0)
    found, chat = figures(scripted), ("api", "chat")
    counted = [found["ds4_requests_total", labels] for labels in (
        (chat, ("status", "200")), (chat, ("status", "400")), (("api", "plain"), ("status", "404")))]  # fmt: skip
    assert counted == [1, 1, 1] and found["ds4_turns_total", ()] == 1
    assert found["ds4_sequences", ()] >= 1 and 0 < found["ds4_sequences_bytes", ()] < 2**30
    assert found["ds4_sequences_limit_bytes", ()] == 2**30
    assert found["ds4_queue_length", ()] == 0 and found["process_resident_memory_bytes", ()] > 0


# --- trace


@pytest.fixture
def traced(serving, tmp_path):
    """A server that writes a trace, and the trace."""
    path = tmp_path / "trace.txt"
    path.write_text("old")
    os.chmod(path, 0o644)
    server = serving(trace=Trace(str(path)))
    return server, path


def records(path):
    """The lines of a trace."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record(traced):
    """A line when the turn begins, one when it ends; who left the queue leaves none."""
    server, path = traced
    assert path.read_text() == "" and stat.S_IMODE(path.stat().st_mode) == 0o600
    server.engine.say("<think>Let me see.</think>Good d\u00e4y \U0001f600!")
    body = '{"say":"h\u00e4llo","thinking":"high"}'
    packed = gzip.compress(body.encode())
    server.client.post("/v1/echo", content=packed, headers={"x-request-id": "mine", "content-encoding": "gzip"})
    server.engine.hold()
    running = begin(server)
    server.until(lambda: len(records(path)) == 3)
    sock = server.connect()
    sock.sendall(post("/v1/echo", b'{"say":"hi"}'))
    server.until(lambda: len(server.worker.queue) == 1)
    sock.close()
    server.until(lambda: len(server.worker.queue) == 0)
    server.engine.fail = BackendError("the device burns")
    server.engine.release()
    running.join()
    server.until(lambda: len(records(path)) == 4)
    first, last, failing, failed = records(path)
    assert (first["event"], first["id"], first["api"], first["thinking"]) == ("begin", "mine", "chat", "high")
    assert first["request"] == body and "h\u00e4llo" in first["prompt"] and first["sampling"]["temperature"] == 0
    assert (first["source"], first["cached"], first["prompt_tokens"] > 0) == ("none", 0, True)
    assert (last["event"], last["id"], last["status"], last["finish"]) == ("end", "mine", 200, "stop")
    assert last["generated"] == "<think>Let me see.</think>Good d\u00e4y \U0001f600!"
    assert (last["reasoning"], last["content"], last["tool_calls"]) == ("Let me see.", "Good d\u00e4y \U0001f600!", [])
    assert failing["id"] == failed["id"] and (failed["status"], failed["error"]) == (500, "the device burns")


def test_a_trace_that_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        Trace(str(tmp_path / "no" / "trace"))
    Trace("/dev/null").close()


def test_a_full_disk_does_not_stop_the_answers(serving):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    server = serving(trace=Trace("/dev/full"))
    assert server.ask().status_code == 200
