"""Models larger than the device: what kernels read from host memory changes no bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA, backend

from ..test_cpu_ops import matrix, normal

pytestmark = pytest.mark.cuda

E = 6


def split(near: int, fmt: str, rows: int, n: int) -> SimpleNamespace:
    """A backend with three stacks of six experts (gate, up, down), so many of which are on the device."""
    ops = CUDA()
    host = [matrix(fmt, rows, n, E, seed=1), matrix(fmt, rows, n, E, seed=2), matrix(fmt, n, n, E, seed=3)]
    ops.spare = sum(w.nbytes for w in host[:near])
    return SimpleNamespace(ops=ops, there=[ops.place(w) for w in host])


def test_all_fit_or_the_last_stacks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CUDA(limit=1 << 30)
    ops.prepare(800 << 20, 700 << 20)
    assert ops.spare is None
    ops.prepare(2000 << 20, 1800 << 20)
    assert ops.spare == pytest.approx((1024 * 7 / 8 - 200) * (1 << 20), rel=1e-3)
    with pytest.raises(MemoryError, match=r"need 1\.95 GiB.* 2\.93 with all of them.* 1\.00 are free"):
        ops.prepare(3000 << 20, 1000 << 20)
    with pytest.raises(MemoryError, match="need"):
        ops.prepare(2000 << 20, 0)
    monkeypatch.setattr(backend, "available", lambda: 1 << 30)
    with pytest.raises(MemoryError, match=r"1\.08 GiB of experts do not fit on the GPU.* 1\.00 GiB are free"):
        ops.prepare(2000 << 20, 1800 << 20)


@pytest.mark.parametrize("fmt", ["Q8_0", "F16"])
@pytest.mark.parametrize("ids", [[[1, 4]], [[0, 5], [5, 2]], [[4, 4]] * 20], ids=["token", "two", "chunk"])
def test_results_have_the_bits_of_those_with_everything_there(ids: list[list[int]], fmt: str) -> None:
    """Recorded, where gate and up share a launch, op by op, and where all experts are on the device."""
    chosen, act = np.array(ids, np.int32), "a8" if fmt == "Q8_0" else "float"
    x, mid = normal(1, len(ids), 64), normal(2, len(ids), 2, 64)
    results = []
    for near, recorded in ((1, True), (1, False), (3, False)):
        c = split(near, fmt, 5, 64)
        where = c.ops.record() if recorded else c.ops
        on, inputs, middle = c.ops.upload(chosen), c.ops.upload(x), c.ops.upload(mid)
        outs = [where.expert_linear(inputs, on, w, act) for w in c.there[:2]]
        outs.append(where.expert_sum(middle, on, c.there[2], act))
        if recorded:
            where.seal(*outs)
            where.replay()
            outs = where.outputs
        results.append([c.ops.host(out).copy() for out in outs])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert np.array_equal(one, two)
    before = c.ops.driver.counts["unpin"]
    del c, outs, on, inputs, middle, where
    c = split(0, fmt, 5, 64)
    driver, c.there = c.ops.driver, None
    assert driver.counts["unpin"] == before + 3
