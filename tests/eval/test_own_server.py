"""ds4-eval against ds4-server: an engine answers there as it does here."""

from __future__ import annotations

import json

import pytest

from ds4ref.eval import log as logs
from ds4ref.eval.cli import main
from ds4ref.nano import embedded_path
from tests.server.process import process


@pytest.fixture(scope="module")
def url(nano_path):
    with process(nano_path) as server:
        yield f"{server.url}/v1"


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_the_same_questions_locally_and_there(url, nano_path, tmp_path, capsys, temperature):
    """On the same engine: the same text, token for token, and so the same grades; drawn texts, too, of one seed."""
    ask = ["--pack", "nano", "--limit", "12", "--nothink", "--temp", temperature, "-n", "24", "--json", "--no-store"]
    asked = {"here": ["-m", nano_path, "-t", "1"], "there": ["--target", url, "--concurrency", "3"]}
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in asked}
    for name, how in asked.items():
        assert main([*ask, *how, "-o", paths[name]]) == 0
    capsys.readouterr()
    here, there = ({s.id: s for s in logs.read(path).samples} for path in paths.values())
    assert here.keys() == there.keys() and len(here) == 12
    for name, sample in here.items():
        other = there[name]
        assert (sample.status, sample.output, sample.reasoning, sample.tokens, sample.finish, sample.grade) == (
            other.status, other.output, other.reasoning, other.tokens, other.finish, other.grade)  # fmt: skip


@pytest.mark.thorough
def test_a_server_that_thinks_as_it_is_asked_is_told_nothing(capsys):
    """Questions that ask for thinking and others that switch it off, in one run."""
    with process(embedded_path()) as server:
        assert main(["--target", f"{server.url}/v1", "--pack", "nano", "--only", "think/sums2,sums2", "--json",
                     "--no-store"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["notes"] == [] and found["n"] == 16 and found["reasoning_tokens_per_sample"] > 2
