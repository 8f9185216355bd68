"""Shared by all tests: generated files go to a folder of this test run, never to the user's cache.

Hypothesis draws the same examples in every run, so that a test fails on every machine or on none. DS4_TEST_RANDOM=1
draws new ones and remembers what failed: worth a run now and then.

Tests marked ``cuda`` run kernels that are compiled for a GPU on this processor (tests/kernels/cuda/lowering); without
numba-cuda they are skipped, or with DS4_TEST_CUDA=compiled (``make cuda``) an error. DS4_TEST_CUDA=device runs them on
the GPU.
"""

import itertools
import os
import signal

import hypothesis
import pytest

# Each process of a run keeps to its share of the cores: threads waiting for each other beside those of another process
# cost a third more time than one core alone.
if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")).startswith("gw") and hasattr(os, "sched_setaffinity"):
    cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    share = [core for place, core in enumerate(cores) if place % workers == int(worker[2:]) % len(cores) % workers]
    os.sched_setaffinity(0, share or cores)

# A busy machine must not turn a slow example into a failure.
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.register_profile("patient", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("random" if os.environ.get("DS4_TEST_RANDOM", "0") != "0" else "patient")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A run in the background (``nohup``, ``&`` in a script) is born ignoring SIGINT, and so would its children be."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(scope="session")
def cuda_driver():
    """The driver of CUDA backends in tests marked ``cuda``; None on a GPU."""
    where = os.environ.get("DS4_TEST_CUDA")
    if where == "device":
        yield None
        return
    from tests.kernels.cuda.lowering.hosted import hosted, missing

    if reason := missing():
        (pytest.skip if where is None else pytest.exit)(f"CUDA kernels cannot be compiled and run: {reason}")
    with hosted() as driver:
        yield driver


@pytest.fixture(autouse=True)
def _cuda_kernels(request):
    if request.node.get_closest_marker("cuda"):
        request.getfixturevalue("cuda_driver")


@pytest.fixture(scope="session", autouse=True)
def _model_cache(tmp_path_factory):
    """The cache of this run (embedded model, compiled kernels), one for all its processes: what one makes the others
    wait for. DS4_TEST_CACHE_DIR keeps it between runs, for work on the slow tests."""
    before = os.environ.get("DS4_CACHE_DIR")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    os.environ["DS4_CACHE_DIR"] = os.environ.get("DS4_TEST_CACHE_DIR") or str(shared)
    yield
    if before is None:
        del os.environ["DS4_CACHE_DIR"]
    else:
        os.environ["DS4_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def _data(tmp_path_factory):
    """Names for ``private_data``: ``mktemp`` would read a folder of thousands of names for each test."""
    base = tmp_path_factory.mktemp("data")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def private_data(_data, monkeypatch):
    """The user's data directory, where the run store is."""
    folder = next(_data)
    folder.mkdir()
    monkeypatch.setenv("DS4_DATA_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def nano_path(_model_cache):
    """The embedded model's file."""
    from ds4ref.nano import embedded_path

    return embedded_path()


@pytest.fixture(scope="session")
def nano_engine(nano_path):
    """The embedded model, opened once."""
    from ds4ref.engine import Engine

    with Engine.open(nano_path, threads=1) as engine:
        yield engine
