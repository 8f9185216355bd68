"""What several tests of the tool share."""

from __future__ import annotations

import pytest

from test_vectors.diagnosis import search


@pytest.fixture
def without_families(monkeypatch) -> None:
    """Constants of a wrong size left out: a hundred runs a prompt, which have tests of their own."""
    monkeypatch.setattr(search, "FAMILIES", {})
