"""Oracles are optional packages: a test that needs a missing one skips with the reason.

DS4_REQUIRE_ORACLES=1 turns every such skip into a failure, so that a run that was meant to check against the oracles
cannot pass without them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.golden import ROOT as GOLDEN

# These import torch themselves, and are not even collected without it.
collect_ignore = (
    []
    if os.environ.get("DS4_REQUIRE_ORACLES") == "1" or (find_spec("torch") and find_spec("transformers"))
    else ["test_mtp.py", "test_nano.py", "test_training.py"]
)


def missing(reason: str) -> None:
    """Skip, or fail if the oracles are required."""
    if os.environ.get("DS4_REQUIRE_ORACLES") == "1":
        pytest.fail(f"DS4_REQUIRE_ORACLES=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The directory of golden models and logits."""
    if not (GOLDEN / "tiny.gguf").is_file():
        missing("golden models not present (set DS4_GOLDEN to their folder)")
    return GOLDEN


@pytest.fixture(scope="session")
def load_oracle() -> Callable[[Path], Any]:
    """path -> hf.Oracle, each file loaded once."""
    for package in ("torch", "transformers", "gguf"):
        try:
            importlib.import_module(package)
        except ImportError:
            missing(f"{package} is not installed (pip install 'ds4ref[oracle]')")
    from .hf import Oracle

    return lru_cache(maxsize=8)(Oracle.load)


@pytest.fixture(scope="module")
def llama() -> Any:
    """The module that drives llama.cpp."""
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        missing("llama-cpp-python is not installed (pip install 'ds4ref[peers]')")
    from . import llama as driver

    return driver
