"""Fixtures of the bench tests, which do not measure this machine unless they say so."""

import pytest

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
