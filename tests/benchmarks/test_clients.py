"""What benchmarks.clients reads of other tools' reports, in the forms that they wrote on 2026-11-29."""

from __future__ import annotations

import json

import pytest

from benchmarks.clients import (
    Figures,
    Setting,
    read_aiperf,
    read_evalscope,
    read_guidellm,
    read_llama_benchy,
    table,
)  # fmt: skip

GUIDELLM = {"prompt_token_count": 516.0, "output_token_count": 64.0, "time_to_first_token_ms": 50.0,
            "inter_token_latency_ms": 4.0}  # fmt: skip
AIPERF = {"input_sequence_length": 516, "output_sequence_length": 64, "time_to_first_token": 50.0,
          "inter_token_latency": 4.0}  # fmt: skip


@pytest.mark.parametrize(
    ("read", "path", "document"),
    [
        (read_guidellm, "guidellm.json",
         {"benchmarks": [{"metrics": {k: {"successful": {"median": v}} for k, v in GUIDELLM.items()}}]}),
        (read_aiperf, "aiperf/profile_export_aiperf.json", {k: {"avg": 0.0, "p50": v} for k, v in AIPERF.items()}),
        (read_llama_benchy, "benchy.json",
         {"benchmarks": [{"prompt_size": 516, "response_size": 64,
                          "e2e_ttft": {"mean": 9.0, "values": [49.0, 50.0, 70.0]},
                          "tg_throughput": {"mean": 9.0, "values": [200.0, 250.0, 260.0]}}]}),
        (read_evalscope, "evalscope/parallel_1_number_3/benchmark_percentile.json",
         [{"Percentiles": "min"}, {"Percentiles": "50%", "Input tokens": 516, "Output tokens": 64, "TTFT (ms)": 50.0,
                                   "TPOT (ms)": 4.0}]),
    ],
)  # fmt: skip
def test_figures_are_the_medians_of_each_report(read, path, document, tmp_path):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(json.dumps(document))
    setting = Setting("http://x", "m", tmp_path, tmp_path, "", 512, 64, 3)
    assert read(setting) == Figures(516, 64, 50.0, 250.0)


def test_a_tool_that_counts_otherwise_or_fails_is_shown():
    row = {"tool": "a==1", "prompt": 516.0, "answer": 60.0, "first": 50.0, "rate": None, "first_ratio": 1.02,
           "rate_ratio": None, "answer_bench": 64.0, "answer_ratio": 60 / 64}  # fmt: skip
    *_, counted, failed = table([row, {"tool": "b==2", "failed": "exit code 1: no"}]).splitlines()
    assert counted == "| a==1 | 516 | 60 | 50 | - | 1.02 | - | 60 for 64 |"
    assert failed.startswith("| b==2 | failed: exit code 1: no |")
