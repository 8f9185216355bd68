"""Fixtures of the bench tests, which do not measure this machine unless they say so."""

import pytest

from .fake import Clock, FakeEngine

PEAKS = {"read_gbs": 10.0, "int8_gops": 100.0, "f32_gflops": 50.0}


@pytest.fixture(autouse=True)
def private_store(private_data, monkeypatch):
    """Use a private run store, invented peaks, and a cache that no model fits."""
    import ds4ref.speed_bench.peaks
    from ds4ref import peaks
    from ds4ref.costs import Peaks

    monkeypatch.setattr(peaks, "measure_peaks", lambda threads: Peaks(**PEAKS))
    monkeypatch.setattr(ds4ref.speed_bench.peaks, "cache_bytes", lambda: 1)
    return private_data / "runs.sqlite"


@pytest.fixture
def clock(monkeypatch):
    """A clock of the timed windows that nothing but fake engines moves."""
    from ds4ref.speed_bench import sweep

    clock = Clock()
    monkeypatch.setattr(sweep.time, "perf_counter", clock)
    return clock


@pytest.fixture
def engines(monkeypatch, tmp_path, clock):
    """Every engine opened, each a fake; the working folder is private."""
    from ds4ref.engine import Engine

    opened = []
    monkeypatch.chdir(tmp_path)

    def open_fake(path, **options):
        opened.append(FakeEngine(path, clock, **options))
        return opened[-1]

    monkeypatch.setattr(Engine, "open", open_fake)
    return opened
