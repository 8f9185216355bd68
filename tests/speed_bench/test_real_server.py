"""The sweep on a real OpenAI-compatible server from PyPI: llama-cpp-python's, on the diagnostic model. It breaks
off a stream when another request comes, so that several streams are for the fake one."""

from __future__ import annotations

import pytest

from ds4ref.runs.results import read_rows
from speed_bench import cli
from tests.test_vectors.test_real_server import pytestmark, server  # noqa: F401


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_real_server_is_swept(server, api, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    argv = ["--frontiers", "128,256,512", "-n", "16", "-r", "2", "--target", server, "--api", api, "--csv", "s.csv"]
    assert cli.main(argv) == 0
    rows = read_rows("s.csv")
    assert [row["ctx_tokens"] for row in rows] == [128, 256, 512]
    assert all(row["prefill_tps"] > 0 and row["ttft_ms"] > 0 and row["e2e_ms"] > row["ttft_ms"] for row in rows)
