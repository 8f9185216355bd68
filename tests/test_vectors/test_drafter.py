"""``ds4-vectors drafter``: logs of other engines, and what may be concluded from acceptance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.drafter import OTHER, SAME, Acceptance, fit, read_log, verdict
from tests.drafts.drafters import write_drafter

VLLM = """\
INFO 11-02 10:00:00 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: 9.0 \
tokens/s, Drafted throughput: 30.0 tokens/s, Accepted: 100 tokens, Drafted: 300 tokens, Per-position acceptance rate: \
0.600, 0.300, 0.100, Avg Draft acceptance rate: 33.3%
INFO 11-02 10:00:10 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.50, Accepted throughput: 1.0 \
tokens/s, Drafted throughput: 6.0 tokens/s, Accepted: 10 tokens, Drafted: 60 tokens, Per-position acceptance rate: \
0.400, 0.100, 0.000, Avg Draft acceptance rate: 16.7%
"""
LLAMA = """\
slot print_timing: id  1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   261 generated), mean acceptance \
length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)
"""
METRICS = """\
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 30.0
"""


@pytest.mark.parametrize(
    ("log", "drafts", "reached"),
    [
        (VLLM, 120, [68, 32, 10]),
        (LLAMA, 87, [70, 55, 42]),
        (METRICS, 50, [30, 20]),
    ],
)
def test_logs_of_other_engines(log: str, drafts: int, reached: list[int]) -> None:
    assert read_log(f"started\n{log}done\n") == Acceptance(drafts, reached)


def test_a_log_without_acceptance_is_refused() -> None:
    with pytest.raises(DataError, match="--rates"):
        read_log("Per-position acceptance rate: none\nDrafted: 5 tokens\n")


def drawn(chance: np.random.Generator, rates: list[float], count: int) -> list[int]:
    hits = chance.random((count, len(rates))) < rates
    return hits.cumprod(1).sum(1).tolist()


RATES = {"right": [0.7, 0.6, 0.55, 0.5, 0.45], "causal": [0.7, 0.5, 0.4, 0.35, 0.3], "stale": [0.4, 0.3, 0.3, 0.3, 0.3]}


def of(lengths: list[int]) -> Acceptance:
    return Acceptance(len(lengths), [sum(length > place for length in lengths) for place in range(5)])


@pytest.mark.parametrize("truth", RATES)
def test_the_explanation_that_made_the_drafts_is_named(truth: str) -> None:
    """Never another one; most often with 2,000 drafts, seldom with 20."""
    names = {20: 0, 2000: 0}
    for count in names:
        for seed in range(40):
            chance = np.random.default_rng(seed)
            simulated = {name: drawn(chance, rates, 2000) for name, rates in RATES.items()}
            name = verdict(fit(of(drawn(chance, RATES[truth], count)), simulated, 5, SAME))
            assert name in (truth, "undecided", "unknown") if count == 2000 else True
            names[count] += name == truth
    assert names[2000] >= 36 and names[20] <= 20


def test_what_nothing_explains_has_no_name() -> None:
    chance = np.random.default_rng(1)
    simulated = {name: drawn(chance, rates, 2000) for name, rates in RATES.items()}
    other = of(drawn(chance, [0.9, 0.1, 0.9, 0.1, 0.9], 1000))
    assert verdict(fit(other, simulated, 5, SAME)) == verdict(fit(other, simulated, 5, OTHER)) == "unknown"
    alike = {"one": simulated["right"], "two": simulated["right"]}
    assert verdict(fit(of(drawn(chance, RATES["right"], 1000)), alike, 5, SAME)) == "undecided"


def test_the_command_ends_to_end(trained_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A drafter that knows pairs of tokens only: its stages do not matter, so most explanations fit."""
    with Engine.open(trained_path) as engine:
        path = write_drafter(tmp_path / "d.gguf", engine)
        ids = list(engine.prompt("Tell me a story about a fox."))
        session = engine.session(400)
        session.sync(ids)
        for _ in range(100):
            ids.append(session.argmax())
            session.append(ids[-1])
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    args = ["drafter", "-m", trained_path, "--mtp", str(path), "--token-ids", str(tmp_path / "ids.json"), "--json"]
    assert main([*args, "--rates", "0.9,0.9,0.9,0.9,0.9", "--drafts", "500"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
    for more, says in (
        ([], "--engine-log"), (["--rates", "0.5,0.6", "--drafts", "9"], "not rising"),
        (["--rates", "0.5", "--drafts", "9", "--start", "9999"], "too few"),
    ):  # fmt: skip
        assert main([*args, *more]) == 2
        assert says in capsys.readouterr().err
