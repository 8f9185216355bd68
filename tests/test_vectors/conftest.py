"""Fixtures of the tests of ds4-vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ds4ref.console import tool
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.test_vectors.diagnosis import places, search


@pytest.fixture(scope="session")
def engine(_model_cache) -> Iterator[Engine]:
    """The diagnostic model."""
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


@pytest.fixture(autouse=True)
def without_places(monkeypatch) -> None:
    """Look for no places, which takes up to a minute and has its own tests."""
    monkeypatch.setattr(places, "SECONDS", 0.0)


@pytest.fixture
def without_families(monkeypatch) -> None:
    """Leave out families of wrong constants, which take a hundred runs per prompt and have their own tests."""
    monkeypatch.setattr(search, "FAMILIES", {})


@pytest.fixture
def both(monkeypatch):
    """Make commands print their text and, as the last line, the JSON that --json would print."""

    def shown(result, as_json, table):
        line = json.dumps(result, ensure_ascii=False)
        print(line if as_json or not table else f"{table}\n{line}")

    # commands have imported it by name
    monkeypatch.setattr(tool.finish, "__code__", shown.__code__)
