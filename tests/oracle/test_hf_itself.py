"""Is the oracle what it claims to be? Our Hugging Face loader against logits that others computed with their own
loader, and the ways of running it against one another. Nothing of our engine takes part."""

from __future__ import annotations

import json

import numpy as np
import pytest

from .compare import difference

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("model", ["tiny", "smooth"])
@pytest.mark.parametrize("case", ["t5", "t40", "t200", "t700"])
def test_reproduces_golden_logits(golden, load_oracle, model, case):
    """Same weights, same library, another machine and another loader: float noise only (observed 6e-5 at most)."""
    stored = np.load(golden / f"{model}.{case}.npz")
    ids = json.loads((golden / f"{case}.ids.json").read_text())
    assert stored["ids"].tolist() == ids
    found = difference(load_oracle(golden / f"{model}.gguf").logits(ids)[stored["rows"]], stored["hf"])
    assert found.max < 2e-4 and found.top1 == 1, found


@pytest.mark.parametrize("model", ["tiny", "smooth"])
@pytest.mark.parametrize("case", ["t5", "t40"])
def test_reproduces_golden_streams(golden, load_oracle, model, case):
    """All 13 streams (embedding, then both halves of six layers); their rms is 1 to 10."""
    stored = np.load(golden / f"{model}.{case}.npz")
    streams = load_oracle(golden / f"{model}.gguf").record(stored["ids"].tolist()).streams[:, stored["hidden_pos"]]
    wanted = stored["hf_hidden"].reshape(streams.shape)
    assert np.abs(streams - wanted).max() < 2e-4
    assert np.array_equal(streams[0], wanted[0]), "embedding rows are copies and must be equal"


def test_cache_agrees_with_one_pass(golden, load_oracle):
    """Token by token through transformers' cache; 200 tokens cross the window and close a 128-window."""
    stored = np.load(golden / "tiny.t200.npz")
    found = difference(load_oracle(golden / "tiny.gguf").decode(stored["ids"].tolist()), stored["hf"])
    assert found.max < 2e-4 and found.top1 == 1, found
