"""Tests with a real OpenAI-compatible server from PyPI, that of llama-cpp-python, on the diagnostic model."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.nano.prose import prose
from ds4ref.test_vectors import cli

NEEDED = ("llama_cpp", "fastapi", "uvicorn", "sse_starlette", "starlette_context", "pydantic_settings")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.usefixtures("both"),
    pytest.mark.peers,
    pytest.mark.skipif(
        bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)} (pip install 'llama-cpp-python[server]')"
    ),
]


@contextmanager
def started(folder, *options: str) -> Iterator[str]:
    """Start a server and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = ["--model", diagnostic_path(), "--model_alias", "diagnostic", "--n_ctx", "1024", "--logits_all", "true"]
    command = [sys.executable, "-m", "llama_cpp.server", *model, "--host", "127.0.0.1", "--port", str(port), *options]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            base = f"http://127.0.0.1:{port}/v1"
            deadline = time.monotonic() + 120
            while True:
                try:
                    with urllib.request.urlopen(base + "/models", timeout=2):
                        break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
                    time.sleep(0.3)
            yield base
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def server(_model_cache, tmp_path_factory):
    """A server that finishes every stream, unlike by default (see tests/speed_bench/test_real_server.py)."""
    with started(tmp_path_factory.mktemp("server"), "--interrupt_requests", "false") as base:
        yield base


def run(capsys, *argv: str) -> tuple[int, dict]:
    code = cli.main([*argv])
    return code, json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_capture_then_check(server, tmp_path, capsys) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "one", "prompt": "The old mill stood"}\n{"id": "two", "prompt": "A river of numbers"}\n')
    folder = str(tmp_path / "v")
    code, done = run(capsys, "capture", folder, "--prompts", str(prompts), "--repeat", "2", "--target", server)
    assert code == 0 and done["complete"] and done["cases"] == 2
    # the random model prefers tokens of invalid UTF-8, whose bytes this server loses (docs/reference/vectors.md)
    out = tmp_path / "steps.json"
    code, result = run(capsys, "check", folder, "--target", server, "--out", str(out))
    verdicts = [step["verdict"] for case in json.loads(out.read_text())["results"] for step in case["steps"]]
    assert code == 0 and result["passed"] and set(verdicts) <= {"match", "incomparable"} and "match" in verdicts


def test_ppl_runs_and_says_that_this_echo_cannot_be_trusted(server, tmp_path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text(prose(900)[:600].strip())
    code, result = run(capsys, "ppl", "--text", str(text), "--depths", "64,128", "--target", server)
    assert code == 0 and [d["depth"] for d in result["depths"]] == [64, 128]
    assert all(d["nll"] > 0 and d["nll_stderr"] > 0 for d in result["depths"])
    assert result["echo_agrees"] is False


@pytest.mark.slow
def test_its_echo_is_off_by_one(server, capsys) -> None:
    """This server lists for each prompt token the distribution after that token (docs/reference/vectors.md)."""
    code, result = run(capsys, "diagnose", "--target", server, "--json")
    assert code == 0 and (result["verdict"], result["fault"]) == ("fault", "rows_early")
