"""The servers of tests/server, as targets of the tester, and the right one that faults are put before."""

import pytest

from ds4ref.sampling import Sampler
from ds4ref.server import worker
from ds4ref.server.worker import Worker
from tests.server.conftest import running, scripted, server, serving

from .faults import FORMED

__all__ = ["good", "scripted", "server", "serving"]


@pytest.fixture(scope="session")
def said():
    """What servers like ``good`` answered, by request; they all say the same."""
    return {}


@pytest.fixture(scope="module")
def good(nano_engine, said):
    """Our server on the embedded model, and what it said so far."""
    drawn = {"seed": 1}  # random weights may begin to think by themselves; the same draws each time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "sampler_of", lambda _, *args, **given: Sampler(*args, **{**given, **drawn}))
        with running(Worker(nano_engine, ctx=3000, constrain=FORMED)) as server:
            yield server.url, said
