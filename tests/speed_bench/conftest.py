"""No test here measures this machine unless it says so."""

import pytest

PEAKS = {"read_gbs": 10.0, "int8_gops": 100.0, "f32_gflops": 50.0}


@pytest.fixture(autouse=True)
def private_store(private_data, monkeypatch):
    """The user's run store; measured peaks are made up, and no model fits this machine's cache."""
    import speed_bench.peaks
    from ds4ref import peaks
    from ds4ref.costs import Peaks

    monkeypatch.setattr(peaks, "measure_peaks", lambda threads: Peaks(**PEAKS))
    monkeypatch.setattr(speed_bench.peaks, "cache_bytes", lambda: 1)
    return private_data / "runs.sqlite"
