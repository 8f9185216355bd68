"""The disk cache of signatures deletes the models with the oldest folders when it is over its limit."""

from __future__ import annotations

import os

from ds4ref.test_vectors.diagnosis import signatures


def test_the_oldest_models_are_forgotten_first(tmp_path, monkeypatch):
    for age, name in enumerate(("c", "a", "b")):
        (tmp_path / name).mkdir()
        for part in ("x", "y"):
            (tmp_path / name / part).write_bytes(bytes(50))
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    for limit, left in ((300, "abc"), (299, "ab"), (100, "b"), (99, "")):
        monkeypatch.setattr(signatures, "CACHE_LIMIT", limit)
        signatures._make_room(tmp_path)
        assert sorted(f.name for f in tmp_path.iterdir()) == list(left)
    signatures._make_room(tmp_path / "absent")
