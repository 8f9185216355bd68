"""The cost model to the last byte and operation, against counts made here row by row and tensor by tensor."""

from __future__ import annotations

import math

import pytest

from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.tensors import expected_tensors
from ds4ref.costs import Peaks, Work
from ds4ref.engine import Engine
from ds4ref.nano.recipe import NANO
from ds4ref.peaks import measure_peaks

COSTS = Costs.of_recipe(NANO, "q2")
TENSORS = expected_tensors(NANO, "q2")
DEPTHS = (0, 1, 3, 4, 63, 64, 65, 127, 128, 130, 255, 256, 257, 259, 260, 300, 512)
FULL = 4 * NANO.index_topk + 3
"""The last depth at which the indexer has nothing to choose from."""


def rows_read(depth: int) -> tuple[int, int]:
    """Key-value rows over all layers that one token after ``depth`` tokens attends to, and rows the indexer scores."""
    attended = scored = 0
    for ratio in NANO.ratios:
        attended += sum(1 for position in range(depth) if position >= depth - NANO.window)
        closed = sum(1 for position in range(depth) if ratio and position % ratio == ratio - 1)
        if ratio == 4 and closed > NANO.index_topk:
            scored += closed
            closed = NANO.index_topk
        attended += closed
    return attended, scored


def attention(depth: int) -> float:
    attended, scored = rows_read(depth)
    return 2 * 2 * attended * NANO.n_heads * NANO.head_dim + 2 * scored * NANO.index_heads * NANO.index_dim


def matrices(depth: int, experts: int, lm_head: bool = True) -> tuple[int, int]:
    """Operations of all matrices for one token: of quantized ones, of float ones."""
    quantized = floats = 0
    for spec in TENSORS:
        count = 2 * math.prod(spec.dims)
        if len(spec.dims) < 2 or any(word in spec.name for word in ("token_embd", "tid2eid", "_ape", "output_hc")):
            continue
        if spec.name == "output.weight" and not lm_head:
            continue
        if ".indexer." in spec.name and depth <= FULL:
            continue
        if "_exps" in spec.name:
            count = count // NANO.n_experts * experts
        if spec.fmt in ("F16", "F32"):
            floats += count
        else:
            quantized += count
    return quantized, floats


def weights(tokens: int, depth: int, experts: float) -> float:
    """Bytes of weights that ``tokens`` tokens together read if they use so many ``experts`` of a layer."""
    total = 0.0
    for spec in TENSORS:
        part = spec.nbytes
        if "token_embd" in spec.name or "tid2eid" in spec.name:
            part = tokens * part / NANO.vocab
        elif "_exps" in spec.name:
            part = part * experts / NANO.n_experts
        elif ".indexer." in spec.name and depth <= FULL:
            part = 0
        total += part
    return total


def test_a_file_costs_what_its_recipe_says(nano_path):
    """Formats differ from matrix to matrix in the embedded model; what is counted is what the file holds."""
    with Engine.open(nano_path, backend="reference", numerics="exact") as engine:
        found = engine.costs()
        assert Costs.of_file(engine.source, engine.shape).prefill(0, 9) == COSTS.prefill(0, 9)
    exact = Costs.of_recipe(NANO, "q2", act_quant=False)
    assert found.decode(300) == exact.decode(300) and found.decode(300).int8_ops == 0 < found.decode(300).mixed_ops


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_decoded_token(depth: int):
    attended, scored = rows_read(depth)
    found = COSTS.decode(depth)
    int8, f32 = matrices(depth, NANO.n_used)
    assert found.bytes == weights(1, depth, NANO.n_used) + 4 * (attended * NANO.head_dim + scored * NANO.index_dim)
    assert found.int8_ops == int8 and found.f32_ops == f32 + attention(depth)
    floats = Costs.of_recipe(NANO, "q2", act_quant=False).decode(depth)
    assert floats == Work(found.bytes, 0, found.f32_ops, int8) and found.mixed_ops == 0
    assert floats.ops == found.ops == int8 + f32 + attention(depth)


@pytest.mark.parametrize(
    ("first", "last", "size"), [(0, 6, 8), (0, 20, 8), (5, 20, 8), (240, 270, 10), (252, 256, 256)]
)
def test_a_prefill_is_the_sum_of_its_chunks(first: int, last: int, size: int):
    nbytes = int8 = f32 = 0.0
    start = first
    while start < last:
        end = min(last, start - start % size + size)  # chunks end at multiples of their size
        count, middle = end - start, (start + end) // 2
        nbytes += weights(count, end, NANO.n_experts * (1 - (1 - NANO.n_used / NANO.n_experts) ** count))
        rows = NANO.n_layers * min(end, NANO.window) * NANO.head_dim
        for ratio in filter(None, NANO.ratios):
            rows += end // ratio * (NANO.head_dim + (NANO.index_dim if ratio == 4 else 0))
        nbytes += 4 * rows
        one, other = matrices(end, NANO.n_used, lm_head=False)
        int8, f32 = int8 + count * one, f32 + count * (other + attention(middle))
        start = end
    output = next(spec for spec in TENSORS if spec.name == "output.weight")
    head = 2 * math.prod(output.dims)
    # the output matrix is read in the last chunk alone, and used for its last token
    nbytes -= output.nbytes * (-(-last // size) - first // size - 1)
    found = COSTS.prefill(first, last, size)
    assert (found.bytes, found.int8_ops, found.f32_ops) == pytest.approx((nbytes, int8 + head, f32), rel=1e-12)


def test_bytes_bind_until_arithmetic_takes_longer():
    peaks = Peaks(read_gbs=10, int8_gops=100, f32_gflops=20)
    for work, seconds, binds in (
        (Work(20e9, 100e9, 10e9), 2.0, "bytes"),
        (Work(15e9, 100e9, 10e9), 1.5, "bytes"),
        (Work(10e9, 100e9, 10e9), 1.5, "arithmetic"),
    ):
        bound = work.bound(peaks)
        assert (bound.seconds, bound.binds) == (pytest.approx(seconds), binds)


@pytest.mark.parametrize(("int8", "f32", "seconds"), [(100, 20, 3.0), (50, 20, 5.0), (300, 20, 1.0), (100, 50, 2.0)])
def test_float_activations_take_the_faster_of_float_and_three_int8_passes(int8, f32, seconds):
    """As modes exact and qat are computed: a share of the float peak alone was above 1 where int8 is fast."""
    assert Work(0, 0, 0, 100e9).bound(Peaks(10, int8, f32)).seconds == pytest.approx(seconds)
    assert Work(0, 100e9, 0, 0).bound(Peaks(10, int8, f32)).seconds == pytest.approx(100 / int8)
    assert Work(0, 0, 100e9, 0).bound(Peaks(10, int8, f32)).seconds == pytest.approx(100 / f32)


def test_peaks_are_measured_with_the_threads_there_are(monkeypatch):
    asked: list[int] = []

    def measure(threads: int) -> dict[str, float]:
        asked.append(threads)
        return {"read_gbs": 1.0, "int8_gops": 2.0, "f32_gflops": 3.0}

    monkeypatch.setattr("ds4ref.kernels.cpu.peaks.measure", measure)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    assert measure_peaks(2) == Peaks(1.0, 2.0, 3.0)
    for threads in (64, 0):
        measure_peaks(threads)
    assert asked == [2, 3, 1]
