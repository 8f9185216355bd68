"""What several tests of the tool share."""

from __future__ import annotations

import json

import pytest

from ds4ref.cli import tool
from test_vectors.diagnosis import search


@pytest.fixture
def without_families(monkeypatch) -> None:
    """Constants of a wrong size left out: a hundred runs a prompt, which have tests of their own."""
    monkeypatch.setattr(search, "FAMILIES", {})


@pytest.fixture
def both(monkeypatch):
    """Commands print their text and, as the last line, the JSON that they print instead of it with --json."""

    def shown(result, as_json, table):
        line = json.dumps(result, ensure_ascii=False)
        return line if as_json or not table else f"{table}\n{line}"

    monkeypatch.setattr(tool, "shown", shown)
