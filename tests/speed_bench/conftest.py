"""Runs of these tests go to a store of their own, and no test measures this machine unless it says so."""

import pytest

PEAKS = {"read_gbs": 10.0, "int8_gops": 100.0, "f32_gflops": 50.0}


@pytest.fixture(autouse=True)
def private_store(tmp_path_factory, monkeypatch):
    """The user's data directory; measured peaks are made up."""
    from ds4ref import peaks
    from ds4ref.costs import Peaks

    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv("DS4_DATA_DIR", str(folder))
    monkeypatch.setattr(peaks, "measure_peaks", lambda threads: Peaks(**PEAKS))
    return folder / "runs.sqlite"
