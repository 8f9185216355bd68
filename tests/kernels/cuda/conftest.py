"""The stand-in for the NVIDIA driver, compiled once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights import llama2c

from .stubbed import Stub, build, no_compiler

STORY = llama2c.Config(dim=16, hidden=16, layers=1, heads=2, shared=1, vocab=300, context=48)


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    if reason := no_compiler():
        pytest.skip(reason)
    return Stub(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of llama2.c with one layer: few kernels, quickly compiled."""
    tokens, weights = llama2c.vocabulary(STORY), llama2c.draw(STORY)
    return llama2c.write(tmp_path_factory.mktemp("story"), llama2c.legacy(STORY, weights), tokens)
