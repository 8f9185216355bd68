"""The estimates of AArch64 machines: arithmetic on figures that are made up, and what is stored."""

from __future__ import annotations

import pytest

from benchmarks import arm
from benchmarks.arm import KERNELS, MACHINES, MODELS, Machine, Span, both, core, rate, token_bytes, token_seconds
from benchmarks.context import Context
from benchmarks.tiles_code import Expected
from benchmarks.timing import Budget
from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.kernels.formats import FORMATS as LAYOUTS


def document(**rates: tuple[float, float]) -> dict:
    """A document of one processor with two models; all kernels take 4 and 8 bytes a cycle unless given."""
    by_model: list[dict] = [{}, {}]
    for kernel in KERNELS:
        for figures, value in zip(by_model, rates.get(kernel.split("/")[0], (8.0, 4.0)), strict=True):
            figures[kernel] = {"row_bytes": 1000, "row_cycles": 1000 / value, "spills": 0}
    return {"processors": {"one": {"tier": "N", "models": {"a": by_model[0], "b": by_model[1]}}}}


MACHINE = Machine("Test", "Test Processor", "one", 10, 2.5, 100)


def test_the_models_are_the_ends_of_an_estimate():
    assert rate(document(), "one", "Q8_0/a8") == (4, 8)
    assert core(document(), MACHINE, "Q8_0/a8") == (10, 20)
    assert Span(10, 20).times(1 / 16, most=1) == (0.625, 1)


def test_the_bytes_of_a_token_are_those_of_the_cost_model():
    nbytes = token_bytes()
    assert set(nbytes) == {"Q8_0", "F16", "Q2_K", "IQ2_XXS"}
    total = Costs.of_recipe(FLASH, "q2").weight_bytes()
    assert 0 < total - sum(nbytes.values()) < 2e6


def test_matrices_follow_each_other_and_each_has_its_bound():
    nbytes = token_bytes()
    total = sum(nbytes.values()) / 1e9
    one = token_seconds(document(), MACHINE, 1)
    assert one == pytest.approx((total / 20, total / 10))
    # ten cores take 100 to 200 GB/s, and memory gives 100
    assert token_seconds(document(), MACHINE, 10) == pytest.approx((total / 100, total / 100))
    slow = nbytes["Q2_K"] / 1e9  # 25 to 50 GB/s of this one
    mixed = token_seconds(document(Q2_K=(1.0, 2.0)), MACHINE, 10)
    assert mixed == pytest.approx(((total - slow) / 100 + slow / 50, (total - slow) / 100 + slow / 25))


def test_spans_that_read_alike_are_one_figure():
    assert both(Span(1.01, 1.04), 1) == "1.0" and both(Span(1.0, 2.0), 1) == "1.0 - 2.0"


@pytest.mark.parametrize(
    "brand, name",
    [
        ("Apple M4 Max", "M4 Max"),
        ("Apple M4", None),
        ("Cortex-A725 + Cortex-X925", "GB10"),
        ("Cortex-X925", None),
        ("Intel(R) Xeon(R) Processor", None),
    ],
)
def test_only_known_machines_have_estimates(monkeypatch, brand, name):
    import ds4ref.environment

    monkeypatch.setattr(ds4ref.environment, "cpu_name", lambda: brand)
    machine = arm.this_machine()
    assert (machine and machine.name) == name
    context = Context(True, 2, False, "", Budget(None))
    got = context.estimated("Q8_0", "a8", 0.5)
    assert (got is None) == (name is None)
    if machine is not None:
        assert got == core(arm.stored(), machine, "Q8_0/a8").times(0.5)


def test_what_is_stored_is_whole():
    stored = arm.stored()
    assert set(stored["processors"]) == set(MODELS) and {m.cpu for m in MACHINES} <= set(MODELS)
    for cpu, models in MODELS.items():
        assert set(stored["processors"][cpu]["models"]) == set(models)
        for figures in stored["processors"][cpu]["models"].values():
            assert set(figures) == set(KERNELS)
            for kernel, row in figures.items():
                layout = LAYOUTS[kernel.split("/")[0]]
                assert row["row_bytes"] == 4096 // layout.block_elems * layout.block_bytes
                assert row["bytes"] % layout.block_bytes == 0 and row["row_bytes"] % row["bytes"] == 0
                # a row takes at least its rounds, less what overlaps
                assert row["row_cycles"] > 0.9 * row["cycles"] * row["row_bytes"] / row["bytes"]


def test_tiles_are_whole_chunks_without_spills():
    for cpu, models in MODELS.items():
        assert set(arm.stored()["tiles"][cpu]) == set(models)
        for figures in arm.stored()["tiles"][cpu].values():
            rows = {kernel: Expected(**row) for kernel, row in figures.items()}
            assert set(rows) == set(KERNELS) and {row.spills for row in rows.values()} == {0}
            assert rows["Q8_0/a8"].macs == 12 * 4 * 32 and rows["Q2_K/q8k"].macs == 12 * 4 * 256
            assert rows["F16/float"].macs == 6 * 4 * 128


def test_decoding_is_paid_once_for_all_tokens():
    row = Expected(macs=1000, cycles=50, instructions=1, spills=0, decode_cycles=64, decoded=256, row_rate=1)
    assert row.rate == 20
    assert row.with_decoding(10) == 2560 / (64 + 128)


def test_the_page_has_the_tables():
    page = (arm.TABLE.parents[1] / "docs" / "evidence" / "arm.md").read_text()
    assert arm.tables(arm.stored()) in page and arm.tile_tables(arm.stored()) in page
