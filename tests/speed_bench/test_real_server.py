"""The sweep on a real OpenAI-compatible server from PyPI: llama-cpp-python's, on the diagnostic model."""

from __future__ import annotations

import pytest

from ds4ref.runs.results import read_rows
from ds4ref.speed_bench import cli
from tests.test_vectors.test_real_server import ABSENT, server, started  # noqa: F401

pytestmark = [
    pytest.mark.peers,
    pytest.mark.usefixtures("both"),
    pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}"),
]


@pytest.mark.parametrize("api, streams", [("completions", 1), ("completions", 2), ("completions", 4), ("chat", 1)])
def test_a_real_server_is_swept(server, api, streams, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    argv = ["--frontiers", "128,256,512", "-n", "16", "-r", "2", "--target", server, "--api", api, "--csv", "s.csv"]
    assert cli.main([*argv, "--concurrency", str(streams)]) == 0
    rows = read_rows("s.csv")
    assert [row["ctx_tokens"] for row in rows] == [128, 256, 512] and {row["streams"] for row in rows} == {streams}
    assert all(row["prefill_tps"] > 0 and row["ttft_ms"] > 0 and row["e2e_ms"] > row["ttft_ms"] for row in rows)
    assert all(0 < row["gen_tokens"] <= 16 for row in rows), (
        "it does not count in streams: 16 where it ends at the limit"
    )


def test_streams_that_break_each_other_off_are_told_as_the_servers_doing(_model_cache, tmp_path, monkeypatch, capsys):
    """Its default is to break a stream off when another request comes."""
    monkeypatch.chdir(tmp_path)
    with started(tmp_path) as base:
        argv = ["--frontiers", "512", "-n", "64", "--target", base, "--concurrency", "2", "--no-store"]
        assert cli.main(argv) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"ds4-bench: {base}: the stream ended without a finish reason (with 2 streams at once)"
