"""``ds4-vectors drafter``: logs of other engines, and what may be concluded from acceptance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.errors import DataError
from ds4ref.nano import dspark_path
from ds4ref.nano.skills import held_out
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.drafter import OTHER, Acceptance, fit, read_log, verdict
from ds4ref.variants.drafters import MISTAKES, accepted, observe, opened

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
SGLANG = """\
[2026-11-02 10:00:10 TP0] Decode batch. #running-req: 1, #token: 7352, token usage: 0.01, accept len: 2.54, \
accept rate: 0.31, cuda graph: True, gen throughput (token/s): 39.33, #queue-req: 0,
[2026-11-02 10:00:20 TP0] Decode batch. #running-req: 1, #token: 7452, token usage: 0.01, accept len: 2.64, \
accept rate: 0.33, cuda graph: True, gen throughput (token/s): 39.33, #queue-req: 0,
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


@pytest.mark.parametrize("log", [SGLANG, 'sglang:spec_accept_length{model_name="m"} 2.59\n'])
def test_some_logs_have_only_a_mean(log: str) -> None:
    assert read_log(log) == Acceptance(0, [], pytest.approx(2.59))


def test_a_log_without_acceptance_is_refused() -> None:
    with pytest.raises(DataError, match="--rates"):
        read_log("Per-position acceptance rate: none\nDrafted: 5 tokens\n")


def drawn(chance: np.random.Generator, rates: list[float], count: int) -> list[int]:
    hits = chance.random((count, len(rates))) < rates
    return hits.cumprod(1).sum(1).tolist()


APART = 2.0
"""Two runs of independent drafts differ by twice the variance of one."""
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
            name = verdict(fit(of(drawn(chance, RATES[truth], count)), simulated, 5, APART))
            assert name in (truth, "undecided", "unknown") if count == 2000 else True
            names[count] += name == truth
    assert names[2000] >= 36 and names[20] <= 20


def test_what_nothing_explains_has_no_name() -> None:
    chance = np.random.default_rng(1)
    simulated = {name: drawn(chance, rates, 2000) for name, rates in RATES.items()}
    other = of(drawn(chance, [0.9, 0.1, 0.9, 0.1, 0.9], 1000))
    assert verdict(fit(other, simulated, 5, APART)) == verdict(fit(other, simulated, 5, OTHER)) == "unknown"
    alike = {"one": simulated["right"], "two": simulated["right"]}
    assert verdict(fit(of(drawn(chance, RATES["right"], 1000)), alike, 5, APART)) == "undecided"


def test_a_mean_names_what_lies_far_from_all_others() -> None:
    for truth in RATES:
        chance = np.random.default_rng(3)
        simulated = {name: drawn(chance, rates, 2000) for name, rates in RATES.items()}
        seen = of(drawn(chance, RATES[truth], 2000))
        assert verdict(fit(Acceptance(2000, [], seen.tokens_per_pass), simulated, 5, APART)) == truth
    assert verdict(fit(Acceptance(2000, [], 5.5), simulated, 5, APART)) == "unknown"


def test_what_costs_nothing_is_not_told_from_right() -> None:
    """Nor accused; what costs something keeps the verdict open."""
    chance = np.random.default_rng(2)
    right = drawn(chance, RATES["right"], 2000)
    simulated = {"right": right, "one": right[:1990] + [2] * 10}
    assert verdict(fit(of(right), simulated, 5, APART)) == "lossless"
    assert verdict(fit(of(right), simulated | {"two": right[:1900] + [0] * 100}, 5, OTHER)) == "undecided"


@pytest.fixture(scope="module")
def engine(trained_path: str) -> Iterator[Engine]:
    with Engine.open(trained_path, numerics="ds4", threads=1) as engine:
        yield engine


def decoded(engine: Engine, count: int, seed: int) -> list[tuple[list[int], int]]:
    """Answers of the model, with what comes before them."""
    answers = []
    for item in (item for skill in ("english", "tools/fixed", "think/sums3") for item in held_out(skill, count, seed)):
        ids = item.prompt().encode(engine.tokenizer)
        start, session = len(ids), engine.session(800)
        session.sync(ids)
        while ids[-1] != engine.tokenizer.eos and len(ids) < start + 200:
            ids.append(session.argmax())
            session.append(ids[-1])
        answers.append((ids, start))
    return answers


@pytest.mark.parametrize(("name", "wanted"), [("right", ("lossless", "undecided")), ("pairs_late", ("pairs_late",))])
def test_the_command_ends_to_end(engine: Engine, tmp_path: Path, capsys: Any, name: str, wanted: Sequence[str]) -> None:
    """The log of an engine that rounds otherwise, with a right drafter or a mistake; the embedded model and its own."""
    answers, mistake = decoded(engine, 2, seed=5), MISTAKES.get(name)
    with opened(dspark_path(), engine) as drafter:
        seen = of([count for ids, start in answers
                   for count in accepted(drafter, observe(engine, drafter, ids), mistake, start)])  # fmt: skip
    (tmp_path / "ids.json").write_text(json.dumps([{"ids": ids, "start": start} for ids, start in answers]))
    rates = ", ".join(f"{count / seen.drafts:.3f}" for count in seen.reached)
    (tmp_path / "log").write_text(f"Drafted: {5 * seen.drafts} tokens, Per-position acceptance rate: {rates}, Avg")
    code = main(["drafter", "--token-ids", str(tmp_path / "ids.json"),
                 "--engine-log", str(tmp_path / "log"), "--json"])  # fmt: skip
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict in wanted and code == (verdict != "lossless")


def test_what_cannot_be_answered(trained_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids.json").write_text(json.dumps(list(range(50))))
    args = ["drafter", "-m", trained_path, "--mtp", dspark_path(), "--token-ids", str(tmp_path / "ids.json"), "--json"]
    for more, says in (
        ([], "--engine-log"), (["--rates", "0.5,0.6", "--drafts", "9"], "not rising"),
        (["--rates", "0.5", "--drafts", "9", "--start", "30"], "too few"),
    ):  # fmt: skip
        assert main([*args, *more]) == 2
        assert says in capsys.readouterr().err
