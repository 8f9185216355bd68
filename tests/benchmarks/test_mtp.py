"""Acceptance of drafts: how it is counted, and that the command prints it."""

from __future__ import annotations

import json

import pytest

from benchmarks.mtp import main, shares


def test_shares_count_positions_that_have_so_many_tokens_after_them() -> None:
    """Of three tokens written after the pending one, the last position sees one, the first all three."""
    assert shares([[3, 2, 1]], 4) == [1.0, 1.0, 1.0, None]
    assert shares([[3, 0, 1]], 3) == [2 / 3, 1 / 2, 1.0]
    assert shares([[3, 2, 1], [0]], 2) == [3 / 4, 1.0]
    assert shares([[]], 1) == [None]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--skills", "lists/sort", "--prompts", "1", "--tokens", "12", "--depth", "2", "--rounds", "5"]
    assert main(command) == 0
    *table, cost, record = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["lists/sort", "all"]
    assert table[1].split()[1:] == table[2].split()[1:]
    assert cost.startswith("of a decoded token's time: one draft ")
    found = json.loads(record)
    assert set(found["shares"]["all"]) == {"tokens", "next", "same", "no past"}
    assert found["shares"]["all"]["next"][0] > found["shares"]["all"]["same"][0]
    assert all(low <= middle <= high for low, middle, high in found["seconds"].values())
