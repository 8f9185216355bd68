"""The tools on a model that is none of DeepSeek's: a checkpoint of llama2.c, which knows no chats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4ref.cli import ds4
from ds4ref.engine import Engine
from ds4ref.server.constrain import guide_of
from ds4ref.server.worker import Worker

from ..server.conftest import running
from . import llama2c

C = llama2c.Config(context=2048)
TOKENS, WEIGHTS = llama2c.vocabulary(C), llama2c.draw(C)
PROMPT = "the stone sat"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama2c.write(tmp_path_factory.mktemp("story"), llama2c.legacy(C, WEIGHTS), TOKENS)


def greedy(prompt: str, count: int) -> tuple[list[int], str]:
    """What plain NumPy tells, ``count`` tokens at most."""
    steps = len(llama2c.encode(TOKENS, prompt)) + count - 1
    made, text = llama2c.generate(C, WEIGHTS, TOKENS, llama2c.Sampler(0, 1, 1), prompt, steps)
    return made, text.decode("utf-8", "replace")


def test_tokens_of_a_text(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ds4.main(["-m", str(story), "--dump-tokens", "-p", PROMPT]) == 0
    ids = json.loads(capsys.readouterr().out.splitlines()[0])
    assert [1, *ids] == llama2c.encode(TOKENS, PROMPT)


def test_a_story_without_a_prompt(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It starts at the beginning, as run.c's does; a file without that token asks for a prompt."""
    flags = ["-n", "8", "--temp", "0", "--numerics", "exact", "--backend", "reference", "-c", "64"]
    assert ds4.main(["-m", str(story), "-p", "", *flags]) == 0
    assert capsys.readouterr().out.rstrip("\n") == greedy("", 8)[1].rstrip("\n")


def test_inspect(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ds4.main(["--inspect", str(story)]) == 0
    out = capsys.readouterr().out
    assert "family      llama" in out and f"{C.vocab:,} rows" in out and "6 x 8 with 3 KV heads" in out


@pytest.fixture(scope="module")
def server(story: Path) -> Iterator[Any]:
    with Engine.open(story, threads=1) as engine, running(Worker(engine, ctx=512, constrain=guide_of)) as made:
        yield made


def test_the_server(server: Any) -> None:
    _, text = greedy(PROMPT, 8)
    body = {"model": "x", "max_tokens": 8, "temperature": 0}
    asked = {**body, "messages": [{"role": "user", "content": PROMPT}], "thinking": {"type": "disabled"}}
    answer = server.client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == text
    with server.client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as stream:
        lines = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    assert "".join(line["choices"][0]["delta"].get("content") or "" for line in lines if line["choices"]) == text
    tokens = server.client.post("/tokenize", json={"prompt": PROMPT, "add_special_tokens": True}).json()["tokens"]
    assert tokens == llama2c.encode(TOKENS, PROMPT)
