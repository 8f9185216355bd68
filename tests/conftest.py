"""Shared by all tests: generated files go to a folder of this test run, never to the user's cache."""

import os

import hypothesis
import pytest

# A busy machine must not turn a slow example into a failure.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def _model_cache(tmp_path_factory):
    """The model cache of this run. DS4_TEST_CACHE_DIR keeps it between runs, for work on the slow tests."""
    before = os.environ.get("DS4_CACHE_DIR")
    os.environ["DS4_CACHE_DIR"] = os.environ.get("DS4_TEST_CACHE_DIR") or str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["DS4_CACHE_DIR"]
    else:
        os.environ["DS4_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def private_data(tmp_path_factory, monkeypatch):
    """The user's data directory, where the run store is."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("DS4_DATA_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def nano_path(_model_cache):
    """The embedded model's file."""
    from ds4ref.nano import embedded_path

    return embedded_path()
