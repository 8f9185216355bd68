"""Shared by all tests: generated files go to a folder of this test run, never to the user's cache.

Compiled kernels stay in out/test-cache, for the next run; with DS4_TEST_CACHE_DIR (.ci/run) all stays there.

Hypothesis draws the same examples in every run, so that a test fails on every machine or on none. DS4_TEST_RANDOM=1
draws new ones and remembers what failed: worth a run now and then.

Tests marked ``cuda`` run kernels that are compiled for a GPU on this processor (tests/kernels/cuda/lowering); without
numba-cuda they are skipped, or with DS4_TEST_CUDA=compiled (``make cuda``) an error. DS4_TEST_CUDA=device runs them on
the GPU.
"""

import contextlib
import gc
import itertools
import os
import signal
from pathlib import Path

import hypothesis
import pytest

from tests.marking import part, spread, unasked

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


GIVEN = os.environ.get("DS4_TEST_CACHE_DIR")
KEPT = Path(GIVEN or Path(__file__).parents[1] / "out/test-cache").absolute()


def pytest_configure(config):
    os.environ |= dict.fromkeys(("DS4_CACHE_DIR", "XDG_CACHE_HOME"), str(KEPT))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Compile the kernels before there are workers, with all cores and where no test would find the lines about it."""
    option = session.config.option
    if not hasattr(session.config, "workerinput") and not option.collectonly and not option.uncompiled:
        from ds4ref.kernels.cpu import library

        with contextlib.suppress(library.KernelError):  # tests that need them will say so
            library.prepare(library.GROUPS)


def pytest_ignore_collect(collection_path, config):
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_tests and unasked(collection_path.read_text("utf-8"), config.option.markexpr) else None


def pytest_addoption(parser):
    parser.addoption("--uncompiled", action="store_true", help="do not begin by compiling the kernels: none is loaded")
    parser.addoption("--cases", type=int, metavar="N", help="run at most N cases of each test outside of kernels")
    parser.addoption("--part", metavar="K/N", help="run the tests of one in N files; N successive K are all of them")


@pytest.hookimpl(trylast=True)  # of the cases that the marks leave
def pytest_collection_modifyitems(config, items):
    kept = items
    if most := config.option.cases:
        kept = spread(kept, most)
    if config.option.part:
        kept = part(kept, *map(int, config.option.part.split("/")))
    if kept is not items:
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.part:
        session.exitstatus = pytest.ExitCode.OK  # of few files a part may be none


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the garbage collector what collecting makes: millions of objects, all of which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # some extension modules count at the end what was not collected


def new_cache(folder: Path) -> str:
    """A folder for DS4_CACHE_DIR that holds no more than the compiled kernels."""
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another process of this run was faster
        (folder / "kernels").symlink_to(KEPT / "kernels")
    return str(folder)


@pytest.fixture(scope="session", autouse=True)
def _model_cache(tmp_path_factory):
    """The cache of this run (the small models and others), one for all its processes: what one makes the others wait
    for."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    if not GIVEN:
        os.environ["DS4_CACHE_DIR"] = new_cache(shared / "cache")
    os.environ["DS4_TEST_CACHE_DIR"] = str(KEPT)  # for tests that run tests


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache for one test, but for the compiled kernels."""
    monkeypatch.setenv("DS4_CACHE_DIR", new_cache(tmp_path / "cache"))
    return tmp_path / "cache"


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
    """The random model's file."""
    from ds4ref.nano import random_path

    return random_path()


@pytest.fixture(scope="session")
def nano_engine(nano_path):
    """The random model, opened once."""
    from ds4ref.engine import Engine

    with Engine.open(nano_path, threads=1) as engine:
        yield engine


@pytest.fixture(scope="session")
def trained_path(_model_cache):
    """The embedded model's file: what commands run without -m."""
    from ds4ref.nano import embedded_path

    return embedded_path()
