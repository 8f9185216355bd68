"""The table against llama.cpp: every job has a winner, an engine that does not run has a row that says so."""

from __future__ import annotations

import pytest

from benchmarks import llama


class Timed:
    """An engine whose jobs take these seconds; one without times does not start."""

    SECONDS = {"ours": {"prefill": 1.0, "decode": 2.0}, "llama": {"prefill": 3.0, "decode": 1.0}, "repacked": {}}

    def __init__(self, name: str, *_: object):
        self.seconds, self.name = self.SECONDS[name], name

    def target(self, job: str):
        def once() -> float:
            if not self.seconds:
                raise RuntimeError("the process ended with status -4")
            return self.seconds[job]

        return once

    def close(self) -> None:
        """Nothing was started."""


def test_losers_are_printed_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(llama, "Process", Timed)
    assert llama.main(["--model", "m.gguf", "--jobs", "prefill", "decode", "--rounds", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| m.gguf | all | llama.cpp, repacked | not measured: the process ended with status -4 | | | |",
        "| m.gguf | prefill | llama.cpp | 3.00 x | 3.00 - 3.00 | 1.00 | ours |",
        "| m.gguf | decode | llama.cpp | 0.50 x | 0.50 - 0.50 | 2.00 | llama.cpp |",
    ]
