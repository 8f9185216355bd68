"""Against a real OpenAI-compatible server from PyPI: llama-cpp-python's, on the diagnostic model."""

from __future__ import annotations

import json

import pytest

from ds4ref.eval import log as logs
from ds4ref.eval.cli import main
from ds4ref.nano.diagnostic import diagnostic_path
from tests.test_vectors.test_real_server import ABSENT, started

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}"),
]


@pytest.fixture(scope="module")
def server(_model_cache, tmp_path_factory):
    with started(tmp_path_factory.mktemp("server"), "--interrupt_requests", "false") as base:
        yield base


@pytest.mark.parametrize("at_once", [1, 4])
def test_the_same_questions_locally_and_there(server, tmp_path, capsys, at_once):
    """Both answer every question; greedy runs of each are the same twice over. What two engines of unlike roundings
    make of a random model's near ties differs, and which grades differ is told by compare."""
    ask = ["--pack", "nano", "--limit", "8", "--nothink", "--temp", "0", "-n", "1", "--json", "--no-store"]
    there, again, here = (str(tmp_path / f"{name}.jsonl") for name in ("there", "again", "here"))
    for path in (there, again):
        assert main([*ask, "--target", server, "-o", path, "--concurrency", str(at_once)]) == 0
    assert main([*ask, "-m", diagnostic_path(), "-o", here]) == 0
    capsys.readouterr()
    samples = {path: {s.id: s for s in logs.read(path).samples} for path in (there, again, here)}
    assert samples[there].keys() == samples[here].keys() and len(samples[there]) == 8
    assert all(s.status == "done" and s.prompt == samples[here][i].prompt for i, s in samples[there].items())
    assert {i: s.output for i, s in samples[there].items()} == {i: s.output for i, s in samples[again].items()}
    assert main(["compare", there, here, "--json"]) in (0, 4)
    assert json.loads(capsys.readouterr().out)["questions"]["both"] == 8
