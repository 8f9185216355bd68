"""Models larger than the device: what kernels read from host memory changes no bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA, backend
from ds4ref.kernels.cuda.driver import experts as module

from .. import reference
from ..test_cpu_ops import assert_close, matrix, normal

pytestmark = pytest.mark.cuda

E, R, N = 6, 3, 32


def split(slots: int, fmt: str = "Q8_0", rows: int = R, n: int = N) -> SimpleNamespace:
    """A backend with three stacks of six experts (gate, up, down), so many of which are on the device."""
    ops = CUDA()
    ops.share = slots / E if slots < E else None
    host = [matrix(fmt, rows, n, E, seed=1), matrix(fmt, rows, n, E, seed=2), matrix(fmt, n, n, E, seed=3)]
    return SimpleNamespace(ops=ops, host=host, there=[ops.place(w) for w in host])


def test_all_fit_or_a_share_of_every_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = CUDA(limit=1 << 30)
    ops.prepare(800 << 20, 700 << 20)
    assert ops.share is None
    ops.prepare(2000 << 20, 1800 << 20)
    assert ops.share == pytest.approx((1024 * 7 / 8 - 200) / 1800, rel=1e-3)
    with pytest.raises(MemoryError, match=r"need 1\.95 GiB.* 2\.93 with all of them.* 1\.00 are free"):
        ops.prepare(3000 << 20, 1000 << 20)
    with pytest.raises(MemoryError, match="need"):
        ops.prepare(2000 << 20, 0)
    monkeypatch.setattr(backend, "available", lambda: 1 << 30)
    with pytest.raises(MemoryError, match=r"1\.08 GiB of experts do not fit on the GPU.* 1\.00 GiB are free"):
        ops.prepare(2000 << 20, 1800 << 20)


@pytest.mark.parametrize("slots", [1, 5])
def test_a_chunk_is_right_whatever_is_on_the_device(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One far expert at a time passes through device memory; one of them nobody chose."""
    c = split(slots)
    monkeypatch.setattr(module, "STAGE_BYTES", c.host[0].data[0].nbytes)
    chosen = np.array([[i % E, (5 * i + 1) % E] for i in range(20)], np.int32)
    chosen[chosen == 4] = 3
    x, mid = normal(1, 20, N), normal(2, 20, 2, N)
    on = c.ops.upload(chosen)
    got = c.ops.host(c.ops.expert_linear(c.ops.upload(x), on, c.there[0], "float"))
    assert_close(got, reference.expert_linear(x, chosen, c.host[0], "float"), 3e-6)
    got = c.ops.host(c.ops.expert_sum(c.ops.upload(mid), on, c.there[2], "float"))
    assert_close(got, reference.expert_sum(mid, chosen, c.host[2], "float"), 3e-6)
    bad = c.ops.upload(np.full((20, 2), E, np.int32))
    with pytest.raises(IndexError, match=f"0..{E - 1}"):
        c.ops.expert_linear(c.ops.upload(x), bad, c.there[0], "float")


@pytest.mark.parametrize("fmt", ["Q8_0", "F16"])
@pytest.mark.parametrize("ids", [[[0, 1]], [[1, 4]], [[4, 4]], [[0, 5], [5, 2]]])
def test_a_token_has_the_bits_of_one_with_everything_there(ids: list[list[int]], fmt: str) -> None:
    """Recorded, where gate and up share a launch, op by op, and where all experts are on the device."""
    chosen, act = np.array(ids, np.int32), "a8" if fmt == "Q8_0" else "float"
    x, mid = normal(1, len(ids), 64), normal(2, len(ids), 2, 64)
    results = []
    for slots, recorded in ((2, True), (2, False), (E, False)):
        c = split(slots, fmt, 5, 64)
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


@pytest.mark.parametrize("slots", [2, E])
def test_ids_out_of_range_raise(slots: int) -> None:
    for bad in (-1, E, 1 << 30):
        c = split(slots)
        on = c.ops.upload(np.array([[bad]], np.int32))
        with pytest.raises(IndexError, match=f"0..{E - 1}"):
            c.ops.expert_linear(c.ops.upload(normal(1, 1, N)), on, c.there[0])
            c.ops.synchronize()
