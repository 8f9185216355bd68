"""Foreign engines as patients of ``ds4-vectors diagnose``: Hugging Face and llama.cpp, live, logits through files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from test_vectors import cli


def diagnosed(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, Any]:
    """The last line of the command's output."""
    assert cli.main(["diagnose", "--logits", str(path), *more]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["mixed", "text"])
def test_hugging_face_is_exact(load_oracle, tmp_path, capsys, name) -> None:
    ids = PROMPTS[name]()
    np.savez(tmp_path / "hf.npz", ids=np.array(ids, np.int32), logits=load_oracle(diagnostic_path()).logits(ids))
    for more in ([], ["--top", "20"]):
        found = diagnosed(capsys, tmp_path / "hf.npz", *more)
        assert found["verdict"] == "exact" and found["confidence"] > 0.99


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("one_by_one", [False, True], ids=["batch", "one by one"])
def test_llama_cpp_is_not_accused(tmp_path, capsys, one_by_one) -> None:
    """What it says exactly, and what that is worth: docs/vectors.md."""
    from .llama import Llama

    ids = PROMPTS["mixed"]()
    with Llama(diagnostic_path()) as llama:
        logits = llama.logits(ids, one_by_one)
    np.savez(tmp_path / "llama.npz", ids=np.array(ids, np.int32), logits=logits)
    found = diagnosed(capsys, tmp_path / "llama.npz")
    assert found["fault"] is None
    nearest = min((r for r in found["ranking"]), key=lambda r: r["distance"])
    assert nearest["name"].startswith("llama.cpp")
