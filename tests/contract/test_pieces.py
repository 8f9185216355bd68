"""What is measured or read in pieces, of unequal sizes as they are in use, gives what the whole gives."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.importance import Collector
from ds4ref.cluster.cache import ClusterSnapshot
from ds4ref.cluster.history import Base
from ds4ref.residency.readers import read_pages
from ds4ref.runs.scored import rate_of
from ds4ref.steering import measure
from ds4ref.targets.answer import Delta, Usage, added_up

ROWS = (np.random.default_rng(1).standard_normal((200, 8)) * np.logspace(-9, 9, 8)).astype(np.float32)


def test_importance_of_chunks_is_that_of_the_text() -> None:
    parts = Collector({}, (), 1)
    for start, end in ((0, 1), (1, 150), (150, 200)):
        parts.add("w", ROWS[start:end])
    np.testing.assert_allclose(parts.sums["w"][0][0], np.square(ROWS.astype(np.float64)).sum(axis=0), rtol=1e-12)


def test_pages_that_come_a_few_at_a_time_are_the_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, page, readv = os.urandom(5 * os.sysconf("SC_PAGE_SIZE") - 9), os.sysconf("SC_PAGE_SIZE"), os.readv
    (tmp_path / "f").write_bytes(data)
    monkeypatch.setattr(os, "readv", lambda fd, buffers: readv(fd, [buffers[0][: 2 * page]]))
    buffer, fd = bytearray(4 * page), os.open(tmp_path / "f", os.O_RDONLY)
    read_pages(fd, "f", memoryview(buffer), page, len(data) - page)
    os.close(fd)
    assert buffer[: len(data) - page] == data[page:]


def test_a_cost_per_token_is_that_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are weighted by their tokens, the short one at the end, too."""
    losses = iter((np.zeros(195), np.full(195, 0.5)))
    monkeypatch.setattr(measure, "_numbers", lambda *_: (np.zeros(3), next(losses)))
    engine: Any = SimpleNamespace(steered=lambda steering: None)
    (point,) = measure.measure(engine, ROWS, measure.Trial([[1]], [1], len), [1.0]).points
    assert point.cost.estimate == pytest.approx(0.5, abs=1e-12)


def test_rates_and_counts_of_parts() -> None:
    assert rate_of([(11, 1.0, 2.0), (101, 1.0, 51.0), (1, 1.0, 1.0)]) == pytest.approx(110 / 51)
    counts = [Delta(str(n), usage=Usage(5, n)) for n in (1, 2, 3)]  # as servers report it that do so all along
    assert added_up([*counts, Delta(finish="stop")]).usage == Usage(5, 3)


def test_memory_that_is_told_is_the_bytes_of_arrays(nano_engine: Any) -> None:
    session, base, shape = nano_engine.session(600), Base(600), nano_engine.shape
    base.end = 300
    session.sync(range(base.end))
    parts = [
        session._cache.compressed(layer, kind) for layer in range(shape.n_layers) for kind in shape.row_widths(layer)
    ]
    assert session.snapshot().shared[1] == sum(part.nbytes for part in parts)
    far = SimpleNamespace(shape=shape, layers=[range(shape.n_layers)])
    away = ClusterSnapshot(far, base, None)  # which has float32 rows
    assert away.shared[1] == 4 * sum(part.size for part in parts) == shape.payload_bytes(300) - away.own_bytes
